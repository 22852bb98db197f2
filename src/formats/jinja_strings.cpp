#include "formats/jinja_strings.h"

#include <algorithm>
#include <limits>

#include "formats/gguf.h"
#include "formats/utf8.h"

namespace kd::jinja {

namespace {

size_t cuts_of(int64_t most) {
    return most < 0 ? std::numeric_limits<size_t>::max() : static_cast<size_t>(most);
}

std::vector<Value> split_at_space(Context& context, std::string_view text, size_t cuts) {
    std::vector<Value> parts;
    const std::vector<std::string_view> all = characters(context, text);
    size_t at = 0;
    const auto skip = [&](bool space) {
        while (at < all.size() && is_space(all[at]) == space) ++at;
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

/// As above from the right: the parts come out last first.
std::vector<Value> split_right_at_space(Context& context, std::string_view text, size_t cuts) {
    std::vector<Value> parts;
    const std::vector<std::string_view> all = characters(context, text);
    size_t end = all.size();
    const auto skip = [&](bool space) {
        while (end > 0 && is_space(all[end - 1]) == space) --end;
    };
    for (skip(true); end > 0; skip(true)) {
        const char* behind = all[end - 1].data() + all[end - 1].size();
        if (parts.size() == cuts) {
            parts.emplace_back(std::string(text.data(), behind));
            break;
        }
        skip(false);
        const char* begin = end > 0 ? all[end - 1].data() + all[end - 1].size() : text.data();
        parts.emplace_back(std::string(begin, behind));
    }
    return parts;
}

/// The bytes of the end of a line that text[0] is the beginning of; 0: none.
size_t line_end_bytes(std::string_view text) {
    if (text.starts_with("\r\n")) return 2;
    const Utf8Unit unit = next_utf8(text);
    const char32_t c = unit.code_point;
    const bool ends = (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 ||
                      c == 0x2028 || c == 0x2029;
    return unit.kind == Utf8Kind::valid && ends ? unit.bytes : 0;
}

}  // namespace

bool is_space(std::string_view character) {
    const Utf8Unit unit = next_utf8(character);
    return unit.kind == Utf8Kind::valid && is_space(unit.code_point);
}

void spend_search(Context& context, std::string_view text, std::string_view needle) {
    context.spend_steps(text.size() / 256 * needle.size());
}

std::string shortened(std::string_view text) {
    return printable(text);
}

std::string strip(Context& context, std::string_view text, const std::optional<std::string>& set,
                  Side side) {
    const std::vector<std::string_view> all = characters(context, text);
    const std::vector<std::string_view> stripped =
        set ? characters(context, *set) : std::vector<std::string_view>{};
    const auto goes = [&](std::string_view c) {
        if (!set) return is_space(c);
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
                               const std::optional<std::string>& separator, int64_t most) {
    context.spend_bytes(text.size());
    std::vector<Value> parts;
    if (!separator) {
        parts = split_right_at_space(context, text, cuts_of(most));
    } else {
        if (separator->empty()) context.fail("rsplit: an empty separator");
        spend_search(context, text, *separator);
        while (parts.size() < cuts_of(most)) {
            const size_t at = text.rfind(*separator);
            if (at == text.npos) break;
            context.spend_steps(1);
            parts.emplace_back(text.substr(at + separator->size()));
            text = text.substr(0, at);
        }
        parts.emplace_back(text);
    }
    std::reverse(parts.begin(), parts.end());
    return parts;
}

std::vector<Value> split_lines(Context& context, std::string_view text, bool keep_ends) {
    context.spend_bytes(text.size());
    context.spend_steps(text.size() / 16);
    std::vector<Value> lines;
    for (size_t at = 0; at < text.size();) {
        const size_t end_bytes = line_end_bytes(text.substr(at));
        if (end_bytes == 0) {
            at += next_utf8(text.substr(at)).bytes;
            if (at < text.size()) continue;
            lines.emplace_back(text);
            break;
        }
        context.spend_steps(1);
        lines.emplace_back(text.substr(0, keep_ends ? at + end_bytes : at));
        text.remove_prefix(at + end_bytes);
        at = 0;
    }
    return lines;
}

namespace {

/// `inserted` before each character and behind the last, at most `most` times.
std::string insert_between(Context& context, std::string_view text, std::string_view inserted,
                           size_t most) {
    std::string out;
    for (const std::string_view c : characters(context, text)) {
        if (most > 0) {
            context.spend_bytes(inserted.size());
            out += inserted;
            --most;
        }
        out += c;
    }
    if (most > 0) out += inserted;
    context.spend_bytes(text.size() + inserted.size());
    return out;
}

}  // namespace

std::string replace(Context& context, std::string_view text, const std::string& from,
                    const std::string& to, int64_t most) {
    if (from.empty()) return insert_between(context, text, to, cuts_of(most));
    spend_search(context, text, from);
    std::string out;
    size_t cuts = cuts_of(most);
    for (; cuts > 0; --cuts) {
        const size_t at = text.find(from);
        if (at == text.npos) break;
        context.spend_steps(1);
        context.spend_bytes(at + to.size());
        out.append(text.substr(0, at)).append(to);
        text.remove_prefix(at + from.size());
    }
    context.spend_bytes(text.size());
    return out.append(text);
}

std::string repeated(Context& context, std::string_view text, int64_t count) {
    std::string out;
    if (count <= 0 || text.empty()) return out;
    if (static_cast<uint64_t>(count) > kMaxOutputBytes / text.size()) {
        context.spend_bytes(size_t{kMaxBytes} + 1);
    }
    context.spend_bytes(text.size() * static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) out += text;
    return out;
}

std::string escape(Context& context, std::string_view text) {
    context.spend_bytes(text.size());
    std::string out;
    for (const char c : text) {
        const std::string_view entity = c == '&'    ? "&amp;"
                                        : c == '<'  ? "&lt;"
                                        : c == '>'  ? "&gt;"
                                        : c == '\'' ? "&#39;"
                                        : c == '"'  ? "&#34;"
                                                    : "";
        if (entity.empty()) {
            out.push_back(c);
        } else {
            context.spend_bytes(entity.size());
            out += entity;
        }
    }
    return out;
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
