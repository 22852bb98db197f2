// Finding a model's tensors by name, with their shapes checked.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include "formats/gguf.h"
#include "kernels/weight.h"

namespace kd {

/// Takes tensors out of a file one by one; what nobody took at the end is an error, because a
/// tensor that is ignored is a model that is computed wrongly.
class WeightReader {
  public:
    explicit WeightReader(const GgufFile& file) : file_(&file) {}

    bool has(std::string_view name) const { return file_->find_tensor(name) != nullptr; }
    /// A matrix [rows, columns]. Throws kd::Error naming the tensor if it is missing or misshapen
    /// or holds NaN or infinity.
    WeightView matrix(std::string_view name, int64_t rows, int64_t columns);
    /// A float32 vector [length].
    std::span<const float> vector(std::string_view name, int64_t length);
    /// Throws kd::Error naming the first tensor that was never taken.
    void expect_all_taken() const;

  private:
    const GgufTensor& take(std::string_view name);

    const GgufFile* file_;
    std::set<std::string_view> taken_;
};

}  // namespace kd
