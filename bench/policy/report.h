// From answers to the figures of the table.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "policy/measure.h"
#include "support/statistics.h"

namespace kd {

/// All answers of one mode, one a prompt.
struct ModeAnswers {
    std::string name;    // "plain", "tree" or "policy"
    int32_t budget = 0;  // rows of a tree; 0: the cost model picks
    std::vector<Answer> answers;
};

/// Expected tokens a second, an entry a prompt.
std::vector<double> rates(const ModeAnswers& mode);

/// What one profile showed: the rows of the modes, of the predictions and the summary. Prints the
/// same as tables. `fixed` begins with plain decoding.
nlohmann::ordered_json report_policy(const std::vector<ModeAnswers>& fixed,
                                     const ModeAnswers& policy);

}  // namespace kd
