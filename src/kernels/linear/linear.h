// linear: y = x W^T, for float rows or rows quantised in blocks of 32, dense or quantised weights.
//
// A row's result is bit-identical whatever the number of rows, the thread count and the tile: every
// output element is one fixed-order reduction over the columns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "backends/stream.h"
#include "kernels/quant_rows/quant_rows.h"
#include "kernels/weight.h"

namespace kd {

/// Weights re-packed for the fast kernels: matrices with equal column counts stacked by rows (such
/// as Q, K and V), each in panels of outputs so that one weight load feeds all activation rows. The
/// source memory is not read after construction, except by the reference.
class LinearWeights {
  public:
    /// parts: each [rows_i, columns]; they must outlive this object (the reference reads them), and
    /// so must the stream's arena.
    LinearWeights(std::span<const WeightView> parts, Stream& stream);
    ~LinearWeights();
    LinearWeights(LinearWeights&&) noexcept;
    LinearWeights& operator=(LinearWeights&&) noexcept;

    int64_t rows() const;     // outputs, all parts
    int64_t columns() const;  // inputs
    std::span<const WeightView> parts() const;
    /// Whether the fast kernel takes rows quantised in blocks of 32 (quantised weights) or float
    /// rows (F32, F16, BF16 weights). All parts are of one kind.
    bool wants_quantised_rows() const;
    size_t packed_bytes() const;

    struct Packed;
    const Packed& packed() const { return *packed_; }

  private:
    std::unique_ptr<Packed> packed_;
};

struct LinearParams {
    const LinearWeights* weights = nullptr;
    const float* x = nullptr;              // [rows, columns] float rows; or
    const QuantRows* quantised = nullptr;  // the same rows quantised; exactly one of the two
    int64_t rows = 0;
    const float* bias = nullptr;      // [outputs] or null
    const float* residual = nullptr;  // [rows, outputs] added to the result, or null; may be y
    float* y = nullptr;               // [rows, outputs]
};

/// The fast kernel where stream.kernels is fast: `quantised` for quantised weights, `x` otherwise
/// (see wants_quantised_rows). The reference takes either kind of row with any weights.
void linear(const LinearParams& params, Stream& stream);
/// Scalar, accumulating in double over dequantised weights; with quantised rows the products of a
/// block are summed as integers first.
void linear_ref(const LinearParams& params);

}  // namespace kd
