// Tokens -> expressions: the half of the parser that knows nothing of statements.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "formats/jinja_ast.h"
#include "formats/jinja_lexer.h"

namespace kd::jinja {

/// A reader of tokens. All throw kd::Error at what is malformed, nests too deep or is not
/// supported.
class ExpressionParser {
  public:
    ExpressionParser(Context& context, std::string_view source)
        : context_(context), tokens_(tokenize(context, source)) {}

  protected:
    /// Bounds the recursion of the parser itself.
    class Nesting {
      public:
        explicit Nesting(ExpressionParser& parser);
        ~Nesting() { --parser_.nesting_; }
        Nesting(const Nesting&) = delete;
        Nesting& operator=(const Nesting&) = delete;

      private:
        ExpressionParser& parser_;
    };

    const Token& peek(size_t ahead = 0) const;
    Token take();
    bool is_op(std::string_view op, size_t ahead = 0) const;
    bool is_name(std::string_view name, size_t ahead = 0) const;
    bool skip_op(std::string_view op);
    bool skip_name(std::string_view name);
    void expect_op(std::string_view op);
    std::string expect_name();
    [[noreturn]] void fail_here(std::string_view what);

    /// `a, b` is a tuple; with_choice: `a if b else c` may stand in it without brackets.
    ExprPtr parse_tuple(bool with_choice = true);
    ExprPtr parse_expression();
    ExprPtr parse_or();
    /// Filters and tests over `value`, each behind its `|` or `is`.
    ExprPtr parse_filters(ExprPtr value);
    /// The same where the first filter stands without a `|`.
    ExprPtr parse_first_filter(ExprPtr value) {
        return parse_filters(parse_filter(std::move(value)));
    }
    ExprPtr make(Expr::Kind kind, std::string text, std::vector<ExprPtr> children);

    Context& context_;
    int branches_ = 0;  // around this place: what stands there need not run
    /// The macros around this place, innermost last: what they turn out to read is noted.
    std::vector<Signature*> macros_;

  private:
    template <class... Children>
    ExprPtr join(Expr::Kind kind, std::string text, Children... children);
    void deepen(Expr& expr) const;
    ExprPtr constant(Value value);
    ExprPtr parse_and();
    ExprPtr parse_not();
    ExprPtr parse_compare();
    template <class Next>
    ExprPtr parse_level(std::initializer_list<std::string_view> operators, Next next);
    ExprPtr parse_sum();
    ExprPtr parse_concatenation();
    ExprPtr parse_product();
    ExprPtr parse_power();
    ExprPtr parse_filtered();
    ExprPtr parse_unary();
    ExprPtr parse_postfix(ExprPtr expr);
    ExprPtr parse_subscript(ExprPtr value);
    void parse_arguments(Expr& expr);
    ExprPtr parse_call(ExprPtr callee);
    ExprPtr parse_filter(ExprPtr value);
    ExprPtr parse_test(ExprPtr value);
    ExprPtr parse_primary();
    ExprPtr parse_container();
    ExprPtr parse_name();

    std::vector<Token> tokens_;
    size_t at_ = 0;
    int nesting_ = 0;
};

}  // namespace kd::jinja
