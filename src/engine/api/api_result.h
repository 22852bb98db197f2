// The objects that the C ABI hands out: a plain struct in front, its memory behind it.
#pragma once

#include <string>
#include <vector>

#include "engine/session.h"
#include "kdtree/kdtree.h"

namespace kd::api {

/// Owned by the caller until kdtree_result_free().
kdtree_result* new_result(std::vector<int32_t> ids, std::string text);
/// Owned by the caller until kdtree_delta_free().
kdtree_delta* new_delta(Delta&& delta);

kdtree_round_stats round_stats_of(const RoundStats& stats);

}  // namespace kd::api
