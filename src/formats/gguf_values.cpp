// What GgufFile offers over its parsed values.
#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "formats/gguf.h"

namespace kd {

namespace {

constexpr std::array<std::string_view, 13> kValueTypeNames = {
    "uint8", "int8",   "uint16", "int16",  "uint32", "int32",  "float32",
    "bool",  "string", "array",  "uint64", "int64",  "float64"};

std::string describe(const GgufValue& value) {
    struct Describe {
        std::string operator()(uint64_t v) const { return fmt::format("the integer {}", v); }
        std::string operator()(int64_t v) const { return fmt::format("the integer {}", v); }
        std::string operator()(double v) const { return fmt::format("the float {}", v); }
        std::string operator()(bool v) const { return fmt::format("the bool {}", v); }
        std::string operator()(std::string_view v) const {
            return fmt::format("the string '{}'", printable(v));
        }
        std::string operator()(const GgufArray& v) const {
            return fmt::format("an array of {} {}", v.count, kValueTypeNames[v.element_type]);
        }
    };
    return std::visit(Describe{}, value);
}

[[noreturn]] void wrong_kind(const GgufFile& gguf, std::string_view key, const GgufValue& value,
                             std::string_view wanted) {
    KD_THROW(corrupt, "{}: metadata '{}': {}, not {}", gguf.file().path(), printable(key),
             describe(value), wanted);
}

const GgufValue& required(const GgufFile& gguf, std::string_view key) {
    const GgufValue* value = gguf.find(key);
    if (value == nullptr) {
        KD_THROW(corrupt, "{}: metadata '{}': missing", gguf.file().path(), printable(key));
    }
    return *value;
}

template <class T>
const T& required_as(const GgufFile& gguf, std::string_view key, std::string_view wanted) {
    const GgufValue& value = required(gguf, key);
    const T* typed = std::get_if<T>(&value);
    if (typed == nullptr) wrong_kind(gguf, key, value, wanted);
    return *typed;
}

template <class T>
void append_widened(const GgufFile& gguf, std::string_view key, const GgufArray& array,
                    std::vector<int64_t>& out) {
    for (uint64_t i = 0; i < array.count; ++i) {
        T value;
        std::memcpy(&value, array.data + i * sizeof value, sizeof value);
        if (!std::in_range<int64_t>(value)) {
            KD_THROW(corrupt, "{}: metadata '{}': element {} is {}, beyond 2^63 - 1",
                     gguf.file().path(), printable(key), i, value);
        }
        out.push_back(static_cast<int64_t>(value));
    }
}

}  // namespace

size_t GgufFile::bytes() const {
    size_t bytes = 0;
    for (const auto& file : files_) bytes += file->bytes();
    return bytes;
}

void GgufFile::release() const {
    for (const auto& file : files_) file->release(file->data(), file->bytes());
}

const GgufValue* GgufFile::find(std::string_view key) const {
    const auto found = metadata_.find(key);
    return found == metadata_.end() ? nullptr : &found->second;
}

const FileTensor* GgufFile::find_tensor(std::string_view name) const {
    const auto found = tensor_index_.find(name);
    return found == tensor_index_.end() ? nullptr : &tensors_[found->second];
}

int64_t GgufFile::integer(std::string_view key, int64_t min, int64_t max) const {
    const GgufValue& value = required(*this, key);
    const auto in_range = [&](auto v) {
        if (std::cmp_less(v, min) || std::cmp_greater(v, max)) {
            KD_THROW(corrupt, "{}: metadata '{}': {} is not in [{}, {}]", file().path(),
                     printable(key), v, min, max);
        }
        return static_cast<int64_t>(v);
    };
    if (const auto* v = std::get_if<uint64_t>(&value)) return in_range(*v);
    if (const auto* v = std::get_if<int64_t>(&value)) return in_range(*v);
    wrong_kind(*this, key, value, "an integer");
}

double GgufFile::number(std::string_view key, double min, double max) const {
    const double value = required_as<double>(*this, key, "a float");
    if (!(value >= min && value <= max)) {  // so written, NaN fails
        KD_THROW(corrupt, "{}: metadata '{}': {} is not in [{}, {}]", file().path(), printable(key),
                 value, min, max);
    }
    return value;
}

std::string_view GgufFile::string(std::string_view key) const {
    return required_as<std::string_view>(*this, key, "a string");
}

const std::vector<std::string_view>& GgufFile::strings(std::string_view key) const {
    const auto& array = required_as<GgufArray>(*this, key, "an array of strings");
    if (array.element_type != static_cast<uint32_t>(GgufValueType::string)) {
        wrong_kind(*this, key, *find(key), "an array of strings");
    }
    return array.strings;
}

std::vector<int64_t> GgufFile::integers(std::string_view key) const {
    const auto& array = required_as<GgufArray>(*this, key, "an array of integers");
    std::vector<int64_t> out;
    out.reserve(array.data == nullptr ? 0 : array.count);
    switch (static_cast<GgufValueType>(array.element_type)) {
        case GgufValueType::u8:
            append_widened<uint8_t>(*this, key, array, out);
            return out;
        case GgufValueType::i8:
            append_widened<int8_t>(*this, key, array, out);
            return out;
        case GgufValueType::u16:
            append_widened<uint16_t>(*this, key, array, out);
            return out;
        case GgufValueType::i16:
            append_widened<int16_t>(*this, key, array, out);
            return out;
        case GgufValueType::u32:
            append_widened<uint32_t>(*this, key, array, out);
            return out;
        case GgufValueType::i32:
            append_widened<int32_t>(*this, key, array, out);
            return out;
        case GgufValueType::u64:
            append_widened<uint64_t>(*this, key, array, out);
            return out;
        case GgufValueType::i64:
            append_widened<int64_t>(*this, key, array, out);
            return out;
        default:
            wrong_kind(*this, key, *find(key), "an array of integers");
    }
}

std::vector<float> GgufFile::floats(std::string_view key) const {
    const auto& array = required_as<GgufArray>(*this, key, "an array of float32");
    if (array.element_type != static_cast<uint32_t>(GgufValueType::f32)) {
        wrong_kind(*this, key, *find(key), "an array of float32");
    }
    std::vector<float> out(array.count);
    if (!out.empty()) std::memcpy(out.data(), array.data, out.size() * sizeof(float));
    return out;
}

int64_t GgufFile::integer_or(std::string_view key, int64_t fallback, int64_t min,
                             int64_t max) const {
    return find(key) == nullptr ? fallback : integer(key, min, max);
}

double GgufFile::number_or(std::string_view key, double fallback, double min, double max) const {
    return find(key) == nullptr ? fallback : number(key, min, max);
}

bool GgufFile::boolean_or(std::string_view key, bool fallback) const {
    return find(key) == nullptr ? fallback : required_as<bool>(*this, key, "a bool");
}

std::string_view GgufFile::string_or(std::string_view key, std::string_view fallback) const {
    return find(key) == nullptr ? fallback : string(key);
}

}  // namespace kd
