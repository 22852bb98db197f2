#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/topk_lse/topk_lse.h"

namespace kd {

namespace {

void topk_lse_row(const float* x, const TopkLseParams& params, int32_t* index, float* value,
                  float* lse) {
    std::vector<int32_t> order;
    for (int32_t c = 0; c < params.columns; ++c) {
        if (std::isfinite(x[c])) order.push_back(c);
    }
    std::stable_sort(order.begin(), order.end(), [x](int32_t a, int32_t b) { return x[a] > x[b]; });
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    for (int32_t i = 0; i < params.k; ++i) {
        const bool there = i < static_cast<int32_t>(order.size());
        index[i] = there ? order[static_cast<size_t>(i)] : -1;
        value[i] = there ? x[index[i]] : -kInfinity;
    }
    *lse = -kInfinity;
    if (order.empty()) return;
    const double largest = x[order[0]];
    double sum = 0;
    for (const int32_t c : order) sum += std::exp(x[c] - largest);
    *lse = static_cast<float>(largest + std::log(sum));
}

}  // namespace

void topk_lse_ref(const TopkLseParams& params) {
    for (int64_t row = 0; row < params.rows; ++row) {
        topk_lse_row(params.x + row * params.columns, params, params.index + row * params.k,
                     params.value + row * params.k, params.lse + row);
    }
}

}  // namespace kd
