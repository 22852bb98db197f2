// Model folders that are sound and unusual: weights at odd addresses, heads of 100 elements.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "formats/safetensors.h"
#include "support/counter_model.h"
#include "support/deepseek_model.h"
#include "support/engine_support.h"
#include "support/model_runner.h"

namespace kd {
namespace {

using Json = nlohmann::ordered_json;

Json fixture_case(const std::string& file, const std::string& name) {
    std::ifstream in(KD_TEST_DATA "/models/" + file);
    const Json fixture = Json::parse(in);
    for (const Json& each : fixture["cases"]) {
        if (each["name"] == name) return each;
    }
    throw std::out_of_range(name);
}

std::vector<float> logits_of(const TempFolder& folder, Kernels kernels) {
    return ModelRunner(folder.path(), kernels, 32).logits_of(random_prompts(1, 20, 300, 3)[0]);
}

/// Written as they come, and once more with an odd offset: the same bits.
void expect_any_address(const Json& config, const std::vector<HfTensor>& tensors) {
    const TempFolder folder, odd;
    write_hf_folder(folder, config, tensors);
    write_hf_folder(odd, config, tensors);
    misalign_weights(odd);
    const SafetensorsFile file(odd.path() + "/model.safetensors");
    for (const SafetensorsEntry& entry : file.entries()) {
        ASSERT_EQ(reinterpret_cast<uintptr_t>(entry.data) % 2, 1u) << entry.name;
    }
    for (const Kernels kernels : {Kernels::reference, Kernels::fast}) {
        EXPECT_EQ(logits_of(odd, kernels), logits_of(folder, kernels));
    }
}

/// The tensors, which are BF16 or F32, in another float type.
std::vector<HfTensor> converted(std::vector<HfTensor> tensors, DType type) {
    for (HfTensor& tensor : tensors) {
        const DType from = tensor.type == "F32" ? DType::f32 : DType::bf16;
        std::vector<float> values(tensor.data.size() / static_cast<size_t>(bytes_of(from, 1)));
        dequantise(from, reinterpret_cast<const std::byte*>(tensor.data.data()), std::ssize(values),
                   values.data());
        tensor = hf_tensor(tensor.name, type, tensor.shape, values);
    }
    return tensors;
}

TEST(OddShapes, DenseWeightsAtAnyAddress) {
    for (const std::string name : {"qwen2_tied", "qwen3"}) {
        const Json model = fixture_case("dense_gqa.json", name);
        for (const DType type : {DType::bf16, DType::f16, DType::f32}) {
            SCOPED_TRACE(testing::Message() << name << ' ' << name_of(type));
            expect_any_address(model["config"], converted(counter_tensors(model), type));
        }
    }
}

TEST(OddShapes, ExpertsAndLatentAttentionAtAnyAddress) {
    const Json test = fixture_case("deepseek.json", "base");
    const std::vector<HfTensor> tensors = deepseek_checkpoint(
        {.config = test["config"], .weights = test.value("weights", Json::object())});
    for (const DType type : {DType::bf16, DType::f32}) {
        SCOPED_TRACE(name_of(type));
        expect_any_address(test["config"], converted(tensors, type));
    }
}

/// OpenLLaMA-3B has heads of 100 elements. The reference is the truth: its op has no vectors.
TEST(OddShapes, HeadsOfAnyMultipleOfFour) {
    for (const int64_t head_dim : {4, 20, 100, 252}) {
        SCOPED_TRACE(head_dim);
        Json model = fixture_case("dense_gqa.json", "llama");
        const auto heads = model["config"]["num_attention_heads"].get<int64_t>();
        const auto kv_heads = model["config"]["num_key_value_heads"].get<int64_t>();
        model["config"]["head_dim"] = head_dim;
        for (Json& parameter : model["parameters"]) {
            const auto name = parameter[0].get<std::string>();
            if (name.ends_with("q_proj.weight")) parameter[1][0] = heads * head_dim;
            if (name.ends_with("k_proj.weight")) parameter[1][0] = kv_heads * head_dim;
            if (name.ends_with("v_proj.weight")) parameter[1][0] = kv_heads * head_dim;
            if (name.ends_with("o_proj.weight")) parameter[1][1] = heads * head_dim;
        }
        const TempFolder folder;
        write_hf_folder(folder, model["config"], counter_tensors(model));
        const std::vector<float> expected = logits_of(folder, Kernels::reference);
        const std::vector<float> actual = logits_of(folder, Kernels::fast);
        double difference = 0, norm = 0;
        for (size_t i = 0; i < expected.size(); ++i) {
            difference += std::pow(double{actual[i]} - expected[i], 2);
            norm += std::pow(double{expected[i]}, 2);
        }
        // K and V rounded to f16.
        EXPECT_LE(std::sqrt(difference / norm), 1e-3);
    }
}

}  // namespace
}  // namespace kd
