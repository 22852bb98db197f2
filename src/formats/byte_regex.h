// A compiled PCRE2 pattern over bytes (machine code where the host allows).
#pragma once

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

    /// Matches one text again and again; one per thread. The regex must outlive it.
    class Matcher {
      public:
        explicit Matcher(const ByteRegex& regex);
        ~Matcher();
        Matcher(Matcher&&) noexcept;

        /// The leftmost match from offset on, never empty. Throws kd::Error{out_of_resources} if
        /// PCRE2 gives up: it may use kStepsPerByte steps for each byte of the text.
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
