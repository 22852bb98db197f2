#include "formats/code_point_set.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

namespace kd {

namespace {

struct Change {
    CodePointRange range;
    std::string_view category;
};

/// Where Unicode 16 differs from utf8proc's 15.0: what was not assigned, and U+1171E, which was Mn.
constexpr Change kNewer[] = {
    // clang-format off
    {{0x897, 0x897}, "Mn"}, {{0x1B4E, 0x1B4F}, "Po"}, {{0x1B7F, 0x1B7F}, "Po"},
    {{0x1C89, 0x1C89}, "Lu"}, {{0x1C8A, 0x1C8A}, "Ll"}, {{0x2427, 0x2429}, "So"},
    {{0x2FFC, 0x2FFF}, "So"}, {{0x31E4, 0x31E5}, "So"}, {{0x31EF, 0x31EF}, "So"},
    {{0xA7CB, 0xA7CC}, "Lu"}, {{0xA7CD, 0xA7CD}, "Ll"}, {{0xA7DA, 0xA7DA}, "Lu"},
    {{0xA7DB, 0xA7DB}, "Ll"}, {{0xA7DC, 0xA7DC}, "Lu"}, {{0x105C0, 0x105F3}, "Lo"},
    {{0x10D40, 0x10D49}, "Nd"}, {{0x10D4A, 0x10D4D}, "Lo"}, {{0x10D4E, 0x10D4E}, "Lm"},
    {{0x10D4F, 0x10D4F}, "Lo"}, {{0x10D50, 0x10D65}, "Lu"}, {{0x10D69, 0x10D6D}, "Mn"},
    {{0x10D6E, 0x10D6E}, "Pd"}, {{0x10D6F, 0x10D6F}, "Lm"}, {{0x10D70, 0x10D85}, "Ll"},
    {{0x10D8E, 0x10D8F}, "Sm"}, {{0x10EC2, 0x10EC4}, "Lo"}, {{0x10EFC, 0x10EFC}, "Mn"},
    {{0x11380, 0x11389}, "Lo"}, {{0x1138B, 0x1138B}, "Lo"}, {{0x1138E, 0x1138E}, "Lo"},
    {{0x11390, 0x113B5}, "Lo"}, {{0x113B7, 0x113B7}, "Lo"}, {{0x113B8, 0x113BA}, "Mc"},
    {{0x113BB, 0x113C0}, "Mn"}, {{0x113C2, 0x113C2}, "Mc"}, {{0x113C5, 0x113C5}, "Mc"},
    {{0x113C7, 0x113CA}, "Mc"}, {{0x113CC, 0x113CD}, "Mc"}, {{0x113CE, 0x113CE}, "Mn"},
    {{0x113CF, 0x113CF}, "Mc"}, {{0x113D0, 0x113D0}, "Mn"}, {{0x113D1, 0x113D1}, "Lo"},
    {{0x113D2, 0x113D2}, "Mn"}, {{0x113D3, 0x113D3}, "Lo"}, {{0x113D4, 0x113D5}, "Po"},
    {{0x113D7, 0x113D8}, "Po"}, {{0x113E1, 0x113E2}, "Mn"}, {{0x116D0, 0x116E3}, "Nd"},
    {{0x1171E, 0x1171E}, "Mc"}, {{0x11BC0, 0x11BE0}, "Lo"}, {{0x11BE1, 0x11BE1}, "Po"},
    {{0x11BF0, 0x11BF9}, "Nd"}, {{0x11F5A, 0x11F5A}, "Mn"}, {{0x13460, 0x143FA}, "Lo"},
    {{0x16100, 0x1611D}, "Lo"}, {{0x1611E, 0x16129}, "Mn"}, {{0x1612A, 0x1612C}, "Mc"},
    {{0x1612D, 0x1612F}, "Mn"}, {{0x16130, 0x16139}, "Nd"}, {{0x16D40, 0x16D42}, "Lm"},
    {{0x16D43, 0x16D6A}, "Lo"}, {{0x16D6B, 0x16D6C}, "Lm"}, {{0x16D6D, 0x16D6F}, "Po"},
    {{0x16D70, 0x16D79}, "Nd"}, {{0x18CFF, 0x18CFF}, "Lo"}, {{0x1CC00, 0x1CCEF}, "So"},
    {{0x1CCF0, 0x1CCF9}, "Nd"}, {{0x1CD00, 0x1CEB3}, "So"}, {{0x1E5D0, 0x1E5ED}, "Lo"},
    {{0x1E5EE, 0x1E5EF}, "Mn"}, {{0x1E5F0, 0x1E5F0}, "Lo"}, {{0x1E5F1, 0x1E5FA}, "Nd"},
    {{0x1E5FF, 0x1E5FF}, "Po"}, {{0x1F8B2, 0x1F8BB}, "So"}, {{0x1F8C0, 0x1F8C1}, "So"},
    {{0x1FA89, 0x1FA89}, "So"}, {{0x1FA8F, 0x1FA8F}, "So"}, {{0x1FABE, 0x1FABE}, "So"},
    {{0x1FAC6, 0x1FAC6}, "So"}, {{0x1FADC, 0x1FADC}, "So"}, {{0x1FADF, 0x1FADF}, "So"},
    {{0x1FAE9, 0x1FAE9}, "So"}, {{0x1FBCB, 0x1FBEF}, "So"}, {{0x2EBF0, 0x2EE5D}, "Lo"},
    // clang-format on
};

/// Script=Han of Unicode 16 (Scripts.txt); utf8proc has no scripts.
constexpr CodePointRange kHan[] = {
    {0x2E80, 0x2E99},   {0x2E9B, 0x2EF3},   {0x2F00, 0x2FD5},   {0x3005, 0x3005},
    {0x3007, 0x3007},   {0x3021, 0x3029},   {0x3038, 0x303B},   {0x3400, 0x4DBF},
    {0x4E00, 0x9FFF},   {0xF900, 0xFA6D},   {0xFA70, 0xFAD9},   {0x16FE2, 0x16FE3},
    {0x16FF0, 0x16FF1}, {0x20000, 0x2A6DF}, {0x2A700, 0x2B739}, {0x2B740, 0x2B81D},
    {0x2B820, 0x2CEA1}, {0x2CEB0, 0x2EBE0}, {0x2EBF0, 0x2EE5D}, {0x2F800, 0x2FA1D},
    {0x30000, 0x3134A}, {0x31350, 0x323AF}};

/// Indexed by utf8proc_category_t.
constexpr std::string_view kCategories[] = {
    "Cn", "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps",
    "Pe", "Pi", "Pf", "Po", "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Co"};

using Categories = std::array<CodePointSet, std::size(kCategories)>;

size_t index_of(std::string_view category) {
    return std::find(std::begin(kCategories), std::end(kCategories), category) -
           std::begin(kCategories);
}

Categories read_categories() {
    std::array<std::vector<CodePointRange>, std::size(kCategories)> ranges;
    const Change* change = std::begin(kNewer);
    for (char32_t c = 0; c < kCodePoints; ++c) {
        while (change != std::end(kNewer) && change->range.last < c) ++change;
        const bool newer = change != std::end(kNewer) && change->range.first <= c;
        auto& own = ranges[newer ? index_of(change->category)
                                 : size_t(utf8proc_category(static_cast<utf8proc_int32_t>(c)))];
        if (!own.empty() && own.back().last + 1 == c) {
            own.back().last = c;
        } else {
            own.push_back({c, c});
        }
    }
    Categories sets;
    for (size_t i = 0; i < sets.size(); ++i) sets[i] = CodePointSet(std::move(ranges[i]));
    return sets;
}

/// The categories whose names begin so.
CodePointSet categories(std::string_view beginning) {
    static const Categories kSets = read_categories();
    std::vector<CodePointRange> ranges;
    for (size_t i = 0; i < kSets.size(); ++i) {
        if (!kCategories[i].starts_with(beginning)) continue;
        const auto& more = kSets[i].ranges();
        ranges.insert(ranges.end(), more.begin(), more.end());
    }
    return CodePointSet(std::move(ranges));
}

}  // namespace

CodePointSet::CodePointSet(std::vector<CodePointRange> ranges) : ranges_(std::move(ranges)) {
    std::sort(ranges_.begin(), ranges_.end(),
              [](const CodePointRange& a, const CodePointRange& b) { return a.first < b.first; });
    size_t kept = 0;
    for (const CodePointRange& range : ranges_) {
        if (kept > 0 && range.first <= ranges_[kept - 1].last + 1) {
            ranges_[kept - 1].last = std::max(ranges_[kept - 1].last, range.last);
        } else {
            ranges_[kept++] = range;
        }
    }
    ranges_.resize(kept);
}

bool CodePointSet::contains(char32_t code_point) const {
    const auto after = std::upper_bound(
        ranges_.begin(), ranges_.end(), code_point,
        [](char32_t value, const CodePointRange& range) { return value < range.first; });
    return after != ranges_.begin() && code_point <= std::prev(after)->last;
}

CodePointSet CodePointSet::complement() const {
    CodePointSet rest;
    char32_t next = 0;
    for (const CodePointRange& range : ranges_) {
        if (range.first > next) rest.ranges_.push_back({next, range.first - 1});
        next = range.last + 1;
    }
    if (next < kCodePoints) rest.ranges_.push_back({next, kCodePoints - 1});
    return rest;
}

CodePointSet operator|(const CodePointSet& a, const CodePointSet& b) {
    std::vector<CodePointRange> ranges = a.ranges_;
    ranges.insert(ranges.end(), b.ranges_.begin(), b.ranges_.end());
    return CodePointSet(std::move(ranges));
}

CodePointSet operator&(const CodePointSet& a, const CodePointSet& b) {
    return (a.complement() | b.complement()).complement();
}

std::optional<CodePointSet> unicode_property(std::string_view name) {
    if (name == "Han") return CodePointSet({std::begin(kHan), std::end(kHan)});
    const bool known =
        std::any_of(std::begin(kCategories), std::end(kCategories), [&](std::string_view category) {
            return name == category || (name.size() == 1 && name[0] == category[0]);
        });
    if (!known) return std::nullopt;
    return categories(name);
}

CodePointSet white_space() {
    return categories("Z") | CodePointSet({{0x09, 0x0D}, {0x85, 0x85}});
}

CodePointSet numeric_characters() {
    return categories("N") | CodePointSet({{0x11DE0, 0x11DE9}, {0x16FF4, 0x16FF6}});
}

CodePointSet word_characters() {
    // Alphabetic, marks, decimal digits, connectors and joiners: the letters among symbols are
    // circled and squared ones.
    return categories("L") | categories("M") | categories("Nd") | categories("Nl") |
           categories("Pc") |
           CodePointSet({{0x200C, 0x200D},
                         {0x24B6, 0x24E9},
                         {0x1F130, 0x1F149},
                         {0x1F150, 0x1F169},
                         {0x1F170, 0x1F189}});
}

}  // namespace kd
