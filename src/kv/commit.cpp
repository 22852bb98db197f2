#include "kv/commit.h"

#include "base/check.h"

namespace kd {

void plan_commit(std::span<const int32_t> path, std::span<const int32_t> tail, int32_t context,
                 std::span<const int32_t> positions, std::span<int32_t> from,
                 std::span<int32_t> to) {
    const auto begin = static_cast<size_t>(context);
    KD_CHECK(begin + path.size() <= positions.size(), "positions {} to {} of a table of {}",
             context, begin + path.size(), positions.size());
    for (size_t i = 0; i < path.size(); ++i) {
        from[i] = tail[static_cast<size_t>(path[i])];
        to[i] = positions[begin + i];
    }
}

}  // namespace kd
