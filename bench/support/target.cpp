#include "support/target.h"

#include <fmt/format.h>
#include <strings.h>

#include "base/error.h"
#include "kernels/simd/targets.h"
// After targets.h, which configures it.
#include "hwy/targets.h"

namespace kd {

void force_dispatch_target(const std::string& name) {
    std::string known;
    for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
        if (strcasecmp(hwy::TargetName(target), name.c_str()) == 0) {
            hwy::SetSupportedTargetsForTest(target);
            return;
        }
        known += fmt::format("{}{}", known.empty() ? "" : ", ", hwy::TargetName(target));
    }
    KD_THROW(invalid_argument, "target \"{}\" is none of those this build and CPU have: {}", name,
             known);
}

}  // namespace kd
