// What the op tests share: every instruction set this machine has, NaN-filled outputs, comparison
// to the bit or within a tolerance with the worst coordinate.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "backends/stream.h"
#include "kernels/simd/targets.h"
// After targets.h, which configures it.
#include "hwy/targets.h"

namespace kd {

inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

/// Runs `test()` once for each instruction set that the kernels were compiled for and this CPU has.
template <class Test>
void for_each_target(Test&& test) {
    for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
        SCOPED_TRACE(hwy::TargetName(target));
        hwy::SetSupportedTargetsForTest(target);
        test();
        hwy::SetSupportedTargetsForTest(0);
    }
}

inline std::vector<float> nan_filled(int64_t count) {
    return std::vector<float>(static_cast<size_t>(count), kNaN);
}

template <class T>
testing::AssertionResult same_bits(const std::vector<T>& a, const std::vector<T>& b) {
    if (a.size() != b.size()) {
        return testing::AssertionFailure() << a.size() << " values and " << b.size();
    }
    for (size_t i = 0; i < a.size(); ++i) {
        if (std::memcmp(&a[i], &b[i], sizeof(T)) != 0) {
            return testing::AssertionFailure()
                   << "value " << i << " of " << a.size() << ": " << +a[i] << " and " << +b[i];
        }
    }
    return testing::AssertionSuccess();
}

/// |fast[i] - exact[i]| <= allowed(i) for all i, infinities and NaN at the same places; reports the
/// worst coordinate as [row, column].
template <class Allowed>
testing::AssertionResult within(const std::vector<float>& fast, const std::vector<float>& exact,
                                int64_t columns, Allowed&& allowed) {
    double worst = -1;
    size_t at = 0;
    size_t failures = 0;
    for (size_t i = 0; i < exact.size(); ++i) {
        double ratio = 0;
        if (std::isfinite(fast[i]) && std::isfinite(exact[i])) {
            ratio = std::fabs(double{fast[i]} - exact[i]) / allowed(i);
            if (fast[i] == exact[i]) ratio = 0;
        } else if (std::isnan(fast[i]) != std::isnan(exact[i]) ||
                   (!std::isnan(fast[i]) && fast[i] != exact[i])) {
            ratio = std::numeric_limits<double>::infinity();
        }
        if (!(ratio <= 1)) ++failures;
        if (!(ratio <= worst)) {
            worst = ratio;
            at = i;
        }
    }
    if (failures == 0) return testing::AssertionSuccess();
    const auto index = static_cast<int64_t>(at);
    return testing::AssertionFailure()
           << failures << " of " << exact.size() << " values off; worst at [" << index / columns
           << ", " << index % columns << "]: " << fast[at] << ", exact " << exact[at] << ", "
           << worst << " times the tolerance";
}

}  // namespace kd
