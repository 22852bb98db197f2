#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iterator>

#include "base/error.h"
#include "formats/tokenizer_read.h"

namespace kd {

namespace {

constexpr std::string_view kRoles[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                       "pad_token", "cls_token", "mask_token"};

/// A JSON file of the folder; an empty object stands for one that is not there.
struct FolderFile {
    std::string path;
    Json json = Json::object();

    FolderFile(const std::string& folder, std::string_view name, size_t max_bytes = kMaxJsonBytes)
        : path((std::filesystem::path(folder) / name).string()) {
        if (exists()) json = read_json_file(path, max_bytes);
    }
    bool exists() const {
        std::error_code error;
        return std::filesystem::exists(path, error);
    }
    JsonNode root() const { return JsonNode(json, path); }
};

/// The content of the token with this role, which is a string or an object.
std::optional<JsonNode> content_of_role(const FolderFile& file, std::string_view role) {
    const auto value = file.root().find(role);
    if (!value || !value->json().is_object()) return value;
    return value->at("content");
}

int32_t id_of_content(const JsonNode& content, const TokenizerSpec& spec) {
    const std::string& text = content.string();
    for (const AddedToken& token : spec.added) {
        if (token.content == text) return token.id;
    }
    const auto found = std::find(spec.tokens.begin(), spec.tokens.end(), text);
    if (found == spec.tokens.end()) {
        KD_THROW(corrupt, "{}: '{}' is not a token", content.where(), printable(text));
    }
    return static_cast<int32_t>(found - spec.tokens.begin());
}

/// An id or a list of them.
std::vector<int32_t> read_ids(const JsonNode& node, const TokenizerSpec& spec) {
    const auto read = [&](const JsonNode& id) {
        return static_cast<int32_t>(id.integer(0, static_cast<int64_t>(spec.tokens.size()) - 1));
    };
    if (!node.json().is_array()) return {read(node)};
    std::vector<int32_t> ids;
    for (size_t i = 0; i < node.count(); ++i) ids.push_back(read(node.at(i)));
    return ids;
}

/// "eos_token_id" of generation_config.json; as in transformers, config.json stands for that file
/// where there is none, its text_config for what it lacks itself.
std::optional<JsonNode> find_eos_ids(const FolderFile& generation, const FolderFile& model) {
    constexpr std::string_view kKey = "eos_token_id";
    if (generation.exists()) return generation.root().find(kKey);
    if (auto eos = model.root().find(kKey)) return eos;
    const auto text = model.root().find("text_config");
    return text ? text->find(kKey) : std::nullopt;
}

void read_stop_ids(const std::optional<JsonNode>& eos, TokenizerSpec& spec) {
    if (eos) {
        spec.stop_ids = read_ids(*eos, spec);
        if (spec.eos < 0 && !spec.stop_ids.empty()) spec.eos = spec.stop_ids.front();
    }
    if (spec.eos >= 0) spec.stop_ids.push_back(spec.eos);
    std::sort(spec.stop_ids.begin(), spec.stop_ids.end());
    spec.stop_ids.erase(std::unique(spec.stop_ids.begin(), spec.stop_ids.end()),
                        spec.stop_ids.end());
}

/// In tokenizer_config.json a string or a list of {name, template}; a file of its own wins.
void read_templates(const std::string& folder, const FolderFile& config, TokenizerSpec& spec) {
    const auto value = config.root().find("chat_template");
    if (value && value->json().is_array()) {
        for (size_t i = 0; i < value->count(); ++i) {
            const JsonNode entry = value->at(i);
            const JsonNode name = entry.at("name");
            const auto [other, inserted] =
                spec.named_templates.emplace(name.string(), entry.at("template").string());
            if (!inserted) {
                KD_THROW(corrupt, "{}: '{}' stands there twice", name.where(),
                         printable(name.string()));
            }
        }
        const auto plain = spec.named_templates.extract("default");
        if (plain) spec.chat_template = plain.mapped();
    } else if (value) {
        spec.chat_template = value->string();
    }
    const std::string path = (std::filesystem::path(folder) / "chat_template.jinja").string();
    std::error_code error;
    if (!std::filesystem::exists(path, error)) return;
    const MappedFile file(path);
    spec.chat_template.assign(reinterpret_cast<const char*>(file.data()), file.bytes());
}

/// "add_bos_token" of tokenizer_config.json, which wins over the post-processor.
void read_added_end(const FolderFile& config, std::string_view key, int32_t id, bool& adds) {
    const auto value = config.root().find(key);
    if (value) adds = value->boolean();
    if (value && adds && id < 0) {
        KD_THROW(corrupt, "{}: true, but there is no such token", value->where());
    }
}

}  // namespace

TokenizerSpec tokenizer_spec_from_folder(const std::string& folder) {
    const FolderFile config(folder, "tokenizer_config.json");
    const FolderFile special(folder, "special_tokens_map.json");
    const FolderFile generation(folder, "generation_config.json");
    const FolderFile model(folder, "config.json");
    std::optional<JsonNode> contents[std::size(kRoles)];
    for (size_t i = 0; i < std::size(kRoles); ++i) {
        contents[i] = content_of_role(config, kRoles[i]);
        if (!contents[i]) contents[i] = content_of_role(special, kRoles[i]);
    }
    const auto text_of = [&](size_t role) {
        return contents[role] ? std::optional(contents[role]->string()) : std::nullopt;
    };

    TokenizerSpec spec;
    const FolderFile json(folder, "tokenizer.json", kMaxLargeJsonBytes);
    const std::string tiktoken = (std::filesystem::path(folder) / "tiktoken.model").string();
    std::error_code error;
    if (json.exists()) {
        read_tokenizer_json(json.root(), text_of(0), text_of(1), spec);
    } else if (std::filesystem::exists(tiktoken, error)) {
        read_tiktoken(tiktoken, config.root(), spec);
    } else {
        KD_THROW(not_found, "{}: neither tokenizer.json nor tiktoken.model is there", folder);
    }
    for (size_t i = 0; i < std::size(kRoles); ++i) {
        if (!contents[i]) continue;
        spec.named_tokens.emplace_back(kRoles[i], id_of_content(*contents[i], spec));
        if (kRoles[i] == "bos_token") spec.bos = spec.named_tokens.back().second;
        if (kRoles[i] == "eos_token") spec.eos = spec.named_tokens.back().second;
    }
    read_stop_ids(find_eos_ids(generation, model), spec);
    read_added_end(config, "add_bos_token", spec.bos, spec.adds_bos);
    read_added_end(config, "add_eos_token", spec.eos, spec.adds_eos);
    read_templates(folder, config, spec);
    return spec;
}

}  // namespace kd
