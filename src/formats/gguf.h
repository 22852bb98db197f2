// GGUF v3 files, memory-mapped. Every file is hostile: sizes are checked before they are used, and
// each refusal names the file and the field.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/dtype.h"

namespace kd {

/// A read-only mapping of a whole regular file.
class MappedFile {
  public:
    /// Throws kd::Error naming the path if it is missing, unreadable, a directory, not a regular
    /// file or empty.
    explicit MappedFile(const std::string& path);
    ~MappedFile();
    MappedFile(const MappedFile&) = delete;
    MappedFile& operator=(const MappedFile&) = delete;

    const std::string& path() const { return path_; }
    const std::byte* data() const { return data_; }
    size_t bytes() const { return bytes_; }
    /// Drops the resident pages of [begin, begin + bytes); they are read again on the next use.
    void release(const std::byte* begin, size_t bytes) const;

  private:
    std::string path_;
    const std::byte* data_ = nullptr;
    size_t bytes_ = 0;
};

struct GgufArray;
/// A metadata value; integers of all widths are widened.
using GgufValue = std::variant<uint64_t, int64_t, double, bool, std::string_view, GgufArray>;

/// An array stays in the file's bytes; strings are indexed once at load.
struct GgufArray {
    uint32_t element_type = 0;  // GGUF's type code
    uint64_t count = 0;
    const std::byte* data = nullptr;        // numbers: count packed elements
    std::vector<std::string_view> strings;  // element_type string
};

struct GgufTensor {
    std::string_view name;
    DType type = DType::f32;
    std::vector<int64_t> dims;        // GGUF order: dims[0] is the contiguous one (columns)
    const std::byte* data = nullptr;  // aligned, inside the mapping
    int64_t bytes = 0;

    int64_t columns() const { return dims[0]; }
    int64_t rows() const {
        int64_t rows = 1;
        for (size_t i = 1; i < dims.size(); ++i) rows *= dims[i];
        return rows;
    }
};

class GgufFile {
  public:
    explicit GgufFile(const std::string& path);

    const MappedFile& file() const { return *file_; }
    uint32_t version() const { return version_; }
    const std::map<std::string_view, GgufValue>& metadata() const { return metadata_; }
    const std::vector<GgufTensor>& tensors() const { return tensors_; }

    /// Null if absent.
    const GgufValue* find(std::string_view key) const;
    const GgufTensor* find_tensor(std::string_view name) const;

    /// Required values: kd::Error{corrupt} naming file, key and what was found instead, if absent,
    /// of another kind or out of [min, max].
    int64_t integer(std::string_view key, int64_t min, int64_t max) const;
    double number(std::string_view key, double min, double max) const;
    std::string_view string(std::string_view key) const;
    const std::vector<std::string_view>& strings(std::string_view key) const;
    /// An integer array of any width, each value widened.
    std::vector<int64_t> integers(std::string_view key) const;
    /// A float32 array.
    std::vector<float> floats(std::string_view key) const;
    /// Optional values: `fallback` if absent, still an error if of another kind or out of range.
    int64_t integer_or(std::string_view key, int64_t fallback, int64_t min, int64_t max) const;
    double number_or(std::string_view key, double fallback, double min, double max) const;
    bool boolean_or(std::string_view key, bool fallback) const;
    std::string_view string_or(std::string_view key, std::string_view fallback) const;

  private:
    std::unique_ptr<MappedFile> file_;
    uint32_t version_ = 0;
    std::map<std::string_view, GgufValue> metadata_;
    std::vector<GgufTensor> tensors_;
    std::map<std::string_view, size_t> tensor_index_;
};

}  // namespace kd
