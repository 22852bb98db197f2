// The syntax tree of a template.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "formats/jinja_value.h"

namespace kd::jinja {

/// Deepest expression, and deepest nesting of blocks, that is accepted.
inline constexpr int kMaxTreeDepth = 200;

struct Expr {
    enum class Kind : uint8_t {
        constant,   // constant
        name,       // text
        list,       // children
        tuple,      // children
        dict,       // children: key, value, key, value ...
        attribute,  // child.text
        index,      // child[child]
        slice,      // child[child:child:child]; null children where left out
        call,       // child(arguments)
        filter,     // child|text(arguments)
        test,       // child is text(arguments)
        negate,     // not, -, + : text
        both,       // and
        either,     // or
        compare,    // child (text child)*: operators holds the texts
        binary,     // child text child
        choose,     // child if child else child; the last may be null
    };

    Kind kind = Kind::constant;
    int line = 0;
    int depth = 1;
    std::string text;
    Value constant;
    std::vector<std::unique_ptr<Expr>> children;
    std::vector<std::string> operators;  // compare
    /// Arguments of call, filter and test: children from 1 on; the last of them have these names.
    std::vector<std::string> argument_names;
};

using ExprPtr = std::unique_ptr<Expr>;

struct Stmt;
using Block = std::vector<Stmt>;

struct Branch {
    ExprPtr condition;  // null: else
    Block body;
};

/// What an assignment or a loop writes to: a name, or an attribute of a namespace.
struct Target {
    std::string name_space;  // empty: a plain name
    std::string name;
};

struct Stmt {
    enum class Kind : uint8_t {
        text,     // text
        print,    // expr
        choose,   // branches
        loop,     // for targets in expr if filter: branches[0], else branches[1]
        assign,   // targets = expr
        capture,  // targets = what branches[0] prints
        leave,    // break
        next,     // continue
    };

    Kind kind = Kind::text;
    int line = 0;
    std::string text;
    ExprPtr expr;
    ExprPtr filter;
    std::vector<Target> targets;
    bool unpack = false;  // several targets, or one with a comma behind it
    std::vector<Branch> branches;
};

}  // namespace kd::jinja
