// Models split into several GGUF files, as llama.cpp's gguf-split writes them.
#include <bit>
#include <cstring>
#include <limits>
#include <set>
#include <utility>

#include "base/error.h"
#include "formats/gguf.h"

namespace kd {

namespace {

constexpr int64_t kMaxParts = 65535;  // split.count has 16 bits
constexpr int64_t kMaxTensors = std::numeric_limits<int64_t>::max();

/// What the name of part `index` (from 0) ends in.
std::string part_suffix(int64_t index, int64_t count) {
    return fmt::format("-{:05}-of-{:05}.gguf", index + 1, count);
}

bool same_value(const GgufValue& a, const GgufValue& b) {
    const auto* x = std::get_if<GgufArray>(&a);
    const auto* y = std::get_if<GgufArray>(&b);
    if (x != nullptr && y != nullptr) {
        return x->element_type == y->element_type && x->count == y->count &&
               x->strings == y->strings && x->bytes == y->bytes &&
               (x->bytes == 0 || std::memcmp(x->data, y->data, x->bytes) == 0);
    }
    if (x != nullptr || y != nullptr || a.index() != b.index()) return false;
    if (const auto* number = std::get_if<double>(&a)) {  // a NaN is the same as itself
        return std::bit_cast<uint64_t>(*number) == std::bit_cast<uint64_t>(std::get<double>(b));
    }
    if (std::holds_alternative<uint64_t>(a)) return std::get<uint64_t>(a) == std::get<uint64_t>(b);
    if (std::holds_alternative<int64_t>(a)) return std::get<int64_t>(a) == std::get<int64_t>(b);
    if (std::holds_alternative<bool>(a)) return std::get<bool>(a) == std::get<bool>(b);
    return std::get<std::string_view>(a) == std::get<std::string_view>(b);
}

}  // namespace

GgufFile::GgufFile(const std::string& path, ForeignTensors foreign)
    : GgufFile(OnePart{}, path, foreign) {
    const int64_t count = integer_or("split.count", 1, 0, kMaxParts);
    if (count > 1) join_parts(path, count, foreign);
}

void GgufFile::join_parts(const std::string& path, int64_t count, ForeignTensors foreign) {
    const int64_t own = integer("split.no", 0, count - 1);
    const std::string suffix = part_suffix(own, count);
    if (!path.ends_with(suffix)) {
        KD_THROW(corrupt, "{}: metadata 'split.no': is {} of {}, but the name does not end in '{}'",
                 path, own, count, suffix);
    }
    const std::string prefix = path.substr(0, path.size() - suffix.size());
    // This object becomes the first part; the one it was read from may be any.
    GgufFile given = std::move(*this);
    const auto read = [&](int64_t i) {
        if (i == own) return std::move(given);
        const std::string part_path = prefix + part_suffix(i, count);
        try {
            return GgufFile(OnePart{}, part_path, foreign);
        } catch (const Error& error) {
            if (error.code != ErrorCode::not_found) throw;
            KD_THROW(not_found, "{}: no such file, part {} of {}", part_path, i + 1, count);
        }
    };
    *this = read(0);
    check_part(*this, 0, count);
    std::set<std::string_view> names;
    for (const FileTensor& tensor : tensors_) names.insert(tensor.name);
    for (const ForeignTensor& tensor : foreign_) names.insert(tensor.name);
    for (int64_t i = 1; i < count; ++i) {
        GgufFile part = read(i);
        check_part(part, i, count);
        take_tensors(part, names);
    }
    const int64_t tensors = integer("split.tensors.count", 0, kMaxTensors);
    if (std::cmp_not_equal(tensors, tensors_.size() + foreign_.size())) {
        KD_THROW(corrupt,
                 "{}: metadata 'split.tensors.count': {}, but the {} parts have {} tensors",
                 file().path(), tensors, count, tensors_.size() + foreign_.size());
    }
}

/// `part` shall be number `index` of the model whose first part this is.
void GgufFile::check_part(const GgufFile& part, int64_t index, int64_t count) const {
    const std::string& path = part.file().path();
    const auto expect = [&](std::string_view key, int64_t expected) {
        const int64_t value = part.integer(key, 0, kMaxTensors);
        if (value != expected) {
            KD_THROW(corrupt, "{}: metadata '{}': {}, not {} as of part {} of {}", path, key, value,
                     expected, index + 1, count);
        }
    };
    expect("split.no", index);
    expect("split.count", count);
    for (const auto& [key, value] : part.metadata_) {
        // Every file is laid out by an alignment of its own.
        if (key == "split.no" || key == "general.alignment") continue;
        const GgufValue* first = find(key);
        if (first != nullptr && !same_value(value, *first)) {
            KD_THROW(corrupt, "{}: metadata '{}': is not that of {}: a part of another model", path,
                     printable(key), file().path());
        }
    }
}

/// `names`: of all tensors so far.
void GgufFile::take_tensors(GgufFile& part, std::set<std::string_view>& names) {
    const auto index = static_cast<int32_t>(files_.size());
    const auto take = [&](auto& tensor, auto& tensors) {
        if (!names.insert(tensor.name).second) {
            KD_THROW(corrupt, "{}: tensor '{}': occurs in a part before, too", part.file().path(),
                     printable(tensor.name));
        }
        tensor.part = index;
        tensors.push_back(std::move(tensor));
    };
    for (FileTensor& tensor : part.tensors_) {
        tensor_index_.emplace(tensor.name, tensors_.size());
        take(tensor, tensors_);
    }
    for (ForeignTensor& tensor : part.foreign_) take(tensor, foreign_);
    files_.push_back(std::move(part.files_[0]));
}

}  // namespace kd
