// Files mapped into memory.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace kd {

/// A read-only mapping of a whole regular file. The file must not shrink while it is mapped: the
/// system answers a read beyond its new end with SIGBUS.
class MappedFile {
  public:
    /// Throws kd::Error naming the path: not_found if it is missing, io if it is unreadable,
    /// invalid_argument if it is a directory or anything else that is not a regular file, corrupt
    /// if it is empty. Never waits (for the writer of a fifo).
    explicit MappedFile(const std::string& path);
    ~MappedFile();
    MappedFile(const MappedFile&) = delete;
    MappedFile& operator=(const MappedFile&) = delete;

    const std::string& path() const { return path_; }
    const std::byte* data() const { return data_; }
    size_t bytes() const { return bytes_; }
    /// Drops the resident pages that [begin, begin + bytes) touches; they are read again on the
    /// next use.
    void release(const std::byte* begin, size_t bytes) const;

  private:
    std::string path_;
    const std::byte* data_ = nullptr;
    size_t bytes_ = 0;
};

/// `text` from a file, fit for a one-line message: bytes outside printable ASCII become \xNN, what
/// exceeds 64 bytes becomes "...".
std::string printable(std::string_view text);

/// Whether `name`, from a file, can only name something in the folder that it is looked up in, and
/// can be shown as it is: 1 to 255 bytes of printable ASCII, no '/', no '.' in front.
bool is_plain_file_name(std::string_view name);

}  // namespace kd
