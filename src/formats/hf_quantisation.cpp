#include "formats/hf_quantisation.h"

#include <limits>

#include "base/error.h"
#include "formats/mapped_file.h"

namespace kd {

namespace {

constexpr int64_t kMaxBlock = 65536;

[[noreturn]] void refuse(const JsonNode& value) {
    const Json& json = value.json();
    KD_THROW(unsupported, "{}: {} is not supported", value.where(),
             json.is_string() ? fmt::format("'{}'", printable(json.get_ref<const std::string&>()))
             : json.is_structured() ? "this"
                                    : json.dump());
}

/// Refuses any other string. Absent is fine where `optional`.
void expect(const JsonNode& node, std::string_view key, std::string_view wanted,
            bool optional = false) {
    if (optional && !node.find(key)) return;
    const JsonNode value = node.at(key);
    if (value.string() != wanted) refuse(value);
}

/// Refuses any other number.
void expect(const JsonNode& node, std::string_view key, int64_t wanted) {
    const JsonNode value = node.at(key);
    if (value.integer(std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()) !=
        wanted) {
        refuse(value);
    }
}

/// Refuses what is there and not empty.
void expect_nothing(const JsonNode& node, std::string_view key) {
    const std::optional<JsonNode> value = node.find(key);
    if (value && !(value->json().is_structured() && value->json().empty())) refuse(*value);
}

void read_block(const JsonNode& block, HfQuantisationScheme& scheme) {
    if (block.count() != 2) block.refuse("an array of 2");
    scheme.block_rows = static_cast<int32_t>(block.at(size_t{0}).integer(1, kMaxBlock));
    scheme.block_columns = static_cast<int32_t>(block.at(size_t{1}).integer(1, kMaxBlock));
}

HfQuantisationScheme read_fp8(const JsonNode& node) {
    HfQuantisationScheme scheme = {.kind = HfQuantisation::fp8_blocks};
    expect(node, "fmt", "e4m3", /*optional=*/true);
    expect(node, "activation_scheme", "dynamic", /*optional=*/true);
    read_block(node.at("weight_block_size"), scheme);
    return scheme;
}

HfQuantisationScheme read_pack_quantized(const JsonNode& weights) {
    expect(weights, "type", "int");
    expect(weights, "num_bits", 4);
    expect(weights, "strategy", "group");
    expect(weights, "group_size", 32);
    expect_nothing(weights, "actorder");
    return {.kind = HfQuantisation::pack_quantized, .block_rows = 1, .block_columns = 32};
}

HfQuantisationScheme read_float_quantized(const JsonNode& weights) {
    HfQuantisationScheme scheme = {.kind = HfQuantisation::float_quantized};
    expect(weights, "type", "float");
    expect(weights, "num_bits", 8);
    const JsonNode strategy = weights.at("strategy");
    if (strategy.string() == "channel") {
        scheme.block_rows = 1;
    } else if (strategy.string() == "block") {
        read_block(weights.at("block_structure"), scheme);
    } else if (strategy.string() != "tensor") {
        refuse(strategy);
    }
    return scheme;
}

HfQuantisationScheme read_compressed_tensors(const JsonNode& node) {
    expect_nothing(node, "kv_cache_scheme");
    expect_nothing(node, "sparsity_config");
    expect_nothing(node, "transform_config");
    expect(node, "quantization_status", "compressed", /*optional=*/true);
    const JsonNode groups = node.at("config_groups");
    if (!groups.json().is_object() || groups.json().size() != 1) {
        KD_THROW(unsupported, "{}: {} groups, not one", groups.where(), groups.json().size());
    }
    const JsonNode group = groups.at(groups.json().begin().key());
    const std::optional<JsonNode> activations = group.find("input_activations");
    if (activations) {
        const std::optional<JsonNode> dynamic = activations->find("dynamic");
        if (!dynamic || dynamic->json() != true) refuse(*activations);
    }
    expect_nothing(group, "output_activations");
    const JsonNode weights = group.at("weights");
    if (const std::optional<JsonNode> symmetric = weights.find("symmetric")) {
        if (!symmetric->boolean()) refuse(*symmetric);
    }
    const JsonNode format = node.at("format");
    if (format.string() == "pack-quantized") return read_pack_quantized(weights);
    if (format.string() == "float-quantized") return read_float_quantized(weights);
    refuse(format);
}

}  // namespace

HfQuantisationScheme read_hf_quantisation(const JsonNode& config) {
    std::optional<JsonNode> node = config.find("quantization_config");
    const std::optional<JsonNode> text = config.find("text_config");
    if (!node && text) node = text->find("quantization_config");
    if (!node) return {};
    const JsonNode method = node->at("quant_method");
    if (method.string() == "fp8") return read_fp8(*node);
    if (method.string() == "compressed-tensors") return read_compressed_tensors(*node);
    refuse(method);
}

}  // namespace kd
