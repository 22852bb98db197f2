#include "formats/jinja_case.h"

#include <algorithm>

#include "formats/utf8.h"

namespace kd::jinja {

namespace {

const CaseRun* find_run(const CaseTable& table, char32_t c) {
    const auto* const end = table.runs.data() + table.runs.size();
    const auto* const run = std::lower_bound(
        table.runs.data(), end, c,
        [](const CaseRun& each, char32_t code_point) { return each.last < code_point; });
    if (run == end || c < run->first || (c - run->first) % uint32_t(run->distance) != 0) {
        return nullptr;
    }
    return run;
}

const CaseText* find_text(const CaseTable& table, char32_t c) {
    const auto* const end = table.texts.data() + table.texts.size();
    const auto* const text = std::lower_bound(
        table.texts.data(), end, c,
        [](const CaseText& each, char32_t code_point) { return each.code_point < code_point; });
    return text == end || text->code_point != c ? nullptr : text;
}

}  // namespace

void append_case(std::string& out, const CaseTable& table, std::string_view character) {
    const char c = character[0];
    if (static_cast<uint8_t>(c) < 0x80) {
        const bool lowers = &table == &kLowerCase;
        const bool changes = lowers ? c >= 'A' && c <= 'Z' : c >= 'a' && c <= 'z';
        out.push_back(changes ? static_cast<char>(c ^ 0x20) : c);
        return;
    }
    const Utf8Unit unit = next_utf8(character);
    if (unit.kind != Utf8Kind::valid) {
        out += character;
    } else if (const CaseText* text = find_text(table, unit.code_point)) {
        out += text->text;
    } else if (const CaseRun* run = find_run(table, unit.code_point)) {
        append_utf8(out, static_cast<char32_t>(static_cast<int32_t>(unit.code_point) + run->delta));
    } else {
        out += character;
    }
}

bool is_cased(std::string_view character) {
    const auto c = static_cast<uint8_t>(character[0]);
    if (c < 0x80) return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    const Utf8Unit unit = next_utf8(character);
    return unit.kind == Utf8Kind::valid && find_run(kCased, unit.code_point) != nullptr;
}

bool is_upper(std::string_view character) {
    std::string lowered;
    append_case(lowered, kLowerCase, character);
    return lowered != character;
}

bool is_lower(std::string_view character) {
    return is_cased(character) && !is_upper(character);
}

}  // namespace kd::jinja
