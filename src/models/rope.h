// The frequencies of a model's rotary position embedding.
#pragma once

#include <span>

#include "formats/model_config.h"
#include "kernels/rope_append/rope_append.h"

namespace kd {

/// Su et al. 2021 (RoFormer): pair i turns by base^(-2i / rope_dim) a position. Stretched for long
/// contexts by
///   linear (position interpolation, Chen et al. 2023): every frequency divided by `factor`;
///   llama3 (Llama 3.1): divided by `factor` where the wave is longer than original_context /
///     low_frequency_factor, kept where it is shorter than original_context /
///     high_frequency_factor, between the two a mix that is linear in context / wave;
///   yarn (Peng et al. 2023, "NTK by parts"): kept for pairs that turn more than beta_fast times
///     within original_context, divided by `factor` for those that turn less than beta_slow times,
///     a linear ramp over the pairs between; cos and sin are multiplied by attention_factor, or
///     where none is stated by yarn_mscale(factor, mscale) / yarn_mscale(factor, mscale_all_dim),
///     or without these two by yarn_mscale(factor, 1).
/// divisors: [rope_dim / 2] by which the frequencies are divided on top (GGUF's rope_freqs.weight),
/// or empty.
RopeTable rope_table(const ModelConfig& config, std::span<const float> divisors = {});

/// 0.1 * mscale * ln(factor) + 1 for a factor above 1, else 1.
double yarn_mscale(double factor, double mscale);

}  // namespace kd
