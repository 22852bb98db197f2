#include "engine/cost_measure.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "kdtree_version.h"
#include "kernels/simd/memory_read.h"

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

/// Without the fastest and the slowest pass. Not the median: where a machine changes its speed
/// halfway, the medians of some points are those of the one speed and of some of the other.
double middle_mean(std::vector<double> passes) {
    static_assert(kPasses > 2);
    std::sort(passes.begin(), passes.end());
    return std::accumulate(passes.begin() + 1, passes.end() - 1, 0.0) / (kPasses - 2);
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

CostTable measure_cost(const RoundContext& context, Batch& batch, int32_t max_rows,
                       int32_t max_context, std::span<const int32_t> tail,
                       const std::function<void(double share)>& progress) {
    CostTable table;
    for (const int32_t rows : kRows) {
        if (rows <= max_rows) table.rows.push_back(rows);
    }
    if (table.rows.back() != max_rows) table.rows.push_back(max_rows);
    const int32_t far = std::min(max_context, kFarContext);
    KD_CHECK(far + max_rows <= batch.limits.keys, "{} rows behind {} tokens, limit {}", max_rows,
             far, batch.limits.keys);
    table.contexts = {0, far};
    const size_t points = table.rows.size() * table.contexts.size();
    // Any slots do as a context: they are read only.
    std::vector<int32_t> positions(static_cast<size_t>(far));
    std::iota(positions.begin(), positions.end(), 0);
    touch_rows(context.kv, far);
    // Interleaved passes, so that a disturbance spreads over all points.
    std::vector<std::vector<double>> seconds(points);  // [points, passes]
    for (int pass = 0; pass < kPasses; ++pass) {
        for (size_t point = 0; point < points; ++point) {
            const auto forward = [&] {
                return time_forward(context, batch, table.rows[point % table.rows.size()],
                                    table.contexts[point / table.rows.size()], tail, positions);
            };
            // Rounds follow others of about as many rows. Behind a forward of 32 rows one of one
            // row takes 10 % longer (caches): enough to take a tree of two for a gain that is none.
            forward();
            std::vector<double> samples;
            for (double sampled = 0; sampled < kSampleSeconds; sampled += samples.back()) {
                samples.push_back(forward());
            }
            std::sort(samples.begin(), samples.end());
            seconds[point].push_back(samples[samples.size() / 2]);
            if (progress) {
                const auto done = static_cast<double>(static_cast<size_t>(pass) * points + point);
                progress((done + 1) / static_cast<double>(kPasses * points));
            }
        }
    }
    for (std::vector<double>& each : seconds) table.seconds.push_back(middle_mean(std::move(each)));
    table.correction.assign(table.rows.size(), 1.0);
    return table;
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

std::string cost_cache_path(const std::string& cache_folder, const ModelFile& model, int threads,
                            int32_t max_rows, int32_t max_context) {
    std::string key;
    for (const MappedFile* file : model.files()) {
        struct stat status {};
        stat(file->path().c_str(), &status);
        key += fmt::format("{}|{}|{}|", file->path(), status.st_size, status.st_mtime);
    }
    key += fmt::format("{}|{}|{}|{}|{}|{}", threads, max_rows, std::min(max_context, kFarContext),
                       KDTREE_COMMIT, processor_name(), dispatch_target());
    return fmt::format("{}/cost-{:016x}.json", cache_folder, std::hash<std::string>{}(key));
}

CostTable load_cost(const std::string& path) {
    std::ifstream in(path);
    std::stringstream text;
    text << in.rdbuf();
    const auto json = nlohmann::json::parse(text.str(), nullptr, /*allow_exceptions=*/false);
    CostTable table;
    try {
        if (!json.is_object() || json.at("schema") != 1) return {};
        json.at("rows").get_to(table.rows);
        json.at("contexts").get_to(table.contexts);
        json.at("seconds").get_to(table.seconds);
        table.correction.assign(table.rows.size(), 1.0);
        table.validate();
    } catch (const nlohmann::json::exception&) {
        return {};
    } catch (const Error&) {
        return {};
    }
    return table;
}

std::string save_cost(const CostTable& table, const std::string& path) {
    std::error_code error;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
    const std::string text = nlohmann::json{
        {"schema", 1},
        {"rows", table.rows},
        {"contexts", table.contexts},
        {"seconds",
         table.seconds}}.dump();
    const std::string temporary = fmt::format("{}.{}.tmp", path, getpid());
    std::FILE* out = std::fopen(temporary.c_str(), "w");
    bool written = out != nullptr && std::fwrite(text.data(), 1, text.size(), out) == text.size();
    int why = written ? 0 : errno;
    if (out != nullptr && std::fclose(out) != 0) {
        why = written ? errno : why;
        written = false;
    }
    if (written && std::rename(temporary.c_str(), path.c_str()) == 0) return {};
    if (why == 0) why = errno;
    unlink(temporary.c_str());
    return fmt::format("cannot keep the cost table in {}: {}", path, std::strerror(why));
}

}  // namespace kd
