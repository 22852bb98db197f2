// Cases of linear, for tests and benchmarks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/linear/linear.h"

namespace kd {

struct LinearCase {
    const char* name;
    struct Part {
        DType type;
        int64_t rows;
    };
    std::vector<Part> parts;
    int64_t columns;
    int64_t rows;
    bool bias;
    bool residual;
    uint32_t seed;
};

std::span<const LinearCase> linear_cases();

/// Owns what `params` points to. Quantised weights get rows that hold exactly what `quantised`
/// says.
struct LinearInputs {
    std::vector<std::vector<std::byte>> weight_bytes;
    std::vector<WeightView> parts;
    std::vector<float> x;  // [rows, columns]
    std::vector<std::byte> quantised_bytes;
    QuantRows quantised;
    std::vector<float> bias;
    std::vector<float> residual;

    /// Everything but weights and y.
    LinearParams params(bool quantised_rows) const;
};
LinearInputs make_linear_inputs(const LinearCase& test);

/// |fast - exact| <= this times sum |w x| + |bias| + |residual| of the output.
double linear_tolerance(const LinearCase& test);
int64_t linear_bytes(const LinearCase& test);
double linear_flops(const LinearCase& test);

}  // namespace kd
