// DeepSeek models against transformers: tests/data/models/deepseek.json, whose making and layout
// tools/make_deepseek_fixtures.py describes.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "base/storage.h"
#include "formats/gguf.h"
#include "kernels/moe_route/moe_route.h"
#include "support/counter_weights.h"
#include "support/deepseek_model.h"
#include "support/engine_support.h"
#include "support/model_runner.h"

namespace kd {
namespace {

using Json = nlohmann::ordered_json;

const Json& fixture() {
    static const Json json = [] {
        std::ifstream in(std::string(KD_TEST_DATA) + "/models/deepseek.json");
        return Json::parse(in);
    }();
    return json;
}

const Json& case_named(std::string_view name) {
    const Json& cases = fixture()["cases"];
    return *std::find_if(cases.begin(), cases.end(),
                         [&](const Json& each) { return each["name"] == name; });
}

DeepseekCase model_of(const Json& test) {
    return {.config = test["config"], .weights = test["weights"]};
}

std::vector<float> floats(const Json& json) {
    return json.get<std::vector<float>>();
}

std::vector<int32_t> ints(const Json& json) {
    return json.get<std::vector<int32_t>>();
}

/// |a - b| / |b|.
double relative(std::span<const float> a, std::span<const float> b) {
    double difference = 0, size = 0;
    for (size_t i = 0; i < b.size(); ++i) {
        difference += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
        size += double{b[i]} * b[i];
    }
    return std::sqrt(difference / size);
}

/// The tree of a case, behind its root.
class CaseTree {
  public:
    explicit CaseTree(const Json& test) : storage_(8) {
        const std::vector<int32_t> tokens = ints(test["tree"]["tokens"]);
        const std::vector<int32_t> parents = ints(test["tree"]["parents"]);
        const TreeView view = storage_.view();
        *view.count = static_cast<int32_t>(tokens.size());
        for (int32_t node = 0; node < *view.count; ++node) {
            const int32_t parent = parents[static_cast<size_t>(node)];
            view.token[node] = tokens[static_cast<size_t>(node)];
            view.parent[node] = parent;
            view.depth[node] = parent < 0 ? 0 : view.depth[parent] + 1;
            for (size_t w = 0; w < kAncestorWords; ++w) {
                view.ancestor_words(node)[w] = parent < 0 ? 0 : view.ancestor_words(parent)[w];
            }
            view.ancestor_words(node)[static_cast<size_t>(node) / 64] |= uint64_t{1} << (node % 64);
        }
    }

    TreeView view() { return storage_.view(); }
    std::vector<int32_t> path(int32_t node) {
        std::vector<int32_t> nodes;
        for (; node >= 0; node = view().parent[node]) nodes.insert(nodes.begin(), node);
        return nodes;
    }

