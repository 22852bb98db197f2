#include "formats/nfc.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <vector>

#include "base/check.h"
#include "formats/code_point_set.h"
#include "formats/utf8.h"

namespace kd {

namespace {

/// Newer than the tables of tokenizers' own normaliser (Unicode 9): marks that it does not order,
/// and U+11930 and U+11938, which it neither composes nor decomposes. To it they are plain
/// characters.
constexpr CodePointRange kUnknown[] = {
    {0x7FD, 0x7FD},     {0x898, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},
    {0xC3C, 0xC3C},     {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0x1715, 0x1715},
    {0x1ABF, 0x1ACE},   {0x1DF6, 0x1DFA},   {0xA82C, 0xA82C},   {0x10D24, 0x10D27},
    {0x10EAB, 0x10EAC}, {0x10EFD, 0x10EFF}, {0x10F46, 0x10F50}, {0x10F82, 0x10F85},
    {0x11070, 0x11070}, {0x1133B, 0x1133B}, {0x1145E, 0x1145E}, {0x11839, 0x1183A},
    {0x11930, 0x11930}, {0x11938, 0x11938}, {0x1193D, 0x1193E}, {0x11943, 0x11943},
    {0x119E0, 0x119E0}, {0x11A34, 0x11A34}, {0x11A47, 0x11A47}, {0x11A99, 0x11A99},
    {0x11D42, 0x11D42}, {0x11D44, 0x11D45}, {0x11D97, 0x11D97}, {0x11F41, 0x11F42},
    {0x16FF0, 0x16FF1}, {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE},
    {0x1E2EC, 0x1E2EF}, {0x1E4EC, 0x1E4EF}};

bool is_unknown(char32_t code_point) {
    const auto* const range =
        std::lower_bound(std::begin(kUnknown), std::end(kUnknown), code_point,
                         [](const CodePointRange& a, char32_t value) { return a.last < value; });
    return range != std::end(kUnknown) && range->first <= code_point;
}

int combining_class(utf8proc_int32_t code_point) {
    return utf8proc_get_property(code_point)->combining_class;
}

/// Orders runs of combining marks by class. utf8proc's own ordering is quadratic in the run.
void order_marks(std::vector<utf8proc_int32_t>& text) {
    for (size_t begin = 0; begin < text.size();) {
        size_t end = begin;
        while (end < text.size() && combining_class(text[end]) != 0) ++end;
        std::stable_sort(text.begin() + begin, text.begin() + end,
                         [](utf8proc_int32_t a, utf8proc_int32_t b) {
                             return combining_class(a) < combining_class(b);
                         });
        begin = end + 1;
    }
}

/// Composes `decomposed` into out and empties it.
void flush(std::vector<utf8proc_int32_t>& decomposed, std::string& out) {
    order_marks(decomposed);
    const auto count = utf8proc_normalize_utf32(
        decomposed.data(), static_cast<utf8proc_ssize_t>(decomposed.size()),
        static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
    KD_CHECK(count >= 0, "utf8proc: {}", utf8proc_errmsg(count));
    for (utf8proc_ssize_t i = 0; i < count; ++i) append_utf8(out, decomposed[i]);
    decomposed.clear();
}

/// text: well-formed.
void append_nfc(std::string& out, std::string_view text) {
    std::vector<utf8proc_int32_t> decomposed;
    while (!text.empty()) {
        const Utf8Unit unit = next_utf8(text);
        text.remove_prefix(unit.bytes);
        if (is_unknown(unit.code_point)) {
            flush(decomposed, out);
            append_utf8(out, unit.code_point);
            continue;
        }
        std::array<utf8proc_int32_t, 32> parts;
        int boundary = 0;
        const auto count = utf8proc_decompose_char(
            static_cast<utf8proc_int32_t>(unit.code_point), parts.data(), parts.size(),
            static_cast<utf8proc_option_t>(UTF8PROC_DECOMPOSE | UTF8PROC_STABLE), &boundary);
        KD_CHECK(count >= 0 && count <= static_cast<utf8proc_ssize_t>(parts.size()),
                 "U+{:04X} decomposes to {}", uint32_t{unit.code_point}, count);
        decomposed.insert(decomposed.end(), parts.begin(), parts.begin() + count);
    }
    flush(decomposed, out);
}

}  // namespace

std::string nfc(std::string_view text) {
    std::string out;
    out.reserve(text.size());
    while (!text.empty()) {
        const size_t valid = valid_utf8_bytes(text);
        const std::string_view stretch = text.substr(0, valid);
        const bool ascii =
            std::all_of(stretch.begin(), stretch.end(), [](char c) { return (c & 0x80) == 0; });
        if (ascii) {
            out.append(stretch);
        } else {
            append_nfc(out, stretch);
        }
        text.remove_prefix(valid);
        if (text.empty()) break;
        const size_t bad = next_utf8(text).bytes;
        out.append(text.substr(0, bad));
        text.remove_prefix(bad);
    }
    return out;
}

}  // namespace kd
