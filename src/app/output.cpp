#include "app/output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "app/progress.h"
#include "base/error.h"

namespace kd {

namespace {

/// Whether a rename onto `path` makes or replaces a regular file.
bool is_replaceable(const std::string& path) {
    struct stat info {};
    return lstat(path.c_str(), &info) != 0 || S_ISREG(info.st_mode);
}

std::string temporary_name(const std::string& path) {
    return fmt::format("{}.{}.tmp", path, getpid());
}

[[noreturn]] void refuse(const std::string& path, int why) {
    KD_THROW(io, "cannot write {}: {}", path, std::strerror(why));
}

}  // namespace

void hold_standard_streams() {
    for (const int number : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
        if (fcntl(number, F_GETFD) >= 0) continue;
        // open() takes the lowest number that is free: this one.
        (void)open("/dev/null", number == STDIN_FILENO ? O_WRONLY : O_RDONLY);
    }
}

void write_out(std::string_view text) {
    if (text.empty()) return;
    if (isatty(STDOUT_FILENO) != 0) hide_progress(text.ends_with('\n'));
    if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout)) {
        KD_THROW(io, "cannot write to standard output: {}", std::strerror(errno));
    }
}

void write_err(std::string_view text) {
    hide_progress(text.ends_with('\n'));
    std::fwrite(text.data(), 1, text.size(), stderr);
}

void report_error(std::string_view message) {
    std::string line = "kdtree: ";
    for (const char each : message) {
        const auto byte = static_cast<unsigned char>(each);
        if (byte < 0x20 || byte == 0x7f) {
            line += fmt::format("\\x{:02x}", byte);
        } else {
            line += each;
        }
    }
    write_err(line + '\n');
}

void write_file(const std::string& path, std::string_view text) {
    if (path == "-") return write_out(text);
    // A name that is no regular file (a device, a pipe, a link) must not be replaced by one.
    const std::string target = is_replaceable(path) ? temporary_name(path) : path;
    std::FILE* out = std::fopen(target.c_str(), "w");
    if (out == nullptr) refuse(path, errno);
    bool good = std::fwrite(text.data(), 1, text.size(), out) == text.size();
    int why = good ? 0 : errno;
    if (std::fclose(out) != 0 && good) {
        good = false;
        why = errno;
    }
    if (target == path) {
        if (!good) refuse(path, why);
        return;
    }
    if (good && std::rename(target.c_str(), path.c_str()) == 0) return;
    if (why == 0) why = errno;
    unlink(target.c_str());
    refuse(path, why);
}

void expect_writable(const std::string& path) {
    if (path == "-") return;
    if (is_replaceable(path)) {
        const std::string target = temporary_name(path);
        const int descriptor = open(target.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
        if (descriptor < 0) refuse(path, errno);
        close(descriptor);
        unlink(target.c_str());
        return;
    }
    struct stat info {};
    if (stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) refuse(path, EISDIR);
}

}  // namespace kd
