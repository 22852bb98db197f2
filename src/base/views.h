// The plain structs that stages of a round and several modules pass: lattice, tree, accepted path,
// page table, move list. Views do not own; capacities are fixed by the owner (storage.h on the
// host), the filled counts live beside the data so that a device stage can write them.
#pragma once

#include <cstdint>
#include <span>

namespace kd {

/// Most verified rows of one session's tree, the root included.
inline constexpr int32_t kMaxTreeNodes = 128;
/// 64-bit words of one node's ancestor set.
inline constexpr int32_t kAncestorWords = kMaxTreeNodes / 64;
/// Most depths a lattice may have (depth of the deepest drafted token; the root has depth 0).
inline constexpr int32_t kMaxDraftDepths = 64;
/// Most states a lattice may have at one depth.
inline constexpr int32_t kMaxDraftStates = 64;

/// What attn_verify_gqa takes, and so the models and drafters that are read: heads of a multiple of
/// kHeadDimStep elements up to kMaxHeadDim, up to kMaxHeadGroup of them to a K/V head.
inline constexpr int32_t kHeadDimStep = 4;
inline constexpr int32_t kMaxHeadDim = 256;
inline constexpr int32_t kMaxHeadGroup = 64;

/// Most tokens of a vocabulary, of a model, a tokenizer or a caller.
inline constexpr int32_t kMaxVocabulary = 1 << 24;

/// Which elements of a head form a rotated pair: (2i, 2i + 1), as llama-architecture GGUF files
/// store Q and K; or (i, i + rotated / 2), as Hugging Face files do.
enum class RopePairing : uint8_t { adjacent, half };

/// How a router's logits become the scores of experts.
enum class MoeScoring : uint8_t { sigmoid, softmax };

/// A row-major matrix: `rows` rows of `columns` values, `stride` values apart.
template <class T>
struct MatrixView {
    T* data = nullptr;
    int64_t rows = 0;
    int64_t columns = 0;
    int64_t stride = 0;

    constexpr T* row(int64_t r) const { return data + r * stride; }
    constexpr std::span<T> row_span(int64_t r) const {
        return {row(r), static_cast<size_t>(columns)};
    }
};

/// What a drafter proposes for one session: for each depth (index d holds tree depth d + 1) up to
/// `state_capacity` states. An edge joins states of neighbouring depths; all edges of depth 0 leave
/// the root. Without edges the states are marginals: any state of depth d may follow any of d - 1.
/// One token may stand in two states of a depth, but states that can be siblings (same parent)
/// carry distinct tokens. Log-probabilities are natural, normalised over the drafter's own
/// vocabulary.
struct LatticeView {
    int32_t depth_capacity = 0;
    int32_t state_capacity = 0;
    int32_t* depths = nullptr;       // [1] filled depths
    bool* has_edges = nullptr;       // [1] whether `edge` is meaningful
    int32_t* state_count = nullptr;  // [depth_capacity]
    int32_t* token = nullptr;        // [depth_capacity, state_capacity]
    float* log_prob = nullptr;       // [depth_capacity, state_capacity] marginal; at depth 0 also
                                     // the edge from the root
    float* edge = nullptr;           // [depth_capacity, state_capacity (parent), state_capacity
                                     // (child)] log P(child | parent); -inf: no edge; depth >= 1

    constexpr int64_t at(int32_t depth, int32_t state) const {
        return int64_t{depth} * state_capacity + state;
    }
    constexpr int64_t edge_at(int32_t depth, int32_t parent, int32_t child) const {
        return (int64_t{depth} * state_capacity + parent) * state_capacity + child;
    }
};

/// A draft tree: parents before children, node 0 is the root (the last emitted token). Nodes stand
/// in non-increasing log_score, so the first n nodes are the best tree of n nodes.
struct TreeView {
    int32_t capacity = 0;
    int32_t* count = nullptr;       // [1] nodes in use, the root included
    int32_t* token = nullptr;       // [capacity]
    int32_t* parent = nullptr;      // [capacity] index of the parent node; -1 for the root
    int32_t* depth = nullptr;       // [capacity] 0 for the root; position = context + depth
    float* log_score = nullptr;     // [capacity] log of the product of probabilities on the path
    uint64_t* ancestors = nullptr;  // [capacity, kAncestorWords] bit a set: node a is an ancestor
                                    // of this node or the node itself

    constexpr std::span<uint64_t> ancestor_words(int32_t node) const {
        return {ancestors + int64_t{node} * kAncestorWords, static_cast<size_t>(kAncestorWords)};
    }
};

/// What the target accepted: `count` nodes of one path, the root first, and as many emitted tokens:
/// emitted[i] follows node path[i]; the last one is the bonus token.
struct AcceptedView {
    int32_t capacity = 0;
    int32_t* count = nullptr;    // [1] >= 1; 0: the rules of the root failed
    int32_t* path = nullptr;     // [capacity] node indices
    int32_t* emitted = nullptr;  // [capacity] tokens
};

/// K/V rows to copy, in all layers: slot from[i] to slot to[i]. Reads happen before writes.
struct MoveList {
    std::span<const int32_t> from;
    std::span<const int32_t> to;
};

}  // namespace kd
