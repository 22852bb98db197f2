// Acceptance length of a dflash drafter by replay: verification is lossless, so the text that the
// target writes is the same whatever is drafted, and what a chain or tree would have accepted at
// every place of it can be read off the text. One pass over a text gives the features, one draft at
// every anchor the lattices; each mode then jumps through the text as its rounds would.
//
// The first token of an answer comes with the prompt: the first anchor. Tokens that a round accepts
// beyond the end of the text are not counted.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "app/prompt.h"
#include "base/error.h"
#include "base/storage.h"
#include "core/tree.h"
#include "engine/engine.h"
#include "models/dflash_drafter.h"
#include "support/options.h"
#include "support/report.h"

namespace kd {
namespace {

struct Options : ModelOptions {
    std::string drafter;
    std::string eval;
    double check = 0;
    int32_t limit = 0;
    int32_t max_tokens = 256;
    float temperature = 0;
};

struct Mode {
    std::string name;
    bool chain = false;
    bool edges = false;
    int32_t nodes = 0;
    /// Macro means of the prototype drafter on six sets, by PyTorch: greedy, temperature 1.
    double elsewhere[2] = {0, 0};
};

const std::vector<Mode>& modes() {
    static const std::vector<Mode> all = {{"marginal chain 8", true, false, 8, {3.056, 1.616}},
                                          {"marginal tree 8", false, false, 8, {3.446, 1.924}},
                                          {"marginal tree 32", false, false, 32, {4.134, 2.266}},
                                          {"conditional chain 8", true, true, 8, {3.272, 1.644}},
                                          {"conditional tree 8", false, true, 8, {3.681, 1.949}},
                                          {"conditional tree 32", false, true, 32, {4.566, 2.342}}};
    return all;
}

constexpr const char* kSets[] = {"arena-hard-v2", "gsm8k", "humaneval",
                                 "math500",       "mbpp",  "mt-bench"};
constexpr int32_t kContext = 4096;
constexpr int32_t kRows = 128;
constexpr int32_t kAnchors = 8;  // drafted at once

struct Tally {
    int64_t rounds = 0;
    int64_t tokens = 0;
    double tau() const {
        return rounds == 0 ? 0 : static_cast<double>(tokens) / static_cast<double>(rounds);
    }
};

/// Target and drafter below the engine, with one session's rows in the first slots.
class Replay {
  public:
    Replay(const std::string& model, const Options& options)
        : file_(model),
          threads_(options.threads > 0 ? options.threads : default_threads()),
          stream_{.threads = &threads_},
          config_(read_dflash_config(options.drafter)),
          model_(load_model(file_,
                            {.rows = kRows,
                             .logit_rows = 1,
                             .keys = kContext + kRows,
                             .feature_layers = config_.target_layers},
                            stream_)),
          drafter_(config_,
                   load_dflash_weights(options.drafter, config_, model_->config, model_->shared(),
                                       stream_),
                   {.sessions = kAnchors, .rows = kRows, .context = kContext, .slots = kContext},
                   stream_),
          kv_{.type = DType::f16,
              .layers = model_->config.layers,
              .slots = kContext,
              .kv_heads = model_->config.kv_heads,
              .head_dim = model_->config.head_dim},
          memory_(kv_.bytes()),
          columns_(std::ssize(config_.target_layers) * int64_t{config_.target_hidden}),
          features_(kRows * columns_),
          logits_(model_->config.vocabulary),
          slots_(kContext) {
        check_dflash_target(config_, model_->config);
        kv_.data = memory_.data();
        std::iota(slots_.begin(), slots_.end(), 0);
    }

    bool has_edges() const { return config_.head != DraftHeadType::none; }

    /// Adds what every mode accepts on the answer that begins at `first`.
    void run(std::span<const int32_t> text, int32_t first, std::vector<Tally>& tallies) {
        read(text);
        lattices_.clear();
        const auto end = static_cast<int32_t>(text.size()) - 1;
        for (int32_t anchor = first; anchor < end; anchor += kAnchors) {
            draft(text, anchor, std::min(kAnchors, end - anchor));
        }
        for (size_t m = 0; m < modes().size(); ++m) {
            if (modes()[m].edges && !has_edges()) continue;
            for (int32_t anchor = first; anchor < end;) {
                const int32_t accepted =
                    std::min(accept(modes()[m], text, anchor,
                                    lattices_[static_cast<size_t>(anchor - first)]),
                             end - anchor - 1);
                tallies[m].rounds += 1;
                tallies[m].tokens += accepted + 1;
                anchor += accepted + 1;
            }
        }
    }

