#include "backends/cpu/lazy_array.h"

#include <sys/mman.h>

#include "backends/cpu/address_sanitizer.h"
#include "base/error.h"

namespace kd {

std::byte* reserve_pages(size_t bytes) {
    if (bytes == 0) return nullptr;
    void* pages = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pages == MAP_FAILED) KD_THROW(out_of_resources, "cannot reserve {} bytes of memory", bytes);
    return static_cast<std::byte*>(pages);
}

void release_pages(std::byte* pages, size_t bytes) {
    if (pages == nullptr) return;
    allow_access(pages, bytes);  // whoever gets these addresses next
    munmap(pages, bytes);
}

}  // namespace kd
