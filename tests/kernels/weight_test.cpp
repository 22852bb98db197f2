// Matrices with scales beside them: golden values of tools/make_dtype_fixtures.py.
#include "kernels/weight.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "kernel_test.h"
#include "kernels/embed/embed.h"
#include "kernels/linear/linear.h"

namespace kd {
namespace {

/// From hexadecimal, at an odd address, as file formats may have it.
std::vector<std::byte> odd_bytes(const std::string& hex) {
    std::vector<std::byte> bytes(1);
    for (size_t i = 0; i < hex.size(); i += 2) {
        bytes.push_back(static_cast<std::byte>(std::stoi(hex.substr(i, 2), nullptr, 16)));
    }
    return bytes;
}

struct Scaled {
    std::vector<std::byte> data, scales;
    std::vector<float> weights;
    WeightView view;
};

std::vector<Scaled> scaled_matrices() {
    std::ifstream file(KD_TEST_DATA "/base/dtypes.json");
    const auto json = nlohmann::json::parse(file);
    std::vector<Scaled> out;
    for (const auto& each : json.at("scaled")) {
        Scaled& matrix = out.emplace_back();
        matrix.data = odd_bytes(each.at("data"));
        matrix.scales = odd_bytes(each.at("scales"));
        const std::vector<std::byte> weights = odd_bytes(each.at("weights"));
        matrix.weights.resize(weights.size() / 4);
        std::memcpy(matrix.weights.data(), &weights[1], weights.size() - 1);
        const std::string scale_type = each.at("scale_type");
        matrix.view = {.type = each.at("type") == "INT4" ? DType::int4 : DType::f8_e4m3,
                       .data = &matrix.data[1],
                       .rows = each.at("shape")[0],
                       .columns = each.at("shape")[1],
                       .scales = {.data = &matrix.scales[1],
                                  .type = scale_type == "BF16"  ? DType::bf16
                                          : scale_type == "F16" ? DType::f16
                                                                : DType::f32,
                                  .block_rows = each.at("block")[0],
                                  .block_columns = each.at("block")[1]}};
        EXPECT_EQ(std::ssize(matrix.weights), matrix.view.rows * matrix.view.columns);
        EXPECT_EQ(std::ssize(matrix.data) - 1, matrix.view.rows * matrix.view.row_bytes());
    }
    EXPECT_EQ(out.size(), 5u);
    return out;
}

TEST(WeightView, RowsAsCompressedTensors) {
    ThreadPool threads(1);
    Stream stream{&threads, Kernels::fast};
    for (const Scaled& matrix : scaled_matrices()) {
        const WeightView& view = matrix.view;
        SCOPED_TRACE(testing::Message()
                     << name_of(view.type) << " with scales of " << name_of(view.scales.type));
        std::vector<float> rows = nan_filled(view.rows * view.columns);
        std::vector<int32_t> tokens;
        for (int64_t row = 0; row < view.rows; ++row) {
            dequantise_row(view, row, &rows[static_cast<size_t>(row * view.columns)]);
            tokens.push_back(static_cast<int32_t>(row));
        }
        EXPECT_TRUE(same_bits(rows, matrix.weights));
        std::vector<float> embedded = nan_filled(view.rows * view.columns);
        embed({.table = view, .tokens = tokens, .out = embedded.data()}, stream);
        EXPECT_TRUE(same_bits(embedded, matrix.weights));
    }
}

/// One column of ones at a time reads a weight through the fast kernel.
TEST(WeightView, PanelsHoldTheSameWeights) {
    ThreadPool threads(1);
    Stream stream{&threads, Kernels::fast};
    for (const Scaled& matrix : scaled_matrices()) {
        const WeightView& view = matrix.view;
        SCOPED_TRACE(testing::Message()
                     << name_of(view.type) << " with scales of " << name_of(view.scales.type));
        const LinearWeights weights(std::span(&view, 1), stream);
        std::vector<std::byte> memory(QuantRows::bytes(1, view.columns) + 64);
        auto* aligned = reinterpret_cast<std::byte*>(
            (reinterpret_cast<uintptr_t>(memory.data()) + 63) / 64 * 64);
        for_each_target([&] {
            for (int64_t column = 0; column < view.columns; ++column) {
                std::vector<float> x(static_cast<size_t>(view.columns));
                x[static_cast<size_t>(column)] = 127;
                QuantRows quantised;
                LinearParams params{.weights = &weights, .rows = 1};
                if (weights.wants_quantised_rows()) {
                    quantised = QuantRows::in(aligned, 1, view.columns);
                    quant_rows_ref({.x = x.data(), .out = quantised});
                    params.quantised = &quantised;
                } else {
                    params.x = x.data();
                }
                std::vector<float> y = nan_filled(view.rows);
                params.y = y.data();
                linear(params, stream);
                for (int64_t row = 0; row < view.rows; ++row) {
                    const float weight =
                        matrix.weights[static_cast<size_t>(row * view.columns + column)];
                    // Scale times integer: two roundings where the scale takes 24 bits.
                    EXPECT_NEAR(y[static_cast<size_t>(row)], weight * 127,
                                std::fabs(weight * 127) * 0x1p-22)
                        << row << ", " << column;
                }
            }
        });
    }
}

}  // namespace
}  // namespace kd
