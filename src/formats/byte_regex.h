// A compiled PCRE2 pattern over bytes (machine code where the host allows).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace kd {

class ByteRegex {
  public:
    struct Match {
        size_t begin;
        size_t end;
    };

    /// Throws kd::Error{unsupported} with PCRE2's reason if the pattern does not compile or matches
    /// the empty text.
    explicit ByteRegex(const std::string& pattern);
    ~ByteRegex();
    ByteRegex(ByteRegex&&) noexcept;
    ByteRegex& operator=(ByteRegex&&) noexcept;

    /// Matches the pieces of a text again and again; one per thread. The regex must outlive it.
    ///
    /// Work is counted in steps at the pattern's callouts: (?CN) takes N, and one for each byte
    /// between the callout before it and its place. It is bounded if a callout stands behind
    /// whatever can match in more than one way (see regex_parse.h).
    class Matcher {
      public:
        static constexpr int64_t kStepsPerByte = 512;

        /// text_bytes: of all the pieces together; it may use kStepsPerByte steps for each.
        Matcher(const ByteRegex& regex, size_t text_bytes);
        ~Matcher();
        Matcher(Matcher&&) noexcept;

        /// The leftmost match from offset on, never empty. Throws kd::Error{out_of_resources} when
        /// the steps are used up, or PCRE2's memory is.
        std::optional<Match> find(std::string_view text, size_t offset);

      private:
        struct State;
        std::unique_ptr<State> state_;
    };

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace kd
