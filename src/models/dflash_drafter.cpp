#include "models/dflash_drafter.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "kernels/edge_scores/edge_scores.h"
#include "kernels/embed/embed.h"
#include "kernels/quant_rows/quant_rows.h"
#include "kernels/rmsnorm/rmsnorm.h"
#include "kernels/swiglu/swiglu.h"
#include "kernels/topk_lse/topk_lse.h"
#include "models/dflash_lattice.h"

namespace kd {

namespace {

/// Rows of logits that are there at once.
constexpr int64_t kLogitRows = 64;

int32_t states_of(const DflashConfig& config) {
    return std::min(DflashDrafter::kStates, config.draft_vocabulary);
}

KvView cache_of(const DflashConfig& config, const DflashLimits& limits, Kernels kernels) {
    // Behind the pool's slots those of the blocks, which live for one call.
    return {.type = kernels == Kernels::fast ? DType::f16 : DType::f32,
            .layers = static_cast<int32_t>(config.layers.size()),
            .slots = limits.slots + int64_t{limits.sessions} * config.block,
            .kv_heads = config.kv_heads,
            .head_dim = config.head_dim};
}

/// Slots that the rows of one call see through sliding windows of their own.
int64_t window_slots(const DflashConfig& config, const DflashLimits& limits) {
    int64_t most = 0;
    for (const DflashAttention& layer : config.layers) {
        if (layer.window > 0 && !config.window_from_anchor) {
            most = std::max<int64_t>(most, std::min(layer.window, limits.context) + config.block);
        }
    }
    return most * limits.sessions * config.block;
}

void copy_row(const float* from, int64_t values, float* to) {
    std::memcpy(to, from, static_cast<size_t>(values) * sizeof(float));
}

}  // namespace

/// Memory of intermediate values, sized once. Pages are touched only as far as calls reach.
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
          quantised(quantised_bytes(c, rows)) {}

