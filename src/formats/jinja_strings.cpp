#include "formats/jinja_strings.h"

#include <algorithm>
#include <limits>

#include "formats/utf8.h"

namespace kd::jinja {

namespace {

bool is_space_character(std::string_view character) {
    const Utf8Unit unit = next_utf8(character);
    return unit.kind == Utf8Kind::valid && is_space(unit.code_point);
}

size_t cuts_of(int64_t most) {
    return most < 0 ? std::numeric_limits<size_t>::max() : static_cast<size_t>(most);
}

/// What a search for `needle` may cost at worst, a comparison of 256 bytes counting as a step.
void spend_search(Context& context, std::string_view text, std::string_view needle) {
    context.spend_steps(text.size() / 256 * needle.size());
}

template <class Map>
std::string map_ascii(Context& context, std::string_view text, std::string_view name, Map map) {
    std::string out(text);
    context.spend_bytes(out.size());
    for (char& c : out) {
        if (static_cast<uint8_t>(c) >= 0x80) {
            context.unsupported(fmt::format("{} of a string with letters beyond ASCII", name));
        }
        c = map(c);
    }
    return out;
}

std::vector<Value> split_at_space(Context& context, std::string_view text, size_t cuts) {
    std::vector<Value> parts;
    const std::vector<std::string_view> all = characters(context, text);
    size_t at = 0;
    const auto skip = [&](bool space) {
        while (at < all.size() && is_space_character(all[at]) == space) ++at;
    };
    for (skip(true); at < all.size(); skip(true)) {
        const char* begin = all[at].data();
        if (parts.size() == cuts) {  // the rest as it stands
            parts.emplace_back(std::string(begin, text.data() + text.size()));
            break;
        }
        skip(false);
        const char* end = at < all.size() ? all[at].data() : text.data() + text.size();
        parts.emplace_back(std::string(begin, end));
    }
    return parts;
}

}  // namespace

std::string strip(Context& context, std::string_view text, const std::optional<std::string>& set,
                  Side side) {
    const std::vector<std::string_view> all = characters(context, text);
    const std::vector<std::string_view> stripped =
        set ? characters(context, *set) : std::vector<std::string_view>{};
    const auto goes = [&](std::string_view c) {
        if (!set) return is_space_character(c);
        context.spend_steps(stripped.size());
        return std::find(stripped.begin(), stripped.end(), c) != stripped.end();
    };
    size_t begin = 0;
    size_t end = all.size();
    if (side != Side::right) {
        while (begin < end && goes(all[begin])) ++begin;
    }
    if (side != Side::left) {
        while (end > begin && goes(all[end - 1])) --end;
    }
    context.spend_bytes(text.size());
    if (begin == end) return {};
    return {all[begin].data(), all[end - 1].data() + all[end - 1].size()};
}

std::vector<Value> split(Context& context, std::string_view text,
                         const std::optional<std::string>& separator, int64_t most) {
    context.spend_bytes(text.size());
    if (!separator) return split_at_space(context, text, cuts_of(most));
    if (separator->empty()) context.fail("split: an empty separator");
    spend_search(context, text, *separator);
    std::vector<Value> parts;
    while (parts.size() < cuts_of(most)) {
        const size_t at = text.find(*separator);
        if (at == text.npos) break;
        context.spend_steps(1);
        parts.emplace_back(text.substr(0, at));
        text.remove_prefix(at + separator->size());
    }
    parts.emplace_back(text);
    return parts;
}

std::vector<Value> split_right(Context& context, std::string_view text,
                               const std::string& separator, int64_t most) {
    context.spend_bytes(text.size());
    if (separator.empty()) context.fail("rsplit: an empty separator");
    spend_search(context, text, separator);
    std::vector<Value> parts;
    while (parts.size() < cuts_of(most)) {
        const size_t at = text.rfind(separator);
        if (at == text.npos) break;
        context.spend_steps(1);
        parts.emplace_back(text.substr(at + separator.size()));
        text = text.substr(0, at);
    }
    parts.emplace_back(text);
    std::reverse(parts.begin(), parts.end());
    return parts;
}

std::string replace(Context& context, std::string_view text, const std::string& from,
                    const std::string& to, int64_t most) {
    if (from.empty()) context.unsupported("replacing an empty string");
    spend_search(context, text, from);
    std::string out;
    size_t cuts = cuts_of(most);
    for (; cuts > 0; --cuts) {
        const size_t at = text.find(from);
        if (at == text.npos) break;
        context.spend_bytes(at + to.size());
        out.append(text.substr(0, at)).append(to);
        text.remove_prefix(at + from.size());
    }
    context.spend_bytes(text.size());
    return out.append(text);
}

std::string upper(Context& context, std::string_view text) {
    return map_ascii(context, text, "upper", [](char c) {
        return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
    });
}

std::string lower(Context& context, std::string_view text) {
    return map_ascii(context, text, "lower", [](char c) {
        return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    });
}

std::string join(Context& context, const std::vector<Value>& items, std::string_view separator) {
    std::string out;
    for (size_t i = 0; i < items.size(); ++i) {
        const std::string item = to_text(context, items[i]);
        context.spend_bytes(item.size() + separator.size());
        if (i > 0) out += separator;
        out += item;
    }
    return out;
}

}  // namespace kd::jinja
