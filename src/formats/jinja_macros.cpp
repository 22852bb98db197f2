#include "formats/jinja_macros.h"

#include <algorithm>
#include <optional>

#include "formats/jinja_strings.h"

namespace kd::jinja {

namespace {

/// Removes and returns the named argument; nullopt if it is not given.
std::optional<Value> take_named(Context& context, Arguments& arguments, std::string_view name) {
    context.spend_steps(1);
    spend_look_up(context, arguments.named.size(), name);
    const auto found = std::find_if(arguments.named.begin(), arguments.named.end(),
                                    [&](const auto& each) { return each.first == name; });
    if (found == arguments.named.end()) return std::nullopt;
    Value value = std::move(found->second);
    arguments.named.erase(found);
    return value;
}

/// Moves what the parameters take from `arguments` into `scope`, defaults where nothing is given.
void bind_parameters(Context& context, const Signature& signature, Arguments& arguments,
                     Scope& scope, const Evaluate& evaluate) {
    const size_t count = signature.parameters.size();
    const size_t required = count - signature.defaults.size();
    const size_t given = std::min(arguments.positional.size(), count);
    for (size_t i = 0; i < count; ++i) {
        const std::string& name = signature.parameters[i];
        Value value;
        if (i < given) {
            value = std::move(arguments.positional[i]);
        } else if (std::optional<Value> named = take_named(context, arguments, name)) {
            value = *std::move(named);
        } else if (i >= required) {
            value = evaluate(*signature.defaults[i - required]);
        } else {
            value = Undefined{shortened(name)};
        }
        scope.names.emplace_back(name, std::move(value));
    }
    arguments.positional.erase(arguments.positional.begin(),
                               arguments.positional.begin() + static_cast<ptrdiff_t>(given));
}

void bind_caller(Context& context, const Signature& signature, Arguments& arguments, Scope& scope) {
    const auto& parameters = signature.parameters;
    if (!signature.caller ||
        std::find(parameters.begin(), parameters.end(), "caller") != parameters.end()) {
        return;
    }
    std::optional<Value> caller = take_named(context, arguments, "caller");
    scope.names.emplace_back("caller", caller ? *std::move(caller) : Value(Undefined{"caller"}));
}

}  // namespace

void bind_arguments(Context& context, const Macro& macro, Arguments arguments, Scope& scope,
                    const Evaluate& evaluate) {
    const Signature& signature = macro.stmt->signature;
    bind_parameters(context, signature, arguments, scope, evaluate);
    bind_caller(context, signature, arguments, scope);
    const auto require_none = [&](bool none_left) {
        if (none_left) return;
        context.fail(fmt::format("'{}' has no parameter for an argument", shortened(macro.name)));
    };
    if (signature.kwargs) {
        scope.names.emplace_back(
            "kwargs", make_dict(context, {arguments.named.begin(), arguments.named.end()}));
    } else {
        require_none(arguments.named.empty());
    }
    if (signature.varargs) {
        scope.names.emplace_back(
            "varargs", make_list(context, std::move(arguments.positional), Sequence::tuple));
    } else {
        require_none(arguments.positional.empty());
    }
}

}  // namespace kd::jinja
