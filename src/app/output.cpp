#include "app/output.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/error.h"

namespace kd {

void write_out(std::string_view text) {
    if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout)) {
        KD_THROW(io, "cannot write to standard output: {}", std::strerror(errno));
    }
}

void write_file(const std::string& path, std::string_view text) {
    const std::string temporary = fmt::format("{}.{}.tmp", path, getpid());
    std::FILE* out = std::fopen(temporary.c_str(), "w");
    if (out == nullptr) KD_THROW(io, "cannot write {}: {}", path, std::strerror(errno));
    bool good = std::fwrite(text.data(), 1, text.size(), out) == text.size();
    int why = good ? 0 : errno;
    if (std::fclose(out) != 0 && good) {
        good = false;
        why = errno;
    }
    if (good && std::rename(temporary.c_str(), path.c_str()) == 0) return;
    if (why == 0) why = errno;
    unlink(temporary.c_str());
    KD_THROW(io, "cannot write {}: {}", path, std::strerror(why));
}

}  // namespace kd
