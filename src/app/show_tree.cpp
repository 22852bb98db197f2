#include "app/show_tree.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace kd {

namespace {

/// A token's bytes between quotes, control characters and broken UTF-8 escaped.
std::string quoted(const Tokenizer& tokenizer, int32_t token) {
    std::string out = "\"";
    const std::string text = tokenizer.is_control(token)
                                 ? tokenizer.token_text(token)
                                 : std::string(tokenizer.bytes_of_token(token));
    for (const char each : text) {
        const auto byte = static_cast<unsigned char>(each);
        if (each == '\n') {
            out += "\\n";
        } else if (each == '"' || each == '\\') {
            out += '\\';
            out += each;
        } else if (byte < 0x20 || byte >= 0x7f) {
            out += fmt::format("\\x{:02x}", byte);
        } else {
            out += each;
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
