#include "support/dflash_checkpoint.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>

#include "base/dtype.h"
#include "support/counter_weights.h"
#include "support/gguf_writer.h"
#include "support/safetensors_writer.h"

namespace kd {

namespace {

using nlohmann::json;

/// Removed with the process.
struct Folder {
    std::string path =
        std::filesystem::temp_directory_path() / fmt::format("kdtree-dflash-{}", getpid());
    int written = 0;
    Folder() { std::filesystem::create_directories(path); }
    ~Folder() {
        std::error_code ignored;
        std::filesystem::remove_all(path, ignored);
    }
};

std::string bf16_bytes(const std::vector<float>& values) {
    std::string bytes;
    for (const float value : values) bytes += raw_bytes(f32_to_bf16(value));
    return bytes;
}

struct Encoded {
    std::string type;
    std::string bytes;
};

Encoded encode(const json& description, const std::string& name, const std::vector<int64_t>& shape,
               const std::string& kind) {
    const auto& ids = description["target_ids"];
    std::string bytes;
    if (kind == "d2t") {
        for (size_t i = 0; i < ids.size(); ++i) {
            bytes += raw_bytes(ids[i].get<int64_t>() - static_cast<int64_t>(i));
        }
        return {"I64", bytes};
    }
    if (kind == "t2d") {
        bytes.assign(static_cast<size_t>(shape[0]), '\0');
        for (const auto& id : ids) bytes[id.get<size_t>()] = '\1';
        return {"BOOL", bytes};
    }
    if (kind == "i32") {
        size_t count = 1;
        for (const int64_t dim : shape) count *= static_cast<size_t>(dim);
        return {"I32", std::string(count * 4, '\0')};
    }
    const std::string full_name = description["name"].get<std::string>() + "/" + name;
    return {"BF16", bf16_bytes(dflash_values(full_name, shape, kind))};
}

}  // namespace

const json& dflash_fixture() {
    static const json fixture = [] {
        std::ifstream in(KD_SUPPORT_DATA "/models/dflash.json");
        return json::parse(in);
    }();
    return fixture;
}

json dflash_case(const std::string& name) {
    for (const json& each : dflash_fixture()["cases"]) {
        if (each["name"] == name) return each;
    }
    throw std::runtime_error("no case " + name);
}

std::vector<float> dflash_values(const std::string& name, const std::vector<int64_t>& shape,
                                 const std::string& kind) {
    int64_t count = 1;
    for (const int64_t dim : shape) count *= dim;
    const double wide = std::sqrt(3.0 / static_cast<double>(shape.back()));
    if (kind == "norm") return counter_norm(name, count);
    if (kind == "bias") return counter_bias(name, count);
    if (kind == "nan") {
        std::vector<float> values = counter_values(name, count, 0, 1);
        values.back() = std::numeric_limits<float>::quiet_NaN();
        return values;
    }
    const double scale = kind == "matrix" ? wide : kind == "head" ? 4 * wide : 1.0;
    return counter_values(name, count, 0, scale);
}

std::string write_dflash_checkpoint(const json& description) {
    static Folder folder;
    const std::string path = fmt::format("{}/{}", folder.path, folder.written++);
    std::filesystem::create_directories(path);
    std::ofstream(path + "/config.json") << description["config"].dump(1);
    std::map<std::string, std::pair<json, std::string>> files;  // header and data
    for (const json& tensor : description["tensors"]) {
        const auto name = tensor[0].get<std::string>();
        const auto shape = tensor[1].get<std::vector<int64_t>>();
        const Encoded encoded = encode(description, name, shape, tensor[2].get<std::string>());
        auto& [header, data] = files[tensor[3].get<std::string>()];
        header[name] = {{"dtype", encoded.type},
                        {"shape", shape},
                        {"data_offsets", {data.size(), data.size() + encoded.bytes.size()}}};
        data += encoded.bytes;
    }
    for (const auto& [name, file] : files) {
        write_test_file(path + "/" + name, safetensors_bytes(file.first.dump(), file.second));
    }
    return path;
}

std::string write_dflash_gguf(const json& description, DType type) {
    json quantised = description;
    json& tensors = quantised["tensors"];
    json others = json::array();
    GgufWriter writer;
    for (const json& tensor : tensors) {
        if (tensor[3] != "model.safetensors") {
            others.push_back(tensor);
            continue;
        }
        const auto name = tensor[0].get<std::string>();
        const auto shape = tensor[1].get<std::vector<int64_t>>();
        if (tensor[2] == "d2t") {
            constexpr uint32_t kI64 = 27;  // ggml's code
            writer.add_tensor({.name = name,
                               .dims = {static_cast<uint64_t>(shape[0])},
                               .type = kI64,
                               .data = encode(description, name, shape, "d2t").bytes});
            continue;
        }
        const std::vector<float> values =
            dflash_values(description["name"].get<std::string>() + "/" + name, shape,
                          tensor[2].get<std::string>());
        const bool blocks = shape.size() == 2 && shape.back() % 32 == 0;
        writer.add_tensor(name, blocks ? type : DType::f32,
                          shape.size() == 2 ? static_cast<uint64_t>(shape[0]) : 0,
                          static_cast<uint64_t>(shape.back()), values);
    }
    tensors = others;
    quantised["config"]["kdtree"]["weights"] = "model.gguf";
    const std::string folder = write_dflash_checkpoint(quantised);
    writer.write(folder + "/model.gguf");
    return folder;
}

json tiny_dflash_case(const std::string& name) {
    json result = dflash_case(name);
    json& config = result["config"];
    config["num_target_layers"] = 2;
    config["dflash_config"]["target_layer_ids"] = {0, 1};
    return result;
}

}  // namespace kd
