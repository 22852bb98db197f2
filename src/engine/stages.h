// The stages of a round. Each reads what the ones before it wrote in the batch.
#pragma once

#include "engine/batch.h"
#include "engine/round.h"

namespace kd {

/// Lattices of the decoding entries. Entries that want no draft get an empty lattice, and so do
/// those with a budget while the gate says that drafts do not pay.
void draft_stage(Batch& batch, Drafter* drafter);
/// By the cost table; 0 if it was not asked.
struct PredictedForward {
    double seconds = 0;
    double plain_seconds = 0;  // with the roots alone of the trees that have a budget
};
/// Trees, cut to the fixed size an entry asked for or to the budget that `cost` favours.
PredictedForward tree_stage(Batch& batch, CostTable& cost);
/// Tokens, positions, slots and segments of the forward.
void pack_stage(Batch& batch);
/// The target's forward over all rows.
void verify_stage(Batch& batch, const RoundContext& context);
/// Accepted paths of the decoding entries and logprobs where they are wanted. An entry whose rules
/// fail gets a line in batch.errors and accepts what came before, perhaps nothing; the others go
/// on.
void accept_stage(Batch& batch);
/// Accepted rows to their positions, committed rows to the drafter.
void commit_stage(Batch& batch, const RoundContext& context);

}  // namespace kd
