#include "kernels/attn_verify_gqa/attn_verify_gqa_cuda_cases.h"

#include <cmath>

namespace kd {

namespace {

using enum CaseTree;
using enum CaseTail;

constexpr kdt_kv_format kFormats[] = {KDT_KV_BF16, KDT_KV_FP8};
constexpr const char* kFormatNames[] = {"bf16", "fp8"};
constexpr int32_t kPageSizes[] = {1, 16, 32, 64};

std::vector<AttnRequestCase> edges() {
    return {{0, 1, chain, light},  {1, 3, star, heavy},      {63, 8, random, light},
            {64, 5, star, heavy},  {65, 16, chain, light},   {200, 0, chain, light},
            {0, 9, random, heavy}, {129, 70, random, heavy}, {777, 17, random, light}};
}

/// Every instance: head dims x formats, with a group of its own each.
void add_instances(std::vector<AttnVerifyGqaCudaCase>& cases) {
    struct Heads {
        int32_t heads, kv_heads;
    };
    const Heads groups[] = {{8, 2}, {12, 4}, {5, 1}, {14, 2}, {8, 8}, {24, 2}, {16, 1}, {12, 2}};
    for (const int32_t dim : {64, 96, 128, 256}) {
        for (int32_t f = 0; f < 2; ++f) {
            const Heads heads = groups[cases.size() % 8];
            AttnVerifyGqaCudaCase test;
            test.name = "edges_d" + std::to_string(dim) + "_" + kFormatNames[f] + "_group" +
                        std::to_string(heads.heads / heads.kv_heads);
            test.heads = heads.heads;
            test.kv_heads = heads.kv_heads;
            test.head_dim = dim;
            test.format = kFormats[f];
            test.step.requests = edges();
            test.step.deepest = 30;
            test.step.seed = static_cast<uint32_t>(1000 + cases.size());
            test.step.page_size = kPageSizes[cases.size() % 4];
            test.step.page_starts = cases.size() % 2 == 1;
            test.fused_query = cases.size() % 3 == 1;
            test.joined_kv = cases.size() % 3 == 2;
            test.reduced = true;
            cases.push_back(test);
        }
    }
}

void add_groups(std::vector<AttnVerifyGqaCudaCase>& cases) {
    for (int32_t group = 1; group <= 16; ++group) {
        AttnVerifyGqaCudaCase test;
        test.name = "group_" + std::to_string(group);
        test.heads = group * 2;
        test.kv_heads = 2;
        test.head_dim = group % 4 == 3 ? 96 : 64 << (group % 3);
        test.format = kFormats[group / 2 % 2];
        test.step.requests = edges();
        test.step.deepest = 30;
        test.step.page_size = kPageSizes[group % 4];
        test.step.seed = static_cast<uint32_t>(1100 + group);
        cases.push_back(test);
    }
}

/// Windows shorter than a tree, of a tile, across tiles, longer than the context.
void add_windows(std::vector<AttnVerifyGqaCudaCase>& cases) {
    for (const int32_t window : {1, 2, 7, 63, 64, 65, 128, 300, 5000}) {
        for (int32_t f = 0; f < 2; ++f) {
            AttnVerifyGqaCudaCase test;
            test.name = "window_" + std::to_string(window) + "_" + kFormatNames[f];
            test.heads = 8;
            test.kv_heads = 2;
            test.head_dim = f == 0 ? 128 : 64;
            test.format = kFormats[f];
            test.step.requests = edges();
            test.step.requests.push_back({4200, 12, random, light});
            test.step.requests.push_back({300, 40, chain, heavy});
            test.step.deepest = 40;
            test.step.page_size = kPageSizes[cases.size() % 4];
            test.step.seed = static_cast<uint32_t>(1200 + window);
            test.sliding_window = window;
            test.reduced = f == 0 && (window == 7 || window == 300);
            cases.push_back(test);
        }
    }
}

void add_long_and_batches(std::vector<AttnVerifyGqaCudaCase>& cases) {
    struct Long {
        int32_t context, nodes, heads, kv_heads, dim, format, page_size;
        CaseTail tail;
    };
    const Long tests[] = {
        {4095, 8, 32, 8, 128, 0, 1, light},   {4096, 33, 32, 8, 128, 1, 64, heavy},
        {4097, 2, 16, 8, 256, 0, 16, light},  {16384, 32, 32, 8, 128, 0, 1, light},
        {65536, 8, 32, 8, 128, 0, 1, light},  {65536, 16, 28, 4, 128, 1, 32, heavy},
        {65537, 4, 16, 2, 64, 0, 64, light},  {131072, 4, 8, 1, 96, 1, 1, light},
        {262144, 2, 8, 1, 128, 0, 64, light},
    };
    for (const Long& of : tests) {
        AttnVerifyGqaCudaCase test;
        test.name = "context_" + std::to_string(of.context) + "_t" + std::to_string(of.nodes) +
                    "_d" + std::to_string(of.dim) + "_" + kFormatNames[of.format];
        test.heads = of.heads;
        test.kv_heads = of.kv_heads;
        test.head_dim = of.dim;
        test.format = kFormats[of.format];
        test.step.requests = {{of.context, of.nodes, random, of.tail}};
        test.step.page_size = of.page_size;
        test.step.deepest = 16;
        test.step.seed = static_cast<uint32_t>(1300 + cases.size());
        cases.push_back(test);
    }
    for (const int32_t requests : {2, 8, 64}) {
        CaseRandom sizes(static_cast<uint32_t>(1400 + requests));
        AttnVerifyGqaCudaCase test;
        test.name = "batch_" + std::to_string(requests);
        for (int32_t r = 0; r < requests; ++r) {
            test.step.requests.push_back({sizes.below(r % 7 == 0 ? 5000 : 700), sizes.below(18),
                                          random, r % 2 == 0 ? light : heavy});
        }
        test.step.page_size = kPageSizes[requests % 3];
        test.step.page_starts = requests == 64;
        test.step.seed = static_cast<uint32_t>(1410 + requests);
        cases.push_back(test);
    }
    AttnVerifyGqaCudaCase nodes_of_128;
    nodes_of_128.name = "nodes_128";
    nodes_of_128.step.requests = {{900, 128, random, heavy}, {70, 127, random, light}};
    nodes_of_128.step.deepest = 40;
    nodes_of_128.step.seed = 1420;
    cases.push_back(nodes_of_128);
}

void add_far_and_capped(std::vector<AttnVerifyGqaCudaCase>& cases) {
    for (int32_t f = 0; f < 2; ++f) {
        AttnVerifyGqaCudaCase far;
        far.name = std::string("far_slots_") + kFormatNames[f];
        far.format = kFormats[f];
        far.step = {.requests = {{700, 9, random, light}, {300, 4, random, heavy}},
                    .page_size = f == 0 ? 1 : 64,
                    .pages = CasePages::far,
                    .seed = static_cast<uint32_t>(1500 + f)};
        cases.push_back(far);
        AttnVerifyGqaCudaCase capped;
        capped.name = std::string("logit_cap_") + kFormatNames[f];
        capped.format = kFormats[f];
        capped.step = {.requests = {{700, 9, random, light}, {65, 4, random, heavy}},
                       .page_size = 16,
                       .seed = static_cast<uint32_t>(1510 + f)};
        capped.logit_cap = f == 1 ? 5.0f : 30.0f;
        capped.sliding_window = f == 1 ? 200 : 0;
        capped.reduced = true;
        cases.push_back(capped);
    }
}

/// Units of many tiles, all along which references move.
void add_climbing(std::vector<AttnVerifyGqaCudaCase>& cases) {
    for (const int32_t dim : {64, 96, 128, 256}) {
        for (int32_t f = 0; f < 2; ++f) {
            AttnVerifyGqaCudaCase test;
            test.name = "climbing_d" + std::to_string(dim) + "_" + kFormatNames[f];
            test.head_dim = dim;
            test.format = kFormats[f];
            test.step = {.requests = {{2000, 20, random, light}},
                         .page_size = 16,
                         .climbing = true,
                         .seed = static_cast<uint32_t>(1630 + dim + f)};
            test.splits = 1;
            cases.push_back(test);
        }
    }
}

/// Everything at random.
void add_random(std::vector<AttnVerifyGqaCudaCase>& cases) {
    constexpr int32_t kDims[] = {64, 96, 128, 256};
    for (uint32_t seed = 1600; seed < 1624; ++seed) {
        CaseRandom draw(seed);
        AttnVerifyGqaCudaCase test;
        test.name = "random_" + std::to_string(seed);
        test.kv_heads = 1 << draw.below(4);
        test.heads = test.kv_heads * (1 + draw.below(test.kv_heads == 8 ? 8 : 16));
        test.head_dim = kDims[draw.below(4)];
        test.format = kFormats[draw.below(2)];
        const int32_t requests = 1 + draw.below(6);
        for (int32_t r = 0; r < requests; ++r) {
            test.step.requests.push_back({draw.below(3) == 0 ? draw.below(9000) : draw.below(300),
                                          draw.below(4) == 0 ? draw.below(129) : draw.below(20),
                                          static_cast<CaseTree>(draw.below(3)),
                                          draw.below(2) == 0 ? light : heavy});
        }
        test.step.page_size = kPageSizes[draw.below(4)];
        test.step.page_starts = draw.below(2) == 0;
        test.step.deepest = 4 + draw.below(60);
        test.step.seed = seed;
        test.sliding_window = draw.below(3) == 0 ? 1 + draw.below(400) : 0;
        test.fused_query = draw.below(2) == 0;
        test.joined_kv = draw.below(2) == 0;
        cases.push_back(test);
    }
}

/// Deterministic mode: pairs in which one consumer's unit has many more tiles than the other's, and
/// more pairs after them in the same block (132 multiprocessors): a unit alone, a shorter last
/// segment, paths.
void add_uneven_pairs(std::vector<AttnVerifyGqaCudaCase>& cases) {
    struct Uneven {
        int32_t requests, context, nodes, kv_heads, dim, format;
        CaseTree tree;
    };
    const Uneven tests[] = {{1, 7800, 9, 32, 96, 0, chain},    {1, 7800, 9, 32, 96, 1, chain},
                            {1, 7800, 9, 32, 128, 0, chain},   {1, 7800, 9, 32, 128, 1, chain},
                            {2, 69206, 48, 8, 128, 0, random}, {1, 26124, 63, 32, 128, 0, random}};
    for (const Uneven& of : tests) {
        AttnVerifyGqaCudaCase test;
        test.name = "uneven_pairs_" + std::to_string(of.context) + "_d" + std::to_string(of.dim) +
                    "_" + kFormatNames[of.format];
        test.heads = 32;
        test.kv_heads = of.kv_heads;
        test.head_dim = of.dim;
        test.format = kFormats[of.format];
        test.step.requests.assign(static_cast<size_t>(of.requests),
                                  {of.context, of.nodes, of.tree, light});
        test.step.page_size = 16;
        test.step.deepest = 16;
        test.step.seed = 1700;
        cases.push_back(test);
    }
}

/// More pairs of units than a device has multiprocessors, so that blocks take several; and one so
/// long that a ring of stages goes round.
void add_many_units(std::vector<AttnVerifyGqaCudaCase>& cases) {
    for (const int32_t dim : {64, 96, 128, 256}) {
        for (int32_t f = 0; f < 2; ++f) {
            AttnVerifyGqaCudaCase test;
            test.name = "many_units_d" + std::to_string(dim) + "_" + kFormatNames[f];
            test.heads = 64;
            test.kv_heads = 4;
            test.head_dim = dim;
            test.format = kFormats[f];
            for (int32_t r = 0; r < 50; ++r) test.step.requests.push_back({r, 5, chain, heavy});
            test.step.requests.push_back({1400, 5, chain, light});
            test.step.seed = static_cast<uint32_t>(1060 + dim + f);
            test.splits = 1;
            test.reduced = true;
            cases.push_back(test);
        }
    }
}

}  // namespace

std::span<const AttnVerifyGqaCudaCase> attn_verify_gqa_cuda_cases() {
    static const std::vector<AttnVerifyGqaCudaCase> cases = [] {
        std::vector<AttnVerifyGqaCudaCase> all;
        add_instances(all);
        add_groups(all);
        add_windows(all);
        add_long_and_batches(all);
        add_far_and_capped(all);
        add_climbing(all);
        add_random(all);
        add_many_units(all);
        add_uneven_pairs(all);
        return all;
    }();
    return cases;
}

AttnVerifyGqaCudaInputs make_attn_verify_gqa_cuda_inputs(const AttnVerifyGqaCudaCase& test) {
    return make_attn_verify_gqa_cuda_inputs(
        test, make_attn_step(test.step, int64_t{test.kv_heads} * test.head_dim));
}

AttnVerifyGqaCudaInputs make_attn_verify_gqa_cuda_inputs(const AttnVerifyGqaCudaCase& test,
                                                         AttnStep step) {
    AttnVerifyGqaCudaInputs in;
    in.step = std::move(step);
    in.seed = test.step.seed;
    in.shape.struct_bytes = sizeof in.shape;
    in.shape.kind = KDT_ATTN_GQA;
    in.shape.heads = test.heads;
    in.shape.kv_heads = test.kv_heads;
    in.shape.head_dim = test.head_dim;
    in.shape.kv_format = test.format;
    in.shape.splits = test.splits;
    in.shape.sliding_window = test.sliding_window;

    const int64_t dim = test.head_dim;
    const int64_t value_bytes = test.format == KDT_KV_BF16 ? 2 : 1;
    kdt_attn_gqa_tensors& tensors = in.tensors;
    tensors.struct_bytes = sizeof tensors;
    // Of values in -1..1, a product has the variance 1/9: scores of a standard deviation of 1.5.
    tensors.scale = 4.5f / std::sqrt(static_cast<float>(test.head_dim));
    tensors.logit_cap = test.logit_cap;
    tensors.k_scale = test.format == KDT_KV_FP8 ? 0.6f : 1.0f;
    tensors.v_scale = test.format == KDT_KV_FP8 ? 0.7f : 1.0f;
    tensors.q_head_stride = dim;
    tensors.q_node_stride = (test.heads + (test.fused_query ? 2 * test.kv_heads : 0)) * dim;
    in.query_bytes = 2 * std::max(in.step.nodes(), 1) * tensors.q_node_stride;
    const int64_t row = test.kv_heads * dim;
    tensors.kv_head_stride = test.joined_kv ? 2 * dim : dim;
    tensors.kv_slot_stride = test.joined_kv ? 2 * row : row;
    in.v_offset_bytes = (test.joined_kv ? dim : in.step.slots * row) * value_bytes;
    in.kv_bytes = 2 * in.step.slots * row * value_bytes;
    return in;
}

void fill_attn_verify_gqa_cuda(const AttnVerifyGqaCudaInputs& inputs, std::byte* query,
                               std::byte* kv) {
    const kdt_attn_shape& shape = inputs.shape;
    const kdt_attn_gqa_tensors& tensors = inputs.tensors;
    const auto format = static_cast<kdt_kv_format>(shape.kv_format);
    const int64_t value_bytes = format == KDT_KV_BF16 ? 2 : 1;
    for (const CaseRow& row : inputs.step.rows) {
        for (int32_t head = 0; head < shape.kv_heads; ++head) {
            std::byte* k = kv + value_bytes * (row.slot * tensors.kv_slot_stride +
                                               head * tensors.kv_head_stride);
            for (int32_t i = 0; i < shape.head_dim; ++i) {
                write_gqa_value(format, inputs.seed, CaseStream::key, tensors.scale,
                                tensors.k_scale, row, head, shape.head_dim, i, k);
                write_gqa_value(format, inputs.seed, CaseStream::value, tensors.scale,
                                tensors.v_scale, row, head, shape.head_dim, i,
                                k + inputs.v_offset_bytes);
            }
        }
    }
    for (int32_t node = 0; node < inputs.step.nodes(); ++node) {
        const uint64_t id = inputs.step.query_ids[static_cast<size_t>(node)];
        for (int32_t head = 0; head < shape.heads; ++head) {
            std::byte* q =
                query + 2 * (node * tensors.q_node_stride + head * tensors.q_head_stride);
            for (int32_t i = 0; i < shape.head_dim; ++i) {
                put_word(q + 2 * i, query_bits(inputs.seed, id, head, shape.head_dim, i));
            }
        }
    }
}

}  // namespace kd
