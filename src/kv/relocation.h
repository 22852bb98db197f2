// Tier 1, live relocation: which pages to move so that sessions become contiguous and the free
// space whole. The plan is data; who executes it copies the rows of all layers and pools (kv_move)
// and then calls KvPool::rename.
#pragma once

#include <cstdint>
#include <vector>

#include "kv/kv_pool.h"

namespace kd {

struct PageMoves {
    std::vector<int32_t> from;  // distinct, in use, not held
    std::vector<int32_t> to;    // distinct and free: none stands in `from`
};

/// At most `max_pages` moves; fewer, also none, where no more is worth moving. First the shortest
/// stretches in use between two free runs go to a third one, which joins the two: free space that
/// is whole is what keeps the sessions of the future contiguous. Then tiles (fragmentation.h) that
/// are not whole are completed: beside their pieces, else in a free run too short for two. Neither
/// breaks what is whole: repeated calls with nothing in between come to an end. Deterministic.
PageMoves plan_moves(const KvPool& pool, int32_t max_pages);

/// The same in slots, as kv_move takes it.
SlotCopies slots_of(const PageMoves& moves, int32_t page_size);

}  // namespace kd
