#include "app/score.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "app/interrupt.h"
#include "app/json_line.h"
#include "app/line_io.h"
#include "app/output.h"
#include "app/progress.h"
#include "app/settings.h"
#include "app/text.h"
#include "base/check.h"
#include "base/error.h"
#include "engine/engine.h"

namespace kd {

namespace {

using Json = nlohmann::ordered_json;

/// One input line on its way to its output line.
struct Line {
    size_t bytes = 0;
    std::optional<RequestId> request;  // none: finished
    std::vector<PositionLogprobs> positions;
    size_t expected = 0;  // positions
    std::string error;
};

struct Sums {
    int64_t texts = 0;
    int64_t positions = 0;
    int64_t refused = 0;
    double logprob = 0;
    int64_t bytes = 0;
};

/// Throws kd::Error for a line that cannot be scored.
std::vector<int32_t> tokens_of(const std::string& text, const Engine& engine) {
    const Json line = parse_json_line(text);
    if (line.contains("text") == line.contains("ids")) {
        KD_THROW(invalid_argument, "expected either \"text\" or \"ids\"");
    }
    const bool given = line.contains("ids");
    std::vector<int32_t> ids =
        given ? line_ids(line, engine.tokenizer()) : encode_line(line, engine.tokenizer());
    if (ids.empty()) KD_THROW(invalid_argument, "{} is empty", given ? "\"ids\"" : "the text");
    const int32_t room = engine.config().context_length;
    if (ids.size() > static_cast<size_t>(room)) {
        KD_THROW(invalid_argument, "the text has {} tokens, the context holds {}", ids.size(),
                 room);
    }
    return ids;
}

/// Reads back to the same float. JSON has no infinities: null stands for them.
void append_number(std::string& out, float value) {
    if (std::isfinite(value)) {
        fmt::format_to(std::back_inserter(out), "{:#}", value);
    } else {
        out += "null";
    }
}

std::string json_of(const Line& line, bool with_top) {
    if (!line.error.empty()) return error_line(line.error);
    std::string out = "{\"positions\": [";
    for (const PositionLogprobs& position : line.positions) {
        out += &position == line.positions.data() ? "{\"logprob\": " : ", {\"logprob\": ";
        append_number(out, position.logprob);
        if (with_top) {
            out += ", \"top\": [";
            for (const TokenLogprob& each : position.top) {
                const char* comma = &each == position.top.data() ? "" : ", ";
                fmt::format_to(std::back_inserter(out), "{}{{\"id\": {}, \"logprob\": ", comma,
                               each.token);
                append_number(out, each.logprob);
                out += '}';
            }
            out += ']';
        }
        out += '}';
    }
    return out + "]}";
}

class Scorer {
  public:
    explicit Scorer(const ScoreOptions& options)
        : options_(options),
          input_(options.input),
          engine_(load_engine(checked(options))),
          output_(options.json),
          // Lines behind a long one can be finished first and have to wait for it.
          window_(2 * static_cast<size_t>(engine_->config().max_running_requests)) {}

    int run();

  private:
    /// What can be refused before anything is loaded.
    static Config checked(const ScoreOptions& options) {
        expect_distinct(options.input, options.json);
        if (options.json != "-") expect_writable(options.json);
        Config config = options.config;
        config.speculative_algorithm = SpeculativeAlgorithm::none;  // nothing is decoded
        return config;
    }

    void read_lines();
    void submit(Line& line, const std::string& text);
    void collect(Line& line);
    void write_finished();
    double done() const;
    void summarise() const;

