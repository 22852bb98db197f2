#include "app/bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "app/answer.h"
#include "app/interrupt.h"
#include "app/output.h"
#include "app/progress.h"
#include "app/prompt.h"
#include "app/settings.h"
#include "base/error.h"
#include "engine/cost_measure.h"
#include "engine/engine.h"
#include "formats/utf8.h"
#include "kdtree_version.h"

namespace kd {

namespace {

struct Mode {
    std::string name;
    Speculation speculation;
};

Mode mode_of(const std::string& name, int32_t nodes) {
    if (name == "plain") return {name, {.shape = DraftShape::plain, .nodes = 1}};
    if (name == "chain") return {name, {.shape = DraftShape::chain, .nodes = nodes}};
    if (name == "tree") return {name, {.shape = DraftShape::tree, .nodes = nodes}};
    if (name == "policy") return {name, {.shape = DraftShape::tree, .nodes = 0}};
    KD_THROW(invalid_argument, "mode \"{}\" is none of plain, chain, tree, policy", name);
}

std::vector<Mode> modes_of(const BenchOptions& options) {
    std::vector<Mode> modes;
    for (const std::string& name : options.modes) modes.push_back(mode_of(name, options.nodes));
    // Plain goes first: the others are compared with it, and the oracle replays it.
    std::stable_partition(modes.begin(), modes.end(),
                          [](const Mode& mode) { return mode.name == "plain"; });
    return modes;
}

/// A prompt file, ready to run.
struct PromptSet {
    std::string path;
    std::string name;
    std::vector<std::vector<int32_t>> prompts;  // ids
};

/// All repetitions of one mode on one prompt set.
struct Cell {
    Mode mode;
    std::vector<SessionStats> repetitions;  // sums over the set's prompts
    bool compared = false;                  // with plain decoding
    bool identical = true;
};

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    const size_t half = values.size() / 2;
    return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

/// Median under `key`, extremes under key_min and key_max.
template <class Value>
void put(nlohmann::ordered_json& out, const std::string& key, const Cell& cell, Value&& value) {
    std::vector<double> values;
    for (const SessionStats& each : cell.repetitions) values.push_back(value(each));
    out[key] = median(values);
    out[key + "_min"] = *std::min_element(values.begin(), values.end());
    out[key + "_max"] = *std::max_element(values.begin(), values.end());
}

nlohmann::ordered_json phases_of(const Cell& cell) {
    nlohmann::ordered_json out;
    const auto phase = [&](const char* name, auto&& seconds) {
        std::vector<double> values;
        for (const SessionStats& each : cell.repetitions) {
            values.push_back(seconds(each.phases) * 1e3 / std::max(each.rounds, 1));
        }
        out[name] = median(values);
    };
    phase("draft", [](const RoundStats& s) { return s.draft_s; });
    phase("tree", [](const RoundStats& s) { return s.tree_s; });
    phase("verify", [](const RoundStats& s) { return s.verify_s; });
    phase("accept", [](const RoundStats& s) { return s.accept_s; });
    phase("commit", [](const RoundStats& s) { return s.commit_s; });
    phase("other", [](const RoundStats& s) {
        return s.total_s - s.draft_s - s.tree_s - s.verify_s - s.accept_s - s.commit_s;
    });
    return out;
}

/// Over all repetitions: page tables know nothing of time.
nlohmann::ordered_json kv_pool_of(const Cell& cell) {
    SessionStats sum;
    for (const SessionStats& each : cell.repetitions) sum += each;
    return kv_pool_json(sum);
}

nlohmann::ordered_json row_of(const Cell& cell, const std::string& prompt_set, size_t prompts) {
    nlohmann::ordered_json row = {{"mode", cell.mode.name},
                                  {"nodes", cell.mode.speculation.nodes},
                                  {"prompt_set", prompt_set},
                                  {"prompts", prompts},
                                  {"tokens", cell.repetitions.front().tokens}};
    const auto rounds = [](const SessionStats& s) { return std::max(s.rounds, 1); };
    put(row, "seconds", cell, [](const SessionStats& s) { return s.decode_s; });
    put(row, "prefill_s", cell, [](const SessionStats& s) { return s.prefill_s; });
    put(row, "tokens_per_s", cell, [](const SessionStats& s) { return s.tokens / s.decode_s; });
    row["rounds"] = cell.repetitions.front().rounds;
    put(row, "acceptance_length", cell,
        [&](const SessionStats& s) { return static_cast<double>(s.tokens) / rounds(s); });
    put(row, "mean_nodes", cell,
        [&](const SessionStats& s) { return static_cast<double>(s.nodes) / rounds(s); });
    put(row, "ms_per_round", cell,
        [&](const SessionStats& s) { return s.decode_s * 1e3 / rounds(s); });
    row["phases_ms"] = phases_of(cell);
    row["kv_pool"] = kv_pool_of(cell);
    row["identical_to_plain"] = cell.compared ? nlohmann::ordered_json(cell.identical) : nullptr;
    return row;
}

class Bench {
  public:
    explicit Bench(const BenchOptions& options)
        : options_(options), modes_(modes_of(options)), engine_(load_engine(config_of(options))) {
        // Everything that could be refused is looked at before anything is measured.
        if (!options.json.empty()) expect_writable(options.json);
        for (const std::string& path : options.prompt_files) sets_.push_back(read_set(path));
        for (const Mode& mode : modes_) {
            if (mode.name == "policy") measure_cost_now(*engine_);
        }
    }

