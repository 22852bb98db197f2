// Compares the bf16 rows and log-sum-exps of an attention kernel with the exact ones.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>

#include "kernels/cases/attn_step_cases.h"

namespace kd {

struct AttnShapeOfRows {
    int64_t nodes;
    int64_t heads;
    int64_t dim;
};

/// `out` [nodes, heads, dim] bf16 and `lse` [nodes, heads] against the exact ones. An empty `lse`
/// is not looked at. Rows that see nothing (exact lse -inf) must be exactly 0 and -inf.
inline testing::AssertionResult attn_rows_agree(std::span<const uint16_t> out,
                                                std::span<const float> lse,
                                                std::span<const double> exact_out,
                                                std::span<const double> exact_lse,
                                                AttnShapeOfRows shape, AttnTolerance tolerance) {
    const auto values = static_cast<size_t>(shape.nodes * shape.heads * shape.dim);
    const auto rows = static_cast<size_t>(shape.nodes * shape.heads);
    if (out.size() != values || exact_out.size() != values || exact_lse.size() != rows ||
        (!lse.empty() && lse.size() != rows)) {
        return testing::AssertionFailure() << "wrong array lengths";
    }
    auto failure_at = [&](size_t row) {
        return testing::AssertionFailure()
               << "node " << static_cast<int64_t>(row) / shape.heads << ", head "
               << static_cast<int64_t>(row) % shape.heads << ": ";
    };
    double error = 0;
    double norm = 0;
    double worst_lse = 0;
    double worst_row = -1;
    size_t worst_row_at = 0;
    double worst_value = -1;
    size_t worst_value_at = 0;
    for (size_t row = 0; row < rows; ++row) {
        if (!lse.empty()) {
            const double got = lse[row];
            const double want = exact_lse[row];
            const bool same =
                std::isinf(want) ? got == want : std::fabs(got - want) <= tolerance.lse;
            if (!same) return failure_at(row) << "lse " << got << ", exact " << want;
            if (std::isfinite(want)) worst_lse = std::max(worst_lse, std::fabs(got - want));
        }
        double row_error = 0;
        double row_norm = 0;
        for (size_t i = row * static_cast<size_t>(shape.dim);
             i < (row + 1) * static_cast<size_t>(shape.dim); ++i) {
            const double got = bf16_value(out[i]);
            if (!std::isfinite(got)) {
                return failure_at(row) << "value " << static_cast<int64_t>(i) % shape.dim << " is "
                                       << got << ", exact " << exact_out[i];
            }
            const double off = got - exact_out[i];
            row_error += off * off;
            row_norm += exact_out[i] * exact_out[i];
            if (std::fabs(off) > worst_value) {
                worst_value = std::fabs(off);
                worst_value_at = i;
            }
        }
        if (std::isinf(exact_lse[row])) {
            if (row_error != 0) return failure_at(row) << "sees no key, but is not 0";
            continue;
        }
        error += row_error;
        norm += row_norm;
        const double relative = std::sqrt(row_error / row_norm);
        if (relative > worst_row) {
            worst_row = relative;
            worst_row_at = row;
        }
    }
    const double relative = norm > 0 ? std::sqrt(error / norm) : 0;
    if (relative <= tolerance.rel_l2 && worst_row <= tolerance.row_rel_l2) {
        return testing::AssertionSuccess() << "relative L2 " << relative << ", worst row "
                                           << worst_row << ", worst lse " << worst_lse;
    }
    const auto heads = static_cast<size_t>(shape.heads);
    const auto dim = static_cast<size_t>(shape.dim);
    return testing::AssertionFailure()
           << "relative L2 " << relative << " (allowed " << tolerance.rel_l2 << "); worst row "
           << worst_row << " (allowed " << tolerance.row_rel_l2 << ") at node "
           << worst_row_at / heads << ", head " << worst_row_at % heads << "; worst value at node "
           << worst_value_at / dim / heads << ", head " << worst_value_at / dim % heads << ", dim "
           << worst_value_at % dim << ": got " << bf16_value(out[worst_value_at]) << ", want "
           << exact_out[worst_value_at];
}

}  // namespace kd
