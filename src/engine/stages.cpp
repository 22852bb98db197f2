#include "engine/stages.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <string>

#include "base/check.h"
#include "base/rng.h"
#include "core/accept.h"
#include "kernels/kv_move/kv_move.h"
#include "kv/commit.h"

namespace kd {

namespace {

bool decodes(const BatchEntry& entry) {
    return entry.prefill_rows == 0;
}

/// Nodes to build before any budget: the fixed size, or as many as the batch has room for.
int32_t max_nodes(const BatchEntry& entry, const BatchLimits& limits) {
    if (entry.speculation.shape == DraftShape::plain) return 1;
    return entry.speculation.nodes > 0 ? entry.speculation.nodes : limits.nodes;
}

bool budgeted(const BatchEntry& entry) {
    return entry.speculation.shape != DraftShape::plain && entry.speculation.nodes == 0;
}

void copy_rows(std::span<const int32_t> values, std::vector<int32_t>& out) {
    out.insert(out.end(), values.begin(), values.end());
}

/// The logits of an entry: one row a node, or one a scored row of its prompt chunk.
MatrixView<const float> logits_of(const Batch& batch, size_t index, int32_t rows) {
    const int64_t vocabulary = batch.limits.vocabulary;
    return {.data = batch.logits.data() + batch.first_logit[index] * vocabulary,
            .rows = rows,
            .columns = vocabulary,
            .stride = vocabulary};
}

/// Of all rows of the forward; null data where no drafter reads them.
MatrixView<float> features_of(const Batch& batch) {
    const int64_t columns = batch.limits.feature_columns;
    return {.data = batch.features.data(),
            .rows = columns > 0 ? batch.limits.rows() : 0,
            .columns = columns,
            .stride = columns};
}

void accept_entry(Batch& batch, size_t index) {
    const BatchEntry& entry = batch.entries[index];
    const TreeView tree = batch.trees[index].view();
    // The draw for a token is keyed on the token's own position, whatever the tree.
    for (int32_t depth = 0; depth < *tree.count; ++depth) {
        batch.draws[static_cast<size_t>(depth)] =
            uniform(entry.sampling.seed, RngStream::sample,
                    static_cast<uint64_t>(entry.context) + static_cast<uint64_t>(depth) + 1);
    }
    accept_tree(tree, logits_of(batch, index, *tree.count), entry.sampling, batch.draws,
                batch.sampler, batch.accepted[index].view(), entry.rules);
}

/// Logprobs of the prompt's tokens that follow the scored rows.
void score_entry(Batch& batch, size_t index) {
    const BatchEntry& entry = batch.entries[index];
    const MatrixView<const float> logits = logits_of(batch, index, entry.scored_rows);
    const auto behind = static_cast<size_t>(entry.context + entry.first_scored) + 1;
    for (int32_t row = 0; row < entry.scored_rows; ++row) {
        write_logprobs(logits.row_span(row), entry.tokens[behind + static_cast<size_t>(row)],
                       entry.rules.logprobs, row, batch.sampler.logprob);
    }
}

std::string one_line(std::string text) {
    for (char& c : text) {
        if (c == '\n' || c == '\r') c = ' ';
    }
    return text;
}

}  // namespace

void draft_stage(Batch& batch, Drafter* drafter) {
    batch.draft_contexts.clear();
    batch.draft_lattices.clear();
    batch.gated.clear();
    std::optional<bool> gate_open;  // asked once, by the first entry that it concerns
    for (size_t i = 0; i < batch.entries.size(); ++i) {
        const BatchEntry& entry = batch.entries[i];
        if (!decodes(entry)) continue;
        const LatticeView lattice = batch.lattices[i].view();
        *lattice.depths = 0;
        *lattice.has_edges = false;
        if (drafter == nullptr || max_nodes(entry, batch.limits) == 1 || entry.max_depth == 0) {
            continue;
        }
        if (budgeted(entry)) {
            if (!gate_open) gate_open = batch.lessons.gate.next();
            if (!*gate_open) continue;
            batch.gated.push_back(i);
        }
        batch.draft_contexts.push_back(
            {.session = entry.session,
             .tokens = entry.tokens,
             .slots = entry.table.first(static_cast<size_t>(entry.context)),
             .max_depth = entry.max_depth,
             .known_continuation = entry.known_continuation,
             .seed = entry.sampling.seed,
             .greedy = entry.sampling.temperature == 0.0f});
        batch.draft_lattices.push_back(lattice);
    }
    if (!batch.draft_contexts.empty()) drafter->draft(batch.draft_contexts, batch.draft_lattices);
    for (size_t i = 0; i < batch.draft_contexts.size(); ++i) {
        int32_t& depths = *batch.draft_lattices[i].depths;
        depths = std::min(depths, batch.draft_contexts[i].max_depth);
    }
}

PredictedForward tree_stage(Batch& batch, CostTable& cost) {
    // Trees of a fixed size cost rows that no budget can change; the others share one budget.
    std::vector<BudgetTree>& candidates = batch.budget_trees;
    candidates.clear();
    int32_t fixed_rows = 0;
    for (size_t i = 0; i < batch.entries.size(); ++i) {
        const BatchEntry& entry = batch.entries[i];
        if (!decodes(entry)) {
            fixed_rows += entry.prefill_rows;
            continue;
        }
        const LatticeView lattice = batch.lattices[i].view();
        if (entry.speculation.shape == DraftShape::chain) keep_best_chain(lattice);
        const TreeView tree = batch.trees[i].view();
        build_tree(lattice, entry.tokens.back(), max_nodes(entry, batch.limits), tree,
                   batch.tree_scratch);
        if (budgeted(entry)) {
            candidates.push_back({.tree = tree, .context = entry.context});
        } else {
            fixed_rows += *tree.count;
        }
    }
    if (candidates.empty() || cost.empty()) return {};
    const auto roots = static_cast<int32_t>(candidates.size());
    double context = 0;
    for (const BudgetTree& each : candidates) context += each.context;
    const double spent =
        batch.lessons.overhead.seconds() + batch.lessons.draft_s(batch.draft_contexts.size());
    return {.seconds = choose_budget(candidates, cost, fixed_rows, spent, batch.limits.rows()),
            .plain_seconds = cost.predict(fixed_rows + roots, context / roots)};
}

void pack_stage(Batch& batch) {
    for (std::vector<int32_t>* list :
         {&batch.tokens, &batch.positions, &batch.slots, &batch.logit_rows, &batch.first_logit}) {
        list->clear();
    }
    batch.segments.clear();
    for (size_t i = 0; i < batch.entries.size(); ++i) {
        const BatchEntry& entry = batch.entries[i];
        const auto first = static_cast<int32_t>(batch.tokens.size());
        const auto context = static_cast<size_t>(entry.context);
        batch.first_logit.push_back(static_cast<int32_t>(batch.logit_rows.size()));
        AttnSegment segment{.first_row = first, .context = entry.table.first(context)};
        if (decodes(entry)) {
            const TreeView tree = batch.trees[i].view();
            const auto nodes = static_cast<size_t>(*tree.count);
            segment.rows = *tree.count;
            segment.slots = entry.tail.first(nodes);
            segment.depth = {tree.depth, nodes};
            segment.ancestors = {tree.ancestors, nodes * kAncestorWords};
            copy_rows({tree.token, nodes}, batch.tokens);
            for (int32_t node = 0; node < *tree.count; ++node) {
                batch.positions.push_back(entry.context + tree.depth[node]);
                batch.logit_rows.push_back(first + node);
            }
        } else {
            const auto rows = static_cast<size_t>(entry.prefill_rows);
            segment.rows = entry.prefill_rows;
            segment.slots = entry.table.subspan(context, rows);
            copy_rows(entry.tokens.subspan(context, rows), batch.tokens);
            for (int32_t row = 0; row < entry.prefill_rows; ++row) {
                batch.positions.push_back(entry.context + row);
            }
            for (int32_t row = 0; row < entry.scored_rows; ++row) {
                batch.logit_rows.push_back(first + entry.first_scored + row);
            }
        }
        copy_rows(segment.slots, batch.slots);
        batch.segments.push_back(segment);
    }
    KD_CHECK(static_cast<int32_t>(batch.tokens.size()) <= batch.limits.rows(),
             "{} rows in a batch of {}", batch.tokens.size(), batch.limits.rows());
}

void verify_stage(Batch& batch, const RoundContext& context) {
    const int64_t vocabulary = batch.limits.vocabulary;
    context.model->forward({.tokens = batch.tokens,
                            .positions = batch.positions,
                            .slots = batch.slots,
                            .segments = batch.segments,
                            .logit_rows = batch.logit_rows,
                            .kv = context.kv,
                            .logits = {.data = batch.logits.data(),
                                       .rows = batch.limits.rows(),
                                       .columns = vocabulary,
                                       .stride = vocabulary},
                            .features = features_of(batch)},
                           *context.stream);
}

void accept_stage(Batch& batch) {
    for (size_t i = 0; i < batch.entries.size(); ++i) {
        BatchEntry& entry = batch.entries[i];
        entry.rules.logprobs = batch.logprobs_of(i);
        std::string& error = batch.errors[i];
        error.clear();
        // What a request's mask throws and what its rules do to a row is its own affair.
        try {
            decodes(entry) ? accept_entry(batch, i) : score_entry(batch, i);
        } catch (const std::exception& problem) {
            error = one_line(problem.what());
        } catch (...) {
            error = "the logit mask threw something unknown";
        }
    }
}

void commit_stage(Batch& batch, const RoundContext& context) {
    for (std::vector<int32_t>* list : {&batch.move_from, &batch.move_to, &batch.ingest_tokens,
                                       &batch.ingest_slots, &batch.ingest_feature_rows}) {
        list->clear();
    }
    batch.ingest.clear();
    const MatrixView<float> all = features_of(batch);
    const MatrixView<const float> features = {all.data, all.rows, all.columns, all.stride};
    for (size_t i = 0; i < batch.entries.size(); ++i) {
        const BatchEntry& entry = batch.entries[i];
        const auto begin = static_cast<size_t>(entry.context);
        auto rows = static_cast<size_t>(entry.prefill_rows);
        const size_t ingested = batch.ingest_tokens.size();
        const int32_t first_row = batch.segments[i].first_row;
        if (decodes(entry)) {
            const AcceptedView accepted = batch.accepted[i].view();
            rows = static_cast<size_t>(*accepted.count);
            if (rows == 0) continue;  // its rules failed at the root
            const size_t moved = batch.move_to.size();
            batch.move_from.resize(moved + rows);
            batch.move_to.resize(moved + rows);
            plan_commit({accepted.path, rows}, entry.tail, entry.context, entry.table,
                        std::span(batch.move_from).subspan(moved),
                        std::span(batch.move_to).subspan(moved));
            for (size_t node = 0; node < rows; ++node) {
                batch.ingest_feature_rows.push_back(first_row + accepted.path[node]);
            }
            // The committed rows are the path: the root and every emitted token but the bonus.
            batch.ingest_tokens.push_back(entry.tokens.back());
            copy_rows({accepted.emitted, rows - 1}, batch.ingest_tokens);
        } else {
            copy_rows(entry.tokens.subspan(begin, rows), batch.ingest_tokens);
            for (int32_t row = 0; row < entry.prefill_rows; ++row) {
                batch.ingest_feature_rows.push_back(first_row + row);
            }
        }
        copy_rows(entry.table.subspan(begin, rows), batch.ingest_slots);
        batch.ingest.push_back(
            {.session = entry.session,
             .first_position = entry.context,
             .tokens = std::span(batch.ingest_tokens).subspan(ingested, rows),
             .slots = std::span(batch.ingest_slots).subspan(ingested, rows),
             .features = features,
             .feature_rows = std::span(batch.ingest_feature_rows).subspan(ingested, rows)});
    }
    if (!batch.move_to.empty()) {
        kv_move({.kv = context.kv, .moves = {.from = batch.move_from, .to = batch.move_to}},
                *context.stream);
    }
    if (context.drafter != nullptr) context.drafter->ingest(batch.ingest);
}

}  // namespace kd
