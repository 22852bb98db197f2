// From what a user typed to the ids a model reads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/tokenizer.h"

namespace kd {

struct ChatMessage {
    std::string role;  // system, user, assistant
    std::string content;
};

/// The conversation in the model's chat template, ready for the assistant's next answer, tokenised.
/// As transformers does it, control tokens written in a message ("<|im_end|>") become control
/// tokens: whoever passes on the text of strangers has to look for them first. Throws kd::Error for
/// a model without a template and for what the template refuses.
std::vector<int32_t> encode_messages(const Tokenizer& tokenizer,
                                     std::span<const ChatMessage> messages);

/// The prompt as the first user turn of the model's chat template, tokenised. With `raw` the text
/// alone, control tokens written in it included. Throws kd::Error for an empty prompt or a model
/// without a template.
std::vector<int32_t> encode_prompt(const Tokenizer& tokenizer, std::string_view prompt, bool raw);

struct PromptLine {
    std::string id;
    std::string turn;  // the first user turn
};

/// Lines {"id", "turns": [text, ...]} of a .jsonl file, at most `limit` (0: all). Throws kd::Error
/// naming file and line, for an empty first turn too.
std::vector<PromptLine> read_prompts(const std::string& path, int32_t limit);

struct Conversation {
    nlohmann::json id;               // text or a number; the line's number where it has none
    std::vector<std::string> turns;  // of the user; may be none, and empty
};

/// The same lines with all their turns. Throws kd::Error naming file and line for what has another
/// shape, and for a file without any line.
std::vector<Conversation> read_conversations(const std::string& path, int32_t limit);

/// No prompt that fits a context and no file of prompts is larger.
inline constexpr size_t kMaxInputBytes = size_t{256} << 20;

/// A whole file or, for "-", standard input. Throws kd::Error naming it, also for one of more than
/// `most_bytes`.
std::string read_text(const std::string& path, size_t most_bytes = kMaxInputBytes);

}  // namespace kd
