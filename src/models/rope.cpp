#include "models/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.h"

namespace kd {

namespace {

double llama3_frequency(double frequency, const RopeScaling& scaling) {
    const double wave = 2 * std::numbers::pi / frequency;
    const double waves = scaling.original_context / wave;  // within the original context
    if (waves > scaling.high_frequency_factor) return frequency;
    if (waves < scaling.low_frequency_factor) return frequency / scaling.factor;
    const double kept = (waves - scaling.low_frequency_factor) /
                        (scaling.high_frequency_factor - scaling.low_frequency_factor);
    return kept * frequency + (1 - kept) * frequency / scaling.factor;
}

/// Pairs [first, last] over which yarn goes from keeping the frequency to dividing it.
struct YarnRamp {
    double first = 0;
    double last = 0;
};

YarnRamp yarn_ramp(const ModelConfig& config) {
    const RopeScaling& scaling = config.rope_scaling;
    // The pair that turns `rotations` times within the original context.
    const auto pair_of = [&](double rotations) {
        return config.rope_dim *
               std::log(scaling.original_context / (rotations * 2 * std::numbers::pi)) /
               (2 * std::log(config.rope_base));
    };
    YarnRamp ramp = {.first = pair_of(scaling.beta_fast), .last = pair_of(scaling.beta_slow)};
    if (scaling.truncate) {
        ramp.first = std::floor(ramp.first);
        ramp.last = std::ceil(ramp.last);
    }
    ramp.first = std::max(ramp.first, 0.0);
    ramp.last = std::min(ramp.last, config.rope_dim - 1.0);
    if (ramp.first == ramp.last) ramp.last += 0.001;
    return ramp;
}

double yarn_magnitude(const RopeScaling& scaling) {
    if (scaling.attention_factor != 0) return scaling.attention_factor;
    if (scaling.mscale == 0 || scaling.mscale_all_dim == 0) return yarn_mscale(scaling.factor, 1);
    return yarn_mscale(scaling.factor, scaling.mscale) /
           yarn_mscale(scaling.factor, scaling.mscale_all_dim);
}

}  // namespace

double yarn_mscale(double factor, double mscale) {
    return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

RopeTable rope_table(const ModelConfig& config, std::span<const float> divisors) {
    const RopeScaling& scaling = config.rope_scaling;
    const int32_t pairs = config.rope_dim / 2;
    KD_CHECK(divisors.empty() || std::ssize(divisors) == pairs, "{} divisors of {} frequencies",
             divisors.size(), pairs);
    RopeTable table;
    if (scaling.type == RopeScalingType::yarn) table.magnitude = yarn_magnitude(scaling);
    const YarnRamp ramp = scaling.type == RopeScalingType::yarn ? yarn_ramp(config) : YarnRamp{};
    for (int32_t i = 0; i < pairs; ++i) {
        double frequency = std::pow(config.rope_base, -2.0 * i / config.rope_dim);
        switch (scaling.type) {
            case RopeScalingType::none:
                break;
            case RopeScalingType::linear:
                frequency /= scaling.factor;
                break;
            case RopeScalingType::llama3:
                frequency = llama3_frequency(frequency, scaling);
                break;
            case RopeScalingType::yarn: {
                const double share =
                    std::clamp((i - ramp.first) / (ramp.last - ramp.first), 0.0, 1.0);
                frequency *= share / scaling.factor + (1 - share);
                break;
            }
        }
        if (!divisors.empty()) frequency /= divisors[static_cast<size_t>(i)];
        table.inverse_frequency.push_back(frequency);
    }
    return table;
}

}  // namespace kd
