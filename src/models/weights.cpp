#include "models/weights.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/check.h"
#include "formats/mapped_file.h"
#include "models/tensor_names.h"

namespace kd {

WeightReader::WeightReader(const ModelFile& file, std::vector<std::string>& faults)
    : file_(&file), faults_(&faults) {
    for (const ForeignTensor& tensor : file.foreign_tensors()) foreign_.insert(tensor.name);
}

/// Throws the message, or keeps it.
void WeightReader::refuse(ErrorCode code, std::string message) const {
    if (faults_ == nullptr) throw Error(code, message, __FILE__, __LINE__);
    faults_->push_back(std::move(message));
}

bool WeightReader::has(std::string_view name) const {
    const std::string in_file = tensor_name(*file_, name);
    return file_->find_tensor(in_file) != nullptr || foreign_.contains(in_file);
}

/// Null: a fault was kept.
const FileTensor* WeightReader::take(std::string_view name) {
    const std::string in_file = tensor_name(*file_, name);
    KD_CHECK(!in_file.empty(), "{} has no name in {}", name, file_->path());
    const FileTensor* tensor = file_->find_tensor(in_file);
    if (tensor == nullptr) {
        if (foreign_.contains(in_file)) return nullptr;
        refuse(ErrorCode::corrupt, fmt::format("{}: tensor {} is missing", file_->path(), in_file));
        return nullptr;
    }
    taken_.insert(tensor->name);
    if (faults_ == nullptr) check_finite(*tensor, file_->path_of(*tensor));
    return tensor;
}

WeightView WeightReader::matrix(std::string_view name, int64_t rows, int64_t columns) {
    const FileTensor* tensor = take(name);
    if (tensor == nullptr) return {};
    if (tensor->dims.size() != 2 || tensor->columns() != columns || tensor->rows() != rows) {
        refuse(ErrorCode::corrupt,
               fmt::format("{}: tensor {} has shape [{}], expected [{}, {}]", file_->path(),
                           tensor->name, fmt::join(tensor->dims, ", "), columns, rows));
        return {};
    }
    return {.type = tensor->type,
            .data = tensor->data,
            .rows = rows,
            .columns = columns,
            .scales = tensor->scales};
}

std::vector<WeightView> WeightReader::matrices(std::string_view name, int64_t count, int64_t rows,
                                               int64_t columns) {
    const FileTensor* tensor = take(name);
    if (tensor == nullptr) return {};
    const bool shaped = tensor->dims.size() == 3 && tensor->dims[0] == columns &&
                        tensor->dims[1] == rows && tensor->dims[2] == count;
    if (!shaped || tensor->scales.data != nullptr) {
        refuse(ErrorCode::corrupt,
               fmt::format("{}: tensor {} has shape [{}], expected [{}, {}, {}]", file_->path(),
                           tensor->name, fmt::join(tensor->dims, ", "), columns, rows, count));
        return {};
    }
    std::vector<WeightView> views;
    for (int64_t i = 0; i < count; ++i) {
        views.push_back({.type = tensor->type,
                         .data = tensor->data + i * rows * bytes_of(tensor->type, columns),
                         .rows = rows,
                         .columns = columns});
    }
    return views;
}

std::vector<WeightView> WeightReader::experts(int32_t layer, std::string_view kind, int64_t count,
                                              int64_t rows, int64_t columns) {
    const std::string stack = fmt::format("blk.{}.{}_exps.weight", layer, kind);
    if (has(stack)) return matrices(stack, count, rows, columns);
    std::vector<WeightView> views;
    for (int64_t i = 0; i < count; ++i) {
        const std::string name = fmt::format("blk.{}.{}.{}.weight", layer, kind, i);
        views.push_back(matrix(name, rows, columns));
        if (!has(name)) break;  // that one is missing says enough
    }
    return views;
}

std::vector<float> WeightReader::vector(std::string_view name, int64_t length) {
    const FileTensor* tensor = take(name);
    if (tensor == nullptr) return {};
    const bool is_float =
        tensor->type == DType::f32 || tensor->type == DType::f16 || tensor->type == DType::bf16;
    if (tensor->dims.size() != 1 || tensor->columns() != length || !is_float) {
        refuse(ErrorCode::corrupt, fmt::format("{}: tensor {} is {} [{}], expected floats [{}]",
                                               file_->path(), tensor->name, name_of(tensor->type),
                                               fmt::join(tensor->dims, ", "), length));
        return {};
    }
    std::vector<float> values(static_cast<size_t>(length));
    dequantise(tensor->type, tensor->data, length, values.data());
    return values;
}

std::vector<float> WeightReader::positive_vector(std::string_view name, int64_t length) {
    std::vector<float> values = vector(name, length);
    for (size_t i = 0; i < values.size(); ++i) {
        if (values[i] > 0) continue;
        refuse(ErrorCode::corrupt,
               fmt::format("{}: tensor {}: value {} is {}, not above 0", file_->path(),
                           tensor_name(*file_, name), i, values[i]));
        return {};
    }
    return values;
}

void WeightReader::expect_one_kind(std::initializer_list<WeightView> parts,
                                   std::string_view name) const {
    const WeightView& first = *parts.begin();
    for (const WeightView& part : parts) {
        if (part.data == nullptr || first.data == nullptr) continue;  // already refused
        if (is_quantised(part.type) == is_quantised(first.type)) continue;
        refuse(ErrorCode::unsupported,
               fmt::format("{}: tensor {}: {} and {} weights in one linear layer", file_->path(),
                           tensor_name(*file_, name), name_of(first.type), name_of(part.type)));
        return;
    }
}

void WeightReader::skip_layers(int32_t first, int32_t count) {
    for (int32_t i = first; i < first + count; ++i) skipped_.push_back(layer_prefix(*file_, i));
}

bool WeightReader::is_skipped(std::string_view name) const {
    if (is_unused_tensor(*file_, name)) return true;
    return std::any_of(skipped_.begin(), skipped_.end(),
                       [&](const std::string& prefix) { return name.starts_with(prefix); });
}

void WeightReader::expect_all_taken(std::string_view architecture) const {
    for (const FileTensor& tensor : file_->tensors()) {
        if (taken_.contains(tensor.name) || is_skipped(tensor.name)) continue;
        refuse(ErrorCode::unsupported,
               fmt::format("{}: tensor {} is not part of a {} model that is supported",
                           file_->path(), printable(tensor.name), architecture));
    }
}

}  // namespace kd
