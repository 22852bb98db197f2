// libFuzzer's mutator of a target whose bytes are a GGUF file.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>

#include "fuzz/gguf_mutator.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t bytes, size_t max_bytes);

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t bytes, size_t max_bytes,
                                          unsigned seed) {
    std::minstd_rand random(seed);
    const auto mutate = [](std::string& text, size_t most) {
        const size_t before = text.size();
        text.resize(std::max(most, before));
        text.resize(LLVMFuzzerMutate(reinterpret_cast<uint8_t*>(text.data()), before, most));
    };
    const std::string changed = kd::mutate_gguf(
        std::string(reinterpret_cast<const char*>(data), bytes), max_bytes, random, mutate);
    std::memcpy(data, changed.data(), changed.size());
    return changed.size();
}
