#include "formats/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <optional>
#include <utility>

#include "base/error.h"
#include "formats/safetensors_header.h"

namespace kd {

namespace {

static_assert(std::endian::native == std::endian::little, "safetensors are read in place");

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the reference implementation's limit
constexpr size_t kMaxDims = 64;

struct TypeEntry {
    std::string_view name;
    int64_t bytes;
};

// By SafetensorsType.
constexpr std::array<TypeEntry, 17> kTypes = {{{"BOOL", 1},
                                               {"U8", 1},
                                               {"I8", 1},
                                               {"F8_E5M2", 1},
                                               {"F8_E4M3", 1},
                                               {"F8_E8M0", 1},
                                               {"I16", 2},
                                               {"U16", 2},
                                               {"F16", 2},
                                               {"BF16", 2},
                                               {"I32", 4},
                                               {"U32", 4},
                                               {"F32", 4},
                                               {"I64", 8},
                                               {"U64", 8},
                                               {"F64", 8},
                                               {"C64", 8}}};
static_assert(kTypes.size() == static_cast<size_t>(SafetensorsType::c64) + 1);

/// One tensor's object. Its place in the data is not yet checked.
class EntryReader {
  public:
    EntryReader(SafetensorsHeaderReader& reader, const std::string& path)
        : reader_(reader), path_(path) {}

    SafetensorsEntry read(std::string_view name, std::string_view data) {
        entry_.name = name;
        reader_.members("value", [&](std::string_view key) { read_member(key); });
        if (!has_type_ || !has_shape_ || !offsets_) {
            fail("{}: missing", !has_type_ ? "dtype" : !has_shape_ ? "shape" : "data_offsets");
        }
        entry_.bytes = element_bytes(entry_.type);
        // Beside a 0, too: a product of some of them has to be a number.
        bool empty = false;
        for (const int64_t dim : entry_.shape) {
            empty |= dim == 0;
            if (dim != 0 && __builtin_mul_overflow(entry_.bytes, dim, &entry_.bytes)) {
                fail("shape: {}, for one, makes more than 2^63 - 1 bytes", dim);
            }
        }
        if (empty) entry_.bytes = 0;
        const auto [begin, end] = *offsets_;
        if (begin > end || std::cmp_greater(end, data.size())) {
            fail("data_offsets: [{}, {}] are not inside the {} bytes of data", begin, end,
                 data.size());
        }
        if (end - begin != entry_.bytes) {
            fail("data_offsets: [{}, {}] are {} bytes, the shape and {} make {}", begin, end,
                 end - begin, name_of(entry_.type), entry_.bytes);
        }
        entry_.data = reinterpret_cast<const std::byte*>(data.data()) + begin;
        return std::move(entry_);
    }

  private:
    template <class... Values>
    [[noreturn]] void fail(fmt::format_string<Values...> format, Values&&... values) const {
        KD_THROW(corrupt, "{}: {}: {}", path_, reader_.field(),
                 fmt::format(format, std::forward<Values>(values)...));
    }

    void read_member(std::string_view key) {
        if (key == "dtype") {
            if (std::exchange(has_type_, true)) fail("dtype: occurs twice");
            read_type();
        } else if (key == "shape") {
            if (std::exchange(has_shape_, true)) fail("shape: occurs twice");
            reader_.elements("shape", [&] {
                entry_.shape.push_back(reader_.integer("shape"));
                if (entry_.shape.size() > kMaxDims)
                    fail("shape: more than {} dimensions", kMaxDims);
            });
        } else if (key == "data_offsets") {
            if (offsets_) fail("data_offsets: occurs twice");
            std::vector<int64_t> offsets;
            reader_.elements("data_offsets", [&] {
                offsets.push_back(reader_.integer("data_offsets"));
                if (offsets.size() > 2) fail("data_offsets: more than 2");
            });
            if (offsets.size() < 2) fail("data_offsets: {}, not 2", offsets.size());
            offsets_ = std::pair(offsets[0], offsets[1]);
        } else {
            fail("unknown field '{}'", printable(key));
        }
    }

    void read_type() {
        const std::string_view name = reader_.string("dtype");
        const auto* found = std::find_if(kTypes.begin(), kTypes.end(),
                                         [&](const TypeEntry& type) { return type.name == name; });
        if (found == kTypes.end()) {
            std::string known;
            for (const TypeEntry& type : kTypes) known.append(" ").append(type.name);
            KD_THROW(unsupported, "{}: {}: dtype '{}' is not supported (these are:{})", path_,
                     reader_.field(), printable(name), known);
        }
        entry_.type = static_cast<SafetensorsType>(found - kTypes.begin());
    }

