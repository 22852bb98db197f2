// The parts of ModelConfig that GGUF metadata says in other keys for DeepSeek models: as
// llama.cpp's converter (conversion/deepseek.py) writes them, and the files from before it split
// attn_kv_b.
#include "base/error.h"
#include "formats/config_readers.h"
#include "formats/gguf.h"

namespace kd {

namespace {

std::string key(std::string_view name) {
    return fmt::format("deepseek2.{}", name);
}

int32_t integer(const GgufFile& gguf, std::string_view name, int64_t min, int64_t max) {
    return static_cast<int32_t>(gguf.integer(key(name), min, max));
}

int32_t integer_or(const GgufFile& gguf, std::string_view name, int64_t fallback, int64_t min,
                   int64_t max) {
    return static_cast<int32_t>(gguf.integer_or(key(name), fallback, min, max));
}

/// A size that says again what others say.
void expect_size(const GgufFile& gguf, std::string_view name, int64_t wanted) {
    const int64_t stated = gguf.integer(key(name), 1, INT32_MAX);
    if (stated == wanted) return;
    KD_THROW(corrupt, "{}: metadata '{}': {}, but the other sizes make {}", gguf.file().path(),
             key(name), stated, wanted);
}

}  // namespace

void read_deepseek_heads(const GgufFile& gguf, ModelConfig& config) {
    MlaShape& mla = config.mla;
    config.heads = integer(gguf, "attention.head_count", 1, kMaxHeads);
    config.kv_heads = 1;
    mla.q_lora = integer_or(gguf, "attention.q_lora_rank", 0, 1, kMaxHidden);
    mla.kv_lora = integer(gguf, "attention.kv_lora_rank", 1, kMaxHidden);
    mla.rope = integer(gguf, "rope.dimension_count", 2, kMaxMlaPart);
    // Files whose attention is absorbed give the latent row's sizes under the plain keys.
    const bool absorbed = gguf.find(key("attention.key_length_mla")) != nullptr;
    const std::string suffix = absorbed ? "_mla" : "";
    config.head_dim = integer(gguf, "attention.key_length" + suffix, 1, kMaxMlaPart);
    mla.value = integer(gguf, "attention.value_length" + suffix, 1, kMaxMlaPart);
    if (absorbed) {
        expect_size(gguf, "attention.key_length", int64_t{mla.kv_lora} + mla.rope);
        expect_size(gguf, "attention.value_length", mla.kv_lora);
    }
    mla.nope = config.head_dim - mla.rope;
    if (mla.nope < 1 || mla.rope % 2 != 0) {
        KD_THROW(corrupt, "{}: metadata '{}': {} of {} elements a head rotate", gguf.file().path(),
                 key("rope.dimension_count"), mla.rope, config.head_dim);
    }
    config.rope_dim = mla.rope;
}

void read_deepseek_experts(const GgufFile& gguf, ModelConfig& config) {
    MoeShape& moe = config.moe;
    moe.experts = integer_or(gguf, "expert_count", 0, 0, kMaxExperts);
    moe.first_dense = integer(gguf, "leading_dense_block_count", 0, config.layers);
    if (moe.experts == 0) return;
    moe.used = integer(gguf, "expert_used_count", 1, moe.experts);
    moe.groups = integer_or(gguf, "expert_group_count", 1, 1, moe.experts);
    moe.groups_used = integer_or(gguf, "expert_group_used_count", moe.groups, 1, moe.groups);
    moe.intermediate = integer(gguf, "expert_feed_forward_length", 1, kMaxIntermediate);
    moe.shared = integer_or(gguf, "expert_shared_count", 0, 0, kMaxExperts);
    moe.scale = gguf.number_or(key("expert_weights_scale"), 1, 1e-6, 1e6);
    moe.normalise = gguf.boolean_or(key("expert_weights_norm"), false);
    // Files from before the key are of DeepSeek-V2.
    const int32_t gating = integer_or(gguf, "expert_gating_func", 1, 0, INT32_MAX);
    if (gating != 1 && gating != 2) {
        KD_THROW(unsupported,
                 "{}: metadata '{}': {} is not supported (1, softmax, and 2, sigmoid, are)",
                 gguf.file().path(), key("expert_gating_func"), gating);
    }
    moe.scoring = gating == 1 ? MoeScoring::softmax : MoeScoring::sigmoid;
    check_experts(moe, gguf.file().path());
}

}  // namespace kd
