#include "models/dflash_drafter.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "kernels/embed/embed.h"
#include "kernels/rmsnorm/rmsnorm.h"
#include "kernels/swiglu/swiglu.h"
#include "models/dflash_lattice.h"
#include "models/dflash_workspace.h"
#include "models/layer_ops.h"
#include "models/rope.h"

namespace kd {

namespace {

KvView cache_of(const DflashConfig& config, const DflashLimits& limits, Kernels kernels) {
    // Behind the pool's slots those of the blocks, which live for one call.
    return {.type = kernels == Kernels::fast ? DType::f16 : DType::f32,
            .layers = static_cast<int32_t>(config.layers.size()),
            .slots = limits.slots + int64_t{limits.sessions} * config.block,
            .kv_heads = config.kv_heads,
            .head_dim = config.head_dim};
}

}  // namespace

DflashDrafter::DflashDrafter(DflashConfig config, DflashWeights weights, const DflashLimits& limits,
                             Stream& stream)
    : Drafter(config.drafts, states_of(config)),
      config_(std::move(config)),
      weights_(std::move(weights)),
      limits_(limits),
      stream_(&stream),
      cache_memory_(cache_of(config_, limits, stream.kernels).bytes()),
      workspace_(
          std::make_unique<Workspace>(config_, limits, weights_.head, stream.threads->threads())) {
    cache_ = cache_of(config_, limits, stream.kernels);
    cache_.data = cache_memory_.data();
    // A round allocates nothing.
    const auto block_rows = static_cast<size_t>(limits.sessions * config_.block);
    const auto rows = std::max(block_rows, static_cast<size_t>(workspace_->rows));
    // A block's tokens, and of a Markov head all states of a draft.
    const auto states = static_cast<size_t>(depth_capacity) * static_cast<size_t>(state_capacity);
    tokens_.reserve(std::max(block_rows, states));
    positions_.reserve(rows);
    slots_.reserve(rows);
    segments_.reserve(block_rows);
    first_draft_.reserve(static_cast<size_t>(limits.sessions));
    ModelConfig rope;
    rope.rope_dim = config_.head_dim;
    rope.rope_base = config_.rope_base;
    rope.rope_scaling = config_.rope_scaling;
    rope_ = rope_table(rope);
}

DflashDrafter::~DflashDrafter() = default;

/// y = residual + x W^T + bias.
void DflashDrafter::project(const LinearWeights& weights, const float* x, int64_t rows,
                            const float* bias, const float* residual, float* y) {
    linear_of_floats(
        {.weights = &weights, .x = x, .rows = rows, .bias = bias, .residual = residual, .y = y},
        workspace_->quantised.span(), *stream_);
}

void DflashDrafter::norm(const float* x, const std::vector<float>& weight, float* y, int64_t rows,
                         int64_t groups, int64_t stride) {
    rmsnorm({.x = x,
             .weight = weight.data(),
             .y = y,
             .rows = rows,
             .groups = groups,
             .columns = std::ssize(weight),
             .stride = stride,
             .epsilon = static_cast<float>(config_.norm_epsilon)},
            *stream_);
}

/// K and V of `rows` rows at positions_ to slots_ of the cache.
void DflashDrafter::append_kv(const float* x, int64_t rows, size_t layer) {
    Workspace& w = *workspace_;
    const DflashLayer& weights = weights_.layers[layer];
    const float* bias = weights.kv_bias.empty() ? nullptr : weights.kv_bias.data();
    project(weights.kv, x, rows, bias, nullptr, w.kv.data());
    norm(w.kv.data(), weights.k_norm, w.kv.data(), rows, config_.kv_heads,
         int64_t{2} * config_.kv_heads * config_.head_dim);
    rope_append({.rows = rows,
                 .kv_heads = config_.kv_heads,
                 .head_dim = config_.head_dim,
                 .rotated = config_.head_dim,
                 .qkv = w.kv.data(),
                 .angles = w.angles.data(),
                 .slots = slots_,
                 .kv = cache_,
                 .layer = static_cast<int32_t>(layer)},
                *stream_);
}

/// The rows whose features were gathered.
void DflashDrafter::ingest_rows(int64_t rows) {
    if (rows == 0) return;
    Workspace& w = *workspace_;
    rope_angles(positions_, rope_, w.angles.data());
    project(*weights_.fuse, w.features.data(), rows, nullptr, nullptr, w.x.data());
    norm(w.x.data(), weights_.feature_norm, w.x.data(), rows, 1, 0);
    for (size_t layer = 0; layer < weights_.layers.size(); ++layer) {
        append_kv(w.x.data(), rows, layer);
    }
    positions_.clear();
    slots_.clear();
}

void DflashDrafter::ingest(std::span<const IngestSegment> segments) {
    Workspace& w = *workspace_;
    const auto columns = std::ssize(config_.target_layers) * int64_t{config_.target_hidden};
    positions_.clear();
    slots_.clear();
    for (const IngestSegment& segment : segments) {
        if (segment.reused) continue;  // K and V are in these slots
        KD_CHECK(segment.features.columns == columns &&
                     segment.feature_rows.size() == segment.tokens.size(),
                 "features of {} values for {} of {} rows, expected {}", segment.features.columns,
                 segment.feature_rows.size(), segment.tokens.size(), columns);
        for (size_t i = 0; i < segment.tokens.size(); ++i) {
            const auto row = std::ssize(positions_);
            copy_row(segment.features.row(segment.feature_rows[i]), columns,
                     w.features.data() + row * columns);
            positions_.push_back(segment.first_position + static_cast<int32_t>(i));
            slots_.push_back(segment.slots[i]);
            if (row + 1 == w.rows) ingest_rows(w.rows);
        }
    }
    ingest_rows(std::ssize(positions_));
}

/// One segment a row: the window's tokens, then the block's rows that it sees, itself last.
void DflashDrafter::plan_window(const DraftContext& context, std::span<const int32_t> block,
                                const DflashAttention& layer, int32_t first_row) {
    const auto anchor = static_cast<int32_t>(context.slots.size());
    int32_t* next = workspace_->window_slots.data() + window_slots_used_;
    for (int32_t row = 0; row < config_.block; ++row) {
        const int32_t first = std::clamp(anchor + row - (layer.window - 1), 0, anchor);
        const int32_t end = layer.causal ? row : config_.block;
        int32_t* to = std::copy(context.slots.begin() + first, context.slots.end(), next);
        for (int32_t other = 0; other < end; ++other) {
            if (other != row) *to++ = block[static_cast<size_t>(other)];
        }
        segments_.push_back({.first_row = first_row + row,
                             .rows = 1,
                             .context = {next, to},
                             .slots = block.subspan(static_cast<size_t>(row), 1)});
        next = to;
    }
    window_slots_used_ = next - workspace_->window_slots.data();
}

void DflashDrafter::plan_attention(std::span<const DraftContext> contexts,
                                   const DflashAttention& layer) {
    segments_.clear();
    window_slots_used_ = 0;
    const auto rows = static_cast<size_t>(config_.block);
    for (size_t i = 0; i < contexts.size(); ++i) {
        const auto first_row = static_cast<int32_t>(i * rows);
        const std::span<const int32_t> block = std::span(slots_).subspan(i * rows, rows);
        const auto anchor = static_cast<int32_t>(contexts[i].slots.size());
        const bool whole = layer.window == 0 || anchor + config_.block <= layer.window;
        if (!whole && !config_.window_from_anchor) {
            plan_window(contexts[i], block, layer, first_row);
            continue;
        }
        const int32_t first = whole ? 0 : std::max(anchor - layer.window, 0);
        segments_.push_back({.first_row = first_row,
                             .rows = config_.block,
                             .context = contexts[i].slots.subspan(static_cast<size_t>(first)),
                             .slots = block,
                             .bidirectional = !layer.causal});
    }
}

void DflashDrafter::run_layer(std::span<const DraftContext> contexts, size_t layer) {
    Workspace& w = *workspace_;
    const DflashLayer& weights = weights_.layers[layer];
    const auto rows = std::ssize(tokens_);
    const auto bias = [](const std::vector<float>& values) {
        return values.empty() ? nullptr : values.data();
    };
    norm(w.x.data(), weights.input_norm, w.normed.data(), rows, 1, 0);
    project(weights.q, w.normed.data(), rows, bias(weights.q_bias), nullptr, w.q.data());
    norm(w.q.data(), weights.q_norm, w.q.data(), rows, config_.heads, 0);
    rope_append({.rows = rows,
                 .heads = config_.heads,
                 .head_dim = config_.head_dim,
                 .rotated = config_.head_dim,
                 .qkv = w.q.data(),
                 .angles = w.angles.data(),
                 .slots = slots_,
                 .kv = cache_},
                *stream_);
    append_kv(w.normed.data(), rows, layer);
    plan_attention(contexts, config_.layers[layer]);
    attn_verify_gqa({.heads = config_.heads,
                     .kv_heads = config_.kv_heads,
                     .head_dim = config_.head_dim,
                     .scale = 1.0f / std::sqrt(static_cast<float>(config_.head_dim)),
                     .q = w.q.data(),
                     .q_stride = int64_t{config_.heads} * config_.head_dim,
                     .out = w.attended.data(),
                     .segments = segments_,
                     .kv = cache_,
                     .layer = static_cast<int32_t>(layer),
                     .scratch = w.attn_scratch.data()},
                    *stream_);
    project(weights.output, w.attended.data(), rows, bias(weights.output_bias), w.x.data(),
            w.x.data());
    norm(w.x.data(), weights.attention_norm, w.normed.data(), rows, 1, 0);
    project(weights.gate_up, w.normed.data(), rows, nullptr, nullptr, w.gate_up.data());
    swiglu({.gate_up = w.gate_up.data(),
            .y = w.activated.data(),
            .rows = rows,
            .columns = config_.intermediate},
           *stream_);
    project(weights.down, w.activated.data(), rows, nullptr, w.x.data(), w.x.data());
}

/// [anchor, mask, ...] of every context through all layers.
void DflashDrafter::run_block(std::span<const DraftContext> contexts) {
    tokens_.clear();
    positions_.clear();
    slots_.clear();
    for (const DraftContext& context : contexts) {
        const auto anchor = static_cast<int32_t>(context.tokens.size()) - 1;
        KD_CHECK(std::ssize(context.slots) == anchor && anchor <= limits_.context,
                 "{} slots for {} tokens, limit {}", context.slots.size(), anchor, limits_.context);
        for (int32_t row = 0; row < config_.block; ++row) {
            tokens_.push_back(row == 0 ? context.tokens.back() : config_.mask_token);
            positions_.push_back(anchor + row);
            slots_.push_back(static_cast<int32_t>(limits_.slots + std::ssize(slots_)));
        }
    }
    embed({.table = weights_.embedding, .tokens = tokens_, .out = workspace_->x.data()}, *stream_);
    rope_angles(positions_, rope_, workspace_->angles.data());
    for (size_t layer = 0; layer < weights_.layers.size(); ++layer) run_layer(contexts, layer);
}

void DflashDrafter::draft(std::span<const DraftContext> contexts, std::span<LatticeView> lattices) {
    KD_CHECK(std::ssize(contexts) <= limits_.sessions, "{} contexts, limit {}", contexts.size(),
             limits_.sessions);
    run_block(contexts);
    choose_candidates(contexts);
    const Workspace& w = *workspace_;
    for (size_t i = 0; i < contexts.size(); ++i) {
        const int64_t first = first_draft_[i];
        fill_marginals({.index = w.index.data() + first * state_capacity,
                        .value = w.value.data() + first * state_capacity,
                        .lse = w.lse.data() + first,
                        .states = state_capacity},
                       std::min(config_.drafts, contexts[i].max_depth), weights_.target_ids,
                       lattices[i]);
        if (weights_.head.type != DraftHeadType::none) add_edges(contexts[i], first, lattices[i]);
        if (contexts[i].greedy && !config_.greedy_power.empty()) {
            calibrate_marginals(lattices[i], config_.greedy_power);
        }
    }
}

}  // namespace kd
