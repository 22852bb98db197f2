// What a macro's body reads when it is called.
#pragma once

#include <functional>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/jinja_ast.h"
#include "formats/jinja_builtins.h"

namespace kd::jinja {

/// Names of one block; each turn of a loop and each call has its own.
struct Scope {
    std::vector<std::pair<std::string_view, Value>> names;  // they live in the tree
    std::shared_ptr<Scope> parent;
};

using Evaluate = std::function<Value(const Expr&)>;

/// Binds as Python does, with jinja2's three names that a body takes by reading them: adds all to
/// `scope`, the call's own, over whose names `evaluate` evaluates defaults. Fails for arguments
/// that nothing takes.
void bind_arguments(Context& context, const Macro& macro, Arguments arguments, Scope& scope,
                    const Evaluate& evaluate);

}  // namespace kd::jinja
