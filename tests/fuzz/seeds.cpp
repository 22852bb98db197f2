// fuzz_seeds TARGET FOLDER: writes what a fuzzer starts from, if it starts from anything.
#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/tokenizer_fixtures.h"
#include "fuzz/gguf_seeds.h"
#include "support/hf_writer.h"

namespace kd {
namespace {

using Seeds = std::vector<std::pair<std::string, std::string>>;

/// The templates that the unit tests compare with jinja2, the published ones among them.
Seeds template_seeds() {
    std::ifstream file(KD_TEST_DATA "/formats/template_cases.json");
    const auto json = nlohmann::json::parse(file);
    Seeds seeds = {{"smollm", json.at("smollm_template").get<std::string>()}};
    for (const auto& each : json.at("cases")) {
        if (!each.contains("template")) continue;
        seeds.emplace_back(fmt::format("case-{}", seeds.size()), each.at("template"));
    }
    const Json chats = read_fixture("template_chats.json.gz");
    for (const auto& [name, each] : chats.at("templates").items()) {
        seeds.emplace_back(name, each.at("source"));
    }
    const Json random = read_fixture("template_random.json.gz");
    for (const Json& each : random.at("cases")) {
        seeds.emplace_back(fmt::format("random-{}", seeds.size()), each.at("template"));
    }
    return seeds;
}

/// Files that the safetensors package was asked about, and the one it wrote.
Seeds safetensors_seeds() {
    std::ifstream file(KD_TEST_DATA "/formats/safetensors.json");
    const auto json = nlohmann::json::parse(file);
    Seeds seeds;
    const auto add = [&](std::string name, const std::string& hex) {
        std::string bytes;
        for (size_t i = 0; i < hex.size(); i += 2) {
            bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
        }
        seeds.emplace_back(std::move(name), std::move(bytes));
    };
    add("written", json.at("written").at("file"));
    for (const auto& each : json.at("judged")) {
        add(fmt::format("judged-{}", seeds.size()), each.at("file"));
    }
    return seeds;
}

/// config.json of a small model; the patches below change one thing each.
const char* const kSmallConfig =
    R"({"architectures":["LlamaForCausalLM"],"model_type":"llama","hidden_size":32,)"
    R"("intermediate_size":32,"num_hidden_layers":1,"num_attention_heads":4,)"
    R"("max_position_embeddings":64,"vocab_size":8,"tie_word_embeddings":true})";
const char* const kModelPatches[] = {
    R"({"architectures":["A","B"]})",
    R"({"model_type":"qwen2"})",
    R"({"architectures":["Qwen3ForCausalLM"],"model_type":"qwen3"})",
    R"({"architectures":["MistralForCausalLM"],"model_type":"mistral",
     "max_position_embeddings":8192})",
    R"({"head_dim":12})",
    R"({"num_attention_heads":128,"num_key_value_heads":1,"head_dim":8})",
    R"({"sliding_window":8,"use_sliding_window":true})",
    R"({"rope_scaling":{"factor":2}})",
    R"({"rope_scaling":{"rope_type":"dynamic","factor":2}})",
    R"({"rope_scaling":{"rope_type":"linear","factor":2},
     "rope_theta":500000,"attention_bias":false})",
    R"({"rope_scaling":{"rope_type":"llama3","factor":8,"low_freq_factor":4,"high_freq_factor":1,
     "original_max_position_embeddings":16}})",
    R"({"partial_rotary_factor":0.5})",
    R"({"quantization_config":{"quant_method":"gptq"}})",
    R"({"quantization_config":{"quant_method":"compressed-tensors","format":"int-quantized",
     "config_groups":{"g":{"weights":{}}}}})",
    R"({"quantization_config":{"quant_method":"compressed-tensors","format":"pack-quantized",
     "config_groups":{"g":{},"h":{}}}})",
};
const char* const kQuantised[] = {
    R"({"quant_method":"fp8","weight_block_size":[32,32]})",
    R"({"quant_method":"compressed-tensors","format":"float-quantized",
     "config_groups":{"g":{"weights":
     {"num_bits":8,"type":"float","symmetric":true,"strategy":"channel"},
     "input_activations":{"dynamic":true}}}})",
    R"({"quant_method":"compressed-tensors","format":"float-quantized",
     "config_groups":{"g":{"weights":
     {"num_bits":8,"type":"float","symmetric":true,"strategy":"block","block_structure":[32,32]},
     "input_activations":{"dynamic":false}}}})",
    R"({"quant_method":"compressed-tensors","format":"float-quantized",
     "config_groups":{"g":{"weights":
     {"num_bits":8,"type":"float","symmetric":true,"strategy":"tensor"}}}})",
    "null",
};
const char* const kDeepseekPatches[] = {
    R"({"topk_method":"greedy"})",    R"({"scoring_func":"softmax"})",
    R"({"num_key_value_heads":7})",   R"({"qk_rope_head_dim":7})",
    R"({"moe_layer_freq":2})",        R"({"n_group":3})",
    R"({"n_shared_experts":100000})",
};
const char* const kDrafterPatches[] = {
    R"({"model_type":"llama"})",
    R"({"hidden_act":"gelu"})",
    R"({"head_dim":null,"num_attention_heads":3})",
    R"({"block_size":1})",
    R"({"layer_types":null,"use_sliding_window":true})",
    R"({"layer_types":["full_attention"]})",
    R"({"layer_types":["sliding_attention","full_attention"]})",
    R"({"layer_types":["sliding_attention","full_attention"],"use_sliding_window":true,
     "sliding_window":2})",
    R"({"dflash_config":{"target_layer_ids":[]}})",
    R"({"dflash_config":{"target_layer_ids":[2,0]}})",
    R"({"dflash_config":{"target_layer_ids":[2,90]}})",
    R"({"dflash_config":{"projector_type":"other"}})",
    R"({"dflash_config":{"markov_rank":8,"markov_head_type":"other"}})",
    R"({"dflash_config":{"mask_token_id":319}})",
    R"({"dflash_config":{"mask_token_id":320}})",
    R"({"target_hidden_size":128})",
    R"({"num_target_layers":5})",
    R"({"vocab_size":321})",
    R"({"kdtree":{"unknown":1}})",
    R"({"kdtree":{"target_sha256":"00"}})",
    R"({"kdtree":{"greedy_power":[1]}})",
    R"({"kdtree":{"greedy_power":[1,1,1,1,1,1,1]}})",
};

