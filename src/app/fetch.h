// kdtree fetch: puts a model into the cache folder. The work is done by fetch_model.py, the one
// implementation, whose process this one becomes: its messages, exit code and Ctrl-C are the
// command's.
#pragma once

#include <string>

namespace kd {

/// Returns only by throwing kd::Error: without the script (beside the program, or in share/kdtree
/// of its prefix) or without python3. A name that is not known is the script's to refuse.
[[noreturn]] void fetch(const std::string& name);

}  // namespace kd
