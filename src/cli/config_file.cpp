#include "cli/config_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <set>
#include <string_view>
#include <utility>

#include "app/text.h"
#include "base/error.h"
#include "cli/help.h"

namespace kd {

namespace {

constexpr std::string_view kDigits = "0123456789";
constexpr std::string_view kHexDigits = "0123456789abcdefABCDEF";

/// Quoted from the file into a message: not the whole of it.
std::string shown(std::string_view text) {
    constexpr size_t kMost = 40;
    if (text.size() <= kMost) return std::string(text);
    return std::string(text.substr(0, kMost)) + "...";
}

class Reader {
  public:
    Reader(const std::string& path, std::string_view text) : text_(text) { file_.path = path; }

    ConfigFile read() {
        check_bytes();
        if (text_.starts_with("\xef\xbb\xbf")) at_ = 3;  // a byte-order mark
        for (skip_lines(); at_ < text_.size(); skip_lines()) {
            if (text_[at_] == '[') {
                read_section();
            } else {
                read_entry();
            }
            end_line();
        }
        return std::move(file_);
    }

  private:
    template <class... Values>
    [[noreturn]] void refuse(fmt::format_string<Values...> form, Values&&... values) const {
        const std::string what = fmt::format(form, std::forward<Values>(values)...);
        if (key_.empty()) KD_THROW(invalid_argument, "{}:{}: {}", file_.path, line_, what);
        KD_THROW(invalid_argument, "{}:{}: {}: {}", file_.path, line_, key_, what);
    }

    char peek() const { return at_ < text_.size() ? text_[at_] : '\n'; }

    /// The word that begins here, for messages.
    std::string here() const {
        return shown(text_.substr(
            at_, std::min(text_.find_first_of(" \t\r\n,]#", at_), text_.size()) - at_));
    }

    void check_bytes() {
        for (const char each : text_) {
            const auto byte = static_cast<unsigned char>(each);
            const bool space = each == '\t' || each == '\n' || each == '\r';
            if ((byte < 0x20 && !space) || byte == 0x7f) {
                refuse("byte 0x{:02x}: a config file is text", byte);
            }
            if (each == '\n') ++line_;
        }
        line_ = 1;
    }

    void skip_blanks() {
        while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t')) ++at_;
    }

    void skip_comment() {
        if (peek() == '#') at_ = std::min(text_.find('\n', at_), text_.size());
    }

    /// Blanks, comments and ends of lines.
    void skip_lines() {
        for (;;) {
            skip_blanks();
            skip_comment();
            if (at_ < text_.size() && text_[at_] == '\n') {
                ++line_;
                ++at_;
            } else if (text_.substr(at_).starts_with("\r\n")) {
                ++at_;
            } else {
                return;
            }
        }
    }

    void end_line() {
        skip_blanks();
        skip_comment();
        if (text_.substr(at_).starts_with("\r\n")) ++at_;
        if (peek() != '\n') refuse("\"{}\" is too much on this line", here());
        key_.clear();
    }

    std::string read_name() {
        const size_t begin = at_;
        while (std::isalnum(static_cast<unsigned char>(peek())) || peek() == '-' || peek() == '_') {
            ++at_;
        }
        std::string name(text_.substr(begin, at_ - begin));
        std::replace(name.begin(), name.end(), '_', '-');
        return name;
    }

    void read_section() {
        ++at_;
        skip_blanks();
        section_ = read_name();
        skip_blanks();
        if (section_.empty() || peek() != ']') {
            refuse("a section is the name of a command in brackets, like [run]");
        }
        ++at_;
        const auto [before, fresh] = file_.sections.emplace(section_, line_);
        if (!fresh) refuse("section [{}] stands at line {} already", section_, before->second);
    }

    void read_entry() {
        const std::string begin = here();
        ConfigEntry entry = {.section = section_, .key = read_name(), .line = line_};
        skip_blanks();
        if (entry.key.empty() || peek() != '=') {
            refuse("\"{}\" begins neither key = value nor [section]", begin);
        }
        key_ = shown(entry.key);
        ++at_;
        skip_blanks();
        const auto [before, fresh] = keys_.emplace(std::pair(section_, entry.key), line_);
        if (!fresh) refuse("stands at line {} already", before->second);
        if (peek() == '[') {
            entry.array = true;
            read_array(entry.values);
        } else {
            entry.values.push_back(read_value());
        }
        file_.entries.push_back(std::move(entry));
    }

    void read_array(std::vector<ConfigValue>& values) {
        for (++at_, skip_lines(); peek() != ']'; skip_lines()) {
            values.push_back(read_value());
            skip_lines();
            if (peek() == ',') {
                ++at_;
            } else if (peek() != ']') {
                refuse("the array has no , or ] where \"{}\" stands", here());
            }
        }
        ++at_;
    }

