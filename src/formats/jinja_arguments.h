// Matching the arguments of a call with the parameters of a builtin.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <optional>

#include "formats/jinja_builtins.h"
#include "formats/jinja_strings.h"

namespace kd::jinja {

/// Arguments by parameter. Fails for arguments that no parameter takes.
class Bound {
  public:
    /// `required`: so many leading parameters must be given.
    Bound(Context& context, std::string_view callee, const Arguments& arguments,
          std::initializer_list<std::string_view> parameters, size_t required = 0)
        : context_(context), callee_(callee), names_(parameters), values_(parameters.size()) {
        if (arguments.positional.size() > values_.size()) {
            context.fail(fmt::format("{} takes at most {} arguments, {} are given", callee,
                                     values_.size(), arguments.positional.size()));
        }
        for (size_t i = 0; i < arguments.positional.size(); ++i) {
            values_[i] = arguments.positional[i];
        }
        for (const auto& [name, value] : arguments.named) {
            const auto found = std::find(names_.begin(), names_.end(), name);
            const auto at = static_cast<size_t>(found - names_.begin());
            if (found == names_.end() || values_[at]) {
                context.fail(fmt::format("{}: unexpected argument '{}'", callee, shortened(name)));
            }
            values_[at] = value;
        }
        for (size_t i = 0; i < required; ++i) {
            if (!values_[i]) {
                context.fail(fmt::format("{}: the argument '{}' is missing", callee, names_[i]));
            }
        }
    }

    Value value(size_t at, Value fallback = None{}) const {
        return values_[at] ? *values_[at] : std::move(fallback);
    }
    /// None counts as not given for the typed forms, as in Python's signatures.
    std::optional<std::string> text(size_t at) const {
        if (!given(at)) return std::nullopt;
        if (values_[at]->text() == nullptr) wrong(at, "a string");
        context_.spend_text(values_[at]->text()->size());
        return *values_[at]->text();
    }
    std::string required_text(size_t at) const {
        if (!given(at)) wrong(at, "a string");
        return *text(at);
    }
    int64_t integer(size_t at, int64_t fallback) const {
        if (!given(at)) return fallback;
        if (!values_[at]->is_integer()) wrong(at, "an integer");
        return values_[at]->integer();
    }
    bool flag(size_t at, bool fallback) const {
        return values_[at] ? values_[at]->truth() : fallback;
    }

  private:
    bool given(size_t at) const { return values_[at] && !values_[at]->is_none(); }
    [[noreturn]] void wrong(size_t at, std::string_view expected) const {
        context_.fail(fmt::format("{}: the argument '{}' must be {}, not {}", callee_, names_[at],
                                  expected, values_[at] ? values_[at]->kind() : "left out"));
    }

    Context& context_;
    std::string_view callee_;
    std::vector<std::string_view> names_;
    std::vector<std::optional<Value>> values_;
};

}  // namespace kd::jinja
