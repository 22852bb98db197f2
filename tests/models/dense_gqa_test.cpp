// Llama, Mistral, Qwen2 and Qwen3 against transformers in float32: every case of
// tests/data/models/dense_gqa.json, whose weights are a function of their names.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/storage.h"
#include "formats/model_file.h"
#include "models/rope.h"
#include "support/counter_model.h"
#include "support/counter_weights.h"
#include "support/engine_support.h"
#include "support/model_runner.h"

namespace kd {
namespace {

using Json = nlohmann::ordered_json;

// Float32 on both sides, sums in double on ours, so it is their rounding that shows: some 2^-24 an
// op over three layers of ten ops. Measured: 3.8e-7 to 5.7e-7.
constexpr double kReferenceTolerance = 2e-6;
// K and V rounded to f16, 2^-12 on average over the layers. Measured: 1.2e-4 to 2.4e-4.
constexpr double kFastTolerance = 1e-3;

const Json& fixture() {
    static const Json json = [] {
        std::ifstream in(std::string(KD_TEST_DATA) + "/models/dense_gqa.json");
        return Json::parse(in);
    }();
    return json;
}

const Json& find_case(const std::string& name) {
    for (const Json& model : fixture()["cases"]) {
        if (model["name"] == name) return model;
    }
    throw std::out_of_range(name);
}

std::vector<float> floats_of(const Json& json) {
    return json.get<std::vector<float>>();
}

double relative_l2(std::span<const float> actual, std::span<const float> expected) {
    EXPECT_EQ(actual.size(), expected.size());
    double difference = 0, norm = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
        const double error = double{actual[i]} - expected[i];
        difference += error * error;
        norm += double{expected[i]} * expected[i];
    }
    return std::sqrt(difference / norm);
}

/// Of `logits` [rows, vocabulary] the chosen rows, every column_step-th value.
std::vector<float> chosen(std::span<const float> logits, size_t vocabulary,
                          std::span<const size_t> rows) {
    const auto step = fixture()["column_step"].get<size_t>();
    std::vector<float> out;
    for (const size_t row : rows) {
        for (size_t i = 0; i < vocabulary; i += step) out.push_back(logits[row * vocabulary + i]);
    }
    return out;
}

void write_folder(const TempFolder& folder, const Json& model) {
    write_hf_folder(folder, model["config"], counter_tensors(model));
}

std::vector<float> logits_of(const std::string& path, const Json& model, Kernels kernels) {
    const auto ids = model["ids"].get<std::vector<int32_t>>();
    return ModelRunner(path, kernels, static_cast<int32_t>(ids.size())).logits_of(ids);
}

/// Logits of a model against the fixture's.
double logits_error(const std::vector<float>& logits, const Json& model) {
    const auto vocabulary = model["config"]["vocab_size"].get<size_t>();
    const auto rows = model["rows"].get<std::vector<size_t>>();
    const std::span<const float> last = std::span(logits).last(vocabulary);
    return std::max(relative_l2(chosen(logits, vocabulary, rows), floats_of(model["logits"])),
                    relative_l2(last, floats_of(model["last_logits"])));
}

TEST(DenseGqa, LogitsAreThoseOfTransformers) {
    for (const Json& model : fixture()["cases"]) {
        SCOPED_TRACE(model["name"]);
        const TempFolder folder;
        write_folder(folder, model);
        const double error =
            logits_error(logits_of(folder.path(), model, Kernels::reference), model);
        EXPECT_LE(error, kReferenceTolerance);
        RecordProperty(model["name"].get<std::string>(), fmt::format("{:.2g}", error));
    }
}

TEST(DenseGqa, FastKernelsWithinTheRoundingOfTheirCache) {
    for (const Json& model : fixture()["cases"]) {
        SCOPED_TRACE(model["name"]);
        const TempFolder folder;
        write_folder(folder, model);
        const double error = logits_error(logits_of(folder.path(), model, Kernels::fast), model);
        EXPECT_LE(error, kFastTolerance);
        RecordProperty(model["name"].get<std::string>(), fmt::format("{:.2g}", error));
    }
}

// The residual stream behind every layer but the last, at the last token.
TEST(DenseGqa, LayersAreThoseOfTransformers) {
    for (const Json& model : fixture()["cases"]) {
        SCOPED_TRACE(model["name"]);
        const TempFolder folder;
        write_folder(folder, model);
        const auto ids = model["ids"].get<std::vector<int32_t>>();
        ModelRunner runner(folder.path(), Kernels::reference, static_cast<int32_t>(ids.size()),
                           {0, 1});
        runner.logits_of(ids);
        const std::span<const float> features = runner.features(std::ssize(ids) - 1);
        const size_t hidden = features.size() / 2;
        for (size_t layer = 0; layer < 2; ++layer) {
            EXPECT_LE(relative_l2(features.subspan(layer * hidden, hidden),
                                  floats_of(model["taps"][layer])),
                      kReferenceTolerance)
                << "layer " << layer;
        }
    }
}

TreeStorage tree_of(const Json& tree) {
    const auto ids = tree["ids"].get<std::vector<int32_t>>();
    const auto parents = tree["parents"].get<std::vector<int32_t>>();
    const auto nodes = static_cast<int32_t>(ids.size());
    TreeStorage storage(nodes);
    const TreeView view = storage.view();
    *view.count = nodes;
    for (int32_t node = 0; node < nodes; ++node) {
        const int32_t parent = parents[static_cast<size_t>(node)];
        view.token[node] = ids[static_cast<size_t>(node)];
        view.parent[node] = parent;
        view.depth[node] = parent < 0 ? 0 : view.depth[parent] + 1;
        for (int32_t up = node; up >= 0; up = view.parent[up]) {
            view.ancestor_words(node)[0] |= uint64_t{1} << up;
        }
    }
    return storage;
}

/// Logits of the case's tree behind its context, [nodes, vocabulary].
std::vector<float> tree_logits(const std::string& path, const Json& model, Kernels kernels) {
    const auto ids = model["ids"].get<std::vector<int32_t>>();
    const auto context = model["tree"]["context"].get<size_t>();
    ModelRunner runner(path, kernels, static_cast<int32_t>(context));
    runner.logits_of(std::span(ids).first(context));
    TreeStorage tree = tree_of(model["tree"]);
    std::vector<int32_t> slots(context + static_cast<size_t>(*tree.view().count));
    std::iota(slots.begin(), slots.end(), 0);
    ModelRunner::Rows rows;
    rows.add_tree(tree.view(), std::span(slots).first(context), std::span(slots).subspan(context));
    return runner.run(rows);
}

TEST(DenseGqa, TreesAreThoseOfTransformers) {
    for (const Json& model : fixture()["cases"]) {
        SCOPED_TRACE(model["name"]);
        const TempFolder folder;
        write_folder(folder, model);
        const auto vocabulary = model["config"]["vocab_size"].get<size_t>();
        std::vector<size_t> nodes(model["tree"]["ids"].size());
        std::iota(nodes.begin(), nodes.end(), 0);
        for (const auto& [kernels, tolerance] : {std::pair(Kernels::reference, kReferenceTolerance),
                                                 std::pair(Kernels::fast, kFastTolerance)}) {
            const std::vector<float> logits = tree_logits(folder.path(), model, kernels);
            EXPECT_LE(
                relative_l2(chosen(logits, vocabulary, nodes), floats_of(model["tree"]["logits"])),
                tolerance);
        }
    }
}

TEST(DenseGqa, ShardsGiveTheSameBits) {
    for (const std::string name : {"llama_tied", "qwen3"}) {
        SCOPED_TRACE(name);
        const Json& model = find_case(name);
        const std::vector<HfTensor> tensors = counter_tensors(model);
        const TempFolder whole, shards;
        write_hf_folder(whole, model["config"], tensors);
        write_hf_shards(shards, model["config"], tensors, 2);
        EXPECT_EQ(logits_of(whole.path(), model, Kernels::reference),
                  logits_of(shards.path(), model, Kernels::reference));
    }
}

TEST(DenseGqa, FloatTypesThatHoldTheWeightsGiveTheSameBits) {
    const Json& model = find_case("qwen2");
    std::vector<HfTensor> tensors = counter_tensors(model);
    const TempFolder bf16, f32;
    write_hf_folder(bf16, model["config"], tensors);
    for (HfTensor& tensor : tensors) {
        std::vector<float> values(tensor.data.size() / 2);
        dequantise(DType::bf16, reinterpret_cast<const std::byte*>(tensor.data.data()),
                   std::ssize(values), values.data());
        tensor = hf_tensor(tensor.name, DType::f32, tensor.shape, values);
    }
    write_hf_folder(f32, model["config"], tensors);
    for (const Kernels kernels : {Kernels::reference, Kernels::fast}) {
        EXPECT_EQ(logits_of(bf16.path(), model, kernels), logits_of(f32.path(), model, kernels));
    }
}

/// Random 8-bit floats below 2 (no NaN) with a scale for each block of 24 x 40: the last blocks are
/// cut off.
void make_fp8(std::vector<HfTensor>& tensors, size_t at) {
    HfTensor& weight = tensors[at];
    const uint64_t hash = counter_hash(weight.name);
    const int64_t rows = weight.shape[0], columns = weight.shape[1];
    std::string codes;
    for (int64_t i = 0; i < rows * columns; ++i) {
        const auto magnitude =
            static_cast<int>((counter_uniform(hash, static_cast<uint64_t>(i)) + 1) * 31);
        codes += static_cast<char>(magnitude | (i * 7 % 3 == 0 ? 0x80 : 0));
    }
    const int64_t down = (rows + 23) / 24, across = (columns + 39) / 40;
    const HfTensor scales =
        hf_tensor(weight.name + "_scale_inv", DType::f32, {down, across},
                  counter_values(weight.name + " scale", down * across, 1, 0.5));
    weight = {.name = weight.name, .type = "F8_E4M3", .shape = weight.shape, .data = codes};
    tensors.push_back(scales);
}

/// Random 4-bit integers with a bf16 scale for each 32 columns of a row.
void make_int4(std::vector<HfTensor>& tensors, size_t at) {
    HfTensor& weight = tensors[at];
    const uint64_t hash = counter_hash(weight.name);
    const int64_t rows = weight.shape[0], columns = weight.shape[1];
    std::string bytes;
    for (int64_t i = 0; i < rows * columns / 2; ++i) {
        bytes += static_cast<char>((counter_uniform(hash, static_cast<uint64_t>(i)) + 1) * 128);
    }
    const std::string name = weight.name;
    const HfTensor scales =
        hf_tensor(name + "_scale", DType::bf16, {rows, columns / 32},
                  counter_values(name + " scale", rows * columns / 32, 0.04, 0.02));
    weight = {.name = name + "_packed", .type = "I32", .shape = {rows, columns / 8}, .data = bytes};
    tensors.push_back(scales);
    tensors.push_back({.name = name + "_shape",
                       .type = "I64",
                       .shape = {2},
                       .data = raw_bytes(rows) + raw_bytes(columns)});
}

/// Quantised folders against folders of the same weights written out in float32.
void expect_same_when_dequantised(const Json& quantisation,
                                  void (*quantise_one)(std::vector<HfTensor>&, size_t)) {
    Json model = find_case("llama");
    std::vector<HfTensor> tensors = counter_tensors(model);
    const size_t count = tensors.size();
    for (size_t i = 0; i < count; ++i) {
        if (tensors[i].name.find("_proj.weight") != std::string::npos) quantise_one(tensors, i);
    }
    Json config = model["config"];
    config["quantization_config"] = quantisation;
    const TempFolder quantised, plain;
    write_hf_folder(quantised, config, tensors);
    std::vector<HfTensor> written_out;
    const ModelFile file(quantised.path());
    for (const FileTensor& tensor : file.tensors()) {
        const WeightView view = {.type = tensor.type,
                                 .data = tensor.data,
                                 .rows = tensor.rows(),
                                 .columns = tensor.columns(),
                                 .scales = tensor.scales};
        std::vector<float> values(static_cast<size_t>(view.rows * view.columns));
        for (int64_t row = 0; row < view.rows; ++row) {
            dequantise_row(view, row, values.data() + row * view.columns);
        }
        written_out.push_back(hf_tensor(std::string(tensor.name), DType::f32,
                                        {tensor.dims.rbegin(), tensor.dims.rend()}, values));
    }
    EXPECT_EQ(written_out.size(), count);
    write_hf_folder(plain, model["config"], written_out);
    const std::vector<float> expected = logits_of(plain.path(), model, Kernels::reference);
    EXPECT_EQ(logits_of(quantised.path(), model, Kernels::reference), expected);
    // Int8 activations in blocks of 32 beside 4-bit weights: some 0.5 % an op.
    const std::vector<float> fast = logits_of(quantised.path(), model, Kernels::fast);
    EXPECT_LE(relative_l2(fast, expected), 0.1);
    misalign_weights(quantised);
    EXPECT_EQ(logits_of(quantised.path(), model, Kernels::reference), expected);
    EXPECT_EQ(logits_of(quantised.path(), model, Kernels::fast), fast);
}

TEST(DenseGqa, Fp8WithBlockScales) {
    expect_same_when_dequantised({{"quant_method", "fp8"}, {"weight_block_size", {24, 40}}},
                                 make_fp8);
}

TEST(DenseGqa, Int4WithGroupScales) {
    expect_same_when_dequantised({{"quant_method", "compressed-tensors"},
                                  {"format", "pack-quantized"},
                                  {"config_groups",
                                   {{"group_0",
                                     {{"weights",
                                       {{"num_bits", 4},
                                        {"type", "int"},
                                        {"symmetric", true},
                                        {"strategy", "group"},
                                        {"group_size", 32}}}}}}}},
                                 make_int4);
}

/// A model that is a part of a larger one, as image models have it.
TEST(DenseGqa, NamesBehindAPrefix) {
    const Json& model = find_case("qwen2");
    std::vector<HfTensor> tensors = counter_tensors(model);
    const TempFolder plain, prefixed;
    write_hf_folder(plain, model["config"], tensors);
    for (HfTensor& tensor : tensors) tensor.name = "language_model." + tensor.name;
    write_hf_folder(prefixed, model["config"], tensors);
    EXPECT_EQ(logits_of(prefixed.path(), model, Kernels::reference),
              logits_of(plain.path(), model, Kernels::reference));
}

// A head that is there is used, whatever tie_word_embeddings says, as transformers 5 does.
TEST(DenseGqa, AHeadThatIsThereWinsOverTying) {
    Json model = find_case("qwen2");
    const TempFolder untied, tied;
    write_hf_folder(untied, model["config"], counter_tensors(model));
    model["config"]["tie_word_embeddings"] = true;
    write_hf_folder(tied, model["config"], counter_tensors(model));
    EXPECT_EQ(logits_of(tied.path(), model, Kernels::reference),
              logits_of(untied.path(), model, Kernels::reference));
}

/// What loading a folder of the case with changed tensors says.
std::string load_error(const std::string& name,
                       const std::function<void(std::vector<HfTensor>&)>& change) {
    const Json& model = find_case(name);
    std::vector<HfTensor> tensors = counter_tensors(model);
    change(tensors);
    const TempFolder folder;
    write_hf_folder(folder, model["config"], tensors);
    const std::string error = error_of([&] { ModelRunner(folder.path(), Kernels::reference, 8); });
    EXPECT_EQ(error.find('\n'), std::string::npos) << error;
    std::vector<std::string> faults;
    const ModelFile file(folder.path());
    check_tensors(file, read_model_config(file), faults);
    // Values that are not finite are seen only by reading them.
    EXPECT_EQ(faults.empty(), error == "no error" || error.find("not finite") != std::string::npos)
        << error;
    if (!faults.empty()) {
        EXPECT_EQ(faults[0], error);
    }
    return error;
}

TEST(DenseGqa, TensorsThatDoNotFitAreRefusedByTheirOwnNames) {
    const auto find = [](std::vector<HfTensor>& tensors, const std::string& name) -> HfTensor& {
        return *std::find_if(tensors.begin(), tensors.end(),
                             [&](const HfTensor& t) { return t.name == name; });
    };
    const std::string k_norm = "model.layers.1.self_attn.k_norm.weight";
    const std::string up = "model.layers.2.mlp.up_proj.weight";
    const auto expect_part = [](const std::string& error, const std::string& part) {
        EXPECT_NE(error.find(part), std::string::npos) << error << "\nlacks: " << part;
    };
    expect_part(
        load_error("qwen3", [&](auto& t) { t.erase(t.begin() + (&find(t, k_norm) - t.data())); }),
        k_norm + " is missing");
    expect_part(load_error("qwen3",
                           [&](auto& t) {
                               find(t, up).shape = {64, 96};
                           }),
                up + " has shape [96, 64], expected [64, 96]");
    expect_part(load_error("qwen3",
                           [&](auto& t) {
                               find(t, k_norm).shape = {32, 1};
                           }),
                k_norm + " is BF16 [1, 32], expected floats [32]");
    expect_part(load_error("qwen3", [&](auto& t) { find(t, up).data.replace(0, 2, "\xc0\x7f"); }),
                up);
    expect_part(load_error("qwen3",
                           [](auto& t) {
                               t.push_back(hf_tensor("model.layers.3.extra.weight", DType::f32, {1},
                                                     std::vector<float>{1}));
                           }),
                "model.layers.3.extra.weight is not part of a qwen3 model");
    // Known, and without meaning.
    EXPECT_EQ(load_error("llama",
                         [](auto& t) {
                             t.push_back(hf_tensor("model.layers.0.self_attn.rotary_emb.inv_freq",
                                                   DType::f32, {8}, std::vector<float>(8, 1)));
                         }),
              "no error");
}

// Q and K of a llama GGUF stand in another order, so the sums of attention round otherwise; of the
// other architectures every bit is the same.
TEST(DenseGqa, GgufIsTheSameModel) {
    for (const std::string name : {"llama", "llama_tied", "llama_biases", "llama_one_kv_head",
                                   "mistral", "qwen2", "qwen3", "qwen3_tied_biases"}) {
        SCOPED_TRACE(name);
        const Json& model = find_case(name);
        const TempFolder folder;
        const TempPath file;
        write_folder(folder, model);
        counter_gguf(model).write(file.path());
        const std::vector<float> expected = logits_of(folder.path(), model, Kernels::reference);
        const std::vector<float> actual = logits_of(file.path(), model, Kernels::reference);
        if (name.starts_with("qwen")) {
            EXPECT_EQ(actual, expected);
        } else {
            EXPECT_LE(relative_l2(actual, expected), 1e-6);
            EXPECT_LE(logits_error(actual, model), kReferenceTolerance);
        }
    }
}

// The test's own writer against files of the gguf package: names, dims and every byte.
TEST(DenseGqa, GgufIsThatOfTheGgufPackage) {
    for (const Json& expected : fixture()["gguf"]) {
        SCOPED_TRACE(expected["name"]);
        const TempPath file;
        counter_gguf(find_case(expected["name"])).write(file.path());
        const ModelFile model(file.path());
        ASSERT_EQ(model.tensors().size(), expected["tensors"].size());
        for (const FileTensor& tensor : model.tensors()) {
            const Json& theirs = expected["tensors"][std::string(tensor.name)];
            EXPECT_EQ(theirs[0], name_of(tensor.type)) << tensor.name;
            EXPECT_EQ(theirs[1], Json(tensor.dims)) << tensor.name;
            const std::string_view bytes(reinterpret_cast<const char*>(tensor.data),
                                         static_cast<size_t>(tensor.bytes));
            EXPECT_EQ(theirs[2], fmt::format("{:016x}", counter_hash(bytes))) << tensor.name;
        }
    }
}

/// The frequencies that a GGUF file of Llama 3.1 carries in place of the settings.
TEST(DenseGqa, GgufWithFrequencyDivisors) {
    Json model = find_case("llama_llama3");
    const TempFolder folder;
    write_folder(folder, model);
    GgufWriter writer = counter_gguf(model);
    const RopeTable scaled = rope_table(read_model_config(ModelFile(folder.path())));
    std::vector<float> divisors;
    for (size_t i = 0; i < scaled.inverse_frequency.size(); ++i) {
        const double plain = std::pow(10000.0, -2.0 * static_cast<double>(i) / 16);
        divisors.push_back(static_cast<float>(plain / scaled.inverse_frequency[i]));
    }
    writer.add_tensor("rope_freqs.weight", DType::f32, 0, divisors.size(), divisors);
    const TempPath file;
    writer.write(file.path());
    EXPECT_LE(logits_error(logits_of(file.path(), model, Kernels::reference), model),
              kReferenceTolerance);
}

TEST(DenseGqa, GgufWithRopeScaling) {
    for (const std::string name : {"llama_linear", "llama_yarn"}) {
        SCOPED_TRACE(name);
        const Json& model = find_case(name);
        GgufWriter writer = counter_gguf(model);
        writer.set_string("llama.rope.scaling.type", name == "llama_yarn" ? "yarn" : "linear");
        writer.set("llama.rope.scaling.factor", 4.0f);
        writer.set("llama.rope.scaling.original_context_length", 64u);
        const TempPath file;
        writer.write(file.path());
        EXPECT_LE(logits_error(logits_of(file.path(), model, Kernels::reference), model),
                  kReferenceTolerance);
    }
}

TEST(RopeTable, FrequenciesAreThoseOfTransformers) {
    for (const Json& rope : fixture()["ropes"]) {
        SCOPED_TRACE(rope["name"]);
        const TempFolder folder;
        Json config = rope["config"];
        config["tie_word_embeddings"] = true;  // there are no weights at all
        write_hf_folder(folder, config, {});
        const RopeTable table = rope_table(read_model_config(ModelFile(folder.path())));
        const auto expected = rope["inverse_frequency"].get<std::vector<double>>();
        ASSERT_EQ(table.inverse_frequency.size(), expected.size());
        for (size_t i = 0; i < expected.size(); ++i) {
            EXPECT_NEAR(table.inverse_frequency[i] / expected[i], 1, 1e-12) << "pair " << i;
        }
        EXPECT_NEAR(table.magnitude, rope["magnitude"].get<double>(), 1e-12);
    }
}

}  // namespace
}  // namespace kd