    ConfigValue read_value() {
        const std::string_view rest = text_.substr(at_);
        if (rest.starts_with("\"\"\"") || rest.starts_with("'''")) {
            refuse("strings of several lines are not read here: use \\n");
        }
        if (rest.starts_with("\"")) return {ConfigKind::text, read_basic_string()};
        if (rest.starts_with("'")) return {ConfigKind::text, read_literal_string()};
        const std::string word = here();
        at_ += word.size();
        if (word == "true" || word == "false") return {ConfigKind::boolean, word};
        if (is_number(word)) return {ConfigKind::number, word};
        at_ -= word.size();
        if (word.empty()) refuse("no value");
        if (std::string_view("[{").find(word[0]) != std::string_view::npos) {
            refuse("arrays in arrays and tables are no values of options");
        }
        refuse("\"{0}\" is no value (text stands in quotes: \"{0}\")", word);
    }

    static bool is_number(std::string_view word) {
        if (word.starts_with('-') || word.starts_with('+')) word.remove_prefix(1);
        if (word.empty() || kDigits.find(word[0]) == kDigits.npos) return false;
        return word.find_first_not_of("0123456789.eE+-") == word.npos;
    }

    std::string read_literal_string() {
        const size_t end = text_.find_first_of("'\n", at_ + 1);
        if (end == text_.npos || text_[end] == '\n') refuse("a string has no end on its line");
        std::string value(text_.substr(at_ + 1, end - at_ - 1));
        at_ = end + 1;
        return value;
    }

    std::string read_basic_string() {
        std::string value;
        for (++at_; peek() != '"'; ++at_) {
            if (peek() == '\n') refuse("a string has no end on its line");
            if (text_[at_] == '\\') {
                ++at_;
                read_escape(value);
            } else {
                value += text_[at_];
            }
        }
        ++at_;
        return value;
    }

    /// Of the escape, the character behind the backslash is next; its last one is left.
    void read_escape(std::string& value) {
        constexpr std::string_view kLetters = "btnfr\"\\";
        constexpr std::string_view kMeanings = "\b\t\n\f\r\"\\";
        const char letter = peek();
        if (const size_t found = kLetters.find(letter); found != kLetters.npos) {
            value += kMeanings[found];
            return;
        }
        const size_t digits = letter == 'u' ? 4 : letter == 'U' ? 8 : 0;
        const std::string_view hex = text_.substr(std::min(at_ + 1, text_.size()), digits);
        if (digits == 0 || hex.size() < digits || hex.find_first_not_of(kHexDigits) != hex.npos) {
            refuse("\\{} is no escape", letter == '\n' ? ' ' : letter);
        }
        const uint64_t code = std::stoull(std::string(hex), nullptr, 16);
        const bool surrogate = code >= 0xd800 && code < 0xe000;
        if (code > 0x10ffff || surrogate) refuse("\\{}{} is no character", letter, hex);
        value += utf8_of(static_cast<char32_t>(code));
        at_ += digits;
    }

