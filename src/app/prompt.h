// From what a user typed to the ids a model reads.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "formats/tokenizer.h"

namespace kd {

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

/// A whole file or, for "-", standard input. Throws kd::Error naming it.
std::string read_text(const std::string& path);

}  // namespace kd