  private:
    TreeStorage storage_;
};

/// All that a case gives: the prompt's logits and last features, and those of the tree's nodes.
struct Output {
    std::vector<float> prompt;    // [24, vocabulary]
    std::vector<float> features;  // [layers, hidden] of the last prompt row
    std::vector<float> tree;      // [8, vocabulary]
    std::vector<float> paths;     // the same, every path as a sequence of its own
};

/// Runs a case: the prompt in chunks, the tree behind it, and every path of it again. Slots lie
/// scattered.
Output run(const Json& test, const std::string& path, Kernels kernels) {
    const auto layers = test["config"]["num_hidden_layers"].get<int32_t>();
    std::vector<int32_t> feature_layers(static_cast<size_t>(layers));
    std::iota(feature_layers.begin(), feature_layers.end(), 0);
    ModelRunner model(path, kernels, 64, feature_layers);
    const std::vector<int32_t> ids = ints(test["ids"]);
    std::vector<int32_t> slots(64);
    for (size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<int32_t>(i * 37 % 64);
    const std::span<const int32_t> all(slots);
    Output out;
    size_t begin = 0;
    for (const size_t count : {size_t{5}, size_t{1}, ids.size() - 6}) {
        ModelRunner::Rows rows;
        rows.add_chunk(std::span(ids).subspan(begin, count), all.first(begin), all.subspan(begin));
        const std::vector<float> logits = model.run(rows);
        out.prompt.insert(out.prompt.end(), logits.begin(), logits.end());
        const std::span<const float> last = model.features(static_cast<int32_t>(count) - 1);
        out.features.assign(last.begin(), last.end());
        begin += count;
    }
    CaseTree tree(test);
    ModelRunner::Rows rows;
    rows.add_tree(tree.view(), all.first(ids.size()), all.subspan(ids.size()));
    out.tree = model.run(rows);
    for (int32_t node = 0; node < *tree.view().count; ++node) {
        std::vector<int32_t> tokens;
        for (const int32_t each : tree.path(node)) tokens.push_back(tree.view().token[each]);
        ModelRunner::Rows alone;
        alone.add_chunk(tokens, all.first(ids.size()), all.subspan(ids.size() + 8));
        const std::vector<float> logits = model.run(alone);
        out.paths.insert(out.paths.end(), logits.end() - model.vocabulary(), logits.end());
    }
    return out;
}

void expect_output(const Json& test, const Output& out, double tolerance) {
    const auto vocabulary = test["config"]["vocab_size"].get<size_t>();
    const std::vector<int32_t> rows = ints(test["rows"]);
    for (size_t i = 0; i < test["logits"].size(); ++i) {
        const bool prompt = i < rows.size();
        const size_t at = prompt ? static_cast<size_t>(rows[i]) : i - rows.size();
        const std::span<const float> ours =
            std::span(prompt ? out.prompt : out.tree).subspan(at * vocabulary, vocabulary);
        EXPECT_LE(relative(ours, floats(test["logits"][i])), tolerance)
            << (prompt ? "position " : "node ") << at;
    }
    const auto hidden = test["config"]["hidden_size"].get<size_t>();
    for (size_t layer = 0; layer < test["features"].size(); ++layer) {
        EXPECT_LE(relative(std::span(out.features).subspan(layer * hidden, hidden),
                           floats(test["features"][layer])),
                  tolerance)
            << "layer " << layer;
    }
}

// The largest seen is 1.5e-6: the roundings of float32, of which transformers does all in float32
// and the reference ops only those between ops.
constexpr double kFloatTolerance = 5e-6;
// Latents are kept in f16 (2^-12 each) and products accumulate in float32.
constexpr double kFastTolerance = 2e-3;

void expect_case(const Json& test, const std::string& path) {
    SCOPED_TRACE(test["name"].get<std::string>());
    const Output reference = run(test, path, Kernels::reference);
    expect_output(test, reference, kFloatTolerance);
    EXPECT_EQ(reference.tree, reference.paths);
    const Output fast = run(test, path, Kernels::fast);
    expect_output(test, fast, kFastTolerance);
    EXPECT_EQ(fast.tree, fast.paths);
}

TEST(DeepseekFolder, LogitsAreThoseOfTransformers) {
    for (const Json& test : fixture()["cases"]) {
        const TempFolder folder;
        write_hf_folder(folder, test["config"], deepseek_checkpoint(model_of(test)));
        expect_case(test, folder.path());
    }
}

/// Layers behind the last one that predict further tokens: known, and not computed with.
TEST(DeepseekFolder, LayersOfMultiTokenPredictionAreSkipped) {
    Json test = case_named("base");
    test["config"]["num_nextn_predict_layers"] = 1;
    std::vector<HfTensor> tensors = deepseek_checkpoint(model_of(test));
    for (const char* part :
         {"eh_proj.weight", "self_attn.q_a_proj.weight", "shared_head.norm.weight"}) {
        tensors.push_back(hf_tensor(fmt::format("model.layers.3.{}", part), DType::bf16, {4, 8},
                                    std::vector<float>(32, 1)));
    }
    const TempFolder folder;
    write_hf_folder(folder, test["config"], tensors);
    expect_case(test, folder.path());
    // No more than config.json counts.
    tensors.back().name = "model.layers.4.eh_proj.weight";
    write_hf_folder(folder, test["config"], tensors);
    EXPECT_EQ(error_of([&] { ModelRunner(folder.path(), Kernels::reference, 8); }),
              folder.path() +
                  ": tensor model.layers.4.eh_proj.weight is not part of a deepseek2 "
                  "model that is supported");
}

/// Kimi-K2.5: the language model inside a larger one, in shards.
TEST(DeepseekFolder, TheLanguageModelOfALargerOne) {
    const Json& test = case_named("int4");
    std::vector<HfTensor> tensors = deepseek_checkpoint(model_of(test));
    for (HfTensor& tensor : tensors) tensor.name = "language_model." + tensor.name;
    for (const char* name :
         {"vision_tower.patch_embed.proj.weight", "mm_projector.pre_norm.weight"}) {
        tensors.push_back(hf_tensor(name, DType::bf16, {4, 8}, std::vector<float>(32, 1)));
    }
    const Json config = {{"architectures", {"KimiK25ForConditionalGeneration"}},
                         {"model_type", "kimi_k25"},
                         {"text_config", test["config"]}};
    const TempFolder folder;
    write_hf_shards(folder, config, tensors, 3);
    expect_case(test, folder.path());
}

/// One line naming file and tensor for whatever is wrong about them.
TEST(DeepseekFolder, TensorsThatDoNotFitAreRefused) {
    const Json& test = case_named("base");
    const std::vector<HfTensor> good = deepseek_checkpoint(model_of(test));
    const TempFolder folder;
    const auto error = [&](std::string_view name, const std::function<void(HfTensor&)>& change) {
        std::vector<HfTensor> tensors = good;
        const auto found = std::find_if(tensors.begin(), tensors.end(),
                                        [&](const HfTensor& each) { return each.name == name; });
        change(*found);
        std::erase_if(tensors, [](const HfTensor& each) { return each.name.empty(); });
        write_hf_folder(folder, test["config"], tensors);
        const std::string message =
            error_of([&] { ModelRunner(folder.path(), Kernels::reference, 8); });
        EXPECT_TRUE(message.starts_with(folder.path() + ": tensor ")) << message;
        return message.substr(std::min(message.size(), folder.path().size() + 9));
    };
    const auto remove = [](HfTensor& tensor) { tensor.name.clear(); };
    const auto transpose = [](HfTensor& tensor) { std::swap(tensor.shape[0], tensor.shape[1]); };
    for (const char* part :
         {"self_attn.kv_b_proj.weight", "self_attn.kv_a_layernorm.weight", "mlp.gate.weight",
          "mlp.gate.e_score_correction_bias", "mlp.experts.7.down_proj.weight",
          "mlp.shared_experts.up_proj.weight"}) {
        const std::string name = fmt::format("model.layers.1.{}", part);
        EXPECT_EQ(error(name, remove), name + " is missing");
    }
    EXPECT_EQ(
        error("model.layers.2.mlp.experts.3.gate_proj.weight", transpose),
        "model.layers.2.mlp.experts.3.gate_proj.weight has shape [32, 64], expected [64, 32]");
    EXPECT_EQ(error("model.layers.0.self_attn.kv_a_proj_with_mqa.weight", transpose),
              "model.layers.0.self_attn.kv_a_proj_with_mqa.weight has shape [48, 64], expected "
              "[64, 48]");
    EXPECT_EQ(error("model.layers.1.mlp.experts.0.up_proj.weight",
                    [](HfTensor& tensor) {
                        tensor.name = "model.layers.1.mlp.experts.8.up_proj.weight";
                    }),
              "model.layers.1.mlp.experts.0.up_proj.weight is missing");
}

/// What a GGUF file can say.
bool fits_gguf(const Json& test) {
    static const std::set<std::string> kNot = {"half_pairs", "mscale_ratio", "fp8", "int4"};
    return !kNot.contains(test["name"]);
}

TEST(DeepseekGguf, LogitsAreThoseOfTransformers) {
    for (const Json& test : fixture()["cases"]) {
        if (!fits_gguf(test)) continue;
        const TempPath file;
        deepseek_gguf(model_of(test)).write(file.path());
        expect_case(test, file.path());
    }
}

TEST(DeepseekGguf, OldFormsAndOtherTypesAreTheSameModel) {
    const Json& test = case_named("base");
    for (const DType type : {DType::f32, DType::bf16}) {
        const TempPath file;
        deepseek_gguf(model_of(test),
                      {.split_kv_b = false, .stacked_experts = false, .matrices = type})
            .write(file.path());
        expect_case(test, file.path());
    }
}

/// The file that the tests write is the one that llama.cpp's converter writes.
TEST(DeepseekGguf, TensorsAndKeysAreTheConverters) {
    const TempPath path;
    deepseek_gguf(model_of(case_named("base"))).write(path.path());
    const GgufFile file(path.path());
    const Json& expected = fixture()["gguf"];
    EXPECT_EQ(file.tensors().size(), expected["tensors"].size());
    for (const Json& tensor : expected["tensors"]) {
        const auto name = tensor["name"].get<std::string>();
        const FileTensor* found = file.find_tensor(name);
        ASSERT_NE(found, nullptr) << name;
        EXPECT_EQ(found->dims, tensor["dims"].get<std::vector<int64_t>>()) << name;
        const std::string_view bytes(reinterpret_cast<const char*>(found->data),
                                     static_cast<size_t>(found->bytes));
        EXPECT_EQ(fmt::format("{:016x}", counter_hash(bytes)), tensor["fnv"].get<std::string>())
            << name;
    }
    for (const auto& [key, value] : expected["metadata"].items()) {
        if (value.is_boolean()) {
            EXPECT_EQ(file.boolean_or(key, !value), value.get<bool>()) << key;
        } else if (value.is_number_float()) {
            EXPECT_FLOAT_EQ(static_cast<float>(file.number(key, -1e9, 1e9)), value.get<float>())
                << key;
        } else if (value.is_number()) {
            EXPECT_EQ(file.integer(key, 0, 1 << 30), value.get<int64_t>()) << key;
        } else {
            EXPECT_EQ(file.string(key), value.get<std::string>()) << key;
        }
    }
}

/// Router logits of whole models through moe_route: the same experts, the same weights.
TEST(DeepseekRouting, ChoosesAsTransformersDo) {
    ThreadPool threads(1);
    Stream stream{&threads, Kernels::reference};
    size_t layers = 0;
    for (const Json& test : fixture()["cases"]) {
        SCOPED_TRACE(test["name"].get<std::string>());
        const Json& c = test["config"];
        for (const Json& routing : test["routing"]) {
            ++layers;
            const std::vector<float> bias = floats(routing["bias"]);
            const bool sigmoid = c["scoring_func"] == "sigmoid";
            for (size_t row = 0; row < routing["ids"].size(); ++row) {
                const std::vector<float> logits = floats(routing["logits"][row]);
                const std::vector<int32_t> ids = ints(routing["ids"][row]);
                std::vector<int32_t> chosen(ids.size());
                std::vector<float> weights(ids.size());
                moe_route({.rows = 1,
                           .experts = static_cast<int32_t>(logits.size()),
                           .used = static_cast<int32_t>(ids.size()),
                           .groups = c["n_group"],
                           .groups_used = c["topk_group"],
                           .scoring = sigmoid ? MoeScoring::sigmoid : MoeScoring::softmax,
                           .normalise = c["norm_topk_prob"],
                           .scale = c["routed_scaling_factor"],
                           .logits = logits.data(),
                           .bias = sigmoid ? bias.data() : nullptr,
                           .ids = chosen.data(),
                           .weights = weights.data()},
                          stream);
                for (size_t k = 0; k < ids.size(); ++k) {
                    const auto at = std::find(chosen.begin(), chosen.end(), ids[k]);
                    ASSERT_NE(at, chosen.end()) << "row " << row << ", expert " << ids[k];
                    const float expected = routing["weights"][row][k];
                    EXPECT_NEAR(weights[static_cast<size_t>(at - chosen.begin())], expected,
                                1e-6 * expected);
                }
            }
        }
    }
    EXPECT_EQ(layers, 12u);
}

}  // namespace
}  // namespace kd
