// Hugging Face folders: which tensors they hold, quantised weights joined with their scales, and
// folders that lie.
#include "formats/hf_folder.h"

#include <dirent.h>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <functional>
#include <limits>

#include "base/error.h"
#include "formats/model_file.h"
#include "support/hf_writer.h"

namespace {

int readable_entries = -1;  // of folders, then their reading fails; -1: all

/// In place of the C library's, as folders on a network fail.
template <class Entry>
Entry* read_entry(const char* name, DIR* folder) {
    if (readable_entries == 0) {
        errno = EIO;
        return nullptr;
    }
    if (readable_entries > 0) --readable_entries;
    return reinterpret_cast<Entry* (*)(DIR*)>(dlsym(RTLD_NEXT, name))(folder);
}

}  // namespace

extern "C" dirent* readdir(DIR* folder) {
    return read_entry<dirent>("readdir", folder);
}

extern "C" dirent64* readdir64(DIR* folder) {
    return read_entry<dirent64>("readdir64", folder);
}

namespace kd {
namespace {

using Json = nlohmann::ordered_json;

const Json kConfig = {{"architectures", {"LlamaForCausalLM"}}};

std::vector<float> counting(size_t count) {
    std::vector<float> values;
    for (size_t i = 0; i < count; ++i) values.push_back(static_cast<float>(i) / 8);
    return values;
}

std::vector<HfTensor> three_tensors() {
    return {hf_tensor("b.weight", DType::bf16, {3, 4}, counting(12)),
            hf_tensor("a.weight", DType::f32, {5}, counting(5)),
            hf_tensor("c.bias", DType::f16, {2}, counting(2))};
}

/// What opening a folder says; it must be one line, soon, that names the path.
std::string refusal(const std::string& path) {
    const auto begin = std::chrono::steady_clock::now();
    std::string message = "nothing was thrown";
    try {
        const ModelFile file(path);
    } catch (const Error& error) {
        message = error.what();
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    EXPECT_LT(took.count(), 1.0) << message;
    EXPECT_NE(message.find(path), std::string::npos) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    return message;
}

void expect_refused(const std::string& path, const std::vector<std::string>& parts) {
    const std::string message = refusal(path);
    for (const std::string& part : parts) {
        EXPECT_NE(message.find(part), std::string::npos) << message << "\nlacks: " << part;
    }
}

TEST(HfFolder, TensorsInOrderOfNamesWithReversedShapes) {
    const TempFolder folder;
    write_hf_folder(folder, kConfig, three_tensors());
    const ModelFile file(folder.path());
    ASSERT_EQ(file.tensors().size(), 3u);
    EXPECT_EQ(file.tensors()[0].name, "a.weight");
    const FileTensor* b = file.find_tensor("b.weight");
    ASSERT_NE(b, nullptr);
    EXPECT_EQ(b->type, DType::bf16);
    EXPECT_EQ(b->dims, (std::vector<int64_t>{4, 3}));
    EXPECT_EQ(b->bytes, 24);
    std::vector<float> values(12);
    dequantise(b->type, b->data, 12, values.data());
    EXPECT_EQ(values, counting(12));
    EXPECT_EQ(file.find_tensor("b"), nullptr);
    EXPECT_EQ(file.gguf(), nullptr);
    EXPECT_EQ(file.format(), "Hugging Face folder");
    file.release();
    dequantise(b->type, b->data, 12, values.data());
    EXPECT_EQ(values, counting(12));
}

TEST(HfFolder, Shards) {
    const TempFolder folder;
    write_hf_shards(folder, kConfig, three_tensors(), 2);
    const ModelFile file(folder.path());
    ASSERT_EQ(file.files().size(), 2u);
    EXPECT_EQ(file.bytes(), file.files()[0]->bytes() + file.files()[1]->bytes());
    ASSERT_EQ(file.tensors().size(), 3u);
    EXPECT_EQ(file.find_tensor("b.weight")->part, 0);
    EXPECT_EQ(file.find_tensor("a.weight")->part, 1);
    EXPECT_EQ(file.path_of(*file.find_tensor("a.weight")),
              folder.path() + "/model-00002-of-00002.safetensors");
    EXPECT_EQ(file.find_tensor("c.bias")->part, 0);
}

TEST(HfFolder, ForeignTypesAreListedOrRefused) {
    const TempFolder folder;
    std::vector<HfTensor> tensors = three_tensors();
    tensors.push_back({.name = "d.ids", .type = "I64", .shape = {1}, .data = std::string(8, '\0')});
    write_hf_folder(folder, kConfig, tensors);
    expect_refused(folder.path(), {"d.ids", "I64", "not supported"});
    const ModelFile file(folder.path(), ForeignTensors::list);
    ASSERT_EQ(file.foreign_tensors().size(), 1u);
    EXPECT_EQ(file.foreign_tensors()[0].name, "d.ids");
    EXPECT_EQ(file.foreign_tensors()[0].type, "I64");
    EXPECT_EQ(file.tensors().size(), 3u);
}

TEST(HfFolder, PathsThatAreNoFolder) {
    const TempFolder folder;
    expect_refused(folder.path() + "/nothing", {"no such file"});
    expect_refused(folder.path(), {"is an empty folder"});
    folder.write("notes.txt", "text");
    expect_refused(folder.path(), {"has no config.json"});
    folder.write("model.Q4_0.gguf", "text");
    expect_refused(folder.path(), {"has no config.json", "model.Q4_0.gguf"});
    expect_refused(folder.path() + "/model.Q4_0.gguf", {"not a GGUF file"});
    folder.write("config.json", kConfig.dump());
    expect_refused(folder.path(), {"neither model.safetensors nor model.safetensors.index.json"});
    expect_refused(folder.path() + "/config.json", {"give the folder"});
    folder.write("pytorch_model.bin", "text");
    expect_refused(folder.path(), {"pytorch_model.bin", "only safetensors"});
    folder.write("model.safetensors", "");
    expect_refused(folder.path(), {"model.safetensors", "empty"});
    expect_refused(folder.path() + "/model.safetensors", {"give the folder"});
    const std::string fifo = folder.path() + "/fifo";
    ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
    expect_refused(fifo, {"not a regular file"});
    std::filesystem::remove(folder.path() + "/config.json");
    std::filesystem::create_directory(folder.path() + "/config.json");
    expect_refused(folder.path(), {"config.json", "is a directory"});
}

TEST(HfFolder, ListingsThatBreakOff) {
    const TempFolder folder;
    folder.write("notes.txt", "text");
    folder.write("more.txt", "text");
    readable_entries = 3;  // two of them are . and ..
    const std::string said = refusal(folder.path());
    EXPECT_EQ(readable_entries, 0);
    readable_entries = -1;
    EXPECT_NE(said.find("has no config.json"), said.npos) << said;
}

TEST(HfFolder, LimitsItsJson) {
    const TempFolder folder;
    const Json index = write_hf_shards(folder, kConfig, three_tensors(), 2);
    const std::string spaces(kMaxJsonBytes, ' ');
    folder.write("model.safetensors.index.json", index.dump() + spaces);
    EXPECT_EQ(ModelFile(folder.path()).tensors().size(), 3u);
    folder.write("config.json", kConfig.dump() + spaces);
    expect_refused(folder.path(), {"config.json", "at most 16777216 are read"});
}

TEST(HfFolder, ConfigsThatAreNoConfig) {
    const TempFolder folder;
    write_hf_folder(folder, kConfig, three_tensors());
    for (const auto& [text, part] : std::initializer_list<std::pair<std::string, std::string>>{
             {"{", "not JSON"},
             {"[]", "not an object"},
             {"7", "not an object"},
             {R"({"a": 1, "a": 2})", "'a' stands there twice"},
             {std::string(100000, '['), "nested deeper"},
             {"\xff", "not JSON"},
             {R"({"quantization_config": 7})", "quantization_config: 7, not an object"}}) {
        folder.write("config.json", text);
        expect_refused(folder.path(), {"/config.json", part});
    }
}

/// A folder of two shards whose index `change` has changed.
void expect_index_refused(const std::function<void(Json&)>& change,
                          const std::vector<std::string>& parts) {
    const TempFolder folder;
    Json index = write_hf_shards(folder, kConfig, three_tensors(), 2);
    change(index);
    folder.write("model.safetensors.index.json", index.dump());
    expect_refused(folder.path(), parts);
}

TEST(HfFolder, IndexesThatLie) {
    const std::string first = "model-00001-of-00002.safetensors";
    const std::string second = "model-00002-of-00002.safetensors";
    for (const Json& name :
         {Json("/etc/passwd"), Json("../" + first), Json(".."), Json(""), Json("sub/" + first),
          Json("config.json"), Json(7), Json(nullptr), Json(".safetensors"),
          Json("a\nb.safetensors"), Json("\x1b[2J.safetensors"), Json(".x.safetensors")}) {
        expect_index_refused([&](Json& index) { index["weight_map"]["a.weight"] = name; },
                             {"weight_map.a.weight", "not the name of a .safetensors file"});
    }
    expect_index_refused([&](Json& index) { index["weight_map"]["a.weight"] = "x.safetensors"; },
                         {"shard x.safetensors is missing"});
    expect_index_refused([&](Json& index) { index["weight_map"]["a.weight"] = first; },
                         {first, "tensor a.weight is missing"});
    expect_index_refused([&](Json& index) { index["weight_map"]["new.weight"] = second; },
                         {second, "tensor new.weight is missing"});
    expect_index_refused([&](Json& index) { index["weight_map"].erase("c.bias"); },
                         {first, "tensor c.bias is not where"});
    expect_index_refused([&](Json& index) { index["weight_map"].erase("a.weight"); },
                         {second, "lies in the folder, but is not named"});
    expect_index_refused([&](Json& index) { index.erase("weight_map"); },
                         {"'weight_map' is missing"});
    expect_index_refused([&](Json& index) { index["weight_map"] = Json::array(); },
                         {"weight_map", "not an object"});
    expect_index_refused([&](Json& index) { index["weight_map"] = Json::object(); },
                         {"lies in the folder, but is not named"});
}

TEST(HfFolder, ShardsThatAreCutOff) {
    const TempFolder folder;
    write_hf_shards(folder, kConfig, three_tensors(), 2);
    const std::string shard = folder.path() + "/model-00002-of-00002.safetensors";
    std::filesystem::resize_file(shard, std::filesystem::file_size(shard) - 1);
    expect_refused(folder.path(), {"model-00002-of-00002.safetensors", "a.weight"});
    std::filesystem::remove(shard);
    expect_refused(folder.path(), {"shard model-00002-of-00002.safetensors is missing"});
}

// Quantised weights.

Json fp8_config() {
    Json config = kConfig;
    config["quantization_config"] = {{"quant_method", "fp8"},
                                     {"fmt", "e4m3"},
                                     {"activation_scheme", "dynamic"},
                                     {"weight_block_size", {2, 3}}};
    return config;
}

/// [3, 4] in blocks of [2, 3]: 2 x 2 scales. 0x38 is 1.
std::vector<HfTensor> fp8_tensors() {
    return {
        {.name = "x.weight", .type = "F8_E4M3", .shape = {3, 4}, .data = std::string(12, '\x38')},
        hf_tensor("x.weight_scale_inv", DType::f32, {2, 2}, std::vector<float>{1, 2, 3, 4})};
}

TEST(HfFolder, Fp8WithBlockScales) {
    const TempFolder folder;
    write_hf_folder(folder, fp8_config(), fp8_tensors());
    const ModelFile file(folder.path());
    ASSERT_EQ(file.tensors().size(), 1u);
    const FileTensor& x = file.tensors()[0];
    EXPECT_EQ(x.name, "x.weight");
    EXPECT_EQ(x.type, DType::f8_e4m3);
    EXPECT_EQ(x.dims, (std::vector<int64_t>{4, 3}));
    EXPECT_EQ(x.scales.type, DType::f32);
    EXPECT_EQ(x.scales.block_rows, 2);
    EXPECT_EQ(x.scales.block_columns, 3);
    EXPECT_EQ(x.scales.at(0, 2, 4), 1);
    EXPECT_EQ(x.scales.at(1, 3, 4), 2);
    EXPECT_EQ(x.scales.at(2, 0, 4), 3);
    EXPECT_EQ(x.scales.at(2, 3, 4), 4);
}

Json float_quantized_config(const std::string& strategy) {
    Json config = kConfig;
    config["quantization_config"] = {
        {"quant_method", "compressed-tensors"},
        {"format", "float-quantized"},
        {"kv_cache_scheme", nullptr},
        {"quantization_status", "compressed"},
        {"config_groups",
         {{"group_0",
           {{"targets", {"Linear"}},
            {"input_activations", {{"num_bits", 8}, {"type", "float"}, {"dynamic", true}}},
            {"weights",
             {{"num_bits", 8},
              {"type", "float"},
              {"symmetric", true},
              {"strategy", strategy}}}}}}}};
    return config;
}

TEST(HfFolder, Fp8WithScalesOfChannelsOrTheWholeTensor) {
    for (const bool channels : {true, false}) {
        std::vector<HfTensor> tensors = {fp8_tensors()[0]};
        tensors.push_back(
            channels ? hf_tensor("x.weight_scale", DType::bf16, {3, 1}, std::vector<float>{1, 2, 3})
                     : hf_tensor("x.weight_scale", DType::f32, {1}, std::vector<float>{5}));
        const TempFolder folder;
        write_hf_folder(folder, float_quantized_config(channels ? "channel" : "tensor"), tensors);
        const ModelFile file(folder.path());
        ASSERT_EQ(file.tensors().size(), 1u);
        for (int64_t row = 0; row < 3; ++row) {
            for (int64_t column = 0; column < 4; ++column) {
                EXPECT_EQ(file.tensors()[0].scales.at(row, column, 4),
                          channels ? static_cast<float>(row + 1) : 5);
            }
        }
    }
}

Json int4_config() {
    Json config = float_quantized_config("group");
    Json& quantisation = config["quantization_config"];
    quantisation["format"] = "pack-quantized";
    quantisation["config_groups"]["group_0"].erase("input_activations");
    quantisation["config_groups"]["group_0"]["weights"] = {
        {"num_bits", 4},       {"type", "int"},    {"symmetric", true},
        {"strategy", "group"}, {"group_size", 32}, {"actorder", nullptr}};
    return config;
}

/// [2, 64]: row 0 holds -8 .. 7 again and again, row 1 the same backwards.
std::vector<HfTensor> int4_tensors() {
    std::string words;
    for (int word = 0; word < 8; ++word)
        words += raw_bytes(word % 2 == 0 ? 0x76543210u : 0xfedcba98u);
    for (int word = 0; word < 8; ++word)
        words += raw_bytes(word % 2 == 0 ? 0x89abcdefu : 0x01234567u);
    return {{.name = "x.weight_packed", .type = "I32", .shape = {2, 8}, .data = words},
            hf_tensor("x.weight_scale", DType::bf16, {2, 2}, std::vector<float>{1, 2, 3, 4}),
            {.name = "x.weight_shape",
             .type = "I64",
             .shape = {2},
             .data = raw_bytes(int64_t{2}) + raw_bytes(int64_t{64})}};
}

TEST(HfFolder, Int4WithGroupScales) {
    const TempFolder folder;
    write_hf_folder(folder, int4_config(), int4_tensors());
    const ModelFile file(folder.path());
    ASSERT_EQ(file.tensors().size(), 1u);
    const FileTensor& x = file.tensors()[0];
    EXPECT_EQ(x.name, "x.weight");
    EXPECT_EQ(x.type, DType::int4);
    EXPECT_EQ(x.dims, (std::vector<int64_t>{64, 2}));
    std::vector<float> values(128);
    dequantise(x.type, x.data, 128, values.data());
    for (int i = 0; i < 64; ++i) {
        EXPECT_EQ(values[static_cast<size_t>(i)], static_cast<float>(i % 16 - 8)) << i;
        EXPECT_EQ(values[static_cast<size_t>(64 + i)], static_cast<float>(7 - i % 16)) << i;
    }
    EXPECT_EQ(x.scales.at(0, 31, 64), 1);
    EXPECT_EQ(x.scales.at(0, 32, 64), 2);
    EXPECT_EQ(x.scales.at(1, 0, 64), 3);
}

TEST(HfFolder, QuantisedWeightsThatDoNotFitTheirScales) {
    const auto refused = [](const Json& config, std::vector<HfTensor> tensors, auto&& change,
                            const std::vector<std::string>& parts) {
        change(tensors);
        const TempFolder folder;
        write_hf_folder(folder, config, tensors);
        expect_refused(folder.path(), parts);
    };
    using Tensors = std::vector<HfTensor>;
    refused(fp8_config(), fp8_tensors(), [](Tensors& t) { t.pop_back(); },
            {"x.weight", "x.weight_scale_inv is missing"});
    refused(fp8_config(), fp8_tensors(),
            [](Tensors& t) {
                t[1].shape = {1, 4};
            },
            {"x.weight_scale_inv", "[1, 4], expected [2, 2]"});
    refused(fp8_config(), fp8_tensors(), [](Tensors& t) { t[1].type = "I32"; },
            {"x.weight_scale_inv", "I32"});
    refused(fp8_config(), fp8_tensors(), [](Tensors& t) { t[0].shape = {12}; },
            {"x.weight", "no weight matrix"});
    refused(kConfig, fp8_tensors(), [](Tensors&) {}, {"x.weight", "no quantization_config"});
    refused(int4_config(), int4_tensors(), [](Tensors& t) { t.pop_back(); },
            {"x.weight_shape is missing"});
    refused(int4_config(), int4_tensors(), [](Tensors& t) { t.erase(t.begin() + 1); },
            {"x.weight_scale is missing"});
    refused(int4_config(), int4_tensors(),
            [](Tensors& t) { t[2].data = raw_bytes(int64_t{2}) + raw_bytes(int64_t{63}); },
            {"x.weight_packed", "[2, 63]"});
    refused(int4_config(), int4_tensors(),
            [](Tensors& t) { t[2].data = raw_bytes(int64_t{-2}) + raw_bytes(INT64_MAX); },
            {"x.weight_packed", "[-2, 9223372036854775807]"});
    refused(int4_config(), int4_tensors(),
            [](Tensors& t) {
                t[2].shape = {1000};
                t[2].data = std::string(8000, '\0');
            },
            {"x.weight_packed", "does not hold the matrix [] in groups"});
    refused(int4_config(), int4_tensors(), [](Tensors& t) { t[0].type = "F32"; },
            {"x.weight_packed", "F32"});
    refused(int4_config(), int4_tensors(),
            [](Tensors& t) {
                t[1].shape = {4, 1};
            },
            {"x.weight_scale", "[4, 1], expected [2, 2]"});
    refused(int4_config(), int4_tensors(),
            [](Tensors& t) {
                t.push_back(hf_tensor("x.weight", DType::f32, {1}, std::vector<float>{1}));
            },
            {"x.weight", "packed and whole"});
}

TEST(HfFolder, QuantisationsThatAreNotSupported) {
    const auto refused = [](Json config, const std::vector<std::string>& path, const Json& value,
                            const std::string& part) {
        Json* at = &config["quantization_config"];
        for (const std::string& key : path) at = &(*at)[key];
        *at = value;
        const TempFolder folder;
        write_hf_folder(folder, config, {});
        expect_refused(folder.path(), {"/config.json: quantization_config", path.back(), part});
    };
    refused(fp8_config(), {"quant_method"}, "gptq", "'gptq' is not supported");
    refused(fp8_config(), {"quant_method"}, nullptr, "is missing");
    refused(fp8_config(), {"weight_block_size"}, nullptr, "is missing");
    refused(fp8_config(), {"weight_block_size"}, Json::array({128}), "not an array of 2");
    refused(fp8_config(), {"weight_block_size"}, Json::array({0, 128}), "0");
    refused(fp8_config(), {"activation_scheme"}, "static", "'static'");
    refused(fp8_config(), {"fmt"}, "e5m2", "'e5m2'");
    refused(int4_config(), {"format"}, "marlin-24", "'marlin-24'");
    refused(int4_config(), {"kv_cache_scheme"}, Json{{"num_bits", 8}}, "not supported");
    refused(int4_config(), {"quantization_status"}, "frozen", "'frozen'");
    refused(int4_config(), {"config_groups"}, Json::object(), "0 groups");
    const std::vector<std::string> weights = {"config_groups", "group_0", "weights"};
    const auto refused_weight = [&](const std::string& key, const Json& value,
                                    const std::string& part) {
        std::vector<std::string> path = weights;
        path.push_back(key);
        refused(int4_config(), path, value, part);
    };
    refused_weight("num_bits", 8, "8 is not supported");
    refused_weight("group_size", 128, "128 is not supported");
    refused_weight("symmetric", false, "false is not supported");
    refused_weight("strategy", "channel", "'channel'");
    refused_weight("type", "float", "'float'");
    refused_weight("actorder", "group", "'group'");
}

}  // namespace
}  // namespace kd
