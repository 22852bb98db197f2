// Llama, Mistral, Qwen2 and Qwen3 against transformers in float32: every case of
// tests/data/models/dense_gqa.json, whose weights are a function of their names.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/storage.h"
#include "formats/model_file.h"
#include "models/rope.h"
#include "support/counter_model.h"
#include "support/counter_weights.h"
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
