// A compiled PCRE2 pattern over well-formed UTF-8 (UTF, UCP; machine code where the host allows).
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace kd {

class Utf8Regex {
  public:
    /// `pattern` is part of this program: one that does not compile aborts.
    explicit Utf8Regex(const std::string& pattern);
    ~Utf8Regex();
    Utf8Regex(Utf8Regex&&) noexcept;
    Utf8Regex& operator=(Utf8Regex&&) noexcept;

    /// Matches one text again and again; one per thread. The regex must outlive it.
    class Matcher {
      public:
        explicit Matcher(const Utf8Regex& regex);
        ~Matcher();
        Matcher(const Matcher&) = delete;
        Matcher& operator=(const Matcher&) = delete;

        /// The bytes of the match that starts exactly at text[offset]; 0: none. What stands before
        /// offset is seen by look-behinds. Throws kd::Error{out_of_resources} if PCRE2 gives up.
        size_t match(std::string_view text, size_t offset);

      private:
        const Utf8Regex& regex_;
        struct State;
        std::unique_ptr<State> state_;
    };

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace kd
