#include "app/bench.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "app/interrupt.h"
#include "app/output.h"
#include "app/prompt.h"
#include "base/error.h"
#include "engine/engine.h"
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

/// One mode's sums over the prompts of one set in one repetition.
struct Sums {
    SessionStats stats;

    void add(const SessionStats& s) {
        stats.tokens += s.tokens;
        stats.rounds += s.rounds;
        stats.nodes += s.nodes;
        stats.prefill_s += s.prefill_s;
        stats.decode_s += s.decode_s;
        stats.phases += s.phases;
    }
};

/// All repetitions of one mode on one prompt set.
struct Cell {
    Mode mode;
    std::vector<Sums> repetitions;
    bool compared = false;  // with plain decoding
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
    for (const Sums& each : cell.repetitions) values.push_back(value(each.stats));
    out[key] = median(values);
    out[key + "_min"] = *std::min_element(values.begin(), values.end());
    out[key + "_max"] = *std::max_element(values.begin(), values.end());
}

nlohmann::ordered_json phases_of(const Cell& cell) {
    nlohmann::ordered_json out;
    const auto phase = [&](const char* name, auto&& seconds) {
        std::vector<double> values;
        for (const Sums& each : cell.repetitions) {
            values.push_back(seconds(each.stats.phases) * 1e3 / std::max(each.stats.rounds, 1));
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

nlohmann::ordered_json row_of(const Cell& cell, const std::string& prompt_set, size_t prompts) {
    nlohmann::ordered_json row = {{"mode", cell.mode.name},
                                  {"nodes", cell.mode.speculation.nodes},
                                  {"prompt_set", prompt_set},
                                  {"prompts", prompts},
                                  {"tokens", cell.repetitions.front().stats.tokens}};
    const auto rounds = [](const SessionStats& s) { return std::max(s.rounds, 1); };
    put(row, "seconds", cell, [](const SessionStats& s) { return s.decode_s; });
    put(row, "prefill_s", cell, [](const SessionStats& s) { return s.prefill_s; });
    put(row, "tokens_per_s", cell, [](const SessionStats& s) { return s.tokens / s.decode_s; });
    row["rounds"] = cell.repetitions.front().stats.rounds;
    put(row, "acceptance_length", cell,
        [&](const SessionStats& s) { return static_cast<double>(s.tokens) / rounds(s); });
    put(row, "mean_nodes", cell,
        [&](const SessionStats& s) { return static_cast<double>(s.nodes) / rounds(s); });
    put(row, "ms_per_round", cell,
        [&](const SessionStats& s) { return s.decode_s * 1e3 / rounds(s); });
    row["phases_ms"] = phases_of(cell);
    row["identical_to_plain"] = cell.compared ? nlohmann::ordered_json(cell.identical) : nullptr;
    return row;
}

class Bench {
  public:
    explicit Bench(const BenchOptions& options) : options_(options), engine_(config_of(options)) {
        for (const std::string& name : options.modes)
            modes_.push_back(mode_of(name, options.nodes));
        // Plain goes first: the others are compared with it, and the oracle replays it.
        std::stable_partition(modes_.begin(), modes_.end(),
                              [](const Mode& mode) { return mode.name == "plain"; });
        for (const Mode& mode : modes_) {
            if (mode.name == "policy") engine_.cost();
        }
    }

    int run();

  private:
    static Config config_of(const BenchOptions& options) {
        Config config = options.config;
        config.max_draft_tokens = std::max(config.max_draft_tokens, options.nodes);
        return config;
    }

    std::vector<Cell> run_set(const std::string& path, const std::vector<PromptLine>& prompts);
    void run_prompt(std::vector<Cell>& cells, size_t prompt, const std::vector<int32_t>& ids,
                    int32_t repetition);
    Delta generate(const Mode& mode, const Request& request);
    void progress(const std::string& path, int32_t repetition, size_t prompt, size_t prompts) const;
    void print(const std::string& set, const std::vector<Cell>& cells) const;

    const BenchOptions& options_;
    Engine engine_;
    std::vector<Mode> modes_;
};

Delta Bench::generate(const Mode& mode, const Request& request) {
    Request copy = request;
    copy.speculation = mode.speculation;
    const RequestId id = engine_.submit(std::move(copy));
    while (!interrupted() && engine_.step() != nullptr) {
    }
    engine_.cancel(id);
    return engine_.poll(id);
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
        if (plain_measured) cells.front().repetitions.back().add(plain.stats);
    }
    if (oracle) request.known_continuation = plain_ids;
    // The others in turning order, so that none always follows the same one.
    const size_t first = plain_measured ? 1 : 0;
    const size_t others = cells.size() - first;
    for (size_t i = 0; i < others; ++i) {
        const size_t turn = (i + prompt + static_cast<size_t>(repetition)) % others;
        Cell& cell = cells[first + turn];
        const Delta delta = generate(cell.mode, request);
        cell.repetitions.back().add(delta.stats);
        if (plain_measured || oracle) {
            cell.compared = true;
            cell.identical = cell.identical && delta.ids == plain_ids;
        }
    }
}

void Bench::progress(const std::string& path, int32_t repetition, size_t prompt,
                     size_t prompts) const {
    if (isatty(STDERR_FILENO) == 0) return;
    fmt::print(stderr, "\r{}: repetition {} of {}, prompt {} of {}   {}", path, repetition + 1,
               options_.repeat, prompt + 1, prompts, prompt + 1 == prompts ? "\n" : "");
}

std::vector<Cell> Bench::run_set(const std::string& path, const std::vector<PromptLine>& prompts) {
    std::vector<Cell> cells;
    for (const Mode& mode : modes_) cells.push_back({.mode = mode});
    for (int32_t repetition = 0; repetition < options_.repeat; ++repetition) {
        for (Cell& cell : cells) cell.repetitions.emplace_back();
        for (size_t i = 0; i < prompts.size() && !interrupted(); ++i) {
            progress(path, repetition, i, prompts.size());
            run_prompt(cells, i, encode_prompt(engine_.tokenizer(), prompts[i].turn, false),
                       repetition);
        }
    }
    return cells;
}

void Bench::print(const std::string& set, const std::vector<Cell>& cells) const {
    fmt::print("{:<16}{:<8}{:>6}{:>11}{:>8}{:>11}{:>12}{:>11}\n", "prompts", "mode", "nodes",
               "tokens/s", "ratio", "acc. len.", "ms a round", "identical");
    const auto speed = [](const Cell& cell) {
        std::vector<double> values;
        for (const Sums& s : cell.repetitions) values.push_back(s.stats.tokens / s.stats.decode_s);
        return median(values);
    };
    for (const Cell& cell : cells) {
        const SessionStats& s = cell.repetitions.front().stats;
        const double rounds = std::max(s.rounds, 1);
        fmt::print("{:<16}{:<8}{:>6.2f}{:>11.1f}{:>8.2f}{:>11.2f}{:>12.2f}{:>11}\n", set,
                   cell.mode.name, s.nodes / rounds, speed(cell),
                   speed(cell) / speed(cells.front()), s.tokens / rounds, s.decode_s * 1e3 / rounds,
                   !cell.compared ? "-" : (cell.identical ? "yes" : "NO"));
    }
}

std::string processor_name() {
    std::ifstream info("/proc/cpuinfo");
    for (std::string line; std::getline(info, line);) {
        if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
    }
    return "unknown processor";
}

int Bench::run() {
    nlohmann::ordered_json out = {
        {"schema", 1},
        {"commit", KDTREE_COMMIT},
        {"device", processor_name()},
        {"threads", engine_.config().threads},
        {"model", std::filesystem::path(engine_.config().model).filename().string()},
        {"drafter", name_of(options_.config.speculative_algorithm)},
        {"temperature", options_.sampling.temperature},
        {"runs", nlohmann::ordered_json::array()}};
    bool identical = true;
    for (const std::string& path : options_.prompt_files) {
        const std::vector<PromptLine> prompts = read_prompts(path, options_.limit);
        const std::string set = std::filesystem::path(path).stem().string();
        const std::vector<Cell> cells = run_set(path, prompts);
        if (interrupted()) return 130;
        print(set, cells);
        for (const Cell& cell : cells) {
            out["runs"].push_back(row_of(cell, set, prompts.size()));
            identical = identical && cell.identical;
        }
    }
    if (!options_.json.empty()) write_file(options_.json, out.dump(2) + "\n");
    return options_.sampling.temperature == 0 && !identical ? 1 : 0;
}

}  // namespace

int bench(const BenchOptions& options) {
    if (options.prompt_files.empty()) KD_THROW(invalid_argument, "no prompt file: use --prompts");
    if (options.modes.empty()) KD_THROW(invalid_argument, "no mode: use --modes");
    watch_interrupts();
    return Bench(options).run();
}

}  // namespace kd
