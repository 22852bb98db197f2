// GGUF files (v3, and v2 whose little-endian layout is the same), memory-mapped, whole or split
// into parts. Every file is hostile: sizes are checked before they are used, nothing is allocated
// that the file's own size does not justify, and each refusal is one line that names the file and
// the field.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "formats/file_tensor.h"
#include "formats/mapped_file.h"

namespace kd {

/// GGUF's own codes of metadata values.
enum class GgufValueType : uint32_t {
    u8,
    i8,
    u16,
    i16,
    u32,
    i32,
    f32,
    boolean,
    string,
    array,
    u64,
    i64,
    f64,
};

struct GgufArray;
/// A metadata value; integers of all widths are widened.
using GgufValue = std::variant<uint64_t, int64_t, double, bool, std::string_view, GgufArray>;

/// An array stays in the file's bytes; strings are indexed once at load.
struct GgufArray {
    uint32_t element_type = 0;  // a GgufValueType
    uint64_t count = 0;
    const std::byte* data = nullptr;        // numbers: count packed elements
    uint64_t bytes = 0;                     // of those
    std::vector<std::string_view> strings;  // element_type string
};

class GgufCursor;

class GgufFile {
  public:
    /// Throws kd::Error: corrupt for a file that contradicts the format, unsupported (with the name
    /// of the version, tensor type or value type) for what is valid but not read here: nested
    /// arrays, big-endian files, tensor types other than DType's unless they shall be listed; what
    /// MappedFile throws.
    ///
    /// A model in parts, NAME-00001-of-0000N.gguf (metadata split.count, split.no and
    /// split.tensors.count): `path` may be any of them, all are read. The metadata are those of the
    /// first, the tensors those of all. kd::Error{not_found} names a part that is missing, corrupt
    /// one that is not a part of the same model.
    explicit GgufFile(const std::string& path, ForeignTensors foreign = ForeignTensors::refuse);

    /// The file; of a model in parts the first.
    const MappedFile& file() const { return *files_[0]; }
    /// All files, by FileTensor::part.
    const std::vector<std::unique_ptr<MappedFile>>& files() const { return files_; }
    const std::string& path_of(const FileTensor& tensor) const {
        return files_[static_cast<size_t>(tensor.part)]->path();
    }
    /// Of all files.
    size_t bytes() const;
    /// Drops the resident pages of all files (see MappedFile::release).
    void release() const;
    uint32_t version() const { return version_; }
    const std::map<std::string_view, GgufValue>& metadata() const { return metadata_; }
    const std::vector<FileTensor>& tensors() const { return tensors_; }
    /// In the files' order; find_tensor does not see them.
    const std::vector<ForeignTensor>& foreign_tensors() const { return foreign_; }

    /// Null if absent.
    const GgufValue* find(std::string_view key) const;
    const FileTensor* find_tensor(std::string_view name) const;

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
    struct OnePart {};
    /// One file on its own, whatever it says of parts.
    GgufFile(OnePart, const std::string& path, ForeignTensors foreign);
    void read_metadata(GgufCursor& cursor, uint64_t count);
    void join_parts(const std::string& path, int64_t count, ForeignTensors foreign);
    void check_part(const GgufFile& part, int64_t index, int64_t count) const;
    void take_tensors(GgufFile& part, std::set<std::string_view>& names);

    std::vector<std::unique_ptr<MappedFile>> files_;
    uint32_t version_ = 0;
    std::map<std::string_view, GgufValue> metadata_;
    std::vector<FileTensor> tensors_;
    std::vector<ForeignTensor> foreign_;
    std::map<std::string_view, size_t> tensor_index_;
};

}  // namespace kd
