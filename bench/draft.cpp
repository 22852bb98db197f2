// What a dflash drafter costs, in the order of a round: a draft, the target's forward over a tree's
// rows (which takes the caches that the drafter's weights would like to stay in), the ingest of
// accepted rows. Medians and minima by context.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "app/prompt.h"
#include "base/error.h"
#include "base/storage.h"
#include "engine/engine.h"
#include "formats/model_tokenizer.h"
#include "models/dflash_drafter.h"
#include "ops/timing.h"
#include "support/options.h"
#include "support/report.h"

namespace kd {
namespace {

constexpr int32_t kContexts[] = {256, 1024};
constexpr int32_t kRows = 128;    // of a prompt chunk
constexpr int32_t kTreeRows = 8;  // of the forward between two drafts
constexpr int32_t kAccepted = 3;  // rows of an ingest
constexpr int32_t kSlots = 1024 + kRows;

struct Options : ModelOptions {
    std::string drafter;
    std::string prompts;
    int32_t rounds = 100;
};

/// Target and drafter below the engine; position and slot are one.
class Rounds {
  public:
    explicit Rounds(const Options& options)
        : file_(resolve_model(options.model)),
          tokenizer_(read_tokenizer(file_)),
          threads_(options.threads > 0 ? options.threads : default_threads()),
          stream_{.threads = &threads_, .weights = &weights_},
          config_(read_dflash_config(options.drafter)),
          model_(load_model(file_,
                            {.rows = kRows,
                             .logit_rows = kTreeRows,
                             .keys = kSlots,
                             .feature_layers = config_.target_layers},
                            stream_)),
          drafter_(config_, load_drafter(options.drafter),
                   {.sessions = 1, .rows = kRows, .context = kSlots, .slots = kSlots}, stream_),
          kv_(cache_view(model_->config, DType::f16, kSlots)),
          memory_(kv_.bytes()),
          columns_(std::ssize(config_.target_layers) * int64_t{config_.target_hidden}),
          features_(kRows * columns_),
          logits_(kTreeRows * model_->config.vocabulary),
          slots_(kSlots),
          lattice_(drafter_.depth_capacity, drafter_.state_capacity) {
        kv_.data = memory_.data();
        std::iota(slots_.begin(), slots_.end(), 0);
        for (const PromptLine& line : read_prompts(options.prompts, 0)) {
            const std::vector<int32_t> ids = encode_prompt(tokenizer_, line.turn, false);
            text_.insert(text_.end(), ids.begin(), ids.end());
        }
        if (std::ssize(text_) < kSlots) {
            KD_THROW(invalid_argument, "{}: {} tokens, {} are needed", options.prompts,
                     text_.size(), kSlots);
        }
        for (int32_t first = 0; first < kContexts[std::size(kContexts) - 1]; first += kRows) {
            forward(first, kRows, 0);
            ingest(first, kRows);
        }
    }

    int threads() const { return threads_.threads(); }

    nlohmann::ordered_json measure(int32_t context, int32_t rounds) {
        std::vector<double> draft_s, forward_s, ingest_s;
        const DraftContext at = {.tokens = std::span(text_).first(static_cast<size_t>(context) + 1),
                                 .slots = std::span(slots_).first(static_cast<size_t>(context)),
                                 .max_depth = kMaxDraftDepths};
        LatticeView lattice = lattice_.view();
        for (int32_t round = 0; round < rounds; ++round) {
            draft_s.push_back(seconds_of([&] { drafter_.draft({&at, 1}, {&lattice, 1}); }));
            forward_s.push_back(seconds_of([&] { forward(context, kTreeRows, kTreeRows); }));
            // The rows in front of the anchor once more: the context stays what it is.
            ingest_s.push_back(seconds_of([&] { ingest(context - kAccepted, kAccepted); }));
        }
        nlohmann::ordered_json row = {{"context", context}};
        fmt::print("{:>8}", context);
        for (const auto& [name, seconds] :
             {std::pair{"draft", &draft_s}, {"forward", &forward_s}, {"ingest", &ingest_s}}) {
            const Timing timing = timing_of(*seconds);
            row[name] = {{"median_ms", timing.median_ms}, {"min_ms", timing.min_ms}};
            fmt::print("{:>10.3f} ({:.3f})", timing.median_ms, timing.min_ms);
        }
        fmt::print("\n");
        return row;
    }

