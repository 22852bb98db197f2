// One round: draft -> tree -> verify -> accept -> commit. The only one in the code base, for plain
// decoding, chains and trees, with prompt chunks of other sessions in the same forward.
#pragma once

#include <cstdint>

#include "core/budget.h"
#include "engine/batch.h"
#include "kernels/kv_view.h"
#include "kv/fragmentation.h"
#include "models/drafter.h"
#include "models/model.h"

namespace kd {

/// Facts of one round. Times in seconds of wall clock.
struct RoundStats {
    int32_t sessions = 0;  // that took part
    int32_t decoding = 0;  // of them with a tree
    int32_t prefill_rows = 0;
    int32_t reused_rows = 0;  // prompt rows found in the prefix cache before the round
    int32_t nodes = 0;        // verified rows of all trees, roots included
    int32_t emitted = 0;      // tokens accepted, bonus tokens included
    double draft_s = 0;
    double tree_s = 0;
    double verify_s = 0;
    double accept_s = 0;
    double commit_s = 0;
    double total_s = 0;
    double predicted_verify_s = 0;  // by the cost table; 0: none was used
    double predicted_plain_s = 0;   // the same of the roots alone
    Fragmentation fragmentation;    // of all sessions' page tables
    int64_t free_runs = 0;          // of neighbouring pages in the pool

    /// Sums facts of several rounds.
    RoundStats& operator+=(const RoundStats& other);
};

/// What a round needs beside its batch. All of it is owned by the engine.
struct RoundContext {
    Model* model = nullptr;
    Drafter* drafter = nullptr;  // null: plain decoding only
    KvView kv;
    Stream* stream = nullptr;
    CostTable* cost = nullptr;  // empty table: sessions that want the cost model verify all nodes
};

/// Runs one round on batch.entries (at least one). Afterwards batch.trees and batch.accepted hold,
/// for each decoding entry, what was verified and what was accepted; accepted rows and prompt
/// chunks are in the cache at their positions.
RoundStats run_round(Batch& batch, const RoundContext& context);

}  // namespace kd
