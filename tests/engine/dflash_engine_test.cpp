// The dflash drafter in the engine: what it drafts does not depend on how its rows came to their
// slots, and what is emitted does not depend on the drafter.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "app/prompt.h"
#include "support/dflash_checkpoint.h"
#include "support/engine_support.h"

namespace kd {
namespace {

using nlohmann::json;

Config dflash_config(const std::string& folder) {
    Config config;
    config.model = tiny_model_path();
    config.context_length = 256;
    config.threads = 1;
    config.radix_cache = false;
    config.speculative_algorithm = SpeculativeAlgorithm::dflash;
    config.speculative_draft_model_path = folder;
    return config;
}

/// The first draft's candidates, by the request's seed and the tokens of context.
using Drafts = std::map<std::pair<uint64_t, int32_t>, std::vector<float>>;

void collect_drafts(Batch& batch, Drafts& drafts) {
    for (size_t i = 0; i < batch.entries.size(); ++i) {
        const BatchEntry& entry = batch.entries[i];
        const LatticeView lattice = batch.lattices[i].view();
        if (entry.prefill_rows > 0 || *lattice.depths == 0) continue;
        std::vector<float>& bits = drafts[{entry.sampling.seed, entry.context}];
        bits.clear();
        // A tree of two nodes asks for one depth.
        for (int32_t s = 0; s < lattice.state_count[0]; ++s) {
            bits.push_back(static_cast<float>(lattice.token[lattice.at(0, s)]));
            bits.push_back(lattice.log_prob[lattice.at(0, s)]);
        }
    }
}

struct Ran {
    std::vector<Delta> outputs;
    Drafts drafts;
    int32_t retracted = 0;
    int32_t reused = 0;
    int32_t moved = 0;
    int32_t accepted = 0;  // drafted tokens
};

Ran run_recording(Engine& engine, const std::vector<Request>& requests) {
    Ran ran;
    std::vector<RequestId> ids;
    for (const Request& request : requests) ids.push_back(engine.submit(request));
    while (engine.step() != nullptr) {
        engine.check_books();
        collect_drafts(engine.last_batch(), ran.drafts);
        ran.moved += engine.relocate(16);
    }
    for (const RequestId id : ids) {
        ran.outputs.push_back(engine.poll(id));
        ran.retracted += ran.outputs.back().stats.retracted;
        ran.reused += ran.outputs.back().stats.reused_tokens;
        ran.accepted += ran.outputs.back().stats.tokens - ran.outputs.back().stats.rounds;
    }
    return ran;
}

std::vector<Request> requests_of(const std::vector<std::vector<int32_t>>& prompts,
                                 int32_t max_tokens, int32_t nodes) {
    std::vector<Request> requests;
    for (const std::vector<int32_t>& prompt : prompts) {
        requests.push_back({.prompt = prompt,
                            .sampling = {.seed = requests.size()},
                            .max_tokens = max_tokens,
                            .speculation = {.nodes = nodes}});
    }
    return requests;
}

class DflashEngine : public testing::TestWithParam<std::string> {};

TEST_P(DflashEngine, DraftsDoNotDependOnHowTheirRowsCame) {
    const std::string folder = write_dflash_checkpoint(tiny_dflash_case(GetParam()));
    const auto prompts = sharing_prompts(24, 50, 320, 5);
    // Of two nodes an accepted path is the whole tree; of 24 it may be any of its nodes.
    Engine simple(dflash_config(folder));
    const Ran expected = run_recording(simple, requests_of(prompts, 24, 2));
    ASSERT_GT(expected.drafts.size(), 300u);
    const std::vector<Request> requests = requests_of(prompts, 24, 24);

    Config config = dflash_config(folder);
    config.radix_cache = true;
    config.max_running_requests = 5;
    config.chunked_prefill_size = 13;
    config.max_total_tokens = 256;
    config.kv_extent = 1;
    config.kv_headroom = 0;
    config.threads = 2;
    for (const int32_t page : {1, 16}) {
        config.page_size = page;
        Engine busy(config);
        const Ran ran = run_recording(busy, requests);
        EXPECT_GT(ran.retracted, 0) << "page " << page;
        EXPECT_GT(ran.reused, 0);
        EXPECT_GT(ran.moved, 0);
        EXPECT_GT(ran.accepted, 3);
        size_t compared = 0;
        for (const auto& [key, bits] : ran.drafts) {
            const auto found = expected.drafts.find(key);
            if (found == expected.drafts.end()) continue;
            EXPECT_EQ(found->second, bits)
                << "page " << page << ", request " << key.first << ", context " << key.second;
            ++compared;
        }
        EXPECT_GT(compared, expected.drafts.size() / 2);
        for (size_t i = 0; i < requests.size(); ++i) {
            expect_same_output(ran.outputs[i], expected.outputs[i]);
        }
    }
}

INSTANTIATE_TEST_SUITE_P(All, DflashEngine, testing::Values("full", "sliding", "residual", "gated"),
                         [](const auto& test) { return test.param; });

TEST(DflashEngine, TreesEmitWhatPlainDecodingEmits) {
    Config config = dflash_config(write_dflash_checkpoint(tiny_dflash_case("residual")));
    config.max_running_requests = 8;
    Engine engine(config);
    const auto prompts = random_prompts(200, 40, 320, 7);
    std::vector<Request> plain = requests_of(prompts, 16, 1);
    for (Request& request : plain) request.speculation.shape = DraftShape::plain;
    const std::vector<Delta> expected = run_all(engine, plain);
    std::vector<Request> trees = requests_of(prompts, 16, 0);
    constexpr int32_t kNodes[] = {2, 3, 8, 32};
    for (size_t i = 0; i < trees.size(); ++i) trees[i].speculation.nodes = kNodes[i % 4];
    const std::vector<Delta> outputs = run_all(engine, trees);
    for (size_t i = 0; i < outputs.size(); ++i) {
        EXPECT_EQ(outputs[i].ids, expected[i].ids) << "prompt " << i;
    }
}

TEST(DflashEngine, RefusesOtherTargetsAndFolders) {
    const auto load_error = [](const json& description) {
        return error_of(
            [&] { Engine engine(dflash_config(write_dflash_checkpoint(description))); });
    };
    const json good = tiny_dflash_case("full");
    EXPECT_EQ(load_error(good), "no error");
    const auto refused = [&](const char* pointer, const json& value, const std::string& message) {
        json description = good;
        description["config"][json::json_pointer(pointer)] = value;
        EXPECT_NE(load_error(description).find(message), std::string::npos)
            << load_error(description) << "\nexpected: " << message;
    };
    refused("/num_target_layers", 3, "num_target_layers 3, and the target has 2");
    refused("/dflash_config/target_layer_ids", {0, 2}, "target_layer_ids up to 2, and the target");
    refused("/dflash_config/target_hidden_size", 128, "target_hidden_size 128, and the target");
    refused("/vocab_size", 321, "vocab_size 321, and the target has 320");
    Config config = dflash_config("");
    EXPECT_NE(error_of([&] { Engine engine(config); }).find("needs a checkpoint"),
              std::string::npos);
    config.speculative_draft_model_path = "/nowhere";
    EXPECT_NE(error_of([&] { Engine engine(config); }).find("/nowhere/config.json"),
              std::string::npos);
}

/// The prototype's folder with its residual head named in the config, if it is there.
std::optional<std::string> prototype(bool with_head) {
    const char* given = std::getenv("KDTREE_PROTOTYPE_DRAFTER");
    const std::string folder =
        given != nullptr ? given : std::string(KD_TEST_DATA) + "/../../../shared/prototype-drafter";
    if (!std::filesystem::exists(folder + "/config.json")) return std::nullopt;
    if (!with_head) return folder;
    json config = json::parse(std::ifstream(folder + "/config.json"));
    config["kdtree"]["residual_head"] = "conditional_head_E256.safetensors";
    const std::string changed = write_temporary("prototype-config.json", config.dump());
    const std::filesystem::path copy = std::filesystem::path(changed).parent_path() / "prototype";
    std::filesystem::create_directories(copy);
    std::filesystem::copy_file(changed, copy / "config.json",
                               std::filesystem::copy_options::overwrite_existing);
    for (const char* name : {"model.safetensors", "conditional_head_E256.safetensors"}) {
        if (!std::filesystem::exists(copy / name)) {
            std::filesystem::create_symlink(std::filesystem::absolute(folder) / name, copy / name);
        }
    }
    return copy;
}

std::string eval_folder() {
    const char* given = std::getenv("KDTREE_EVAL");
    return given != nullptr ? given : std::string(KD_TEST_DATA) + "/../../../shared/eval";
}

#define KD_REQUIRE_PROTOTYPE(folder, with_head)                     \
    const std::optional<std::string> folder = prototype(with_head); \
    const std::optional<std::string> model = smollm2_path();        \
    if (!folder || !model)                                          \
    GTEST_SKIP() << "no " << (model ? "prototype" : "SmolLM2") << ": KDTREE_PROTOTYPE_DRAFTER"

Config prototype_config(const std::string& folder, const std::string& model) {
    Config config = dflash_config(folder);
    config.model = model;
    config.context_length = 2048;
    config.threads = 2;
    return config;
}

/// The first turns of the six sets, `count` in all.
std::vector<std::vector<int32_t>> eval_prompts(const Tokenizer& tokenizer, int32_t count) {
    constexpr const char* kSets[] = {"arena-hard-v2", "gsm8k", "humaneval",
                                     "math500",       "mbpp",  "mt-bench"};
    std::vector<std::vector<int32_t>> prompts;
    for (int32_t line = 0; std::ssize(prompts) < count && line < 40; ++line) {
        for (const char* set : kSets) {
            const std::string path = eval_folder() + "/" + set + ".jsonl";
            const PromptLine prompt = read_prompts(path, line + 1)[static_cast<size_t>(line)];
            std::vector<int32_t> ids = encode_prompt(tokenizer, prompt.turn, false);
            if (std::ssize(prompts) < count && ids.size() < 800) prompts.push_back(ids);
        }
    }
    return prompts;
}

/// Trees of all sizes emit what plain decoding emits; returns tokens a round.
double expect_lossless(const std::string& folder, const std::string& model,
                       const std::vector<std::vector<int32_t>>& prompts, int32_t max_tokens) {
    Engine engine(prototype_config(folder, model));
    SessionStats stats;
    constexpr int32_t kNodes[] = {8, 32, 3};
    for (size_t i = 0; i < prompts.size(); ++i) {
        Request request = {.prompt = prompts[i],
                           .max_tokens = max_tokens,
                           .speculation = {.nodes = kNodes[i % 3]}};
        const Delta tree = run_all(engine, {request})[0];
        stats += tree.stats;
        request.speculation = {.shape = DraftShape::plain};
        EXPECT_EQ(tree.ids, run_all(engine, {request})[0].ids) << "prompt " << i;
    }
    return static_cast<double>(stats.tokens) / stats.rounds;
}

TEST(DflashSmolLm2, TreesEmitWhatPlainDecodingEmits) {
    KD_REQUIRE_PROTOTYPE(folder, true);
    const Tokenizer tokenizer{GgufFile(*model)};
    std::vector<std::vector<int32_t>> prompts;
    for (const char* text : {"Write a Python function that reverses a list.",
                             "What is the capital of France?", "Count from one to twenty."}) {
        prompts.push_back(encode_prompt(tokenizer, text, false));
    }
    EXPECT_GT(expect_lossless(*folder, *model, prompts, 48), 2.5);
}

TEST(DflashSmolLm2Long, TwoHundredPromptsEmitWhatPlainDecodingEmits) {
    KD_REQUIRE_PROTOTYPE(folder, true);
    if (!std::filesystem::exists(eval_folder())) GTEST_SKIP() << "no prompts: KDTREE_EVAL";
    const Tokenizer tokenizer{GgufFile(*model)};
    EXPECT_GT(expect_lossless(*folder, *model, eval_prompts(tokenizer, 200), 128), 2.5);
}

/// Differences to the five best of each slot in float32.
struct GoldenError {
    double worst = 0;  // of log-probabilities
    double rms = 0;    // of the anchor where it is largest
    int missing = 0;   // ids that are not among our five best though no noise explains it
    int ids = 0;
};

/// `noise`: how far a log-probability may be off. What stands out by more than twice that over the
/// fifth has to be among our five best: only better ones than the fifth can overtake it.
GoldenError golden_error(Config config, double noise) {
    json golden = json::parse(std::ifstream(config.speculative_draft_model_path + "/golden.json"));
    Engine engine(config);
    GoldenError error;
    for (const json& each : golden) {
        double squares = 0;
        auto text = each["prompt"].get<std::vector<int32_t>>();
        for (const json& id : each["greedy"]) text.push_back(id);
        text.resize(each["anchor_index"].get<size_t>() + 1);
        // Its last token is the anchor of the first round.
        engine.submit({.prompt = text, .max_tokens = 20, .speculation = {.nodes = 8}});
        Drafts drafts;
        while (drafts.empty()) {
            engine.step();
            collect_drafts(engine.last_batch(), drafts);
        }
        const LatticeView lattice = engine.last_batch().lattices[0].view();
        EXPECT_EQ(*lattice.depths, 7);
        for (int32_t depth = 0; depth < *lattice.depths; ++depth) {
            const json& slot = each["slots_fp32"][static_cast<size_t>(depth)];
            for (size_t i = 0; i < 5; ++i) {
                const auto id = slot["ids"][i].get<int32_t>();
                const int32_t states = lattice.state_count[depth];
                int32_t state = 0;
                while (state < states && lattice.token[lattice.at(depth, state)] != id) ++state;
                error.ids += 1;
                const double clear_by =
                    slot["logp"][i].get<double>() - slot["logp"][4].get<double>();
                error.missing += state >= 5 && clear_by > 2 * noise ? 1 : 0;
                if (state == states) continue;
                const double off =
                    lattice.log_prob[lattice.at(depth, state)] - slot["logp"][i].get<double>();
                error.worst = std::max(error.worst, std::abs(off));
                squares += off * off;
            }
        }
        error.rms = std::max(error.rms, std::sqrt(squares / 35));
        while (engine.step() != nullptr) {
        }
    }
    return error;
}

TEST(DflashSmolLm2, AgreesWithTheGoldenDrafts) {
    KD_REQUIRE_PROTOTYPE(folder, false);
    // The target's activations are quantised to 8 bits here, which moves its own log-probabilities
    // by an RMS of 0.12 at the median and 0.44 at the worst of 48 positions, whoever's int8 kernels
    // run. The drafter reads that target's features at three anchors and adds no int8 of its own.
    constexpr double kNoise = 0.44;
    const GoldenError error = golden_error(prototype_config(*folder, *model), kNoise);
    RecordProperty("worst", std::to_string(error.worst));
    RecordProperty("rms", std::to_string(error.rms));
    EXPECT_EQ(error.ids, 105);
    EXPECT_LT(error.rms, kNoise);
    EXPECT_EQ(error.missing, 0);
}

TEST(DflashSmolLm2Long, AgreesWithTheGoldenDraftsOnTheReferences) {
    KD_REQUIRE_PROTOTYPE(folder, false);
    Config config = prototype_config(*folder, *model);
    config.reference_kernels = true;
    constexpr double kNoise = 0.23;  // between bf16 and float32 of the makers
    const GoldenError error = golden_error(config, kNoise);
    EXPECT_LT(error.worst, kNoise);
    EXPECT_EQ(error.missing, 0);
}

}  // namespace
}  // namespace kd
