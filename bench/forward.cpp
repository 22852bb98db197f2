// The target's forward alone: what T rows cost against one row, interleaved over all T.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "backends/cpu/arena.h"
#include "backends/cpu/lazy_array.h"
#include "backends/cpu/threads.h"
#include "engine/engine.h"
#include "formats/model_file.h"
#include "models/model.h"
#include "support/options.h"
#include "support/report.h"
#include "support/statistics.h"

namespace kd {
namespace {

constexpr const char* kWhat =
    "The target's forward alone: milliseconds of a forward of T rows (a chain behind a context, "
    "logits of every row) and how many times one row they take. A pass times every T and context "
    "once, in an order of its own; ratio is the median over passes of time(T) / time(1) with its "
    "95 % interval (bootstrap over passes).";

struct Options : ModelOptions {
    std::vector<int32_t> rows = {1, 2, 3, 4, 5, 6, 8, 12, 16};
    std::vector<int32_t> contexts = {256, 1024};
    double seconds = 40;
};

/// A model with one session's rows in the first slots.
class Subject {
  public:
    Subject(const Options& options, int32_t context, int32_t rows)
        : file_(resolve_model(options.model)),
          threads_(options.threads > 0 ? options.threads : default_threads()),
          stream_{.threads = &threads_, .weights = &weights_},
          model_(load_model(
              file_, {.rows = kChunk + rows, .logit_rows = rows, .keys = context + kChunk + rows},
              stream_)),
          kv_(cache_view(model_->config, DType::f16, context + kChunk + rows)),
          memory_(kv_.bytes()),
          logits_(int64_t{rows} * model_->config.vocabulary),
          slots_(static_cast<size_t>(context + kChunk + rows)) {
        kv_.data = memory_.data();
        std::iota(slots_.begin(), slots_.end(), 0);
        // Whole chunks; rows beyond the context are overwritten by what is timed.
        for (int32_t first = 0; first < context; first += kChunk) forward(first, kChunk, 0);
    }

    int threads() const { return threads_.threads(); }

    double seconds(int32_t context, int32_t rows) {
        const auto begin = std::chrono::steady_clock::now();
        forward(context, rows, rows);
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    }

  private:
    static constexpr int32_t kChunk = 128;

    void forward(int32_t context, int32_t rows, int32_t logit_rows) {
        tokens_.clear();
        for (int32_t row = 0; row < rows; ++row) {
            // Any words do; different ones, as in a text.
            tokens_.push_back(
                static_cast<int32_t>((int64_t{context} + row) * 7919 % model_->config.vocabulary));
        }
        const std::span<const int32_t> all(slots_);
        const auto mine = all.subspan(static_cast<size_t>(context), static_cast<size_t>(rows));
        const AttnSegment segment = {
            .rows = rows, .context = all.first(static_cast<size_t>(context)), .slots = mine};
        const int64_t vocabulary = model_->config.vocabulary;
        model_->forward({.tokens = tokens_,
                         .positions = mine,
                         .slots = mine,
                         .segments = {&segment, 1},
                         .logit_rows = all.first(static_cast<size_t>(logit_rows)),
                         .kv = kv_,
                         .logits = {.data = logits_.data(),
                                    .rows = logit_rows,
                                    .columns = vocabulary,
                                    .stride = vocabulary}},
                        stream_);
    }

    ModelFile file_;
    ThreadPool threads_;
    Arena weights_;
    Stream stream_;
    std::unique_ptr<Model> model_;
    KvView kv_;
    LazyArray<std::byte> memory_;
    LazyArray<float> logits_;
    std::vector<int32_t> slots_;  // also the positions
    std::vector<int32_t> tokens_;
};

struct Point {
    int32_t context;
    int32_t rows;
    std::vector<double> seconds;  // [passes]
};

/// Every point once a pass, until the time is over; the first pass warms up and is dropped.
std::vector<Point> measure(Subject& subject, const Options& options) {
    std::vector<Point> points;
    for (const int32_t context : options.contexts) {
        for (const int32_t rows : options.rows) points.push_back({context, rows, {}});
    }
    std::vector<size_t> order(points.size());
    std::iota(order.begin(), order.end(), 0);
    std::mt19937 random(1);
    const auto begin = std::chrono::steady_clock::now();
    const auto elapsed = [&] {
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    };
    for (int pass = 0; pass < 2 || elapsed() < options.seconds; ++pass) {
        std::shuffle(order.begin(), order.end(), random);
        for (const size_t i : order) {
            const double seconds = subject.seconds(points[i].context, points[i].rows);
            if (pass > 0) points[i].seconds.push_back(seconds);
        }
    }
    return points;
}

const Point& one_row(const std::vector<Point>& points, int32_t context) {
    return *std::find_if(points.begin(), points.end(), [&](const Point& point) {
        return point.context == context && point.rows == 1;
    });
}

nlohmann::ordered_json table(const std::vector<Point>& points) {
    fmt::print("{:>8}{:>5}{:>9}{:>9}  {:<22}{:>16}\n", "context", "T", "ms", "ms min",
               "ratio to T = 1", "ms a row");
    nlohmann::ordered_json rows = nlohmann::ordered_json::array();
    for (const Point& point : points) {
        const double ms = 1e3 * median(point.seconds);
        const double ms_min = 1e3 * *std::min_element(point.seconds.begin(), point.seconds.end());
        const Interval ratio =
            median_interval(ratios(point.seconds, one_row(points, point.context).seconds));
        fmt::print("{:>8}{:>5}{:>9.2f}{:>9.2f}  {:<22}{:>16.2f}\n", point.context, point.rows, ms,
                   ms_min, interval_text(ratio, 3), ms / point.rows);
        rows.push_back({{"context", point.context},
                        {"rows", point.rows},
                        {"ms", ms},
                        {"ms_min", ms_min},
                        {"ratio", interval_json(ratio)}});
    }
    return rows;
}

void run(const Options& options, int argc, char** argv) {
    const auto most = [](const std::vector<int32_t>& of) {
        return *std::max_element(of.begin(), of.end());
    };
    const double load_before = load_average();
    Subject subject(options, most(options.contexts), most(options.rows));
    nlohmann::ordered_json report = report_header(argc, argv, subject.threads());
    const std::vector<Point> points = measure(subject, options);
    report["load_average"] = {load_before, load_average()};
    report["passes"] = points.front().seconds.size();
    fmt::print("{}, {}, {} threads, {} passes, load average {:.2f} to {:.2f}\n\n",
               report["device"].get<std::string>(), report["target"].get<std::string>(),
               subject.threads(), points.front().seconds.size(), load_before, load_average());
    report["rows"] = table(points);
    if (!options.json.empty()) write_report(report, options.json);
}

}  // namespace
}  // namespace kd

int main(int argc, char** argv) {
    kd::Options options;
    CLI::App app(kd::kWhat);
    kd::add_model_options(app, options);
    app.add_option("--rows", options.rows, "row counts T; 1 is always among them")
        ->delimiter(',')
        ->check(CLI::Range(1, 512))
        ->capture_default_str();
    app.add_option("--contexts", options.contexts, "context tokens before the rows")
        ->delimiter(',')
        ->check(CLI::Range(0, 1 << 20))
        ->capture_default_str();
    app.add_option("--seconds", options.seconds, "how long to measure")->capture_default_str();
    return kd::run_program(app, argc, argv, options, [&] {
        if (std::find(options.rows.begin(), options.rows.end(), 1) == options.rows.end()) {
            options.rows.insert(options.rows.begin(), 1);
        }
        kd::run(options, argc, argv);
    });
}