    std::string_view text_;
    size_t at_ = 0;
    int line_ = 1;
    std::string section_;
    std::string key_;  // of the entry being read, for messages
    std::map<std::pair<std::string, std::string>, int> keys_;  // of a section, and their lines
    ConfigFile file_;
};

// --- what options take -----------------------------------------------------------------------

[[noreturn]] void refuse(const ConfigFile& file, const ConfigEntry& entry,
                         const std::string& what) {
    KD_THROW(invalid_argument, "{}:{}: {}: {}", file.path, entry.line, shown(entry.key), what);
}

CLI::Option* option_of(CLI::App& app, const std::string& key) {
    // A short or positional name would match too.
    return app.get_option_no_throw("--" + key);
}

CLI::App* command_of(CLI::App& app, const std::string& name) {
    for (CLI::App* command : app.get_subcommands({})) {
        if (command->get_name() == name) return command;
    }
    return nullptr;
}

bool is_switch(const CLI::Option& option) {
    return option.get_items_expected_max() == 0;
}

void check_kind(const ConfigFile& file, const ConfigEntry& entry, const CLI::Option& option) {
    if (entry.array && option.get_items_expected_max() <= 1) {
        refuse(file, entry, "takes one value, no array");
    }
    const auto& [type, allowed] = type_text(option);
    const bool number = type == "INT" || type == "UINT" || type == "FLOAT";
    const bool text = type == "TEXT" || type_text(option).is_file() || type.find('|') != type.npos;
    for (const ConfigValue& value : entry.values) {
        if (is_switch(option) != (value.kind == ConfigKind::boolean)) {
            refuse(file, entry,
                   is_switch(option) ? "is a switch: true or false"
                                     : "is no switch: it takes a " + type);
        }
        if (text && value.kind == ConfigKind::number) {
            refuse(file, entry, fmt::format("takes text, in quotes: \"{}\"", shown(value.text)));
        }
        if (number && value.kind == ConfigKind::text) {
            refuse(file, entry, fmt::format("takes a number, not \"{}\"", shown(value.text)));
        }
    }
}

void give(CLI::Option& option, const ConfigEntry& entry) {
    if (is_switch(option)) {
        if (entry.values[0].text == "true") option.add_result("true");
        return;
    }
    for (const ConfigValue& value : entry.values) option.add_result(value.text);
}

/// The checks that the option itself would do, on an option that is good for nothing else.
void try_out(const ConfigFile& file, const ConfigEntry& entry, CLI::Option& option) {
    check_kind(file, entry, option);
    option.clear();
    try {
        give(option, entry);
        if (option.count() > 0) option.run_callback();
    } catch (const CLI::ParseError& error) {
        // CLI11 begins with the flag's name, which we have said already.
        const std::string name = "--" + option.get_lnames().front() + ": ";
        std::string_view what = error.what();
        if (what.starts_with(name)) what.remove_prefix(name.size());
        refuse(file, entry, shown(what));
    }
}

[[noreturn]] void refuse_unknown(const ConfigFile& file, const ConfigEntry& entry,
                                 const CLI::App& app, const CLI::App* command) {
    std::vector<std::string> known;
    std::vector<const CLI::App*> places = {command};
    if (command == nullptr) places = app.get_subcommands({});
    for (const CLI::App* place : places) {
        for (const std::string& flag : long_flags(app, place)) known.push_back(flag.substr(2));
    }
    const std::string guess = nearest(entry.key, known);
    refuse(file, entry,
           fmt::format("no option{}{}",
                       command == nullptr ? " of any command" : " of " + command->get_name(),
                       guess.empty() ? "" : fmt::format(", did you mean {}?", guess)));
}

/// Of a section without an entry too.
void check_sections(const ConfigFile& file, const CLI::App& app) {
    std::vector<std::string> known;
    for (const CLI::App* each : app.get_subcommands({})) known.push_back(each->get_name());
    for (const auto& [section, line] : file.sections) {
        if (std::find(known.begin(), known.end(), section) != known.end()) continue;
        const std::string guess = nearest(section, known);
        KD_THROW(invalid_argument, "{}:{}: section [{}] is no command{}", file.path, line,
                 shown(section), guess.empty() ? "" : fmt::format(", did you mean [{}]?", guess));
    }
}

/// The options that an entry is for: one of the program or of its section's command, else that of
/// every command that has it. Never empty.
std::vector<CLI::Option*> targets_of(const ConfigFile& file, const ConfigEntry& entry,
                                     CLI::App& app) {
    if (entry.key == "config" || entry.key == "version" || entry.key == "help") {
        refuse(file, entry, "stands on the command line only");
    }
    std::vector<CLI::Option*> targets;
    if (!entry.section.empty()) {
        CLI::App* command = command_of(app, entry.section);
        if (CLI::Option* option = option_of(*command, entry.key)) return {option};
        refuse_unknown(file, entry, app, command);
    }
    if (CLI::Option* option = option_of(app, entry.key)) return {option};
    for (CLI::App* command : app.get_subcommands({})) {
        if (CLI::Option* option = option_of(*command, entry.key)) targets.push_back(option);
    }
    if (targets.empty()) refuse_unknown(file, entry, app, nullptr);
    return targets;
}

}  // namespace

ConfigFile read_config_file(const std::string& path) {
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> in(std::fopen(path.c_str(), "rb"),
                                                             &std::fclose);
    if (in == nullptr) KD_THROW(io, "cannot read config file {}: {}", path, std::strerror(errno));
    std::string text(kMaxConfigBytes + 1, '\0');
    text.resize(std::fread(text.data(), 1, text.size(), in.get()));
    if (std::ferror(in.get()) != 0) {
        KD_THROW(io, "cannot read config file {}: {}", path, std::strerror(errno));
    }
    if (text.size() > kMaxConfigBytes) {
        KD_THROW(invalid_argument, "config file {} is larger than {} bytes", path, kMaxConfigBytes);
    }
    return Reader(path, text).read();
}

void apply_config(const ConfigFile& file, CLI::App& parsed, CLI::App& fresh) {
    CLI::App* chosen = parsed.get_subcommands().at(0);
    std::set<std::string> given;
    for (const CLI::App* app :
         {static_cast<const CLI::App*>(&parsed), static_cast<const CLI::App*>(chosen)}) {
        for (const CLI::Option* option : app->get_options()) {
            if (option->count() > 0) given.insert(option->get_name());
        }
    }
    check_sections(file, parsed);
    for (const ConfigEntry& entry : file.entries) {
        for (CLI::Option* option : targets_of(file, entry, parsed)) try_out(file, entry, *option);
    }
    // A command's own section goes first: what it has given is no longer open.
    std::vector<const ConfigEntry*> order;
    for (const ConfigEntry& entry : file.entries) order.push_back(&entry);
    std::stable_partition(order.begin(), order.end(),
                          [](const ConfigEntry* entry) { return !entry->section.empty(); });
    CLI::App* command = command_of(fresh, chosen->get_name());
    for (const ConfigEntry* entry : order) {
        if (!entry->section.empty() && entry->section != command->get_name()) continue;
        CLI::Option* option = option_of(*command, entry->key);
        if (option == nullptr) option = option_of(fresh, entry->key);
        if (option == nullptr || !given.insert(option->get_name()).second) continue;
        give(*option, *entry);
    }
}

}  // namespace kd