    SafetensorsHeaderReader& reader_;
    const std::string& path_;
    SafetensorsEntry entry_;
    bool has_type_ = false;
    bool has_shape_ = false;
    std::optional<std::pair<int64_t, int64_t>> offsets_;
};

}  // namespace

std::string_view name_of(SafetensorsType type) {
    return kTypes[static_cast<size_t>(type)].name;
}

int64_t element_bytes(SafetensorsType type) {
    return kTypes[static_cast<size_t>(type)].bytes;
}

std::optional<DType> dtype_of(SafetensorsType type) {
    switch (type) {
        case SafetensorsType::f32:
            return DType::f32;
        case SafetensorsType::f16:
            return DType::f16;
        case SafetensorsType::bf16:
            return DType::bf16;
        default:
            return std::nullopt;
    }
}

SafetensorsFile::SafetensorsFile(const std::string& path)
    : file_(std::make_unique<MappedFile>(path)) {
    const std::string_view whole(reinterpret_cast<const char*>(file_->data()), file_->bytes());
    uint64_t header_bytes = 0;
    if (whole.size() < sizeof header_bytes) {
        KD_THROW(corrupt, "{}: header length: the file ends after {} bytes", path, whole.size());
    }
    std::memcpy(&header_bytes, whole.data(), sizeof header_bytes);
    const std::string_view rest = whole.substr(sizeof header_bytes);
    if (header_bytes > rest.size()) {
        KD_THROW(corrupt, "{}: header length: {}, but {} bytes follow", path, header_bytes,
                 rest.size());
    }
    if (header_bytes > kMaxHeaderBytes) {
        KD_THROW(corrupt, "{}: header length: {} is more than {}", path, header_bytes,
                 kMaxHeaderBytes);
    }
    const std::string_view header = rest.substr(0, header_bytes);
    if (!header.starts_with('{')) {
        KD_THROW(corrupt, "{}: header: starts with '{}', not with '{{'", path,
                 printable(header.substr(0, 1)));
    }
    const std::string_view data = rest.substr(header_bytes);
    read_header(header, data);
    index_names();
    const auto* begin = reinterpret_cast<const std::byte*>(data.data());
    check_coverage(begin, begin + data.size());
}

void SafetensorsFile::read_header(std::string_view header, std::string_view data) {
    const std::string& path = file_->path();
    SafetensorsHeaderReader reader(header, path, unescaped_);
    bool has_metadata = false;
    reader.members("object", [&](std::string_view name) {
        if (name != "__metadata__") {
            reader.set_context(name);
            entries_.push_back(EntryReader(reader, path).read(name, data));
            reader.set_context({});
            return;
        }
        if (std::exchange(has_metadata, true)) {
            KD_THROW(corrupt, "{}: __metadata__: occurs twice", path);
        }
        reader.members("__metadata__", [&](std::string_view key) {
            const std::string_view value = reader.string("__metadata__");
            if (!metadata_.emplace(key, value).second) {
                KD_THROW(corrupt, "{}: __metadata__: '{}' occurs twice", path, printable(key));
            }
        });
    });
    reader.expect_end();
    std::sort(entries_.begin(), entries_.end(),
              [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
                  return std::pair(a.data, a.bytes) < std::pair(b.data, b.bytes);
              });
}

/// [begin, end): the data. Each tensor begins where the one before it ends.
void SafetensorsFile::check_coverage(const std::byte* begin, const std::byte* end) const {
    const std::byte* next = begin;
    for (size_t i = 0; i < entries_.size(); ++i) {
        const SafetensorsEntry& entry = entries_[i];
        if (entry.data < next) {
            KD_THROW(corrupt, "{}: tensor '{}': its data overlaps that of tensor '{}'",
                     file_->path(), printable(entry.name), printable(entries_[i - 1].name));
        }
        if (entry.data > next) {
            KD_THROW(corrupt, "{}: tensor '{}': {} bytes of data before it belong to no tensor",
                     file_->path(), printable(entry.name), entry.data - next);
        }
        next = entry.data + entry.bytes;
    }
    if (next != end) {
        KD_THROW(corrupt, "{}: data: the last {} bytes belong to no tensor", file_->path(),
                 end - next);
    }
}

void SafetensorsFile::index_names() {
    by_name_.resize(entries_.size());
    for (size_t i = 0; i < by_name_.size(); ++i) by_name_[i] = i;
    std::sort(by_name_.begin(), by_name_.end(),
              [&](size_t a, size_t b) { return entries_[a].name < entries_[b].name; });
    for (size_t i = 1; i < by_name_.size(); ++i) {
        const std::string_view name = entries_[by_name_[i]].name;
        if (name == entries_[by_name_[i - 1]].name) {
            KD_THROW(corrupt, "{}: tensor '{}': occurs twice", file_->path(), printable(name));
        }
    }
}

const SafetensorsEntry* SafetensorsFile::find(std::string_view name) const {
    const auto place = std::lower_bound(
        by_name_.begin(), by_name_.end(), name,
        [&](size_t i, std::string_view wanted) { return entries_[i].name < wanted; });
    if (place == by_name_.end() || entries_[*place].name != name) return nullptr;
    return &entries_[*place];
}

}  // namespace kd