/// Folders as fuzz_config.cpp parts them: every model and drafter of the unit tests with the
/// weights file of a folder that has none, each with one thing changed, and some whose weights are
/// quantised or lie in a shard.
Seeds config_seeds() {
    using Object = nlohmann::ordered_json;
    Seeds seeds;
    const auto add = [&](const Object& config, const std::vector<HfTensor>& tensors,
                         const std::string& index = "") {
        seeds.emplace_back(fmt::format("config-{}", seeds.size()),
                           config.dump() + '\xFF' + index + '\xFF' + safetensors_bytes(tensors));
    };
    const auto add_patched = [&](const Object& config, std::span<const char* const> patches) {
        for (const char* patch : patches) {
            Object changed = config;
            changed.merge_patch(Object::parse(patch));
            add(changed, {});
        }
    };
    for (const std::string fixture : {"dense_gqa", "deepseek", "dflash"}) {
        std::ifstream file(KD_TEST_DATA "/models/" + fixture + ".json");
        const Object json = Object::parse(file);
        for (const Object& each : json.at("cases")) add(each.at("config"), {});
        const Object& first = json.at("cases").at(0).at("config");
        if (fixture == "deepseek") add_patched(first, kDeepseekPatches);
        if (fixture == "dflash") add_patched(first, kDrafterPatches);
    }
    const Object small = Object::parse(kSmallConfig);
    add_patched(small, kModelPatches);
    const std::string name = "model.layers.0.self_attn.q_proj.weight";
    for (const char* scheme : kQuantised) {
        Object config = small;
        config["quantization_config"] = Object::parse(scheme);
        const HfTensor weight = {name, "F8_E4M3", {32, 32}, std::string(1024, '8')};
        add(config, {weight, {name + "_scale_inv", "F32", {1, 1}, std::string(4, '\0')}});
        add(config, {weight, {name + "_scale", "BF16", {32, 1}, std::string(64, '\0')}});
        add(config, {weight, {name + "_scale", "I32", {1}, std::string(4, '\0')}});
        add(config, {weight});
    }
    Object packed = small;
    packed["quantization_config"] = Object::parse(
        R"({"quant_method":"compressed-tensors","format":"pack-quantized","config_groups":
            {"group_0":{"weights":{"num_bits":4,"type":"int","symmetric":true,"strategy":"group",
             "group_size":32}}}})");
    for (const int64_t rows : {32, 31}) {
        add(packed, {{name + "_packed", "I32", {32, 4}, std::string(512, '8')},
                     {name + "_scale", "BF16", {32, 1}, std::string(64, '\0')},
                     {name + "_shape", "I64", {2}, raw_bytes(rows) + raw_bytes(int64_t{32})}});
    }
    const HfTensor norm = {"model.norm.weight", "F32", {32}, std::string(128, '\0')};
    for (const std::string map :
         {R"({"model.norm.weight":"model-1.safetensors"})", R"({"other":"model-1.safetensors"})",
          R"({"model.norm.weight":"model-2.safetensors"})", R"({"model.norm.weight":"../x"})",
          R"({"model.norm.weight":"model-1.safetensors","other":"model-1.safetensors"})", "{}",
          "1"}) {
        add(small, {norm}, R"({"weight_map":)" + map + "}");
    }
    return seeds;
}

