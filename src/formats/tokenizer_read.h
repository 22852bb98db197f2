// What the readers of tokenizer files share.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/views.h"
#include "formats/json_file.h"
#include "formats/seeded_hash.h"
#include "formats/tokenizer_spec.h"

namespace kd {

inline constexpr size_t kMaxAddedTokenBytes = 1024;
inline constexpr size_t kMaxSplits = 16;  // a step takes about a megabyte

using IdOfText = std::unordered_map<std::string_view, int32_t, TextHash>;

/// byte_token of a vocabulary in GPT-2's alphabet (bpe.h).
std::vector<int32_t> byte_tokens_of_alphabet(const IdOfText& id_of);

/// One merge, of two tokens of the vocabulary to a third. Throws kd::Error{corrupt} that begins
/// with where() if one of them is not there.
TokenMerge merge_of(std::string_view left, std::string_view right, int32_t rank,
                    const IdOfText& id_of, const std::function<std::string()>& where);

/// The merges of a tiktoken vocabulary: every way to put one of tokens [0, count) together from two
/// others of them; the rank is the id. (tiktoken itself has no merges: it joins the pair whose
/// concatenation has the lowest rank.)
std::vector<TokenMerge> merges_by_rank(const std::vector<std::string>& tokens, size_t count);

/// tokenizer.json without what surrounds it: fills tokens, byte_token, merges, ignore_merges,
/// added, normalizer, splits, adds_bos, adds_eos. `bos` and `eos`: the content of these tokens, if
/// known.
void read_tokenizer_json(const JsonNode& root, const std::optional<std::string>& bos,
                         const std::optional<std::string>& eos, TokenizerSpec& spec);

/// tiktoken.model as Kimi has it: "base64 rank" a line; special tokens from "added_tokens_decoder"
/// of tokenizer_config.json.
void read_tiktoken(const std::string& path, const JsonNode& config, TokenizerSpec& spec);

/// An entry of "added_tokens" or "added_tokens_decoder", without its id.
AddedToken read_added_token(const JsonNode& node);

}  // namespace kd
