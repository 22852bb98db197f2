#include "formats/gguf.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "base/error.h"

namespace kd {

/// Walks the header; every read is checked against the end of the file.
class GgufCursor {
  public:
    explicit GgufCursor(const MappedFile& file) : file_(file) {}

    const std::string& path() const { return file_.path(); }
    uint64_t position() const { return position_; }
    uint64_t remaining() const { return file_.bytes() - position_; }

    const std::byte* take(uint64_t bytes, std::string_view field) {
        if (bytes > remaining()) {
            KD_THROW(corrupt, "{}: {}: {} bytes at offset {}, but the file ends after {}", path(),
                     field, bytes, position_, remaining());
        }
        const std::byte* data = file_.data() + position_;
        position_ += bytes;
        return data;
    }

    template <class T>
    T read(std::string_view field) {
        T value;
        std::memcpy(&value, take(sizeof value, field), sizeof value);
        return value;
    }

    std::string_view read_string(std::string_view field) {
        const uint64_t bytes = read<uint64_t>(field);
        return {reinterpret_cast<const char*>(take(bytes, field)), bytes};
    }

    /// Refuses a count of things that take at least `least_bytes` each.
    void check_count(uint64_t count, uint64_t least_bytes, std::string_view field) const {
        if (count > remaining() / least_bytes) {
            KD_THROW(corrupt, "{}: {}: {} is more than the {} bytes left in the file can hold",
                     path(), field, count, remaining());
        }
    }

