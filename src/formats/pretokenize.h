// Pre-tokenizers: text is cut into pieces that merges never cross.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "formats/split_regex.h"

namespace kd {

/// What becomes of a match, as tokenizer.json's "behavior" names it.
enum class SplitBehavior : uint8_t {
    isolated,              // a piece
    removed,               // no piece
    contiguous,            // matches that touch are one piece
    merged_with_previous,  // the end of the piece before it
    merged_with_next,      // the beginning of the piece behind it
};

/// One pass over the pieces of the passes before it.
struct SplitStep {
    std::string pattern;  // as split_regex.h reads it
    SplitBehavior behavior = SplitBehavior::isolated;
    bool invert = false;  // what does not match counts as the match
    std::string where;    // file and field, for errors; may be empty
};

/// The pattern of the ByteLevel pre-tokenizer, which is GPT-2's (openai/gpt-2, encoder.py).
extern const std::string_view kGpt2Pattern;
/// A character of numeric_characters(), the Digits pre-tokenizer's.
extern const std::string_view kNumberPattern;

/// The passes and what else a name in the GGUF key tokenizer.ggml.pre implies.
struct NamedPretokenizer {
    std::vector<SplitStep> steps;
    bool nfc = false;
    bool ignore_merges = false;
    bool adds_bos = false;
    bool merges_by_rank = false;  // ids are the ranks; the file's merges do not matter
};

/// Throws kd::Error{unsupported}, naming the supported ones, for an unknown name.
NamedPretokenizer named_pretokenizer(std::string_view name);

/// The text that `text` itself matches, as a pattern.
std::string pattern_of_text(std::string_view text);

class Pretokenizer {
  public:
    /// Throws what SplitRegex throws, behind the step's `where`.
    explicit Pretokenizer(std::vector<SplitStep> steps);

    /// Appends the pieces of well-formed UTF-8 `text`, in order; together they are the text, less
    /// what is removed.
    void split(std::string_view text, std::vector<std::string_view>& pieces) const;

  private:
    std::vector<SplitStep> steps_;
    std::vector<SplitRegex> regexes_;  // [steps]
};

}  // namespace kd
