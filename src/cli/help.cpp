#include "cli/help.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <memory>
#include <numeric>
#include <string_view>

#include "app/output.h"
#include "app/text.h"
#include "base/error.h"

namespace kd {

namespace {

constexpr int kIndent = 2;
constexpr int kTextColumn = 30;  // of the descriptions, beside their flags
constexpr int kLeastColumns = 50;
constexpr std::string_view kEnvironment =
    "KDTREE_CACHE: the folder of models and cost tables (default: kdtree in $XDG_CACHE_HOME, else "
    "in ~/.cache)";
constexpr std::string_view kExitCodes = "0 done, 1 error, 130 interrupted by Ctrl-C";
// The groups of options that several commands share stand behind a command's own.
constexpr const char* kGroupOrder[] = {"Model",    "KV pool", "Speculation",
                                       "Sampling", "Output",  "General"};

/// `text` in lines of at most `columns`, all indented by `indent`; `begun` columns of the first one
/// are already there.
std::string indented(std::string_view text, int indent, int columns, int begun = 0) {
    std::string out;
    for (const std::string& line : wrapped(text, static_cast<size_t>(columns - indent))) {
        out += std::string(static_cast<size_t>(indent - begun), ' ') + line + '\n';
        begun = 0;
    }
    return out;
}

std::string upper(std::string text) {
    for (char& each : text)
        each = static_cast<char>(std::toupper(static_cast<unsigned char>(each)));
    return text;
}

std::string heading(const std::string& title) {
    return fmt::format("\n{}\n", upper(title));
}

/// A term and what it means, beside or below it.
std::string entry(const std::string& term, const std::string& text, int columns) {
    const std::string left = std::string(kIndent, ' ') + term;
    const auto width = static_cast<int>(left.size());
    if (width + 2 > kTextColumn) return left + "\n" + indented(text, kTextColumn, columns);
    return left + indented(text, kTextColumn, columns, width);
}

/// `facts` in brackets behind `text`, or in the brackets that end it with a default.
std::string with_facts(std::string text, const std::string& facts) {
    if (facts.empty()) return text;
    const size_t bracket = text.rfind(" (default: ");
    if (bracket != text.npos && text.find(')', bracket) + 1 == text.size()) {
        text.back() = ';';
        return fmt::format("{} {})", text, facts);
    }
    return fmt::format("{} ({})", text, facts);
}

std::string option_entry(const CLI::Option& option, int columns) {
    std::string names;
    if (option.get_positional() && option.get_lnames().empty()) {
        names = option.get_name(/*positional=*/true);
    } else {
        for (const std::string& name : option.get_snames()) names += "-" + name + ", ";
        names += "--" + option.get_lnames().front();
    }
    const TypeText type = type_text(option);
    if (!type.type.empty() && !option.get_positional()) names += " " + type.type;
    std::string facts = type.allowed;
    const auto add = [&](const std::string& fact) {
        if (!facts.empty()) facts += "; ";
        facts += fact;
    };
    if (option.get_required()) add("required");
    if (!option.get_default_str().empty()) add("default: " + option.get_default_str());
    return entry(names, with_facts(option.get_description(), facts), columns);
}

std::string options_of_group(const CLI::App& app, const std::string& group, int columns) {
    std::string out;
    for (const CLI::Option* option : app.get_options()) {
        if (option->get_group() == group) out += option_entry(*option, columns);
    }
    return out;
}

/// The program's own options apply to every command.
std::string general_options(const CLI::App& app, const CLI::App* command, int columns) {
    std::string out;
    for (const CLI::Option* option : app.get_options()) {
        const bool help = option == app.get_help_ptr();
        const bool version = option->check_lname("version");
        if (command == nullptr || (!help && !version)) out += option_entry(*option, columns);
    }
    if (command != nullptr) out += option_entry(*command->get_help_ptr(), columns);
    return out;
}

std::string synopsis(const CLI::App& command) {
    std::string text = fmt::format("kdtree {}", command.get_name());
    for (const CLI::Option* option : command.get_options()) {
        if (option->get_positional() || !option->get_required()) continue;
        text += fmt::format(" --{} {}", option->get_lnames().front(), type_text(*option).type);
    }
    text += " [OPTIONS]";
    for (const CLI::Option* option : command.get_options()) {
        if (!option->get_positional()) continue;
        const std::string name = option->get_name(/*positional=*/true);
        const char* more = option->get_items_expected_max() > 1 ? " ..." : "";
        const bool required = option->get_required();
        text += fmt::format(" {}{}{}{}", required ? "" : "[", name, more, required ? "" : "]");
    }
    return text;
}

struct Section {
    std::string title;
    std::vector<std::string> lines;
};

std::vector<Section> sections_of(std::string_view footer) {
    std::vector<Section> sections;
    while (!footer.empty()) {
        std::string_view row = footer.substr(0, footer.find('\n'));
        footer.remove_prefix(std::min(row.size() + 1, footer.size()));
        const size_t colon = row.find(": ");
        const std::string_view title = row.substr(0, colon);
        const bool titled = colon != row.npos && std::isupper(static_cast<unsigned char>(row[0])) &&
                            std::count(title.begin(), title.end(), ' ') < 2;
        if (titled) {
            // "Example" may stand before each of several.
            if (sections.empty() || sections.back().title != title) {
                sections.push_back({.title = std::string(title)});
            }
            row.remove_prefix(colon + 2);
        } else if (sections.empty()) {
            sections.push_back({.title = "Notes"});
        }
        if (!row.empty()) sections.back().lines.emplace_back(row);
    }
    return sections;
}

std::string print_section(const Section& section, int columns) {
    std::string out = heading(section.title);
    // A command line is left whole, to be copied.
    const bool whole = section.title.starts_with("Example");
    for (const std::string& line : section.lines) {
        const size_t text = std::min(line.find_first_not_of(' '), line.size());
        out += whole ? std::string(kIndent, ' ') + line.substr(text) + "\n"
                     : indented(line, kIndent, columns);
    }
    return out;
}

/// Insertions, deletions, substitutions and swaps of neighbours that make `a` into `b`.
size_t edits(std::string_view a, std::string_view b) {
    std::vector<size_t> two_above, above(b.size() + 1), row(b.size() + 1);
    std::iota(above.begin(), above.end(), size_t{0});
    for (size_t i = 1; i <= a.size(); ++i) {
        row[0] = i;
        for (size_t j = 1; j <= b.size(); ++j) {
            row[j] = std::min(
                {above[j] + 1, row[j - 1] + 1, above[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
            const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
            if (swapped) row[j] = std::min(row[j], two_above[j - 2] + 1);
        }
        two_above = std::exchange(above, row);
    }
    return above[b.size()];
}

}  // namespace

TypeText type_text(const CLI::Option& option) {
    const std::string all = option.get_type_name();
    const size_t colon = all.find(':');
    TypeText text = {.type = all.substr(0, colon)};
    if (colon != all.npos) text.allowed = all.substr(colon + 1);
    if (text.allowed == "FILE" || text.allowed == "DIR") {  // CLI11's checks of existing ones
        text.type = std::exchange(text.allowed, {});
    }
    return text;
}

int help_columns() {
    winsize size{};
    const bool known = isatty(STDOUT_FILENO) != 0 && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0;
    if (!known || size.ws_col == 0) return 80;
    return std::max<int>(size.ws_col, kLeastColumns);
}

std::string program_help(const CLI::App& app, int columns) {
    std::string out = indented(fmt::format("kdtree - {}", app.get_description()), 0, columns);
    out += heading("Synopsis") + "  kdtree COMMAND [OPTIONS] [ARGUMENTS]\n";
    const std::vector<const CLI::App*> commands = app.get_subcommands({});
    std::vector<std::string> groups;
    for (const CLI::App* command : commands) {
        if (std::find(groups.begin(), groups.end(), command->get_group()) == groups.end()) {
            groups.push_back(command->get_group());
        }
    }
    for (const std::string& group : groups) {
        out += heading(group);
        for (const CLI::App* command : commands) {
            if (command->get_group() != group) continue;
            const std::string text = command->get_description();
            out += fmt::format("  {:<12}{}", command->get_name(),
                               indented(text.substr(0, text.find('\n')), 14, columns, 14));
        }
    }
    out += heading("General options") + general_options(app, nullptr, columns);
    out += print_section({"Environment", {std::string(kEnvironment)}}, columns);
    out += print_section(
        {"Exit codes",
         {std::string(kExitCodes) + "; what else a command may return is said in its help"}},
        columns);
    out += print_section({"Examples",
                          {"kdtree fetch smollm2", "kdtree run \"Why is the sky blue?\"",
                           "kdtree run --chat --config my.toml", "kdtree help bench"}},
                         columns);
    return out;
}

std::string command_help(const CLI::App& app, const CLI::App& command, int columns) {
    const std::string description = command.get_description();
    const size_t line = std::min(description.find('\n'), description.size());
    std::string out = indented(
        fmt::format("kdtree {} - {}", command.get_name(), description.substr(0, line)), 0, columns);
    out += heading("Synopsis") + indented(synopsis(command), kIndent, columns);
    if (line < description.size()) {
        out += heading("Description") + indented(description.substr(line + 1), kIndent, columns);
    }
    std::vector<std::string> groups = command.get_groups();
    const auto rank = [](const std::string& group) {
        const auto found = std::find(std::begin(kGroupOrder), std::end(kGroupOrder), group);
        return found == std::end(kGroupOrder) ? 0 : found - std::begin(kGroupOrder) + 1;
    };
    std::stable_sort(groups.begin(), groups.end(),
                     [&](const auto& a, const auto& b) { return rank(a) < rank(b); });
    for (const std::string& group : groups) {
        if (group == "General") continue;
        const std::string options = options_of_group(command, group, columns);
        if (options.empty()) continue;
        out += heading(rank(group) == 0 ? group : group + " options") + options;
    }
    out += heading("General options") + general_options(app, &command, columns);
    out += print_section({"Environment", {std::string(kEnvironment)}}, columns);
    std::vector<Section> sections = sections_of(command.get_footer());
    const auto about_codes = [](const Section& s) { return s.title.starts_with("Exit"); };
    if (std::none_of(sections.begin(), sections.end(), about_codes)) {
        sections.push_back({"Exit codes", {std::string(kExitCodes)}});
    }
    // Examples end the page.
    std::stable_partition(sections.begin(), sections.end(),
                          [](const Section& s) { return !s.title.starts_with("Example"); });
    for (Section& section : sections) {
        if (section.title == "Example" && section.lines.size() > 1) section.title = "Examples";
        out += print_section(section, columns);
    }
    return out;
}

std::vector<std::string> long_flags(const CLI::App& app, const CLI::App* command) {
    std::vector<std::string> flags;
    for (const CLI::App* each : {command, &app}) {
        if (each == nullptr) continue;
        for (const CLI::Option* option : each->get_options()) {
            for (const std::string& name : option->get_lnames()) {
                const std::string flag = "--" + name;
                const bool seen = std::find(flags.begin(), flags.end(), flag) != flags.end();
                if (!seen) flags.push_back(flag);
            }
        }
    }
    return flags;
}

std::string nearest(const std::string& word, const std::vector<std::string>& known) {
    if (word.size() > 64) return {};
    std::string best;
    size_t least = std::max<size_t>(2, word.size() / 4) + 1;
    for (const std::string& each : known) {
        const size_t distance = edits(word, each);
        if (distance < least) {
            least = distance;
            best = each;
        }
    }
    if (!best.empty() || word.size() < 4) return best;
    // The beginning of a long name is no near miss, and yet plain enough.
    const auto begins = [&](const std::string& each) { return each.starts_with(word); };
    const auto found = std::find_if(known.begin(), known.end(), begins);
    return found == known.end() ? std::string{} : *found;
}

Command add_help(CLI::App& app) {
    auto name = std::make_shared<std::string>();
    CLI::App* help = app.add_subcommand("help", "Explain a command");
    help->add_option("COMMAND", *name, "one of the commands; none: all of them");
    help->footer("Example: kdtree help run");
    return {.parser = help, .action = [name, &app] {
                if (name->empty()) {
                    write_out(program_help(app, help_columns()));
                    return 0;
                }
                std::vector<std::string> known;
                for (const CLI::App* command : app.get_subcommands({})) {
                    known.push_back(command->get_name());
                    if (known.back() != *name) continue;
                    write_out(command_help(app, *command, help_columns()));
                    return 0;
                }
                const std::string guess = nearest(*name, known);
                KD_THROW(invalid_argument, "\"{}\" is no command{} (see kdtree --help)", *name,
                         guess.empty() ? "" : fmt::format(", did you mean {}?", guess));
            }};
}

}  // namespace kd
