// The tensors of a drafter: a safetensors file as published, or a GGUF file with the same names
// (quantised).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "formats/gguf.h"
#include "formats/safetensors.h"

namespace kd {

struct DraftTensor {
    std::string_view name;
    std::optional<DType> type;        // none: one of the file's that nothing computes with
    std::string_view type_name;       // "BF16", "I64", "BOOL", "Q8_0"
    std::vector<int64_t> dims;        // dims[0] is the contiguous one
    const std::byte* data = nullptr;  // in the mapping
    int64_t bytes = 0;                // 0 where the type's size is not known
};

/// Views are valid as long as this is.
class DraftTensors {
  public:
    /// By the name's end, .gguf or another. Throws what GgufFile and SafetensorsFile throw.
    explicit DraftTensors(const std::string& path);

    const std::string& path() const { return path_; }
    const std::vector<DraftTensor>& tensors() const { return tensors_; }
    /// Null if absent.
    const DraftTensor* find(std::string_view name) const;
    const MappedFile& file() const { return gguf_ ? gguf_->file() : safetensors_->file(); }
    /// Drops the resident pages; they are read again on the next use.
    void release() const;

  private:
    std::string path_;
    std::unique_ptr<SafetensorsFile> safetensors_;
    std::unique_ptr<GgufFile> gguf_;
    std::vector<DraftTensor> tensors_;  // by name
};

}  // namespace kd
