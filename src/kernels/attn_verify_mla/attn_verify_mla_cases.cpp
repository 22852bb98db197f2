#include "kernels/attn_verify_mla/attn_verify_mla_cases.h"

#include <cmath>

namespace kd {

namespace {

using enum CaseTree;
using enum CaseTail;

constexpr kdt_kv_format kFormats[] = {KDT_KV_BF16, KDT_KV_FP8, KDT_KV_FP8_MLA656};
constexpr const char* kFormatNames[] = {"bf16", "fp8", "fp8_656"};
constexpr int32_t kPageSizes[] = {1, 16, 32, 64};

/// Contexts at the edges of a key tile, trees of all kinds, one request without nodes.
std::vector<AttnRequestCase> edges() {
    return {{0, 1, chain, light},  {1, 3, star, heavy},     {63, 8, random, light},
            {64, 5, star, heavy},  {65, 16, chain, light},  {200, 0, chain, light},
            {0, 9, random, heavy}, {129, 33, random, heavy}};
}

/// Every instance: head counts x formats.
void add_instances(std::vector<AttnVerifyMlaCase>& cases) {
    for (const int32_t heads : {8, 12, 16, 32, 64, 128}) {
        for (int32_t f = 0; f < 3; ++f) {
            AttnVerifyMlaCase test;
            test.name = "edges_h" + std::to_string(heads) + "_" + kFormatNames[f];
            test.heads = heads;
            test.format = kFormats[f];
            test.step.requests = edges();
            test.step.seed = static_cast<uint32_t>(100 + heads + f);
            test.step.page_size = kPageSizes[cases.size() % 4];
            test.step.page_starts = cases.size() % 2 == 1;
            test.fused_query = cases.size() % 3 == 1;
            test.slot_padding = cases.size() % 5 == 2 ? 128 : 0;
            test.reduced = heads == 8 || heads == 12;
            cases.push_back(test);
        }
    }
    for (const int32_t heads : {1, 3, 20, 100}) {
        AttnVerifyMlaCase test;
        test.name = "edges_h" + std::to_string(heads);
        test.heads = heads;
        test.step.requests = edges();
        test.step.seed = static_cast<uint32_t>(140 + heads);
        test.step.page_size = kPageSizes[heads % 4];
        cases.push_back(test);
    }
}

/// Around 4096 keys, every page size.
void add_boundaries(std::vector<AttnVerifyMlaCase>& cases) {
    for (const int32_t page_size : kPageSizes) {
        AttnVerifyMlaCase test;
        test.name = "around_4096_p" + std::to_string(page_size);
        test.heads = page_size == 16 ? 16 : 8;
        test.step.requests = {{4095, 1, chain, light},
                              {4096, 8, random, heavy},
                              {4097, 32, random, light},
                              {page_size * 3, 4, random, light},
                              {page_size * 65 - 1, 2, chain, heavy}};
        test.step.page_size = page_size;
        test.step.seed = static_cast<uint32_t>(200 + page_size);
        cases.push_back(test);
    }
    AttnVerifyMlaCase contiguous;
    contiguous.name = "contiguous_pages";
    contiguous.step = {.requests = {{1000, 8, random, light}, {333, 3, random, heavy}},
                       .page_size = 64,
                       .pages = CasePages::contiguous,
                       .seed = 210};
    cases.push_back(contiguous);
}

/// One request of every tree size at which padding changes.
void add_tree_sizes(std::vector<AttnVerifyMlaCase>& cases) {
    for (const int32_t nodes : {1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128}) {
        AttnVerifyMlaCase test;
        test.name = "nodes_" + std::to_string(nodes);
        test.step.requests = {
            {1000 + nodes, nodes, nodes == 9 ? star : random, nodes % 2 == 0 ? heavy : light}};
        test.step.page_size = nodes % 2 == 0 ? 1 : 16;
        test.step.deepest = 20;
        test.step.seed = static_cast<uint32_t>(300 + nodes);
        cases.push_back(test);
    }
    AttnVerifyMlaCase chain_of_128;
    chain_of_128.name = "chain_of_128";
    chain_of_128.step = {.requests = {{500, 128, chain, light}}, .seed = 340};
    cases.push_back(chain_of_128);
}

void add_long(std::vector<AttnVerifyMlaCase>& cases) {
    struct Long {
        int32_t context, nodes, heads, format, page_size;
        CaseTail tail;
    };
    const Long tests[] = {
        {16384, 8, 8, 0, 1, light},   {16384, 32, 8, 1, 64, light}, {16000, 16, 16, 2, 32, light},
        {65536, 16, 8, 0, 1, heavy},  {65536, 8, 64, 1, 1, light},  {65537, 3, 128, 2, 64, light},
        {65536, 32, 64, 0, 1, light}, {131072, 8, 8, 0, 1, light},  {262144, 4, 8, 0, 1, light},
    };
    for (const Long& of : tests) {
        AttnVerifyMlaCase test;
        test.name = "long_" + std::to_string(of.context) + "_h" + std::to_string(of.heads) + "_t" +
                    std::to_string(of.nodes) + "_" + kFormatNames[of.format];
        test.heads = of.heads;
        test.format = kFormats[of.format];
        test.step.requests = {{of.context, of.nodes, random, of.tail}};
        test.step.page_size = of.page_size;
        test.step.deepest = 16;
        test.step.seed = static_cast<uint32_t>(400 + cases.size());
        cases.push_back(test);
    }
}

void add_batches(std::vector<AttnVerifyMlaCase>& cases) {
    for (const int32_t requests : {2, 8, 17, 64}) {
        CaseRandom random_sizes(static_cast<uint32_t>(500 + requests));
        AttnVerifyMlaCase test;
        test.name = "batch_" + std::to_string(requests);
        test.heads = requests == 17 ? 16 : 8;
        for (int32_t r = 0; r < requests; ++r) {
            test.step.requests.push_back({random_sizes.below(r % 7 == 0 ? 5000 : 700),
                                          random_sizes.below(18), random,
                                          r % 2 == 0 ? light : heavy});
        }
        test.step.page_size = kPageSizes[requests % 3];
        test.step.page_starts = requests == 64;
        test.step.seed = static_cast<uint32_t>(510 + requests);
        cases.push_back(test);
    }
    AttnVerifyMlaCase full;
    full.name = "batch_64_of_128_nodes";
    full.step.requests.assign(64, {70, 128, random, heavy});
    full.step.deepest = 30;
    full.step.seed = 530;
    cases.push_back(full);
}

void add_far_and_capped(std::vector<AttnVerifyMlaCase>& cases) {
    for (int32_t f = 0; f < 3; ++f) {
        AttnVerifyMlaCase far;
        far.name = std::string("far_slots_") + kFormatNames[f];
        far.format = kFormats[f];
        far.step = {.requests = {{700, 9, random, light}, {300, 4, random, heavy}},
                    .page_size = f == 0 ? 1 : 64,
                    .pages = CasePages::far,
                    .seed = static_cast<uint32_t>(600 + f)};
        cases.push_back(far);
        AttnVerifyMlaCase capped;
        capped.name = std::string("logit_cap_") + kFormatNames[f];
        capped.format = kFormats[f];
        capped.step = {.requests = {{700, 9, random, light}, {65, 4, random, heavy}},
                       .page_size = 16,
                       .seed = static_cast<uint32_t>(610 + f)};
        capped.logit_cap = f == 1 ? 5.0f : 30.0f;
        capped.reduced = true;
        cases.push_back(capped);
    }
}

/// FP8 steps whose capacities choose each of the loops for few rows: up to 8, 16 and 32.
void add_few_rows(std::vector<AttnVerifyMlaCase>& cases) {
    for (int32_t f = 1; f < 3; ++f) {
        for (int32_t nodes = 1; nodes <= 4; ++nodes) {
            AttnVerifyMlaCase test;
            test.name = "few_rows_" + std::to_string(8 * nodes) + "_" + kFormatNames[f];
            test.format = kFormats[f];
            test.step = {
                .requests = {{1000 * nodes + 3, nodes, random, nodes % 2 == 0 ? heavy : light}},
                .page_size = nodes % 2 == 0 ? 1 : 16,
                .seed = static_cast<uint32_t>(800 + 10 * f + nodes)};
            test.fused_query = nodes == 3;
            test.reduced = nodes % 2 == 0;
            cases.push_back(test);
            test.name += "_capped";
            test.logit_cap = f == 1 ? 5.0f : 30.0f;
            test.reduced = false;
            cases.push_back(test);
        }
        // Rows of several nodes and parts of a node's heads in groups of 8 rows.
        struct Heads {
            int32_t heads, nodes, page_size;
        };
        for (const Heads& of :
             {Heads{1, 32, 64}, {3, 5, 32}, {12, 2, 64}, {16, 1, 32}, {32, 1, 1}}) {
            AttnVerifyMlaCase test;
            test.name = "few_rows_h" + std::to_string(of.heads) + "_" + kFormatNames[f];
            test.heads = of.heads;
            test.format = kFormats[f];
            test.step = {.requests = {{1100 + of.heads, of.nodes, random, heavy}},
                         .page_size = of.page_size,
                         .page_starts = of.nodes == 1,
                         .seed = static_cast<uint32_t>(880 + of.heads + f)};
            test.slot_padding = 16 * f;
            test.fused_query = of.heads > 12;
            cases.push_back(test);
        }
        AttnVerifyMlaCase ragged;
        ragged.name = std::string("few_rows_ragged_") + kFormatNames[f];
        ragged.format = kFormats[f];
        ragged.step = {.requests = {{129, 1, chain, heavy},
                                    {0, 2, star, light},
                                    {64, 0, chain, light},
                                    {2000, 1, chain, light}},
                       .seed = static_cast<uint32_t>(860 + f)};
        cases.push_back(ragged);

        // Units of several steps: of two tiles, and of one in the end; once round the ring.
        AttnVerifyMlaCase steps;
        steps.name = std::string("few_rows_steps_") + kFormatNames[f];
        steps.format = kFormats[f];
        steps.step = {
            .requests = {{2000, 1, chain, heavy}, {1500, 2, random, light}, {129, 1, chain, heavy}},
            .seed = static_cast<uint32_t>(870 + f)};
        steps.splits = 1;
        steps.reduced = true;
        cases.push_back(steps);
        steps.name = std::string("few_rows_16_steps_") + kFormatNames[f];
        steps.step.requests = {{2040, 2, random, heavy}};
        cases.push_back(steps);
        steps.name = std::string("few_rows_long_") + kFormatNames[f];
        steps.step.requests = {{40000, 4, random, heavy}};
        steps.splits = 0;
        steps.reduced = false;
        cases.push_back(steps);
        // More units than blocks: 8 and 16 rows by turns, and the same rows again; first 16 rows
        // before 8 in a block, then 8 before 16, then 8 before 64.
        steps.name = std::string("few_rows_many_units_") + kFormatNames[f];
        steps.step.requests = {
            {9000, 2, random, heavy}, {9100, 1, chain, light}, {9200, 1, chain, heavy}};
        steps.splits = 100;
        cases.push_back(steps);
        steps.name = std::string("few_rows_then_16_") + kFormatNames[f];
        steps.step.requests = {{9000, 1, chain, heavy}, {9100, 2, random, heavy}};
        cases.push_back(steps);
        steps.name = std::string("few_rows_then_64_") + kFormatNames[f];
        steps.step.requests = {{9000, 1, chain, heavy}, {9100, 8, random, heavy}};
        cases.push_back(steps);
    }
}

/// bf16 steps of at most 64 rows, whose units two blocks share in deterministic mode.
void add_shared_units(std::vector<AttnVerifyMlaCase>& cases) {
    struct Shared {
        const char* name;
        int32_t heads;
        std::vector<AttnRequestCase> requests;
        int32_t splits;
        bool reduced;
    };
    const Shared tests[] = {
        // More runs than pairs of blocks, one segment each, so that units with other rows follow:
        // 16 and 8 rows; 8 and 48, whose P each block makes half of.
        {"many",
         8,
         {{9000, 2, random, heavy}, {9100, 1, chain, light}, {9200, 1, chain, heavy}},
         100,
         true},
        {"wide", 8, {{9000, 1, chain, heavy}, {9100, 6, random, heavy}}, 100, true},
        // Runs of several segments.
        {"runs", 8, {{9000, 3, random, heavy}, {9100, 4, random, heavy}}, 0, false},
        {"full", 8, {{20000, 8, random, heavy}}, 0, false},
        {"h12", 12, {{5000, 2, star, heavy}, {0, 3, random, light}}, 0, false},
        {"h16", 16, {{3000, 4, random, heavy}}, 0, false},
        {"h64", 64, {{4000, 1, chain, heavy}}, 0, false},
        {"h3", 3, {{2500, 7, random, heavy}, {47, 9, chain, heavy}}, 100, false},
    };
    for (const Shared& of : tests) {
        AttnVerifyMlaCase test;
        test.name = std::string("shared_units_") + of.name;
        test.heads = of.heads;
        test.step.requests = of.requests;
        test.step.page_size = kPageSizes[cases.size() % 4];
        test.step.seed = static_cast<uint32_t>(950 + cases.size());
        test.splits = of.splits;
        test.fused_query = of.heads == 16;
        test.reduced = of.reduced;
        cases.push_back(test);
        if (of.heads != 12 && of.heads != 16) continue;
        test.name += "_capped";
        test.logit_cap = 30.0f;
        cases.push_back(test);
    }
}

/// Units of many tiles, all along which references move.
void add_climbing(std::vector<AttnVerifyMlaCase>& cases) {
    for (int32_t f = 0; f < 3; ++f) {
        for (const int32_t nodes : {2, 20}) {
            AttnVerifyMlaCase test;
            test.name = "climbing_t" + std::to_string(nodes) + "_" + kFormatNames[f];
            test.format = kFormats[f];
            test.step = {.requests = {{2000, nodes, random, light}},
                         .page_size = 16,
                         .climbing = true,
                         .seed = static_cast<uint32_t>(900 + 10 * f + nodes)};
            test.splits = 1;
            cases.push_back(test);
        }
    }
}

/// Everything at random.
void add_random(std::vector<AttnVerifyMlaCase>& cases) {
    for (uint32_t seed = 700; seed < 724; ++seed) {
        CaseRandom draw(seed);
        AttnVerifyMlaCase test;
        test.name = "random_" + std::to_string(seed);
        test.heads = draw.below(3) == 0 ? 1 + draw.below(128) : 8 << draw.below(3);
        const int32_t f = draw.below(3);
        test.format = kFormats[f];
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
        test.fused_query = draw.below(2) == 0;
        test.slot_padding = draw.below(2) * 16;
        cases.push_back(test);
    }
}

/// More units than a device has multiprocessors, so that blocks take several, of other rows each;
/// and one so long that a ring of stages goes round.
void add_many_units(std::vector<AttnVerifyMlaCase>& cases) {
    for (int32_t f = 0; f < 3; ++f) {
        AttnVerifyMlaCase test;
        test.name = std::string("many_units_") + kFormatNames[f];
        test.heads = 128;
        test.format = kFormats[f];
        for (int32_t r = 0; r < 50; ++r) test.step.requests.push_back({r, 2, chain, heavy});
        test.step.requests.push_back({1400, 1, chain, light});
        test.step.seed = static_cast<uint32_t>(160 + f);
        test.splits = 1;
        test.reduced = true;
        cases.push_back(test);
    }
    // 1,408 units of a tile or two: each of 132 blocks takes ten, so that a ring of units goes
    // round, too.
    AttnVerifyMlaCase units;
    units.name = "many_short_units";
    units.heads = 128;
    for (int32_t r = 0; r < 64; ++r) units.step.requests.push_back({r % 40, 11, chain, heavy});
    units.step.seed = 163;
    units.splits = 1;
    cases.push_back(units);
}

}  // namespace

std::span<const AttnVerifyMlaCase> attn_verify_mla_cases() {
    static const std::vector<AttnVerifyMlaCase> cases = [] {
        std::vector<AttnVerifyMlaCase> all;
        add_instances(all);
        add_boundaries(all);
        add_tree_sizes(all);
        add_long(all);
        add_batches(all);
        add_far_and_capped(all);
        add_few_rows(all);
        add_shared_units(all);
        add_climbing(all);
        add_random(all);
        add_many_units(all);
        return all;
    }();
    return cases;
}

AttnVerifyMlaInputs make_attn_verify_mla_inputs(const AttnVerifyMlaCase& test) {
    return make_attn_verify_mla_inputs(test, make_attn_step(test.step, 576));
}

AttnVerifyMlaInputs make_attn_verify_mla_inputs(const AttnVerifyMlaCase& test, AttnStep step) {
    AttnVerifyMlaInputs in;
    in.step = std::move(step);
    in.seed = test.step.seed;
    in.shape.struct_bytes = sizeof in.shape;
    in.shape.kind = KDT_ATTN_MLA;
    in.shape.heads = test.heads;
    in.shape.kv_heads = 1;
    in.shape.head_dim = 576;
    in.shape.kv_format = test.format;
    in.shape.splits = test.splits;

    kdt_attn_mla_tensors& tensors = in.tensors;
    tensors.struct_bytes = sizeof tensors;
    // Of values in -1..1, a product has the variance 1/9: scores of a standard deviation of 1.5.
    tensors.scale = 4.5f / std::sqrt(576.0f);
    tensors.logit_cap = test.logit_cap;
    tensors.kv_scale = test.format == KDT_KV_FP8 ? 0.6f : 1.0f;
    const int64_t nodes = std::max(in.step.nodes(), 1);
    if (test.fused_query) {
        tensors.q_latent_head_stride = tensors.q_rope_head_stride = 576 + 16;
        tensors.q_latent_node_stride = tensors.q_rope_node_stride = (test.heads + 1) * (576 + 16);
        in.rope_offset_bytes = 2 * 512;
        in.query_bytes = 2 * nodes * tensors.q_latent_node_stride;
    } else {
        tensors.q_latent_head_stride = 512;
        tensors.q_latent_node_stride = test.heads * 512;
        tensors.q_rope_head_stride = 64;
        tensors.q_rope_node_stride = test.heads * 64;
        in.rope_offset_bytes = 2 * nodes * tensors.q_latent_node_stride;
        in.query_bytes = 2 * nodes * test.heads * 576;
    }
    const int64_t slot_bytes = mla_row_bytes(test.format) + test.slot_padding;
    tensors.kv_slot_stride = test.format == KDT_KV_BF16 ? slot_bytes / 2 : slot_bytes;
    in.kv_bytes = in.step.slots * slot_bytes;
    return in;
}

void fill_attn_verify_mla(const AttnVerifyMlaInputs& inputs, std::byte* query, std::byte* kv) {
    const auto format = static_cast<kdt_kv_format>(inputs.shape.kv_format);
    const kdt_attn_mla_tensors& tensors = inputs.tensors;
    const int64_t slot_bytes = tensors.kv_slot_stride * (format == KDT_KV_BF16 ? 2 : 1);
    for (const CaseRow& row : inputs.step.rows) {
        for (int32_t i = 0; i < mla_row_parts(format); ++i) {
            write_mla_value(format, inputs.seed, tensors.scale, tensors.kv_scale, row, i,
                            kv + row.slot * slot_bytes);
        }
    }
    for (int32_t node = 0; node < inputs.step.nodes(); ++node) {
        const uint64_t id = inputs.step.query_ids[static_cast<size_t>(node)];
        for (int32_t head = 0; head < inputs.shape.heads; ++head) {
            std::byte* latent = query + 2 * (node * tensors.q_latent_node_stride +
                                             head * tensors.q_latent_head_stride);
            std::byte* rope =
                query + inputs.rope_offset_bytes +
                2 * (node * tensors.q_rope_node_stride + head * tensors.q_rope_head_stride);
            for (int32_t i = 0; i < 576; ++i) {
                put_word(i < 512 ? latent + 2 * i : rope + 2 * (i - 512),
                         query_bits(inputs.seed, id, head, 576, i));
            }
        }
    }
}

}  // namespace kd
