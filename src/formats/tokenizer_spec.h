// What a byte-level BPE tokenizer is made of, whatever file it comes from.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/added_tokens.h"
#include "formats/gguf.h"
#include "formats/pretokenize.h"

namespace kd {

enum class Normalizer : uint8_t { none, nfc };

struct TokenMerge {
    int32_t left;
    int32_t right;
    int32_t rank;  // lower merges first
    int32_t result;
};

struct TokenizerSpec {
    std::vector<std::string> tokens;  // [ids] bytes; an added token's content
    std::vector<int32_t> unmapped;    // ids whose text is outside the alphabet: no piece is one
    std::vector<int32_t> byte_token;  // [256] the token of each byte, -1: none, dropped
    std::vector<TokenMerge> merges;   // distinct pairs
    bool ignore_merges = false;       // a piece that is a token is that token
    std::vector<AddedToken> added;    // by id
    Normalizer normalizer = Normalizer::none;
    std::vector<SplitStep> splits;

    int32_t bos = -1;  // -1: none
    int32_t eos = -1;
    std::vector<int32_t> stop_ids;  // end generation; ascending, distinct
    /// bos_token, eos_token, unk_token, sep_token, pad_token, cls_token, mask_token.
    std::vector<std::pair<std::string_view, int32_t>> named_tokens;
    bool adds_bos = false;  // to a plain prompt
    bool adds_eos = false;

    std::string chat_template;                           // Jinja; empty: none
    std::map<std::string, std::string> named_templates;  // such as tool_use; without the default
};

/// From a GGUF file's metadata. Throws kd::Error naming the key.
TokenizerSpec tokenizer_spec(const GgufFile& gguf);

/// From a folder in Hugging Face's layout: tokenizer.json, or tiktoken.model where there is none
/// (Kimi); tokenizer_config.json, special_tokens_map.json, generation_config.json (or the
/// eos_token_id of config.json) and chat_template.jinja where they are there. Throws kd::Error
/// naming file and field.
TokenizerSpec tokenizer_spec_from_folder(const std::string& folder);

}  // namespace kd
