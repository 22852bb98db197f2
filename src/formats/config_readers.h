// The readers behind model_config.h, one for each form of file, and the limits they share.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "formats/json_file.h"
#include "formats/model_config.h"

namespace kd {

class GgufFile;
class HfFolder;

// Sane maxima. Products of any three of them stay far below 2^63.
inline constexpr int64_t kMaxLayers = 1024;
inline constexpr int64_t kMaxHidden = 65536;
inline constexpr int64_t kMaxIntermediate = 1 << 20;
inline constexpr int64_t kMaxHeads = 1024;
inline constexpr int64_t kMaxMlaPart = 512;  // elements of a head that rotate, do not, are values
inline constexpr int64_t kMaxExperts = 65536;
inline constexpr int64_t kMaxContext = 1 << 24;
inline constexpr double kMinRopeBase = 1.01;  // yarn divides by its logarithm
inline constexpr double kMaxRopeBase = 1e12;
inline constexpr double kMinRopeFactor = 1e-3;
inline constexpr double kMaxRopeFactor = 1e6;
inline constexpr double kMinEpsilon = 1e-12;
inline constexpr double kMaxEpsilon = 0.1;

/// Runs one part of reading. False: it was refused, and what builds on it makes no sense.
using AttemptPart = std::function<bool(const std::function<void()>& part)>;

ModelConfig read_gguf_config(const GgufFile& file, const AttemptPart& attempt);
/// Members of a config.json; `fallback` for those that are absent or null.
int64_t integer_or(const JsonNode& node, std::string_view key, int64_t fallback, int64_t min,
                   int64_t max);
double number_or(const JsonNode& node, std::string_view key, double fallback, double min,
                 double max);
bool boolean_or(const JsonNode& node, std::string_view key, bool fallback);
/// Throws: this string is not supported there.
[[noreturn]] void refuse_string(const JsonNode& value);

/// Refuse heads that attention does not take (base/views.h): K/V heads that do not divide the heads
/// or are too few, a head's number of elements. where: file and field, for the message.
void check_kv_heads(int64_t heads, int64_t kv_heads, const std::string& where);
void check_head_dim(int64_t head_dim, const std::string& where);

/// Refuses groups that do not divide the experts, or of which those used hold too few experts, and
/// shared experts that are too large together. where: the file, for the message.
void check_experts(const MoeShape& moe, const std::string& where);

/// Of architecture "deepseek2": heads, rope dimension and experts. Sizes must be read.
void read_deepseek_heads(const GgufFile& file, ModelConfig& config);
void read_deepseek_experts(const GgufFile& file, ModelConfig& config);
/// The same from a config.json. is_v2: DeepSeek-V2, whose defaults and router are others.
void read_deepseek_heads(const JsonNode& json, bool is_v2, ModelConfig& config);
void read_deepseek_experts(const JsonNode& json, bool is_v2, ModelConfig& config);

/// rope_base and rope_scaling of a config.json: rope_scaling beside rope_theta, or all of it in
/// rope_parameters. A rope_scaling that is not empty wins; a theta inside wins over one beside it.
/// context_length must be read.
void read_hf_rope(const JsonNode& json, ModelConfig& config);

ModelConfig read_hf_config(const HfFolder& folder, const AttemptPart& attempt);

}  // namespace kd
