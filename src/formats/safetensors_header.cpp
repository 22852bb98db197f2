#include "formats/safetensors_header.h"

#include <charconv>
#include <limits>

#include "base/error.h"
#include "formats/mapped_file.h"
#include "formats/utf8.h"

namespace kd {

std::string SafetensorsHeaderReader::field() const {
    return context_.data() == nullptr ? "header" : fmt::format("tensor '{}'", printable(context_));
}

void SafetensorsHeaderReader::refuse(std::string_view what, std::string_view reason) const {
    KD_THROW(corrupt, "{}: {}: {}: {} at byte {} of the header", path_, field(), what, reason, at_);
}

void SafetensorsHeaderReader::skip_space() {
    while (at_ < text_.size() &&
           (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\r' || text_[at_] == '\t')) {
        ++at_;
    }
}

bool SafetensorsHeaderReader::accept(char wanted) {
    skip_space();
    if (at_ == text_.size() || text_[at_] != wanted) return false;
    ++at_;
    return true;
}

void SafetensorsHeaderReader::expect(char wanted, std::string_view what) {
    if (accept(wanted)) return;
    if (at_ == text_.size()) refuse(what, fmt::format("the end, not '{}'", wanted));
    refuse(what, fmt::format("'{}', not '{}'", printable(text_.substr(at_, 1)), wanted));
}

void SafetensorsHeaderReader::expect_end() {
    skip_space();
    if (at_ != text_.size()) refuse("behind the object", "more than white space");
}

std::string_view SafetensorsHeaderReader::string(std::string_view what) {
    expect('"', what);
    const size_t begin = at_;
    while (at_ < text_.size() && text_[at_] != '"' && text_[at_] != '\\') {
        if (static_cast<unsigned char>(text_[at_]) < ' ') refuse(what, "a control character");
        ++at_;
    }
    if (at_ == text_.size()) refuse(what, "the end inside a string");
    std::string_view out = text_.substr(begin, at_ - begin);
    if (text_[at_] == '\\') {
        at_ = begin;
        out = unescape(what);
    } else {
        ++at_;
    }
    if (valid_utf8_bytes(out) != out.size()) refuse(what, "a string that is not UTF-8 ends");
    return out;
}

/// The string from here to its closing quote.
std::string_view SafetensorsHeaderReader::unescape(std::string_view what) {
    std::string out;
    while (at_ < text_.size() && text_[at_] != '"') {
        const char c = text_[at_++];
        if (static_cast<unsigned char>(c) < ' ') refuse(what, "a control character");
        if (c != '\\') {
            out += c;
            continue;
        }
        if (at_ == text_.size()) break;
        constexpr std::string_view kCodes = "\"\\/bfnrt";
        constexpr std::string_view kMeanings = "\"\\/\b\f\n\r\t";
        const char code = text_[at_++];
        const size_t known = kCodes.find(code);
        if (known != std::string_view::npos) {
            out += kMeanings[known];
        } else if (code == 'u') {
            append_utf8(out, escaped_code_point(what));
        } else {
            refuse(what, "an unknown escape");
        }
    }
    if (at_ == text_.size()) refuse(what, "the end inside a string");
    ++at_;
    return unescaped_.emplace_back(std::move(out));
}

uint32_t SafetensorsHeaderReader::four_hex_digits(std::string_view what) {
    const std::string_view digits = text_.substr(at_, 4);
    uint32_t value = 0;
    const char* end = digits.data() + digits.size();
    const auto [stop, error] = std::from_chars(digits.data(), end, value, 16);
    if (digits.size() < 4 || error != std::errc() || stop != end) {
        refuse(what, "\\u without four hexadecimal digits");
    }
    at_ += 4;
    return value;
}

/// Behind "\u": one unit of UTF-16, or a pair of surrogates.
char32_t SafetensorsHeaderReader::escaped_code_point(std::string_view what) {
    const uint32_t first = four_hex_digits(what);
    if (first < 0xd800 || first > 0xdfff) return first;
    if (first <= 0xdbff && text_.substr(at_, 2) == "\\u") {
        at_ += 2;
        const uint32_t second = four_hex_digits(what);
        if (second >= 0xdc00 && second <= 0xdfff) {
            return 0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00);
        }
    }
    refuse(what, "half of a surrogate pair");
}

int64_t SafetensorsHeaderReader::integer(std::string_view what) {
    skip_space();
    const char* begin = text_.data() + at_;
    const char* end = text_.data() + text_.size();
    uint64_t value = 0;
    const auto [stop, error] = std::from_chars(begin, end, value);
    if (error == std::errc::invalid_argument) refuse(what, "not a whole number of 0 or more");
    if (error != std::errc() || value > std::numeric_limits<int64_t>::max()) {
        refuse(what, fmt::format("{} is beyond 2^63 - 1",
                                 printable({begin, static_cast<size_t>(stop - begin)})));
    }
    if (stop - begin > 1 && *begin == '0') refuse(what, "a number with a leading 0");
    if (stop != end && (*stop == '.' || *stop == 'e' || *stop == 'E')) {
        refuse(what, "a number that is not written as a whole one");
    }
    at_ += static_cast<size_t>(stop - begin);
    return static_cast<int64_t>(value);
}

}  // namespace kd
