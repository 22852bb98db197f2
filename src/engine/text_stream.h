// From a session's tokens to the text a user may see.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "formats/tokenizer.h"

namespace kd {

/// Ends a text before the first stop string, whatever token boundaries it straddles. Text that
/// could still become one is held back.
class StopFilter {
  public:
    /// Empty stop strings are refused by the engine before this.
    explicit StopFilter(std::vector<std::string> stops) : stops_(std::move(stops)) {}

    /// The part of the text so far that may be shown now.
    std::string push(std::string_view text);
    /// What is still held back, at the end of the text.
    std::string finish();
    bool stopped() const { return stopped_; }

  private:
    std::vector<std::string> stops_;
    std::string held_;
    bool stopped_ = false;
};

/// Tokens in, text out: whole UTF-8 characters, no control tokens, nothing from a stop string on.
class TextStream {
  public:
    TextStream(const Tokenizer& tokenizer, std::vector<std::string> stops)
        : decoder_(tokenizer), filter_(std::move(stops)) {}

    std::string push(int32_t token) { return filter_.push(decoder_.push(token)); }
    std::string finish();
    bool stopped() const { return filter_.stopped(); }

  private:
    StreamDecoder decoder_;
    StopFilter filter_;
};

}  // namespace kd
