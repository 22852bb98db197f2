// The shape of a model, read from its file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "formats/gguf.h"

namespace kd {

struct ModelConfig {
    std::string architecture;  // "llama"
    std::string name;          // general.name, or the file's name
    int32_t layers = 0;
    int32_t hidden = 0;
    int32_t intermediate = 0;
    int32_t heads = 0;
    int32_t kv_heads = 0;
    int32_t head_dim = 0;
    int32_t rope_dim = 0;  // leading elements of a head that rotate
    double rope_base = 10000;
    double norm_epsilon = 1e-5;
    int32_t vocabulary = 0;
    int32_t context_length = 0;
    bool rope_adjacent_pairs = false;  // Q/K rows are stored for pairs (2i, 2i+1)
};

/// Throws kd::Error naming the key for an architecture other than "llama", a value out of range
/// (each has a sane maximum, so that no later size computation can overflow), heads not divisible
/// by kv_heads, an odd or too large rope dimension, a rope scaling that is not "none", or a
/// vocabulary that does not match the token list.
ModelConfig read_model_config(const GgufFile& gguf);

/// The same without throwing: every independent refusal is appended to `faults`, and the result
/// holds what could be read (all of it if there were none).
ModelConfig probe_model_config(const GgufFile& gguf, std::vector<std::string>& faults);

}  // namespace kd
