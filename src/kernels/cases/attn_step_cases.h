// Steps of the attention cases: trees, page tables, slots; shared by MLA and GQA.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kdtree/kernels.h"
#include "kernels/cases/attn_values.h"
#include "kernels/cases/random.h"

namespace kd {

enum class CaseTree { chain, star, random };

enum class CaseTail {
    light,  // tail rows twice as large as context rows
    heavy,  // moreover each tail row weighs about as much as the whole context, so that a mask
            // fault shows at any context length
    plain   // tail rows like context rows: what a row holds is a function of its id alone
};

enum class CasePages {
    shuffled,
    contiguous,
    far  // shuffled, half of them beyond 2^31 values
};

/// One request of a step, in words.
struct AttnRequestCase {
    int32_t context = 0;
    int32_t nodes = 1;
    CaseTree tree = CaseTree::random;
    CaseTail tail = CaseTail::light;
};

struct AttnStepCase {
    std::vector<AttnRequestCase> requests;
    int32_t page_size = 1;
    CasePages pages = CasePages::shuffled;
    bool page_starts = false;  // ragged page lists instead of one stride
    int32_t deepest = 127;     // no random tree grows deeper
    bool climbing = false;     // of all requests: see AttnRequestSpec
    uint32_t seed = 1;
};

/// One request of a step, in full.
struct AttnRequestSpec {
    int32_t context = 0;
    std::vector<int32_t> parents;    // [nodes] the root's is -1
    uint64_t context_id = 0;         // position p holds the row of id context_id + p
    std::vector<uint64_t> node_ids;  // [nodes]
    CaseTail tail = CaseTail::plain;
    bool climbing = false;  // every 61st row of the context weighs more than the one before it, in
                            // the end e^12 times as much as others: maxima move all along
};

/// A step in host memory, and what its pool must hold. Slots that `rows` does not name stay
/// poisoned, as do the page-table entries beyond a context.
struct AttnStep {
    std::vector<int32_t> context;     // [requests]
    std::vector<int32_t> node_start;  // [requests + 1]
    std::vector<int32_t> tail_slots;  // [nodes]
    std::vector<uint64_t> ancestors;  // [nodes, 2]
    std::vector<int32_t> depth;       // [nodes]
    std::vector<int32_t> pages;
    std::vector<int64_t> pages_start;  // [requests]; empty: pages_stride
    int64_t pages_stride = 0;
    int32_t page_size = 1;
    int64_t slots = 0;  // of the pool
    std::vector<CaseRow> rows;
    std::vector<uint64_t> query_ids;  // [nodes]

    int32_t nodes() const { return node_start.back(); }
    int32_t requests() const { return static_cast<int32_t>(context.size()); }
    int32_t max_context() const;
    int32_t deepest() const;
    /// Pointers into this struct.
    kdt_attn_batch batch() const;
};

/// Page ids that no kernel may look up.
inline constexpr int32_t kPoisonPage = 0x7fffffff;

/// Parents of a tree of nodes no deeper than `deepest` >= 1.
std::vector<int32_t> case_tree(CaseRandom& random, CaseTree tree, int32_t nodes, int32_t deepest);

/// `values_per_slot` of the cache decides where CasePages::far begins.
AttnStep make_attn_step(const std::vector<AttnRequestSpec>& requests, int32_t page_size,
                        CasePages pages, bool page_starts, int64_t values_per_slot, uint32_t seed);
AttnStep make_attn_step(const AttnStepCase& step, int64_t values_per_slot);

/// Relative errors that a result may have against the exact one, and why: see attn_tolerance().
struct AttnTolerance {
    double rel_l2;      // of all rows together
    double row_rel_l2;  // of each row
    double lse;         // absolute
};
AttnTolerance attn_tolerance(kdt_kv_format format);

}  // namespace kd
