#include "kernels/attn_combine/attn_combine_ref.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

namespace kd {

CombinedRow attn_combine_ref(std::span<const float> lse, std::span<const float> values) {
    constexpr double kNothing = -std::numeric_limits<double>::infinity();
    const size_t value_dim = lse.empty() ? 0 : values.size() / lse.size();
    CombinedRow row{.out = std::vector<double>(value_dim), .lse = kNothing};
    double largest = kNothing;
    for (const float value : lse) largest = std::max(largest, double{value});
    if (largest == kNothing) return row;
    double sum = 0;
    for (size_t s = 0; s < lse.size(); ++s) {
        const double weight = std::exp2(lse[s] - largest);
        if (weight == 0) continue;
        sum += weight;
        for (size_t i = 0; i < value_dim; ++i) row.out[i] += weight * values[s * value_dim + i];
    }
    for (double& value : row.out) value /= sum;
    row.lse = (largest + std::log2(sum)) * std::numbers::ln2;
    return row;
}

}  // namespace kd
