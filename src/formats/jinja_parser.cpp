#include "formats/jinja_parser.h"

#include <algorithm>
#include <initializer_list>

#include "formats/jinja_lexer.h"

namespace kd::jinja {

namespace {

using Kind = Token::Kind;

class Parser {
  public:
    Parser(Context& context, std::string_view source)
        : context_(context), tokens_(tokenize(context, source)) {}

    Block parse_template() {
        Block block = parse_block({});
        if (peek().kind != Kind::end) fail_here("unexpected");
        return block;
    }

  private:
    /// Bounds the recursion of the parser itself.
    class Nesting {
      public:
        explicit Nesting(Parser& parser) : parser_(parser) {
            if (++parser_.nesting_ > kMaxTreeDepth) {
                parser_.context_.line = parser_.peek().line;
                parser_.context_.fail(fmt::format("nested deeper than {}", kMaxTreeDepth));
            }
        }
        ~Nesting() { --parser_.nesting_; }
        Nesting(const Nesting&) = delete;
        Nesting& operator=(const Nesting&) = delete;

      private:
        Parser& parser_;
    };

    const Token& peek(size_t ahead = 0) const {
        return tokens_[std::min(at_ + ahead, tokens_.size() - 1)];
    }

    Token take() {
        Token token = peek();
        if (at_ + 1 < tokens_.size()) ++at_;
        context_.line = token.line;
        return token;
    }

    [[noreturn]] void fail_here(std::string_view what) {
        const Token& token = peek();
        context_.line = token.line;
        if (token.kind == Kind::end) context_.fail("the template ends too early");
        const bool tag_end = token.kind == Kind::block_end || token.kind == Kind::variable_end;
        context_.fail(tag_end ? fmt::format("{} end of the tag", what)
                              : fmt::format("{} '{}'", what, token.text));
    }

    bool is_op(std::string_view op, size_t ahead = 0) const {
        return peek(ahead).kind == Kind::op && peek(ahead).text == op;
    }
    bool is_name(std::string_view name, size_t ahead = 0) const {
        return peek(ahead).kind == Kind::name && peek(ahead).text == name;
    }
    bool skip_op(std::string_view op) {
        if (!is_op(op)) return false;
        take();
        return true;
    }
    bool skip_name(std::string_view name) {
        if (!is_name(name)) return false;
        take();
        return true;
    }
    void expect_op(std::string_view op) {
        if (!skip_op(op)) fail_here(fmt::format("'{}' expected, found", op));
    }
    std::string expect_name() {
        if (peek().kind != Kind::name) fail_here("a name expected, found");
        return take().text;
    }
    void expect_block_end() {
        if (peek().kind != Kind::block_end) fail_here("unexpected");
        take();
    }

    ExprPtr make(Expr::Kind kind, std::string text, std::vector<ExprPtr> children) {
        auto expr = std::make_unique<Expr>();
        expr->kind = kind;
        expr->line = children.empty() || !children[0] ? context_.line : children[0]->line;
        expr->text = std::move(text);
        expr->children = std::move(children);
        deepen(*expr);
        return expr;
    }

    template <class... Children>
    ExprPtr join(Expr::Kind kind, std::string text, Children... children) {
        std::vector<ExprPtr> list;
        (list.push_back(std::move(children)), ...);
        return make(kind, std::move(text), std::move(list));
    }

    void deepen(Expr& expr) const {
        for (const ExprPtr& child : expr.children) {
            if (child) expr.depth = std::max(expr.depth, child->depth + 1);
        }
        if (expr.depth > kMaxTreeDepth) {
            context_.fail(fmt::format("an expression is nested deeper than {}", kMaxTreeDepth));
        }
    }

    ExprPtr constant(Value value) {
        ExprPtr expr = make(Expr::Kind::constant, {}, {});
        expr->constant = std::move(value);
        return expr;
    }

    // Statements.

    /// Up to a block whose name is in `ends`; stands at that name afterwards.
    Block parse_block(std::initializer_list<std::string_view> ends) {
        const Nesting nesting(*this);
        Block block;
        while (true) {
            if (peek().kind == Kind::text) {
                Stmt stmt{.kind = Stmt::Kind::text, .line = peek().line};
                stmt.text = take().text;
                block.push_back(std::move(stmt));
            } else if (peek().kind == Kind::variable_begin) {
                take();
                Stmt stmt{.kind = Stmt::Kind::print, .line = context_.line};
                stmt.expr = parse_tuple();
                if (peek().kind != Kind::variable_end) fail_here("unexpected");
                take();
                block.push_back(std::move(stmt));
            } else if (peek().kind == Kind::block_begin) {
                take();
                if (std::any_of(ends.begin(), ends.end(),
                                [&](std::string_view end) { return is_name(end); })) {
                    return block;
                }
                parse_statement(block);
            } else if (ends.size() > 0) {
                context_.line = peek().line;
                context_.fail(fmt::format("'{}' is missing", *(ends.end() - 1)));
            } else {
                return block;
            }
        }
    }

