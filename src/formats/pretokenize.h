// Pre-tokenizers: text is cut into pieces that merges never cross.
#pragma once

#include <string_view>
#include <vector>

#include "formats/utf8_regex.h"

namespace kd {

class Pretokenizer {
  public:
    /// `name` as in the GGUF key tokenizer.ggml.pre: smollm (every number character alone, the
    /// GPT-2 pattern between them); gpt-2, gpt2, default (the GPT-2 pattern). Others throw
    /// kd::Error{unsupported}.
    explicit Pretokenizer(std::string_view name);

    /// Appends the pieces of well-formed UTF-8 `text`, in order; together they are the text.
    void split(std::string_view text, std::vector<std::string_view>& pieces) const;

  private:
    Utf8Regex regex_;
};

}  // namespace kd
