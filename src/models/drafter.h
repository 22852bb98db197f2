// The seam between the engine and what proposes tokens: two virtuals, ingest and draft.
#pragma once

#include <cstdint>
#include <span>

#include "base/views.h"
#include "kernels/kv_view.h"

namespace kd {

/// Rows of one session that were committed: prefill chunks, accepted paths, and prefixes found in
/// the cache. A first position of 0 starts a new session under this number.
struct IngestSegment {
    int32_t session = 0;
    int32_t first_position = 0;
    std::span<const int32_t> tokens;  // [rows]
    std::span<const int32_t> slots;   // [rows]
    /// The target's features of the forward that computed the rows, and where theirs stand: row
    /// feature_rows[i] is that of tokens[i]. Empty for a drafter that wants none.
    MatrixView<const float> features;
    std::span<const int32_t> feature_rows;  // [rows]
    /// These rows were computed before, as a rule by another session. What the drafter keeps in
    /// these slots is valid; of the target there are no features. Comes before the session's first
    /// draft.
    bool reused = false;
};

/// One session that wants a draft.
struct DraftContext {
    int32_t session = 0;
    std::span<const int32_t> tokens;              // all its tokens; the last one is the tree's root
    std::span<const int32_t> slots;               // of all but the last, in order of position
    int32_t max_depth = 0;                        // deeper drafts could not be emitted any more
    std::span<const int32_t> known_continuation;  // what will follow, for the oracle; else empty
    uint64_t seed = 0;
    bool greedy = true;  // how the target's tokens are chosen
};

class Drafter {
  public:
    virtual ~Drafter() = default;
    Drafter(const Drafter&) = delete;
    Drafter& operator=(const Drafter&) = delete;

    virtual void ingest(std::span<const IngestSegment> segments) = 0;
    /// Fills one lattice a context: any number of depths up to max_depth, also none.
    virtual void draft(std::span<const DraftContext> contexts, std::span<LatticeView> lattices) = 0;

    /// Its own K/V rows by the pool's slot numbers, in memory that it owns; layers 0: it keeps
    /// none. Whoever copies rows of committed tokens from slot to slot copies these too. Tree rows
    /// never have any: what is committed comes by ingest.
    const KvView& cache() const { return cache_; }

    /// Capacity that its lattices need.
    const int32_t depth_capacity;
    const int32_t state_capacity;

  protected:
    Drafter(int32_t depths, int32_t states) : depth_capacity(depths), state_capacity(states) {}

    KvView cache_;
};

}  // namespace kd
