#include "app/batch_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <iterator>
#include <list>
#include <map>
#include <memory>
#include <utility>

#include "app/answer_file.h"
#include "app/interrupt.h"
#include "app/json_line.h"
#include "app/line_io.h"
#include "app/output.h"
#include "app/progress.h"
#include "app/prompt.h"
#include "app/settings.h"
#include "base/error.h"

namespace kd {

namespace {

using Json = nlohmann::ordered_json;

/// Of a file, or of all files of a folder; 0 for what cannot be read.
uintmax_t bytes_on_disk(const std::filesystem::path& path) {
    std::error_code error;
    if (!std::filesystem::is_directory(path, error)) {
        const uintmax_t bytes = std::filesystem::file_size(path, error);
        return error ? 0 : bytes;
    }
    uintmax_t sum = 0;
    for (const auto& entry : std::filesystem::directory_iterator(path, error)) {
        const uintmax_t bytes = entry.is_regular_file(error) ? entry.file_size(error) : 0;
        sum += error ? 0 : bytes;
    }
    return sum;
}

/// Everything that decides what the answers are. How they are drafted and batched does not.
Json settings_json(const BatchRunOptions& options) {
    const AnswerOptions& answer = options.answer;
    std::filesystem::path model = resolve_model(answer.config.model);
    if (!model.has_filename()) model = model.parent_path();  // "folder/"
    Json settings = {{"model", model.filename().string()},
                     {"model_bytes", bytes_on_disk(model)},
                     {"kernels", answer.config.reference_kernels ? "ref" : "fast"},
                     {"context_length", answer.config.context_length}};
    settings.update(answer_settings(answer));
    settings["n"] = options.samples;
    return settings;
}

/// One answer to a conversation's turns so far.
struct Choice {
    RequestId id = 0;
    std::vector<ChatMessage> messages;
    Json turns = Json::array();  // answered ones
    Delta answer;                // to the present turn
};

/// A conversation being answered. Its choices go through a turn together.
struct Job {
    size_t conversation = 0;
    size_t turn = 0;
    std::vector<Choice> choices;
};

class BatchRun {
  public:
    explicit BatchRun(const BatchRunOptions& options)
        : options_(options),
          conversations_(read_conversations(options.prompts, options.limit)),
          file_(options.json, settings_json(options), options.overwrite) {
        check_kept();
    }

    int run();

  private:
    void check_kept();
    void answer_rest();
    void start(size_t conversation);
    void submit_turn(Job& job);
    std::vector<int32_t> encode(const Choice& choice) const;
    bool advance(Job& job);
    void end_turn(Job& job);
    void fail(Job& job, const std::string& error);
    Json result(const Choice& choice) const;
    void put(size_t conversation, Json&& result);
    void summarise(double seconds) const;

