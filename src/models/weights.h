// Finding a model's tensors by name, with their shapes checked.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "formats/model_file.h"
#include "kernels/weight.h"

namespace kd {

/// Takes tensors out of a model one by one, by their names in GGUF (tensor_names.h); what nobody
/// took at the end is an error, because a tensor that is ignored is a model that is computed
/// wrongly. Errors give the names that stand in the file.
class WeightReader {
  public:
    explicit WeightReader(const ModelFile& file) : file_(&file) {}
    /// Throws nothing and reads no weights: what is wrong is appended to `faults`, one line each,
    /// and what matrix() and vector() return must not be used. Tensors of foreign types count as
    /// there: whoever listed them knows what they are.
    WeightReader(const ModelFile& file, std::vector<std::string>& faults);

    bool has(std::string_view name) const;
    /// A matrix [rows, columns]. Throws kd::Error naming the tensor if it is missing or misshapen
    /// or holds NaN or infinity.
    WeightView matrix(std::string_view name, int64_t rows, int64_t columns);
    /// A stack [count, rows, columns] in one tensor, matrix by matrix; throws as matrix() does.
    std::vector<WeightView> matrices(std::string_view name, int64_t count, int64_t rows,
                                     int64_t columns);
    /// The routed experts' matrices of one kind ("ffn_gate") of a layer: one stack
    /// ("blk.3.ffn_gate_exps.weight") or a tensor each ("blk.3.ffn_gate.17.weight").
    std::vector<WeightView> experts(int32_t layer, std::string_view kind, int64_t count,
                                    int64_t rows, int64_t columns);
    /// A vector [length] of any float type, as float32.
    std::vector<float> vector(std::string_view name, int64_t length);
    /// The same, of values above 0.
    std::vector<float> positive_vector(std::string_view name, int64_t length);
    /// Refuses matrices of one linear layer that are partly quantised. name: of the first of them.
    void expect_one_kind(std::initializer_list<WeightView> parts, std::string_view name) const;
    /// The tensors of layers [first, first + count) need not be taken.
    void skip_layers(int32_t first, int32_t count);
    /// Throws kd::Error naming the first tensor that was never taken and is no unused one.
    void expect_all_taken(std::string_view architecture) const;

  private:
    const FileTensor* take(std::string_view name);
    bool is_skipped(std::string_view name) const;
    void refuse(ErrorCode code, std::string message) const;

    const ModelFile* file_;
    std::vector<std::string>* faults_ = nullptr;
    std::set<std::string_view> foreign_;  // names; only with faults_
    std::set<std::string_view> taken_;
    std::vector<std::string> skipped_;  // what names begin with
};

}  // namespace kd
