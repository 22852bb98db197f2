#include "formats/utf8.h"

#include <cstring>

#include "base/check.h"

namespace kd {

namespace {

struct LeadByte {
    uint8_t bytes;  // of the whole sequence; 0: no sequence starts so
    uint8_t low;    // allowed range of the second byte: it alone rules out overlong forms,
    uint8_t high;   // surrogates and code points above U+10FFFF
};

LeadByte lead_byte(uint8_t byte) {
    if (byte < 0x80) return {1, 0, 0};
    if (byte < 0xC2) return {0, 0, 0};
    if (byte < 0xE0) return {2, 0x80, 0xBF};
    if (byte == 0xE0) return {3, 0xA0, 0xBF};
    if (byte == 0xED) return {3, 0x80, 0x9F};
    if (byte < 0xF0) return {3, 0x80, 0xBF};
    if (byte == 0xF0) return {4, 0x90, 0xBF};
    if (byte < 0xF4) return {4, 0x80, 0xBF};
    if (byte == 0xF4) return {4, 0x80, 0x8F};
    return {0, 0, 0};
}

}  // namespace

Utf8Unit next_utf8(std::string_view text) {
    const auto first = static_cast<uint8_t>(text[0]);
    LeadByte lead = lead_byte(first);
    if (lead.bytes == 0) return {Utf8Kind::invalid, 1, 0};
    if (lead.bytes == 1) return {Utf8Kind::valid, 1, first};
    char32_t code_point = first & (0x7Fu >> lead.bytes);
    for (uint8_t i = 1; i < lead.bytes; ++i) {
        if (i == text.size()) return {Utf8Kind::incomplete, i, 0};
        const auto byte = static_cast<uint8_t>(text[i]);
        if (byte < lead.low || byte > lead.high) return {Utf8Kind::invalid, i, 0};
        code_point = code_point << 6 | (byte & 0x3Fu);
        lead.low = 0x80;
        lead.high = 0xBF;
    }
    return {Utf8Kind::valid, lead.bytes, code_point};
}

size_t valid_utf8_bytes(std::string_view text) {
    size_t at = 0;
    while (at < text.size()) {
        uint64_t word = 0;
        while (text.size() - at >= sizeof word) {  // ASCII, eight bytes at a time
            std::memcpy(&word, text.data() + at, sizeof word);
            if ((word & 0x8080808080808080u) != 0) break;
            at += sizeof word;
        }
        if (at == text.size()) break;
        const Utf8Unit unit = next_utf8(text.substr(at));
        if (unit.kind != Utf8Kind::valid) break;
        at += unit.bytes;
    }
    return at;
}

void append_utf8(std::string& out, char32_t code_point) {
    KD_CHECK(code_point <= 0x10FFFF && (code_point < 0xD800 || code_point > 0xDFFF),
             "U+{:04X} is no scalar value", uint32_t{code_point});
    const auto put = [&](char32_t byte) { out.push_back(static_cast<char>(byte)); };
    if (code_point < 0x80) {
        put(code_point);
    } else if (code_point < 0x800) {
        put(0xC0 | code_point >> 6);
        put(0x80 | (code_point & 0x3F));
    } else if (code_point < 0x10000) {
        put(0xE0 | code_point >> 12);
        put(0x80 | (code_point >> 6 & 0x3F));
        put(0x80 | (code_point & 0x3F));
    } else {
        put(0xF0 | code_point >> 18);
        put(0x80 | (code_point >> 12 & 0x3F));
        put(0x80 | (code_point >> 6 & 0x3F));
        put(0x80 | (code_point & 0x3F));
    }
}

size_t append_valid_utf8(std::string& out, std::string_view text) {
    while (!text.empty()) {
        const size_t valid = valid_utf8_bytes(text);
        out.append(text.substr(0, valid));
        text.remove_prefix(valid);
        if (text.empty()) break;
        const Utf8Unit unit = next_utf8(text);
        if (unit.kind == Utf8Kind::incomplete) return unit.bytes;
        out.append(kReplacementCharacter);
        text.remove_prefix(unit.bytes);
    }
    return 0;
}

std::string replace_invalid_utf8(std::string_view text) {
    std::string out;
    out.reserve(text.size());
    if (append_valid_utf8(out, text) > 0) out.append(kReplacementCharacter);
    return out;
}

}  // namespace kd
