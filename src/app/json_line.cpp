#include "app/json_line.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "base/error.h"
#include "formats/utf8.h"

namespace kd {

namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxMessageBytes = 1000;
constexpr size_t kMaxQuotedBytes = 64;
constexpr size_t kMaxJsonDepth = 128;  // arrays and objects inside each other

std::string shortened(std::string_view text, size_t bytes) {
    if (text.size() <= bytes) return std::string(text);
    return std::string(text.substr(0, valid_utf8_bytes(text.substr(0, bytes)))) + "...";
}

/// What nlohmann's exception says, without its name, "line 1" and the text that was read.
std::string reason_of(const Json::exception& error) {
    std::string_view what = error.what();
    const auto skip = [&](std::string_view head) {
        if (const size_t at = what.find(head); at != what.npos) {
            what.remove_prefix(at + head.size());
        }
    };
    skip("] ");
    skip("parse error at line 1, ");
    what = what.substr(0, what.find("; last read: '"));
    return shortened(what, 2 * kMaxQuotedBytes);
}

/// Builds the value. nlohmann's own builders look through all keys of an object for each new one,
/// and let the last of equal keys win.
class Builder : public nlohmann::json_sax<Json> {
  public:
    Json take() { return std::move(result_); }

    bool null() override { return add(nullptr); }
    bool boolean(bool value) override { return add(value); }
    bool number_integer(number_integer_t value) override { return add(value); }
    bool number_unsigned(number_unsigned_t value) override { return add(value); }
    bool number_float(number_float_t value, const string_t& text) override {
        if (text.find_first_of(".eE") == text.npos) {
            KD_THROW(unsupported, "the integer {} is beyond 64 bits",
                     shortened(text, kMaxQuotedBytes));
        }
        return add(value);
    }
    bool string(string_t& value) override { return add(std::move(value)); }
    bool binary(binary_t& value) override { return add(std::move(value)); }

    bool start_object(size_t /*unknown*/) override { return open(Json::object()); }
    bool start_array(size_t /*unknown*/) override { return open(Json::array()); }
    bool end_object() override { return close(); }
    bool end_array() override { return close(); }
    bool key(string_t& name) override {
        Frame& frame = frames_.back();
        if (!frame.keys.insert(name).second) {
            KD_THROW(invalid_argument, "the key \"{}\" occurs twice",
                     shortened(name, kMaxQuotedBytes));
        }
        frame.key = std::move(name);
        return true;
    }

    bool parse_error(size_t /*position*/, const std::string& /*token*/,
                     const nlohmann::detail::exception& error) override {
        KD_THROW(invalid_argument, "not JSON: {}", reason_of(error));
    }

  private:
    struct Frame {
        Json value;
        std::string key;  // of an object: where the next value goes
        std::unordered_set<std::string> keys;
    };

    bool open(Json empty) {
        if (frames_.size() == kMaxJsonDepth) {
            KD_THROW(invalid_argument, "nested deeper than {}", kMaxJsonDepth);
        }
        frames_.push_back({.value = std::move(empty)});
        return true;
    }

    bool close() {
        Json value = std::move(frames_.back().value);
        frames_.pop_back();
        return add(std::move(value));
    }

    bool add(Json value) {
        if (frames_.empty()) {
            result_ = std::move(value);
            return true;
        }
        Frame& frame = frames_.back();
        if (frame.value.is_array()) {
            frame.value.push_back(std::move(value));
        } else {
            // The map's own insertion would search it; the key is known to be new.
            auto& object = frame.value.get_ref<Json::object_t&>();
            static_cast<Json::object_t::Container&>(object).emplace_back(std::move(frame.key),
                                                                         std::move(value));
        }
        return true;
    }

    Json result_;
    std::vector<Frame> frames_;
};

}  // namespace

nlohmann::ordered_json parse_json_line(std::string_view line) {
    // nlohmann takes a NUL outside strings for the end of the input.
    if (const size_t nul = line.find('\0'); nul != line.npos) {
        KD_THROW(invalid_argument, "not JSON: column {}: a NUL byte", nul + 1);
    }
    Builder builder;
    Json::sax_parse(line, &builder);
    Json value = builder.take();
    if (!value.is_object()) KD_THROW(invalid_argument, "no object but {}", value.type_name());
    return value;
}

const Json& line_field(const Json& line, const char* key, bool (Json::*is)() const noexcept,
                       const char* kind) {
    const auto found = line.find(key);
    if (found == line.end()) KD_THROW(invalid_argument, "\"{}\" is missing", key);
    if (!((*found).*is)()) {
        KD_THROW(invalid_argument, "\"{}\" is no {} but {}", key, kind, found->type_name());
    }
    return *found;
}

bool line_special(const Json& line) {
    return line.contains("special") &&
           line_field(line, "special", &Json::is_boolean, "boolean").get<bool>();
}

std::vector<int32_t> line_ids(const Json& line, const Tokenizer& tokenizer) {
    const Json& given = line_field(line, "ids", &Json::is_array, "array");
    std::vector<int32_t> ids;
    ids.reserve(given.size());
    for (const Json& id : given) {
        if (!id.is_number_integer()) {
            KD_THROW(invalid_argument, "\"ids\"[{}] is no integer but {}", ids.size(),
                     id.type_name());
        }
        // Unsigned and beyond 63 bits it would be read as negative: out of the vocabulary too.
        const auto value = id.get<int64_t>();
        if (value < 0 || value >= tokenizer.vocabulary()) {
            KD_THROW(invalid_argument, "\"ids\"[{}]: {} is not in the vocabulary of {}", ids.size(),
                     id.dump(), tokenizer.vocabulary());
        }
        ids.push_back(static_cast<int32_t>(value));
    }
    return ids;
}

std::vector<int32_t> encode_line(const Json& line, const Tokenizer& tokenizer) {
    const Json& text = line_field(line, "text", &Json::is_string, "string");
    return tokenizer.encode(text.get_ref<const std::string&>(), line_special(line));
}

std::string json_line(const nlohmann::ordered_json& value) {
    const std::string plain = value.dump(-1, ' ', false, Json::error_handler_t::replace);
    constexpr std::pair<std::string_view, std::string_view> kBreaks[] = {
        {"\xC2\x85", "\\u0085"}, {"\xE2\x80\xA8", "\\u2028"}, {"\xE2\x80\xA9", "\\u2029"}};
    std::string line;
    line.reserve(plain.size());
    for (std::string_view rest = plain; !rest.empty();) {
        const size_t ordinary = std::min(rest.find_first_of("\xC2\xE2"), rest.size());
        line.append(rest.substr(0, ordinary));
        rest.remove_prefix(ordinary);
        if (rest.empty()) break;
        size_t taken = 1;
        std::string_view written = rest.substr(0, 1);
        for (const auto& [bytes, escape] : kBreaks) {
            if (!rest.starts_with(bytes)) continue;
            taken = bytes.size();
            written = escape;
        }
        line.append(written);
        rest.remove_prefix(taken);
    }
    return line;
}

std::string error_line(std::string_view message) {
    std::string one_line = shortened(message, kMaxMessageBytes);
    for (char& c : one_line) {
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
    }
    return json_line({{"error", std::move(one_line)}});
}

}  // namespace kd
