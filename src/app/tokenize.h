// kdtree tokenize: text to ids, ids to text, conversations to both, a JSON line each.
#pragma once

#include <string>

namespace kd {

enum class TokenizeTask {
    encode,  // {"text", "special"} -> {"ids"}
    decode,  // {"ids", "special"} -> {"text"}
    chat,    // {"messages", ...} -> {"text", "ids"}
};

struct TokenizeOptions {
    std::string model = "smollm2";  // its metadata alone is read
    TokenizeTask task = TokenizeTask::encode;
    std::string chat_template;  // chat: a file with another template; empty: the model's
    std::string input = "-";    // a .jsonl file; "-": standard input
    std::string json = "-";     // where the lines go; "-": standard output
};

/// Answers each line as soon as it is there, {"error"} for one that it refuses; blank lines are
/// skipped. Returns the exit code: 0, 1 if a line was refused, 130 after Ctrl-C. Throws kd::Error
/// for what concerns more than a line.
int tokenize(const TokenizeOptions& options);

}  // namespace kd
