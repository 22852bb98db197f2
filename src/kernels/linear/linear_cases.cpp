#include "kernels/linear/linear_cases.h"

#include "kernels/cases/random.h"

namespace kd {

std::span<const LinearCase> linear_cases() {
    using enum DType;
    static const std::vector<LinearCase> cases = {
        // The shapes of SmolLM2-135M.
        {"qkv", {{q4_1, 576}, {q4_1, 192}, {q4_1, 192}}, 576, 1, false, false, 11},
        {"attn_out", {{q4_1, 576}}, 576, 4, false, true, 12},
        {"gate_up", {{q4_1, 1536}, {q4_1, 1536}}, 576, 2, false, false, 13},
        {"down", {{q4_1, 576}}, 1536, 8, false, true, 14},
        {"head_part", {{q8_0, 2048}}, 576, 3, false, false, 15},
        // Odd outputs, one block, many rows, every type, types mixed in one layer.
        {"one_output", {{q4_1, 1}}, 32, 1, true, true, 21},
        {"padded_parts", {{q4_1, 5}, {q8_0, 17}, {q4_0, 33}}, 96, 7, true, true, 22},
        {"q4_0", {{q4_0, 40}}, 576, 9, true, false, 23},
        {"q8_0", {{q8_0, 40}}, 1536, 17, false, false, 24},
        {"q4_1_chunk", {{q4_1, 48}}, 320, 64, false, true, 25},
        {"q4_k", {{q4_k, 40}}, 768, 9, true, false, 26},
        {"q6_k", {{q6_k, 40}}, 1536, 17, false, true, 27},
        {"q5_0", {{q5_0, 40}}, 576, 9, true, false, 41},
        {"q5_1", {{q5_1, 40}}, 1536, 17, false, true, 42},
        {"q5_k", {{q5_k, 40}}, 768, 9, true, false, 43},
        {"iq4_nl", {{iq4_nl, 40}}, 576, 17, false, true, 44},
        {"int4", {{int4, 40}}, 576, 9, true, true, 45},
        {"int4_mix", {{int4, 9}, {q5_1, 17}, {iq4_nl, 3}, {q4_1, 5}}, 96, 3, false, false, 46},
        // Scales of parts of blocks: 4.5 down and 1.5 across.
        {"f8_e4m3", {{f8_e4m3, 576}}, 192, 5, true, true, 47},
        {"f8_mix", {{f8_e4m3, 17}, {bf16, 5}, {f8_e4m3, 3}}, 131, 9, false, false, 48},
        // Layers of a Q4_K_M and of a Q5_K_M file.
        {"q5_mix", {{q5_k, 33}, {q5_k, 17}, {q6_k, 5}, {q5_0, 3}}, 256, 2, true, true, 49},
        {"k_mix", {{q4_k, 33}, {q4_k, 17}, {q6_k, 5}, {q8_0, 3}}, 256, 1, true, true, 28},
        {"f32", {{f32, 40}}, 63, 11, true, true, 31},
        {"f16", {{f16, 35}}, 576, 5, false, false, 32},
        {"bf16", {{bf16, 16}, {bf16, 3}}, 256, 20, true, false, 33},
        {"mixed_floats", {{f32, 9}, {f16, 9}, {bf16, 9}}, 1, 2, false, false, 34},
    };
    return cases;
}

LinearParams LinearInputs::params(bool quantised_rows) const {
    LinearParams result;
    if (quantised_rows) {
        result.quantised = &quantised;
    } else {
        result.x = x.data();
    }
    result.bias = bias.empty() ? nullptr : bias.data();
    result.residual = residual.empty() ? nullptr : residual.data();
    return result;
}

LinearInputs make_linear_inputs(const LinearCase& test) {
    CaseRandom random(test.seed);
    LinearInputs in;
    int64_t outputs = 0;
    in.weight_bytes.resize(test.parts.size());
    for (size_t i = 0; i < test.parts.size(); ++i) {
        const LinearCase::Part& part = test.parts[i];
        in.parts.push_back(
            random_weights(random, part.type, part.rows, test.columns, 0.5f, in.weight_bytes[i]));
        outputs += part.rows;
    }
    in.x = random.values(test.rows * test.columns);
    if (test.bias) in.bias = random.values(outputs);
    if (test.residual) in.residual = random.values(test.rows * outputs);
    if (is_quantised(test.parts[0].type)) {
        constexpr size_t kAlign = 64;
        in.quantised_bytes.resize(QuantRows::bytes(test.rows, test.columns) + kAlign);
        const auto address = reinterpret_cast<uintptr_t>(in.quantised_bytes.data());
        std::byte* aligned = in.quantised_bytes.data() + (kAlign - address % kAlign) % kAlign;
        in.quantised = QuantRows::in(aligned, test.rows, test.columns);
        quant_rows_ref({.x = in.x.data(), .out = in.quantised});
        for (size_t i = 0; i < in.x.size(); ++i) {
            const auto row = static_cast<int64_t>(i) / test.columns;
            const auto column = static_cast<int64_t>(i) % test.columns;
            const QuantTile& tile = in.quantised.tile(row, column / 32);
            const int64_t r = row % kQuantTileRows;
            in.x[i] = tile.scale[r] * static_cast<float>(tile.q[r][column % 32]);
        }
    }
    return in;
}

double linear_tolerance(const LinearCase& test) {
    // Quantised: a block's integers are exact (Q6_K's, scales included, below 2^24), and so are a
    // K-quant's scales and minima (17 and 18 bits). A block's two terms take a rounded scale
    // product and two fused additions (two more roundings without fma). Floats: one addition a
    // product, in two chains. Each rounding is at most 2^-24 of a partial sum. Bias and residual:
    // two more.
    const double steps = is_quantised(test.parts[0].type)
                             ? 4.0 * static_cast<double>(test.columns / 32) + 4
                             : static_cast<double>(test.columns) + 4;
    return steps * 0x1p-24;
}

namespace {

/// Of a matrix as random_weights makes it, with the scales beside it.
int64_t part_bytes(const LinearCase::Part& part, int64_t columns) {
    int64_t bytes = part.rows * bytes_of(part.type, columns);
    if (part.type == DType::int4) bytes += 2 * part.rows * (columns / 32);
    if (part.type == DType::f8_e4m3)
        bytes += 4 * ((part.rows + 127) / 128) * ((columns + 127) / 128);
    return bytes;
}

}  // namespace

int64_t linear_bytes(const LinearCase& test) {
    int64_t bytes = 0;
    int64_t outputs = 0;
    for (const LinearCase::Part& part : test.parts) {
        bytes += part_bytes(part, test.columns);
        outputs += part.rows;
    }
    const int64_t x_bytes = is_quantised(test.parts[0].type) ? 1 : 4;
    return bytes + test.rows * (test.columns * x_bytes + outputs * (test.residual ? 8 : 4));
}

double linear_flops(const LinearCase& test) {
    double outputs = 0;
    for (const LinearCase::Part& part : test.parts) outputs += static_cast<double>(part.rows);
    return 2.0 * static_cast<double>(test.rows) * outputs * static_cast<double>(test.columns);
}

}  // namespace kd