    void parse_statement(Block& block) {
        const std::string name = expect_name();
        const int line = context_.line;
        if (name == "if") {
            block.push_back(parse_if(line));
        } else if (name == "for") {
            block.push_back(parse_for(line));
        } else if (name == "set") {
            block.push_back(parse_set(line));
        } else if (name == "break" || name == "continue") {
            if (loops_ == 0) context_.fail(fmt::format("'{}' outside a loop", name));
            block.push_back(
                {.kind = name == "break" ? Stmt::Kind::leave : Stmt::Kind::next, .line = line});
            expect_block_end();
        } else if (name == "generation") {
            // Marks what the assistant has written for training tools; prints its body.
            expect_block_end();
            Block body = parse_block({"endgeneration"});
            take();
            expect_block_end();
            std::move(body.begin(), body.end(), std::back_inserter(block));
        } else if (name.starts_with("end") || name == "else" || name == "elif") {
            context_.fail(fmt::format("unexpected '{}'", name));
        } else {
            context_.unsupported(fmt::format("the statement '{}'", name));
        }
    }

    Stmt parse_if(int line) {
        Stmt stmt{.kind = Stmt::Kind::choose, .line = line};
        while (true) {
            ExprPtr condition = parse_tuple();
            expect_block_end();
            stmt.branches.push_back({std::move(condition), parse_block({"elif", "else", "endif"})});
            if (skip_name("elif")) continue;
            if (skip_name("else")) {
                expect_block_end();
                stmt.branches.push_back({nullptr, parse_block({"endif"})});
            }
            take();  // endif
            expect_block_end();
            return stmt;
        }
    }

    Stmt parse_for(int line) {
        Stmt stmt{.kind = Stmt::Kind::loop, .line = line};
        parse_targets(stmt, false);
        if (!skip_name("in")) fail_here("'in' expected, found");
        stmt.expr = parse_tuple(false);
        if (skip_name("if")) stmt.filter = parse_expression();
        if (is_name("recursive")) context_.unsupported("a recursive loop");
        expect_block_end();
        ++loops_;
        stmt.branches.push_back({nullptr, parse_block({"else", "endfor"})});
        --loops_;
        if (skip_name("else")) {
            expect_block_end();
            stmt.branches.push_back({nullptr, parse_block({"endfor"})});
        }
        take();  // endfor
        expect_block_end();
        return stmt;
    }

    Stmt parse_set(int line) {
        Stmt stmt{.kind = Stmt::Kind::assign, .line = line};
        parse_targets(stmt, true);
        if (skip_op("=")) {
            stmt.expr = parse_tuple();
            expect_block_end();
            return stmt;
        }
        if (is_op("|")) context_.unsupported("a filter on a block assignment");
        stmt.kind = Stmt::Kind::capture;
        expect_block_end();
        const int loops = std::exchange(loops_, 0);  // a loop is not left out of a capture
        stmt.branches.push_back({nullptr, parse_block({"endset"})});
        loops_ = loops;
        take();
        expect_block_end();
        return stmt;
    }

    void parse_targets(Stmt& stmt, bool with_namespace) {
        const bool bracket = skip_op("(");
        do {
            if (!stmt.targets.empty()) stmt.unpack = true;
            if (!stmt.targets.empty() && peek().kind != Kind::name) break;
            Target target{.name_space = {}, .name = expect_name()};
            if (with_namespace && skip_op(".")) {
                target.name_space = std::exchange(target.name, expect_name());
            }
            constexpr std::string_view kReserved[] = {"true",  "false", "none", "True",
                                                      "False", "None",  "loop"};
            if (std::find(std::begin(kReserved), std::end(kReserved), target.name) !=
                std::end(kReserved)) {
                context_.fail(fmt::format("'{}' cannot be assigned", target.name));
            }
            stmt.targets.push_back(std::move(target));
        } while (skip_op(","));
        if (bracket) expect_op(")");
    }

    // Expressions, the loosest binding first.

