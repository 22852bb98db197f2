#include "models/weights.h"

#include <fmt/ranges.h>

#include "base/error.h"

namespace kd {

const GgufTensor& WeightReader::take(std::string_view name) {
    const GgufTensor* tensor = file_->find_tensor(name);
    if (tensor == nullptr)
        KD_THROW(corrupt, "{}: tensor {} is missing", file_->file().path(), name);
    taken_.insert(tensor->name);
    check_finite(*tensor, file_->file().path());
    return *tensor;
}

WeightView WeightReader::matrix(std::string_view name, int64_t rows, int64_t columns) {
    const GgufTensor& tensor = take(name);
    if (tensor.dims.size() != 2 || tensor.columns() != columns || tensor.rows() != rows) {
        KD_THROW(corrupt, "{}: tensor {} has shape [{}], expected [{}, {}]", file_->file().path(),
                 name, fmt::join(tensor.dims, ", "), columns, rows);
    }
    return {.type = tensor.type, .data = tensor.data, .rows = rows, .columns = columns};
}

std::span<const float> WeightReader::vector(std::string_view name, int64_t length) {
    const GgufTensor& tensor = take(name);
    if (tensor.dims.size() != 1 || tensor.columns() != length || tensor.type != DType::f32) {
        KD_THROW(corrupt, "{}: tensor {} is {} [{}], expected F32 [{}]", file_->file().path(), name,
                 name_of(tensor.type), fmt::join(tensor.dims, ", "), length);
    }
    return {reinterpret_cast<const float*>(tensor.data), static_cast<size_t>(length)};
}

void WeightReader::expect_all_taken() const {
    for (const GgufTensor& tensor : file_->tensors()) {
        if (!taken_.contains(tensor.name)) {
            KD_THROW(unsupported, "{}: tensor {} is not part of a {} model that is supported",
                     file_->file().path(), tensor.name, file_->string("general.architecture"));
        }
    }
}

}  // namespace kd
