#include "app/prompt.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "formats/chat_template.h"

namespace kd {

std::vector<int32_t> encode_messages(const Tokenizer& tokenizer,
                                     std::span<const ChatMessage> messages) {
    if (tokenizer.chat_template().empty()) {
        KD_THROW(invalid_argument, "the model has no chat template: use --raw");
    }
    const ChatTemplate chat(tokenizer.chat_template());
    nlohmann::ordered_json variables;
    variables["messages"] = nlohmann::ordered_json::array();
    for (const ChatMessage& message : messages) {
        variables["messages"].push_back({{"role", message.role}, {"content", message.content}});
    }
    variables["add_generation_prompt"] = true;
    variables["bos_token"] = tokenizer.token_text(tokenizer.bos());
    variables["eos_token"] = tokenizer.token_text(tokenizer.eos());
    return tokenizer.encode(chat.render(variables), /*parse_special=*/true);
}

std::vector<int32_t> encode_prompt(const Tokenizer& tokenizer, std::string_view prompt, bool raw) {
    if (prompt.empty()) KD_THROW(invalid_argument, "the prompt is empty");
    if (raw) return tokenizer.encode(prompt, /*parse_special=*/true);
    return encode_messages(
        tokenizer, std::vector<ChatMessage>{{.role = "user", .content = std::string(prompt)}});
}

std::string read_text(const std::string& path, size_t most_bytes) {
    std::FILE* in = path == "-" ? stdin : std::fopen(path.c_str(), "rb");
    const std::string name = path == "-" ? "standard input" : path;
    if (in == nullptr) KD_THROW(io, "cannot open {}: {}", name, std::strerror(errno));
    struct stat info {};
    if (fstat(fileno(in), &info) == 0 && S_ISDIR(info.st_mode)) {
        if (in != stdin) std::fclose(in);
        KD_THROW(io, "{} is a directory", name);
    }
    std::string text;
    char buffer[65536];
    for (size_t got = 0;
         text.size() <= most_bytes && (got = std::fread(buffer, 1, sizeof buffer, in)) > 0;) {
        text.append(buffer, got);
    }
    const int why = std::ferror(in) != 0 ? errno : 0;
    if (in != stdin) std::fclose(in);
    if (why != 0) KD_THROW(io, "cannot read {}: {}", name, std::strerror(why));
    if (text.size() > most_bytes) {
        KD_THROW(invalid_argument, "{} is larger than {} bytes", name, most_bytes);
    }
    return text;
}

namespace {

/// Calls take(line's JSON value, its number) for each line that is not blank, at most `limit`;
/// it returns whether the line has the shape it expects.
template <class Take>
void read_lines(const std::string& path, int32_t limit, Take&& take) {
    std::istringstream lines(read_text(path));
    int32_t number = 0;
    int32_t taken = 0;
    for (std::string line; std::getline(lines, line);) {
        ++number;
        if (limit > 0 && taken == limit) break;
        if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
        const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
        const bool good = json.is_object() && json.contains("turns") && json["turns"].is_array() &&
                          take(json, number);
        if (!good) {
            KD_THROW(corrupt, "{} line {}: expected {{\"id\", \"turns\": [text, ...]}}", path,
                     number);
        }
        ++taken;
    }
    if (taken == 0) KD_THROW(invalid_argument, "{} holds no prompt", path);
}

}  // namespace

std::vector<PromptLine> read_prompts(const std::string& path, int32_t limit) {
    std::vector<PromptLine> prompts;
    read_lines(path, limit, [&](const nlohmann::json& json, int32_t number) {
        const nlohmann::json& turns = json["turns"];
        if (turns.empty() || !turns[0].is_string() || turns[0] == "") return false;
        const auto id = json.find("id");
        prompts.push_back({.id = id != json.end() && id->is_string() ? id->get<std::string>()
                                                                     : fmt::format("{}", number),
                           .turn = turns[0].get<std::string>()});
        return true;
    });
    return prompts;
}

std::vector<Conversation> read_conversations(const std::string& path, int32_t limit) {
    std::vector<Conversation> conversations;
    read_lines(path, limit, [&](const nlohmann::json& json, int32_t number) {
        Conversation read = {.id = json.value("id", nlohmann::json(number))};
        if (!read.id.is_string() && !read.id.is_number()) return false;
        for (const nlohmann::json& turn : json["turns"]) {
            if (!turn.is_string()) return false;
            read.turns.push_back(turn.get<std::string>());
        }
        conversations.push_back(std::move(read));
        return true;
    });
    return conversations;
}

}  // namespace kd
