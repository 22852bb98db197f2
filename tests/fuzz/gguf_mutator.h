// Changes a GGUF file where it matters: a length, a count, a type code, a size or the content of a
// string (whose length and whose tensor data stay right), which blind changes of bytes seldom hit.
#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace kd {

/// Where the numbers and strings of a GGUF header stand, as far as it can be followed.
struct GgufFields {
    struct Number {
        size_t at = 0;
        size_t bytes = 0;  // 4 or 8
    };
    struct String {
        size_t length_at = 0;
        size_t bytes = 0;  // from length_at + 8 on
    };
    std::vector<Number> numbers;
    std::vector<String> strings;
    size_t header_end = 0;  // 0: the header could not be followed to its end
    size_t alignment = 32;
};
GgufFields find_gguf_fields(std::string_view file);

/// Changes `bytes` in place (their number may change) to at most `max_bytes`; a fuzzer's own.
using MutateBytes = std::function<void(std::string& bytes, size_t max_bytes)>;

/// One change of the file. Without a header that can be followed: `mutate` on all of it.
std::string mutate_gguf(std::string file, size_t max_bytes, std::minstd_rand& random,
                        const MutateBytes& mutate);

}  // namespace kd
