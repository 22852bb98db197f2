// The file of --config: options of the command line, kept in a file.
//
//     # Keys are the long flags, with - or _. Of every command that has the option:
//     model = "smollm2"
//     max-tokens = 200
//     [bench]            # of one command only; goes before what stands above
//     modes = ["plain", "tree"]
//
// TOML 1.0 as far as options need it: comments, [command] sections, and of values strings in one
// line, numbers, true and false, and arrays of these. Everything else is refused by line.
#pragma once

#include <CLI/CLI.hpp>
#include <map>
#include <string>
#include <vector>

namespace kd {

enum class ConfigKind { text, number, boolean };

struct ConfigValue {
    ConfigKind kind = ConfigKind::text;
    std::string text;  // as on the command line; "true" or "false"
};

struct ConfigEntry {
    std::string section;  // empty: of every command
    std::string key;      // words joined by -
    int line = 0;
    bool array = false;
    std::vector<ConfigValue> values;  // one unless it is an array
};

struct ConfigFile {
    std::string path;
    std::map<std::string, int> sections;  // and their lines, empty sections too
    std::vector<ConfigEntry> entries;     // no key twice in a section
};

/// Largest file that is read.
inline constexpr size_t kMaxConfigBytes = size_t{1} << 20;

/// Throws kd::Error naming file, line and key.
ConfigFile read_config_file(const std::string& path);

/// Checks every entry, those for other commands too, by the options of `parsed`, a parser that has
/// read the command line (and is of no use afterwards). Then gives `fresh`, a parser of the same
/// options that has read nothing, what the command line left open. Throws kd::Error naming file,
/// line and key for what no option takes.
void apply_config(const ConfigFile& file, CLI::App& parsed, CLI::App& fresh);

}  // namespace kd