  private:
    void read(std::span<const int32_t> text) {
        for (size_t begin = 0; begin < text.size(); begin += kRows) {
            const size_t rows = std::min<size_t>(kRows, text.size() - begin);
            const std::span<const int32_t> slots = std::span(slots_).subspan(begin, rows);
            std::vector<int32_t> feature_rows(slots_.begin(),
                                              slots_.begin() + static_cast<ptrdiff_t>(rows));
            const AttnSegment segment = {.rows = static_cast<int32_t>(rows),
                                         .context = std::span(slots_).first(begin),
                                         .slots = slots};
            const MatrixView<float> features = {features_.data(), kRows, columns_, columns_};
            model_->forward({.tokens = text.subspan(begin, rows),
                             .positions = slots,  // slot and position are one
                             .slots = slots,
                             .segments = {&segment, 1},
                             .kv = kv_,
                             .logits = {logits_.data(), 1, logits_.count(), logits_.count()},
                             .features = features},
                            stream_);
            const IngestSegment ingest = {.first_position = static_cast<int32_t>(begin),
                                          .tokens = text.subspan(begin, rows),
                                          .slots = slots,
                                          .features = {features_.data(), kRows, columns_, columns_},
                                          .feature_rows = feature_rows};
            drafter_.ingest({&ingest, 1});
        }
    }

    void draft(std::span<const int32_t> text, int32_t anchor, int32_t count) {
        std::vector<DraftContext> contexts;
        std::vector<LatticeView> views;
        for (int32_t i = 0; i < count; ++i) {
            const auto at = static_cast<size_t>(anchor + i);
            contexts.push_back({.tokens = text.first(at + 1),
                                .slots = std::span(slots_).first(at),
                                .max_depth = kMaxDraftDepths});
            lattices_.emplace_back(drafter_.depth_capacity, drafter_.state_capacity);
        }
        for (size_t i = lattices_.size() - static_cast<size_t>(count); i < lattices_.size(); ++i) {
            views.push_back(lattices_[i].view());
        }
        drafter_.draft(contexts, views);
    }

    /// Drafted tokens of a round that the text goes on with.
    int32_t accept(const Mode& mode, std::span<const int32_t> text, int32_t anchor,
                   LatticeStorage lattice) {
        const LatticeView view = lattice.view();
        if (!mode.edges) *view.has_edges = false;
        if (mode.chain) keep_best_chain(view);
        TreeStorage storage(mode.nodes);
        const TreeView tree = storage.view();
        build_tree(view, text[static_cast<size_t>(anchor)], mode.nodes, tree, scratch_);
        int32_t node = 0, accepted = 0;
        for (int32_t next = 1; next < *tree.count; ++next) {
            const size_t at = static_cast<size_t>(anchor + accepted + 1);
            if (at >= text.size()) break;
            // Children stand behind their parents, so one pass finds the whole path.
            if (tree.parent[next] != node || tree.token[next] != text[at]) continue;
            node = next;
            ++accepted;
        }
        return accepted;
    }

