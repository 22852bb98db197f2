// The plain truth of rope_append_cuda: the same parameters with host pointers, in double.
#pragma once

#include <cstdint>

#include "kdtree/kernels.h"

namespace kd {

/// Rotates Q and writes the cache as rope_append_cuda does. A rotated value is rounded once from
/// double to the type it is stored in. FP8 formats store e4m3(float32(value / scale)), saturating;
/// KDT_KV_FP8_MLA656 takes scale = float32(max |value| / 448) of each 128 latent values, 1 where
/// all of them are 0.
void rope_append_cuda_ref(const kdt_rope_append_params& params);

/// Value `index` of a head after rotation at `position`, in double. head: bf16 [head_dim].
double rotated_value(const kdt_rope_append_params& params, const uint16_t* head, int32_t position,
                     int32_t index);

/// The index that rotates together with `index`; `index` itself where it does not rotate.
int32_t rope_partner(const kdt_rope_append_params& params, int32_t index);

/// To the nearest e4m3 value, ties to even, beyond +-448 to +-448; NaN to 0x7f.
uint8_t e4m3_from(double value);
double e4m3_value(uint8_t bits);

}  // namespace kd
