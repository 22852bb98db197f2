#include "kernels/embed/embed_cases.h"

namespace kd {

std::span<const EmbedCase> embed_cases() {
    using enum DType;
    static constexpr EmbedCase kCases[] = {
        {"f32", f32, 50, 33, 3, 1},     {"f16", f16, 50, 33, 3, 2},
        {"bf16", bf16, 50, 64, 5, 3},   {"q8_0", q8_0, 300, 576, 40, 4},
        {"q4_0", q4_0, 100, 576, 7, 5}, {"q4_1", q4_1, 100, 576, 1, 6},
        {"q4_k", q4_k, 60, 512, 5, 7},  {"q6_k", q6_k, 60, 768, 9, 8},
        {"q5_0", q5_0, 60, 96, 5, 9},   {"q5_1", q5_1, 60, 96, 5, 10},
        {"q5_k", q5_k, 60, 512, 5, 11}, {"iq4_nl", iq4_nl, 60, 96, 5, 12},
        {"int4", int4, 60, 96, 9, 13},  {"f8_e4m3", f8_e4m3, 300, 200, 40, 14},
    };
    return kCases;
}

int64_t embed_bytes(const EmbedCase& test) {
    return test.rows * (bytes_of(test.type, test.hidden) + 4 * test.hidden);
}

double embed_flops(const EmbedCase& test) {
    return 2.0 * static_cast<double>(test.rows * test.hidden);
}

}  // namespace kd
