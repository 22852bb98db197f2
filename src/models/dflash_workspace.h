// Intermediate values of the dflash drafter: memory that is sized once.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "backends/cpu/lazy_array.h"
#include "kernels/quant_rows/quant_rows.h"
#include "models/dflash_drafter.h"

namespace kd {

/// Rows of logits that are there at once.
inline constexpr int64_t kLogitRows = 64;

inline int32_t states_of(const DflashConfig& config) {
    return std::min(DflashDrafter::kStates, config.draft_vocabulary);
}

/// Slots that the rows of one call see through sliding windows of their own.
inline int64_t window_slots(const DflashConfig& config, const DflashLimits& limits) {
    int64_t most = 0;
    for (const DflashAttention& layer : config.layers) {
        if (layer.window > 0 && !config.window_from_anchor) {
            most = std::max<int64_t>(most, std::min(layer.window, limits.context) + config.block);
        }
    }
    return most * limits.sessions * config.block;
}

inline void copy_row(const float* from, int64_t values, float* to) {
    std::memcpy(to, from, static_cast<size_t>(values) * sizeof(float));
}

/// Pages are touched only as far as calls reach.
struct DflashDrafter::Workspace {
    Workspace(const DflashConfig& c, const DflashLimits& limits, const DflashHead& head,
              int threads)
        : rows(std::max(int64_t{limits.rows}, int64_t{limits.sessions} * c.block)),
          features(rows * std::ssize(c.target_layers) * c.target_hidden),
          x(rows * c.hidden),
          normed(rows * c.hidden),
          q(rows * c.heads * c.head_dim),
          kv(rows * 2 * c.kv_heads * c.head_dim),
          attended(rows * c.heads * c.head_dim),
          gate_up(rows * 2 * c.intermediate),
          activated(rows * c.intermediate),
          angles(rows * c.head_dim),
          attn_scratch(attn_verify_gqa_scratch_floats(c.heads, c.head_dim,
                                                      int64_t{limits.context} + c.block, threads)),
          window_slots(kd::window_slots(c, limits)),
          logits(kLogitRows * c.draft_vocabulary),
          hidden(int64_t{limits.sessions} * c.drafts * c.hidden),
          index(int64_t{limits.sessions} * c.drafts * states_of(c)),
          value(index.count()),
          lse(int64_t{limits.sessions} * c.drafts),
          parent(states() * head.rank),
          child(states() * head.rank),
          gate(states() * head.rank),
          rows_of_tokens(states() * (c.hidden + head.rank)),
          log_mass(kMaxDraftDepths),
          quantised(quantised_bytes(c, rows, head.rank)) {}

    static int64_t states() { return int64_t{kMaxDraftDepths} * kStates; }
    /// For the widest input of a layer or of the fusion, or a gate's rows: one of them at a time.
    static int64_t quantised_bytes(const DflashConfig& c, int64_t rows, int64_t rank) {
        const int64_t columns =
            std::max({int64_t{c.hidden}, int64_t{c.heads} * c.head_dim, int64_t{c.intermediate},
                      std::ssize(c.target_layers) * int64_t{c.target_hidden}});
        return static_cast<int64_t>(
            std::max(QuantRows::bytes(rows, columns), QuantRows::bytes(states(), c.hidden + rank)));
    }

    int64_t rows;
    LazyArray<float> features;   // [rows, target layers * target hidden]
    LazyArray<float> x;          // [rows, hidden] residual stream, or fused features
    LazyArray<float> normed;     // [rows, hidden]
    LazyArray<float> q;          // [rows, heads * head_dim]
    LazyArray<float> kv;         // [rows, 2 * kv_heads * head_dim]
    LazyArray<float> attended;   // [rows, heads * head_dim]
    LazyArray<float> gate_up;    // [rows, 2 * intermediate]
    LazyArray<float> activated;  // [rows, intermediate]
    LazyArray<float> angles;     // [rows, head_dim / 2, 2]
    LazyArray<float> attn_scratch;
    LazyArray<int32_t> window_slots;
    LazyArray<float> logits;   // [kLogitRows, draft vocabulary]
    LazyArray<float> hidden;   // [drafts of all sessions, hidden] behind the last norm
    LazyArray<int32_t> index;  // [drafts, states] candidates
    LazyArray<float> value;    // [drafts, states]
    LazyArray<float> lse;      // [drafts]
    // Of one session's edges
    LazyArray<float> parent;          // [depths, states, rank]
    LazyArray<float> child;           // [depths, states, rank]
    LazyArray<float> gate;            // [depths, states, rank]
    LazyArray<float> rows_of_tokens;  // [depths, states, hidden + rank]
    LazyArray<float> log_mass;        // [depths]
    LazyArray<std::byte> quantised;
};

}  // namespace kd
