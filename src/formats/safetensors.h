// safetensors files, memory-mapped: 8 bytes of header length (little-endian), a header in JSON, the
// tensors' bytes. Every file is hostile: sizes are checked before they are used, nothing is
// allocated that the file's own size does not justify, and each refusal is one line that names the
// file and the field. Format: https://github.com/huggingface/safetensors.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "formats/mapped_file.h"

namespace kd {

/// The format's element types of whole bytes.
enum class SafetensorsType : uint8_t {
    boolean,
    u8,
    i8,
    f8_e5m2,
    f8_e4m3,
    f8_e8m0,
    i16,
    u16,
    f16,
    bf16,
    i32,
    u32,
    f32,
    i64,
    u64,
    f64,
    c64
};

/// As the header writes it, such as "BF16".
std::string_view name_of(SafetensorsType type);
int64_t element_bytes(SafetensorsType type);
/// None: nothing computes with this type.
std::optional<DType> dtype_of(SafetensorsType type);

struct SafetensorsEntry {
    std::string_view name;
    SafetensorsType type = SafetensorsType::f32;
    std::vector<int64_t> shape;  // row-major: the last one is contiguous; empty: one element
    /// Inside the mapping, at any address: the format does not align tensors to their elements.
    const std::byte* data = nullptr;
    int64_t bytes = 0;
};

class SafetensorsFile {
  public:
    /// Throws kd::Error: corrupt for a file that contradicts the format (the tensors have to cover
    /// the data, without overlaps or holes), unsupported for an element type that is not one of
    /// SafetensorsType's; what MappedFile throws.
    explicit SafetensorsFile(const std::string& path);

    const MappedFile& file() const { return *file_; }
    /// In the order of their data.
    const std::vector<SafetensorsEntry>& entries() const { return entries_; }
    /// Null if absent.
    const SafetensorsEntry* find(std::string_view name) const;
    /// The header's __metadata__.
    const std::map<std::string, std::string>& metadata() const { return metadata_; }

  private:
    void read_header(std::string_view header, std::string_view data);
    void check_coverage(const std::byte* begin, const std::byte* end) const;
    void index_names();

    std::unique_ptr<MappedFile> file_;
    std::deque<std::string> unescaped_;  // names that are not written as they are
    std::vector<SafetensorsEntry> entries_;
    std::vector<size_t> by_name_;  // indices of entries, their names ascending
    std::map<std::string, std::string> metadata_;
};

}  // namespace kd
