#include "formats/byte_regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <limits>

#include "base/error.h"

namespace kd {

namespace {

constexpr uint32_t kHeapKibibytes = 256 * 1024;

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

struct ByteRegex::Impl {
    std::unique_ptr<pcre2_code, Free<pcre2_code_free>> code;
};

struct ByteRegex::Matcher::State {
    const pcre2_code* code;
    int64_t steps_left;
    size_t position = 0;  // of the last callout
    std::unique_ptr<pcre2_match_data, Free<pcre2_match_data_free>> data;
    std::unique_ptr<pcre2_match_context, Free<pcre2_match_context_free>> context;
};

ByteRegex::ByteRegex(const std::string& pattern) : impl_(std::make_unique<Impl>()) {
    int code = 0;
    PCRE2_SIZE at = 0;
    impl_->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), 0,
                                    &code, &at, nullptr));
    if (!impl_->code) KD_THROW(unsupported, "PCRE2: {}", message_of(code));
    uint32_t matches_empty = 0;
    pcre2_pattern_info(impl_->code.get(), PCRE2_INFO_MATCHEMPTY, &matches_empty);
    if (matches_empty != 0) KD_THROW(unsupported, "it matches the empty text");
    // Hosts that forbid executable pages refuse this; matching then interprets the pattern.
    (void)pcre2_jit_compile(impl_->code.get(), PCRE2_JIT_COMPLETE);
}

ByteRegex::~ByteRegex() = default;
ByteRegex::ByteRegex(ByteRegex&&) noexcept = default;
ByteRegex& ByteRegex::operator=(ByteRegex&&) noexcept = default;

ByteRegex::Matcher::Matcher(const ByteRegex& regex, size_t text_bytes)
    : state_(std::make_unique<State>()) {
    state_->code = regex.impl_->code.get();
    state_->steps_left = static_cast<int64_t>(text_bytes) * kStepsPerByte;
    state_->data.reset(pcre2_match_data_create_from_pattern(state_->code, nullptr));
    state_->context.reset(pcre2_match_context_create(nullptr));
    if (!state_->data || !state_->context) KD_THROW(out_of_resources, "PCRE2: no memory to match");
    pcre2_set_heap_limit(state_->context.get(), kHeapKibibytes);
    // PCRE2's own limits count anew at each place where a match may start, and not the bytes that a
    // repeat of one class goes over.
    pcre2_set_match_limit(state_->context.get(), std::numeric_limits<uint32_t>::max());
    pcre2_set_depth_limit(state_->context.get(), std::numeric_limits<uint32_t>::max());
    const auto count = [](pcre2_callout_block* callout, void* data) {
        State& state = *static_cast<State*>(data);
        const size_t at = callout->current_position;
        const size_t bytes = std::max(at, state.position) - std::min(at, state.position);
        state.position = at;
        state.steps_left -= static_cast<int64_t>(callout->callout_number + bytes);
        return state.steps_left < 0 ? PCRE2_ERROR_MATCHLIMIT : 0;
    };
    pcre2_set_callout(state_->context.get(), count, state_.get());
}

ByteRegex::Matcher::~Matcher() = default;
ByteRegex::Matcher::Matcher(Matcher&&) noexcept = default;

std::optional<ByteRegex::Match> ByteRegex::Matcher::find(std::string_view text, size_t offset) {
    state_->position = offset;
    const auto match = [&](uint32_t options) {
        return pcre2_match(state_->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                           offset, options, state_->data.get(), state_->context.get());
    };
    int code = match(0);
    // Machine code has a small stack; a repeated group over a long run needs the heap.
    if (code == PCRE2_ERROR_JIT_STACKLIMIT) code = match(PCRE2_NO_JIT);
    if (code == PCRE2_ERROR_NOMATCH) return std::nullopt;
    if (code < 0) {
        KD_THROW(out_of_resources, "PCRE2 gave up at byte {} of a text of {} bytes: {}", offset,
                 text.size(), message_of(code));
    }
    const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(state_->data.get());
    if (bounds[1] <= bounds[0]) KD_THROW(unsupported, "an empty match at byte {}", bounds[0]);
    return Match{bounds[0], bounds[1]};
}

}  // namespace kd
