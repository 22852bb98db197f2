#include "formats/json_file.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/error.h"
#include "formats/gguf.h"

namespace kd {

namespace {

/// Builds the value as the parser reports it. Members are appended without the search that
/// ordered_json's own reader makes for each, which is quadratic: a vocabulary is one object.
class Builder : public nlohmann::json_sax<Json> {
  public:
    Builder(std::string_view text, std::string_view name) : text_(text), name_(name) {}

    Json take() { return std::move(root_); }

    bool null() override { return add(nullptr); }
    bool boolean(bool value) override { return add(value); }
    bool number_integer(number_integer_t value) override { return add(value); }
    bool number_unsigned(number_unsigned_t value) override { return add(value); }
    bool number_float(number_float_t value, const string_t&) override { return add(value); }
    bool string(string_t& value) override { return add(std::move(value)); }
    bool binary(binary_t&) override { return false; }  // JSON text has none
    bool start_object(size_t) override { return open(Json::object()); }
    bool start_array(size_t) override { return open(Json::array()); }

    bool key(string_t& name) override {
        // The base class's own emplace_back: ordered_map hides it behind a search.
        members().emplace_back(std::move(name), nullptr);
        return true;
    }

    bool end_object() override {
        std::vector<std::string_view> keys;
        for (const auto& [key, value] : members()) keys.push_back(key);
        std::sort(keys.begin(), keys.end());
        const auto twice = std::adjacent_find(keys.begin(), keys.end());
        if (twice != keys.end()) {
            KD_THROW(corrupt, "{}: {}key '{}' stands there twice", name_, way(open_.size() - 1),
                     printable(*twice));
        }
        open_.pop_back();
        return true;
    }

    bool end_array() override {
        open_.pop_back();
        return true;
    }

    bool parse_error(size_t position, const std::string& token,
                     const nlohmann::detail::exception&) override {
        const std::string_view before = text_.substr(0, position == 0 ? 0 : position - 1);
        const auto line = std::count(before.begin(), before.end(), '\n') + 1;
        const size_t column = before.size() - (before.rfind('\n') + 1) + 1;  // npos + 1 is 0
        KD_THROW(corrupt, "{}: line {}, column {}: not JSON at the end of '{}'", name_, line,
                 column,
                 printable(token.substr(token.size() - std::min<size_t>(token.size(), 48))));
    }

  private:
    using Members = std::vector<std::pair<const std::string, Json>>;

    Members& members() { return open_.back()->get_ref<Json::object_t&>(); }

    Json& place(Json value) {
        if (open_.empty()) {
            root_ = std::move(value);
            return root_;
        }
        if (open_.back()->is_array()) {
            auto& elements = open_.back()->get_ref<Json::array_t&>();
            elements.push_back(std::move(value));
            return elements.back();
        }
        Json& member = members().back().second;
        member = std::move(value);
        return member;
    }

    bool add(Json value) {
        place(std::move(value));
        return true;
    }

    bool open(Json value) {
        if (open_.size() == kMaxJsonDepth) {
            KD_THROW(corrupt, "{}: {}nested deeper than {}", name_, way(open_.size()),
                     kMaxJsonDepth);
        }
        // Stays where it is as long as it is open: only the innermost container grows.
        open_.push_back(&place(std::move(value)));
        return true;
    }

    /// The way to open_[depth], as in "model.vocab: ".
    std::string way(size_t depth) {
        std::string way;
        for (size_t i = 0; i < depth; ++i) {
            if (open_[i]->is_array()) {
                way += fmt::format("[{}]", std::max<size_t>(open_[i]->size(), 1) - 1);
            } else {
                const Members& all = open_[i]->get_ref<Json::object_t&>();
                way += fmt::format("{}{}", way.empty() ? "" : ".", printable(all.back().first));
            }
        }
        return way.empty() ? way : way + ": ";
    }

    std::string_view text_;
    std::string_view name_;
    Json root_;
    std::vector<Json*> open_;  // containers, the outermost first
};

}  // namespace

Json parse_json(std::string_view text, std::string_view name, size_t max_bytes) {
    if (text.size() > max_bytes) {
        KD_THROW(corrupt, "{}: {} bytes (at most {} are read)", name, text.size(), max_bytes);
    }
    Builder builder(text, name);
    Json::sax_parse(text.begin(), text.end(), &builder);
    return builder.take();
}

Json read_json_file(const std::string& path, size_t max_bytes) {
    const MappedFile file(path);
    return parse_json({reinterpret_cast<const char*>(file.data()), file.bytes()}, path, max_bytes);
}

std::string JsonNode::describe() const {
    if (value_->is_string()) return fmt::format("'{}'", printable(string()));
    if (value_->is_object()) return fmt::format("an object of {}", value_->size());
    if (value_->is_array()) return fmt::format("an array of {}", value_->size());
    return value_->dump();  // a number, true, false or null
}

void JsonNode::refuse(std::string_view wanted) const {
    KD_THROW(corrupt, "{}: {}, not {}", where_, describe(), wanted);
}

std::optional<JsonNode> JsonNode::find(std::string_view key) const {
    if (!value_->is_object()) refuse("an object");
    const auto found = value_->find(std::string(key));
    if (found == value_->end() || found->is_null()) return std::nullopt;
    // The first step follows the file's name.
    const std::string_view joint = where_.find(": ") == where_.npos ? ": " : ".";
    return JsonNode(*found, fmt::format("{}{}{}", where_, joint, printable(key)));
}

JsonNode JsonNode::at(std::string_view key) const {
    std::optional<JsonNode> member = find(key);
    if (!member) KD_THROW(corrupt, "{}: '{}' is missing", where_, printable(key));
    return *member;
}

size_t JsonNode::count() const {
    if (!value_->is_array()) refuse("an array");
    return value_->size();
}

JsonNode JsonNode::at(size_t index) const {
    if (index >= count()) {
        KD_THROW(corrupt, "{}: {} elements, there is no {}", where_, count(), index);
    }
    return JsonNode((*value_)[index], fmt::format("{}[{}]", where_, index));
}

const std::string& JsonNode::string() const {
    if (!value_->is_string()) refuse("a string");
    return value_->get_ref<const std::string&>();
}

bool JsonNode::boolean() const {
    if (!value_->is_boolean()) refuse("true or false");
    return value_->get<bool>();
}

int64_t JsonNode::integer(int64_t min, int64_t max) const {
    const std::string wanted = fmt::format("an integer from {} to {}", min, max);
    if (!value_->is_number_integer()) refuse(wanted);
    const bool beyond = value_->is_number_unsigned() &&
                        !std::in_range<int64_t>(value_->get_ref<const Json::number_unsigned_t&>());
    if (beyond || value_->get<int64_t>() < min || value_->get<int64_t>() > max) refuse(wanted);
    return value_->get<int64_t>();
}

double JsonNode::number(double min, double max) const {
    const std::string wanted = fmt::format("a number from {} to {}", min, max);
    if (!value_->is_number()) refuse(wanted);
    const auto number = value_->get<double>();
    if (!(number >= min && number <= max)) refuse(wanted);
    return number;
}

}  // namespace kd
