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
constexpr std::array<NamePair, 11> kLayer = {{
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
}};

template <size_t n>
std::string_view translate(const std::array<NamePair, n>& table, std::string_view name) {
    const auto found = std::find_if(table.begin(), table.end(),
                                    [&](const NamePair& pair) { return pair.gguf == name; });
    return found == table.end() ? std::string_view() : found->hugging_face;
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
    const size_t first = rest.find('.');
    const size_t last = rest.rfind('.');
    if (first >= last) return {};
    const std::string_view part = translate(kLayer, rest.substr(first + 1, last - first - 1));
    if (part.empty()) return {};
    return fmt::format("{}model.layers.{}.{}{}", prefix, rest.substr(0, first), part,
                       rest.substr(last));
}

bool is_unused_tensor(const ModelFile& file, std::string_view name) {
    // Old exports keep the rotation's frequencies, which follow from config.json.
    return file.folder() != nullptr && name.ends_with(".rotary_emb.inv_freq");
}

}  // namespace kd
