#include "formats/jinja_eval.h"

#include <algorithm>
#include <optional>

#include "formats/jinja_arithmetic.h"
#include "formats/jinja_builtins.h"

namespace kd::jinja {

namespace {

/// A name or string of the template, as far as messages need it.
std::string shortened(const std::string& text) {
    constexpr size_t kMostBytes = 64;
    return text.size() <= kMostBytes ? text : text.substr(0, kMostBytes) + "...";
}

/// The expression as the template writes it, as far as messages need it.
std::string describe(const Expr& expr) {
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

class Evaluator {
  public:
    Evaluator(Context& context, const Dict& variables) : context_(context), variables_(variables) {
        scopes_.emplace_back();
    }

    std::string run(const Block& block) {
        std::string out;
        out_ = &out;
        execute(block);
        return out;
    }

  private:
    enum class Flow : uint8_t { on, leave, next };
    using Scope = std::vector<std::pair<std::string_view, Value>>;  // names live in the tree

    // Statements.

    Flow execute(const Block& block) {
        for (const Stmt& stmt : block) {
            const Flow flow = execute(stmt);
            if (flow != Flow::on) return flow;
        }
        return Flow::on;
    }

    Flow execute(const Stmt& stmt) {
        context_.line = stmt.line;
        context_.spend_steps(1);
        switch (stmt.kind) {
            case Stmt::Kind::text:
                print(stmt.text);
                return Flow::on;
            case Stmt::Kind::print: {
                const Value value = evaluate(*stmt.expr);
                if (value.text() != nullptr)
                    print(*value.text());
                else
                    print(to_text(context_, value));
                return Flow::on;
            }
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
                assign(stmt, evaluate(*stmt.expr));
                return Flow::on;
            case Stmt::Kind::capture: {
                std::string captured;
                std::string* const outer = std::exchange(out_, &captured);
                scopes_.emplace_back();
                execute(stmt.branches[0].body);
                scopes_.pop_back();
                out_ = outer;
                assign(stmt, std::move(captured));
                return Flow::on;
            }
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

    void execute_loop(const Stmt& stmt) {
        auto items = iterate(context_, evaluate(*stmt.expr));
        if (stmt.filter) {
            auto kept = std::make_shared<List>();
            for (const Value& item : items->items) {
                scopes_.emplace_back();
                assign(stmt, item);
                if (evaluate(*stmt.filter).truth()) kept->items.push_back(item);
                scopes_.pop_back();
            }
            kept->depth = items->depth;
            items = std::move(kept);
        }
        for (size_t i = 0; i < items->items.size(); ++i) {
            context_.spend_steps(1);
            scopes_.emplace_back();  // each turn has its own names
            scopes_.back().emplace_back("loop", std::make_shared<const Loop>(Loop{items, i}));
            assign(stmt, items->items[i]);
            const Flow flow = execute(stmt.branches[0].body);
            scopes_.pop_back();
            if (flow == Flow::leave) break;
        }
        if (items->items.empty() && stmt.branches.size() > 1) {
            scopes_.emplace_back();
            execute(stmt.branches[1].body);
            scopes_.pop_back();
        }
    }

    void assign(const Stmt& stmt, Value value) {
        context_.line = stmt.line;
        if (!stmt.unpack) return assign_one(stmt.targets[0], std::move(value));
        const auto parts = iterate(context_, value);
        if (parts->items.size() != stmt.targets.size()) {
            context_.fail(
                fmt::format("{} values for {} names", parts->items.size(), stmt.targets.size()));
        }
        for (size_t i = 0; i < stmt.targets.size(); ++i) {
            assign_one(stmt.targets[i], parts->items[i]);
        }
    }

    void assign_one(const Target& target, Value value) {
        if (target.name_space.empty()) return set_in(scopes_.back(), target.name, std::move(value));
        Namespace* space = look_up(target.name_space).name_space();
        if (space == nullptr) {
            context_.fail(fmt::format("'{}' is no namespace, its attributes cannot be assigned",
                                      target.name_space));
        }
        if (value.name_space() != nullptr || value.loop() != nullptr) {
            context_.unsupported(fmt::format("a {} inside another value", value.kind()));
        }
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
        for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
            spend_look_up(context_, scope->size(), name);
            for (const auto& [key, value] : *scope) {
                if (key == name) return value;
            }
        }
        const Value* variable = variables_.find(context_, name);
        return variable != nullptr ? *variable : find_function(name);
    }

    // Expressions.

    Value evaluate(const Expr& expr) {
        context_.spend_steps(1);
        switch (expr.kind) {
            case Expr::Kind::constant:
                return expr.constant;
            case Expr::Kind::name:
                return look_up(expr.text);
            case Expr::Kind::list:
            case Expr::Kind::tuple: {
                std::vector<Value> items;
                for (const ExprPtr& child : expr.children) items.push_back(evaluate(*child));
                return make_list(at(expr), std::move(items), expr.kind == Expr::Kind::tuple);
            }
            case Expr::Kind::dict:
                return evaluate_dict(expr);
            case Expr::Kind::attribute:
                return evaluate_attribute(expr);
            case Expr::Kind::index:
                return evaluate_index(expr);
            case Expr::Kind::slice:
                return evaluate_slice(expr);
            case Expr::Kind::call:
                return evaluate_call(expr);
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
        // Only failing operands need their names; most additions succeed.
        const bool plain = (left.text() != nullptr && right.text() != nullptr) || op == "~";
        return jinja::operate(context, op, left, right, plain ? "" : describe(left_expr),
                              plain ? "" : describe(right_expr));
    }

    /// The context with the line of expr: for what may fail after its operands were evaluated.
    Context& at(const Expr& expr) {
        context_.line = expr.line;
        return context_;
    }

    Value evaluate_dict(const Expr& expr) {
        std::vector<std::pair<std::string, Value>> entries;
        for (size_t i = 0; i < expr.children.size(); i += 2) {
            const Value key = evaluate(*expr.children[i]);
            if (key.text() == nullptr) {
                at(expr).unsupported(fmt::format("a mapping key of kind {}", key.kind()));
            }
            context_.spend_bytes(key.text()->size());
            set_in(entries, *key.text(), evaluate(*expr.children[i + 1]));
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

    Value evaluate_attribute(const Expr& expr) {
        const Value value = evaluate(*expr.children[0]);
        require_defined(*expr.children[0], value);
        if (const Dict* dict = value.dict()) {
            if (is_mapping_method(expr.text)) {
                at(expr).unsupported(
                    fmt::format("'{}', a method that is not called,", describe(expr)));
            }
            if (const Value* found = dict->find(context_, expr.text)) return *found;
        }
        if (const Namespace* space = value.name_space()) {
            spend_look_up(context_, space->attributes.size(), expr.text);
            for (const auto& [name, attribute] : space->attributes) {
                if (name == expr.text) return attribute;
            }
        }
        if (const Loop* loop = value.loop()) return loop_attribute(expr, *loop);
        return Undefined{describe(expr)};
    }

    Value loop_attribute(const Expr& expr, const Loop& loop) {
        const std::vector<Value>& items = loop.items->items;
        const auto index = static_cast<int64_t>(loop.index);
        const auto count = static_cast<int64_t>(items.size());
        const std::string& name = expr.text;
        if (name == "index") return index + 1;
        if (name == "index0") return index;
        if (name == "revindex") return count - index;
        if (name == "revindex0") return count - index - 1;
        if (name == "first") return index == 0;
        if (name == "last") return index + 1 == count;
        if (name == "length") return count;
        if (name == "depth") return int64_t{1};  // jinja2 counts recursive loops alone
        if (name == "depth0") return int64_t{0};
        if (name == "previtem" && index > 0) return items[loop.index - 1];
        if (name == "nextitem" && index + 1 < count) return items[loop.index + 1];
        if (name == "previtem" || name == "nextitem") return Undefined{describe(expr)};
        at(expr).unsupported(fmt::format("'loop.{}'", name));
    }

    Value evaluate_index(const Expr& expr) {
        const Value value = evaluate(*expr.children[0]);
        const Value key = evaluate(*expr.children[1]);
        require_defined(*expr.children[0], value);
        if (const Dict* dict = value.dict(); dict != nullptr && key.text() != nullptr) {
            if (const Value* found = dict->find(context_, *key.text())) return *found;
        }
        if (key.is_integer() && (value.list() != nullptr || value.text() != nullptr)) {
            const auto items = value.list() != nullptr ? nullptr : iterate(at(expr), value);
            const std::vector<Value>& all = items ? items->items : value.list()->items;
            const auto count = static_cast<int64_t>(all.size());
            const int64_t index = key.integer() < 0 ? key.integer() + count : key.integer();
            if (index >= 0 && index < count) return all[static_cast<size_t>(index)];
        }
        return Undefined{describe(expr)};
    }

    Value evaluate_slice(const Expr& expr) {
        const Value value = evaluate(*expr.children[0]);
        require_defined(*expr.children[0], value);
        if (value.list() == nullptr && value.text() == nullptr) {
            at(expr).fail(
                fmt::format("{} ({}) cannot be sliced", describe(*expr.children[0]), value.kind()));
        }
        const auto items = iterate(at(expr), value);
        const auto count = static_cast<int64_t>(items->items.size());
        const auto part = [&](size_t child) -> std::optional<int64_t> {
            if (!expr.children[child]) return std::nullopt;
            const Value bound = evaluate(*expr.children[child]);
            if (bound.is_none()) return std::nullopt;
            if (!bound.is_integer()) at(expr).fail("a slice needs integers");
            return bound.integer();
        };
        const auto begin_part = part(1);
        const auto end_part = part(2);
        const int64_t step = part(3).value_or(1);
        if (step == 0) at(expr).fail("a slice with step 0");
        // Bounds beyond the ends are pulled to the place where a walk in this direction would stop.
        const int64_t lowest = step > 0 ? 0 : -1;
        const int64_t highest = step > 0 ? count : count - 1;
        const auto place = [&](std::optional<int64_t> bound, int64_t fallback) {
            if (!bound) return fallback;
            return std::clamp(*bound < 0 ? *bound + count : *bound, lowest, highest);
        };
        const int64_t begin = place(begin_part, step > 0 ? lowest : highest);
        const int64_t end = place(end_part, step > 0 ? highest : lowest);
        std::vector<Value> result;
        for (int64_t i = begin; step > 0 ? i < end : i > end;) {
            result.push_back(items->items[static_cast<size_t>(i)]);
            if (__builtin_add_overflow(i, step, &i)) break;
        }
        if (value.list() != nullptr) {
            return make_list(at(expr), std::move(result), value.list()->tuple);
        }
        std::string text;
        for (const Value& character : result) text += *character.text();
        context_.spend_bytes(text.size());
        return text;
    }

    Value evaluate_call(const Expr& expr) {
        const Expr& callee = *expr.children[0];
        if (callee.kind == Expr::Kind::attribute) {
            const Value self = evaluate(*callee.children[0]);
            require_defined(*callee.children[0], self);
            const Arguments arguments = evaluate_arguments(expr);
            return call_method(at(expr), self, callee.text, arguments);
        }
        const Value function = evaluate(callee);
        require_defined(callee, function);
        if (function.function() == nullptr) {
            at(expr).fail(
                fmt::format("{} ({}) cannot be called", describe(callee), function.kind()));
        }
        const Arguments arguments = evaluate_arguments(expr);
        return call_function(at(expr), *function.function(), arguments);
    }

    Arguments evaluate_arguments(const Expr& expr) {
        Arguments arguments;
        const size_t named = expr.argument_names.size();
        const size_t positional = expr.children.size() - named;
        for (size_t i = 1; i < positional; ++i) {
            arguments.positional.push_back(evaluate(*expr.children[i]));
        }
        for (size_t i = 0; i < named; ++i) {
            arguments.named.emplace_back(expr.argument_names[i],
                                         evaluate(*expr.children[positional + i]));
        }
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
    std::vector<Scope> scopes_;
    std::string* out_ = nullptr;
};

}  // namespace

std::string run(Context& context, const Block& block, const Dict& variables) {
    return Evaluator(context, variables).run(block);
}

}  // namespace kd::jinja
