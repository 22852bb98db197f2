// Writing results: standard output that may be closed under us, files that appear whole or not at
// all.
#pragma once

#include <string>
#include <string_view>

namespace kd {

/// Writes and flushes. Throws kd::Error (io) if the reader is gone or the disk is full.
void write_out(std::string_view text);

/// Writes `text` through a temporary file beside `path`. Throws kd::Error naming it; then nothing
/// is left behind.
void write_file(const std::string& path, std::string_view text);

}  // namespace kd