    static int64_t states() { return int64_t{kMaxDraftDepths} * kStates; }
    static int64_t quantised_bytes(const DflashConfig& c, int64_t rows) {
        const auto features = std::ssize(c.target_layers) * int64_t{c.target_hidden};
        const int64_t columns =
            std::max({int64_t{c.hidden}, int64_t{c.heads} * c.head_dim, int64_t{c.intermediate}});
        return static_cast<int64_t>(QuantRows::bytes(rows, std::max(features, columns)) +
                                    QuantRows::bytes(states(), 2 * columns));
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
    for (int32_t i = 0; i < config_.head_dim / 2; ++i) {
        rope_.inverse_frequency.push_back(std::pow(config_.rope_base, -2.0 * i / config_.head_dim));
    }
}

DflashDrafter::~DflashDrafter() = default;

/// y = residual + x W^T + bias, on rows in the form that the weights' kernel takes.
void DflashDrafter::project(const LinearWeights& weights, const float* x, int64_t rows,
                            const float* bias, const float* residual, float* y) {
    LinearParams params{
        .weights = &weights, .rows = rows, .bias = bias, .residual = residual, .y = y};
    QuantRows quantised;
    if (stream_->kernels == Kernels::fast && weights.wants_quantised_rows()) {
        quantised = QuantRows::in(workspace_->quantised.data(), rows, weights.columns());
        quant_rows({.x = x, .out = quantised}, *stream_);
        params.quantised = &quantised;
    } else {
        params.x = x;
    }
    linear(params, *stream_);
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

/// A Markov head's part of the first draft's logits, over the whole vocabulary: the token before it
/// is known.
void DflashDrafter::bias_first_draft(int32_t anchor, int64_t draft, float* logits) {
    Workspace& w = *workspace_;
    const DflashHead& head = weights_.head;
    embed({.table = head.previous, .tokens = {&anchor, 1}, .out = w.parent.data()}, *stream_);
    if (head.type == DraftHeadType::gated_markov) {
        copy_row(w.hidden.data() + draft * config_.hidden, config_.hidden, w.rows_of_tokens.data());
        copy_row(w.parent.data(), head.rank, w.rows_of_tokens.data() + config_.hidden);
        project(*head.gate, w.rows_of_tokens.data(), 1, head.gate_bias.data(), nullptr,
                w.gate.data());
        edge_gate({.type = EdgeGate::sigmoid_product,
                   .depths = 1,
                   .states = 1,
                   .rank = head.rank,
                   .gate = w.gate.data(),
                   .parent = w.parent.data()},
                  *stream_);
    }
    project(*head.bias, w.parent.data(), 1, nullptr, logits, logits);
}

/// The drafted rows' hidden states, and of each the candidates.
void DflashDrafter::choose_candidates(std::span<const DraftContext> contexts) {
    Workspace& w = *workspace_;
    first_draft_.clear();
    int64_t drafts = 0;
    for (size_t i = 0; i < contexts.size(); ++i) {
        first_draft_.push_back(drafts);
        const int32_t depths = std::min(config_.drafts, contexts[i].max_depth);
        for (int32_t depth = 0; depth < depths; ++depth, ++drafts) {
            const int64_t row = static_cast<int64_t>(i) * config_.block + config_.first_row + depth;
            copy_row(w.x.data() + row * config_.hidden, config_.hidden,
                     w.hidden.data() + drafts * config_.hidden);
        }
    }
    norm(w.hidden.data(), weights_.output_norm, w.hidden.data(), drafts, 1, 0);
    const bool markov = weights_.head.bias != nullptr;
    for (int64_t begin = 0; begin < drafts; begin += kLogitRows) {
        const int64_t rows = std::min(kLogitRows, drafts - begin);
        project(*weights_.output, w.hidden.data() + begin * config_.hidden, rows, nullptr, nullptr,
                w.logits.data());
        for (size_t i = 0; markov && i < contexts.size(); ++i) {
            const int64_t row = first_draft_[i] - begin;
            if (row < 0 || row >= rows) continue;
            bias_first_draft(contexts[i].tokens.back(), first_draft_[i],
                             w.logits.data() + row * config_.draft_vocabulary);
        }
        topk_lse({.x = w.logits.data(),
                  .rows = rows,
                  .columns = config_.draft_vocabulary,
                  .k = state_capacity,
                  .index = w.index.data() + begin * state_capacity,
                  .value = w.value.data() + begin * state_capacity,
                  .lse = w.lse.data() + begin},
                 *stream_);
    }
}

/// w.parent and w.child of a Markov head. tokens_: [depths, states] predecessors.
void DflashDrafter::markov_factors(int64_t depths, int64_t first_draft) {
    Workspace& w = *workspace_;
    const DflashHead& head = weights_.head;
    const int64_t states = depths * state_capacity;
    embed({.table = head.previous, .tokens = tokens_, .out = w.parent.data()}, *stream_);
    const std::span<const int32_t> next = {w.index.data() + first_draft * state_capacity,
                                           static_cast<size_t>(states)};
    embed({.table = head.next, .tokens = next, .out = w.child.data()}, *stream_);
    if (head.type != DraftHeadType::gated_markov) return;
    const int64_t columns = config_.hidden + head.rank;
    for (int64_t i = 0; i < states; ++i) {
        float* row = w.rows_of_tokens.data() + i * columns;
        const int64_t draft = first_draft + i / state_capacity;
        copy_row(w.hidden.data() + draft * config_.hidden, config_.hidden, row);
        copy_row(w.parent.data() + i * head.rank, head.rank, row + config_.hidden);
    }
    project(*head.gate, w.rows_of_tokens.data(), states, head.gate_bias.data(), nullptr,
            w.gate.data());
    edge_gate({.type = EdgeGate::sigmoid_product,
               .depths = depths,
               .states = state_capacity,
               .rank = head.rank,
               .gate = w.gate.data(),
               .parent = w.parent.data()},
              *stream_);
}

/// The same of the residual head: E (h + Wo s) = E h + (Wo^T E) . s with s = silu(Wh h + We
/// E[prev]).
void DflashDrafter::residual_factors(int64_t depths, int64_t first_draft) {
    Workspace& w = *workspace_;
    const DflashHead& head = weights_.head;
    const int64_t states = depths * state_capacity;
    embed({.table = weights_.embedding, .tokens = tokens_, .out = w.rows_of_tokens.data()},
          *stream_);
    project(*head.from_previous, w.rows_of_tokens.data(), states, nullptr, nullptr,
            w.parent.data());
    project(*head.from_hidden, w.hidden.data() + first_draft * config_.hidden, depths, nullptr,
            nullptr, w.gate.data());
    edge_gate({.type = EdgeGate::silu_sum,
               .depths = depths,
               .states = state_capacity,
               .rank = head.rank,
               .gate = w.gate.data(),
               .parent = w.parent.data()},
              *stream_);
    const std::span<const int32_t> next = {w.index.data() + first_draft * state_capacity,
                                           static_cast<size_t>(states)};
    embed({.table = weights_.output_rows, .tokens = next, .out = w.rows_of_tokens.data()},
          *stream_);
    project(*head.from_next, w.rows_of_tokens.data(), states, nullptr, nullptr, w.child.data());
}

/// Edges between the depths of a lattice that has its marginals.
void DflashDrafter::add_edges(const DraftContext& context, int64_t first_draft,
                              LatticeView lattice) {
    KD_CHECK(lattice.state_capacity == state_capacity, "a lattice of {} states, expected {}",
             lattice.state_capacity, state_capacity);
    const int64_t depths = *lattice.depths - 1;
    if (depths <= 0) return;
    Workspace& w = *workspace_;
    // Places without a state get a token as well: their factors are computed and not used.
    tokens_.assign(static_cast<size_t>(depths * state_capacity), context.tokens.back());
    for (int32_t depth = 0; depth < depths; ++depth) {
        const int64_t at = lattice.at(depth, 0);
        std::copy_n(lattice.token + at, lattice.state_count[depth], tokens_.begin() + at);
        const int64_t next = lattice.at(depth + 1, 0);
        const int32_t states = lattice.state_count[depth + 1];
        w.log_mass.data()[depth] = log_mass({lattice.log_prob + next, static_cast<size_t>(states)});
        int32_t* index = w.index.data() + (first_draft + depth + 1) * state_capacity;
        std::fill(index + states, index + state_capacity, 0);
    }
    const bool residual = weights_.head.type == DraftHeadType::residual;
    residual ? residual_factors(depths, first_draft + 1) : markov_factors(depths, first_draft + 1);
    edge_scores({.depths = depths,
                 .states = state_capacity,
                 .rank = weights_.head.rank,
                 .parents = lattice.state_count,
                 .children = lattice.state_count + 1,
                 .parent = w.parent.data(),
                 .child = w.child.data(),
                 .logit = w.value.data() + (first_draft + 1) * state_capacity,
                 .log_mass = w.log_mass.data(),
                 .edge = lattice.edge + lattice.edge_at(1, 0, 0)},
                *stream_);
    *lattice.has_edges = true;
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
            calibrate(lattices[i], config_.greedy_power);
        }
    }
}

}  // namespace kd
