// Which instruction set the kernels take, chosen by hand.
#pragma once

#include <string>

namespace kd {

/// Makes the dispatch take `name` (any letter case). Before anything is loaded: packed weights may
/// depend on it. Throws kd::Error naming the targets that this build and this CPU have.
void force_dispatch_target(const std::string& name);

}  // namespace kd
