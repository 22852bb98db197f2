// The oracle drafter's profile: how often its candidates are right.
#pragma once

#include <string>
#include <vector>

namespace kd {

/// hit[d][r]: probability that the candidate of rank r at depth d + 1 is the token that follows,
/// given that the path before it is right. Ranks of one depth sum to at most 1.
struct OracleProfile {
    std::vector<std::vector<float>> hit;
};

/// Reads {"hit": [[0.6, 0.12, 0.05], ...]} (one list a depth, 1 to 64 depths, 1 to 64 ranks).
/// Throws kd::Error naming file and field for anything else.
OracleProfile read_oracle_profile(const std::string& path);

}  // namespace kd
