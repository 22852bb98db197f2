#include "fuzz/memory_file.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <set>

#include "base/check.h"

namespace kd {

namespace {

/// The stand-ins for mappings that are alive. Never destroyed: the run time unmaps at exit.
std::set<void*>& stand_ins() {
    static auto* const set = new std::set<void*>;
    return *set;
}

void* read_whole(int descriptor, size_t bytes) {
    void* copy = nullptr;
    // Aligned as a mapping is: readers align inside the file.
    if (posix_memalign(&copy, 4096, bytes) != 0) return MAP_FAILED;
    const ssize_t got = pread(descriptor, copy, bytes, 0);
    KD_CHECK(got == static_cast<ssize_t>(bytes), "{} of {} bytes were read", got, bytes);
    stand_ins().insert(copy);
    return copy;
}

}  // namespace

MemoryFile::MemoryFile() : descriptor_(memfd_create("kdtree-fuzz", MFD_CLOEXEC)) {
    KD_CHECK(descriptor_ >= 0, "no memory file");
    path_ = fmt::format("/proc/self/fd/{}", descriptor_);
}

MemoryFile::~MemoryFile() {
    close(descriptor_);
}

void MemoryFile::set(std::span<const uint8_t> bytes) {
    const auto count = static_cast<off_t>(bytes.size());
    KD_CHECK(ftruncate(descriptor_, count) == 0 &&
                 pwrite(descriptor_, bytes.data(), bytes.size(), 0) == count,
             "{} bytes were not written", count);
}

}  // namespace kd

extern "C" {

void* __real_mmap(void* address, size_t bytes, int protection, int flags, int fd, off_t offset);
int __real_munmap(void* address, size_t bytes);

void* __wrap_mmap(void* address, size_t bytes, int protection, int flags, int fd, off_t offset) {
    const bool file = fd >= 0 && protection == PROT_READ && flags == MAP_PRIVATE && offset == 0;
    if (file) return kd::read_whole(fd, bytes);
    return __real_mmap(address, bytes, protection, flags, fd, offset);
}

int __wrap_munmap(void* address, size_t bytes) {
    if (kd::stand_ins().erase(address) == 0) return __real_munmap(address, bytes);
    std::free(address);
    return 0;
}

/// Advice is given on mapped files alone: to drop pages, which would empty a stand-in.
int __wrap_madvise(void* /*address*/, size_t /*bytes*/, int /*advice*/) {
    return 0;
}

}  // extern "C"
