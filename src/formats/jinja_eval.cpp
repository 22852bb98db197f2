#include "formats/jinja_eval.h"

#include <algorithm>

#include "formats/jinja_access.h"
#include "formats/jinja_arithmetic.h"
#include "formats/jinja_builtins.h"
#include "formats/jinja_macros.h"
#include "formats/jinja_strings.h"

namespace kd::jinja {

namespace {

/// Deepest nesting of blocks, expressions and calls in each other while a template runs.
constexpr int kMaxRunDepth = 400;

class Evaluator {
  public:
    Evaluator(Context& context, const Dict& variables)
        : context_(context), variables_(variables), scope_(std::make_shared<Scope>()) {}

    std::string run(const Block& block) {
        std::string out;
        out_ = &out;
        execute(block);
        return out;
    }

  private:
    enum class Flow : uint8_t { on, leave, next };

    /// New names inside those of `parent`, until the end of the C++ block.
    class Inside {
      public:
        Inside(Evaluator& evaluator, std::shared_ptr<Scope> parent)
            : evaluator_(evaluator),
              outer_(std::exchange(evaluator.scope_,
                                   std::make_shared<Scope>(Scope{{}, std::move(parent)}))) {}
        explicit Inside(Evaluator& evaluator) : Inside(evaluator, evaluator.scope_) {}
        ~Inside() { evaluator_.scope_ = std::move(outer_); }
        Inside(const Inside&) = delete;
        Inside& operator=(const Inside&) = delete;

      private:
        Evaluator& evaluator_;
        std::shared_ptr<Scope> outer_;
    };

    class Deeper {
      public:
        explicit Deeper(Evaluator& evaluator) : evaluator_(evaluator) {
            if (++evaluator_.depth_ > kMaxRunDepth) {
                evaluator_.context_.fail(
                    fmt::format("blocks and calls nested deeper than {}", kMaxRunDepth));
            }
        }
        ~Deeper() { --evaluator_.depth_; }
        Deeper(const Deeper&) = delete;
        Deeper& operator=(const Deeper&) = delete;

      private:
        Evaluator& evaluator_;
    };

    // Statements.

    Flow execute(const Block& block) {
        for (const Stmt& stmt : block) {
            const Flow flow = execute(stmt);
            if (flow != Flow::on) return flow;
        }
        return Flow::on;
    }

    Flow execute(const Stmt& stmt) {
        const Deeper deeper(*this);
        context_.line = stmt.line;
        context_.spend_steps(1);
        switch (stmt.kind) {
            case Stmt::Kind::text:
                print(stmt.text);
                return Flow::on;
            case Stmt::Kind::print:
                print_value(evaluate(*stmt.expr));
                return Flow::on;
            case Stmt::Kind::choose:
                for (const Branch& branch : stmt.branches) {
                    if (!branch.condition || evaluate(*branch.condition).truth()) {
                        return execute(branch.body);
                    }
                }
                return Flow::on;
            case Stmt::Kind::loop:
                execute_loop(stmt);
                return Flow::on;
            case Stmt::Kind::assign:
                assign(stmt, stmt.target, evaluate(*stmt.expr));
                return Flow::on;
            case Stmt::Kind::capture: {
                Value text = capture(stmt);
                assign(stmt, stmt.target, std::move(text));
                return Flow::on;
            }
            case Stmt::Kind::filter: {
                const Value text = capture(stmt);
                if (text.text() == nullptr) {
                    context_.fail(fmt::format("a filter block cannot print a {}", text.kind()));
                }
                print(*text.text());
                return Flow::on;
            }
            case Stmt::Kind::scope:
                return execute_scope(stmt);
            case Stmt::Kind::macro:
                set_in(scope_->names, stmt.text, macro_of(stmt));
                return Flow::on;
            case Stmt::Kind::call:
                print_value(evaluate_call(*stmt.expr, &stmt));
                return Flow::on;
            case Stmt::Kind::leave:
                return Flow::leave;
            case Stmt::Kind::next:
                return Flow::next;
        }
        return Flow::on;
    }

    void print(std::string_view text) {
        context_.spend_bytes(text.size());
        if (out_->size() + text.size() > kMaxOutputBytes) {
            context_.spend_bytes(size_t{kMaxBytes} + 1);
        }
        out_->append(text);
    }

    void print_value(const Value& value) {
        if (value.text() != nullptr)
            print(*value.text());
        else
            print(to_text(context_, value));
    }

