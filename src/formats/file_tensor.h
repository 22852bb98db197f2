// Tensors as they lie in a model file, whatever its format.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"

namespace kd {

struct FileTensor {
    std::string_view name;
    DType type = DType::f32;
    std::vector<int64_t> dims;        // dims[0] is the contiguous one (columns)
    const std::byte* data = nullptr;  // inside the mapping
    int64_t bytes = 0;
    BlockScales scales;        // f8_e4m3 and int4: those of the matrix [rows(), columns()]
    int32_t part = 0;          // of a model in several files: the one it lies in
    uint64_t file_offset = 0;  // of its first byte in that file

    int64_t columns() const { return dims[0]; }
    int64_t rows() const {
        int64_t rows = 1;
        for (size_t i = 1; i < dims.size(); ++i) rows *= dims[i];
        return rows;
    }
};

/// A tensor of a type that is not one of DType's: nothing here computes with it.
struct ForeignTensor {
    std::string_view name;
    std::string type;              // the format's name, or the number of its code
    std::vector<int64_t> dims;     // as in FileTensor
    int32_t part = 0;              // as in FileTensor
    uint64_t file_offset = 0;      // of its first byte
    std::optional<int64_t> bytes;  // none where the type's blocks are not known
};

/// What to do with tensors of other types than DType's.
enum class ForeignTensors : uint8_t { refuse, list };

/// Throws kd::Error{corrupt} naming `path`, the tensor and the place if a weight is NaN or
/// infinite: reads every weight of a float tensor, the scales (and minima) of a quantised one, and
/// the scales beside it.
void check_finite(const FileTensor& tensor, const std::string& path);

}  // namespace kd
