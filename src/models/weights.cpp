#include "models/weights.h"

#include <fmt/ranges.h>

#include "base/error.h"

namespace kd {

WeightReader::WeightReader(const GgufFile& file, std::vector<std::string>& faults)
    : file_(&file), faults_(&faults) {
    for (const ForeignTensor& tensor : file.foreign_tensors()) foreign_.insert(tensor.name);
}

/// Throws the message, or keeps it.
void WeightReader::refuse(ErrorCode code, std::string message) const {
    if (faults_ == nullptr) throw Error(code, message, __FILE__, __LINE__);
    faults_->push_back(std::move(message));
}

/// Null: a fault was kept.
const FileTensor* WeightReader::take(std::string_view name) {
    const FileTensor* tensor = file_->find_tensor(name);
    if (tensor == nullptr) {
        if (foreign_.contains(name)) return nullptr;
        refuse(ErrorCode::corrupt,
               fmt::format("{}: tensor {} is missing", file_->file().path(), name));
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
               fmt::format("{}: tensor {} has shape [{}], expected [{}, {}]", file_->file().path(),
                           name, fmt::join(tensor->dims, ", "), columns, rows));
    }
    return {.type = tensor->type,
            .data = tensor->data,
            .rows = rows,
            .columns = columns,
            .scales = tensor->scales};
}

std::span<const float> WeightReader::vector(std::string_view name, int64_t length) {
    const FileTensor* tensor = take(name);
    if (tensor == nullptr) return {};
    if (tensor->dims.size() != 1 || tensor->columns() != length || tensor->type != DType::f32) {
        refuse(ErrorCode::corrupt,
               fmt::format("{}: tensor {} is {} [{}], expected F32 [{}]", file_->file().path(),
                           name, name_of(tensor->type), fmt::join(tensor->dims, ", "), length));
    }
    return {reinterpret_cast<const float*>(tensor->data), static_cast<size_t>(length)};
}

void WeightReader::expect_one_kind(std::initializer_list<WeightView> parts,
                                   std::string_view name) const {
    const WeightView& first = *parts.begin();
    for (const WeightView& part : parts) {
        if (part.data == nullptr || first.data == nullptr) continue;  // already refused
        if (is_quantised(part.type) == is_quantised(first.type)) continue;
        refuse(ErrorCode::unsupported,
               fmt::format("{}: tensor {}: {} and {} weights in one linear layer",
                           file_->file().path(), name, name_of(first.type), name_of(part.type)));
        return;
    }
}

void WeightReader::expect_all_taken() const {
    for (const FileTensor& tensor : file_->tensors()) {
        if (taken_.contains(tensor.name)) continue;
        refuse(ErrorCode::unsupported,
               fmt::format("{}: tensor {} is not part of a {} model that is supported",
                           file_->file().path(), printable(tensor.name),
                           file_->string("general.architecture")));
    }
}

}  // namespace kd