    const BatchRunOptions& options_;
    const std::vector<Conversation> conversations_;
    AnswerFile file_;
    std::unique_ptr<Engine> engine_;
    std::list<Job> jobs_;
    std::map<size_t, std::string> ready_;  // lines that wait for one before them
    size_t written_ = 0;                   // lines in the file
    size_t answered_ = 0;                  // by this run
    size_t errors_ = 0;
    SessionStats totals_;  // over all answers
};

/// The lines of before have to be the answers to the first conversations.
void BatchRun::check_kept() {
    const std::vector<std::string>& kept = file_.kept();
    if (kept.size() > conversations_.size()) {
        KD_THROW(invalid_argument, "{} holds {} lines for {} prompts; --overwrite starts anew",
                 options_.json, kept.size(), conversations_.size());
    }
    for (size_t i = 0; i < kept.size(); ++i) {
        const auto line = Json::parse(kept[i], nullptr, /*allow_exceptions=*/false);
        if (!line.is_object() || !line.contains("id")) {
            KD_THROW(corrupt, "{} line {} is no answer; --overwrite starts anew", options_.json,
                     i + 1);
        }
        if (line["id"] != Json(conversations_[i].id)) {
            KD_THROW(invalid_argument,
                     "{} line {} is the answer to {}, the prompt there is {}; --overwrite starts "
                     "anew",
                     options_.json, i + 1, line["id"].dump(), conversations_[i].id.dump());
        }
        if (line.contains("error")) ++errors_;
    }
    written_ = kept.size();
}

int BatchRun::run() {
    if (written_ < conversations_.size()) answer_rest();
    if (written_ < conversations_.size()) return kInterruptedExitCode;
    if (errors_ > 0) {
        report_error(fmt::format("{} of {} prompts could not be answered: see \"error\" in {}",
                                 errors_, conversations_.size(),
                                 options_.json == "-" ? "the output" : options_.json));
    }
    return errors_ > 0 ? 1 : 0;
}

void BatchRun::answer_rest() {
    engine_ = load_engine(options_.answer.config, answer_settings(options_.answer));
    prepare_speculation(*engine_, options_.answer);
    file_.begin();
    watch_interrupts();
    const auto begin = std::chrono::steady_clock::now();
    Progress progress({.label = "answering",
                       .total = static_cast<double>(conversations_.size()),
                       .unit = "prompts",
                       .done = static_cast<double>(written_)});
    const auto running = static_cast<size_t>(engine_->config().max_running_requests);
    for (size_t next = written_; written_ < conversations_.size() && !interrupted();) {
        while (next < conversations_.size() && jobs_.size() < running) start(next++);
        engine_->step();
        for (auto job = jobs_.begin(); job != jobs_.end();) {
            job = advance(*job) ? std::next(job) : jobs_.erase(job);
        }
        progress.update(static_cast<double>(written_));
    }
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    summarise(seconds.count());
}

void BatchRun::start(size_t conversation) {
    Job job = {.conversation = conversation};
    job.choices.resize(static_cast<size_t>(std::max(options_.samples, 1)));
    const bool system = !options_.answer.system.empty();
    for (Choice& choice : job.choices) {
        if (system)
            choice.messages.push_back({.role = "system", .content = options_.answer.system});
    }
    try {
        if (conversations_[conversation].turns.empty()) {
            KD_THROW(invalid_argument, "there is no turn");
        }
        submit_turn(job);
        jobs_.push_back(std::move(job));
    } catch (const Error& error) {
        fail(job, error.what());
    }
}

/// The job's present turn to the engine, for all its choices. Throws kd::Error if one is refused.
void BatchRun::submit_turn(Job& job) {
    const std::string& text = conversations_[job.conversation].turns[job.turn];
    if (text.empty()) KD_THROW(invalid_argument, "turn {} is empty", job.turn + 1);
    for (Choice& choice : job.choices) {
        choice.messages.push_back({.role = "user", .content = text});
        choice.answer = {};
        choice.id = 0;
    }
    if (job.turn == 0) {
        const std::vector<RequestId> ids =
            engine_->submit_n(request_of(options_.answer, encode(job.choices.front())),
                              static_cast<int32_t>(job.choices.size()));
        for (size_t i = 0; i < ids.size(); ++i) job.choices[i].id = ids[i];
        return;
    }
    // From here on each choice is a conversation of its own.
    for (size_t i = 0; i < job.choices.size(); ++i) {
        Request request = request_of(options_.answer, encode(job.choices[i]));
        request.sampling.seed += i;
        job.choices[i].id = engine_->submit(std::move(request));
    }
}

std::vector<int32_t> BatchRun::encode(const Choice& choice) const {
    const Tokenizer& tokenizer = engine_->tokenizer();
    if (!options_.answer.raw) return encode_messages(tokenizer, choice.messages);
    std::string text;
    for (const ChatMessage& message : choice.messages) text += message.content;
    return encode_prompt(tokenizer, text, /*raw=*/true);
}

/// Takes what is new. False: the job is done.
bool BatchRun::advance(Job& job) {
    bool turn_done = true;
    for (Choice& choice : job.choices) {
        if (choice.answer.finish == FinishReason::none) {
            append(choice.answer, engine_->poll(choice.id));
        }
        if (choice.answer.finish == FinishReason::error) {
            fail(job, choice.answer.error);
            return false;
        }
        turn_done = turn_done && choice.answer.finish != FinishReason::none;
    }
    if (!turn_done) return true;
    end_turn(job);
    if (++job.turn == conversations_[job.conversation].turns.size()) {
        if (options_.samples == 0) {
            put(job.conversation, result(job.choices.front()));
            return false;
        }
        Json choices = Json::array();
        for (const Choice& choice : job.choices) choices.push_back(result(choice));
        put(job.conversation, {{"choices", std::move(choices)}});
        return false;
    }
    try {
        submit_turn(job);
    } catch (const Error& error) {
        fail(job, error.what());
        return false;
    }
    return true;
}

void BatchRun::end_turn(Job& job) {
    for (Choice& choice : job.choices) {
        totals_ += choice.answer.stats;
        choice.turns.push_back(answer_json(choice.answer));
        choice.messages.push_back({.role = "assistant", .content = choice.answer.text});
    }
}

/// The whole conversation becomes an error, its other choices are given up.
void BatchRun::fail(Job& job, const std::string& error) {
    for (const Choice& choice : job.choices) {
        if (choice.id == 0) continue;
        engine_->cancel(choice.id);
        if (choice.answer.finish == FinishReason::none) engine_->poll(choice.id);
    }
    ++errors_;
    put(job.conversation, {{"error", error}});
}

Json BatchRun::result(const Choice& choice) const {
    Json out = choice.turns.back();
    if (choice.turns.size() > 1) out["turns"] = choice.turns;
    return out;
}

/// A conversation's line, and all that waited for it, to the file.
void BatchRun::put(size_t conversation, Json&& result) {
    Json line = {{"id", conversations_[conversation].id}};
    line.update(result);
    ready_[conversation] = json_line(line) + '\n';
    ++answered_;
    while (!ready_.empty() && ready_.begin()->first == written_) {
        file_.append(ready_.begin()->second);
        ready_.erase(ready_.begin());
        ++written_;
    }
}

void BatchRun::summarise(double seconds) const {
    const SessionStats& s = totals_;
    if (options_.answer.stats) {
        write_err(
            fmt::format("prompts     {} answered, {} tokens, {} of them from the cache\n"
                        "answers     {} tokens, {:.3f} s ({:.1f} tokens/s)\n"
                        "rounds      {} of all sessions, acceptance length {:.2f}, mean tree "
                        "{:.2f} nodes\n"
                        "{}",
                        answered_, s.prompt_tokens, s.reused_tokens, s.tokens, seconds,
                        per_second(s.tokens, seconds), s.rounds, per_round(s.tokens, s),
                        per_round(s.nodes, s), kv_pool_text(s)));
    }
    if (options_.answer.stats_json.empty()) return;
    write_file(options_.answer.stats_json, Json{{"prompts", answered_},
                                                {"prompt_tokens", s.prompt_tokens},
                                                {"reused_tokens", s.reused_tokens},
                                                {"tokens", s.tokens},
                                                {"seconds", seconds},
                                                {"tokens_per_s", per_second(s.tokens, seconds)},
                                                {"rounds", s.rounds},
                                                {"acceptance_length", per_round(s.tokens, s)},
                                                {"mean_nodes", per_round(s.nodes, s)},
                                                {"kv_pool", kv_pool_json(s)}}
                                                   .dump(2) +
                                               "\n");
}

}  // namespace

int batch_run(const BatchRunOptions& options) {
    refuse_oracle(options.answer);
    expect_distinct(options.prompts, options.json);
    if (!options.answer.stats_json.empty()) expect_writable(options.answer.stats_json);
    return BatchRun(options).run();
}

}  // namespace kd
