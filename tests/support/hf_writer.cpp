#include "support/hf_writer.h"

#include <fmt/format.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "support/safetensors_writer.h"

namespace kd {

using Json = nlohmann::ordered_json;

HfTensor hf_tensor(std::string name, DType type, std::vector<int64_t> shape,
                   std::span<const float> values) {
    return {.name = std::move(name),
            .type = std::string(name_of(type)),
            .shape = std::move(shape),
            .data = quantise(type, values)};
}

std::string safetensors_bytes(std::span<const HfTensor> tensors) {
    Json header = Json::object();
    std::string data;
    for (const HfTensor& tensor : tensors) {
        const size_t begin = data.size();
        data += tensor.data;
        header[tensor.name] = {{"dtype", tensor.type},
                               {"shape", tensor.shape},
                               {"data_offsets", {begin, data.size()}}};
    }
    const std::string text = header.dump(-1, ' ', false, Json::error_handler_t::replace);
    return safetensors_bytes(std::string_view(text), data);
}

TempFolder::TempFolder() : path_(TempPath("-folder").path()) {
    std::filesystem::create_directory(path_);
}

TempFolder::~TempFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
}

void TempFolder::write(std::string_view name, std::string_view bytes) const {
    write_test_file(fmt::format("{}/{}", path_, name), bytes);
}

void write_hf_folder(const TempFolder& folder, const Json& config,
                     std::span<const HfTensor> tensors) {
    folder.write("config.json", config.dump(2));
    folder.write("model.safetensors", safetensors_bytes(tensors));
}

void misalign_weights(const TempFolder& folder) {
    std::ifstream in(folder.path() + "/model.safetensors", std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(in), {}};
    uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, bytes.data(), sizeof header_bytes);
    std::string header = bytes.substr(sizeof header_bytes, header_bytes);
    if (header.size() % 2 == 0) header += ' ';
    folder.write(
        "model.safetensors",
        safetensors_bytes(std::string_view(header),
                          std::string_view(bytes).substr(sizeof header_bytes + header_bytes)));
}

Json write_hf_shards(const TempFolder& folder, const Json& config,
                     std::span<const HfTensor> tensors, size_t shards) {
    std::vector<std::vector<HfTensor>> parts(shards);
    Json index = {{"metadata", {{"total_size", 0}}}, {"weight_map", Json::object()}};
    for (size_t i = 0; i < tensors.size(); ++i) {
        const size_t part = i % shards;
        parts[part].push_back(tensors[i]);
        index["weight_map"][tensors[i].name] =
            fmt::format("model-{:05}-of-{:05}.safetensors", part + 1, shards);
    }
    for (size_t part = 0; part < shards; ++part) {
        folder.write(fmt::format("model-{:05}-of-{:05}.safetensors", part + 1, shards),
                     safetensors_bytes(parts[part]));
    }
    folder.write("config.json", config.dump(2));
    folder.write("model.safetensors.index.json", index.dump(2));
    return index;
}

}  // namespace kd
