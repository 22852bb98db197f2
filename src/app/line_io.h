// Lines in, lines out: input that may come slowly from a pipe, and output whose complete lines stay
// whatever happens.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace kd {

/// Longest line that is read. Nothing that fits a context is longer.
inline constexpr size_t kMaxLineBytes = size_t{64} << 20;

/// A file or, for "-", standard input.
class LineInput {
  public:
    enum class Next {
        line,
        not_yet,  // no whole line is there; waiting ended because of an interrupt, or was not asked
        too_long,  // beyond kMaxLineBytes; nothing is read from there on
        end
    };

    /// Throws kd::Error naming what cannot be opened.
    explicit LineInput(const std::string& path);
    ~LineInput();
    LineInput(const LineInput&) = delete;
    LineInput& operator=(const LineInput&) = delete;

    /// The next line without its end ("\n" or "\r\n"; the last one may have none). Throws kd::Error
    /// if reading fails.
    Next next(std::string& line, bool wait);
    /// Bytes of a regular file; 0: not known.
    int64_t total_bytes() const { return total_bytes_; }

  private:
    bool readable(bool wait) const;

    std::string name_;
    int descriptor_ = -1;
    int64_t total_bytes_ = 0;
    std::string buffer_;  // from begin_ on not handed out yet
    size_t begin_ = 0;
    size_t searched_ = 0;  // no line ends in [begin_, searched_)
    bool ended_ = false;
};

/// Writes `line`, its end included, at once and whole: what a full disk leaves of it is cut off
/// again where that can be done. Throws kd::Error "cannot write `name`: ..." if the reader is gone
/// or the disk is full.
void write_line(int descriptor, const std::string& name, std::string_view line);

/// A file or, for "-", standard output.
class LineOutput {
  public:
    /// Empties a file that is there. Throws kd::Error naming what cannot be written.
    explicit LineOutput(const std::string& path);
    ~LineOutput();
    LineOutput(const LineOutput&) = delete;
    LineOutput& operator=(const LineOutput&) = delete;

    /// Appends the end of the line to `line` and writes it with write_line.
    void write(std::string line);

  private:
    std::string name_;
    int descriptor_ = -1;
};

/// Throws kd::Error if reading `input` and emptying `output` would be one file ("-": none).
void expect_distinct(const std::string& input, const std::string& output);

}  // namespace kd
