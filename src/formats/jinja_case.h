// Case mappings of Unicode beyond ASCII.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace kd::jinja {

/// The code points first, first + distance ... last become themselves + delta.
struct CaseRun {
    char32_t first;
    char32_t last;
    int32_t distance;
    int32_t delta;
};

/// One character that becomes several.
struct CaseText {
    char32_t code_point;
    std::string_view text;
};

/// Both ascending; generated.
struct CaseTable {
    std::span<const CaseRun> runs;
    std::span<const CaseText> texts;
};
extern const CaseTable kUpperCase;
extern const CaseTable kLowerCase;
extern const CaseTable kTitleCase;
extern const CaseTable kCased;  // its runs hold the characters that have case

/// Appends what `character`, one well-formed character of UTF-8, becomes.
void append_case(std::string& out, const CaseTable& table, std::string_view character);

bool is_cased(std::string_view character);
bool is_upper(std::string_view character);
bool is_lower(std::string_view character);

}  // namespace kd::jinja
