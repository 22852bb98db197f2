#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>

#include "backends/cpu/lazy_array.h"
#include "kernels/attn_verify_gqa/attn_verify_gqa_cases.h"
#include "kernels/linear/linear_cases.h"
#include "ops/measure.h"

namespace kd {

namespace {

// SmolLM2-135M.
constexpr int64_t kHidden = 576;
constexpr int64_t kIntermediate = 1536;
constexpr int64_t kVocabulary = 49152;
constexpr int32_t kLayers = 30;
constexpr int32_t kHeads = 9;
constexpr int32_t kKvHeads = 3;
constexpr int32_t kHeadDim = 64;

constexpr int64_t kLinearRows[] = {1, 2, 3, 4, 6, 8, 12, 16, 32, 64};
constexpr int64_t kMostLinearRows = 64;

constexpr int32_t kContexts[] = {256, 1024, 4096};
constexpr int32_t kLongestContext = 4096;
constexpr int32_t kTreeRows[] = {1, 4, 8, 32};
constexpr int32_t kContiguous = kLongestContext;
constexpr int32_t kRuns[] = {kContiguous, 64, 8, 1};  // neighbouring slots of a context

// Walks of one kind, each after one of every other kind.
constexpr int kPasses = 11;

/// One layer's shape with its inputs, and as many packed copies as the model has.
struct Matrices {
    LinearCase shape;
    LinearInputs inputs;
    std::vector<LinearWeights> copies;
    std::vector<float> y;

    Matrices(LinearCase test, int32_t count, Stream& stream)
        : shape(std::move(test)), inputs(make_linear_inputs(shape)) {
        for (int32_t i = 0; i < count; ++i) copies.emplace_back(inputs.parts, stream);
        y.resize(static_cast<size_t>(shape.rows * copies.front().rows()));
    }

    /// The first `rows` of the inputs' rows.
    void run(size_t copy, int64_t rows, Stream& stream) {
        LinearParams params = inputs.params(/*quantised_rows=*/true);
        params.weights = &copies[copy];
        params.rows = rows;
        params.y = y.data();
        linear(params, stream);
    }

    Work work(int64_t rows) const {
        LinearCase test = shape;
        test.rows = rows;
        const auto count = static_cast<double>(copies.size());
        return {.bytes = count * static_cast<double>(linear_bytes(test)),
                .operations = count * linear_flops(test),
                .arithmetic = Arithmetic::int8};
    }
};

Work operator+(const Work& a, const Work& b) {
    return {.bytes = a.bytes + b.bytes,
            .operations = a.operations + b.operations,
            .arithmetic = a.arithmetic};
}

std::string linear_name(int64_t rows) {
    return fmt::format("smollm2 T={}", rows);
}

std::string attention_name(int32_t context, int32_t rows, int32_t run) {
    const std::string name = fmt::format("smollm2 c={} T={}", context, rows);
    return run == kContiguous ? name : fmt::format("{} runs of {}", name, run);
}

/// The slots of the longest context in runs of neighbours, the runs in random order.
std::vector<int32_t> slots_in_runs(int32_t run) {
    std::vector<int32_t> firsts;
    for (int32_t first = 0; first < kLongestContext; first += run) firsts.push_back(first);
    std::shuffle(firsts.begin(), firsts.end(), std::mt19937(5));
    std::vector<int32_t> slots;
    for (const int32_t first : firsts) {
        for (int32_t i = 0; i < run; ++i) slots.push_back(first + i);
    }
    return slots;
}

/// K and V of all layers, filled once. Contexts take turns in windows of it.
struct Caches {
    static constexpr int32_t kTail = kLongestContext;  // slots of the trees' own rows
    KvView kv = {.type = DType::f16,
                 .layers = kLayers,
                 .slots = kLongestContext + 32,
                 .kv_heads = kKvHeads,
                 .head_dim = kHeadDim};
    LazyArray<std::byte> memory{kv.bytes()};
    std::map<int32_t, std::vector<int32_t>> context_slots;  // by run length
    std::vector<int32_t> tail_slots = std::vector<int32_t>(32);

    Caches() {
        kv.data = memory.data();
        // 0.25 in every value; zeros would stay one shared page, never read from memory.
        auto* values = reinterpret_cast<uint16_t*>(memory.data());
        std::fill_n(values, kv.bytes() / 2, f32_to_f16(0.25f));
        std::iota(tail_slots.begin(), tail_slots.end(), kTail);
        for (const int32_t run : kRuns) context_slots[run] = slots_in_runs(run);
    }
};

/// One tree of `rows` over the windows of one context length.
struct AttentionSet {
    AttnVerifyGqaCase shape;
    AttnVerifyGqaInputs inputs;
    std::vector<float> out;
    std::vector<float> scratch;
    int32_t run_length;
    int32_t window = 0;

