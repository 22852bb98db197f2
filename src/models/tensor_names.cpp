#include "models/tensor_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "formats/hf_folder.h"

namespace kd {

namespace {

struct NamePair {
    std::string_view gguf;
    std::string_view hugging_face;
};

/// Outside the layers, whole names.
constexpr std::array<NamePair, 3> kOuter = {{
    {"token_embd.weight", "model.embed_tokens.weight"},
    {"output_norm.weight", "model.norm.weight"},
    {"output.weight", "lm_head.weight"},
}};

/// Of a layer, what stands between its number and ".weight" or ".bias".
constexpr std::array<NamePair, 21> kLayer = {{
    {"attn_norm", "input_layernorm"},
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_q_norm", "self_attn.q_norm"},
    {"attn_k_norm", "self_attn.k_norm"},
    {"attn_output", "self_attn.o_proj"},
    {"ffn_norm", "post_attention_layernorm"},
    {"ffn_gate", "mlp.gate_proj"},
    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
    {"attn_q_a", "self_attn.q_a_proj"},
    {"attn_q_a_norm", "self_attn.q_a_layernorm"},
    {"attn_q_b", "self_attn.q_b_proj"},
    {"attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"},
    {"attn_kv_a_norm", "self_attn.kv_a_layernorm"},
    {"attn_kv_b", "self_attn.kv_b_proj"},
    {"ffn_gate_inp", "mlp.gate"},
    {"ffn_gate_shexp", "mlp.shared_experts.gate_proj"},
    {"ffn_up_shexp", "mlp.shared_experts.up_proj"},
    {"ffn_down_shexp", "mlp.shared_experts.down_proj"},
}};

/// Of one expert, what stands before and behind its number.
constexpr std::array<NamePair, 3> kExpert = {{
    {"ffn_gate", "gate_proj"},
    {"ffn_up", "up_proj"},
    {"ffn_down", "down_proj"},
}};

template <size_t n>
std::string_view translate(const std::array<NamePair, n>& table, std::string_view name) {
    const auto found = std::find_if(table.begin(), table.end(),
                                    [&](const NamePair& pair) { return pair.gguf == name; });
    return found == table.end() ? std::string_view() : found->hugging_face;
}

/// Of a layer: "attn_q.weight", "ffn_gate.17.weight" for an expert.
std::string layer_tensor_name(std::string_view name) {
    if (name == "exp_probs_b.bias") return "mlp.gate.e_score_correction_bias";
    const size_t last = name.rfind('.');
    if (last == std::string_view::npos) return {};
    const std::string_view part = name.substr(0, last);
    if (const size_t dot = part.find('.'); dot != std::string_view::npos) {
        const std::string_view matrix = translate(kExpert, part.substr(0, dot));
        if (matrix.empty()) return {};
        return fmt::format("mlp.experts.{}.{}{}", part.substr(dot + 1), matrix, name.substr(last));
    }
    const std::string_view translated = translate(kLayer, part);
    return translated.empty() ? std::string() : fmt::format("{}{}", translated, name.substr(last));
}

}  // namespace

std::string tensor_name(const ModelFile& file, std::string_view name) {
    if (file.folder() == nullptr) return std::string(name);
    const std::string_view prefix = file.folder()->name_prefix();
    constexpr std::string_view kBlock = "blk.";
    if (!name.starts_with(kBlock)) {
        const std::string_view outer = translate(kOuter, name);
        return outer.empty() ? std::string() : fmt::format("{}{}", prefix, outer);
    }
    const std::string_view rest = name.substr(kBlock.size());  // "3.attn_q.weight"
    const size_t dot = rest.find('.');
    if (dot == std::string_view::npos) return {};
    const std::string part = layer_tensor_name(rest.substr(dot + 1));
    if (part.empty()) return {};
    return fmt::format("{}model.layers.{}.{}", prefix, rest.substr(0, dot), part);
}

std::string layer_prefix(const ModelFile& file, int32_t layer) {
    if (file.folder() == nullptr) return fmt::format("blk.{}.", layer);
    return fmt::format("{}model.layers.{}.", file.folder()->name_prefix(), layer);
}

bool is_unused_tensor(const ModelFile& file, std::string_view name) {
    if (file.folder() == nullptr) return false;
    // Old exports keep the rotation's frequencies, which follow from config.json.
    if (name.ends_with(".rotary_emb.inv_freq")) return true;
    // What turns pictures into embeddings; only text is read.
    return !file.folder()->name_prefix().empty() &&
           (name.starts_with("vision_tower.") || name.starts_with("mm_projector."));
}

}  // namespace kd
