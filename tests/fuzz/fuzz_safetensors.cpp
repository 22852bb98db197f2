// Arbitrary bytes as a safetensors file: it may be refused with kd::Error, in one line that starts
// with its name, and nothing else may happen. What is read has to keep its promises.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>

#include "base/check.h"
#include "base/error.h"
#include "formats/safetensors.h"
#include "fuzz/memory_file.h"
#include "support/safetensors_writer.h"

namespace kd {
namespace {

void check_entries(const SafetensorsFile& file) {
    const std::byte* next = nullptr;
    for (const SafetensorsEntry& entry : file.entries()) {
        int64_t bytes = element_bytes(entry.type);
        for (const int64_t dim : entry.shape) {
            KD_CHECK(dim >= 0, "dimension {}", dim);
            bytes *= dim;
        }
        KD_CHECK(bytes == entry.bytes, "{} bytes, not {}", entry.bytes, bytes);
        KD_CHECK(next == nullptr || entry.data == next, "the data are not behind each other");
        KD_CHECK(file.find(entry.name) == &entry, "another tensor of that name");
        KD_CHECK(!name_of(entry.type).empty(), "a type without a name");
        next = entry.data + entry.bytes;
        // The sanitizer sees bytes that are not there.
        const volatile std::byte* first = entry.data;
        if (bytes > 0) {
            static_cast<void>(first[0]);
            static_cast<void>(first[bytes - 1]);
        }
    }
    const std::byte* end = file.file().data() + file.file().bytes();
    KD_CHECK(next == nullptr || next == end, "{} bytes of no tensor", end - next);
}

}  // namespace
}  // namespace kd

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
    using namespace kd;
    static MemoryFile file;
    file.set({data, bytes});
    try {
        check_entries(SafetensorsFile(file.path()));
    } catch (const Error& error) {
        const std::string_view message = error.what();
        KD_CHECK(message.starts_with(file.path()) && message.find('\n') == message.npos,
                 "message: {}", message);
    }
    return 0;
}

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t bytes, size_t max_bytes);

/// Mostly keeps the header's length true, without which nothing else is reached.
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t bytes, size_t max_bytes,
                                          unsigned seed) {
    std::minstd_rand random(seed);
    constexpr size_t kLengthBytes = 8;
    if (bytes <= kLengthBytes || random() % 16 == 0) {
        return LLVMFuzzerMutate(data, bytes, max_bytes);
    }
    const std::string_view rest(reinterpret_cast<const char*>(data) + kLengthBytes,
                                bytes - kLengthBytes);
    uint64_t length = 0;
    std::memcpy(&length, data, sizeof length);
    const size_t header_bytes = std::min<uint64_t>(length, rest.size());
    std::string header(rest.substr(0, header_bytes));
    const std::string tail(rest.substr(header_bytes));
    const size_t most = max_bytes - kLengthBytes - tail.size();
    if (most < header_bytes) return LLVMFuzzerMutate(data, bytes, max_bytes);
    header.resize(most);
    header.resize(LLVMFuzzerMutate(reinterpret_cast<uint8_t*>(header.data()), header_bytes, most));
    const std::string changed = kd::safetensors_bytes(header, tail);
    std::memcpy(data, changed.data(), changed.size());
    return changed.size();
}
