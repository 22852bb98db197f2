#include "kernels/cases/attn_step_cases.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace kd {

namespace {

void shuffle(CaseRandom& random, std::vector<int32_t>& values) {
    for (size_t i = values.size(); i > 1; --i) {
        std::swap(values[i - 1],
                  values[static_cast<size_t>(random.below(static_cast<int32_t>(i)))]);
    }
}

int32_t pages_of(int32_t context, int32_t page_size) {
    return (context + page_size - 1) / page_size;
}

/// Depth and ancestor words of the nodes of one request, appended.
void append_tree(const std::vector<int32_t>& parents, AttnStep& step) {
    const size_t first = step.depth.size();
    for (size_t node = 0; node < parents.size(); ++node) {
        uint64_t words[2] = {};
        int32_t depth = 0;
        if (parents[node] >= 0) {
            const size_t parent = first + static_cast<size_t>(parents[node]);
            words[0] = step.ancestors[2 * parent];
            words[1] = step.ancestors[2 * parent + 1];
            depth = step.depth[parent] + 1;
        }
        words[node / 64] |= uint64_t{1} << (node % 64);
        step.ancestors.insert(step.ancestors.end(), words, words + 2);
        step.depth.push_back(depth);
    }
}

CaseRow tail_row(CaseTail tail, int32_t context, int64_t slot, uint64_t id) {
    CaseRow row{.slot = slot, .id = id, .doublings = tail == CaseTail::plain ? 0 : 1};
    // exp(gain) is about the number of context rows, whose mean exp(score) is about 3.
    if (tail == CaseTail::heavy) {
        row.score_gain = static_cast<float>(std::max(0.5, std::log(context + 1.0)));
    }
    return row;
}

}  // namespace

int32_t AttnStep::max_context() const {
    return *std::max_element(context.begin(), context.end());
}

int32_t AttnStep::deepest() const {
    return depth.empty() ? 0 : *std::max_element(depth.begin(), depth.end());
}

kdt_attn_batch AttnStep::batch() const {
    kdt_attn_batch batch{};
    batch.struct_bytes = sizeof batch;
    batch.requests = requests();
    batch.max_nodes = std::max(nodes(), 1);
    batch.max_context = max_context();
    batch.page_size = page_size;
    batch.context = context.data();
    batch.node_start = node_start.data();
    batch.tail_slots = tail_slots.data();
    batch.ancestors = ancestors.data();
    batch.depth = depth.data();
    batch.pages = pages.data();
    batch.pages_start = pages_start.empty() ? nullptr : pages_start.data();
    batch.pages_stride = pages_stride;
    return batch;
}

std::vector<int32_t> case_tree(CaseRandom& random, CaseTree tree, int32_t nodes, int32_t deepest) {
    std::vector<int32_t> parents(static_cast<size_t>(nodes), -1);
    std::vector<int32_t> depth(static_cast<size_t>(nodes), 0);
    for (int32_t node = 1; node < nodes; ++node) {
        int32_t parent = tree == CaseTree::star ? 0 : node - 1;
        if (tree == CaseTree::random && random.below(2) == 0) parent = random.below(node);
        while (depth[static_cast<size_t>(parent)] >= deepest) {
            parent = parents[static_cast<size_t>(parent)];
        }
        parents[static_cast<size_t>(node)] = parent;
        depth[static_cast<size_t>(node)] = depth[static_cast<size_t>(parent)] + 1;
    }
    return parents;
}

