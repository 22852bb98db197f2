#include "app/show_tree.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <vector>

#include "formats/utf8.h"

namespace kd {

namespace {

bool is_control_character(char32_t code_point) {
    return code_point < 0x20 || (code_point >= 0x7f && code_point < 0xa0);
}

/// A token's bytes between quotes, control characters and broken UTF-8 escaped.
std::string quoted(const Tokenizer& tokenizer, int32_t token) {
    std::string out = "\"";
    const std::string text = tokenizer.is_control(token)
                                 ? tokenizer.token_text(token)
                                 : std::string(tokenizer.bytes_of_token(token));
    for (std::string_view rest = text; !rest.empty();) {
        const Utf8Unit unit = next_utf8(rest);
        const std::string_view bytes = rest.substr(0, unit.bytes);
        rest.remove_prefix(unit.bytes);
        if (bytes == "\n") {
            out += "\\n";
        } else if (bytes == "\"" || bytes == "\\") {
            out += '\\';
            out += bytes;
        } else if (unit.kind != Utf8Kind::valid || is_control_character(unit.code_point)) {
            for (const char byte : bytes) {
                out += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
            }
        } else {
            out += bytes;
        }
    }
    return out + '"';
}

struct Drawing {
    const TreeView& tree;
    const Tokenizer& tokenizer;
    std::vector<bool> accepted;
    std::string out;

    void draw(int32_t node, const std::string& indent) {
        std::vector<int32_t> children;
        for (int32_t i = node + 1; i < *tree.count; ++i) {
            if (tree.parent[i] == node) children.push_back(i);
        }
        for (size_t i = 0; i < children.size(); ++i) {
            const int32_t child = children[i];
            const bool last = i + 1 == children.size();
            out +=
                fmt::format("{}{} {} {:.3f}{}\n", indent, last ? "└─" : "├─",
                            quoted(tokenizer, tree.token[child]), std::exp(tree.log_score[child]),
                            accepted[static_cast<size_t>(child)] ? " *" : "");
            draw(child, indent + (last ? "   " : "│  "));
        }
    }
};

}  // namespace

std::string draw_tree(const TreeView& tree, const AcceptedView& accepted,
                      const Tokenizer& tokenizer) {
    Drawing drawing{tree, tokenizer, std::vector<bool>(static_cast<size_t>(*tree.count)), {}};
    for (int32_t i = 0; i < *accepted.count; ++i) {
        drawing.accepted[static_cast<size_t>(accepted.path[i])] = true;
    }
    drawing.out = fmt::format("{} (root)\n", quoted(tokenizer, tree.token[0]));
    drawing.draw(0, "");
    drawing.out += fmt::format("+ {}\n", quoted(tokenizer, accepted.emitted[*accepted.count - 1]));
    return drawing.out;
}

}  // namespace kd