    AttentionSet(const Caches& caches, int32_t context, int32_t rows, int32_t run, int threads)
        : shape{.name = "",
                .heads = kHeads,
                .kv_heads = kKvHeads,
                .head_dim = kHeadDim,
                .cache = DType::f16,
                .segments = {{context, rows, true}},
                .seed = 1},
          inputs(make_attn_verify_gqa_inputs(shape)),
          out(static_cast<size_t>(rows * kHeads * kHeadDim)),
          scratch(static_cast<size_t>(
              attn_verify_gqa_scratch_floats(kHeads, kHeadDim, inputs.max_keys, threads))),
          run_length(run) {
        inputs.segments[0].slots = std::span(caches.tail_slots).first(static_cast<size_t>(rows));
        inputs.params.kv = caches.kv;
        inputs.params.out = out.data();
        inputs.params.scratch = scratch.data();
    }

    /// All layers, then on to the next window.
    void run(const Caches& caches, Stream& stream) {
        const int32_t context = shape.segments[0].context;
        inputs.segments[0].context =
            std::span(caches.context_slots.at(run_length))
                .subspan(static_cast<size_t>(window * context), static_cast<size_t>(context));
        inputs.params.segments = inputs.segments;
        for (int32_t layer = 0; layer < kLayers; ++layer) {
            inputs.params.layer = layer;
            attn_verify_gqa(inputs.params, stream);
        }
        window = (window + 1) % (kLongestContext / context);
    }

    Work work() const {
        return {.bytes = double{kLayers} * static_cast<double>(attn_verify_gqa_bytes(shape)),
                .operations = kLayers * attn_verify_gqa_flops(shape)};
    }
};

}  // namespace

void measure_model_linear(Report& report, Stream& stream) {
    std::vector<int64_t> wanted;
    for (const int64_t rows : kLinearRows) {
        if (report.wants("linear", linear_name(rows))) wanted.push_back(rows);
    }
    if (wanted.empty()) return;
    using enum DType;
    constexpr int64_t kQ = int64_t{kHeads} * kHeadDim;
    constexpr int64_t kKv = int64_t{kKvHeads} * kHeadDim;
    const auto shape = [](std::vector<LinearCase::Part> parts, int64_t columns, bool residual) {
        return LinearCase{.name = "",
                          .parts = std::move(parts),
                          .columns = columns,
                          .rows = kMostLinearRows,
                          .bias = false,
                          .residual = residual,
                          .seed = 1};
    };
    const auto wide = 2 * kIntermediate;
    Matrices qkv(shape({{q4_1, kQ}, {q4_1, kKv}, {q4_1, kKv}}, kHidden, false), kLayers, stream);
    Matrices output(shape({{q4_1, kHidden}}, kQ, true), kLayers, stream);
    Matrices gate_up(shape({{q4_1, wide}}, kHidden, false), kLayers, stream);
    Matrices down(shape({{q4_1, kHidden}}, kIntermediate, true), kLayers, stream);
    Matrices head(shape({{q8_0, kVocabulary}}, kHidden, false), 1, stream);

    std::vector<std::vector<double>> seconds(wanted.size());
    for (int pass = -1; pass < kPasses; ++pass) {
        for (size_t i = 0; i < wanted.size(); ++i) {
            const int64_t rows = wanted[i];
            const double walk = seconds_of([&] {
                for (size_t layer = 0; layer < kLayers; ++layer) {
                    qkv.run(layer, rows, stream);
                    output.run(layer, rows, stream);
                    gate_up.run(layer, rows, stream);
                    down.run(layer, rows, stream);
                }
                head.run(0, rows, stream);
            });
            if (pass >= 0) seconds[i].push_back(walk);  // the first one touches the memory
        }
    }
    for (size_t i = 0; i < wanted.size(); ++i) {
        const int64_t rows = wanted[i];
        const Work work = qkv.work(rows) + output.work(rows) + gate_up.work(rows) +
                          down.work(rows) + head.work(rows);
        report.add("linear", linear_name(rows), work, timing_of(seconds[i]));
    }
}

void measure_model_attention(Report& report, Stream& stream) {
    const Caches caches;
    std::vector<std::string> names;
    std::vector<AttentionSet> sets;
    for (const int32_t context : kContexts) {
        for (const int32_t rows : kTreeRows) {
            for (const int32_t run : kRuns) {
                const std::string name = attention_name(context, rows, run);
                if (!report.wants("attn_verify_gqa", name)) continue;
                names.push_back(name);
                sets.emplace_back(caches, context, rows, run, stream.threads->threads());
            }
        }
    }
    std::vector<std::vector<double>> seconds(sets.size());
    for (int pass = -1; pass < kPasses; ++pass) {
        for (size_t i = 0; i < sets.size(); ++i) {
            const double walk = seconds_of([&] { sets[i].run(caches, stream); });
            if (pass >= 0) seconds[i].push_back(walk);
        }
    }
    for (size_t i = 0; i < sets.size(); ++i) {
        report.add("attn_verify_gqa", names[i], sets[i].work(), timing_of(seconds[i]));
    }
}

}  // namespace kd
