#include <numeric>

#include "kernels/attn_verify_gqa/attn_verify_gqa_cases.h"
#include "kernels/cases/random.h"
#include "kernels/edge_scores/edge_scores.h"
#include "kernels/edge_scores/edge_scores_cases.h"
#include "kernels/embed/embed.h"
#include "kernels/embed/embed_cases.h"
#include "kernels/kv_move/kv_move.h"
#include "kernels/kv_move/kv_move_cases.h"
#include "kernels/linear/linear_cases.h"
#include "kernels/quant_rows/quant_rows.h"
#include "kernels/quant_rows/quant_rows_cases.h"
#include "kernels/rmsnorm/rmsnorm.h"
#include "kernels/rmsnorm/rmsnorm_cases.h"
#include "kernels/rope_append/rope_append_cases.h"
#include "kernels/swiglu/swiglu.h"
#include "kernels/swiglu/swiglu_cases.h"
#include "ops/measure.h"

namespace kd {

namespace {

std::vector<float> floats(int64_t count) {
    return std::vector<float>(static_cast<size_t>(count));
}

Work work_of(int64_t bytes, double flops, Arithmetic arithmetic = Arithmetic::fp32) {
    return {.bytes = static_cast<double>(bytes), .operations = flops, .arithmetic = arithmetic};
}

void embed_rows(Report& report, Stream& stream) {
    for (const EmbedCase& test : embed_cases()) {
        if (!report.wants("embed", test.name)) continue;
        CaseRandom random(test.seed);
        std::vector<std::byte> bytes;
        const WeightView table =
            random_weights(random, test.type, test.vocabulary, test.hidden, 1, bytes);
        std::vector<int32_t> tokens(static_cast<size_t>(test.rows));
        for (int32_t& token : tokens) token = random.below(static_cast<int32_t>(test.vocabulary));
        std::vector<float> out = floats(test.rows * test.hidden);
        report.add("embed", test.name, work_of(embed_bytes(test), embed_flops(test)),
                   time_calls([&] {
                       embed({.table = table, .tokens = tokens, .out = out.data()}, stream);
                   }));
    }
}

void edge_scores_rows(Report& report, Stream& stream) {
    for (const EdgeScoresCase& test : edge_scores_cases()) {
        if (!report.wants("edge_scores", test.name)) continue;
        CaseRandom random(test.seed);
        const auto depths = std::ssize(test.parents);
        const std::vector<float> parent = random.values(depths * test.states * test.rank);
        const std::vector<float> child = random.values(depths * test.states * test.rank);
        const std::vector<float> logit = random.values(depths * test.states, 10);
        const std::vector<float> log_mass = floats(depths);
        std::vector<float> edge = floats(depths * test.states * test.states);
        report.add("edge_scores", test.name,
                   work_of(edge_scores_bytes(test), edge_scores_flops(test)), time_calls([&] {
                       edge_scores({.depths = depths,
                                    .states = test.states,
                                    .rank = test.rank,
                                    .parents = test.parents.data(),
                                    .children = test.children.data(),
                                    .parent = parent.data(),
                                    .child = child.data(),
                                    .logit = logit.data(),
                                    .log_mass = log_mass.data(),
                                    .edge = edge.data()},
                                   stream);
                   }));
    }
}

void rmsnorm_rows(Report& report, Stream& stream) {
    for (const RmsnormCase& test : rmsnorm_cases()) {
        if (!report.wants("rmsnorm", test.name)) continue;
        CaseRandom random(test.seed);
        const std::vector<float> x = random.values(test.rows * test.columns, 3);
        const std::vector<float> weight = random.values(test.columns);
        std::vector<float> y = floats(std::ssize(x));
        report.add("rmsnorm", test.name, work_of(rmsnorm_bytes(test), rmsnorm_flops(test)),
                   time_calls([&] {
                       rmsnorm({.x = x.data(),
                                .weight = weight.data(),
                                .y = y.data(),
                                .rows = test.rows,
                                .columns = test.columns,
                                .epsilon = 1e-5f},
                               stream);
                   }));
    }
}

void quant_rows_rows(Report& report, Stream& stream) {
    for (const QuantRowsCase& test : quant_rows_cases()) {
        if (!report.wants("quant_rows", test.name)) continue;
        CaseRandom random(test.seed);
        const std::vector<float> x = random.values(test.rows * test.columns, test.magnitude);
        const AlignedBytes memory(QuantRows::bytes(test.rows, test.columns), std::byte{0});
        const QuantRows out = QuantRows::in(memory.data(), test.rows, test.columns);
        report.add("quant_rows", test.name, work_of(quant_rows_bytes(test), quant_rows_flops(test)),
                   time_calls([&] { quant_rows({.x = x.data(), .out = out}, stream); }));
    }
}

void swiglu_rows(Report& report, Stream& stream) {
    for (const SwigluCase& test : swiglu_cases()) {
        if (!report.wants("swiglu", test.name)) continue;
        CaseRandom random(test.seed);
        const std::vector<float> gate_up = random.values(test.rows * 2 * test.columns, 12);
        std::vector<float> y = floats(test.rows * test.columns);
        report.add("swiglu", test.name, work_of(swiglu_bytes(test), swiglu_flops(test)),
                   time_calls([&] {
                       swiglu({.gate_up = gate_up.data(),
                               .y = y.data(),
                               .rows = test.rows,
                               .columns = test.columns},
                              stream);
                   }));
    }
}

void rope_append_rows(Report& report, Stream& stream) {
    for (const RopeAppendCase& test : rope_append_cases()) {
        if (!report.wants("rope_append", test.name)) continue;
        CaseRandom random(test.seed);
        KvView kv = {.type = test.cache,
                     .layers = 1,
                     .slots = test.rows,
                     .kv_heads = test.kv_heads,
                     .head_dim = test.head_dim};
        std::vector<std::byte> cache(static_cast<size_t>(kv.bytes()));
        kv.data = cache.data();
        std::vector<int32_t> slots(static_cast<size_t>(test.rows));
        std::iota(slots.begin(), slots.end(), 0);
        // Q is rotated in place, call after call: a rotation keeps its length.
        std::vector<float> angles = floats(test.rows * test.rotated);
        for (size_t i = 0; i < angles.size(); i += 2) angles[i] = 0.6f, angles[i + 1] = 0.8f;
        std::vector<float> qkv =
            random.values(test.rows * (test.heads + 2 * test.kv_heads) * test.head_dim);
        report.add("rope_append", test.name,
                   work_of(rope_append_bytes(test), rope_append_flops(test)), time_calls([&] {
                       rope_append({.rows = test.rows,
                                    .heads = test.heads,
                                    .kv_heads = test.kv_heads,
                                    .head_dim = test.head_dim,
                                    .rotated = test.rotated,
                                    .pairing = test.pairing,
                                    .qkv = qkv.data(),
                                    .angles = angles.data(),
                                    .slots = slots,
                                    .kv = kv},
                                   stream);
                   }));
    }
}

void kv_move_rows(Report& report, Stream& stream) {
    for (const KvMoveCase& test : kv_move_cases()) {
        if (!report.wants("kv_move", test.name)) continue;
        KvView kv = kv_move_view(test);
        std::vector<std::byte> cache(static_cast<size_t>(kv.bytes()));
        kv.data = cache.data();
        std::vector<int32_t> from(static_cast<size_t>(test.moves));
        std::iota(from.begin(), from.end(), static_cast<int32_t>(test.slots) - test.moves);
        std::vector<int32_t> to(from.size());
        std::iota(to.begin(), to.end(), 0);
        const KvMoveParams params = {.kv = kv, .moves = {.from = from, .to = to}};
        report.add("kv_move", test.name, work_of(kv_move_bytes(test), kv_move_flops(test)),
                   time_calls([&] { kv_move(params, stream); }));
    }
}

void linear_rows(Report& report, Stream& stream) {
    for (const LinearCase& test : linear_cases()) {
        if (!report.wants("linear", test.name)) continue;
        const LinearInputs in = make_linear_inputs(test);
        const LinearWeights weights(in.parts, stream);
        const bool quantised = weights.wants_quantised_rows();
        std::vector<float> y = floats(test.rows * weights.rows());
        LinearParams params = in.params(quantised);
        params.weights = &weights;
        params.rows = test.rows;
        params.y = y.data();
        report.add("linear", test.name,
                   work_of(linear_bytes(test), linear_flops(test),
                           quantised ? Arithmetic::int8 : Arithmetic::fp32),
                   time_calls([&] { linear(params, stream); }));
    }
}

void attn_verify_gqa_rows(Report& report, Stream& stream) {
    for (const AttnVerifyGqaCase& test : attn_verify_gqa_cases()) {
        if (!report.wants("attn_verify_gqa", test.name)) continue;
        const AttnVerifyGqaInputs in = make_attn_verify_gqa_inputs(test);
        std::vector<float> out = floats(in.rows * test.heads * test.head_dim);
        std::vector<float> scratch = floats(attn_verify_gqa_scratch_floats(
            test.heads, test.head_dim, in.max_keys, stream.threads->threads()));
        AttnVerifyGqaParams params = in.params;
        params.out = out.data();
        params.scratch = scratch.data();
        report.add("attn_verify_gqa", test.name,
                   work_of(attn_verify_gqa_bytes(test), attn_verify_gqa_flops(test)),
                   time_calls([&] { attn_verify_gqa(params, stream); }));
    }
}

}  // namespace

void measure_cases(Report& report, Stream& stream) {
    edge_scores_rows(report, stream);
    embed_rows(report, stream);
    rmsnorm_rows(report, stream);
    quant_rows_rows(report, stream);
    linear_rows(report, stream);
    rope_append_rows(report, stream);
    attn_verify_gqa_rows(report, stream);
    swiglu_rows(report, stream);
    kv_move_rows(report, stream);
}

}  // namespace kd
