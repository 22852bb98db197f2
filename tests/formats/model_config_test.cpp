#include "formats/model_config.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <limits>

#include "base/error.h"
#include "formats/model_file.h"
#include "support/gguf_writer.h"
#include "support/tiny_model.h"

namespace kd {
namespace {

/// A complete small configuration; keys `except` are left out so that a test can add its own.
template <class... Keys>
GgufWriter config_without(const Keys&... except) {
    GgufWriter writer;
    const auto has = [&](std::string_view key) {
        return !((key == std::string_view(except)) || ...);
    };
    const auto set = [&](std::string_view key, auto value) {
        if (has(key)) writer.set(key, value);
    };
    if (has("general.architecture")) writer.set_string("general.architecture", "llama");
    set("llama.block_count", 3u);
    set("llama.context_length", 2048u);
    set("llama.embedding_length", 96u);
    set("llama.feed_forward_length", 256u);
    set("llama.attention.head_count", 6u);
    set("llama.attention.head_count_kv", 2u);
    set("llama.attention.layer_norm_rms_epsilon", 1e-6f);
    if (has("tokenizer.ggml.tokens")) {
        writer.set_strings("tokenizer.ggml.tokens", {"a", "b", "c"});
    }
    return writer;
}

ModelConfig read(const GgufWriter& writer) {
    const TempPath file;
    writer.write(file.path());
    return read_model_config(ModelFile(file.path()));
}

/// Expects a refusal that names the key and all of `parts`.
void expect_refused(const GgufWriter& writer, const std::string& key,
                    const std::vector<std::string>& parts = {}) {
    try {
        read(writer);
        ADD_FAILURE() << key << ": nothing was thrown";
    } catch (const Error& error) {
        const std::string message = error.what();
        EXPECT_NE(message.find("'" + key + "'"), std::string::npos) << message;
        EXPECT_EQ(message.find('\n'), std::string::npos) << message;
        for (const std::string& part : parts) {
            EXPECT_NE(message.find(part), std::string::npos) << message << "\nlacks: " << part;
        }
    }
}

template <class T>
void expect_value_refused(const std::string& key, T value, const std::string& printed) {
    GgufWriter writer = config_without(key);
    writer.set(key, value);
    expect_refused(writer, key, {printed});
}

TEST(ModelConfig, DefaultsOfAbsentKeys) {
    const TempPath file("-name.gguf");
    config_without("llama.attention.head_count_kv").write(file.path());
    const ModelConfig config = read_model_config(ModelFile(file.path()));
    EXPECT_EQ(config.architecture, "llama");
    EXPECT_EQ(config.name, std::filesystem::path(file.path()).filename());
    EXPECT_EQ(config.layers, 3);
    EXPECT_EQ(config.hidden, 96);
    EXPECT_EQ(config.intermediate, 256);
    EXPECT_EQ(config.heads, 6);
    EXPECT_EQ(config.kv_heads, 6);
    EXPECT_EQ(config.head_dim, 16);
    EXPECT_EQ(config.rope_dim, 16);
    EXPECT_EQ(config.rope_base, 10000);
    EXPECT_EQ(config.norm_epsilon, double{1e-6f});
    EXPECT_EQ(config.vocabulary, 3);
    EXPECT_EQ(config.context_length, 2048);
    EXPECT_EQ(config.rope_pairing, RopePairing::adjacent);
}

TEST(ModelConfig, StatedValuesAreHonoured) {
    GgufWriter writer = config_without("");
    writer.set_string("general.name", "A name");
    writer.set("llama.attention.key_length", 24u);
    writer.set("llama.attention.value_length", 24u);
    writer.set("llama.rope.dimension_count", 8u);
    writer.set("llama.rope.freq_base", 5e5f);
    writer.set("llama.vocab_size", 3u);
    writer.set("llama.expert_count", 0u);
    writer.set_string("llama.rope.scaling.type", "none");
    writer.set("llama.rope.scaling.factor", 4.0f);  // no effect under "none"
    const ModelConfig config = read(writer);
    EXPECT_EQ(config.name, "A name");
    EXPECT_EQ(config.kv_heads, 2);
    EXPECT_EQ(config.head_dim, 24);
    EXPECT_EQ(config.rope_dim, 8);
    EXPECT_EQ(config.rope_base, 5e5);
}

TEST(ModelConfig, NamesThatAreNoLineGiveWayToTheFilesName) {
    for (const std::string& name : {std::string("two\nlines"), std::string(300, 'n')}) {
        GgufWriter writer = config_without("");
        writer.set_string("general.name", name);
        EXPECT_NE(read(writer).name, name);
    }
}

TEST(ModelConfig, TinyModel) {
    const TempPath file;
    write_tiny_model(file.path());
    const ModelConfig config = read_model_config(ModelFile(file.path()));
    EXPECT_EQ(config.layers, 2);
    EXPECT_EQ(config.hidden, 64);
    EXPECT_EQ(config.intermediate, 96);
    EXPECT_EQ(config.heads, 4);
    EXPECT_EQ(config.kv_heads, 2);
    EXPECT_EQ(config.head_dim, 16);
    EXPECT_EQ(config.vocabulary, 320);
    EXPECT_EQ(config.context_length, 512);
}

TEST(ModelConfig, RequiredKeys) {
    for (const std::string key :
         {"general.architecture", "llama.block_count", "llama.context_length",
          "llama.embedding_length", "llama.feed_forward_length", "llama.attention.head_count",
          "llama.attention.layer_norm_rms_epsilon", "tokenizer.ggml.tokens"}) {
        expect_refused(config_without(key), key, {"missing"});
    }
}

TEST(ModelConfig, OutOfRange) {
    for (const std::string key :
         {"llama.block_count", "llama.context_length", "llama.embedding_length",
          "llama.feed_forward_length", "llama.attention.head_count",
          "llama.attention.head_count_kv", "llama.rope.dimension_count",
          "llama.attention.key_length", "llama.attention.value_length", "llama.vocab_size"}) {
        expect_value_refused(key, 0u, "0");
        expect_value_refused(key, -1, "-1");
        expect_value_refused(key, 4294967295u, "4294967295");
        expect_value_refused(key, ~uint64_t{0}, "18446744073709551615");
        expect_value_refused(key, 1.0f, "float 1");
    }
    expect_value_refused("llama.block_count", 1025u, "1025");
    expect_value_refused("llama.attention.key_length", 514u, "514");
    expect_value_refused("llama.embedding_length", 65537u, "65537");
    expect_value_refused("llama.context_length", (1u << 24) + 1, "16777217");
}

TEST(ModelConfig, FloatsMustBeSensible) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const float inf = std::numeric_limits<float>::infinity();
    for (const std::string key :
         {"llama.attention.layer_norm_rms_epsilon", "llama.rope.freq_base"}) {
        for (const float value : {nan, inf, -inf, 0.0f, -0.0f, -1e-5f, 1e30f}) {
            expect_value_refused(key, value, "is not in [");
        }
        expect_value_refused(key, 10000u, "not a float");
    }
}

TEST(ModelConfig, HeadsAndRotation) {
    expect_value_refused("llama.attention.head_count", 10u, "10 does not divide 96");
    expect_value_refused("llama.attention.head_count_kv", 4u, "4 does not divide 6");
    expect_value_refused("llama.attention.head_count_kv", 7u, "7");
    expect_value_refused("llama.rope.dimension_count", 7u, "7");
    expect_value_refused("llama.rope.dimension_count", 18u, "18");
    expect_value_refused("llama.rope.dimension_count", 15u, "15 is odd");
    expect_value_refused("llama.attention.value_length", 8u, "16");
}

TEST(ModelConfig, HeadsThatAttentionTakes) {
    for (const uint32_t dim : {15u, 18u, 98u, 260u, 320u}) {
        expect_value_refused("llama.attention.key_length", dim,
                             fmt::format("{} elements a head", dim));
    }
    const auto shaped = [](uint32_t hidden, uint32_t heads, uint32_t kv_heads) {
        GgufWriter writer = config_without("llama.embedding_length", "llama.attention.head_count",
                                           "llama.attention.head_count_kv");
        writer.set("llama.embedding_length", hidden);
        writer.set("llama.attention.head_count", heads);
        writer.set("llama.attention.head_count_kv", kv_heads);
        return writer;
    };
    expect_refused(shaped(640, 2, 2), "llama.attention.head_count", {"320 elements a head"});
    expect_refused(shaped(2048, 128, 1), "llama.attention.head_count_kv",
                   {"1 for 128 heads", "64 heads a K/V head"});
    EXPECT_EQ(read(shaped(3200, 32, 32)).head_dim, 100);
    EXPECT_EQ(read(shaped(2048, 128, 2)).kv_heads, 2);
}

TEST(ModelConfig, WhatWouldRunWronglyIsRefused) {
    GgufWriter architecture = config_without("general.architecture");
    architecture.set_string("general.architecture", "qwen\n2");
    expect_refused(architecture, "general.architecture", {"qwen\\x0a2"});
    GgufWriter scaled = config_without("");
    scaled.set_string("llama.rope.scaling.type", "longrope");
    expect_refused(scaled, "llama.rope.scaling.type", {"longrope"});
    GgufWriter yarn = config_without("");
    yarn.set_string("llama.rope.scaling.type", "yarn");
    expect_refused(yarn, "llama.rope.scaling.factor", {"missing", "yarn"});
    expect_value_refused("llama.rope.scaling.factor", -4.0f, "-4");
    expect_value_refused("llama.rope.scaling.factor", 1e-310, "1e-310 is not in [0.001");
    expect_value_refused("llama.rope.scale_linear", 0.0009f, "is not in [0.001");
    expect_value_refused("llama.rope.scaling.attn_factor", 1.5f, "1.5");
    expect_value_refused("llama.rope.scaling.yarn_log_multiplier", 0.1f, "not supported");
    expect_value_refused("llama.expert_count", 8u, "8");
    expect_value_refused("llama.attention.sliding_window", 1024u, "1024 in a context of 2048");
    expect_value_refused("llama.attention.causal", false, "false");
    expect_value_refused("llama.final_logit_softcapping", 30.0f, "not supported");
    expect_value_refused("llama.logit_scale", 0.5f, "not supported");
    GgufWriter factors = config_without("");
    factors.add_tensor("rope_factors_long.weight", DType::f32, 0, 8, std::vector<float>(8, 1.0f));
    expect_refused(factors, "rope_factors_long.weight");
}

TEST(ModelConfig, RopeScaling) {
    EXPECT_EQ(read(config_without("")).rope_scaling.type, RopeScalingType::none);
    for (const std::string key : {"llama.rope.scaling.factor", "llama.rope.scale_linear"}) {
        GgufWriter linear = config_without("");
        linear.set(key, 4.0f);
        const RopeScaling scaling = read(linear).rope_scaling;
        EXPECT_EQ(scaling.type, RopeScalingType::linear);
        EXPECT_EQ(scaling.factor, 4);
    }
    GgufWriter yarn = config_without("");
    yarn.set_string("llama.rope.scaling.type", "yarn");
    yarn.set("llama.rope.scaling.factor", 8.0f);
    yarn.set("llama.rope.scaling.original_context_length", 256u);
    yarn.set("llama.rope.scaling.yarn_beta_fast", 16.0f);
    const RopeScaling scaling = read(yarn).rope_scaling;
    EXPECT_EQ(scaling.type, RopeScalingType::yarn);
    EXPECT_EQ(scaling.factor, 8);
    EXPECT_EQ(scaling.original_context, 256);
    EXPECT_EQ(scaling.beta_fast, 16);
    EXPECT_EQ(scaling.beta_slow, 1);
}

TEST(ModelConfig, QwenPairsHalves) {
    for (const std::string architecture : {"qwen2", "qwen3"}) {
        GgufWriter writer;
        writer.set_string("general.architecture", architecture);
        for (const auto& [key, value] :
             std::initializer_list<std::pair<const char*, uint32_t>>{{"block_count", 2},
                                                                     {"context_length", 64},
                                                                     {"embedding_length", 96},
                                                                     {"feed_forward_length", 64},
                                                                     {"attention.head_count", 6}}) {
            writer.set(architecture + "." + key, value);
        }
        writer.set(architecture + ".attention.layer_norm_rms_epsilon", 1e-6f);
        writer.set_strings("tokenizer.ggml.tokens", {"a"});
        const ModelConfig config = read(writer);
        EXPECT_EQ(config.architecture, architecture);
        EXPECT_EQ(config.rope_pairing, RopePairing::half);
    }
}

TEST(ModelConfig, VocabularyIsTheTokenList) {
    expect_value_refused("llama.vocab_size", 4u, "has 3");
    GgufWriter none = config_without("tokenizer.ggml.tokens");
    none.set_strings("tokenizer.ggml.tokens", {});
    expect_refused(none, "tokenizer.ggml.tokens", {"0 tokens"});
    GgufWriter numbers = config_without("tokenizer.ggml.tokens");
    numbers.set_array<int32_t>("tokenizer.ggml.tokens", {1, 2, 3});
    expect_refused(numbers, "tokenizer.ggml.tokens", {"3 int32"});
}

TEST(ModelConfig, RealFile) {
    const char* home = std::getenv("HOME");
    const char* cache = std::getenv("KDTREE_CACHE");
    const std::string folder =
        cache != nullptr ? cache : std::string(home != nullptr ? home : "") + "/.cache/kdtree";
    const std::string path = folder + "/SmolLM2-135M-Instruct.Q4_1.gguf";
    if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is not there";
    const ModelConfig config = read_model_config(ModelFile(path));
    EXPECT_EQ(config.name, "Smollm2 135M 8k Lc100K Mix1 Ep2");
    EXPECT_EQ(config.layers, 30);
    EXPECT_EQ(config.hidden, 576);
    EXPECT_EQ(config.intermediate, 1536);
    EXPECT_EQ(config.heads, 9);
    EXPECT_EQ(config.kv_heads, 3);
    EXPECT_EQ(config.head_dim, 64);
    EXPECT_EQ(config.rope_dim, 64);
    EXPECT_EQ(config.rope_base, 100000);
    EXPECT_EQ(config.norm_epsilon, double{1e-5f});
    EXPECT_EQ(config.vocabulary, 49152);
    EXPECT_EQ(config.context_length, 8192);
}

}  // namespace
}  // namespace kd
