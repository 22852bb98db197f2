// Writes GGUF files for tests: correct ones, and ones that lie in a chosen place.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/check.h"
#include "base/dtype.h"
#include "formats/gguf.h"

namespace kd {

/// ggml's code of a tensor type; for one that GGUF has not: a code of none.
uint32_t ggml_type(DType type);

/// `weights` (a multiple of the block) in the layout of `type`; the inverse of dequantise up to the
/// rounding of the type. F8_E4M3 and INT4 are those before scales beside the matrix: up to 448, and
/// -8 to 7.
std::string quantise(DType type, std::span<const float> weights);

/// The code under which GGUF stores a number of type T.
template <class T>
constexpr GgufValueType gguf_value_type() {
    static_assert(std::is_arithmetic_v<T>);
    if constexpr (std::is_same_v<T, bool>) return GgufValueType::boolean;
    if constexpr (std::is_same_v<T, float>) return GgufValueType::f32;
    if constexpr (std::is_same_v<T, double>) return GgufValueType::f64;
    constexpr bool kSigned = std::is_signed_v<T>;
    if constexpr (sizeof(T) == 1) return kSigned ? GgufValueType::i8 : GgufValueType::u8;
    if constexpr (sizeof(T) == 2) return kSigned ? GgufValueType::i16 : GgufValueType::u16;
    if constexpr (sizeof(T) == 4) return kSigned ? GgufValueType::i32 : GgufValueType::u32;
    return kSigned ? GgufValueType::i64 : GgufValueType::u64;
}

/// The bytes of a number, little-endian.
template <class T>
std::string raw_bytes(T value) {
    return {reinterpret_cast<const char*>(&value), sizeof value};
}

/// The length and the bytes, as GGUF stores a string.
std::string raw_string(std::string_view text);

class GgufWriter {
  public:
    /// A tensor entry as it shall stand in the file, sensible or not.
    struct Tensor {
        std::string name;
        std::vector<uint64_t> dims;  // dims[0] is the contiguous one
        uint32_t type = 0;           // ggml's code
        std::string data;
        std::optional<uint64_t> offset;  // in the data section; none: behind the tensor before it
    };

    // Header fields; the counts are the true ones unless set.
    std::string magic = "GGUF";
    uint32_t version = 3;
    uint64_t alignment = 32;  // of the layout; setting the metadata key is the caller's business
    std::optional<uint64_t> metadata_count;
    std::optional<uint64_t> tensor_count;

    /// Adds a number or bool under the type code of T. Keys are not checked: adding one twice
    /// writes it twice.
    template <class T>
    void set(std::string_view key, T value) {
        set_raw(key, static_cast<uint32_t>(gguf_value_type<T>()), raw_bytes(value));
    }
    /// Gives a number that was set another value, of the same type.
    template <class T>
    void change(std::string_view key, T value) {
        const std::string entry =
            raw_string(key) + raw_bytes(static_cast<uint32_t>(gguf_value_type<T>()));
        const size_t at = metadata_.find(entry);
        KD_CHECK(at != std::string::npos, "{} was not set", key);
        metadata_.replace(at + entry.size(), sizeof value, raw_bytes(value));
    }
    void set_string(std::string_view key, std::string_view value);
    template <class T>
    void set_array(std::string_view key, const std::vector<T>& values) {
        std::string packed;
        for (const T value : values) packed += raw_bytes(value);
        set_raw_array(key, static_cast<uint32_t>(gguf_value_type<T>()), values.size(), packed);
    }
    void set_strings(std::string_view key, const std::vector<std::string>& values);
    /// A value of the given type code and bytes, whatever they are.
    void set_raw(std::string_view key, uint32_t type, std::string_view value);
    void set_raw_array(std::string_view key, uint32_t element_type, uint64_t count,
                       std::string_view elements);

    void add_tensor(Tensor tensor) { tensors_.push_back(std::move(tensor)); }
    /// Quantises rows * columns `weights`; dims {columns} if `rows` is 0.
    void add_tensor(std::string_view name, DType type, uint64_t rows, uint64_t columns,
                    std::span<const float> weights);

    /// The tensor of this name, to be changed before it is written. Throws std::out_of_range.
    Tensor& tensor(std::string_view name);

    /// Bytes before the tensor data's padding: everything that is parsed.
    uint64_t header_bytes() const { return header().size(); }
    /// The whole file.
    std::string bytes() const;
    void write(const std::string& path) const;

  private:
    std::string header() const;

    std::string metadata_;
    uint64_t metadata_entries_ = 0;
    std::vector<Tensor> tensors_;
};

/// Replaces the file `path`. Throws kd::Error{io}.
void write_test_file(const std::string& path, std::string_view bytes);

/// A path in the temporary folder that no other test or process uses; the file there is removed
/// with it.
class TempPath {
  public:
    explicit TempPath(std::string_view suffix = ".gguf");
    ~TempPath();
    TempPath(const TempPath&) = delete;
    TempPath& operator=(const TempPath&) = delete;

    const std::string& path() const { return path_; }

  private:
    std::string path_;
};

}  // namespace kd
