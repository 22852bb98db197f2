#include "kernels/attn_verify_gqa/attn_verify_gqa_cases.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/attn_verify_gqa/attn_verify_gqa_path.h"
#include "kernels/cases/random.h"

namespace kd {

std::span<const AttnVerifyGqaCase> attn_verify_gqa_cases() {
    using enum DType;
    static const std::vector<AttnVerifyGqaCase> cases = {
        {"smol_plain", 9, 3, 64, f16, {{300, 1, false}}, 1},
        {"smol_tree", 9, 3, 64, f16, {{250, 8, true}}, 2},
        {"smol_first_tokens", 9, 3, 64, f16, {{0, 1, false}}, 3},
        {"smol_prefill", 9, 3, 64, f16, {{0, 70, false}}, 4},
        {"smol_chunk", 9, 3, 64, f32, {{100, 33, false}}, 5},
        {"batch",
         9,
         3,
         64,
         f16,
         {{63, 4, true}, {0, 20, false}, {64, 1, true}, {130, 17, true}},
         6},
        {"largest_tree", 4, 2, 32, f16, {{60, 128, true}}, 7},
        {"one_head_each", 4, 4, 128, f16, {{65, 3, true}}, 8},
        {"one_kv_head", 8, 1, 72, f32, {{128, 2, true}}, 9},
        {"widest", 2, 1, 256, f16, {{10, 5, true}}, 10},
        {"narrowest", 2, 2, 8, f16, {{127, 2, true}}, 11},
        {"openllama_tree", 4, 4, 100, f16, {{130, 21, true}}, 16},
        {"openllama_f32", 4, 2, 100, f32, {{60, 9, false}}, 17},
        {"four_elements", 2, 1, 4, f16, {{70, 6, true}}, 18},
        {"largest_group", 64, 1, 12, f16, {{70, 5, true}}, 19},
        {"tree_of_many_paths", 9, 3, 64, f16, {{40, 128, true}}, 20},
        {"group_of_2", 4, 2, 96, f16, {{129, 7, true}, {3, 11, false}}, 21},
        {"group_of_4", 8, 2, 64, f32, {{191, 8, true}}, 22},
        {"group_of_5", 5, 1, 80, f16, {{71, 3, true}, {200, 1, true}}, 23},
        {"group_of_6", 12, 2, 112, f16, {{64, 5, true}}, 24},
        {"group_of_7", 14, 2, 64, f16, {{201, 4, true}, {17, 30, false}}, 25},
        {"group_of_8", 16, 2, 128, f16, {{133, 6, true}}, 26},
        {"long", 9, 3, 64, f16, {{1024, 2, true}}, 12},
        {"smol_block", 9, 3, 64, f16, {{300, 8, false, true}}, 13},
        {"block_alone", 4, 2, 32, f32, {{0, 7, false, true}}, 14},
        {"blocks",
         6,
         2,
         64,
         f16,
         {{60, 16, false, true}, {62, 1, false, true}, {70, 5, false}, {130, 64, false, true}},
         15},
    };
    return cases;
}

namespace {

/// A random tree: node n hangs below any earlier node, more often below the last one.
void make_tree(CaseRandom& random, int32_t rows, std::vector<int32_t>& depth,
               std::vector<uint64_t>& ancestors) {
    depth.assign(static_cast<size_t>(rows), 0);
    ancestors.assign(static_cast<size_t>(rows) * kAncestorWords, 0);
    for (int32_t node = 0; node < rows; ++node) {
        uint64_t* own = &ancestors[static_cast<size_t>(node) * kAncestorWords];
        if (node > 0) {
            const int32_t parent = random.below(2) == 0 ? node - 1 : random.below(node);
            depth[static_cast<size_t>(node)] = depth[static_cast<size_t>(parent)] + 1;
            std::copy_n(&ancestors[static_cast<size_t>(parent) * kAncestorWords], kAncestorWords,
                        own);
        }
        own[node / 64] |= uint64_t{1} << (node % 64);
    }
}

void fill_cache(CaseRandom& random, DType type, std::vector<std::byte>& cache) {
    for (size_t i = 0; i < cache.size(); i += static_cast<size_t>(bytes_of(type, 1))) {
        const float value = random.value();
        const uint16_t half = f32_to_f16(value);
        if (type == DType::f16) {
            std::memcpy(&cache[i], &half, sizeof half);
        } else {
            std::memcpy(&cache[i], &value, sizeof value);
        }
    }
}

}  // namespace

AttnVerifyGqaInputs make_attn_verify_gqa_inputs(const AttnVerifyGqaCase& test) {
    CaseRandom random(test.seed);
    AttnVerifyGqaInputs in;
    int32_t keys = 0;
    for (const auto& segment : test.segments) keys += segment.context + segment.rows;
    // Every key has its own slot, scattered over a pool of one and a half times the keys.
    std::vector<int32_t> pool(static_cast<size_t>(keys + keys / 2 + 1));
    std::iota(pool.begin(), pool.end(), 0);
    for (size_t i = pool.size() - 1; i > 0; --i) {
        std::swap(pool[i], pool[static_cast<size_t>(random.below(static_cast<int32_t>(i) + 1))]);
    }
    auto take = [&pool](int32_t count) {
        const std::vector<int32_t> taken(pool.end() - count, pool.end());
        pool.resize(pool.size() - static_cast<size_t>(count));
        return taken;
    };
    KvView& kv = in.params.kv;
    kv = {.type = test.cache,
          .layers = 2,
          .slots = static_cast<int64_t>(pool.size()),
          .kv_heads = test.kv_heads,
          .head_dim = test.head_dim};
    for (const auto& segment : test.segments) {
        in.slots.push_back(take(segment.context));
        in.slots.push_back(take(segment.rows));
        in.depth.emplace_back();
        in.ancestors.emplace_back();
        if (segment.tree) make_tree(random, segment.rows, in.depth.back(), in.ancestors.back());
    }
    for (size_t i = 0; i < test.segments.size(); ++i) {
        in.segments.push_back({.first_row = static_cast<int32_t>(in.rows),
                               .rows = test.segments[i].rows,
                               .context = in.slots[2 * i],
                               .slots = in.slots[2 * i + 1],
                               .depth = in.depth[i],
                               .ancestors = in.ancestors[i],
                               .bidirectional = test.segments[i].bidirectional});
        in.rows += test.segments[i].rows;
        for (int32_t row = 0; row < test.segments[i].rows; ++row) {
            in.max_keys = std::max(in.max_keys, path_keys(in.segments.back(), row));
        }
    }
    in.cache.resize(static_cast<size_t>(kv.bytes()));
    fill_cache(random, test.cache, in.cache);
    kv.data = in.cache.data();
    in.params.heads = test.heads;
    in.params.kv_heads = test.kv_heads;
    in.params.head_dim = test.head_dim;
    in.params.scale = 4.0f / std::sqrt(static_cast<float>(test.head_dim));
    in.params.q_stride = int64_t{test.heads + 2 * test.kv_heads} * test.head_dim;
    in.q = random.values(in.rows * in.params.q_stride);
    in.params.q = in.q.data();
    in.params.segments = in.segments;
    in.params.layer = 1;
    return in;
}

double attn_verify_gqa_tolerance(const AttnVerifyGqaCase& test) {
    // A score is at most scale * head_dim = 4 sqrt(head_dim) and takes head_dim + 1 roundings;
    // typical sums are a fourth of that. An error e of all scores moves the result by at most 2 e;
    // the weighted sum takes 64 + blocks roundings of values below 1, the exponentials a few.
    const double dim = test.head_dim;
    double blocks = 0;
    for (const auto& segment : test.segments) {
        blocks = std::max(blocks, (segment.context + segment.rows) / 64.0 + 1);
    }
    return (2 * std::sqrt(dim) * (dim + 1) + 64 + blocks + 16) * 0x1p-24;
}

int64_t attn_verify_gqa_bytes(const AttnVerifyGqaCase& test) {
    int64_t keys = 0;
    int64_t rows = 0;
    for (const auto& segment : test.segments) {
        keys += segment.context + segment.rows;
        rows += segment.rows;
    }
    return 2 * keys * bytes_of(test.cache, int64_t{test.kv_heads} * test.head_dim) +
           rows * test.heads * test.head_dim * 8;
}

double attn_verify_gqa_flops(const AttnVerifyGqaCase& test) {
    double pairs = 0;
    for (const auto& segment : test.segments) {
        const double own = segment.bidirectional ? segment.rows : (segment.rows + 1) / 2.0;
        pairs += double{1} * segment.rows * (segment.context + own);
    }
    return 4.0 * pairs * test.heads * test.head_dim;
}

}  // namespace kd