    ModelFile file_;
    ThreadPool threads_;
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
    std::vector<LatticeStorage> lattices_;  // by anchor
    TreeScratch scratch_;
};

std::vector<int32_t> answer_of(Engine& engine, const std::vector<int32_t>& prompt,
                               const Options& options) {
    const RequestId id = engine.submit({.prompt = prompt,
                                        .sampling = {.temperature = options.temperature, .seed = 1},
                                        .max_tokens = options.max_tokens,
                                        .speculation = {.nodes = 8}});
    while (engine.step() != nullptr) {
    }
    return engine.poll(id).ids;
}

void print_row(const std::string& name, const std::vector<double>& values) {
    fmt::print("{:15}", name);
    for (const double value : values) fmt::print("{:>22.3f}", value);
    fmt::print("\n");
    std::fflush(stdout);
}

nlohmann::ordered_json measure(const Options& options, int argc, char** argv) {
    Engine engine({.model = options.model,
                   .context_length = kContext,
                   .threads = options.threads,
                   .speculative_algorithm = SpeculativeAlgorithm::dflash,
                   .speculative_draft_model_path = options.drafter});
    Replay replay(engine.config().model, options);
    nlohmann::ordered_json result = report_header(argc, argv, engine.config().threads);
    result["temperature"] = options.temperature;
    result["max_tokens"] = options.max_tokens;
    fmt::print("{:15}", "tau");
    for (const Mode& mode : modes()) fmt::print("{:>22}", mode.name);
    fmt::print("\n");
    std::vector<double> mean(modes().size(), 0.0);
    for (const char* set : kSets) {
        std::vector<Tally> tallies(modes().size());
        int32_t prompts = 0;
        for (const PromptLine& line :
             read_prompts(fmt::format("{}/{}.jsonl", options.eval, set), options.limit)) {
            std::vector<int32_t> text = encode_prompt(engine.tokenizer(), line.turn, false);
            if (std::ssize(text) + options.max_tokens > kContext) continue;
            const auto first = static_cast<int32_t>(text.size());
            const std::vector<int32_t> answer = answer_of(engine, text, options);
            text.insert(text.end(), answer.begin(), answer.end());
            replay.run(text, first, tallies);
            ++prompts;
        }
        result["sets"][set]["prompts"] = prompts;
        std::vector<double> taus;
        for (size_t m = 0; m < modes().size(); ++m) {
            taus.push_back(tallies[m].tau());
            mean[m] += taus.back() / static_cast<double>(std::size(kSets));
            result["sets"][set][modes()[m].name] = {
                {"tau", taus.back()}, {"rounds", tallies[m].rounds}, {"tokens", tallies[m].tokens}};
        }
        print_row(set, taus);
    }
    print_row("mean", mean);
    std::vector<double> elsewhere, ratio;
    for (size_t m = 0; m < modes().size(); ++m) {
        elsewhere.push_back(modes()[m].elsewhere[options.temperature > 0 ? 1 : 0]);
        ratio.push_back(mean[m] / elsewhere.back());
        result["mean"][modes()[m].name] = {
            {"tau", mean[m]}, {"elsewhere", elsewhere.back()}, {"ratio", ratio.back()}};
    }
    print_row("by PyTorch", elsewhere);
    print_row("ratio", ratio);
    return result;
}

/// Throws kd::Error unless every mode's mean is within `percent` of the figure by PyTorch.
void expect_within(const nlohmann::ordered_json& report, double percent) {
    for (const auto& [mode, figures] : report["mean"].items()) {
        const double off = figures["ratio"].get<double>() - 1;
        // Not a number is not within.
        if (std::abs(off) * 100 <= percent) continue;
        KD_THROW(invalid_argument, "{} is {:+.1f} % off the figure by PyTorch, --check {}", mode,
                 off * 100, percent);
    }
}

}  // namespace
}  // namespace kd

int main(int argc, char** argv) {
    kd::Options options;
    CLI::App app("Acceptance length of a dflash drafter, by replay");
    kd::add_model_options(app, options);
    app.add_option("--drafter", options.drafter, "folder of the checkpoint")->required();
    app.add_option("--eval", options.eval, "folder of the six sets")->required();
    app.add_option("--limit", options.limit, "prompts of a set (0: all)");
    app.add_option("--max-tokens", options.max_tokens, "of an answer")->capture_default_str();
    app.add_option("--temperature", options.temperature, "0: greedy")->capture_default_str();
    app.add_option("--check", options.check, "fail if a mean is more than PERCENT off PyTorch's")
        ->check(CLI::PositiveNumber);
    return kd::run_program(app, argc, argv, options, [&] {
        const nlohmann::ordered_json report = kd::measure(options, argc, argv);
        if (!options.json.empty()) kd::write_report(report, options.json);
        if (options.check > 0) kd::expect_within(report, options.check);
    });
}
