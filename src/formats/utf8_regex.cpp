#include "formats/utf8_regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <limits>

#include "base/check.h"
#include "base/error.h"

namespace kd {

namespace {

std::string message_of(int code) {
    std::array<PCRE2_UCHAR, 256> text{};
    pcre2_get_error_message(code, text.data(), text.size());
    return reinterpret_cast<const char*>(text.data());
}

template <auto free_function>
struct Free {
    template <class T>
    void operator()(T* pointer) const {
        free_function(pointer);
    }
};

}  // namespace

struct Utf8Regex::Impl {
    std::unique_ptr<pcre2_code, Free<pcre2_code_free>> code;
};

struct Utf8Regex::Matcher::State {
    std::unique_ptr<pcre2_match_data, Free<pcre2_match_data_free>> data;
    std::unique_ptr<pcre2_match_context, Free<pcre2_match_context_free>> context;
};

Utf8Regex::Utf8Regex(const std::string& pattern) : impl_(std::make_unique<Impl>()) {
    int code = 0;
    PCRE2_SIZE at = 0;
    impl_->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                    PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED | PCRE2_DOTALL, &code,
                                    &at, nullptr));
    KD_CHECK(impl_->code != nullptr, "pattern {} at {}: {}", pattern, at, message_of(code));
    // Hosts that forbid executable pages refuse this; matching then interprets the pattern.
    (void)pcre2_jit_compile(impl_->code.get(), PCRE2_JIT_COMPLETE);
}

Utf8Regex::~Utf8Regex() = default;
Utf8Regex::Utf8Regex(Utf8Regex&&) noexcept = default;
Utf8Regex& Utf8Regex::operator=(Utf8Regex&&) noexcept = default;

Utf8Regex::Matcher::Matcher(const Utf8Regex& regex)
    : regex_(regex), state_(std::make_unique<State>()) {
    state_->data.reset(pcre2_match_data_create_from_pattern(regex.impl_->code.get(), nullptr));
    state_->context.reset(pcre2_match_context_create(nullptr));
    if (!state_->data || !state_->context) KD_THROW(out_of_resources, "PCRE2: no memory to match");
    // The limits guard against exponential patterns; ours are linear, long texts must not trip
    // them.
    pcre2_set_match_limit(state_->context.get(), std::numeric_limits<uint32_t>::max());
    pcre2_set_depth_limit(state_->context.get(), std::numeric_limits<uint32_t>::max());
}

Utf8Regex::Matcher::~Matcher() = default;

size_t Utf8Regex::Matcher::match(std::string_view text, size_t offset) {
    const int code = pcre2_match(regex_.impl_->code.get(),
                                 reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), offset,
                                 PCRE2_NO_UTF_CHECK, state_->data.get(), state_->context.get());
    if (code == PCRE2_ERROR_NOMATCH) return 0;
    if (code < 0) {
        KD_THROW(out_of_resources, "PCRE2 gave up at byte {} of a text of {} bytes: {}", offset,
                 text.size(), message_of(code));
    }
    const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(state_->data.get());
    return bounds[1] - bounds[0];
}

}  // namespace kd
