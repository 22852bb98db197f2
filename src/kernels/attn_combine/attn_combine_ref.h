// attn_combine's plain truth: one row.
#pragma once

#include <span>
#include <vector>

namespace kd {

struct CombinedRow {
    std::vector<double> out;  // [value_dim]; 0 where no partial saw a key
    double lse;               // natural logarithm; -inf where no partial saw a key
};

/// `lse`: base-2, [partials], -inf: saw no key, and its values are not looked at; `values`:
/// [partials, value_dim].
CombinedRow attn_combine_ref(std::span<const float> lse, std::span<const float> values);

}  // namespace kd
