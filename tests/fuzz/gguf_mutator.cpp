#include "fuzz/gguf_mutator.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>

#include "formats/gguf.h"
#include "support/gguf_writer.h"

namespace kd {

namespace {

/// Follows a header and notes what it meets. Throws nothing: beyond the end all reads give none.
class Walker {
  public:
    explicit Walker(std::string_view file) : file_(file) {}

    GgufFields walk() {
        const bool whole = walk_header();
        if (whole) fields_.header_end = at_;
        return std::move(fields_);
    }

  private:
    std::optional<uint64_t> number(size_t bytes) {
        if (bytes > file_.size() - at_) return std::nullopt;
        fields_.numbers.push_back({at_, bytes});
        uint64_t value = 0;
        std::memcpy(&value, file_.data() + at_, bytes);
        at_ += bytes;
        return value;
    }

    std::optional<std::string_view> string() {
        const size_t length_at = at_;
        const auto length = number(8);
        if (!length || *length > file_.size() - at_) return std::nullopt;
        const std::string_view text = file_.substr(at_, *length);
        fields_.strings.push_back({length_at, text.size()});
        at_ += text.size();
        return text;
    }

    bool skip(uint64_t bytes) {
        if (bytes > file_.size() - at_) return false;
        at_ += bytes;
        return true;
    }

    bool walk_value(std::string_view key) {
        const auto type = number(4);
        if (!type) return false;
        const auto scalar = [&](uint64_t code) -> std::optional<uint64_t> {
            constexpr uint64_t kBytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
            if (code >= std::size(kBytes) || kBytes[code] == 0) return std::nullopt;
            return kBytes[code];
        };
        const auto is = [](uint64_t code, GgufValueType type_code) {
            return code == static_cast<uint64_t>(type_code);
        };
        if (is(*type, GgufValueType::string)) return string().has_value();
        if (!is(*type, GgufValueType::array)) {
            const auto bytes = scalar(*type);
            if (!bytes) return false;
            if (*bytes < 4) return skip(*bytes);
            const auto value = number(*bytes);
            if (value && key == "general.alignment" && *value >= 1 && *value <= 65536) {
                fields_.alignment = *value;
            }
            return value.has_value();
        }
        const auto element = number(4);
        const auto count = number(8);
        if (!element || !count || *count > file_.size()) return false;
        if (!is(*element, GgufValueType::string)) {
            const auto bytes = scalar(*element);
            return bytes && skip(*count * *bytes);
        }
        for (uint64_t i = 0; i < *count; ++i) {
            if (!string()) return false;
        }
        return true;
    }

    bool walk_tensor() {
        if (!string()) return false;
        const auto dims = number(4);
        if (!dims || *dims > 8) return false;
        for (uint64_t i = 0; i < *dims; ++i) {
            if (!number(8)) return false;
        }
        return number(4) && number(8);
    }

    bool walk_header() {
        if (!skip(4) || !number(4)) return false;
        const auto tensors = number(8);
        const auto metadata = number(8);
        if (!tensors || !metadata) return false;
        for (uint64_t i = 0; i < *metadata; ++i) {
            const auto key = string();
            if (!key || !walk_value(*key)) return false;
        }
        for (uint64_t i = 0; i < *tensors; ++i) {
            if (!walk_tensor()) return false;
        }
        return true;
    }

    std::string_view file_;
    size_t at_ = 0;
    GgufFields fields_;
};

uint64_t odd_value(uint64_t old, size_t file_bytes, std::minstd_rand& random) {
    const uint64_t values[] = {0,
                               1,
                               old + 1,
                               old - 1,
                               old * 2,
                               old / 2,
                               random() % 64,
                               random() % 8,
                               file_bytes,
                               uint64_t{1} << (random() % 64),
                               (uint64_t{1} << (random() % 64)) - 1,
                               std::numeric_limits<uint64_t>::max() - random() % 64,
                               std::numeric_limits<uint64_t>::max() / (1 + random() % 256)};
    return values[random() % std::size(values)];
}

void change_number(std::string& file, const GgufFields& fields, std::minstd_rand& random) {
    const auto [at, bytes] = fields.numbers[random() % fields.numbers.size()];
    uint64_t value = 0;
    std::memcpy(&value, file.data() + at, bytes);
    value = odd_value(value, file.size(), random);
    std::memcpy(file.data() + at, &value, bytes);
}

void change_string(std::string& file, const GgufFields& fields, size_t max_bytes,
                   std::minstd_rand& random, const MutateBytes& mutate) {
    const auto [length_at, bytes] = fields.strings[random() % fields.strings.size()];
    const auto data_begin = [&](size_t header_end) {
        return (header_end + fields.alignment - 1) / fields.alignment * fields.alignment;
    };
    std::string text = file.substr(length_at + 8, bytes);
    const size_t most = std::min(text.size() + 16, text.size() + max_bytes - file.size());
    if (most == 0) return;
    mutate(text, most);
    std::string changed = file.substr(0, length_at) + raw_string(text);
    changed +=
        file.substr(length_at + 8 + bytes,
                    std::max(fields.header_end, length_at + 8 + bytes) - (length_at + 8 + bytes));
    if (fields.header_end == 0) {
        changed += file.substr(length_at + 8 + bytes);
    } else {
        changed.resize(data_begin(changed.size()), '\0');
        changed += file.substr(std::min(data_begin(fields.header_end), file.size()));
    }
    if (changed.size() <= max_bytes) file = std::move(changed);
}

}  // namespace

GgufFields find_gguf_fields(std::string_view file) {
    return Walker(file).walk();
}

std::string mutate_gguf(std::string file, size_t max_bytes, std::minstd_rand& random,
                        const MutateBytes& mutate) {
    const GgufFields fields = find_gguf_fields(file);
    const auto kind = fields.numbers.empty() ? 3 : random() % 4;
    if (kind < 2) {
        change_number(file, fields, random);
    } else if (kind == 2 && !fields.strings.empty()) {
        change_string(file, fields, max_bytes, random, mutate);
    } else {
        mutate(file, max_bytes);
    }
    return file;
}

}  // namespace kd
