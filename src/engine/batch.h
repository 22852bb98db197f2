// What one round works on: the sessions that take part and the fixed-capacity values that flow
// between its stages. Allocated once; a round allocates nothing.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "backends/cpu/lazy_array.h"
#include "base/sampling_params.h"
#include "base/storage.h"
#include "base/views.h"
#include "core/accept.h"
#include "core/budget.h"
#include "core/draft_gate.h"
#include "core/recent_time.h"
#include "core/sampling.h"
#include "core/tree.h"
#include "models/drafter.h"
#include "models/model.h"

namespace kd {

enum class DraftShape : uint8_t { plain, chain, tree };

/// How a session wants to speculate. Plain decoding is a tree of the root alone.
struct Speculation {
    DraftShape shape = DraftShape::tree;
    int32_t nodes = 0;  // verified rows of a tree, the root included; 0: the cost model picks
};

/// One session's part of a round, as the scheduler planned it.
struct BatchEntry {
    int32_t session = 0;              // its number in the running table
    std::span<const int32_t> tokens;  // all its tokens
    int32_t context = 0;              // committed tokens: rows in the cache
    int32_t prefill_rows = 0;         // > 0: a prompt chunk of so many rows; 0: a draft tree
    int32_t first_scored = 0;         // of a prompt chunk: its first row with logits
    int32_t scored_rows = 0;          // and how many; each scores the token behind it
    std::span<const int32_t> table;   // slot of each position that has one
    std::span<const int32_t> tail;    // [max nodes] scratch slots of a tree
    Speculation speculation;
    int32_t max_depth = 0;  // deepest node that could still be emitted
    SamplingParams sampling;
    std::span<const int32_t> known_continuation;
    WalkRules rules;            // of a tree; the logprobs' place is set by accept_stage
    int32_t top_logprobs = -1;  // tokens to list for each scored or emitted one; -1: no logprobs
};

/// Sizes that bound every round.
struct BatchLimits {
    int32_t sessions = 0;
    int32_t nodes = 0;         // of one tree
    int32_t prefill_rows = 0;  // of all prompt chunks together
    int32_t depth_capacity = 0;
    int32_t state_capacity = 0;
    int32_t vocabulary = 0;
    int32_t keys = 0;             // that one row may attend to
    int64_t feature_columns = 0;  // of a row, for a drafter that reads features

    int32_t tree_rows() const { return sessions * nodes; }
    int32_t rows() const { return tree_rows() + prefill_rows; }
};

/// What rounds taught beside the corrections of the cost table.
struct RoundLessons {
    DraftGate gate;                    // of entries whose budget the cost model picks
    RecentTime overhead;               // of a round outside draft and forward
    std::array<RecentTime, 32> draft;  // of 1, 2 to 3, 4 to 7, ... sessions

    RecentTime& draft_of(size_t sessions) {
        return draft[static_cast<size_t>(std::bit_width(sessions)) - 1];
    }
    /// Seconds; 0 for none, and for as many as never drafted.
    double draft_s(size_t sessions) { return sessions == 0 ? 0 : draft_of(sessions).seconds(); }
};

struct Batch {
    explicit Batch(const BatchLimits& batch_limits);

    /// Where the logprobs of an entry go, from its first logit row on.
    LogprobsView logprobs_of(size_t entry);

    BatchLimits limits;
    std::vector<BatchEntry> entries;  // filled by the scheduler
    RoundLessons lessons;             // by the engine, from round to round

    // draft
    std::vector<DraftContext> draft_contexts;  // [decoding entries]
    std::vector<LatticeView> draft_lattices;   // [decoding entries]
    std::vector<LatticeStorage> lattices;      // [sessions] by entry
    std::vector<size_t> gated;                 // entries that draft because the gate is open
    // tree
    std::vector<TreeStorage> trees;  // [sessions] by entry
    TreeScratch tree_scratch;
    std::vector<BudgetTree> budget_trees;  // [decoding entries]
    // verify
    std::vector<int32_t> tokens;     // [rows]
    std::vector<int32_t> positions;  // [rows]
    std::vector<int32_t> slots;      // [rows]
    std::vector<AttnSegment> segments;
    std::vector<int32_t> logit_rows;
    LazyArray<float> logits;           // [rows, vocabulary] by place in logit_rows
    std::vector<int32_t> first_logit;  // [entries]
    LazyArray<float> features;         // [rows, feature columns]
    // accept
    std::vector<AcceptedStorage> accepted;  // [sessions] by entry
    std::vector<double> draws;              // [nodes]
    SamplerScratch sampler;
    // By place in logit_rows: a scored row of a prompt has its own, the emitted tokens of a tree
    // take its first ones.
    LazyArray<float> logprobs;            // [rows]
    LazyArray<TokenLogprob> most_likely;  // [rows, kMaxTopLogprobs]
    std::vector<std::string> errors;      // [sessions] by entry; empty: none
    // commit
    std::vector<int32_t> move_from;  // [tree rows]
    std::vector<int32_t> move_to;
    std::vector<IngestSegment> ingest;
    std::vector<int32_t> ingest_tokens;  // [rows]
    std::vector<int32_t> ingest_slots;
    std::vector<int32_t> ingest_feature_rows;
};

}  // namespace kd
