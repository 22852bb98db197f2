// config.json of Hugging Face folders: what is read, what defaults mean, what is refused and how.
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "formats/model_config.h"
#include "formats/model_file.h"
#include "support/hf_writer.h"

namespace kd {
namespace {

using Json = nlohmann::ordered_json;

/// A complete small configuration of a class; heads are tied, so that no tensor has to be there.
Json config_of(const std::string& class_name, const std::string& type) {
    return {{"architectures", {class_name}},
            {"model_type", type},
            {"hidden_size", 96},
            {"intermediate_size", 256},
            {"num_hidden_layers", 3},
            {"num_attention_heads", 6},
            {"num_key_value_heads", 2},
            {"max_position_embeddings", 2048},
            {"vocab_size", 320},
            {"tie_word_embeddings", true}};
}

Json llama() {
    return config_of("LlamaForCausalLM", "llama");
}

ModelConfig read(const Json& config, const std::vector<HfTensor>& tensors = {}) {
    const TempFolder folder;
    write_hf_folder(folder, config, tensors);
    return read_model_config(ModelFile(folder.path()));
}

/// Expects one line that holds all of `parts`, from reading and as the only fault of a probe.
void expect_refused(const Json& config, const std::vector<std::string>& parts,
                    const std::vector<HfTensor>& tensors = {}) {
    const TempFolder folder;
    write_hf_folder(folder, config, tensors);
    std::string message = "nothing was thrown";
    try {
        const ModelFile file(folder.path());
        std::vector<std::string> faults;
        probe_model_config(file, faults);
        EXPECT_EQ(faults.size(), 1u);
        read_model_config(file);
    } catch (const Error& error) {
        message = error.what();
    }
    EXPECT_TRUE(message.starts_with(folder.path() + "/config.json: ")) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    for (const std::string& part : parts) {
        EXPECT_NE(message.find(part), std::string::npos) << message << "\nlacks: " << part;
    }
}

void expect_value_refused(const std::string& key, const Json& value,
                          const std::vector<std::string>& parts = {}) {
    Json config = llama();
    config[key] = value;
    std::vector<std::string> all = parts;
    all.push_back(key);
    expect_refused(config, all);
}

TEST(HfConfig, Llama) {
    Json json = llama();
    json["rms_norm_eps"] = 1e-5;
    json["rope_theta"] = 500000;
    const ModelConfig config = read(json);
    EXPECT_EQ(config.architecture, "llama");
    EXPECT_EQ(config.layers, 3);
    EXPECT_EQ(config.hidden, 96);
    EXPECT_EQ(config.intermediate, 256);
    EXPECT_EQ(config.heads, 6);
    EXPECT_EQ(config.kv_heads, 2);
    EXPECT_EQ(config.head_dim, 16);
    EXPECT_EQ(config.rope_dim, 16);
    EXPECT_EQ(config.rope_base, 500000);
    EXPECT_EQ(config.rope_pairing, RopePairing::half);
    EXPECT_EQ(config.rope_scaling.type, RopeScalingType::none);
    EXPECT_EQ(config.norm_epsilon, 1e-5);
    EXPECT_EQ(config.vocabulary, 320);
    EXPECT_EQ(config.context_length, 2048);
}

TEST(HfConfig, DefaultsOfAbsentFieldsAndNull) {
    Json json = llama();
    json.erase("num_key_value_heads");
    EXPECT_EQ(read(json).kv_heads, 6);
    EXPECT_EQ(read(json).norm_epsilon, 1e-6);
    EXPECT_EQ(read(json).rope_base, 10000);
    for (const char* key : {"num_key_value_heads", "head_dim", "rope_scaling", "attention_bias",
                            "hidden_act", "rms_norm_eps", "sliding_window", "layer_types",
                            "quantization_config", "rope_parameters"}) {
        json[key] = nullptr;
    }
    const ModelConfig config = read(json);
    EXPECT_EQ(config.kv_heads, 6);
    EXPECT_EQ(config.head_dim, 16);
    json.erase("architectures");
    EXPECT_EQ(read(json).architecture, "llama");
}

TEST(HfConfig, NamesAreThoseOfTheFolder) {
    const TempFolder folder;
    write_hf_folder(folder, llama(), {});
    const std::string name = folder.path().substr(folder.path().rfind('/') + 1);
    EXPECT_EQ(read_model_config(ModelFile(folder.path())).name, name);
    EXPECT_EQ(read_model_config(ModelFile(folder.path() + "///")).name, name);
}

TEST(HfConfig, Qwen3HasItsOwnHeadSize) {
    Json json = config_of("Qwen3ForCausalLM", "qwen3");
    EXPECT_EQ(read(json).head_dim, 128);
    EXPECT_EQ(read(json).architecture, "qwen3");
    json["head_dim"] = 64;
    EXPECT_EQ(read(json).head_dim, 64);
}

TEST(HfConfig, RopeOldAndNew) {
    const Json scaling = {{"rope_type", "llama3"},
                          {"factor", 8.0},
                          {"low_freq_factor", 1.0},
                          {"high_freq_factor", 4.0},
                          {"original_max_position_embeddings", 1024}};
    Json old = llama();
    old["rope_theta"] = 500000.0;
    old["rope_scaling"] = scaling;
    Json fresh = llama();
    fresh["rope_parameters"] = scaling;
    fresh["rope_parameters"]["rope_theta"] = 500000.0;
    for (const Json& json : {old, fresh}) {
        const ModelConfig config = read(json);
        EXPECT_EQ(config.rope_base, 500000);
        EXPECT_EQ(config.rope_scaling.type, RopeScalingType::llama3);
        EXPECT_EQ(config.rope_scaling.factor, 8);
        EXPECT_EQ(config.rope_scaling.original_context, 1024);
        EXPECT_EQ(config.rope_scaling.high_frequency_factor, 4);
    }
    // Of both, a rope_scaling that is not empty wins.
    fresh["rope_scaling"] = {{"type", "linear"}, {"factor", 2.0}};
    EXPECT_EQ(read(fresh).rope_scaling.type, RopeScalingType::linear);
    fresh["rope_scaling"] = Json::object();
    EXPECT_EQ(read(fresh).rope_scaling.type, RopeScalingType::llama3);
    fresh["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 7e4}};
    EXPECT_EQ(read(fresh).rope_scaling.type, RopeScalingType::none);
    EXPECT_EQ(read(fresh).rope_base, 7e4);
}

TEST(HfConfig, RopeThatWouldRunWronglyIsRefused) {
    const auto refused = [](const Json& scaling, const std::vector<std::string>& parts) {
        Json config = llama();
        config["rope_scaling"] = scaling;
        expect_refused(config, parts);
    };
    refused({{"type", "longrope"}, {"factor", 2}},
            {"rope_scaling.type: 'longrope'", "not supported"});
    refused({{"rope_type", "dynamic"}, {"factor", 2}}, {"rope_scaling.rope_type: 'dynamic'"});
    refused({{"type", "linear"}}, {"rope_scaling", "'factor' is missing"});
    refused({{"type", "linear"}, {"factor", 0}}, {"rope_scaling.factor: 0"});
    refused({{"type", "linear"}, {"factor", "2"}}, {"rope_scaling.factor", "'2'"});
    refused({{"type", "linear"}, {"factor", 2}, {"wobble", 1}}, {"rope_scaling.wobble"});
    refused({{"type", "yarn"}, {"factor", 2}, {"truncate", 1}}, {"rope_scaling.truncate"});
    refused({{"type", "yarn"}, {"factor", 2}, {"attention_factor", 0}}, {"attention_factor: 0"});
    refused({{"type", "llama3"}, {"factor", 8}, {"low_freq_factor", 4}, {"high_freq_factor", 4}},
            {"rope_scaling.high_freq_factor: 4 is not above"});
    refused({{"type", "default"}, {"partial_rotary_factor", 0.5}}, {"partial_rotary_factor: 0.5"});
    refused({{"full_attention", {{"rope_type", "default"}}}}, {"full_attention"});
    refused(Json::array({1}), {"rope_scaling", "not an object"});
    expect_value_refused("partial_rotary_factor", 0.25, {"0.25"});
    expect_value_refused("rope_theta", 1.0, {"1.0"});
}

TEST(HfConfig, AbsurdSizes) {
    for (const std::string key :
         {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
          "num_key_value_heads", "max_position_embeddings", "vocab_size", "head_dim"}) {
        expect_value_refused(key, 0, {"0"});
        expect_value_refused(key, -1, {"-1"});
        expect_value_refused(key, uint64_t{1} << 63, {"9223372036854775808"});
        expect_value_refused(key, ~uint64_t{0}, {"18446744073709551615"});
        expect_value_refused(key, 1e300, {"1e+300"});
        expect_value_refused(key, 16.5, {"16.5"});
        expect_value_refused(key, "16", {"'16'"});
        expect_value_refused(key, Json::array({16}), {"an array"});
        expect_value_refused(key, true, {"true"});
    }
    expect_value_refused("rms_norm_eps", 0, {"0"});
    expect_value_refused("rms_norm_eps", -1e-6, {"-1e-06"});
    expect_value_refused("rope_theta", 1e20, {"1e+20"});
}

TEST(HfConfig, RequiredFields) {
    for (const std::string key : {"hidden_size", "intermediate_size", "num_hidden_layers",
                                  "num_attention_heads", "max_position_embeddings", "vocab_size"}) {
        Json config = llama();
        config.erase(key);
        expect_refused(config, {"'" + key + "' is missing"});
    }
    // Where the class has a number of its own for it.
    Json mistral = config_of("MistralForCausalLM", "mistral");
    mistral["sliding_window"] = nullptr;
    EXPECT_EQ(read(mistral).kv_heads, 2);
    mistral.erase("num_key_value_heads");
    expect_refused(mistral, {"'num_key_value_heads' is missing"});
}

TEST(HfConfig, Heads) {
    expect_value_refused("num_key_value_heads", 4, {"4 does not divide 6"});
    expect_value_refused("num_key_value_heads", 7, {"7"});
    for (const int dim : {15, 18, 98, 320, 514}) {
        expect_value_refused("head_dim", dim, {std::to_string(dim)});
    }
    Json config = llama();
    config["hidden_size"] = 100;
    expect_refused(config, {"num_attention_heads", "6 heads in 100"});
    config["hidden_size"] = 600;
    EXPECT_EQ(read(config).head_dim, 100);
    config["hidden_size"] = 6 * 320;
    expect_refused(config, {"num_attention_heads: 320 elements a head"});
    config["hidden_size"] = 2048;
    config["num_attention_heads"] = 128;
    EXPECT_EQ(read(config).kv_heads, 2);
    config["num_key_value_heads"] = 1;
    expect_refused(config, {"num_key_value_heads: 1 for 128 heads", "64 heads a K/V head"});
}

TEST(HfConfig, ClassesThatAreNotSupported) {
    expect_value_refused("architectures", Json::array({"GPT2LMHeadModel"}), {"'GPT2LMHeadModel'"});
    expect_value_refused("architectures", Json::array({"a\nb"}), {"a\\x0ab"});
    expect_value_refused("architectures", Json::array(), {"0 classes"});
    expect_value_refused("architectures", Json::array({1}), {"architectures[0]"});
    expect_value_refused("model_type", "qwen2", {"'qwen2'", "LlamaForCausalLM"});
    expect_value_refused("hidden_act", "gelu", {"'gelu'"});
    Json none = llama();
    none.erase("architectures");
    none["model_type"] = "bert";
    expect_refused(none, {"model_type: 'bert'"});
    none.erase("model_type");
    expect_refused(none, {"'model_type' is missing"});
}

TEST(HfConfig, WindowsShorterThanTheContext) {
    Json mistral = config_of("MistralForCausalLM", "mistral");
    mistral["max_position_embeddings"] = 32768;
    expect_refused(mistral, {"sliding_window", "4096 in a context of 32768"});
    mistral["sliding_window"] = nullptr;
    EXPECT_EQ(read(mistral).context_length, 32768);
    mistral["sliding_window"] = 32768;
    EXPECT_EQ(read(mistral).context_length, 32768);
    mistral["sliding_window"] = 32767;
    expect_refused(mistral, {"sliding_window", "32767"});
    Json qwen = config_of("Qwen3ForCausalLM", "qwen3");
    qwen["sliding_window"] = 512;
    EXPECT_EQ(read(qwen).context_length, 2048);
    qwen["use_sliding_window"] = true;
    expect_refused(qwen, {"sliding_window", "512"});
    qwen["use_sliding_window"] = false;
    qwen["layer_types"] = {"full_attention", "full_attention", "sliding_attention"};
    expect_refused(qwen, {"layer_types[2]: 'sliding_attention'"});
    expect_value_refused("sliding_window", 1000, {"1000"});
}

/// A tensor of one value: what the reader of the configuration asks is only whether it is there.
HfTensor one(const std::string& name) {
    return hf_tensor(name, DType::f32, {1}, std::vector<float>{1});
}

TEST(HfConfig, FieldsThatContradictTheTensors) {
    const std::string layer = "model.layers.0.";
    expect_refused(llama(), {"attention_bias false", layer + "self_attn.q_proj.bias is there"},
                   {one(layer + "self_attn.q_proj.bias")});
    expect_refused(llama(), {"mlp_bias false", layer + "mlp.down_proj.bias is there"},
                   {one(layer + "mlp.down_proj.bias")});
    Json biased = llama();
    biased["attention_bias"] = true;
    expect_refused(biased, {"attention_bias true", layer + "self_attn.q_proj.bias is missing"});
    Json untied = llama();
    untied["tie_word_embeddings"] = false;
    expect_refused(untied, {"tie_word_embeddings is false", "lm_head.weight is missing"});
    EXPECT_EQ(read(untied, {one("lm_head.weight")}).vocabulary, 320);
    untied.erase("tie_word_embeddings");
    expect_refused(untied, {"lm_head.weight is missing"});
    expect_refused(config_of("Qwen2ForCausalLM", "qwen2"),
                   {layer + "self_attn.q_proj.bias is missing"});
}

TEST(HfConfig, AllFaultsAreFound) {
    Json config = llama();
    config["rope_scaling"] = {{"type", "dynamic"}};
    config["tie_word_embeddings"] = false;
    config["sliding_window"] = 5;
    const TempFolder folder;
    write_hf_folder(folder, config, {});
    std::vector<std::string> faults;
    const ModelConfig probed = probe_model_config(ModelFile(folder.path()), faults);
    EXPECT_EQ(faults.size(), 3u);
    EXPECT_EQ(probed.vocabulary, 320);
}

}  // namespace
}  // namespace kd
