#include "formats/split_regex.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/error.h"
#include "formats/code_point_set.h"
#include "formats/gguf.h"
#include "formats/regex_parse.h"
#include "formats/utf8.h"

namespace kd {

namespace {

constexpr char32_t kAscii = 0x80;
constexpr size_t kMaxClasses = 0x80;  // of code points beyond ASCII: the bytes 0x80 to 0xFF

/// The classes of code points that a list of sets tells apart.
struct Alphabet {
    std::vector<uint8_t> class_of;             // [code points]
    std::vector<std::vector<bool>> contained;  // [classes from 0x80 on][sets]
};

Alphabet alphabet_of(const std::vector<RegexPart>& parts) {
    std::vector<const CodePointSet*> sets;
    std::vector<char32_t> cuts = {kAscii, kCodePoints};
    for (const RegexPart& part : parts) {
        if (!part.syntax.empty()) continue;
        sets.push_back(&part.set);
        for (const CodePointRange& range : part.set.ranges()) {
            cuts.push_back(range.first);
            cuts.push_back(range.last + 1);
        }
    }
    std::sort(cuts.begin(), cuts.end());
    cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());

    Alphabet alphabet;
    alphabet.class_of.resize(kCodePoints);
    for (char32_t c = 0; c < kAscii; ++c) alphabet.class_of[c] = static_cast<uint8_t>(c);
    std::map<std::vector<bool>, uint8_t> known;
    std::vector<bool> contained(sets.size());
    for (size_t i = 0; i + 1 < cuts.size(); ++i) {
        if (cuts[i] < kAscii) continue;
        for (size_t k = 0; k < sets.size(); ++k) contained[k] = sets[k]->contains(cuts[i]);
        auto found = known.find(contained);
        if (found == known.end()) {
            if (known.size() == kMaxClasses) {
                KD_THROW(unsupported, "regex: it tells more than {} classes of characters apart",
                         kMaxClasses);
            }
            found = known.emplace(contained, static_cast<uint8_t>(kAscii + known.size())).first;
            alphabet.contained.push_back(contained);
        }
        std::fill(alphabet.class_of.begin() + cuts[i], alphabet.class_of.begin() + cuts[i + 1],
                  found->second);
    }
    return alphabet;
}

/// A PCRE2 class of bytes.
std::string class_syntax(const std::array<bool, 256>& bytes) {
    std::string syntax;
    for (size_t first = 0; first < bytes.size(); ++first) {
        if (!bytes[first]) continue;
        size_t last = first;
        while (last + 1 < bytes.size() && bytes[last + 1]) ++last;
        syntax += fmt::format("\\x{:02x}", first);
        if (last > first) syntax += fmt::format("-\\x{:02x}", last);
        first = last;
    }
    return syntax.empty() ? "(?!)" : "[" + syntax + "]";
}

std::string pattern_over(const Alphabet& alphabet, const std::vector<RegexPart>& parts) {
    std::string pattern;
    size_t set = 0;
    for (const RegexPart& part : parts) {
        if (!part.syntax.empty()) {
            pattern += part.syntax;
            continue;
        }
        std::array<bool, 256> bytes{};
        for (char32_t c = 0; c < kAscii; ++c) bytes[c] = part.set.contains(c);
        for (size_t i = 0; i < alphabet.contained.size(); ++i) {
            bytes[kAscii + i] = alphabet.contained[i][set];
        }
        pattern += class_syntax(bytes);
        ++set;
    }
    return pattern;
}

bool is_ascii(std::string_view text) {
    return std::all_of(text.begin(), text.end(), [](char c) { return (c & 0x80) == 0; });
}

}  // namespace

struct SplitRegex::Compiled {
    std::vector<uint8_t> class_of;
    ByteRegex regex;
};

SplitRegex::SplitRegex(std::string_view pattern)
    : SplitRegex([&]() -> Compiled {
          const std::vector<RegexPart> parts = parse_regex(pattern);
          Alphabet alphabet = alphabet_of(parts);
          try {
              return {std::move(alphabet.class_of), ByteRegex(pattern_over(alphabet, parts))};
          } catch (const Error& error) {
              KD_THROW(unsupported, "regex '{}': {}", printable(pattern), error.what());
          }
      }()) {}

SplitRegex::SplitRegex(Compiled compiled)
    : class_of_(std::move(compiled.class_of)), regex_(std::move(compiled.regex)) {}

void SplitRegex::find_all(std::string_view text, Scratch& scratch,
                          std::vector<TextRange>& matches) const {
    if (is_ascii(text)) {  // its own classes
        size_t at = 0;
        while (const auto match = scratch.matcher.find(text, at)) {
            matches.push_back({match->begin, match->end});
            at = match->end;
        }
        return;
    }
    std::string& classes = scratch.classes;
    classes.clear();
    for (size_t at = 0; at < text.size();) {
        const Utf8Unit unit = next_utf8(text.substr(at));
        classes.push_back(static_cast<char>(class_of_[unit.code_point]));
        at += unit.bytes;
    }
    size_t character = 0;
    size_t byte = 0;
    const auto byte_at = [&](size_t wanted) {
        for (; character < wanted; ++character) byte += next_utf8(text.substr(byte)).bytes;
        return byte;
    };
    size_t at = 0;
    while (const auto match = scratch.matcher.find(classes, at)) {
        const size_t begin = byte_at(match->begin);
        matches.push_back({begin, byte_at(match->end)});
        at = match->end;
    }
}

}  // namespace kd
