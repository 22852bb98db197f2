// Tiny DeepSeek checkpoints whose weights are functions of tensor name and index: the same that
// tools/make_deepseek_fixtures.py gives to transformers.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/gguf_writer.h"
#include "support/hf_writer.h"

namespace kd {

/// A case of tests/data/models/deepseek.json: what its fields mean is said in the maker script.
struct DeepseekCase {
    nlohmann::ordered_json config;   // config.json
    nlohmann::ordered_json weights;  // how they depart from the plain generator
};

/// All tensors in published order, floats as BF16 (router biases as F32).
std::vector<HfTensor> deepseek_checkpoint(const DeepseekCase& model);

struct DeepseekGgufOptions {
    bool split_kv_b = true;       // attn_k_b and attn_v_b; else attn_kv_b, as old files have it
    bool stacked_experts = true;  // one tensor for all experts; else one for each
    DType matrices = DType::f32;  // of linear layers and experts but the router
};

/// As llama.cpp's converter makes a file of it, with the tokenizer of tiny_model.h. Of plain
/// weights only.
GgufWriter deepseek_gguf(const DeepseekCase& model, const DeepseekGgufOptions& options = {});

}  // namespace kd