    int run();

  private:
    static Config config_of(const BenchOptions& options) {
        Config config = options.config;
        // Every mode reads the prompts itself: that is a part of what is compared.
        config.radix_cache = false;
        config.max_draft_tokens = std::max(config.max_draft_tokens, options.nodes);
        return config;
    }

    PromptSet read_set(const std::string& path) const;
    std::vector<Cell> run_set(const PromptSet& set);
    void run_prompt(std::vector<Cell>& cells, size_t prompt, const std::vector<int32_t>& ids,
                    int32_t repetition);
    Delta generate(const Mode& mode, const Request& request);
    double answers() const;
    static void print(const PromptSet& set, const std::vector<Cell>& cells);

    const BenchOptions& options_;
    const std::vector<Mode> modes_;
    std::unique_ptr<Engine> engine_;
    std::vector<PromptSet> sets_;
    std::optional<Progress> progress_;  // while run() measures
    double answers_done_ = 0;
};

PromptSet Bench::read_set(const std::string& path) const {
    PromptSet set = {.path = path, .name = std::filesystem::path(path).stem().string()};
    for (const PromptLine& line : read_prompts(path, options_.limit)) {
        set.prompts.push_back(encode_prompt(engine_->tokenizer(), line.turn, false));
        const auto tokens = static_cast<int64_t>(set.prompts.back().size());
        if (tokens >= engine_->config().context_length) {
            KD_THROW(invalid_argument, "{}: prompt {} has {} tokens, the context holds {}", path,
                     line.id, tokens, engine_->config().context_length);
        }
    }
    return set;
}

Delta Bench::generate(const Mode& mode, const Request& request) {
    Request copy = request;
    copy.speculation = mode.speculation;
    const RequestId id = engine_->submit(std::move(copy));
    while (!interrupted() && engine_->step() != nullptr) {
    }
    engine_->cancel(id);
    progress_->update(++answers_done_);
    return engine_->poll(id);
}

void Bench::run_prompt(std::vector<Cell>& cells, size_t prompt, const std::vector<int32_t>& ids,
                       int32_t repetition) {
    Request request = {
        .prompt = ids, .sampling = options_.sampling, .max_tokens = options_.max_tokens};
    request.sampling.seed += prompt;
    const bool oracle = options_.config.speculative_algorithm == SpeculativeAlgorithm::oracle;
    std::vector<int32_t> plain_ids;
    const bool plain_measured = cells.front().mode.name == "plain";
    if (plain_measured || oracle) {
        Delta plain = generate(mode_of("plain", 1), request);
        plain_ids = std::move(plain.ids);
        if (plain_measured) cells.front().repetitions.back() += plain.stats;
    }
    if (oracle) request.known_continuation = plain_ids;
    // The others in turning order, so that none always follows the same one.
    const size_t first = plain_measured ? 1 : 0;
    const size_t others = cells.size() - first;
    for (size_t i = 0; i < others; ++i) {
        const size_t turn = (i + prompt + static_cast<size_t>(repetition)) % others;
        Cell& cell = cells[first + turn];
        const Delta delta = generate(cell.mode, request);
        cell.repetitions.back() += delta.stats;
        if (plain_measured || oracle) {
            cell.compared = true;
            cell.identical = cell.identical && delta.ids == plain_ids;
        }
    }
}

/// How many answers run() generates.
double Bench::answers() const {
    size_t prompts = 0;
    for (const PromptSet& set : sets_) prompts += set.prompts.size();
    const bool plain = modes_.front().name == "plain";
    const bool oracle = options_.config.speculative_algorithm == SpeculativeAlgorithm::oracle;
    const size_t modes = modes_.size() + (oracle && !plain ? 1 : 0);
    return static_cast<double>(prompts * modes) * options_.repeat;
}

std::vector<Cell> Bench::run_set(const PromptSet& set) {
    std::vector<Cell> cells;
    for (const Mode& mode : modes_) cells.push_back({.mode = mode});
    for (int32_t repetition = 0; repetition < options_.repeat; ++repetition) {
        progress_->relabel(
            fmt::format("{}, repetition {} of {}", set.name, repetition + 1, options_.repeat));
        for (Cell& cell : cells) cell.repetitions.emplace_back();
        for (size_t i = 0; i < set.prompts.size() && !interrupted(); ++i) {
            run_prompt(cells, i, set.prompts[i], repetition);
        }
    }
    return cells;
}

void Bench::print(const PromptSet& set, const std::vector<Cell>& cells) {
    std::string table =
        fmt::format("{:<16}{:<7}{:>6}{:>10}{:>7}{:>10}{:>11}{:>10}\n", "prompts", "mode", "nodes",
                    "tokens/s", "ratio", "acc. len.", "ms a round", "identical");
    const auto speed = [](const Cell& cell) {
        std::vector<double> values;
        for (const SessionStats& s : cell.repetitions) values.push_back(s.tokens / s.decode_s);
        return median(values);
    };
    // A file's name may be long; its first bytes are enough to tell the sets apart.
    const std::string name =
        set.name.size() <= 15 ? set.name : replace_invalid_utf8(set.name.substr(0, 12)) + "...";
    for (const Cell& cell : cells) {
        const SessionStats& s = cell.repetitions.front();
        const double rounds = std::max(s.rounds, 1);
        table += fmt::format(
            "{:<16}{:<7}{:>6.2f}{:>10.1f}{:>7.2f}{:>10.2f}{:>11.2f}{:>10}\n", name, cell.mode.name,
            s.nodes / rounds, speed(cell), speed(cell) / speed(cells.front()), s.tokens / rounds,
            s.decode_s * 1e3 / rounds, !cell.compared ? "-" : (cell.identical ? "yes" : "NO"));
    }
    write_out(table);
}

int Bench::run() {
    nlohmann::ordered_json out = {
        {"schema", 1},
        {"commit", KDTREE_COMMIT},
        {"device", processor_name()},
        {"threads", engine_->config().threads},
        {"model", std::filesystem::path(engine_->config().model).filename().string()},
        {"drafter", name_of(options_.config.speculative_algorithm)},
        {"temperature", options_.sampling.temperature},
        {"runs", nlohmann::ordered_json::array()}};
    bool identical = true;
    progress_.emplace(ProgressTask{.label = "bench", .total = answers(), .unit = "answers"});
    for (const PromptSet& set : sets_) {
        const std::vector<Cell> cells = run_set(set);
        if (interrupted()) return kInterruptedExitCode;
        if (options_.json != "-") print(set, cells);
        for (const Cell& cell : cells) {
            out["runs"].push_back(row_of(cell, set.name, set.prompts.size()));
            identical = identical && cell.identical;
        }
    }
    progress_.reset();
    if (!options_.json.empty()) {
        // A file name may hold bytes that are no UTF-8.
        const auto replace = nlohmann::ordered_json::error_handler_t::replace;
        write_file(options_.json, out.dump(2, ' ', /*ensure_ascii=*/false, replace) + "\n");
    }
    return options_.sampling.temperature == 0 && !identical ? 1 : 0;
}

}  // namespace

int bench(const BenchOptions& options) {
    if (options.prompt_files.empty()) KD_THROW(invalid_argument, "no prompt file: use --prompts");
    if (options.modes.empty()) KD_THROW(invalid_argument, "no mode: use --modes");
    Bench bench(options);
    watch_interrupts();
    return bench.run();
}

}  // namespace kd
