#include "app/chat.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "app/line_editor.h"
#include "app/output.h"
#include "app/prompt.h"
#include "app/settings.h"
#include "base/error.h"

namespace kd {

namespace {

constexpr std::string_view kHelp =
    "/help         this list\n"
    "/reset        forget the conversation, keep the system message\n"
    "/system TEXT  set the system message and forget the conversation; without TEXT show it\n"
    "/stats        speed of the last answer, and how full the context is\n"
    "/exit         leave, as Ctrl-D does\n"
    "A line that ends with \\ goes on in the next one; \"\"\" begins and ends a text of several "
    "lines.\n"
    "A message that begins with / needs a space before it. Ctrl-C stops an answer.\n";

constexpr std::array<std::string_view, 5> kCommands = {"/help", "/reset", "/system", "/stats",
                                                       "/exit"};

constexpr std::string_view kQuotes = "\"\"\"";

volatile std::sig_atomic_t g_stop_answer = 0;

void stop_answer(int /*signal*/) {
    g_stop_answer = 1;
}

/// Ctrl-C stops the answer from here on. Returns what it did before.
struct sigaction stop_answer_on_interrupt() {
    struct sigaction before {};
    struct sigaction now {};
    now.sa_handler = stop_answer;
    now.sa_flags = SA_RESTART;
    sigaction(SIGINT, &now, &before);
    return before;
}

std::string_view trimmed(std::string_view text) {
    const size_t begin = text.find_first_not_of(" \t");
    if (begin == std::string_view::npos) return {};
    return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

void say(std::string_view text) {
    write_err(fmt::format("({})\n", text));
}

class Chat {
  public:
    explicit Chat(const AnswerOptions& options);
    int run();

  private:
    enum class Input { message, command, end };

    Input read(std::string& text);
    bool continue_lines(std::string& text);
    bool continue_quoted(std::string& text);
    bool command(std::string_view line);
    void set_system(std::string_view text);
    void reset();
    void print_stats() const;
    void take_turn(const std::string& text);
    std::optional<RequestId> submit();
    Delta stream_answer(RequestId id);
    void comment(const Delta& answer) const;

    const AnswerOptions& options_;
    const std::unique_ptr<Engine> engine_;
    const int32_t room_;
    LineEditor editor_;
    std::string system_;
    std::vector<ChatMessage> messages_;
    Delta last_;  // the last answer; its text is in messages_
};

Chat::Chat(const AnswerOptions& options)
    : options_(options),
      engine_(load_engine(options.config, answer_settings(options))),
      room_(context_room(*engine_)),
      system_(options.system) {
    // What every turn would be refused for is told now: bad settings, a model without a template.
    const ChatMessage nothing[] = {{.role = "user", .content = "Hello"}};
    encode_messages(engine_->tokenizer(), nothing);
    engine_->check(request_of(options, {0}));
    prepare_speculation(*engine_, options);
    reset();
}

int Chat::run() {
    // A person who is slow with Ctrl-C wants the answer stopped, not the program; from a pipe there
    // is nobody to go on.
    if (editor_.prompts()) {
        stop_answer_on_interrupt();
        say(fmt::format("{} tokens of context; /help lists the commands, Ctrl-D leaves", room_));
    }
    for (std::string text;;) {
        switch (read(text)) {
            case Input::message:
                take_turn(text);
                break;
            case Input::command:
                if (!command(text)) return 0;
                break;
            case Input::end:
                return 0;
        }
    }
}

/// The next message, put together of its lines, or the next command.
Chat::Input Chat::read(std::string& text) {
    bool cancelled_before = false;
    for (;;) {
        const LineEditor::Event event = editor_.read("> ", text);
        if (event == LineEditor::Event::end) return Input::end;
        if (event == LineEditor::Event::cancelled) {
            if (cancelled_before && text.empty()) return Input::end;
            if (text.empty()) say("Ctrl-C once more, or Ctrl-D, leaves");
            cancelled_before = true;
            continue;
        }
        cancelled_before = false;
        if (trimmed(text).empty()) continue;
        // Pasted lines are a message whatever they begin with.
        const bool one_line = text.find('\n') == std::string::npos;
        if (one_line && text.starts_with('/')) {
            editor_.remember(text);
            return Input::command;
        }
        const bool quoted = one_line && text.starts_with(kQuotes);
        if (!(quoted ? continue_quoted(text) : continue_lines(text))) continue;
        if (trimmed(text).empty()) continue;
        editor_.remember(text);
        return Input::message;
    }
}

/// Adds the lines that follow a line with \ at its end. False: cancelled.
bool Chat::continue_lines(std::string& text) {
    while (text.ends_with('\\')) {
        text.pop_back();
        std::string line;
        const LineEditor::Event event = editor_.read("... ", line);
        if (event == LineEditor::Event::cancelled) return false;
        if (event == LineEditor::Event::end) return true;
        text += '\n' + line;
    }
    return true;
}

/// From the opening quotes to the closing ones, or to the end of the input. False: cancelled.
bool Chat::continue_quoted(std::string& text) {
    text.erase(0, kQuotes.size());
    for (bool first = true;; first = false) {
        if (text.ends_with(kQuotes)) {
            text.resize(text.size() - kQuotes.size());
            if (text.ends_with('\n')) text.pop_back();
            return true;
        }
        std::string line;
        const LineEditor::Event event = editor_.read("... ", line);
        if (event == LineEditor::Event::cancelled) return false;
        if (event == LineEditor::Event::end) return true;
        if (!first || !text.empty()) text += '\n';
        text += line;
    }
}

/// False: leave.
bool Chat::command(std::string_view line) {
    const size_t space = std::min(line.find_first_of(" \t"), line.size());
    const std::string_view name = line.substr(0, space);
    const std::string_view argument = trimmed(line.substr(space));
    if (std::find(kCommands.begin(), kCommands.end(), name) == kCommands.end()) {
        say(fmt::format("{} is no command: /help, /reset, /system TEXT, /stats or /exit", name));
    } else if (name == "/system") {
        set_system(argument);
    } else if (!argument.empty()) {
        say(fmt::format("{} takes nothing behind it", name));
    } else if (name == "/help") {
        write_err(kHelp);
    } else if (name == "/reset") {
        reset();
        say("the conversation is empty");
    } else if (name == "/stats") {
        print_stats();
    } else {
        return false;  // /exit
    }
    return true;
}

void Chat::set_system(std::string_view text) {
    if (text.empty()) {
        say(system_.empty() ? "there is no system message but the template's own"
                            : "the system message is: " + system_);
        return;
    }
    system_ = text;
    reset();
    say("the system message is set, the conversation is empty");
}

void Chat::reset() {
    messages_.clear();
    last_ = {};
    if (!system_.empty()) messages_.push_back({.role = "system", .content = system_});
}

void Chat::print_stats() const {
    if (last_.stats.prompt_tokens == 0) return say("there is no answer yet");
    write_err(stats_text(last_) + fmt::format("context     {} of {} tokens used by {} messages\n",
                                              last_.stats.prompt_tokens + last_.stats.tokens, room_,
                                              messages_.size()));
}

void Chat::take_turn(const std::string& text) {
    messages_.push_back({.role = "user", .content = text});
    const std::optional<RequestId> id = submit();
    if (!id.has_value()) return messages_.pop_back();
    Delta answer = stream_answer(*id);
    if (answer.finish == FinishReason::error) {
        report_error(answer.error);
        return messages_.pop_back();
    }
    if (answer.finish == FinishReason::abort && answer.ids.empty()) {
        say("stopped before the answer began: your message is taken back");
        return messages_.pop_back();
    }
    messages_.push_back({.role = "assistant", .content = std::move(answer.text)});
    comment(answer);
    last_ = std::move(answer);
}

/// The conversation as it stands; nothing if it is refused, which is said.
std::optional<RequestId> Chat::submit() {
    try {
        std::vector<int32_t> prompt = encode_messages(engine_->tokenizer(), messages_);
        if (std::ssize(prompt) >= room_) {
            say(
                fmt::format("with this message the conversation has {} tokens, the context holds "
                            "{}: it is left out; /reset starts anew",
                            prompt.size(), room_));
            return std::nullopt;
        }
        return engine_->submit(request_of(options_, std::move(prompt)));
    } catch (const Error& error) {
        report_error(error.what());
        return std::nullopt;
    }
}

/// To the end, or until Ctrl-C.
Delta Chat::stream_answer(RequestId id) {
    g_stop_answer = 0;
    const struct sigaction before = stop_answer_on_interrupt();
    PromptProgress reading;
    Delta whole;
    for (int32_t round = 0; whole.finish == FinishReason::none;) {
        if (g_stop_answer != 0) engine_->cancel(id);
        const RoundStats* stats = engine_->step();
        Delta delta = engine_->poll(id);
        reading.follow(stats, delta);
        write_out(delta.text);
        if (options_.show_tree && stats != nullptr && stats->decoding > 0) {
            write_err(tree_text(*engine_, ++round));
        }
        append(whole, std::move(delta));
    }
    sigaction(SIGINT, &before, nullptr);
    write_out("\n");
    return whole;
}

void Chat::comment(const Delta& answer) const {
    const int32_t used = answer.stats.prompt_tokens + answer.stats.tokens;
    if (answer.finish == FinishReason::abort) {
        say("stopped");
    } else if (answer.finish == FinishReason::length && used >= room_) {
        say(fmt::format("the context of {} tokens is full: /reset starts anew", room_));
    } else if (answer.finish == FinishReason::length) {
        say(fmt::format("ended after --max-tokens {}", options_.max_tokens));
    }
    if (options_.stats) write_err(stats_text(answer));
}

}  // namespace

int chat(const AnswerOptions& options) {
    refuse_oracle(options);
    return Chat(options).run();
}

}  // namespace kd
