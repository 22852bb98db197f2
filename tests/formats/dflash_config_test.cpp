// What is read from the config.json of a DFlash drafter, and what is refused by name.
#include "formats/dflash_config.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/dflash_checkpoint.h"
#include "support/engine_support.h"

namespace kd {
namespace {

using nlohmann::json;

DflashConfig read(const json& config) {
    return read_dflash_config(
        write_dflash_checkpoint({{"config", config}, {"tensors", json::array()}}));
}

TEST(DflashConfig, PublishersSayTheSameInDifferentPlaces) {
    const DflashConfig plain = read(dflash_case("full")["config"]);
    EXPECT_EQ(plain.target_layers, (std::vector<int32_t>{0, 2}));
    EXPECT_EQ(plain.block, 8);
    EXPECT_EQ(plain.drafts, 7);
    EXPECT_EQ(plain.first_row, 1);
    EXPECT_EQ(plain.mask_token, 17);
    EXPECT_EQ(plain.target_layer_count, 4);
    EXPECT_FALSE(plain.layers[0].causal);
    EXPECT_EQ(plain.head, DraftHeadType::none);

    const DflashConfig speculators = read(dflash_case("speculators")["config"]);
    EXPECT_EQ(speculators.target_layers, plain.target_layers);  // written as 1 and 3
    EXPECT_EQ(speculators.draft_vocabulary, 200);
    EXPECT_TRUE(speculators.window_from_anchor);
    EXPECT_EQ(speculators.layers[1].window, 12);
    EXPECT_TRUE(speculators.layers[1].causal);
    EXPECT_FALSE(read(dflash_case("speculators_bidirectional")["config"]).layers[0].causal);

    const DflashConfig dspark = read(dflash_case("dspark")["config"]);
    EXPECT_EQ(dspark.drafts, 8);
    EXPECT_EQ(dspark.first_row, 0);
    EXPECT_EQ(dspark.head, DraftHeadType::markov);
    EXPECT_EQ(dspark.head_rank, 24);
    const DflashConfig shifted = read(dflash_case("draft_vocabulary")["config"]);
    EXPECT_EQ(shifted.drafts, 7);
    EXPECT_EQ(shifted.first_row, 0);
    const DflashConfig sliding = read(dflash_case("sliding_bidirectional")["config"]);
    EXPECT_FALSE(sliding.layers[1].causal);
    EXPECT_EQ(sliding.layers[1].window, 12);

    json newer = dflash_case("full")["config"];
    newer.erase("rope_theta");
    newer["rope_parameters"] = {{"rope_theta", 5e4}, {"rope_type", "default"}};
    EXPECT_EQ(read(newer).rope_base, 5e4);
}

TEST(DflashConfig, RefusesByName) {
    const auto refused = [](const char* pointer, const json& value, const std::string& message) {
        json config = dflash_case("full")["config"];
        config[json::json_pointer(pointer)] = value;
        const std::string error = error_of([&] { read(config); });
        EXPECT_NE(error.find(message), std::string::npos) << error << "\nexpected: " << message;
        EXPECT_EQ(error.find('\n'), std::string::npos);
    };
    refused("/architectures/0", "LlamaForCausalLM", "'LlamaForCausalLM' is none of");
    refused("/architectures", json::array(), "architectures");
    refused("/model_type", "llama", "only layers of qwen3");
    refused("/hidden_act", "gelu", "only silu");
    refused("/block_size", 0, "block_size: 0, not an integer from 1 to 64");
    refused("/block_size", 65, "block_size: 65, not an integer from 1 to 64");
    refused("/block_size", 1, "block_size 1 drafts nothing");
    refused("/dflash_config/mask_token_id", 320,
            "mask_token_id: 320, not an integer from 0 to 319");
    refused("/dflash_config/mask_token_id", nullptr, "'mask_token_id' is missing");
    refused("/dflash_config/target_layer_ids", {2, 2}, "target_layer_ids[1]: 2 behind 2");
    refused("/dflash_config/target_layer_ids", {2, 0}, "target_layer_ids[1]: 0 behind 2");
    refused("/dflash_config/target_layer_ids", {-1, 0}, "target_layer_ids[0]: -1");
    refused("/dflash_config/target_layer_ids", json::array(), "target_layer_ids");
    refused("/head_dim", 17, "head_dim: 17 elements a head");
    refused("/head_dim", 18, "head_dim: 18 elements a head");
    refused("/head_dim", 260, "head_dim: 260 elements a head");
    refused("/num_key_value_heads", 3, "num_key_value_heads: 3 does not divide");
    refused("/num_attention_heads", 130, "num_key_value_heads: 2 for 130 heads");
    refused("/hidden_size", 1 << 20, "hidden_size");
    refused("/hidden_size", "64", "hidden_size: '64', not an integer");
    refused("/vocab_size", 0, "vocab_size");
    refused("/num_hidden_layers", 3, "2 layer_types for num_hidden_layers 3");
    refused("/layer_types/1", "linear_attention", "linear_attention");
    refused("/layer_types/1", "sliding_attention", "use_sliding_window is false");
    refused("/rms_norm_eps", 0, "rms_norm_eps");
    refused("/rope_theta", nullptr, "'rope_theta' is missing");
    refused("/draft_vocab_size", 321, "draft_vocab_size: 321");
    refused("/dflash_config/markov_rank", 5000, "markov_rank");
    refused("/dflash_config/projector_type", "domino", "domino");
    refused("/dflash_config/shift_label", true, "shift_label");
    refused("/dflash_config/selector_rank", 256, "selector_rank");
    refused("/output_multiplier", 2.0, "output_multiplier");
    refused("/kdtree/weight", "x", "'weight' is not known");
    refused("/kdtree/weights", "../model.gguf", "the name of a file in the folder");
    refused("/kdtree/residual_head", "/etc/passwd", "the name of a file in the folder");
    for (const std::string name : {"", ".model.gguf", "a\x1b[2J.gguf", "a\n.gguf", "a\xc2\x85"}) {
        refused("/kdtree/weights", name, "the name of a file in the folder");
    }
    refused("/kdtree/weights", std::string("model.gguf\0x", 12), "'model.gguf\\x00x', not");
    // C1 and a bidirectional override are shown escaped, and no character is cut in two.
    refused("/hidden_act", "a\xc2\x9b\xe2\x80\xae", "'a\\xc2\\x9b\\xe2\\x80\\xae': only silu");
    refused("/hidden_act", std::string(63, 'x') + "\xc3\xa9", "x\\xc3...': only silu");
    refused("/rope_scaling", {{"factor", 2.0}}, "rope_scaling: a factor without rope_type");
    refused("/rope_scaling", {{"rope_type", "linear"}, {"factor", 2.0}, {"wavelength", 3}},
            "rope_scaling.wavelength: is not supported");
    refused("/partial_rotary_factor", 0.5, "partial_rotary_factor: 0.5 is not supported");
    refused("/kdtree/greedy_power", {1.0, 1.0}, "an array of 7, one a draft");
    refused("/kdtree/target_sha256", "abc", "64 lower-case hex digits");

    json config = dflash_case("gated")["config"];
    config["dflash_config"]["markov_head_type"] = "rnn";
    EXPECT_NE(error_of([&] { read(config); }).find("only vanilla and gated"), std::string::npos);
    config = dflash_case("sliding")["config"];
    config["sliding_window"] = 7;
    EXPECT_NE(error_of([&] { read(config); }).find("sliding_window 7 is smaller than block_size 8"),
              std::string::npos);
    config["sliding_window"] = nullptr;
    EXPECT_NE(error_of([&] { read(config); }).find("'sliding_window' is missing"),
              std::string::npos);
    config = dflash_case("dspark")["config"];
    config["kdtree"]["residual_head"] = "head.safetensors";
    EXPECT_NE(error_of([&] { read(config); }).find("there is a Markov head already"),
              std::string::npos);
}

}  // namespace
}  // namespace kd
