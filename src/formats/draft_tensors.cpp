#include "formats/draft_tensors.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/error.h"
#include "formats/json_file.h"

namespace kd {

namespace {

constexpr uint64_t kMaxHeaderBytes = 64 << 20;
constexpr size_t kMaxDims = 4;

struct SafetensorsType {
    std::string_view name;
    int64_t bytes;
    std::optional<DType> type;
};
constexpr SafetensorsType kTypes[] = {{"F32", 4, DType::f32},   {"F16", 2, DType::f16},
                                      {"BF16", 2, DType::bf16}, {"I64", 8, std::nullopt},
                                      {"I32", 4, std::nullopt}, {"BOOL", 1, std::nullopt}};

/// One entry of the header; data points into `data` of `bytes`.
DraftTensor read_entry(const JsonNode& node, const std::string& name, const std::byte* data,
                       int64_t bytes) {
    const std::string& type_name = node.at("dtype").string();
    const auto* type = std::ranges::find(kTypes, type_name, &SafetensorsType::name);
    if (type == std::end(kTypes)) {
        KD_THROW(unsupported, "{}: type '{}' is not supported", node.where(), printable(type_name));
    }
    DraftTensor tensor{.name = name, .type = type->type, .type_name = type_name};
    const JsonNode shape = node.at("shape");
    if (shape.count() > kMaxDims) shape.refuse(fmt::format("an array of up to {}", kMaxDims));
    int64_t elements = 1;
    for (size_t i = 0; i < shape.count(); ++i) {
        const int64_t dim = shape.at(i).integer(1, int64_t{1} << 40);
        if (__builtin_mul_overflow(elements, dim, &elements) || elements > bytes) {
            shape.refuse(fmt::format("a shape that fits {} bytes", bytes));
        }
        tensor.dims.insert(tensor.dims.begin(), dim);
    }
    const JsonNode offsets = node.at("data_offsets");
    if (offsets.count() != 2) offsets.refuse("an array of two");
    const int64_t begin = offsets.at(size_t{0}).integer(0, bytes);
    const int64_t end = offsets.at(1).integer(begin, bytes);
    if (end - begin != elements * type->bytes) {
        KD_THROW(corrupt, "{}: {} bytes for {} elements of {}", node.where(), end - begin, elements,
                 type_name);
    }
    tensor.data = data + begin;
    tensor.bytes = end - begin;
    return tensor;
}

}  // namespace

DraftTensors::DraftTensors(const std::string& path) : path_(path) {
    path.ends_with(".gguf") ? read_gguf() : read_safetensors();
    std::ranges::sort(tensors_, {}, &DraftTensor::name);
}

void DraftTensors::read_gguf() {
    gguf_ = std::make_unique<GgufFile>(path_);
    for (const GgufTensor& tensor : gguf_->tensors()) {
        tensors_.push_back({.name = std::string(tensor.name),
                            .type = tensor.type,
                            .type_name = std::string(name_of(tensor.type)),
                            .dims = tensor.dims,
                            .data = tensor.data,
                            .bytes = tensor.bytes});
    }
}

void DraftTensors::read_safetensors() {
    file_ = std::make_unique<MappedFile>(path_);
    uint64_t header = 0;
    if (file_->bytes() < sizeof header) {
        KD_THROW(corrupt, "{}: {} bytes hold no header", path_, file_->bytes());
    }
    std::memcpy(&header, file_->data(), sizeof header);
    if (header > kMaxHeaderBytes || header > file_->bytes() - sizeof header) {
        KD_THROW(corrupt, "{}: a header of {} bytes in a file of {}", path_, header,
                 file_->bytes());
    }
    const std::byte* data = file_->data() + sizeof header + header;
    const auto bytes = static_cast<int64_t>(file_->bytes() - sizeof header - header);
    const std::string_view text(reinterpret_cast<const char*>(file_->data()) + sizeof header,
                                header);
    const Json json = parse_json(text, path_);
    const JsonNode root(json, path_);
    if (!json.is_object()) root.refuse("an object");
    for (const auto& [name, value] : json.items()) {
        if (name == "__metadata__") continue;
        const JsonNode node(value, fmt::format("{}: tensor '{}'", path_, printable(name)));
        tensors_.push_back(read_entry(node, name, data, bytes));
    }
    std::vector<const DraftTensor*> by_place;
    for (const DraftTensor& tensor : tensors_) by_place.push_back(&tensor);
    std::ranges::sort(by_place, {}, &DraftTensor::data);
    const std::byte* end = data;
    for (const DraftTensor* tensor : by_place) {
        if (tensor->data < end) {
            KD_THROW(corrupt, "{}: tensor '{}' overlaps another", path_, printable(tensor->name));
        }
        end = tensor->data + tensor->bytes;
    }
}

const DraftTensor* DraftTensors::find(std::string_view name) const {
    const auto found = std::ranges::lower_bound(tensors_, name, {}, &DraftTensor::name);
    return found != tensors_.end() && found->name == name ? &*found : nullptr;
}

void DraftTensors::release() const {
    const MappedFile& file = gguf_ ? gguf_->file() : *file_;
    file.release(file.data(), file.bytes());
}

}  // namespace kd
