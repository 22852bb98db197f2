// What inspect says about a model file, as a JSON object.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/model_file.h"

namespace kd {

/// A tensor of a type that is computed with here, or of a foreign one.
struct TensorRow {
    std::string_view name;
    std::string type;
    const std::vector<int64_t>* dims = nullptr;  // GGUF order: the contiguous one first
    std::optional<int64_t> bytes;                // none: the type's blocks are not known
    int32_t part = 0;                            // of a model in several files
    uint64_t offset = 0;                         // in the file
};

/// In the order of their data. Valid as long as the file.
std::vector<TensorRow> tensor_rows(const ModelFile& file);
nlohmann::ordered_json tensors_json(const std::vector<TensorRow>& rows);

/// The source of the chat template; empty if the model has none.
std::string template_source(const ModelFile& file);

/// Everything but the list of tensors and the template's source: docs/inspect.md describes it.
/// Strings are as they stand in the file, which may be no UTF-8.
nlohmann::ordered_json inspect_report(const ModelFile& file, const std::vector<TensorRow>& rows);

// What the reports of models and drafters share.

/// "parameters", "tensor_count" and "weights".
nlohmann::ordered_json weights_report(const std::vector<TensorRow>& rows);
/// The first class that a config.json names; null if none.
nlohmann::ordered_json class_of(const nlohmann::ordered_json& config);
/// A message without `path` in front.
std::string without_path(const std::string& message, const std::string& path);

}  // namespace kd
