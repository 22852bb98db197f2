#include "formats/draft_tensors.h"

#include <algorithm>

namespace kd {

namespace {

DraftTensor tensor_of(const SafetensorsEntry& entry) {
    return {.name = entry.name,
            .type = dtype_of(entry.type),
            .type_name = name_of(entry.type),
            .dims = {entry.shape.rbegin(), entry.shape.rend()},
            .data = entry.data,
            .bytes = entry.bytes};
}

DraftTensor tensor_of(const FileTensor& tensor) {
    return {.name = tensor.name,
            .type = tensor.type,
            .type_name = name_of(tensor.type),
            .dims = tensor.dims,
            .data = tensor.data,
            .bytes = tensor.bytes};
}

DraftTensor tensor_of(const ForeignTensor& tensor, const GgufFile& file) {
    const MappedFile& part = *file.files()[static_cast<size_t>(tensor.part)];
    return {.name = tensor.name,
            .type_name = tensor.type,
            .dims = tensor.dims,
            .data = part.data() + tensor.file_offset,
            .bytes = tensor.bytes.value_or(0)};
}

}  // namespace

DraftTensors::DraftTensors(const std::string& path) : path_(path) {
    if (path.ends_with(".gguf")) {
        gguf_ = std::make_unique<GgufFile>(path, ForeignTensors::list);
        for (const FileTensor& tensor : gguf_->tensors()) tensors_.push_back(tensor_of(tensor));
        for (const ForeignTensor& tensor : gguf_->foreign_tensors()) {
            tensors_.push_back(tensor_of(tensor, *gguf_));
        }
    } else {
        safetensors_ = std::make_unique<SafetensorsFile>(path);
        for (const SafetensorsEntry& entry : safetensors_->entries()) {
            tensors_.push_back(tensor_of(entry));
        }
    }
    std::ranges::sort(tensors_, {}, &DraftTensor::name);
}

const DraftTensor* DraftTensors::find(std::string_view name) const {
    const auto found = std::ranges::lower_bound(tensors_, name, {}, &DraftTensor::name);
    return found != tensors_.end() && found->name == name ? &*found : nullptr;
}

void DraftTensors::release() const {
    if (gguf_ != nullptr) return gguf_->release();
    safetensors_->file().release(safetensors_->file().data(), safetensors_->file().bytes());
}

}  // namespace kd
