#include "formats/jinja_ast.h"

#include "formats/jinja_strings.h"

namespace kd::jinja {

namespace {

std::string written(const Expr& expr) {
    switch (expr.kind) {
        case Expr::Kind::name:
            return shortened(expr.text);
        case Expr::Kind::attribute:
            return describe(*expr.children[0]) + "." + shortened(expr.text);
        case Expr::Kind::index: {
            const Expr& key = *expr.children[1];
            if (key.kind == Expr::Kind::constant && key.constant.text() != nullptr) {
                return fmt::format("{}['{}']", describe(*expr.children[0]),
                                   shortened(*key.constant.text()));
            }
            return describe(*expr.children[0]) + "[" + describe(key) + "]";
        }
        case Expr::Kind::constant:
            if (expr.constant.text() != nullptr) return "a string";
            if (expr.constant.is_integer() && !expr.constant.is_bool()) {
                return std::to_string(expr.constant.integer());
            }
            return std::string(expr.constant.kind());
        case Expr::Kind::filter:
            return describe(*expr.children[0]) + "|" + shortened(expr.text);
        case Expr::Kind::call:
            return describe(*expr.children[0]) + "()";
        default:
            return "an expression";
    }
}

}  // namespace

std::string describe(const Expr& expr) {
    constexpr size_t kMostBytes = 256;
    const std::string text = written(expr);
    return text.size() <= kMostBytes ? text : "..." + text.substr(text.size() - kMostBytes);
}

}  // namespace kd::jinja
