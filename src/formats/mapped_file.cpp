#include "formats/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "base/check.h"
#include "base/error.h"

namespace kd {

namespace {

struct Descriptor {
    int fd = -1;
    ~Descriptor() {
        if (fd >= 0) ::close(fd);
    }
};

std::string last_error() {
    return std::generic_category().message(errno);
}

}  // namespace

MappedFile::MappedFile(const std::string& path) : path_(path) {
    // O_NONBLOCK: opening a fifo that nobody writes would wait for ever.
    const Descriptor descriptor{::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)};
    if (descriptor.fd < 0) {
        if (errno == ENOENT || errno == ENOTDIR) KD_THROW(not_found, "{}: no such file", path);
        KD_THROW(io, "{}: cannot be opened: {}", path, last_error());
    }
    struct stat status {};
    if (::fstat(descriptor.fd, &status) != 0) {
        KD_THROW(io, "{}: cannot be examined: {}", path, last_error());
    }
    if (S_ISDIR(status.st_mode)) KD_THROW(invalid_argument, "{}: is a directory", path);
    if (!S_ISREG(status.st_mode)) KD_THROW(invalid_argument, "{}: is not a regular file", path);
    if (status.st_size == 0) KD_THROW(corrupt, "{}: is empty", path);
    bytes_ = static_cast<size_t>(status.st_size);
    void* mapping = ::mmap(nullptr, bytes_, PROT_READ, MAP_PRIVATE, descriptor.fd, 0);
    if (mapping == MAP_FAILED) {
        KD_THROW(out_of_resources, "{}: {} bytes cannot be mapped: {}", path, bytes_, last_error());
    }
    data_ = static_cast<const std::byte*>(mapping);
}

MappedFile::~MappedFile() {
    ::munmap(const_cast<std::byte*>(data_), bytes_);
}

void MappedFile::release(const std::byte* begin, size_t bytes) const {
    KD_CHECK(begin >= data_ && begin <= data_ + bytes_ &&
                 bytes <= static_cast<size_t>(data_ + bytes_ - begin),
             "{} bytes are not inside {}", bytes, path_);
    const size_t page_bytes = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
    const size_t offset = static_cast<size_t>(begin - data_);
    const size_t first = offset / page_bytes * page_bytes;
    // Only a hint: a kernel that refuses it costs memory, not correctness.
    (void)::madvise(const_cast<std::byte*>(data_ + first), offset + bytes - first, MADV_DONTNEED);
}

std::string printable(std::string_view text) {
    constexpr size_t kMostBytes = 64;
    std::string out;
    for (const char c : text.substr(0, kMostBytes)) {
        if (c >= ' ' && c <= '~') {
            out += c;
        } else {
            out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
        }
    }
    if (text.size() > kMostBytes) out += "...";
    return out;
}

bool is_plain_file_name(std::string_view name) {
    constexpr size_t kMostBytes = 255;  // of a file name, on what Linux mounts
    return !name.empty() && name.size() <= kMostBytes && name.front() != '.' &&
           std::ranges::all_of(name, [](char c) { return c >= ' ' && c <= '~' && c != '/'; });
}

}  // namespace kd
