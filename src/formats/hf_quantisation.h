// What the quantization_config of a Hugging Face folder says about the weights.
#pragma once

#include <cstdint>
#include <string_view>

#include "formats/json_file.h"

namespace kd {

enum class HfQuantisation : uint8_t {
    none,
    fp8_blocks,       // X.weight F8_E4M3, X.weight_scale_inv
    float_quantized,  // X.weight F8_E4M3, X.weight_scale
    pack_quantized,   // X.weight_packed, 4 bits, X.weight_scale, X.weight_shape
};

struct HfQuantisationScheme {
    HfQuantisation kind = HfQuantisation::none;
    int32_t block_rows = 0;     // of one scale; 0: all
    int32_t block_columns = 0;  // 0: all
};

/// Reads the quantization_config of a config.json, or of its text_config. Throws kd::Error naming
/// the field for every setting that would be computed otherwise than it says. Quantisation of
/// activations on the fly is left out: weights are exact, activations keep their precision.
HfQuantisationScheme read_hf_quantisation(const JsonNode& config);

}  // namespace kd
