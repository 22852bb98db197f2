// embed: rows of the token embedding table, dequantised.
#pragma once

#include <cstdint>
#include <span>

#include "backends/stream.h"
#include "kernels/weight.h"

namespace kd {

struct EmbedParams {
    WeightView table;                 // [vocabulary, hidden]
    std::span<const int32_t> tokens;  // [rows]
    float* out = nullptr;             // [rows, hidden]
};

/// out[r] = table[tokens[r]]. Tokens must be inside the vocabulary.
void embed(const EmbedParams& params, Stream& stream);
void embed_ref(const EmbedParams& params);

}  // namespace kd
