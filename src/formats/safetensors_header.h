// The JSON of a safetensors header, token by token.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>

namespace kd {

/// Reads objects, arrays, strings and whole numbers where the caller expects them, and refuses
/// anything else: what nests deeper than the caller asks is never entered. Every refusal is a
/// kd::Error{corrupt} that names the file, `context` and the place.
class SafetensorsHeaderReader {
  public:
    /// `unescaped`: keeps the strings that are not written as they are.
    SafetensorsHeaderReader(std::string_view text, const std::string& path,
                            std::deque<std::string>& unescaped)
        : text_(text), path_(path), unescaped_(unescaped) {}

    /// Valid UTF-8, in the header or in `unescaped`. `what`: for the message.
    std::string_view string(std::string_view what);
    /// 0 to 2^63 - 1, without fraction or exponent.
    int64_t integer(std::string_view what);
    /// Calls each(key) for the members of an object; it has to read the value.
    template <class Each>
    void members(std::string_view what, const Each& each) {
        expect('{', what);
        if (accept('}')) return;
        do {
            const std::string_view key = string(what);
            expect(':', what);
            each(key);
        } while (accept(','));
        expect('}', what);
    }
    /// Calls each() for the elements of an array; it has to read the value.
    template <class Each>
    void elements(std::string_view what, const Each& each) {
        expect('[', what);
        if (accept(']')) return;
        do {
            each();
        } while (accept(','));
        expect(']', what);
    }
    /// Nothing but white space may follow.
    void expect_end();

    /// What is being read: the name of a tensor, "" for the header itself.
    void set_context(std::string_view tensor) { context_ = tensor; }
    /// "header" or "tensor 'NAME'".
    std::string field() const;
    [[noreturn]] void refuse(std::string_view what, std::string_view reason) const;

  private:
    void skip_space();
    bool accept(char wanted);
    void expect(char wanted, std::string_view what);
    std::string_view unescape(std::string_view what);
    char32_t escaped_code_point(std::string_view what);
    uint32_t four_hex_digits(std::string_view what);

    std::string_view text_;
    const std::string& path_;
    std::deque<std::string>& unescaped_;
    std::string_view context_;
    size_t at_ = 0;
};

}  // namespace kd
