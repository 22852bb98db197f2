#include "app/line_io.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "app/interrupt.h"
#include "app/progress.h"
#include "base/error.h"

namespace kd {

namespace {

constexpr size_t kReadBytes = 65536;
// A signal that comes right before poll() waits does not end it.
constexpr int kPollMs = 200;

}  // namespace

LineInput::LineInput(const std::string& path)
    : name_(path == "-" ? "standard input" : path),
      descriptor_(path == "-" ? STDIN_FILENO : open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    struct stat info {};
    if (descriptor_ < 0 || fstat(descriptor_, &info) != 0) {
        KD_THROW(io, "cannot open {}: {}", name_, std::strerror(errno));
    }
    if (S_ISREG(info.st_mode)) total_bytes_ = info.st_size;
    if (S_ISDIR(info.st_mode)) {
        if (descriptor_ != STDIN_FILENO) close(descriptor_);
        KD_THROW(io, "{} is a directory", name_);
    }
}

LineInput::~LineInput() {
    if (descriptor_ != STDIN_FILENO) close(descriptor_);
}

bool LineInput::readable(bool wait) const {
    pollfd one = {.fd = descriptor_, .events = POLLIN, .revents = 0};
    while (!interrupted()) {
        if (poll(&one, 1, wait ? kPollMs : 0) > 0) return true;
        if (!wait) return false;
    }
    return false;
}

LineInput::Next LineInput::next(std::string& line, bool wait) {
    for (;;) {
        size_t end = buffer_.find('\n', searched_);
        searched_ = buffer_.size();
        if (end == std::string::npos && ended_) {
            if (begin_ == buffer_.size()) return Next::end;
            end = buffer_.size();
        }
        if (end != std::string::npos) {
            line.assign(buffer_, begin_, end - begin_);
            if (line.ends_with('\r')) line.pop_back();
            begin_ = searched_ = std::min(end + 1, buffer_.size());
            return Next::line;
        }
        if (buffer_.size() - begin_ > kMaxLineBytes) {
            ended_ = true;
            buffer_.clear();
            begin_ = searched_ = 0;
            return Next::too_long;
        }
        if (!readable(wait)) return Next::not_yet;
        // What was handed out goes only now: once a read, not once a line.
        buffer_.erase(0, begin_);
        begin_ = 0;
        searched_ = buffer_.size();
        buffer_.resize(searched_ + kReadBytes);
        const ssize_t got = read(descriptor_, buffer_.data() + searched_, kReadBytes);
        const int why = errno;
        buffer_.resize(searched_ + static_cast<size_t>(got > 0 ? got : 0));
        if (got < 0 && why != EINTR && why != EAGAIN) {
            KD_THROW(io, "cannot read {}: {}", name_, std::strerror(why));
        }
        ended_ = got == 0;
    }
}

void write_line(int descriptor, const std::string& name, std::string_view line) {
    if (isatty(descriptor) != 0) hide_progress();
    size_t written = 0;
    while (written < line.size()) {
        const ssize_t bytes = write(descriptor, line.data() + written, line.size() - written);
        if (bytes < 0 && errno == EINTR) continue;
        if (bytes < 0) {
            const int why = errno;
            const off_t end = lseek(descriptor, 0, SEEK_CUR);
            const auto part = static_cast<off_t>(written);
            // Fails where there is nothing to cut, in a pipe: then its reader sees half a line.
            if (end >= part && ftruncate(descriptor, end - part) == 0) {
                lseek(descriptor, end - part, SEEK_SET);
            }
            KD_THROW(io, "cannot write {}: {}", name, std::strerror(why));
        }
        written += static_cast<size_t>(bytes);
    }
}

LineOutput::LineOutput(const std::string& path)
    : name_(path == "-" ? "to standard output" : path),
      descriptor_(path == "-"
                      ? STDOUT_FILENO
                      : open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)) {
    if (descriptor_ < 0) KD_THROW(io, "cannot write {}: {}", name_, std::strerror(errno));
}

LineOutput::~LineOutput() {
    if (descriptor_ != STDOUT_FILENO) close(descriptor_);
}

void LineOutput::write(std::string line) {
    line += '\n';
    write_line(descriptor_, name_, line);
}

void expect_distinct(const std::string& input, const std::string& output) {
    std::error_code error;
    if (input == "-" || output == "-") return;
    if (std::filesystem::is_regular_file(output, error) &&
        std::filesystem::equivalent(input, output, error)) {
        KD_THROW(invalid_argument, "{} is the input: the output needs another file", output);
    }
}

}  // namespace kd
