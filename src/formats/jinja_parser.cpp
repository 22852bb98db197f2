#include "formats/jinja_parser.h"

#include <algorithm>
#include <initializer_list>

#include "formats/jinja_expressions.h"
#include "formats/jinja_strings.h"

namespace kd::jinja {

namespace {

using Kind = Token::Kind;

class Parser : public ExpressionParser {
  public:
    using ExpressionParser::ExpressionParser;

    Block parse_template() {
        Block block = parse_block({});
        if (peek().kind != Kind::end) fail_here("unexpected");
        return block;
    }

  private:
    class Branching {
      public:
        explicit Branching(Parser& parser) : parser_(parser) { ++parser_.branches_; }
        ~Branching() { --parser_.branches_; }
        Branching(const Branching&) = delete;
        Branching& operator=(const Branching&) = delete;

      private:
        Parser& parser_;
    };

    void expect_block_end() {
        if (peek().kind != Kind::block_end) fail_here("unexpected");
        take();
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
        } else if (name == "macro") {
            block.push_back(parse_macro(line));
        } else if (name == "call") {
            block.push_back(parse_call_block(line));
        } else if (name == "filter") {
            block.push_back(parse_filter_block(line));
        } else if (name == "with") {
            block.push_back(parse_with(line));
        } else if (name == "generation") {
            // Marks what the assistant has written for training tools; prints its body.
            // As a call block, it has names of its own.
            Stmt stmt{.kind = Stmt::Kind::scope, .line = line};
            stmt.branches.push_back({nullptr, parse_closed_body("endgeneration")});
            block.push_back(std::move(stmt));
        } else if (name.starts_with("end") || name == "else" || name == "elif") {
            context_.fail(fmt::format("unexpected '{}'", shortened(name)));
        } else {
            context_.unsupported(fmt::format("the statement '{}'", shortened(name)));
        }
    }

    Stmt parse_if(int line) {
        Stmt stmt{.kind = Stmt::Kind::choose, .line = line};
        const Branching branching(*this);
        while (true) {
            ExprPtr condition = parse_tuple(false);
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
        stmt.target = parse_target(false);
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
        stmt.target = parse_target(true);
        if (skip_op("=")) {
            stmt.expr = parse_tuple();
            expect_block_end();
            return stmt;
        }
        stmt.kind = Stmt::Kind::capture;
        if (is_op("|")) stmt.expr = parse_filters(make(Expr::Kind::captured, {}, {}));
        stmt.branches.push_back({nullptr, parse_closed_body("endset")});
        return stmt;
    }

    /// The rest of a tag and what follows up to the tag `end`, which no break or continue leaves.
    Block parse_closed_body(std::string_view end) {
        expect_block_end();
        const int loops = std::exchange(loops_, 0);
        Block body = parse_block({end});
        loops_ = loops;
        take();
        expect_block_end();
        return body;
    }

    Stmt parse_filter_block(int line) {
        Stmt stmt{.kind = Stmt::Kind::filter, .line = line};
        stmt.expr = parse_first_filter(make(Expr::Kind::captured, {}, {}));
        stmt.branches.push_back({nullptr, parse_closed_body("endfilter")});
        return stmt;
    }

    Stmt parse_with(int line) {
        Stmt stmt{.kind = Stmt::Kind::scope, .line = line};
        while (peek().kind != Kind::block_end) {
            if (!stmt.assignments.empty()) expect_op(",");
            Target target = parse_target(false);
            expect_op("=");
            stmt.assignments.emplace_back(std::move(target), parse_expression());
        }
        expect_block_end();
        stmt.branches.push_back({nullptr, parse_block({"endwith"})});
        take();
        expect_block_end();
        return stmt;
    }

    Stmt parse_macro(int line) {
        Stmt stmt{.kind = Stmt::Kind::macro, .line = line};
        stmt.text = expect_name();
        parse_signature(stmt.signature);
        parse_macro_body(stmt, "endmacro");
        return stmt;
    }

    Stmt parse_call_block(int line) {
        Stmt stmt{.kind = Stmt::Kind::call, .line = line, .text = "caller"};
        if (is_op("(")) parse_signature(stmt.signature);
        stmt.expr = parse_expression();
        if (stmt.expr->kind != Expr::Kind::call) context_.fail("'call' needs a call");
        parse_macro_body(stmt, "endcall");
        return stmt;
    }

    void parse_macro_body(Stmt& stmt, std::string_view end) {
        macros_.push_back(&stmt.signature);
        stmt.branches.push_back({nullptr, parse_closed_body(end)});
        macros_.pop_back();
    }

    void parse_signature(Signature& signature) {
        expect_op("(");
        while (!skip_op(")")) {
            if (!signature.parameters.empty()) expect_op(",");
            const std::string name = parse_target_name();
            if (std::find(signature.parameters.begin(), signature.parameters.end(), name) !=
                signature.parameters.end()) {
                context_.fail(fmt::format("the parameter '{}' occurs twice", shortened(name)));
            }
            if (signature.parameters.size() == kMaxParameters) {
                context_.fail(fmt::format("more than {} parameters", kMaxParameters));
            }
            signature.parameters.push_back(name);
            if (skip_op("=")) {
                signature.defaults.push_back(parse_expression());
            } else if (!signature.defaults.empty()) {
                context_.fail(
                    fmt::format("the parameter '{}' without a default follows one with a "
                                "default",
                                shortened(name)));
            }
        }
    }

    std::string parse_target_name() {
        std::string name = expect_name();
        constexpr std::string_view kReserved[] = {"true",  "false", "none", "True",
                                                  "False", "None",  "loop"};
        if (std::find(std::begin(kReserved), std::end(kReserved), name) != std::end(kReserved)) {
            context_.fail(fmt::format("'{}' cannot be assigned", name));
        }
        return name;
    }

    /// One target, or several with commas between them.
    Target parse_target(bool with_namespace) {
        const Nesting nesting(*this);
        std::vector<Target> parts;
        bool unpack = false;
        do {
            if (unpack && peek().kind != Kind::name && !is_op("(")) break;
            if (skip_op("(")) {
                parts.push_back(parse_target(with_namespace));
                expect_op(")");
            } else {
                Target part{.name = parse_target_name()};
                if (with_namespace && skip_op(".")) {
                    part.name_space = std::exchange(part.name, expect_name());
                }
                parts.push_back(std::move(part));
            }
            unpack = unpack || is_op(",");
        } while (skip_op(","));
        if (!unpack) return std::move(parts[0]);
        return {.parts = std::move(parts), .unpack = true};
    }

    int loops_ = 0;
};

}  // namespace

Block parse(Context& context, std::string_view source) {
    return Parser(context, source).parse_template();
}

}  // namespace kd::jinja
