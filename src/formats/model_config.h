// The shape of a model, read from its file: GGUF metadata or the config.json of a Hugging Face
// folder. Architectures have GGUF's names, whatever the file.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/views.h"

namespace kd {

class ModelFile;

enum class RopeScalingType : uint8_t { none, linear, llama3, yarn };
std::string_view name_of(RopeScalingType type);

/// How the rotation is stretched for contexts longer than those of the first training. Fields that
/// a type does not use keep their defaults.
struct RopeScaling {
    RopeScalingType type = RopeScalingType::none;
    double factor = 1;                 // all
    int32_t original_context = 0;      // llama3, yarn: tokens
    double low_frequency_factor = 1;   // llama3
    double high_frequency_factor = 4;  // llama3
    double beta_fast = 32;      // yarn: rotations within original_context above which a pair keeps
    double beta_slow = 1;       // its frequency, and below which it is divided by `factor`
    double mscale = 0;          // yarn; 0: not stated
    double mscale_all_dim = 0;  // yarn; 0: not stated
    double attention_factor = 0;  // yarn: multiplies cos and sin; 0: derived (models/rope.h)
    bool truncate = true;         // yarn: whether the ramp's ends are rounded to whole pairs
};

/// Multi-head latent attention. kv_lora 0: none.
struct MlaShape {
    int32_t q_lora = 0;  // 0: Q is one projection
    int32_t kv_lora = 0;
    int32_t nope = 0;   // elements of a head's Q and K that do not rotate
    int32_t rope = 0;   // and that do
    int32_t value = 0;  // elements of a head's V
};

/// Mixture of experts in the layers behind the first `first_dense`. experts 0: all layers are
/// dense.
struct MoeShape {
    int32_t experts = 0;
    int32_t used = 0;          // by one token
    int32_t groups = 1;        // of neighbouring experts
    int32_t groups_used = 1;   // by one token
    int32_t intermediate = 0;  // of one expert
    int32_t shared = 0;        // experts that every token uses, fused into one of that many times
                               // the intermediate size
    int32_t first_dense = 0;
    bool normalise = true;  // the weights of the used experts sum to `scale`
    double scale = 1;
    MoeScoring scoring = MoeScoring::sigmoid;
};

struct ModelConfig {
    std::string architecture;  // "llama", "qwen2", "qwen3", "deepseek2"
    std::string name;          // general.name, or that of the file or folder
    int32_t layers = 0;
    int32_t hidden = 0;
    int32_t intermediate = 0;
    int32_t heads = 0;
    int32_t kv_heads = 0;
    int32_t head_dim = 0;
    int32_t rope_dim = 0;  // leading elements of a head that rotate
    double rope_base = 10000;
    RopePairing rope_pairing = RopePairing::half;  // as the rows of Q and K are stored
    RopeScaling rope_scaling;
    double norm_epsilon = 1e-5;
    int32_t vocabulary = 0;  // rows of the embedding: at least as many as there are tokens
    int32_t context_length = 0;
    MlaShape mla;  // with it kv_heads is 1, head_dim nope + rope, rope_dim rope
    MoeShape moe;
    int32_t mtp_layers = 0;  // in the file behind the others, for the prediction of further tokens:
                             // not computed with
};

/// Throws kd::Error naming the file and the key or field for an architecture that is not supported,
/// a value out of range (each has a sane maximum, so that no later size computation can overflow),
/// heads not divisible by kv_heads, an odd or too large rope dimension, a rope scaling, an
/// activation, an attention window or a partial rotation that is not supported, a vocabulary that
/// does not match the token list, and for fields that contradict the tensors of the file.
ModelConfig read_model_config(const ModelFile& file);

/// The same without throwing: every independent refusal is appended to `faults`, and the result
/// holds what could be read (all of it if there were none).
ModelConfig probe_model_config(const ModelFile& file, std::vector<std::string>& faults);

}  // namespace kd
