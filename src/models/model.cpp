#include "models/model.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "base/check.h"
#include "models/architectures.h"

namespace kd {

namespace {

struct Architecture {
    std::string_view name;
    decltype(load_dense_gqa)* load;
    decltype(check_dense_gqa)* check;
};

constexpr std::array<Architecture, 4> kArchitectures = {{
    {"llama", load_dense_gqa, check_dense_gqa},
    {"qwen2", load_dense_gqa, check_dense_gqa},
    {"qwen3", load_dense_gqa, check_dense_gqa},
    {"deepseek2", load_deepseek, check_deepseek},
}};

/// read_model_config lets no other name pass.
const Architecture& architecture_of(const ModelConfig& config) {
    const auto* found =
        std::find_if(kArchitectures.begin(), kArchitectures.end(),
                     [&](const Architecture& each) { return each.name == config.architecture; });
    KD_CHECK(found != kArchitectures.end(), "no architecture '{}'", config.architecture);
    return *found;
}

}  // namespace

KvView cache_view(const ModelConfig& config, DType type, int64_t slots) {
    KvView view = {.type = type,
                   .layers = config.layers,
                   .slots = slots,
                   .kv_heads = config.kv_heads,
                   .head_dim = config.head_dim};
    if (config.mla.kv_lora > 0) {
        view.kv_heads = 1;
        view.head_dim = config.mla.kv_lora + config.mla.rope;
        view.rows = KvRows::latent;
    }
    return view;
}

std::unique_ptr<Model> load_model(const ModelFile& file, const ForwardLimits& limits,
                                  Stream& stream) {
    const ModelConfig config = read_model_config(file);
    return architecture_of(config).load(file, config, limits, stream);
}

void check_tensors(const ModelFile& file, const ModelConfig& config,
                   std::vector<std::string>& faults) {
    architecture_of(config).check(file, config, faults);
}

}  // namespace kd
