#include "app/inspect_drafter.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "formats/json_file.h"

namespace kd {

namespace {

using Json = nlohmann::ordered_json;

const char* name_of(DraftHeadType head) {
    switch (head) {
        case DraftHeadType::none:
            return "none";
        case DraftHeadType::markov:
            return "markov";
        case DraftHeadType::gated_markov:
            return "gated markov";
        case DraftHeadType::residual:
            return "residual";
    }
    return "?";
}

}  // namespace

DraftFolder::DraftFolder(const std::string& path) : path_(path) {
    while (path_.size() > 1 && path_.ends_with('/')) path_.pop_back();
    try {
        config_ = read_dflash_config(path_);
    } catch (const Error& error) {
        fault_ = without_path(error.what(), path_);
    }
    const std::string file = config_.weights.empty() ? "model.safetensors" : config_.weights;
    weights_ = std::make_unique<DraftTensors>(fmt::format("{}/{}", path_, file));
}

std::vector<TensorRow> DraftFolder::tensor_rows() const {
    std::vector<TensorRow> rows;
    for (const DraftTensor& t : weights_->tensors()) {
        rows.push_back({.name = t.name,
                        .type = std::string(t.type_name),
                        .dims = &t.dims,
                        .bytes = t.bytes,
                        .offset = static_cast<uint64_t>(t.data - weights_->file().data())});
    }
    std::ranges::stable_sort(rows, {}, &TensorRow::offset);
    return rows;
}

Json DraftFolder::fields() const {
    if (!fault_.empty()) return Json::object();
    const auto is_windowed = [](const DflashAttention& layer) { return layer.window != 0; };
    return {{"layers", config_.layers.size()},
            {"hidden", config_.hidden},
            {"intermediate", config_.intermediate},
            {"heads", config_.heads},
            {"kv_heads", config_.kv_heads},
            {"head_dim", config_.head_dim},
            {"windowed_layers", std::ranges::count_if(config_.layers, is_windowed)},
            {"rope_base", config_.rope_base},
            {"rope_scaling", kd::name_of(config_.rope_scaling.type)},
            {"block", config_.block},
            {"drafts", config_.drafts},
            {"mask_token", config_.mask_token},
            {"vocabulary", config_.vocabulary},
            {"draft_vocabulary", config_.draft_vocabulary},
            {"target_hidden", config_.target_hidden},
            {"target_layers", config_.target_layers},
            {"head", name_of(config_.head)},
            {"head_rank", config_.head_rank}};
}

Json DraftFolder::report(const std::vector<TensorRow>& rows) const {
    const Json config = read_json_file(path_ + "/config.json");
    std::error_code error;
    const auto name = std::filesystem::absolute(path_, error).lexically_normal().filename();
    Json out = {{"schema", 1},
                {"path", path_},
                {"bytes", weights_->file().bytes()},
                {"format", "DFlash drafter"},
                {"architecture", class_of(config)},
                {"name", name.string()},
                {"supported", fault_.empty()},
                {"faults", fault_.empty() ? Json::array() : Json::array({fault_})},
                {"drafter", fields()}};
    out.update(weights_report(rows));
    out["metadata"] = config;
    return out;
}

}  // namespace kd
