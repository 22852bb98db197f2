#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

#include "base/error.h"
#include "formats/bpe.h"
#include "formats/tokenizer_read.h"
#include "formats/utf8.h"

namespace kd {

namespace {

[[noreturn]] void unsupported(const JsonNode& node) {
    const std::string shown =
        node.json().is_string() ? printable(node.string()) : node.json().dump();
    KD_THROW(unsupported, "{}: '{}' is not supported", node.where(), printable(shown));
}

/// The flag may be absent or have this value.
void expect_flag(const JsonNode& node, std::string_view key, bool value) {
    const auto flag = node.find(key);
    if (flag && flag->boolean() != value) unsupported(*flag);
}

bool flag_or(const JsonNode& node, std::string_view key, bool otherwise) {
    const auto flag = node.find(key);
    return flag ? flag->boolean() : otherwise;
}

std::string_view type_of(const JsonNode& node) {
    return node.at("type").string();
}

// --- model
// ----------------------------------------------------------------------------------------

/// The texts of the vocabulary by id: each of 0 to n - 1 once.
std::vector<std::string_view> read_vocabulary(const JsonNode& vocabulary) {
    if (!vocabulary.json().is_object()) vocabulary.refuse("an object");
    const size_t count = vocabulary.json().size();
    if (count == 0 || count > kMaxVocabulary) {
        KD_THROW(corrupt, "{}: {} tokens (1 to {} are supported)", vocabulary.where(), count,
                 kMaxVocabulary);
    }
    std::vector<std::string_view> texts(count);
    for (const auto& [text, id] : vocabulary.json().get_ref<const Json::object_t&>()) {
        // Distinct, in [0, count) and as many: none is missing.
        const auto* value = id.get_ptr<const Json::number_unsigned_t*>();
        if (value == nullptr || *value >= count) {
            KD_THROW(corrupt, "{}: '{}': {} is not an id from 0 to {}", vocabulary.where(),
                     printable(text), printable(id.dump()), count - 1);
        }
        if (!texts[*value].empty()) {
            KD_THROW(corrupt, "{}: '{}' and '{}' have the same id {}", vocabulary.where(),
                     printable(texts[*value]), printable(text), *value);
        }
        if (text.empty()) KD_THROW(corrupt, "{}: token {} is empty", vocabulary.where(), *value);
        texts[*value] = text;
    }
    return texts;
}

/// A merge is "left right", or ["left", "right"].
TokenMerge read_merge(const JsonNode& merges, size_t rank, const IdOfText& id_of) {
    const Json& merge = merges.json()[rank];
    const auto where = [&] { return fmt::format("{}[{}]", merges.where(), rank); };
    const auto* text = merge.get_ptr<const std::string*>();
    if (text != nullptr) {
        const std::string_view all = *text;
        const size_t space = all.find(' ');
        if (space == all.npos || all.find(' ', space + 1) != all.npos) {
            KD_THROW(corrupt, "{}: '{}' is not two tokens parted by one space", where(),
                     printable(all));
        }
        return merge_of(all.substr(0, space), all.substr(space + 1), static_cast<int32_t>(rank),
                        id_of, where);
    }
    if (!merge.is_array() || merge.size() != 2 || !merge[0].is_string() || !merge[1].is_string()) {
        JsonNode(merge, where()).refuse("two tokens");
    }
    return merge_of(merge[0].get_ref<const std::string&>(), merge[1].get_ref<const std::string&>(),
                    static_cast<int32_t>(rank), id_of, where);
}

/// The ids of the vocabulary's texts, which are in `model`.
IdOfText read_model(const JsonNode& model, TokenizerSpec& spec) {
    const auto type = model.find("type");
    if (type && type->string() != "BPE") unsupported(*type);
    for (const std::string_view key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
        const auto affix = model.find(key);
        if (affix && !affix->string().empty()) unsupported(*affix);
    }
    const auto dropout = model.find("dropout");
    if (dropout && dropout->number(0, 1) != 0) unsupported(*dropout);
    expect_flag(model, "byte_fallback", false);
    spec.ignore_merges = flag_or(model, "ignore_merges", false);

    const std::vector<std::string_view> texts = read_vocabulary(model.at("vocab"));
    IdOfText id_of;
    id_of.reserve(texts.size());
    std::string bytes;
    for (size_t id = 0; id < texts.size(); ++id) {
        id_of.emplace(texts[id], static_cast<int32_t>(id));
        const bool mapped = bytes_of_alphabet(texts[id], bytes);
        spec.tokens.push_back(mapped ? bytes : std::string(texts[id]));
        if (!mapped) spec.unmapped.push_back(static_cast<int32_t>(id));
    }
    spec.byte_token = byte_tokens_of_alphabet(id_of);
    const auto unknown = model.find("unk_token");
    const auto missing = std::count(spec.byte_token.begin(), spec.byte_token.end(), -1);
    if (unknown && missing > 0) {
        KD_THROW(unsupported, "{}: '{}' would stand for {} bytes that have no token",
                 unknown->where(), printable(unknown->string()), missing);
    }
    const JsonNode merges = model.at("merges");
    const size_t count = merges.count();
    if (count > kMaxVocabulary) {
        KD_THROW(corrupt, "{}: {} merges (at most {} are supported)", merges.where(), count,
                 kMaxVocabulary);
    }
    spec.merges.reserve(count);
    for (size_t rank = 0; rank < count; ++rank) {
        spec.merges.push_back(read_merge(merges, rank, id_of));
    }
    return id_of;
}

// --- added tokens
// ---------------------------------------------------------------------------------

/// Ids as tokenizers gives them: a token of the model keeps its own, others follow the vocabulary.
void read_added_tokens(const JsonNode& list, const IdOfText& id_of, TokenizerSpec& spec) {
    std::unordered_set<std::string, TextHash> contents;
    for (size_t i = 0; i < list.count(); ++i) {
        const JsonNode entry = list.at(i);
        AddedToken token = read_added_token(entry);
        if (!contents.insert(token.content).second) {
            KD_THROW(corrupt, "{}: '{}' stands there twice", entry.where(),
                     printable(token.content));
        }
        const auto found = id_of.find(token.content);
        const auto id =
            found == id_of.end() ? static_cast<int32_t>(spec.tokens.size()) : found->second;
        token.id = static_cast<int32_t>(entry.at("id").integer(id, id));
        token.in_vocabulary = found != id_of.end();
        if (!token.in_vocabulary) spec.tokens.emplace_back();
        spec.tokens[id] = token.content;
        spec.added.push_back(std::move(token));
    }
}

// --- normalizer, pre-tokenizer, post-processor, decoder
// -------------------------------------------

void read_normalizer(const JsonNode& node, TokenizerSpec& spec) {
    const std::string_view type = type_of(node);
    if (type == "NFC") {
        spec.normalizer = Normalizer::nfc;
    } else if (type == "Sequence") {
        const JsonNode list = node.at("normalizers");
        for (size_t i = 0; i < list.count(); ++i) read_normalizer(list.at(i), spec);
    } else {
        unsupported(node.at("type"));
    }
}

SplitBehavior read_behavior(const JsonNode& node) {
    constexpr std::pair<std::string_view, SplitBehavior> kNames[] = {
        {"Isolated", SplitBehavior::isolated},
        {"Removed", SplitBehavior::removed},
        {"Contiguous", SplitBehavior::contiguous},
        {"MergedWithPrevious", SplitBehavior::merged_with_previous},
        {"MergedWithNext", SplitBehavior::merged_with_next}};
    for (const auto& [name, behavior] : kNames) {
        if (node.string() == name) return behavior;
    }
    unsupported(node);
}

SplitStep read_split(const JsonNode& node) {
    const JsonNode pattern = node.at("pattern");
    const auto regex = pattern.find("Regex");
    SplitStep step;
    const std::string& text = (regex ? *regex : pattern.at("String")).string();
    step.pattern = regex ? text : pattern_of_text(text);
    step.behavior = read_behavior(node.at("behavior"));
    step.invert = flag_or(node, "invert", false);
    step.where = pattern.where();
    return step;
}

/// Whether the bytes are mapped to the alphabet, which must come last.
bool read_pretokenizer(const JsonNode& node, bool mapped, TokenizerSpec& spec) {
    const std::string_view type = type_of(node);
    if (type == "Sequence") {
        const JsonNode list = node.at("pretokenizers");
        for (size_t i = 0; i < list.count(); ++i) {
            mapped = read_pretokenizer(list.at(i), mapped, spec);
        }
        return mapped;
    }
    if (mapped) KD_THROW(unsupported, "{}: nothing may follow ByteLevel", node.where());
    if (spec.splits.size() == kMaxSplits) {
        KD_THROW(unsupported, "{}: more than {} steps", node.where(), kMaxSplits);
    }
    if (type == "Split") {
        spec.splits.push_back(read_split(node));
    } else if (type == "Digits") {
        const bool each = flag_or(node, "individual_digits", false);
        spec.splits.push_back(
            {.pattern = std::string(kNumberPattern),
             .behavior = each ? SplitBehavior::isolated : SplitBehavior::contiguous});
    } else if (type == "ByteLevel") {
        if (flag_or(node, "add_prefix_space", true)) {
            KD_THROW(unsupported, "{}.add_prefix_space: true is not supported", node.where());
        }
        if (flag_or(node, "use_regex", true)) {
            spec.splits.push_back({.pattern = std::string(kGpt2Pattern)});
        }
        return true;
    } else {
        unsupported(node.at("type"));
    }
    return false;
}

/// An entry of "special_tokens" of a TemplateProcessing, whose ids are what it puts in: the token's
/// own.
void check_template_token(const JsonNode& entry, const std::string& text, const IdOfText& id_of,
                          const TokenizerSpec& spec) {
    const JsonNode ids = entry.at("ids");
    const auto added = std::find_if(spec.added.begin(), spec.added.end(),
                                    [&](const AddedToken& token) { return token.content == text; });
    const auto found = id_of.find(text);
    if (added == spec.added.end() && found == id_of.end()) {
        KD_THROW(corrupt, "{}: '{}' is not a token", entry.where(), printable(text));
    }
    const int32_t id = added != spec.added.end() ? added->id : found->second;
    if (ids.count() != 1) ids.refuse(fmt::format("one id, {}", id));
    ids.at(0).integer(id, id);
}

/// "single" of a TemplateProcessing: BOS before the text, EOS behind it, or neither.
void read_template(const JsonNode& node, const std::optional<std::string>& bos,
                   const std::optional<std::string>& eos, const IdOfText& id_of,
                   TokenizerSpec& spec) {
    const JsonNode single = node.at("single");
    bool text = false;
    for (size_t i = 0; i < single.count(); ++i) {
        const JsonNode item = single.at(i);
        if (const auto sequence = item.find("Sequence")) {
            if (text || sequence->at("id").string() != "A") unsupported(item);
            text = true;
            continue;
        }
        const JsonNode id = item.at("SpecialToken").at("id");
        bool& adds = text ? spec.adds_eos : spec.adds_bos;
        if (adds || (text ? eos : bos) != id.string()) {
            KD_THROW(unsupported, "{}: '{}' is not the {} token", id.where(),
                     printable(id.string()), text ? "eos" : "bos");
        }
        check_template_token(node.at("special_tokens").at(id.string()), id.string(), id_of, spec);
        adds = true;
    }
    if (!text) KD_THROW(corrupt, "{}: it leaves the text out", single.where());
}

void read_post_processor(const JsonNode& node, const std::optional<std::string>& bos,
                         const std::optional<std::string>& eos, const IdOfText& id_of,
                         TokenizerSpec& spec) {
    const std::string_view type = type_of(node);
    if (type == "TemplateProcessing") {
        read_template(node, bos, eos, id_of, spec);
    } else if (type == "Sequence") {
        const JsonNode list = node.at("processors");
        for (size_t i = 0; i < list.count(); ++i) {
            read_post_processor(list.at(i), bos, eos, id_of, spec);
        }
    } else if (type != "ByteLevel") {  // which moves offsets only
        unsupported(node.at("type"));
    }
}

void check_decoder(const JsonNode& node) {
    const std::string_view type = type_of(node);
    if (type == "Sequence") {
        const JsonNode list = node.at("decoders");
        for (size_t i = 0; i < list.count(); ++i) check_decoder(list.at(i));
    } else if (type != "ByteLevel") {
        unsupported(node.at("type"));
    }
}

}  // namespace

std::vector<int32_t> byte_tokens_of_alphabet(const IdOfText& id_of) {
    std::vector<int32_t> byte_token;
    for (const char32_t code_point : byte_alphabet()) {
        std::string text;
        append_utf8(text, code_point);
        const auto found = id_of.find(text);
        byte_token.push_back(found == id_of.end() ? -1 : found->second);
    }
    return byte_token;
}

TokenMerge merge_of(std::string_view left, std::string_view right, int32_t rank,
                    const IdOfText& id_of, const std::function<std::string()>& where) {
    const auto token = [&](std::string_view text) {
        const auto found = id_of.find(text);
        if (found == id_of.end()) {
            KD_THROW(corrupt, "{}: '{}' is not in the vocabulary", where(), printable(text));
        }
        return found->second;
    };
    std::string joined(left);
    joined += right;
    return {.left = token(left), .right = token(right), .rank = rank, .result = token(joined)};
}

AddedToken read_added_token(const JsonNode& node) {
    AddedToken token;
    const JsonNode content = node.at("content");
    token.content = content.string();
    if (token.content.empty() || token.content.size() > kMaxAddedTokenBytes) {
        KD_THROW(unsupported, "{}: {} bytes (1 to {} are supported)", content.where(),
                 token.content.size(), kMaxAddedTokenBytes);
    }
    token.special = flag_or(node, "special", false);
    token.lstrip = flag_or(node, "lstrip", false);
    token.rstrip = flag_or(node, "rstrip", false);
    token.single_word = flag_or(node, "single_word", false);
    token.normalized = flag_or(node, "normalized", !token.special);
    return token;
}

void read_tokenizer_json(const JsonNode& root, const std::optional<std::string>& bos,
                         const std::optional<std::string>& eos, TokenizerSpec& spec) {
    const JsonNode model = root.at("model");
    const IdOfText id_of = read_model(model, spec);
    if (const auto added = root.find("added_tokens")) read_added_tokens(*added, id_of, spec);
    if (const auto normalizer = root.find("normalizer")) read_normalizer(*normalizer, spec);
    if (!read_pretokenizer(root.at("pre_tokenizer"), false, spec)) {
        KD_THROW(unsupported, "{}: there is no ByteLevel in it", root.at("pre_tokenizer").where());
    }
    if (const auto post = root.find("post_processor")) {
        read_post_processor(*post, bos, eos, id_of, spec);
    }
    if (const auto decoder = root.find("decoder")) check_decoder(*decoder);
}

}  // namespace kd
