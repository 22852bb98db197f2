#include "app/tokenize.h"

#include <cstdint>
#include <optional>
#include <vector>

#include "app/interrupt.h"
#include "app/json_line.h"
#include "app/line_io.h"
#include "app/output.h"
#include "app/progress.h"
#include "app/prompt.h"
#include "base/error.h"
#include "engine/engine.h"
#include "formats/chat_template.h"
#include "formats/model_tokenizer.h"
#include "formats/utf8.h"

namespace kd {

namespace {

using Json = nlohmann::ordered_json;

/// As transformers' apply_chat_template: what the line does not say is there, too.
Json chat(const Tokenizer& tokenizer, const ChatTemplate& chat_template, Json line) {
    line_field(line, "messages", &Json::is_array, "array");
    const auto standard = [&](std::string_view name, Json value) {
        if (line.find(name) == line.end()) line.emplace(name, std::move(value));
    };
    standard("tools", nullptr);
    standard("documents", nullptr);
    standard("add_generation_prompt", false);
    for (const auto& [name, id] : tokenizer.named_tokens()) {
        standard(name, tokenizer.token_text(id));
    }
    const std::string text = chat_template.render(line);
    std::vector<int32_t> ids = tokenizer.encode(text, /*parse_special=*/true);
    return {{"text", replace_invalid_utf8(text)}, {"ids", std::move(ids)}};
}

std::optional<ChatTemplate> load_template(const TokenizeOptions& options,
                                          const Tokenizer& tokenizer) {
    if (options.task != TokenizeTask::chat) return std::nullopt;
    if (!options.chat_template.empty()) {
        return ChatTemplate(read_text(options.chat_template), options.chat_template);
    }
    if (tokenizer.chat_template().empty()) {
        KD_THROW(invalid_argument, "the model has no chat template: give --chat-template FILE");
    }
    return ChatTemplate(tokenizer.chat_template());
}

struct Lines {
    int64_t answered = 0;
    int64_t refused = 0;
    bool interrupted = false;
};

/// `answer`: from a line to its answer; throws kd::Error to refuse it.
template <class Answer>
Lines answer_lines(LineInput& input, LineOutput& output, Answer answer) {
    std::optional<Progress> progress;
    if (input.total_bytes() > 0) {
        progress.emplace(ProgressTask{.label = "tokenizing",
                                      .total = static_cast<double>(input.total_bytes()),
                                      .unit = "bytes"});
    }
    Lines lines;
    const auto refuse = [&](std::string_view why) {
        ++lines.refused;
        output.write(error_line(why));
    };
    double bytes = 0;
    for (std::string line;;) {
        if (interrupted()) return {.interrupted = true};
        switch (input.next(line, /*wait=*/true)) {
            case LineInput::Next::not_yet:
                continue;
            case LineInput::Next::end:
                lines.interrupted = interrupted();  // Ctrl-C ends who writes the input, too
                return lines;
            case LineInput::Next::too_long:
                refuse(fmt::format("longer than {} bytes: nothing is read from here on",
                                   kMaxLineBytes));
                return lines;
            case LineInput::Next::line:
                break;
        }
        bytes += static_cast<double>(line.size()) + 1;
        if (progress) progress->update(bytes);
        if (line.find_first_not_of(" \t\r") == line.npos) continue;
        std::string answered;
        try {
            answered = json_line(answer(line));
        } catch (const Error& error) {
            refuse(error.what());
            continue;
        }
        ++lines.answered;
        output.write(std::move(answered));
    }
}

}  // namespace

int tokenize(const TokenizeOptions& options) {
    expect_distinct(options.input, options.json);
    LineInput input(options.input);
    const Tokenizer tokenizer =
        read_tokenizer(ModelFile(resolve_model(options.model), ForeignTensors::list));
    const std::optional<ChatTemplate> chat_template = load_template(options, tokenizer);
    LineOutput output(options.json);
    watch_interrupts();
    const Lines lines = answer_lines(input, output, [&](std::string_view text) {
        Json line = parse_json_line(text);
        switch (options.task) {
            case TokenizeTask::encode:
                return Json{{"ids", encode_line(line, tokenizer)}};
            case TokenizeTask::decode:
                return Json{{"text", replace_invalid_utf8(tokenizer.decode(
                                         line_ids(line, tokenizer), line_special(line)))}};
            case TokenizeTask::chat:
                break;
        }
        return chat(tokenizer, *chat_template, std::move(line));
    });
    if (lines.interrupted) return kInterruptedExitCode;
    if (lines.refused == 0) return 0;
    report_error(
        fmt::format("{} of {} lines refused", lines.refused, lines.refused + lines.answered));
    return 1;
}

}  // namespace kd