    /// What `block` prints over the names of scope_.
    std::string printed(const Block& block) {
        std::string text;
        std::string* const outer = std::exchange(out_, &text);
        execute(block);
        out_ = outer;
        return text;
    }

    /// What the body prints, through the filters of the statement if there are any.
    Value capture(const Stmt& stmt) {
        const Inside inside(*this);
        Value text = printed(stmt.branches[0].body);
        if (!stmt.expr) return text;
        captured_ = std::move(text);
        return evaluate(*stmt.expr);
    }

    Flow execute_scope(const Stmt& stmt) {
        // The values are those of the names outside.
        std::vector<Value> values;
        for (const auto& [target, expr] : stmt.assignments) values.push_back(evaluate(*expr));
        const Inside inside(*this);
        for (size_t i = 0; i < values.size(); ++i) {
            assign(stmt, stmt.assignments[i].first, std::move(values[i]));
        }
        return execute(stmt.branches[0].body);
    }

    std::shared_ptr<const List> kept_items(const Stmt& stmt, std::shared_ptr<const List> items) {
        if (!stmt.filter) return items;
        auto kept = std::make_shared<List>();
        for (const Value& item : items->items) {
            const Inside inside(*this);
            assign(stmt, stmt.target, item);
            if (evaluate(*stmt.filter).truth()) kept->items.push_back(item);
        }
        kept->depth = items->depth;
        return kept;
    }

    void execute_loop(const Stmt& stmt) {
        const Value all = evaluate(*stmt.expr);
        context_.line = stmt.expr->line;
        const auto loop =
            std::make_shared<Loop>(Loop{.items = kept_items(stmt, iterate(context_, all))});
        const std::vector<Value>& items = loop->items->items;
        bool completed = false;  // a turn: as jinja2 has it, one that ends early does not count
        for (; loop->index < items.size(); ++loop->index) {
            context_.spend_steps(1);
            const Inside inside(*this);
            scope_->names.emplace_back("loop", loop);
            assign(stmt, stmt.target, items[loop->index]);
            const Flow flow = execute(stmt.branches[0].body);
            if (flow == Flow::leave) break;
            completed = completed || flow == Flow::on;
        }
        if (!completed && stmt.branches.size() > 1) {
            const Inside inside(*this);
            execute(stmt.branches[1].body);
        }
    }

    void assign(const Stmt& stmt, const Target& target, Value value) {
        context_.line = stmt.line;
        if (!target.unpack) return assign_one(target, std::move(value));
        const auto parts = iterate(context_, value);
        if (parts->items.size() != target.parts.size()) {
            context_.fail(
                fmt::format("{} values for {} names", parts->items.size(), target.parts.size()));
        }
        for (size_t i = 0; i < target.parts.size(); ++i) {
            assign(stmt, target.parts[i], parts->items[i]);
        }
    }

    void assign_one(const Target& target, Value value) {
        if (target.name_space.empty()) return set_in(scope_->names, target.name, std::move(value));
        const Value owner = look_up(target.name_space);
        Namespace* space = owner.name_space();
        if (space == nullptr) {
            context_.fail(fmt::format("'{}' is no namespace, its attributes cannot be assigned",
                                      shortened(target.name_space)));
        }
        require_storable(context_, target.name, value);
        set_in(space->attributes, target.name, std::move(value));
    }

    template <class Entries>
    void set_in(Entries& entries, const std::string& name, Value value) {
        context_.spend_steps(1);
        spend_look_up(context_, entries.size(), name);
        const auto found = std::find_if(entries.begin(), entries.end(),
                                        [&](const auto& entry) { return entry.first == name; });
        if (found != entries.end())
            found->second = std::move(value);
        else
            entries.emplace_back(name, std::move(value));
    }

    Value look_up(std::string_view name) {
        for (const Scope* scope = scope_.get(); scope != nullptr; scope = scope->parent.get()) {
            context_.spend_steps(1);
            spend_look_up(context_, scope->names.size(), name);
            for (const auto& [key, value] : scope->names) {
                if (key == name) return value;
            }
        }
        const Value* variable = variables_.find(context_, name);
        return variable != nullptr ? *variable : find_function(context_, name);
    }

    // Macros.

    Value macro_of(const Stmt& stmt) const {
        return std::make_shared<const Macro>(
            Macro{.name = stmt.kind == Stmt::Kind::macro ? std::string_view(stmt.text) : "",
                  .stmt = &stmt,
                  .scope = scope_});
    }

