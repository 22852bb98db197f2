// JSON from untrusted files, and its members under names that errors can tell.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace kd {

/// Keeps the order of members. Its look-up is linear: walk a large object, do not search it.
using Json = nlohmann::ordered_json;

inline constexpr size_t kMaxJsonBytes = size_t{16} << 20;
/// Of tokenizer.json and model.safetensors.index.json, which grow with the model.
inline constexpr size_t kMaxLargeJsonBytes = size_t{256} << 20;
inline constexpr size_t kMaxJsonDepth = 64;

/// Throws kd::Error{corrupt}, one line that starts with `name`: not JSON (with line and column),
/// not UTF-8, a number beyond double, an object with a key twice, more than max_bytes or
/// kMaxJsonDepth.
Json parse_json(std::string_view text, std::string_view name, size_t max_bytes = kMaxJsonBytes);

/// The file at `path`, whose path is the name; what MappedFile throws.
Json read_json_file(const std::string& path, size_t max_bytes = kMaxJsonBytes);

/// A value and the way to it, as in "tokenizer.json: model.merges[7]". The Json must outlive it.
class JsonNode {
  public:
    JsonNode(const Json& value, std::string where) : value_(&value), where_(std::move(where)) {}

    const Json& json() const { return *value_; }
    const std::string& where() const { return where_; }
    /// The value, fit for a one-line message: 'text' by printable(), "an array of 3", 1.5, true.
    std::string describe() const;
    /// Throws kd::Error{corrupt}: "<where>: <found>, not <wanted>".
    [[noreturn]] void refuse(std::string_view wanted) const;

    /// A member of this object; none if it is absent or null.
    std::optional<JsonNode> find(std::string_view key) const;
    /// A member that must be there and not be null.
    JsonNode at(std::string_view key) const;
    /// The elements of this array.
    size_t count() const;
    JsonNode at(size_t index) const;

    const std::string& string() const;
    bool boolean() const;
    int64_t integer(int64_t min, int64_t max) const;
    double number(double min, double max) const;

  private:
    const Json* value_;
    std::string where_;
};

}  // namespace kd
