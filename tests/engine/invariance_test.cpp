// A row's logits are a function of its path alone: one path as plain decoding, as a chain, inside
// random trees beside other sessions, and as a prefill chunk gives the same bits at every context.
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "core/tree.h"
#include "support/engine_support.h"
#include "support/model_runner.h"
#include "support/tiny_model.h"

namespace kd {
namespace {

constexpr int32_t kPathTokens = 6;

/// A random tree of `nodes` nodes that contains `path` as one of its paths; returns its nodes.
std::vector<int32_t> random_tree_with(std::span<const int32_t> path, int32_t nodes,
                                      int32_t vocabulary, std::mt19937& random, TreeView tree) {
    std::vector<int32_t> on_path = {0};
    tree.token[0] = path[0];
    tree.parent[0] = -1;
    tree.depth[0] = 0;
    tree.log_score[0] = 0;
    int32_t count = 1;
    while (count < nodes || on_path.size() < path.size()) {
        const bool extend = on_path.size() < path.size() && random() % 3 == 0;
        const int32_t parent =
            extend ? on_path.back() : static_cast<int32_t>(random() % static_cast<uint32_t>(count));
        tree.token[count] =
            extend ? path[on_path.size()]
                   : static_cast<int32_t>(random() % static_cast<uint32_t>(vocabulary));
        tree.parent[count] = parent;
        tree.depth[count] = tree.depth[parent] + 1;
        tree.log_score[count] = 0;
        if (extend) on_path.push_back(count);
        ++count;
    }
    *tree.count = count;
    fill_ancestors(tree);
    return on_path;
}

void expect_same_bits(std::span<const float> got, std::span<const float> expected,
                      const std::string& what) {
    ASSERT_EQ(got.size(), expected.size());
    ASSERT_EQ(std::memcmp(got.data(), expected.data(), got.size_bytes()), 0) << what;
}

/// Every context in [first, first + contexts): the path's logits four ways.
void expect_invariant(ModelRunner& model, int32_t first, int32_t contexts, int32_t step) {
    const int32_t last = first + contexts + kPathTokens;
    const int32_t vocabulary = model.vocabulary();
    std::mt19937 random(3);
    std::vector<int32_t> text, slots;
    // Slots in random order; the text's positions take the first, trees and copies the rest.
    for (int32_t i = 0; i < 2 * last + 300; ++i) slots.push_back(i);
    std::shuffle(slots.begin(), slots.end(), random);
    for (int32_t i = 0; i < last; ++i) {
        text.push_back(static_cast<int32_t>(random() % static_cast<uint32_t>(vocabulary)));
    }
    const std::span<const int32_t> all(slots);
    const auto positions = all.first(static_cast<size_t>(last));
    const auto tail = all.subspan(static_cast<size_t>(last));
    // Plain decoding, row by row, is what the others are compared with. Its rows stay in the cache.
    std::vector<std::vector<float>> plain;
    for (int32_t i = 0; i < last; ++i) {
        ModelRunner::Rows rows;
        rows.add_chunk(std::span(text).subspan(static_cast<size_t>(i), 1),
                       positions.first(static_cast<size_t>(i)),
                       positions.subspan(static_cast<size_t>(i)));
        plain.push_back(model.run(rows));
    }
    for (int32_t context = first; context < first + contexts; context += step) {
        const auto at = static_cast<size_t>(context);
        const std::span<const int32_t> path = std::span(text).subspan(at, kPathTokens);
        const std::string where = "context " + std::to_string(context);
        const auto row = [&](const std::vector<float>& logits, size_t index) {
            return std::span(logits).subspan(index * static_cast<size_t>(vocabulary),
                                             static_cast<size_t>(vocabulary));
        };
        // A chunk that covers the path and, in the same batch, another session's tree.
        TreeStorage other(kMaxTreeNodes);
        const std::vector<int32_t> stranger = {text[0], text[1]};
        random_tree_with(stranger, 5, vocabulary, random, other.view());
        const auto others = static_cast<size_t>(*other.view().count);
        ModelRunner::Rows chunk;
        chunk.add_tree(other.view(), positions.first(at / 2), tail.subspan(100));
        chunk.add_chunk(path, positions.first(at), tail);
        const std::vector<float> chunk_logits = model.run(chunk);
        // A chunk of the whole prompt, as prefill would run it, if it fits.
        const size_t begin = at > 150 ? at - 150 : 0;
        ModelRunner::Rows prefill;
        prefill.add_chunk(std::span(text).subspan(begin, at - begin + kPathTokens),
                          positions.first(begin), tail);
        const std::vector<float> prefill_logits = model.run(prefill);
        // Inside a random tree.
        TreeStorage storage(kMaxTreeNodes);
        const auto nodes = static_cast<int32_t>(random() % 40) + kPathTokens;
        const std::vector<int32_t> on_path =
            random_tree_with(path, nodes, vocabulary, random, storage.view());
        ModelRunner::Rows tree;
        tree.add_tree(storage.view(), positions.first(at), tail);
        const std::vector<float> tree_logits = model.run(tree);
        for (size_t i = 0; i < kPathTokens; ++i) {
            const std::vector<float>& expected = plain[at + i];
            expect_same_bits(row(chunk_logits, others + i), expected, where + ", as a chain");
            expect_same_bits(row(prefill_logits, at - begin + i), expected, where + ", as prefill");
            expect_same_bits(row(tree_logits, static_cast<size_t>(on_path[i])), expected,
                             where + ", in a tree");
        }
    }
}

TEST(Invariance, TinyModelAtEveryContextModulo64) {
    ModelRunner model(tiny_model_path(), Kernels::fast, 400);
    expect_invariant(model, 0, 200, 1);
}

TEST(Invariance, TinyModelOnTheReferences) {
    ModelRunner model(tiny_model_path(), Kernels::reference, 100);
    expect_invariant(model, 50, 20, 3);
}

TEST(Invariance, KQuantWeights) {
    for (const DType type : {DType::q4_k, DType::q6_k}) {
        SCOPED_TRACE(name_of(type));
        const TempPath file;
        write_tiny_model(file.path(), {.hidden = 256, .intermediate = 256, .weights = type});
        ModelRunner model(file.path(), Kernels::fast, 100);
        expect_invariant(model, 50, 20, 3);
    }
}

TEST(InvarianceSmolLm2, EveryContextModulo64) {
    const std::optional<std::string> path = smollm2_path();
    if (!path) GTEST_SKIP() << "SmolLM2 is not in the cache folder";
    ModelRunner model(*path, Kernels::fast, 400);
    expect_invariant(model, 192, 64, 1);
}

}  // namespace
}  // namespace kd