    Value call_macro(const Macro& macro, Arguments arguments) {
        std::shared_ptr<Scope> scope = macro.scope.lock();
        if (!scope) {
            context_.unsupported(
                fmt::format("calling {} after the block that defines it",
                            macro.name.empty() ? "caller" : shortened(macro.name)));
        }
        const Inside inside(*this, std::move(scope));
        bind_arguments(context_, macro, std::move(arguments), *scope_,
                       [this](const Expr& expr) { return evaluate(expr); });
        return printed(macro.stmt->branches[0].body);
    }

    // Expressions.

    Value evaluate(const Expr& expr) {
        const Deeper deeper(*this);
        context_.spend_steps(1);
        switch (expr.kind) {
            case Expr::Kind::constant:
                return expr.constant;
            case Expr::Kind::name:
                return look_up(expr.text);
            case Expr::Kind::captured:
                return std::move(captured_);
            case Expr::Kind::list:
            case Expr::Kind::tuple: {
                std::vector<Value> items;
                for (const ExprPtr& child : expr.children) items.push_back(evaluate(*child));
                return make_list(at(expr), std::move(items),
                                 expr.kind == Expr::Kind::tuple ? Sequence::tuple : Sequence::list);
            }
            case Expr::Kind::dict:
                return evaluate_dict(expr);
            case Expr::Kind::attribute:
            case Expr::Kind::index:
                return evaluate_part(expr);
            case Expr::Kind::slice:
                return evaluate_slice(expr);
            case Expr::Kind::call:
                return evaluate_call(expr, nullptr);
            case Expr::Kind::filter: {
                const Value value = evaluate(*expr.children[0]);
                const Arguments arguments = evaluate_arguments(expr);
                return apply_filter(at(expr), expr.text, value, arguments);
            }
            case Expr::Kind::test: {
                const Value value = evaluate(*expr.children[0]);
                const Arguments arguments = evaluate_arguments(expr);
                return apply_test(at(expr), expr.text, value, arguments);
            }
            case Expr::Kind::negate: {
                const Value value = evaluate(*expr.children[0]);
                if (expr.text == "not") return !value.truth();
                const Value negated = negate(at(expr), value);
                return expr.text == "-" ? negated : negate(context_, negated);
            }
            case Expr::Kind::both: {
                Value left = evaluate(*expr.children[0]);
                return left.truth() ? evaluate(*expr.children[1]) : left;
            }
            case Expr::Kind::either: {
                Value left = evaluate(*expr.children[0]);
                return left.truth() ? left : evaluate(*expr.children[1]);
            }
            case Expr::Kind::compare:
                return evaluate_compare(expr);
            case Expr::Kind::binary: {
                const Value left = evaluate(*expr.children[0]);
                const Value right = evaluate(*expr.children[1]);
                return operate(at(expr), expr.text, left, right, *expr.children[0],
                               *expr.children[1]);
            }
            case Expr::Kind::choose:
                if (evaluate(*expr.children[1]).truth()) return evaluate(*expr.children[0]);
                return expr.children[2] ? evaluate(*expr.children[2])
                                        : Value(Undefined{"the missing 'else' value"});
        }
        return {};
    }

    Value operate(Context& context, std::string_view op, const Value& left, const Value& right,
                  const Expr& left_expr, const Expr& right_expr) {
        // Only failing operands need their names; most operations succeed.
        const bool plain = (left.text() != nullptr && right.text() != nullptr) ||
                           (left.is_number() && right.is_number()) || op == "~";
        return jinja::operate(context, op, left, right, plain ? "" : describe(left_expr),
                              plain ? "" : describe(right_expr));
    }

    /// The context with the line of expr: for what may fail after its operands were evaluated.
    Context& at(const Expr& expr) {
        context_.line = expr.line;
        return context_;
    }

    Value evaluate_dict(const Expr& expr) {
        std::vector<Entry> entries;
        for (size_t i = 0; i < expr.children.size(); i += 2) {
            const Value key = evaluate(*expr.children[i]);
            Value value = evaluate(*expr.children[i + 1]);
            insert(at(expr), entries, key, std::move(value));
        }
        return make_dict(at(expr), std::move(entries));
    }

    void require_defined(const Expr& expr, const Value& value) {
        if (const Undefined* undefined = value.undefined()) {
            at(expr).fail(fmt::format("'{}' is undefined", undefined->source.empty()
                                                               ? describe(expr)
                                                               : undefined->source));
        }
    }