    ExprPtr parse_tuple(bool with_choice = true) {
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

    ExprPtr parse_expression() {
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

    ExprPtr parse_or() {
        ExprPtr left = parse_and();
        while (skip_name("or")) {
            left = join(Expr::Kind::either, {}, std::move(left), parse_and());
        }
        return left;
    }

    ExprPtr parse_and() {
        ExprPtr left = parse_not();
        while (skip_name("and")) left = join(Expr::Kind::both, {}, std::move(left), parse_not());
        return left;
    }

    ExprPtr parse_not() {
        if (!is_name("not")) return parse_compare();
        const Nesting nesting(*this);
        take();
        return join(Expr::Kind::negate, "not", parse_not());
    }

    ExprPtr parse_compare() {
        ExprPtr first = parse_sum();
        std::vector<std::string> operators;
        std::vector<ExprPtr> children;
        while (true) {
            constexpr std::string_view kCompare[] = {"==", "!=", "<", ">", "<=", ">="};
            const bool symbol = peek().kind == Kind::op &&
                                std::find(std::begin(kCompare), std::end(kCompare), peek().text) !=
                                    std::end(kCompare);
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
    ExprPtr parse_level(std::initializer_list<std::string_view> operators, Next next) {
        ExprPtr left = (this->*next)();
        while (std::any_of(operators.begin(), operators.end(),
                           [&](std::string_view op) { return is_op(op); })) {
            std::string op = take().text;
            left = join(Expr::Kind::binary, std::move(op), std::move(left), (this->*next)());
        }
        return left;
    }

    ExprPtr parse_sum() { return parse_level({"+", "-"}, &Parser::parse_concatenation); }
    ExprPtr parse_concatenation() { return parse_level({"~"}, &Parser::parse_product); }
    ExprPtr parse_product() { return parse_level({"*", "/", "//", "%"}, &Parser::parse_filtered); }

    ExprPtr parse_filtered() {
        ExprPtr expr = parse_unary();
        while (true) {
            if (skip_op("|")) {
                expr = parse_filter(std::move(expr));
            } else if (skip_name("is")) {
                expr = parse_test(std::move(expr));
            } else if (is_op("(")) {
                expr = parse_call(std::move(expr));
            } else if (is_op("**")) {
                context_.unsupported("the operator '**'");
            } else {
                return expr;
            }
        }
    }

    /// A sign binds tighter than a filter, looser than an index.
    ExprPtr parse_unary() {
        if (!is_op("-") && !is_op("+")) return parse_postfix(parse_primary());
        const Nesting nesting(*this);
        std::string sign = take().text;
        return join(Expr::Kind::negate, std::move(sign), parse_unary());
    }

    ExprPtr parse_postfix(ExprPtr expr) {
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

    ExprPtr parse_subscript(ExprPtr value) {
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

    void parse_arguments(Expr& expr) {
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

    ExprPtr parse_call(ExprPtr callee) {
        ExprPtr expr = join(Expr::Kind::call, {}, std::move(callee));
        parse_arguments(*expr);
        return expr;
    }

    ExprPtr parse_filter(ExprPtr value) {
        std::string name = expect_name();
        ExprPtr expr = join(Expr::Kind::filter, std::move(name), std::move(value));
        if (is_op("(")) parse_arguments(*expr);
        return expr;
    }

    ExprPtr parse_test(ExprPtr value) {
        const bool negated = skip_name("not");
        std::string name = expect_name();
        ExprPtr expr = join(Expr::Kind::test, std::move(name), std::move(value));
        const bool argument =
            peek().kind == Kind::string || peek().kind == Kind::integer ||
            peek().kind == Kind::floating || is_op("[") || is_op("{") ||
            (peek().kind == Kind::name && !is_name("else") && !is_name("or") && !is_name("and") &&
             !is_name("is") && !is_name("if") && !is_name("not") && !is_name("in"));
        if (is_op("(")) {
            parse_arguments(*expr);
        } else if (argument) {
            expr->children.push_back(parse_postfix(parse_primary()));
            deepen(*expr);
        }
        return negated ? join(Expr::Kind::negate, "not", std::move(expr)) : std::move(expr);
    }

    ExprPtr parse_primary() {
        switch (peek().kind) {
            case Kind::name: {
                const std::string name = take().text;
                if (name == "true" || name == "True") return constant(true);
                if (name == "false" || name == "False") return constant(false);
                if (name == "none" || name == "None") return constant(None{});
                return make(Expr::Kind::name, name, {});
            }
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

    ExprPtr parse_container() {
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

    Context& context_;
    std::vector<Token> tokens_;
    size_t at_ = 0;
    int nesting_ = 0;
    int loops_ = 0;
};

}  // namespace

Block parse(Context& context, std::string_view source) {
    return Parser(context, source).parse_template();
}

}  // namespace kd::jinja