  private:
    /// Of a drafter that was made for the model.
    DflashWeights load_drafter(const std::string& folder) {
        check_dflash_target(config_, model_->config);
        return load_dflash_weights(folder, config_, model_->config, model_->shared(), stream_);
    }

    void forward(int32_t first, int32_t rows, int32_t logit_rows) {
        const auto count = static_cast<size_t>(rows);
        const auto begin = static_cast<size_t>(first);
        const std::span<const int32_t> slots = std::span(slots_).subspan(begin, count);
        const AttnSegment segment = {
            .rows = rows, .context = std::span(slots_).first(begin), .slots = slots};
        const int64_t vocabulary = model_->config.vocabulary;
        model_->forward({.tokens = std::span(text_).subspan(begin, count),
                         .positions = slots,
                         .slots = slots,
                         .segments = {&segment, 1},
                         .logit_rows = std::span(slots_).first(static_cast<size_t>(logit_rows)),
                         .kv = kv_,
                         .logits = {logits_.data(), kTreeRows, vocabulary, vocabulary},
                         .features = {features_.data(), kRows, columns_, columns_}},
                        stream_);
    }

    void ingest(int32_t first, int32_t rows) {
        const auto count = static_cast<size_t>(rows);
        const auto begin = static_cast<size_t>(first);
        const IngestSegment segment = {.first_position = first,
                                       .tokens = std::span(text_).subspan(begin, count),
                                       .slots = std::span(slots_).subspan(begin, count),
                                       .features = {features_.data(), kRows, columns_, columns_},
                                       .feature_rows = std::span(slots_).first(count)};
        drafter_.ingest({&segment, 1});
    }

    ModelFile file_;
    Tokenizer tokenizer_;
    ThreadPool threads_;
    Arena weights_;
    Stream stream_;
    DflashConfig config_;
    std::unique_ptr<Model> model_;
    DflashDrafter drafter_;
    KvView kv_;
    LazyArray<std::byte> memory_;
    int64_t columns_;
    LazyArray<float> features_;
    LazyArray<float> logits_;
    std::vector<int32_t> slots_;
    std::vector<int32_t> text_;
    LatticeStorage lattice_;
};

void run(const Options& options, int argc, char** argv) {
    const double load_before = load_average();
    Rounds rounds(options);
    nlohmann::ordered_json report = report_header(argc, argv, rounds.threads());
    report["rounds"] = options.rounds;
    report["tree_rows"] = kTreeRows;
    report["ingested_rows"] = kAccepted;
    fmt::print("ms, median (min)\n{:>8}{:>18}{:>18}{:>18}\n", "context", "draft", "forward",
               "ingest");
    for (const int32_t context : kContexts) {
        report["contexts"].push_back(rounds.measure(context, options.rounds));
    }
    report["load_average"] = {load_before, load_average()};
    if (!options.json.empty()) write_report(report, options.json);
}

}  // namespace
}  // namespace kd

int main(int argc, char** argv) {
    kd::Options options;
    CLI::App app("What a draft, the forward behind it and the ingest of accepted rows take");
    kd::add_model_options(app, options);
    app.add_option("--drafter", options.drafter, "folder of the checkpoint")->required();
    app.add_option("--prompts", options.prompts, "prompt file; the text is its prompts in a row")
        ->required();
    app.add_option("--rounds", options.rounds, "for each context")
        ->capture_default_str()
        ->check(CLI::PositiveNumber);
    return kd::run_program(app, argc, argv, options, [&] { kd::run(options, argc, argv); });
}
