#include "app/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "formats/utf8.h"

namespace kd {

namespace {

/// Bytes that begin a character, hence characters of UTF-8.
size_t characters(std::string_view text) {
    return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
        return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
    }));
}

bool drives_terminal(char32_t c) {
    if (c < 0x20 || (c >= 0x7f && c < 0xa0)) return true;
    // Line and paragraph separators, and what reorders the text around it.
    return c == 0x061c || (c >= 0x200e && c <= 0x200f) || (c >= 0x2028 && c <= 0x202e) ||
           (c >= 0x2066 && c <= 0x2069) || c == 0xfeff;
}

}  // namespace

std::string visible(std::string_view text, bool multi_line) {
    std::string out;
    while (!text.empty()) {
        const Utf8Unit next = next_utf8(text);
        const std::string_view bytes = text.substr(0, next.bytes);
        const bool stays = multi_line && (bytes == "\n" || bytes == "\t");
        if (next.kind == Utf8Kind::valid && (stays || !drives_terminal(next.code_point))) {
            out += bytes;
        } else {
            for (const char c : bytes) {
                out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
            }
        }
        text.remove_prefix(next.bytes);
    }
    return out;
}

std::string shortened(std::string_view text, size_t columns) {
    if (characters(text) <= columns) return std::string(text);
    constexpr size_t kDots = 3;
    size_t left = columns - std::min(columns, kDots);
    std::string out;
    while (left-- > 0) {
        const size_t bytes = next_utf8(text).bytes;
        out += text.substr(0, bytes);
        text.remove_prefix(bytes);
    }
    return out + "...";
}

std::string utf8_of(char32_t character) {
    std::string text;
    append_utf8(text, character);
    return text;
}

std::string grouped(int64_t number) {
    std::string digits = fmt::format("{}", number);
    for (size_t at = digits.size(); at > 3 && digits[at - 4] != '-';) {
        at -= 3;
        digits.insert(at, 1, ',');
    }
    return digits;
}

std::string plural(int64_t count, std::string_view one) {
    return fmt::format("{} {}{}", count, one, count == 1 ? "" : "s");
}

std::string bytes_text(int64_t bytes) {
    constexpr std::array<const char*, 6> kUnits = {"bytes", "kB", "MB", "GB", "TB", "PB"};
    auto value = static_cast<double>(bytes);
    size_t unit = 0;
    while (value >= 999.5 && unit + 1 < kUnits.size()) {
        value /= 1000;
        ++unit;
    }
    const int digits = unit == 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
    return fmt::format("{:.{}f} {}", value, digits, kUnits[unit]);
}

std::vector<std::string> wrapped(std::string_view text, size_t columns) {
    std::vector<std::string> lines(1);
    while (!text.empty()) {
        const size_t space = std::min(text.find(' '), text.size());
        const std::string_view word = text.substr(0, space);
        text.remove_prefix(std::min(space + 1, text.size()));
        if (word.empty()) continue;
        std::string& line = lines.back();
        if (line.empty()) {
            line = word;
        } else if (characters(line) + 1 + characters(word) <= columns) {
            line.append(" ").append(word);
        } else {
            lines.emplace_back(word);
        }
    }
    return lines;
}

}  // namespace kd
