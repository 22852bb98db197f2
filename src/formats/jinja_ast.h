// The syntax tree of a template.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "formats/jinja_value.h"

namespace kd::jinja {

/// Deepest expression, and deepest nesting of blocks, that is accepted.
inline constexpr int kMaxTreeDepth = 200;
/// Most parameters of a macro: each call looks for each of them.
inline constexpr size_t kMaxParameters = 255;

struct Expr {
    enum class Kind : uint8_t {
        constant,   // constant
        name,       // text
        captured,   // what the block before it printed: what its filters start from
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

/// The expression as the template writes it, as far as messages need it: the end of a long one.
std::string describe(const Expr& expr);

/// What an assignment or a loop writes to: a name, an attribute of a namespace, or the elements of
/// a sequence to several targets.
struct Target {
    std::string name_space;  // empty: a plain name
    std::string name;
    std::vector<Target> parts;
    bool unpack = false;  // to parts
};

/// What a macro, or the body of a call block, takes.
struct Signature {
    std::vector<std::string> parameters;
    std::vector<ExprPtr> defaults;  // of the last parameters
    // Whether the body reads these names, which makes them parameters, too.
    bool caller = false;
    bool varargs = false;
    bool kwargs = false;
};

struct Stmt {
    enum class Kind : uint8_t {
        text,     // text
        print,    // expr
        choose,   // branches
        loop,     // for target in expr if filter: branches[0], else branches[1]
        assign,   // target = expr
        capture,  // target = what branches[0] prints, through expr if there is one
        filter,   // prints expr over what branches[0] prints
        scope,    // with assignments: branches[0]
        macro,    // text = a macro of signature and branches[0]
        call,     // prints expr, a call, which gets signature and branches[0] as `caller`
        leave,    // break
        next,     // continue
    };

    Kind kind = Kind::text;
    int line = 0;
    std::string text;
    ExprPtr expr;
    ExprPtr filter;
    Target target;
    std::vector<Branch> branches;
    std::vector<std::pair<Target, ExprPtr>> assignments;
    Signature signature;
};

}  // namespace kd::jinja
