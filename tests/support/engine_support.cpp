#include "support/engine_support.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>

#include "support/tiny_model.h"

namespace kd {

namespace {

/// A folder that goes with the process.
class TemporaryFolder {
  public:
    TemporaryFolder()
        : path_(std::filesystem::temp_directory_path() / fmt::format("kdtree-test-{}", getpid())) {
        std::filesystem::create_directories(path_);
    }
    ~TemporaryFolder() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }
    std::string file(const std::string& name) const { return path_ / name; }

  private:
    std::filesystem::path path_;
};

const TemporaryFolder& temporary_folder() {
    static const TemporaryFolder folder;
    return folder;
}

/// Sends the cost tables of the tests to the temporary folder; the model stays where it was
/// fetched.
struct CacheFolder {
    const std::string of_models = read_environment().cache_folder;
    CacheFolder() { setenv("KDTREE_CACHE", temporary_folder().file("cache").c_str(), 1); }
};
const CacheFolder g_cache_folder;

}  // namespace

const std::string& tiny_model_path() {
    static const std::string path = [] {
        std::string file = temporary_folder().file("tiny.gguf");
        write_tiny_model(file, {});
        return file;
    }();
    return path;
}

std::optional<std::string> smollm2_path() {
    std::string path = g_cache_folder.of_models + "/SmolLM2-135M-Instruct.Q4_1.gguf";
    if (!std::filesystem::exists(path)) return std::nullopt;
    return path;
}

void NonsenseDrafter::fill(const LatticeView& lattice, int32_t depths) {
    *lattice.depths = depths;
    *lattice.has_edges = random_() % 2 == 0;
    const auto log_random = [&] {
        return std::log(static_cast<float>(random_() % 1000 + 1) / 1000.0f);
    };
    for (int32_t depth = 0; depth < depths; ++depth) {
        const int32_t states = static_cast<int32_t>(random_() % lattice.state_capacity) + 1;
        lattice.state_count[depth] = states;
        const auto first = static_cast<int32_t>(random_() % static_cast<uint32_t>(vocabulary_));
        for (int32_t state = 0; state < states; ++state) {
            lattice.token[lattice.at(depth, state)] = (first + state) % vocabulary_;
            lattice.log_prob[lattice.at(depth, state)] = log_random();
        }
        if (depth == 0) continue;
        for (int32_t parent = 0; parent < lattice.state_count[depth - 1]; ++parent) {
            for (int32_t child = 0; child < states; ++child) {
                lattice.edge[lattice.edge_at(depth, parent, child)] =
                    random_() % 4 == 0 ? -std::numeric_limits<float>::infinity() : log_random();
            }
        }
    }
}

void NonsenseDrafter::draft(std::span<const DraftContext> contexts,
                            std::span<LatticeView> lattices) {
    for (size_t i = 0; i < contexts.size(); ++i) {
        fill(lattices[i], std::min(depth_capacity, contexts[i].max_depth));
    }
}

std::vector<Delta> run_all(Engine& engine, const std::vector<Request>& requests) {
    std::vector<RequestId> ids;
    for (const Request& request : requests) ids.push_back(engine.submit(request));
    while (engine.step() != nullptr) engine.check_books();
    std::vector<Delta> outputs;
    for (const RequestId id : ids) outputs.push_back(engine.poll(id));
    return outputs;
}

void expect_same_logprobs(const std::vector<PositionLogprobs>& actual,
                          const std::vector<PositionLogprobs>& expected) {
    ASSERT_EQ(actual.size(), expected.size());
    for (size_t i = 0; i < actual.size(); ++i) {
        EXPECT_EQ(actual[i].logprob, expected[i].logprob) << "position " << i;
        EXPECT_EQ(actual[i].top, expected[i].top) << "position " << i;
    }
}

void expect_same_output(const Delta& actual, const Delta& expected) {
    EXPECT_EQ(actual.ids, expected.ids);
    EXPECT_EQ(actual.text, expected.text);
    EXPECT_EQ(actual.finish, expected.finish);
    EXPECT_EQ(actual.error, expected.error);
    expect_same_logprobs(actual.logprobs, expected.logprobs);
    expect_same_logprobs(actual.prompt_logprobs, expected.prompt_logprobs);
}

std::vector<std::vector<int32_t>> random_prompts(int32_t count, int32_t max_tokens,
                                                 int32_t vocabulary, uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<std::vector<int32_t>> prompts;
    for (int32_t i = 0; i < count; ++i) {
        std::vector<int32_t>& prompt = prompts.emplace_back();
        const auto tokens = random() % static_cast<uint32_t>(max_tokens) + 1;
        const auto period = i % 2 == 0 ? tokens : random() % tokens + 1;
        for (uint32_t t = 0; t < tokens; ++t) {
            prompt.push_back(
                t < period ? static_cast<int32_t>(random() % static_cast<uint32_t>(vocabulary))
                           : prompt[t - period]);
        }
    }
    return prompts;
}

std::vector<std::vector<int32_t>> sharing_prompts(int32_t count, int32_t max_tokens,
                                                  int32_t vocabulary, uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<std::vector<int32_t>> beginnings(4);
    for (std::vector<int32_t>& each : beginnings) {
        for (size_t tokens = 20 + random() % 31; tokens > 0; --tokens) {
            each.push_back(static_cast<int32_t>(random() % static_cast<uint32_t>(vocabulary)));
        }
    }
    std::vector<std::vector<int32_t>> prompts =
        random_prompts(count, max_tokens, vocabulary, seed + 1);
    for (std::vector<int32_t>& prompt : prompts) {
        const std::vector<int32_t>& beginning = beginnings[random() % beginnings.size()];
        const size_t tokens = random() % 3 == 0 ? random() % beginning.size() : beginning.size();
        prompt.insert(prompt.begin(), beginning.begin(),
                      beginning.begin() + static_cast<ptrdiff_t>(tokens));
    }
    return prompts;
}

std::string write_temporary(const std::string& name, const std::string& text) {
    std::string path = temporary_folder().file(name);
    std::ofstream(path) << text;
    return path;
}

std::string oracle_profile(const std::string& name, const std::vector<std::vector<float>>& hit) {
    std::vector<std::string> rows;
    for (const std::vector<float>& row : hit)
        rows.push_back(fmt::format("[{}]", fmt::join(row, ",")));
    return write_temporary(name, fmt::format("{{\"hit\": [{}]}}", fmt::join(rows, ",")));
}

}  // namespace kd
