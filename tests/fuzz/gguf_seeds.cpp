#include "fuzz/gguf_seeds.h"

#include <fmt/format.h>

#include <utility>

namespace kd {

namespace {

constexpr int kHidden = 32;

std::vector<float> ramp(uint64_t count) {
    std::vector<float> values(count);
    for (uint64_t i = 0; i < count; ++i) values[i] = static_cast<float>(i % 37) * 0.03f - 0.5f;
    return values;
}

void add_matrix(GgufWriter& writer, const std::string& name, DType type, uint64_t rows,
                uint64_t columns) {
    writer.add_tensor(name, type, rows, columns, ramp(rows * columns));
}

GgufWriter all_metadata() {
    GgufWriter writer;
    writer.set("u8", uint8_t{200});
    writer.set("i8", int8_t{-3});
    writer.set("u16", uint16_t{60000});
    writer.set("i16", int16_t{-30000});
    writer.set("u32", uint32_t{4000000000u});
    writer.set("i32", int32_t{-5});
    writer.set("u64", uint64_t{1} << 63);
    writer.set("i64", int64_t{-1});
    writer.set("f32", 1.5f);
    writer.set("f64", -2.5);
    writer.set("bool", true);
    writer.set_string("string", "text");
    writer.set_array<uint8_t>("u8s", {1, 2});
    writer.set_array<int8_t>("i8s", {-1, 2});
    writer.set_array<uint16_t>("u16s", {1, 2});
    writer.set_array<int16_t>("i16s", {-1, 2});
    writer.set_array<uint32_t>("u32s", {1, 2});
    writer.set_array<int32_t>("i32s", {-1, 2});
    writer.set_array<uint64_t>("u64s", {1, uint64_t{1} << 63});
    writer.set_array<int64_t>("i64s", {-1, 2});
    writer.set_array<float>("f32s", {1, 2});
    writer.set_array<double>("f64s", {1, 2});
    writer.set_array<bool>("bools", {true, false});
    writer.set_strings("strings", {"a", "", "bc"});
    writer.set_array<int32_t>("none", {});
    return writer;
}

GgufWriter all_tensors() {
    GgufWriter writer;
    writer.alignment = 64;
    writer.set("general.alignment", uint32_t{64});
    for (const DType type :
         {DType::f32, DType::f16, DType::bf16, DType::q8_0, DType::q4_0, DType::q4_1, DType::q4_k,
          DType::q6_k, DType::q5_0, DType::q5_1, DType::q5_k, DType::iq4_nl}) {
        const auto columns = static_cast<uint64_t>(block_elements(type));
        writer.add_tensor(std::string(name_of(type)), type, 1, columns, ramp(columns));
    }
    const std::string four(16, '\0');
    writer.add_tensor({.name = "4d", .dims = {2, 1, 2, 1}, .type = 0, .data = four, .offset = {}});
    return writer;
}

/// Tokenizers of three tokens with one thing besides.
void add_tokenizers(std::vector<std::pair<std::string, std::string>>& seeds) {
    const auto add = [&](const std::string& model, const auto& change) {
        GgufWriter writer;
        writer.set_string("tokenizer.ggml.model", model);
        writer.set_string("tokenizer.ggml.pre", "smollm");
        writer.set_strings("tokenizer.ggml.tokens", {"a", "b", "ab"});
        writer.set_strings("tokenizer.ggml.merges", {"a b"});
        change(writer);
        seeds.emplace_back(fmt::format("tokenizer-{}", seeds.size()), writer.bytes());
    };
    add("llama", [](GgufWriter&) {});
    for (const std::vector<int32_t>& types :
         {std::vector<int32_t>{1, 1}, {1, 1, 7}, {1, 1, 6}, {1, 1, 3}}) {
        add("gpt2",
            [&](GgufWriter& writer) { writer.set_array("tokenizer.ggml.token_type", types); });
    }
    for (const std::string flag : {"add_space_prefix", "add_bos_token", "add_eos_token"}) {
        add("gpt2", [&](GgufWriter& writer) { writer.set("tokenizer.ggml." + flag, true); });
    }
    add("gpt2",
        [](GgufWriter& writer) { writer.set_string("tokenizer.chat_template.tool_use", "x"); });
}

/// One of two; fuzz_gguf.cpp cuts a file at its last "GGUF".
GgufWriter part(uint16_t number) {
    GgufWriter writer;
    writer.set("split.no", number);
    writer.set("split.count", uint16_t{2});
    writer.set("split.tensors.count", int32_t{2});
    writer.set("f32", 1.5f);
    writer.set("bool", true);
    writer.set("i32", int32_t{-5});
    writer.set_string("string", "text");
    writer.set_array<int16_t>("i16s", {-1, 2});
    writer.set_strings("strings", {"a", "", "bc"});
    writer.add_tensor(fmt::format("tensor {}", number), DType::f32, 0, 8, ramp(8));
    return writer;
}

/// Types that are listed but not computed with: known blocks, unknown ones, given up, beyond all.
GgufWriter foreign_tensors() {
    GgufWriter writer;
    for (const uint32_t type : {10u, 16u, 24u, 39u, 4u, 31u, 77u}) {
        writer.add_tensor({.name = fmt::format("type {}", type),
                           .dims = {256},
                           .type = type,
                           .data = std::string(1024, '\1'),
                           .offset = {}});
    }
    return writer;
}

void set_shape(GgufWriter& writer, const std::string& architecture) {
    writer.set_string("general.architecture", architecture);
    for (const auto& [key, value] : {std::pair{"block_count", 2u},
                                     {"context_length", 64u},
                                     {"embedding_length", 32u},
                                     {"feed_forward_length", 32u},
                                     {"attention.head_count", 4u}}) {
        writer.set(fmt::format("{}.{}", architecture, key), value);
    }
    writer.set(architecture + ".attention.layer_norm_rms_epsilon", 1e-5f);
    writer.set_strings("tokenizer.ggml.tokens", {"a", "b"});
}

/// Metadata of DeepSeek models, in the form before and since attention is absorbed.
GgufWriter deepseek_metadata(bool absorbed) {
    GgufWriter writer;
    set_shape(writer, "deepseek2");
    const std::string suffix = absorbed ? "_mla" : "";
    if (absorbed) {
        writer.set("deepseek2.attention.key_length", 24u);
        writer.set("deepseek2.attention.value_length", 16u);
    }
    for (const auto& [key, value] : {std::pair<std::string, uint32_t>{"attention.q_lora_rank", 16},
                                     {"attention.kv_lora_rank", 16},
                                     {"rope.dimension_count", 8},
                                     {"attention.key_length" + suffix, 16},
                                     {"attention.value_length" + suffix, 8},
                                     {"leading_dense_block_count", 1},
                                     {"expert_count", 4},
                                     {"expert_used_count", 2},
                                     {"expert_group_count", 2},
                                     {"expert_group_used_count", 1},
                                     {"expert_feed_forward_length", 32},
                                     {"expert_shared_count", 1},
                                     {"expert_gating_func", absorbed ? 2 : 1}}) {
        writer.set("deepseek2." + key, value);
    }
    writer.set("deepseek2.expert_weights_scale", 2.5f);
    writer.set("deepseek2.expert_weights_norm", true);
    writer.set_string("deepseek2.rope.scaling.type", "yarn");
    writer.set("deepseek2.rope.scaling.factor", 4.0f);
    writer.set("deepseek2.rope.scaling.original_context_length", 16u);
    return writer;
}

}  // namespace

GgufWriter smallest_model(DType weights) {
    GgufWriter writer;
    writer.set_string("general.architecture", "llama");
    writer.set("llama.block_count", 1u);
    writer.set("llama.context_length", 64u);
    writer.set("llama.embedding_length", static_cast<uint32_t>(kHidden));
    writer.set("llama.feed_forward_length", static_cast<uint32_t>(kHidden));
    writer.set("llama.attention.head_count", 4u);
    writer.set("llama.attention.head_count_kv", 2u);
    writer.set("llama.attention.layer_norm_rms_epsilon", 1e-5f);
    writer.set("llama.rope.dimension_count", 8u);
    writer.set("llama.rope.freq_base", 10000.0f);
    writer.set_string("tokenizer.ggml.model", "gpt2");
    writer.set_string("tokenizer.ggml.pre", "smollm");
    writer.set_strings("tokenizer.ggml.tokens", {"<|im_end|>", "a", "b", "ab", "aba", "[x]"});
    writer.set_array<int32_t>("tokenizer.ggml.token_type", {3, 1, 1, 1, 1, 4});
    writer.set_strings("tokenizer.ggml.merges", {"a b", "ab a"});
    writer.set("tokenizer.ggml.eos_token_id", 0u);
    writer.set_string("tokenizer.chat_template",
                      "{% for m in messages %}{{ m['content'] }}{% endfor %}");
    add_matrix(writer, "token_embd.weight", weights, 6, kHidden);
    for (const std::string_view norm :
         {"blk.0.attn_norm.weight", "blk.0.ffn_norm.weight", "output_norm.weight"}) {
        writer.add_tensor(norm, DType::f32, 0, kHidden, std::vector<float>(kHidden, 1.0f));
    }
    for (const std::string_view part :
         {"attn_q", "attn_output", "ffn_gate", "ffn_up", "ffn_down"}) {
        add_matrix(writer, fmt::format("blk.0.{}.weight", part), weights, kHidden, kHidden);
    }
    for (const std::string_view part : {"attn_k", "attn_v"}) {
        add_matrix(writer, fmt::format("blk.0.{}.weight", part), weights, kHidden / 2, kHidden);
    }
    return writer;
}

std::vector<std::pair<std::string, std::string>> gguf_seeds() {
    std::vector<std::pair<std::string, std::string>> seeds;
    const auto add = [&](std::string name, const GgufWriter& writer) {
        seeds.emplace_back(std::move(name), writer.bytes());
    };
    for (const DType type : {DType::q4_1, DType::q4_0, DType::q8_0, DType::f16, DType::q5_0,
                             DType::q5_1, DType::iq4_nl}) {
        add("model-" + std::string(name_of(type)), smallest_model(type));
    }
    add("metadata", all_metadata());
    add("tensors", all_tensors());
    add("foreign", foreign_tensors());
    add_tokenizers(seeds);
    add("deepseek", deepseek_metadata(false));
    add("deepseek-absorbed", deepseek_metadata(true));
    for (const std::string key :
         {"attention.scale", "expert_count", "attention.sliding_window", "vocab_size",
          "rope.dimension_sections", "attention.key_length", "attention.value_length"}) {
        GgufWriter asks_for_more;
        set_shape(asks_for_more, "qwen2");
        asks_for_more.set("qwen2." + key, 8u);
        add("qwen2-" + key, asks_for_more);
    }
    const std::string parts = part(0).bytes() + part(1).bytes();
    seeds.emplace_back("parts", parts);
    seeds.emplace_back("parts-cut-off", parts.substr(0, parts.size() - 8));
    seeds.emplace_back("part-twice", part(1).bytes() + part(1).bytes());
    GgufWriter old = all_metadata();
    old.version = 2;
    add("version-2", old);
    GgufWriter wrong;
    wrong.version = 0x03000000;
    add("big-endian", wrong);
    wrong = {};
    wrong.set_raw_array("nested", static_cast<uint32_t>(GgufValueType::array), 1, raw_bytes(4u));
    add("nested-array", wrong);
    wrong = {};
    wrong.set_raw_array("bools", static_cast<uint32_t>(GgufValueType::boolean), 2, "\1\2");
    add("bool-of-two", wrong);
    wrong = {};
    wrong.set("twice", 1u);
    wrong.set("twice", 1u);
    add("key-twice", wrong);
    const GgufWriter::Tensor tensor{
        .name = "t", .dims = {8}, .type = 0, .data = std::string(32, '\0'), .offset = {}};
    wrong = {};
    wrong.add_tensor(tensor);
    wrong.add_tensor(tensor);
    add("tensor-twice", wrong);
    wrong = {};
    wrong.add_tensor(tensor);
    wrong.add_tensor(
        {.name = "u", .dims = {8}, .type = 0, .data = tensor.data, .offset = uint64_t{0}});
    add("overlap", wrong);
    wrong = {};
    wrong.set("general.alignment", 24u);
    add("odd-alignment", wrong);
    return seeds;
}

}  // namespace kd
