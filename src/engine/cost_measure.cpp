#include "engine/cost_measure.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <utility>

#include "base/check.h"

namespace kd {

namespace {

constexpr int kPasses = 5;
// Of forwards of one point in one pass. One forward of a few rows is off by some percent, as much
// as plain decoding and a small tree lie apart.
constexpr double kSampleSeconds = 0.012;
// Densest where trees on a CPU live; between the points the table interpolates.
constexpr int32_t kRows[] = {1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 48, 64, 96, 128};

/// Makes the slots' rows memory of their own. Pages that nobody wrote to are all one page of zeros,
/// which attention would read from the nearest cache. What they hold stays.
void touch_rows(const KvView& kv, int32_t slots) {
    constexpr int64_t kPageBytes = 4096;
    const int64_t bytes = slots * kv.row_bytes();
    for (int32_t layer = 0; layer < kv.layers; ++layer) {
        const KvLayer rows = kv.layer(layer);
        for (std::byte* plane : {rows.k, rows.v}) {
            if (plane == nullptr) continue;
            for (int64_t at = 0; at < bytes; at += kPageBytes) {
                volatile std::byte& value = plane[at];
                value = static_cast<std::byte>(value);
            }
        }
    }
}

/// Of the faster half: what disturbs a pass makes it longer, and two of five may be. Not the
/// median: where a machine changes its speed halfway, the medians of some points are those of the
/// one speed and of some of the other.
double faster_mean(std::vector<double> passes) {
    std::sort(passes.begin(), passes.end());
    passes.resize((passes.size() + 1) / 2);
    return std::accumulate(passes.begin(), passes.end(), 0.0) / static_cast<double>(passes.size());
}

double time_forward(const RoundContext& context, Batch& batch, int32_t rows, int32_t tokens,
                    std::span<const int32_t> tail, std::span<const int32_t> positions) {
    // One chain of `rows` nodes on a context of `tokens`: what its rows hold does not matter.
    std::vector<int32_t> ids(static_cast<size_t>(rows), 0);
    std::vector<int32_t> where, logit_rows;
    for (int32_t row = 0; row < rows; ++row) {
        where.push_back(tokens + row);
        logit_rows.push_back(row);
    }
    const auto count = static_cast<size_t>(rows);
    const AttnSegment segment = {.first_row = 0,
                                 .rows = rows,
                                 .context = positions.first(static_cast<size_t>(tokens)),
                                 .slots = tail.first(count)};
    const int64_t vocabulary = batch.limits.vocabulary;
    const auto begin = std::chrono::steady_clock::now();
    context.model->forward({.tokens = ids,
                            .positions = where,
                            .slots = tail.first(count),
                            .segments = {&segment, 1},
                            .logit_rows = logit_rows,
                            .kv = context.kv,
                            .logits = {.data = batch.logits.data(),
                                       .rows = batch.limits.tree_rows(),
                                       .columns = vocabulary,
                                       .stride = vocabulary}},
                           *context.stream);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

CostTable measure_points(std::vector<int32_t> rows, const std::vector<int32_t>& contexts,
                         const TimeForward& time_forward,
                         const std::function<void(double share)>& progress) {
    const size_t width = contexts.size();
    std::vector<std::vector<double>> passes(rows.size() * width);  // [rows, contexts]
    double spent = 0;
    const auto timed = [&](size_t point) {
        const double seconds = time_forward(rows[point / width], contexts[point % width]);
        spent += seconds;
        return seconds;
    };
    // Rounds follow others of about as many rows. Behind a forward of 32 rows one of one row takes
    // 10 % longer (caches): enough to take a tree of two for a gain that is none. A long forward
    // does not depend on what was before it.
    const auto sample = [&](size_t point) {
        const double first = timed(point);
        if (first >= kSampleSeconds) return first;
        std::vector<double> samples;
        for (double sampled = 0; sampled < kSampleSeconds; sampled += samples.back()) {
            samples.push_back(timed(point));
        }
        std::sort(samples.begin(), samples.end());
        return samples[samples.size() / 2];
    };
    // Interleaved passes, so that a disturbance spreads over all points.
    for (int pass = 0; pass < kPasses; ++pass) {
        for (size_t point = 0; point < rows.size() * width; ++point) {
            const bool over = spent >= kMeasureSeconds;
            if (over && pass > 0) break;
            if (over && point % width == 0 && point / width >= 2) {
                rows.resize(point / width);
                break;
            }
            passes[point].push_back(sample(point));
            if (progress) {
                const auto done = static_cast<double>(
                    static_cast<size_t>(pass) * rows.size() * width + point + 1);
                const auto all = static_cast<double>(kPasses * rows.size() * width);
                progress(std::min(std::max(done / all, spent / kMeasureSeconds), 1.0));
            }
        }
    }
    CostTable table = {.rows = rows,
                       .contexts = contexts,
                       .seconds = {},
                       .correction = std::vector<double>(rows.size(), 1.0)};
    for (size_t context = 0; context < width; ++context) {
        for (size_t row = 0; row < rows.size(); ++row) {
            table.seconds.push_back(faster_mean(std::move(passes[row * width + context])));
        }
    }
    return table;
}

CostTable measure_cost(const RoundContext& context, Batch& batch, int32_t max_rows,
                       int32_t max_context, std::span<const int32_t> tail,
                       const std::function<void(double share)>& progress) {
    std::vector<int32_t> row_counts;
    for (const int32_t rows : kRows) {
        if (rows <= max_rows) row_counts.push_back(rows);
    }
    if (row_counts.back() != max_rows) row_counts.push_back(max_rows);
    const int32_t far = std::min(max_context, kFarContext);
    KD_CHECK(far + max_rows <= batch.limits.keys, "{} rows behind {} tokens, limit {}", max_rows,
             far, batch.limits.keys);
    // Any slots do as a context: they are read only.
    std::vector<int32_t> positions(static_cast<size_t>(far));
    std::iota(positions.begin(), positions.end(), 0);
    touch_rows(context.kv, far);
    const auto timed = [&](int32_t rows, int32_t tokens) {
        return time_forward(context, batch, rows, tokens, tail, positions);
    };
    return measure_points(std::move(row_counts), {0, far}, timed, progress);
}

CostTable proportional_cost(int32_t max_rows) {
    CostTable table = {.rows = {1}, .contexts = {0}, .seconds = {1}, .correction = {1}};
    if (max_rows > 1) {
        table.rows.push_back(max_rows);
        table.seconds.push_back(max_rows);
        table.correction.push_back(1);
    }
    return table;
}

}  // namespace kd