AttnStep make_attn_step(const std::vector<AttnRequestSpec>& requests, int32_t page_size,
                        CasePages pages, bool page_starts, int64_t values_per_slot, uint32_t seed) {
    CaseRandom random(seed);
    AttnStep step;
    step.page_size = page_size;
    step.node_start.push_back(0);

    // Page ids: those of the contexts, those whose slots the tails take, and half as many again
    // that nobody uses.
    int32_t context_pages = 0;
    int32_t longest = 0;
    int32_t nodes = 0;
    for (const AttnRequestSpec& request : requests) {
        context_pages += pages_of(request.context, page_size);
        longest = std::max(longest, pages_of(request.context, page_size));
        nodes += static_cast<int32_t>(request.parents.size());
    }
    const int32_t tail_pages = pages_of(2 * nodes, page_size) + 1;
    const int32_t used_pages = context_pages + tail_pages;
    std::vector<int32_t> ids(static_cast<size_t>(used_pages + used_pages / 2 + 1));
    std::iota(ids.begin(), ids.end(), 0);
    if (pages != CasePages::contiguous) shuffle(random, ids);
    if (pages == CasePages::far) {
        const int64_t far = (int64_t{1} << 31) / values_per_slot + 1000;
        const auto half = static_cast<int32_t>(ids.size() / 2);
        const auto first = static_cast<int32_t>(far / page_size) + 1;
        for (int32_t& id : ids) {
            if (id >= half) id += first;
        }
    }
    step.slots = (int64_t{*std::max_element(ids.begin(), ids.end())} + 1) * page_size;

    std::vector<int32_t> tail_slots;
    for (int32_t i = 0; i < tail_pages; ++i) {
        for (int32_t k = 0; k < page_size; ++k) {
            tail_slots.push_back(ids[static_cast<size_t>(context_pages + i)] * page_size + k);
        }
    }
    shuffle(random, tail_slots);

    // Poisoned entries between and behind the page lists.
    constexpr int32_t kGap = 3;
    step.pages_stride = longest + kGap;
    size_t next_page = 0;
    size_t next_tail = 0;
    for (const AttnRequestSpec& request : requests) {
        const int32_t own_pages = pages_of(request.context, page_size);
        if (page_starts) {
            step.pages.insert(step.pages.end(), kGap, kPoisonPage);
            step.pages_start.push_back(std::ssize(step.pages));
        }
        for (int32_t position = 0; position < request.context; ++position) {
            const int64_t page = ids[next_page + static_cast<size_t>(position / page_size)];
            const bool climbs = request.climbing && position % 61 == 60;
            step.rows.push_back({.slot = page * page_size + position % page_size,
                                 .id = request.context_id + static_cast<uint64_t>(position),
                                 .score_gain = climbs ? 12.0f * static_cast<float>(position) /
                                                            static_cast<float>(request.context)
                                                      : 0.0f});
        }
        for (int32_t i = 0; i < own_pages; ++i) step.pages.push_back(ids[next_page++]);
        if (!page_starts) {
            const auto poisoned = static_cast<size_t>(step.pages_stride - own_pages);
            step.pages.insert(step.pages.end(), poisoned, kPoisonPage);
        }
        append_tree(request.parents, step);
        for (const uint64_t id : request.node_ids) {
            const int32_t slot = tail_slots[next_tail++];
            step.tail_slots.push_back(slot);
            step.rows.push_back(tail_row(request.tail, request.context, slot, id));
            step.query_ids.push_back(id);
        }
        step.context.push_back(request.context);
        step.node_start.push_back(static_cast<int32_t>(step.tail_slots.size()));
    }
    step.pages.insert(step.pages.end(), kGap, kPoisonPage);
    return step;
}

AttnStep make_attn_step(const AttnStepCase& step, int64_t values_per_slot) {
    CaseRandom random(step.seed);
    std::vector<AttnRequestSpec> requests;
    uint64_t id = 0;
    for (const AttnRequestCase& request : step.requests) {
        AttnRequestSpec spec;
        spec.context = request.context;
        spec.parents = case_tree(random, request.tree, request.nodes, step.deepest);
        spec.context_id = id;
        id += static_cast<uint64_t>(request.context);
        for (int32_t i = 0; i < request.nodes; ++i) spec.node_ids.push_back(id++);
        spec.tail = request.tail;
        spec.climbing = step.climbing;
        requests.push_back(std::move(spec));
    }
    return make_attn_step(requests, step.page_size, step.pages, step.page_starts, values_per_slot,
                          step.seed + 1);
}

AttnTolerance attn_tolerance(kdt_kv_format format) {
    // One rounding to bf16 is at most 2^-8 = 3.9e-3 of the value, 1.7e-3 root mean square over the
    // mantissas; errors of independent roundings add as squares. bf16: P, the partial results, the
    // output: sqrt(3) x 1.7e-3 = 2.9e-3.
    //
    // A row that one key leads has that key's rounding of P in all its values: at worst
    // sqrt(3.9^2 + 2 x 1.7^2) 1e-3 = 4.6e-3, and of 64 values an eighth more or less.
    //
    // Log-sum-exps are of unrounded weights, so off by what scores are: float sums, or up to 2^-11
    // of a score of 14 or so that one product leads, with e4m3 products or keys scaled in f16.
    if (format == KDT_KV_BF16) return {.rel_l2 = 3e-3, .row_rel_l2 = 6e-3, .lse = 1e-4};
    // FP8: P is rounded by 0.7e-3 as two e4m3 values, less in f16, but leading scores are off by
    // some 2e-3: sqrt(2 x 1.7^2 + 0.7^2 + 2^2) 1e-3 = 3.2e-3.
    return {.rel_l2 = 3.5e-3, .row_rel_l2 = 6e-3, .lse = 7e-3};
}

}  // namespace kd