    const ScoreOptions& options_;
    LineInput input_;
    std::unique_ptr<Engine> engine_;
    LineOutput output_;
    const size_t window_;
    std::deque<Line> lines_;  // read, not written; in input order
    bool ended_ = false;
    Sums sums_;
};

void Scorer::submit(Line& line, const std::string& text) {
    try {
        std::vector<int32_t> ids = tokens_of(text, *engine_);
        line.expected = ids.size() - 1;
        line.request = engine_->submit(
            {.prompt = std::move(ids), .prompt_logprobs = options_.top, .prompt_only = true});
    } catch (const Error& error) {
        line.error = error.what();
    }
}

void Scorer::read_lines() {
    std::string text;
    while (!ended_ && lines_.size() < window_) {
        switch (input_.next(text, /*wait=*/lines_.empty())) {
            case LineInput::Next::line:
                // Blank lines are no requests: an editor leaves one at the end.
                if (text.find_first_not_of(" \t\r") == std::string::npos) break;
                lines_.push_back({.bytes = text.size() + 1});
                submit(lines_.back(), text);
                break;
            case LineInput::Next::too_long:
                lines_.push_back({.error = fmt::format("the line is longer than {} bytes: it and "
                                                       "what follows it are not read",
                                                       kMaxLineBytes)});
                break;
            case LineInput::Next::not_yet:
                return;
            case LineInput::Next::end:
                ended_ = true;
                break;
        }
    }
}

void Scorer::collect(Line& line) {
    if (!line.request.has_value()) return;
    Delta delta = engine_->poll(*line.request);
    std::move(delta.prompt_logprobs.begin(), delta.prompt_logprobs.end(),
              std::back_inserter(line.positions));
    if (delta.finish == FinishReason::none) return;
    line.request.reset();
    line.error = std::move(delta.error);
    KD_CHECK(!line.error.empty() || line.positions.size() == line.expected,
             "{} positions of {} were scored", line.positions.size(), line.expected);
}

void Scorer::write_finished() {
    for (; !lines_.empty() && !lines_.front().request.has_value(); lines_.pop_front()) {
        const Line& line = lines_.front();
        output_.write(json_of(line, options_.top > 0));
        sums_.bytes += static_cast<int64_t>(line.bytes);
        if (!line.error.empty()) {
            sums_.refused += 1;
            continue;
        }
        sums_.texts += 1;
        sums_.positions += static_cast<int64_t>(line.positions.size());
        for (const PositionLogprobs& position : line.positions) sums_.logprob += position.logprob;
    }
}

/// Bytes of the input where their number is known, else positions.
double Scorer::done() const {
    const bool bytes = input_.total_bytes() > 0;
    auto sum = static_cast<double>(bytes ? sums_.bytes : sums_.positions);
    for (const Line& line : lines_) {
        const auto positions = static_cast<double>(line.positions.size());
        const auto expected = static_cast<double>(std::max<size_t>(line.expected, 1));
        sum += bytes ? static_cast<double>(line.bytes) * positions / expected : positions;
    }
    return sum;
}

void Scorer::summarise() const {
    std::string text =
        fmt::format("{} of {}", plural(sums_.positions, "position"), plural(sums_.texts, "text"));
    if (sums_.refused > 0) text += fmt::format(", {} refused", plural(sums_.refused, "line"));
    if (sums_.positions > 0) {
        const double mean = sums_.logprob / static_cast<double>(sums_.positions);
        text = fmt::format("perplexity {:.6g} over {}", std::exp(-mean), text);
    }
    write_err(text + "\n");
}

int Scorer::run() {
    watch_interrupts();
    {
        const auto total = static_cast<double>(input_.total_bytes());
        Progress progress(
            {.label = "scoring", .total = total, .unit = total > 0 ? "" : "positions"});
        while (!interrupted()) {
            read_lines();
            if (ended_ && lines_.empty()) break;
            engine_->step();
            for (Line& line : lines_) collect(line);
            write_finished();
            progress.update(done());
        }
    }
    if (interrupted()) return kInterruptedExitCode;
    summarise();
    return sums_.refused > 0 ? 1 : 0;
}

}  // namespace

int score(const ScoreOptions& options) {
    return Scorer(options).run();
}

}  // namespace kd
