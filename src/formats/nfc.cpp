#include "formats/nfc.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <vector>

#include "base/check.h"
#include "formats/utf8.h"

namespace kd {

namespace {

int combining_class(utf8proc_int32_t code_point) {
    return utf8proc_get_property(code_point)->combining_class;
}

/// Runs of combining marks by class. utf8proc's own ordering is quadratic in the run.
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

void append_nfc(std::string& out, std::string_view text) {
    std::vector<utf8proc_int32_t> code_points;
    while (!text.empty()) {
        const Utf8Unit unit = next_utf8(text);
        text.remove_prefix(unit.bytes);
        std::array<utf8proc_int32_t, 32> parts;
        int boundary = 0;
        const auto count =
            utf8proc_decompose_char(static_cast<utf8proc_int32_t>(unit.code_point), parts.data(),
                                    parts.size(), UTF8PROC_DECOMPOSE, &boundary);
        KD_CHECK(count >= 0 && count <= static_cast<utf8proc_ssize_t>(parts.size()),
                 "U+{:04X} decomposes to {}", uint32_t{unit.code_point}, count);
        code_points.insert(code_points.end(), parts.begin(), parts.begin() + count);
    }
    order_marks(code_points);
    const auto count = utf8proc_normalize_utf32(
        code_points.data(), static_cast<utf8proc_ssize_t>(code_points.size()),
        static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
    KD_CHECK(count >= 0, "utf8proc: {}", utf8proc_errmsg(count));
    for (utf8proc_ssize_t i = 0; i < count; ++i) append_utf8(out, code_points[i]);
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