  private:
    const MappedFile& file_;
    uint64_t position_ = 0;
};

namespace {

static_assert(std::endian::native == std::endian::little, "GGUF is read in place, little-endian");

constexpr uint64_t kMaxSize = std::numeric_limits<int64_t>::max();
constexpr int64_t kDefaultAlignment = 32;
constexpr int64_t kMinAlignment = 8;  // the format wants a multiple of 8
constexpr int64_t kMaxAlignment = 65536;
constexpr uint32_t kMaxDims = 4;
constexpr uint64_t kMaxKeyBytes = 65535;
// The shortest encodings: a key of one byte with a one-byte value; a name of one byte with one
// dimension. They bound the counts by what the file can hold.
constexpr uint64_t kMinMetadataBytes = 8 + 1 + 4 + 1;
constexpr uint64_t kMinTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;

/// Bytes of one number; 0 for strings, arrays and unknown codes.
uint64_t number_bytes(uint32_t type) {
    switch (static_cast<GgufValueType>(type)) {
        case GgufValueType::u8:
        case GgufValueType::i8:
        case GgufValueType::boolean:
            return 1;
        case GgufValueType::u16:
        case GgufValueType::i16:
            return 2;
        case GgufValueType::u32:
        case GgufValueType::i32:
        case GgufValueType::f32:
            return 4;
        case GgufValueType::u64:
        case GgufValueType::i64:
        case GgufValueType::f64:
            return 8;
        case GgufValueType::string:
        case GgufValueType::array:
            return 0;
    }
    return 0;
}

/// A tensor type of ggml's: elements and bytes of a block; 0 where that is not known here (types
/// that ggml gave up, and too new ones).
struct TensorType {
    std::string_view name;
    int64_t elements = 0;
    int64_t bytes = 0;
};

// By ggml's type code.
constexpr std::array<TensorType, 42> kTensorTypes = {{
    {"F32", 1, 4},
    {"F16", 1, 2},
    {"Q4_0", 32, 18},
    {"Q4_1", 32, 20},
    {"Q4_2"},
    {"Q4_3"},
    {"Q5_0", 32, 22},
    {"Q5_1", 32, 24},
    {"Q8_0", 32, 34},
    {"Q8_1", 32, 36},
    {"Q2_K", 256, 84},
    {"Q3_K", 256, 110},
    {"Q4_K", 256, 144},
    {"Q5_K", 256, 176},
    {"Q6_K", 256, 210},
    {"Q8_K", 256, 292},
    {"IQ2_XXS", 256, 66},
    {"IQ2_XS", 256, 74},
    {"IQ3_XXS", 256, 98},
    {"IQ1_S", 256, 50},
    {"IQ4_NL", 32, 18},
    {"IQ3_S", 256, 110},
    {"IQ2_S", 256, 82},
    {"IQ4_XS", 256, 136},
    {"I8", 1, 1},
    {"I16", 1, 2},
    {"I32", 1, 4},
    {"I64", 1, 8},
    {"F64", 1, 8},
    {"IQ1_M", 256, 56},
    {"BF16", 1, 2},
    {"Q4_0_4_4", 32, 18},
    {"Q4_0_4_8", 32, 18},
    {"Q4_0_8_8", 32, 18},
    {"TQ1_0", 256, 54},
    {"TQ2_0", 256, 66},
    {"IQ4_NL_4_4", 32, 18},
    {"IQ4_NL_4_8", 32, 18},
    {"IQ4_NL_8_8", 32, 18},
    {"MXFP4", 32, 17},
    {"NVFP4", 64, 36},
    {"Q1_0"},
}};

std::string tensor_type_name(uint32_t code) {
    return code < kTensorTypes.size() ? std::string(kTensorTypes[code].name)
                                      : fmt::format("{}", code);
}

std::optional<DType> dtype_of(uint32_t tensor_type) {
    switch (tensor_type) {
        case 0:
            return DType::f32;
        case 1:
            return DType::f16;
        case 2:
            return DType::q4_0;
        case 3:
            return DType::q4_1;
        case 6:
            return DType::q5_0;
        case 7:
            return DType::q5_1;
        case 8:
            return DType::q8_0;
        case 12:
            return DType::q4_k;
        case 13:
            return DType::q5_k;
        case 14:
            return DType::q6_k;
        case 20:
            return DType::iq4_nl;
        case 30:
            return DType::bf16;
        default:
            return std::nullopt;
    }
}

/// a * b + c, or nothing beyond 2^63 - 1. Every size that a file's numbers make goes through here.
std::optional<uint64_t> checked_size(uint64_t a, uint64_t b, uint64_t c = 0) {
    uint64_t product = 0;
    uint64_t sum = 0;
    if (__builtin_mul_overflow(a, b, &product) || __builtin_add_overflow(product, c, &sum) ||
        sum > kMaxSize) {
        return std::nullopt;
    }
    return sum;
}

void check_bools(const GgufCursor& cursor, std::span<const std::byte> bytes,
                 std::string_view field) {
    for (const std::byte byte : bytes) {
        if (byte > std::byte{1}) {
            KD_THROW(corrupt, "{}: {}: bool byte {} is neither 0 nor 1", cursor.path(), field,
                     std::to_integer<int>(byte));
        }
    }
}

GgufArray read_array(GgufCursor& cursor, std::string_view field) {
    GgufArray array;
    array.element_type = cursor.read<uint32_t>(field);
    const uint64_t count = cursor.read<uint64_t>(field);
    array.count = count;
    if (array.element_type == static_cast<uint32_t>(GgufValueType::array)) {
        KD_THROW(unsupported, "{}: {}: arrays of arrays are not supported", cursor.path(), field);
    }
    if (array.element_type == static_cast<uint32_t>(GgufValueType::string)) {
        cursor.check_count(count, sizeof(uint64_t), field);
        array.strings.reserve(count);
        for (uint64_t i = 0; i < count; ++i) array.strings.push_back(cursor.read_string(field));
        return array;
    }
    const uint64_t element_bytes = number_bytes(array.element_type);
    if (element_bytes == 0) {
        KD_THROW(corrupt, "{}: {}: unknown array element type {}", cursor.path(), field,
                 array.element_type);
    }
    cursor.check_count(count, element_bytes, field);
    array.bytes = count * element_bytes;
    array.data = cursor.take(array.bytes, field);
    if (array.element_type == static_cast<uint32_t>(GgufValueType::boolean)) {
        check_bools(cursor, {array.data, count}, field);
    }
    return array;
}

GgufValue read_value(GgufCursor& cursor, std::string_view field) {
    const uint32_t type = cursor.read<uint32_t>(field);
    switch (static_cast<GgufValueType>(type)) {
        case GgufValueType::u8:
            return uint64_t{cursor.read<uint8_t>(field)};
        case GgufValueType::i8:
            return int64_t{cursor.read<int8_t>(field)};
        case GgufValueType::u16:
            return uint64_t{cursor.read<uint16_t>(field)};
        case GgufValueType::i16:
            return int64_t{cursor.read<int16_t>(field)};
        case GgufValueType::u32:
            return uint64_t{cursor.read<uint32_t>(field)};
        case GgufValueType::i32:
            return int64_t{cursor.read<int32_t>(field)};
        case GgufValueType::f32:
            return double{cursor.read<float>(field)};
        case GgufValueType::boolean: {
            const std::byte* byte = cursor.take(1, field);
            check_bools(cursor, {byte, 1}, field);
            return *byte == std::byte{1};
        }
        case GgufValueType::string:
            return cursor.read_string(field);
        case GgufValueType::array:
            return read_array(cursor, field);
        case GgufValueType::u64:
            return cursor.read<uint64_t>(field);
        case GgufValueType::i64:
            return cursor.read<int64_t>(field);
        case GgufValueType::f64:
            return cursor.read<double>(field);
    }
    KD_THROW(corrupt, "{}: {}: unknown value type {}", cursor.path(), field, type);
}

uint32_t read_version(GgufCursor& cursor) {
    const std::byte* magic = cursor.take(4, "magic");
    if (std::memcmp(magic, "GGUF", 4) != 0) {
        KD_THROW(corrupt, "{}: magic: not a GGUF file: it starts with '{}'", cursor.path(),
                 printable({reinterpret_cast<const char*>(magic), 4}));
    }
    const uint32_t version = cursor.read<uint32_t>("version");
    if (version == 2 || version == 3) return version;
    if (version != 0 && (version & 0xffffu) == 0) {
        KD_THROW(unsupported, "{}: version: {:#010x}: big-endian files are not supported",
                 cursor.path(), version);
    }
    KD_THROW(unsupported, "{}: version: {} is not supported (2 and 3 are)", cursor.path(), version);
}

/// A tensor's entry; `offset` counts from the start of the tensor data.
struct TensorEntry {
    FileTensor tensor;  // of a foreign type: 0 bytes where they are not known
    uint64_t offset = 0;
    uint32_t code = 0;  // ggml's
    bool foreign = false;
};

/// Sets the entry's type and bytes.
void read_tensor_type(GgufCursor& cursor, std::string_view field, uint64_t elements,
                      ForeignTensors foreign, TensorEntry& entry) {
    FileTensor& tensor = entry.tensor;
    entry.code = cursor.read<uint32_t>(field);
    const std::string name = tensor_type_name(entry.code);
    TensorType type;
    if (const std::optional<DType> dtype = dtype_of(entry.code)) {
        tensor.type = *dtype;
        type = {.elements = block_elements(*dtype), .bytes = block_bytes(*dtype)};
    } else if (foreign == ForeignTensors::list) {
        entry.foreign = true;
        if (entry.code < kTensorTypes.size()) type = kTensorTypes[entry.code];
        if (type.elements == 0) return;
    } else {
        KD_THROW(unsupported,
                 "{}: {}: type {} is not supported (F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, "
                 "IQ4_NL, Q4_K, Q5_K and Q6_K are)",
                 cursor.path(), field, name);
    }
    if (tensor.columns() % type.elements != 0) {
        KD_THROW(corrupt, "{}: {}: {} columns are not a multiple of {}'s block of {}",
                 cursor.path(), field, tensor.columns(), name, type.elements);
    }
    const std::optional<uint64_t> bytes = checked_size(
        elements / static_cast<uint64_t>(type.elements), static_cast<uint64_t>(type.bytes));
    if (!bytes) KD_THROW(corrupt, "{}: {}: too many bytes", cursor.path(), field);
    tensor.bytes = static_cast<int64_t>(*bytes);
}

TensorEntry read_tensor_entry(GgufCursor& cursor, uint64_t index, ForeignTensors foreign) {
    TensorEntry entry;
    FileTensor& tensor = entry.tensor;
    tensor.name = cursor.read_string(fmt::format("name of tensor {}", index));
    if (tensor.name.empty())
        KD_THROW(corrupt, "{}: name of tensor {}: empty", cursor.path(), index);
    const std::string field = fmt::format("tensor '{}'", printable(tensor.name));

    const uint32_t dims = cursor.read<uint32_t>(field);
    if (dims == 0 || dims > kMaxDims) {
        KD_THROW(corrupt, "{}: {}: {} dimensions, not 1 to {}", cursor.path(), field, dims,
                 kMaxDims);
    }
    uint64_t elements = 1;
    for (uint32_t d = 0; d < dims; ++d) {
        const uint64_t dim = cursor.read<uint64_t>(field);
        const std::optional<uint64_t> product = checked_size(elements, dim);
        if (dim == 0 || !product) {
            KD_THROW(corrupt, "{}: {}: dimension {} is {}{}", cursor.path(), field, d, dim,
                     dim == 0 ? "" : ": too many elements");
        }
        elements = *product;
        tensor.dims.push_back(static_cast<int64_t>(dim));
    }
    read_tensor_type(cursor, field, elements, foreign, entry);
    entry.offset = cursor.read<uint64_t>(field);
    return entry;
}

/// Points the tensor at its data, which starts at file offset data_begin + offset.
void place_tensor(TensorEntry& entry, const MappedFile& file, uint64_t data_begin,
                  uint64_t alignment) {
    FileTensor& tensor = entry.tensor;
    if (entry.offset % alignment != 0) {
        KD_THROW(corrupt, "{}: tensor '{}': offset {} is not a multiple of the alignment {}",
                 file.path(), printable(tensor.name), entry.offset, alignment);
    }
    const std::optional<uint64_t> begin = checked_size(entry.offset, 1, data_begin);
    const std::optional<uint64_t> end =
        begin ? checked_size(*begin, 1, static_cast<uint64_t>(tensor.bytes)) : std::nullopt;
    if (!end || *end > file.bytes()) {
        KD_THROW(corrupt,
                 "{}: tensor '{}': {} bytes at offset {} of the data, which starts at {}, exceed "
                 "the file's {} bytes",
                 file.path(), printable(tensor.name), tensor.bytes, entry.offset, data_begin,
                 file.bytes());
    }
    tensor.data = file.data() + *begin;
    tensor.file_offset = *begin;
}

void check_no_overlap(const std::vector<TensorEntry>& entries, const MappedFile& file) {
    std::vector<const FileTensor*> by_place;
    by_place.reserve(entries.size());
    for (const TensorEntry& entry : entries) {
        if (entry.tensor.bytes > 0) by_place.push_back(&entry.tensor);
    }
    std::sort(by_place.begin(), by_place.end(),
              [](const FileTensor* a, const FileTensor* b) { return a->data < b->data; });
    for (size_t i = 1; i < by_place.size(); ++i) {
        const FileTensor& before = *by_place[i - 1];
        if (before.data + before.bytes > by_place[i]->data) {
            KD_THROW(corrupt, "{}: tensor '{}': its data overlaps that of tensor '{}'", file.path(),
                     printable(by_place[i]->name), printable(before.name));
        }
    }
}

ForeignTensor foreign_tensor(const TensorEntry& entry) {
    const FileTensor& tensor = entry.tensor;
    ForeignTensor out = {.name = tensor.name,
                         .type = tensor_type_name(entry.code),
                         .dims = tensor.dims,
                         .file_offset = tensor.file_offset,
                         .bytes = std::nullopt};
    if (tensor.bytes > 0) out.bytes = tensor.bytes;
    return out;
}

}  // namespace

void GgufFile::read_metadata(GgufCursor& cursor, uint64_t count) {
    cursor.check_count(count, kMinMetadataBytes, "metadata count");
    for (uint64_t i = 0; i < count; ++i) {
        const std::string_view key = cursor.read_string(fmt::format("key of metadata {}", i));
        if (key.empty() || key.size() > kMaxKeyBytes) {
            KD_THROW(corrupt, "{}: key of metadata {}: {} bytes, not 1 to {}", cursor.path(), i,
                     key.size(), kMaxKeyBytes);
        }
        const std::string field = fmt::format("metadata '{}'", printable(key));
        if (!metadata_.emplace(key, read_value(cursor, field)).second) {
            KD_THROW(corrupt, "{}: {}: occurs twice", cursor.path(), field);
        }
    }
}

GgufFile::GgufFile(OnePart, const std::string& path, ForeignTensors foreign) {
    files_.push_back(std::make_unique<MappedFile>(path));
    GgufCursor cursor(file());
    version_ = read_version(cursor);
    const uint64_t tensor_count = cursor.read<uint64_t>("tensor count");
    const uint64_t metadata_count = cursor.read<uint64_t>("metadata count");
    read_metadata(cursor, metadata_count);
    const int64_t alignment =
        integer_or("general.alignment", kDefaultAlignment, kMinAlignment, kMaxAlignment);
    if (!std::has_single_bit(static_cast<uint64_t>(alignment))) {
        KD_THROW(corrupt, "{}: metadata 'general.alignment': {} is not a power of two", path,
                 alignment);
    }

    cursor.check_count(tensor_count, kMinTensorBytes, "tensor count");
    std::vector<TensorEntry> entries;
    entries.reserve(tensor_count);
    for (uint64_t i = 0; i < tensor_count; ++i) {
        entries.push_back(read_tensor_entry(cursor, i, foreign));
    }

    const uint64_t unit = static_cast<uint64_t>(alignment);
    const uint64_t data_begin = (cursor.position() + unit - 1) / unit * unit;
    std::set<std::string_view> names;
    for (TensorEntry& entry : entries) {
        place_tensor(entry, file(), data_begin, unit);
        if (!names.insert(entry.tensor.name).second) {
            KD_THROW(corrupt, "{}: tensor '{}': occurs twice", path, printable(entry.tensor.name));
        }
    }
    check_no_overlap(entries, file());
    tensors_.reserve(entries.size());
    for (TensorEntry& entry : entries) {
        FileTensor& tensor = entry.tensor;
        if (entry.foreign) {
            foreign_.push_back(foreign_tensor(entry));
        } else {
            tensor_index_.emplace(tensor.name, tensors_.size());
            tensors_.push_back(std::move(tensor));
        }
    }
}

}  // namespace kd
