// Writing results: standard output that may be closed under us, standard error that may be too,
// files that appear whole or not at all.
#pragma once

#include <string>
#include <string_view>

namespace kd {

/// Takes the place of standard streams that were closed, so that no file opened later does and gets
/// what was meant for them. Reading and writing them fails as before. Call it first of all.
void hold_standard_streams();

/// Writes and flushes. Throws kd::Error (io) if the reader is gone or the disk is full.
void write_out(std::string_view text);

/// Writes to standard error. What cannot be said there is lost, and no reason to stop.
void write_err(std::string_view text);
/// "kdtree: message" as one line on standard error, whatever the message quotes.
void report_error(std::string_view message);

/// Writes `text` through a temporary file beside `path`, or straight into what is no regular file
/// (/dev/null, a pipe); "-" is standard output. Throws kd::Error naming it; then nothing is left
/// behind.
void write_file(const std::string& path, std::string_view text);
/// Throws what write_file would, as far as that shows before there is anything to write.
void expect_writable(const std::string& path);

}  // namespace kd