/// Noise that is long enough for many calls: what starts empty grows slowly.
Seeds call_seeds() {
    std::minstd_rand random(1);
    Seeds seeds;
    for (int i = 0; i < 64; ++i) {
        std::string bytes(1024, '\0');
        for (char& byte : bytes) byte = static_cast<char>(random() >> 8);
        seeds.emplace_back(fmt::format("noise-{}", i), bytes);
    }
    return seeds;
}

/// A tokenizer.json of the fixtures with a vocabulary that leaves room for its pipeline: the bytes
/// and the first merges.
std::string smaller_tokenizer(const std::string& text) {
    constexpr int kKept = 300;
    Json json = parse_json(text, "");
    Json& model = json.at("model");
    Json vocabulary = Json::object();
    for (const auto& [token, id] : model.at("vocab").items()) {
        if (id.get<int>() < kKept) vocabulary[token] = id;
    }
    Json merges = Json::array();
    for (const Json& merge : model.at("merges")) {
        const std::string made = merge.at(0).get<std::string>() + merge.at(1).get<std::string>();
        if (vocabulary.contains(made)) merges.push_back(merge);
    }
    const int moved = static_cast<int>(model.at("vocab").size()) - kKept;
    for (Json& token : json.at("added_tokens")) token.at("id") = token.at("id").get<int>() - moved;
    Json& frame = json.at("post_processor");
    const Json places = frame.flatten();
    for (const auto& [place, id] : places.items()) {
        if (place.ends_with("/ids/0")) frame[Json::json_pointer(place)] = id.get<int>() - moved;
    }
    model.at("vocab") = vocabulary;
    model.at("merges") = merges;
    return json.dump();
}

