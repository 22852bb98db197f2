// The file under test, in memory. What a fuzzer's program maps read-only lies in heap memory of
// exactly the file's size (memory_file.cpp stands in for mmap, munmap and madvise by the linker's
// --wrap), so that AddressSanitizer sees the first byte read beyond its end; in a real mapping the
// rest of the last page is readable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace kd {

class MemoryFile {
  public:
    MemoryFile();
    ~MemoryFile();
    MemoryFile(const MemoryFile&) = delete;
    MemoryFile& operator=(const MemoryFile&) = delete;

    /// Replaces the content.
    void set(std::span<const uint8_t> bytes);
    const std::string& path() const { return path_; }

  private:
    int descriptor_;
    std::string path_;
};

}  // namespace kd
