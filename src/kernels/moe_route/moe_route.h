// moe_route: which experts a row goes to, and with what weights, from the router's logits.
//
// sigmoid: DeepSeek-V3 and Kimi-K2 ("noaux_tc"). softmax: DeepSeek-V2 ("greedy" and
// "group_limited_greedy"). A row's routing is a function of its own logits.
#pragma once

#include <cstdint>

#include "backends/stream.h"
#include "base/views.h"

namespace kd {

struct MoeRouteParams {
    int64_t rows = 0;
    int32_t experts = 0;
    int32_t used = 0;         // experts a row goes to
    int32_t groups = 1;       // divides experts: consecutive ids form a group
    int32_t groups_used = 1;  // groups a row may choose from; they hold at least `used` experts
    MoeScoring scoring = MoeScoring::sigmoid;
    bool normalise = false;         // weights sum to 1 (before `scale`)
    float scale = 1;                // of the weights
    const float* logits = nullptr;  // [rows, experts]
    const float* bias = nullptr;    // [experts] added to a score for the choice only, or null
    int32_t* ids = nullptr;         // [rows, used] best choice first
    float* weights = nullptr;       // [rows, used]
};

/// Scores and their sums with the bias are float32 values, so that what ties in a float32 router
/// ties here, too. A group's score is the sum of its two best biased scores (sigmoid; one, where it
/// has no more) or its best one (softmax). The best groups are kept, the rest excluded, as if their
/// scores were -infinity, and the best biased scores chosen; of equal ones the lowest id. A weight
/// is the score without bias, divided by (their sum + 1e-20) where `normalise`, times `scale`.
/// Logits that are NaN score lowest, so that `ids` are `used` distinct experts whatever comes in.
///
/// Excluded groups: DeepSeek's inference code, llama.cpp, and transformers since 5.24 use
/// -infinity. Earlier code filled in 0, by which excluded experts win over kept ones of negative
/// biased score.
void moe_route(const MoeRouteParams& params, Stream& stream);
void moe_route_ref(const MoeRouteParams& params);

}  // namespace kd
