#include "formats/jinja_expressions.h"

#include <algorithm>

#include "formats/jinja_builtins.h"
#include "formats/jinja_strings.h"

namespace kd::jinja {

namespace {

using Kind = Token::Kind;

}  // namespace

ExpressionParser::Nesting::Nesting(ExpressionParser& parser) : parser_(parser) {
    if (++parser_.nesting_ > kMaxTreeDepth) {
        parser_.context_.line = parser_.peek().line;
        parser_.context_.fail(fmt::format("nested deeper than {}", kMaxTreeDepth));
    }
}

const Token& ExpressionParser::peek(size_t ahead) const {
    return tokens_[std::min(at_ + ahead, tokens_.size() - 1)];
}

Token ExpressionParser::take() {
    Token token = peek();
    if (at_ + 1 < tokens_.size()) ++at_;
    context_.line = token.line;
    return token;
}

void ExpressionParser::fail_here(std::string_view what) {
    const Token& token = peek();
    context_.line = token.line;
    if (token.kind == Kind::end) context_.fail("the template ends too early");
    const bool tag_end = token.kind == Kind::block_end || token.kind == Kind::variable_end;
    context_.fail(tag_end ? fmt::format("{} end of the tag", what)
                          : fmt::format("{} '{}'", what, shortened(token.text)));
}

bool ExpressionParser::is_op(std::string_view op, size_t ahead) const {
    return peek(ahead).kind == Kind::op && peek(ahead).text == op;
}

bool ExpressionParser::is_name(std::string_view name, size_t ahead) const {
    return peek(ahead).kind == Kind::name && peek(ahead).text == name;
}

bool ExpressionParser::skip_op(std::string_view op) {
    if (!is_op(op)) return false;
    take();
    return true;
}

bool ExpressionParser::skip_name(std::string_view name) {
    if (!is_name(name)) return false;
    take();
    return true;
}

void ExpressionParser::expect_op(std::string_view op) {
    if (!skip_op(op)) fail_here(fmt::format("'{}' expected, found", op));
}

std::string ExpressionParser::expect_name() {
    if (peek().kind != Kind::name) fail_here("a name expected, found");
    return take().text;
}

ExprPtr ExpressionParser::make(Expr::Kind kind, std::string text, std::vector<ExprPtr> children) {
    auto expr = std::make_unique<Expr>();
    expr->kind = kind;
    expr->line = children.empty() || !children[0] ? context_.line : children[0]->line;
    expr->text = std::move(text);
    expr->children = std::move(children);
    deepen(*expr);
    return expr;
}

template <class... Children>
ExprPtr ExpressionParser::join(Expr::Kind kind, std::string text, Children... children) {
    std::vector<ExprPtr> list;
    (list.push_back(std::move(children)), ...);
    return make(kind, std::move(text), std::move(list));
}

void ExpressionParser::deepen(Expr& expr) const {
    for (const ExprPtr& child : expr.children) {
        if (child) expr.depth = std::max(expr.depth, child->depth + 1);
    }
    if (expr.depth > kMaxTreeDepth) {
        context_.fail(fmt::format("an expression is nested deeper than {}", kMaxTreeDepth));
    }
}

ExprPtr ExpressionParser::constant(Value value) {
    ExprPtr expr = make(Expr::Kind::constant, {}, {});
    expr->constant = std::move(value);
    return expr;
}

// The loosest binding first.

ExprPtr ExpressionParser::parse_tuple(bool with_choice) {
    ExprPtr first = with_choice ? parse_expression() : parse_or();
    if (!is_op(",")) return first;
    std::vector<ExprPtr> items;
    items.push_back(std::move(first));
    while (skip_op(",")) {
        const Token::Kind kind = peek().kind;
        if (kind == Kind::block_end || kind == Kind::variable_end || is_op(")")) break;
        items.push_back(with_choice ? parse_expression() : parse_or());
    }
    return make(Expr::Kind::tuple, {}, std::move(items));
}

ExprPtr ExpressionParser::parse_expression() {
    const Nesting nesting(*this);
    ExprPtr value = parse_or();
    while (skip_name("if")) {
        ExprPtr condition = parse_or();
        ExprPtr otherwise = skip_name("else") ? parse_expression() : nullptr;
        value = join(Expr::Kind::choose, {}, std::move(value), std::move(condition),
                     std::move(otherwise));
    }
    return value;
}

ExprPtr ExpressionParser::parse_or() {
    ExprPtr left = parse_and();
    while (skip_name("or")) {
        left = join(Expr::Kind::either, {}, std::move(left), parse_and());
    }
    return left;
}

ExprPtr ExpressionParser::parse_and() {
    ExprPtr left = parse_not();
    while (skip_name("and")) left = join(Expr::Kind::both, {}, std::move(left), parse_not());
    return left;
}

ExprPtr ExpressionParser::parse_not() {
    if (!is_name("not")) return parse_compare();
    const Nesting nesting(*this);
    take();
    return join(Expr::Kind::negate, "not", parse_not());
}

ExprPtr ExpressionParser::parse_compare() {
    ExprPtr first = parse_sum();
    std::vector<std::string> operators;
    std::vector<ExprPtr> children;
    while (true) {
        constexpr std::string_view kCompare[] = {"==", "!=", "<", ">", "<=", ">="};
        const bool symbol =
            peek().kind == Kind::op &&
            std::find(std::begin(kCompare), std::end(kCompare), peek().text) != std::end(kCompare);
        if (symbol || is_name("in")) {
            operators.push_back(take().text);
        } else if (is_name("not") && is_name("in", 1)) {
            take();
            take();
            operators.push_back("not in");
        } else {
            break;
        }
        if (children.empty()) children.push_back(std::move(first));
        children.push_back(parse_sum());
    }
    if (operators.empty()) return first;
    ExprPtr expr = make(Expr::Kind::compare, {}, std::move(children));
    expr->operators = std::move(operators);
    return expr;
}

/// A left-associative level of binary operators.
template <class Next>
ExprPtr ExpressionParser::parse_level(std::initializer_list<std::string_view> operators,
                                      Next next) {
    ExprPtr left = (this->*next)();
    while (std::any_of(operators.begin(), operators.end(),
                       [&](std::string_view op) { return is_op(op); })) {
        std::string op = take().text;
        left = join(Expr::Kind::binary, std::move(op), std::move(left), (this->*next)());
    }
    return left;
}

ExprPtr ExpressionParser::parse_sum() {
    return parse_level({"+", "-"}, &ExpressionParser::parse_concatenation);
}

ExprPtr ExpressionParser::parse_concatenation() {
    return parse_level({"~"}, &ExpressionParser::parse_product);
}

ExprPtr ExpressionParser::parse_product() {
    return parse_level({"*", "/", "//", "%"}, &ExpressionParser::parse_power);
}

/// As jinja2 has it: from the left, looser than a sign and than a filter.
ExprPtr ExpressionParser::parse_power() {
    return parse_level({"**"}, &ExpressionParser::parse_filtered);
}

ExprPtr ExpressionParser::parse_filtered() {
    return parse_filters(parse_unary());
}

ExprPtr ExpressionParser::parse_filters(ExprPtr expr) {
    while (true) {
        if (skip_op("|")) {
            expr = parse_filter(std::move(expr));
        } else if (skip_name("is")) {
            expr = parse_test(std::move(expr));
        } else if (is_op("(")) {
            expr = parse_call(std::move(expr));
        } else {
            return expr;
        }
    }
}

/// A sign binds tighter than a filter, looser than an index.
ExprPtr ExpressionParser::parse_unary() {
    if (!is_op("-") && !is_op("+")) return parse_postfix(parse_primary());
    const Nesting nesting(*this);
    std::string sign = take().text;
    return join(Expr::Kind::negate, std::move(sign), parse_unary());
}

ExprPtr ExpressionParser::parse_postfix(ExprPtr expr) {
    while (true) {
        if (skip_op(".")) {
            if (peek().kind == Kind::integer) {
                expr = join(Expr::Kind::index, {}, std::move(expr), constant(take().integer));
            } else {
                std::string name = expect_name();
                expr = join(Expr::Kind::attribute, std::move(name), std::move(expr));
            }
        } else if (skip_op("[")) {
            expr = parse_subscript(std::move(expr));
        } else if (is_op("(")) {
            expr = parse_call(std::move(expr));
        } else {
            return expr;
        }
    }
}

ExprPtr ExpressionParser::parse_subscript(ExprPtr value) {
    std::vector<ExprPtr> parts;
    parts.push_back(std::move(value));
    bool slice = false;
    ExprPtr part;
    while (!is_op("]")) {
        if (skip_op(":")) {
            slice = true;
            parts.push_back(std::move(part));
            part = nullptr;
        } else if (part || is_op(",")) {
            fail_here("unexpected");
        } else {
            part = parse_expression();
        }
    }
    take();
    if (!slice && !part) context_.fail("an empty index");
    parts.push_back(std::move(part));
    if (!slice) return make(Expr::Kind::index, {}, std::move(parts));
    if (parts.size() > 4) context_.fail("a slice has at most three parts");
    parts.resize(4);
    return make(Expr::Kind::slice, {}, std::move(parts));
}

void ExpressionParser::parse_arguments(Expr& expr) {
    expect_op("(");
    while (!skip_op(")")) {
        if (is_op("*") || is_op("**")) context_.unsupported("an argument with a star");
        if (peek().kind == Kind::name && is_op("=", 1)) {
            expr.argument_names.push_back(take().text);
            take();
        } else if (!expr.argument_names.empty()) {
            fail_here("a positional argument after named ones:");
        }
        expr.children.push_back(parse_expression());
        if (!is_op(")")) expect_op(",");
    }
    deepen(expr);
}

ExprPtr ExpressionParser::parse_call(ExprPtr callee) {
    ExprPtr expr = join(Expr::Kind::call, {}, std::move(callee));
    parse_arguments(*expr);
    return expr;
}

ExprPtr ExpressionParser::parse_filter(ExprPtr value) {
    std::string name = expect_name();
    if (branches_ == 0 || !is_unknown_filter(name)) require_filter(context_, name);
    ExprPtr expr = join(Expr::Kind::filter, std::move(name), std::move(value));
    if (is_op("(")) parse_arguments(*expr);
    return expr;
}

ExprPtr ExpressionParser::parse_test(ExprPtr value) {
    const bool negated = skip_name("not");
    std::string name = expect_name();
    if (branches_ == 0) require_test(context_, name);
    ExprPtr expr = join(Expr::Kind::test, std::move(name), std::move(value));
    if (is_name("is")) fail_here("unexpected");
    const bool argument =
        peek().kind == Kind::string || peek().kind == Kind::integer ||
        peek().kind == Kind::floating || is_op("[") || is_op("{") ||
        (peek().kind == Kind::name && !is_name("else") && !is_name("or") && !is_name("and"));
    if (is_op("(")) {
        parse_arguments(*expr);
    } else if (argument) {
        expr->children.push_back(parse_postfix(parse_primary()));
        deepen(*expr);
    }
    return negated ? join(Expr::Kind::negate, "not", std::move(expr)) : std::move(expr);
}

ExprPtr ExpressionParser::parse_primary() {
    switch (peek().kind) {
        case Kind::name:
            return parse_name();
        case Kind::string: {
            std::string text = take().text;
            while (peek().kind == Kind::string) text += take().text;
            return constant(std::move(text));
        }
        case Kind::integer:
            return constant(take().integer);
        case Kind::floating:
            return constant(take().floating);
        default:
            break;
    }
    if (skip_op("(")) {
        if (skip_op(")")) return make(Expr::Kind::tuple, {}, {});
        ExprPtr expr = parse_tuple();
        expect_op(")");
        return expr;
    }
    if (is_op("[") || is_op("{")) return parse_container();
    fail_here("unexpected");
}

ExprPtr ExpressionParser::parse_name() {
    const std::string name = take().text;
    if (name == "true" || name == "True") return constant(true);
    if (name == "false" || name == "False") return constant(false);
    if (name == "none" || name == "None") return constant(None{});
    const bool special = name == "caller" || name == "varargs" || name == "kwargs";
    for (size_t i = 0; special && i < macros_.size(); ++i) {
        macros_[i]->caller |= name == "caller";
        macros_[i]->varargs |= name == "varargs";
        macros_[i]->kwargs |= name == "kwargs";
    }
    return make(Expr::Kind::name, name, {});
}

ExprPtr ExpressionParser::parse_container() {
    const bool list = take().text == "[";
    const std::string_view close = list ? "]" : "}";
    std::vector<ExprPtr> children;
    while (!skip_op(close)) {
        children.push_back(parse_expression());
        if (!list) {
            expect_op(":");
            children.push_back(parse_expression());
        }
        if (!is_op(close)) expect_op(",");
    }
    return make(list ? Expr::Kind::list : Expr::Kind::dict, {}, std::move(children));
}

}  // namespace kd::jinja