    /// value.name or value[key].
    Value evaluate_part(const Expr& expr) {
        const Value value = evaluate(*expr.children[0]);
        const bool attribute = expr.kind == Expr::Kind::attribute;
        const Value key = attribute ? Value() : evaluate(*expr.children[1]);
        require_defined(*expr.children[0], value);
        Value part =
            attribute ? get_attribute(at(expr), value, expr.text) : get_item(at(expr), value, key);
        return part.is_undefined() ? Value(Undefined{describe(expr)}) : part;
    }

    Value evaluate_slice(const Expr& expr) {
        const Value value = evaluate(*expr.children[0]);
        require_defined(*expr.children[0], value);
        Value bounds[3];
        for (size_t i = 0; i < 3; ++i) {
            bounds[i] = expr.children[i + 1] ? evaluate(*expr.children[i + 1]) : Value(None{});
        }
        return get_slice(at(expr), value, bounds[0], bounds[1], bounds[2]);
    }

    /// `block`: the call block around, whose body is the argument `caller`; or null.
    Value evaluate_call(const Expr& expr, const Stmt* block) {
        const Expr& callee = *expr.children[0];
        if (callee.kind == Expr::Kind::attribute) {
            const Value self = evaluate(*callee.children[0]);
            require_defined(*callee.children[0], self);
            if (is_method(self, callee.text)) {
                const Arguments arguments = evaluate_arguments(expr, block);
                return call_method(at(expr), self, callee.text, arguments);
            }
            Value function = get_attribute(at(expr), self, callee.text);
            if (function.is_undefined()) function = Undefined{describe(callee)};
            return call(expr, function, block);
        }
        return call(expr, evaluate(callee), block);
    }

    Value call(const Expr& expr, const Value& function, const Stmt* block) {
        const Expr& callee = *expr.children[0];
        require_defined(callee, function);
        Arguments arguments = evaluate_arguments(expr, block);
        at(expr);
        if (function.macro() != nullptr) return call_macro(*function.macro(), std::move(arguments));
        if (const Method* method = function.method()) {
            return call_method(context_, method->self, method->name, arguments);
        }
        if (function.function() != nullptr) {
            return call_function(context_, *function.function(), arguments);
        }
        context_.fail(fmt::format("{} ({}) cannot be called", describe(callee), function.kind()));
    }

    Arguments evaluate_arguments(const Expr& expr, const Stmt* block = nullptr) {
        Arguments arguments;
        const size_t named = expr.argument_names.size();
        const size_t positional = expr.children.size() - named;
        for (size_t i = 1; i < positional; ++i) {
            arguments.positional.push_back(evaluate(*expr.children[i]));
        }
        for (size_t i = 0; i < named; ++i) {
            context_.spend_text(expr.argument_names[i].size());
            arguments.named.emplace_back(expr.argument_names[i],
                                         evaluate(*expr.children[positional + i]));
        }
        if (block != nullptr) arguments.named.emplace_back("caller", macro_of(*block));
        return arguments;
    }

    Value evaluate_compare(const Expr& expr) {
        Value left = evaluate(*expr.children[0]);
        for (size_t i = 0; i < expr.operators.size(); ++i) {
            Value right = evaluate(*expr.children[i + 1]);
            if (!holds(at(expr), expr.operators[i], left, right)) return false;
            left = std::move(right);
        }
        return true;
    }

    static bool holds(Context& context, std::string_view op, const Value& a, const Value& b) {
        if (op == "==") return equal(context, a, b);
        if (op == "!=") return !equal(context, a, b);
        if (op == "in") return contains(context, b, a);
        if (op == "not in") return !contains(context, b, a);
        if (op == "<") return less(context, a, b);
        if (op == ">") return less(context, b, a);
        // Not the negation of the opposite: comparisons with NaN are all false.
        const bool same = equal(context, a, b);
        return (op == "<=" ? less(context, a, b) : less(context, b, a)) || same;
    }

    Context& context_;
    const Dict& variables_;
    std::shared_ptr<Scope> scope_;
    std::string* out_ = nullptr;
    Value captured_;
    int depth_ = 0;
};

}  // namespace

std::string run(Context& context, const Block& block, const Dict& variables) {
    return Evaluator(context, variables).run(block);
}

}  // namespace kd::jinja
