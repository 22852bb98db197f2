// Finding a model's tensors by name, with their shapes checked.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "formats/gguf.h"
#include "kernels/weight.h"

namespace kd {

/// Takes tensors out of a file one by one; what nobody took at the end is an error, because a
/// tensor that is ignored is a model that is computed wrongly.
class WeightReader {
  public:
    explicit WeightReader(const GgufFile& file) : file_(&file) {}
    /// Throws nothing and reads no weights: what is wrong is appended to `faults`, one line each,
    /// and what matrix() and vector() return must not be used. Tensors of foreign types count as
    /// there: whoever listed them knows what they are.
    WeightReader(const GgufFile& file, std::vector<std::string>& faults);

    bool has(std::string_view name) const { return file_->find_tensor(name) != nullptr; }
    /// A matrix [rows, columns]. Throws kd::Error naming the tensor if it is missing or misshapen
    /// or holds NaN or infinity.
    WeightView matrix(std::string_view name, int64_t rows, int64_t columns);
    /// A float32 vector [length].
    std::span<const float> vector(std::string_view name, int64_t length);
    /// Refuses matrices of one linear layer that are partly quantised. name: of the first of them.
    void expect_one_kind(std::initializer_list<WeightView> parts, std::string_view name) const;
    /// Throws kd::Error naming the first tensor that was never taken.
    void expect_all_taken() const;

  private:
    const FileTensor* take(std::string_view name);
    void refuse(ErrorCode code, std::string message) const;

    const GgufFile* file_;
    std::vector<std::string>* faults_ = nullptr;
    std::set<std::string_view> foreign_;  // names; only with faults_
    std::set<std::string_view> taken_;
};

}  // namespace kd
