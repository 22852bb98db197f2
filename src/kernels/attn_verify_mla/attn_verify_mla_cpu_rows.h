// The reference of attn_verify_mla_cpu on a range of its work: shared with its parallel form.
#pragma once

#include <cstdint>

#include "kernels/attn_verify_mla/attn_verify_mla_cpu.h"

namespace kd {

/// Inputs that cannot be right abort.
void check_attention(const AttnVerifyMlaCpuParams& params);
/// The pairs [begin, end): pair p is head p % heads of row p / heads, rows counted over all
/// segments.
void attn_verify_mla_cpu_pairs(const AttnVerifyMlaCpuParams& params, int64_t begin, int64_t end);

}  // namespace kd
