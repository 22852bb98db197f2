// Byte-level BPE.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/gguf.h"

namespace kd {

struct TokenizerSpec;

class Tokenizer {
  public:
    /// `spec` as a reader of tokenizer_spec.h returns it. Throws kd::Error for a pair that merges
    /// twice and for patterns that are not supported.
    explicit Tokenizer(TokenizerSpec spec);
    /// Of tokenizer_spec(gguf).
    explicit Tokenizer(const GgufFile& gguf);
    ~Tokenizer();
    Tokenizer(Tokenizer&&) noexcept;
    Tokenizer& operator=(Tokenizer&&) noexcept;

    /// Text to ids. Any bytes are accepted; bytes without a token in the vocabulary are dropped, as
    /// the reference tokenizers do. With `parse_special`, control tokens written in the text
    /// ("<|im_end|>") become their ids, the leftmost and longest first; without, they are ordinary
    /// text. Other added tokens are split out always. No BOS is added. Each maximal ill-formed
    /// UTF-8 subpart (utf8.h) is a piece of its own: its bytes become byte tokens, and merge.
    std::vector<int32_t> encode(std::string_view text, bool parse_special) const;

    /// The raw bytes of ids, control tokens left out unless `with_special`. Ids outside the
    /// vocabulary throw kd::Error.
    std::string decode(std::span<const int32_t> ids, bool with_special = false) const;

    /// The bytes of one token (a control token: its name).
    std::string_view bytes_of_token(int32_t id) const;
    bool is_control(int32_t id) const;
    int32_t vocabulary() const;
    int32_t bos() const;  // -1: none
    int32_t eos() const;  // -1: none
    /// Whether the model wants BOS before a plain prompt, EOS behind it; encode adds neither.
    bool adds_bos() const;
    bool adds_eos() const;
    /// Ids that end generation: eos, eot and what the files name, ascending.
    const std::vector<int32_t>& stop_ids() const;
    /// The special tokens that the file names, under the names chat templates know them by:
    /// bos_token, eos_token, unk_token, sep_token, pad_token, cls_token, mask_token.
    const std::vector<std::pair<std::string_view, int32_t>>& named_tokens() const;
    /// The Jinja source of the chat template; empty if the file has none.
    const std::string& chat_template() const;
    /// Further templates by name, such as tool_use.
    const std::map<std::string, std::string>& named_templates() const;
    /// The string of a control token by id; empty for -1.
    std::string token_text(int32_t id) const;

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

/// Turns a stream of ids into text that never ends inside a UTF-8 character: bytes of an incomplete
/// character wait; bytes that can never become one are replaced by U+FFFD.
class StreamDecoder {
  public:
    explicit StreamDecoder(const Tokenizer& tokenizer) : tokenizer_(&tokenizer) {}
    /// The text that `id` completes, possibly empty. Control tokens add nothing.
    std::string push(int32_t id);
    /// What still waits, replaced by U+FFFD; call once at the end.
    std::string finish();

  private:
    const Tokenizer* tokenizer_;
    std::string pending_;
};

}  // namespace kd