/// Small tokenizer folders, their files parted as fuzz_tokenizer_json.cpp says.
Seeds tokenizer_folder_seeds() {
    const std::string head =
        R"({"added_tokens":[{"id":6,"content":"<|im_end|>","special":true,"rstrip":true},)"
        R"({"id":7,"content":"caf\u00e9","normalized":true,"single_word":true}],"normalizer":)"
        R"({"type":"Sequence","normalizers":[{"type":"NFC"}]},"pre_tokenizer":{"type":"Sequence",)"
        R"("pretokenizers":[)";
    const std::string tail =
        R"({"type":"ByteLevel","add_prefix_space":false,"use_regex":false}]},"post_processor":)"
        R"({"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<|im_end|>"}},)"
        R"({"Sequence":{"id":"A"}}],"special_tokens":{"<|im_end|>":{"id":"<|im_end|>","ids":[6]}}},)"
        R"("decoder":{"type":"ByteLevel"},"model":{"type":"BPE",)"
        R"("ignore_merges":true,"vocab":{"a":0,"b":1,"ab":2,"1":3,"Ġ":4,"Ġa":5},"merges":)"
        R"(["a b",["Ġ","a"]]}})";
    const std::string config =
        R"({"bos_token":"<|im_end|>","eos_token":{"content":"<|im_end|>"},"chat_template":)"
        R"([{"name":"default","template":"x"}],"add_bos_token":true})";
    Seeds seeds;
    const auto add = [&](const std::string& tokenizer, const std::string& stops = "6") {
        seeds.emplace_back(
            fmt::format("folder-{}", seeds.size()),
            fmt::format("{}\xFF{}\xFF{{\"eos_token_id\":{}}}", tokenizer, config, stops));
    };
    add(head + R"({"type":"Digits","individual_digits":true},)" + tail, "[1,6]");
    for (const std::string pattern : {R"({"String":"a"})", R"({"Regex":"a"})"}) {
        add(head + R"({"type":"Split","behavior":"MergedWithNext","invert":true,"pattern":)" +
            pattern + "}," + tail);
    }
    // What regexes may hold, and one of each kind that is refused.
    for (const std::string regex :
         {R"((?i:'s|'t)|[^\r\n\p{L}]?\p{L}++|\p{N}{1,3}|\s+(?!\S)|\s+?$|[\p{Lo}&&[^\p{Han}a-z]]+)",
          R"((?:ab)+|(?>c+)c|(d)(?=e)|a{2}|b{2,}|c{,2}d|a+?b*+c??|.)",
          R"(\x41\x{1F600}\u00e9\t\f\d\D\S[\s-])", R"(^a)", R"(a{3,2})", R"(a{100000})",
          R"((?<n>a))", R"((?i:é))", R"((?i:ss))", R"(\x{})", R"(\u12)", R"(\w)", R"((a)",
          R"([a)"}) {
        add(head + R"({"type":"Split","behavior":"Isolated","pattern":{"Regex":)" +
            Json(regex).dump() + "}}," + tail);
    }
    // One place of a good folder changed.
    const std::string good = head + tail;
    for (const auto& [from, to] :
         {std::pair{R"("a b")", R"("a  b")"},
          {R"("a b")", R"(["a"])"},
          {R"("decoder":{"type":"ByteLevel"})",
           R"("decoder":{"type":"Sequence","decoders":[{"type":"ByteLevel"},{"type":"Fuse"}]})"},
          {R"("id":7)", R"("id":9)"},
          {"caf\\u00e9", "<|im_end|>"},
          {"caf\\u00e9", ""},
          {R"({"type":"ByteLevel","add_prefix_space":false,"use_regex":false})", ""},
          {R"("ignore_merges")", R"("unk_token":"?","ignore_merges")"},
          {R"("vocab":{"a":0)", R"("vocab":{"a":3)"}}) {
        std::string changed = good;
        changed.replace(changed.find(from), std::string_view(from).size(), to);
        add(changed);
    }
    const Json families = read_fixture("tokenizer_families.json.gz");
    for (const auto& [name, family] : families.at("families").items()) {
        const Json& files = family.at("files");
        if (!files.contains("tokenizer.json")) continue;
        seeds.emplace_back(name, smaller_tokenizer(files.at("tokenizer.json")) + "\xFF" +
                                     files.at("tokenizer_config.json").get<std::string>());
    }
    std::string ranks;
    constexpr std::string_view kDigits =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (int byte = 0; byte < 256; ++byte) {
        ranks += fmt::format("{}{}== {}\n", kDigits[byte >> 2], kDigits[(byte & 3) << 4], byte);
    }
    seeds.emplace_back("tiktoken",
                       "\xFF{\"tokenizer_class\":\"TikTokenTokenizer\",\"added_tokens_decoder\":"
                       "{\"258\":{\"content\":\"<|im_end|>\",\"special\":true}}}\xFF\xFF" +
                           ranks + "YWI= 256\nIGE= 257\n");
    return seeds;
}

}  // namespace
}  // namespace kd

int main(int argc, char** argv) {
    if (argc != 3) {
        fmt::print(stderr, "usage: fuzz_seeds TARGET FOLDER\n");
        return 2;
    }
    const std::string_view target(argv[1]);
    const std::filesystem::path folder(argv[2]);
    std::filesystem::create_directories(folder);
    kd::Seeds seeds;
    if (target == "gguf" || target == "model") seeds = kd::gguf_seeds();
    if (target == "safetensors") seeds = kd::safetensors_seeds();
    if (target == "config") seeds = kd::config_seeds();
    if (target == "abi") seeds = kd::call_seeds();
    if (target == "tokenizer_json") seeds = kd::tokenizer_folder_seeds();
    if (target == "chat_template") seeds = kd::template_seeds();
    for (const auto& [name, bytes] : seeds) kd::write_test_file((folder / name).string(), bytes);
    return 0;
}
