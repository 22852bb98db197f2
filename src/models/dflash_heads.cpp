// From the dflash drafter's hidden states to lattices: candidates, and edges by a conditional head.
#include <algorithm>

#include "base/check.h"
#include "kernels/edge_scores/edge_scores.h"
#include "kernels/embed/embed.h"
#include "kernels/topk_lse/topk_lse.h"
#include "models/dflash_drafter.h"
#include "models/dflash_lattice.h"
#include "models/dflash_workspace.h"

namespace kd {

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

/// w.parent and w.child of a Markov head. parents, children: [depths, states] of the draft
/// vocabulary.
void DflashDrafter::markov_factors(std::span<const int32_t> parents,
                                   std::span<const int32_t> children, int64_t first_draft) {
    Workspace& w = *workspace_;
    const DflashHead& head = weights_.head;
    tokens_.assign(parents.begin(), parents.end());
    if (!weights_.target_ids.empty()) {
        for (int32_t& token : tokens_) token = weights_.target_ids[static_cast<size_t>(token)];
    }
    embed({.table = head.previous, .tokens = tokens_, .out = w.parent.data()}, *stream_);
    embed({.table = head.next, .tokens = children, .out = w.child.data()}, *stream_);
    if (head.type != DraftHeadType::gated_markov) return;
    const int64_t columns = config_.hidden + head.rank;
    const auto states = std::ssize(parents);
    for (int64_t i = 0; i < states; ++i) {
        float* row = w.rows_of_tokens.data() + i * columns;
        const int64_t draft = first_draft + i / state_capacity;
        copy_row(w.hidden.data() + draft * config_.hidden, config_.hidden, row);
        copy_row(w.parent.data() + i * head.rank, head.rank, row + config_.hidden);
    }
    project(*head.gate, w.rows_of_tokens.data(), states, head.gate_bias.data(), nullptr,
            w.gate.data());
    edge_gate({.type = EdgeGate::sigmoid_product,
               .depths = states / state_capacity,
               .states = state_capacity,
               .rank = head.rank,
               .gate = w.gate.data(),
               .parent = w.parent.data()},
              *stream_);
}

/// The same of the residual head: E (h + Wo s) = E h + (Wo^T E) . s with s = silu(Wh h + We
/// e[prev]).
void DflashDrafter::residual_factors(std::span<const int32_t> parents,
                                     std::span<const int32_t> children, int64_t first_draft) {
    Workspace& w = *workspace_;
    const DflashHead& head = weights_.head;
    const int64_t depths = std::ssize(parents) / state_capacity;
    embed({.table = head.previous, .tokens = parents, .out = w.parent.data()}, *stream_);
    embed({.table = head.next, .tokens = children, .out = w.child.data()}, *stream_);
    project(*head.from_hidden, w.hidden.data() + first_draft * config_.hidden, depths, nullptr,
            nullptr, w.gate.data());
    edge_gate({.type = EdgeGate::silu_sum,
               .depths = depths,
               .states = state_capacity,
               .rank = head.rank,
               .gate = w.gate.data(),
               .parent = w.parent.data()},
              *stream_);
}

/// Edges between the depths of a lattice that has its marginals.
void DflashDrafter::add_edges(const DraftContext& context, int64_t first_draft,
                              LatticeView lattice) {
    KD_CHECK(lattice.state_capacity == state_capacity, "a lattice of {} states, expected {}",
             lattice.state_capacity, state_capacity);
    const int64_t depths = *lattice.depths - 1;
    if (depths <= 0) return;
    Workspace& w = *workspace_;
    int32_t* index = w.index.data() + first_draft * state_capacity;
    for (int32_t depth = 0; depth <= depths; ++depth) {
        const int64_t at = lattice.at(depth, 0);
        const int32_t states = lattice.state_count[depth];
        // Places without a state get a token as well: their factors are computed and not used.
        std::fill(index + at + states, index + at + state_capacity, 0);
        w.log_mass.data()[depth] = log_mass({lattice.log_prob + at, static_cast<size_t>(states)});
    }
    const auto states = static_cast<size_t>(depths * state_capacity);
    const std::span<const int32_t> parents(index, states);
    const std::span<const int32_t> children(index + state_capacity, states);
    const bool residual = weights_.head.type == DraftHeadType::residual;
    residual ? residual_factors(parents, children, first_draft + 1)
             : markov_factors(parents, children, first_draft + 1);
    const bool calibrated = context.greedy && !config_.greedy_power.empty();
    edge_scores({.depths = depths,
                 .states = state_capacity,
                 .rank = weights_.head.rank,
                 .parents = lattice.state_count,
                 .children = lattice.state_count + 1,
                 .parent = w.parent.data(),
                 .child = w.child.data(),
                 .logit = w.value.data() + (first_draft + 1) * state_capacity,
                 .log_mass = w.log_mass.data() + 1,
                 .power = calibrated ? config_.greedy_power.data() + 1 : nullptr,
                 .edge = lattice.edge + lattice.edge_at(1, 0, 0)},
                *stream_);
    *lattice.has_edges = true;
}

}  // namespace kd
