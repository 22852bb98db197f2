// Drafters' files: quantised ones, and those that lie.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>

#include "models/dflash_subject.h"
#include "support/engine_support.h"
#include "support/gguf_writer.h"

namespace kd {
namespace {

using nlohmann::json;

std::string load_error(const json& description) {
    return error_of([&] { Subject subject(description, Kernels::fast); });
}

json& tensor_of(json& description, const std::string& name) {
    for (json& tensor : description["tensors"]) {
        if (tensor[0] == name) return tensor;
    }
    throw std::runtime_error("no tensor " + name);
}

void expect_refused(const std::string& name, const std::function<void(json&)>& change,
                    const std::string& message) {
    json description = dflash_case(name);
    change(description);
    const std::string error = load_error(description);
    EXPECT_NE(error.find(message), std::string::npos) << error << "\nexpected: " << message;
    EXPECT_EQ(error.find('\n'), std::string::npos);
}

TEST(DflashWeights, RefusesTensorsByName) {
    const std::string q = "layers.1.self_attn.q_proj.weight";
    expect_refused(
        "full", [&](json& d) { tensor_of(d, q)[0] = "layers.1.self_attn.p_proj.weight"; },
        "tensor " + q + " is missing");
    expect_refused(
        "full",
        [&](json& d) {
            d["tensors"].push_back(
                {"layers.2.mlp.up_proj.weight", {96, 64}, "matrix", "model.safetensors"});
        },
        "tensor 'layers.2.mlp.up_proj.weight' is not part of a DFlash drafter");
    expect_refused(
        "full",
        [&](json& d) {
            d["tensors"].push_back({"model.norm.weight", {64}, "norm", "model.safetensors"});
        },
        "tensors 'model.norm.weight' and 'norm.weight' are the same");
    expect_refused(
        "full",
        [&](json& d) {
            tensor_of(d, q)[1] = {64, 65};
        },
        "'" + q + "' is BF16 [64, 65], expected float [64, 64]");
    expect_refused(
        "full",
        [&](json& d) {
            tensor_of(d, "norm.weight")[1] = {64, 1};
        },
        "'norm.weight' is BF16 [64, 1], expected float [64]");
    expect_refused(
        "full", [&](json& d) { tensor_of(d, q)[2] = "nan"; }, q);
    expect_refused(
        "full", [&](json& d) { tensor_of(d, q)[2] = "nan"; }, "not finite");
    expect_refused(
        "full", [&](json& d) { tensor_of(d, "norm.weight")[2] = "nan"; }, "not finite");
    expect_refused(
        "full", [&](json& d) { tensor_of(d, q)[2] = "i32"; },
        "'" + q + "' is I32 [64, 64], expected float [64, 64]");
    expect_refused(
        "residual", [&](json& d) { tensor_of(d, "cond_e.weight")[2] = "nan"; }, "cond_e.weight");
    expect_refused(
        "residual", [&](json& d) { tensor_of(d, "cond_o.weight")[0] = "cond_x.weight"; },
        "tensor cond_o.weight is missing");
    // Of what is there and not used only the names that are known.
    EXPECT_EQ(load_error(dflash_case("dspark")), "no error");
    expect_refused(
        "dspark",
        [&](json& d) { tensor_of(d, "confidence_head.proj.bias")[0] = "confidence_head.gate"; },
        "tensor 'confidence_head.gate' is not part of");
}

json with_map(const std::vector<int32_t>& ids, bool marks) {
    json description = dflash_case("full");
    description["target_ids"] = ids;
    description["tensors"].push_back({"d2t", {320}, "d2t", "model.safetensors"});
    if (marks) description["tensors"].push_back({"t2d", {320}, "t2d", "model.safetensors"});
    return description;
}

TEST(DflashWeights, AWholeVocabularyIsNotRearranged) {
    std::vector<int32_t> ids(320);
    std::iota(ids.begin(), ids.end(), 0);
    EXPECT_EQ(load_error(with_map(ids, true)), "no error");
    std::swap(ids[4], ids[5]);
    const std::string error = load_error(with_map(ids, false));
    EXPECT_NE(error.find("d2t[5] is -1: token 4 is outside 6..319"), std::string::npos) << error;
    // t2d alone.
    json description = dflash_case("full");
    ids.resize(319);
    description["target_ids"] = ids;
    description["tensors"].push_back({"t2d", {320}, "t2d", "model.safetensors"});
    EXPECT_NE(load_error(description).find("t2d[319] contradicts the whole vocabulary"),
              std::string::npos)
        << load_error(description);
    description = dflash_case("full");
    description["target_ids"] = json::array();
    description["tensors"].push_back({"d2t_x", {320}, "i32", "model.safetensors"});
    EXPECT_NE(load_error(description).find("tensor 'd2t_x' is not part of"), std::string::npos);
}

TEST(DflashWeights, OfAnotherTypeInGguf) {
    json description = dflash_case("full");
    const std::string folder = write_dflash_gguf(description, DType::q8_0);
    GgufWriter writer;
    constexpr uint32_t kQ2K = 10;  // ggml's code
    writer.add_tensor(
        {.name = "fc.weight", .dims = {256}, .type = kQ2K, .data = std::string(84, 0)});
    writer.write(folder + "/model.gguf");
    const std::string error =
        error_of([&] { Subject subject(description, folder, Kernels::fast); });
    EXPECT_NE(error.find("'fc.weight' is Q2_K [256], expected float [64, 128]"), std::string::npos)
        << error;
}

TEST(DflashWeights, SeveralFilesAreRefusedByName) {
    const json description = dflash_case("full");
    const std::string folder = write_dflash_checkpoint(description);
    std::filesystem::remove(folder + "/model.safetensors");
    const auto error = [&] {
        return error_of([&] { Subject subject(description, folder, Kernels::fast); });
    };
    EXPECT_NE(error().find("/model.safetensors: no such file"), std::string::npos) << error();
    write_test_file(folder + "/model.safetensors.index.json", "{}");
    EXPECT_NE(error().find("model.safetensors.index.json: a drafter in several"), std::string::npos)
        << error();
}

/// RMS between drafts with and without rounding to int8. Values of a block of 32 are rounded by up
/// to max / 254, an RMS of about 0.5 % of them; a dozen such layers in a row and logits with an RMS
/// of 4 make 4 * 0.005 * sqrt(12) = 0.07, twice that with both activations and weights. The worst
/// of thousands is an unlikely token, whose logit is several times the RMS: ten times.
constexpr double kInt8Noise = 0.15;

struct Difference {
    double worst = 0;
    double squares = 0;
    int compared = 0;
    double rms() const { return std::sqrt(squares / std::max(compared, 1)); }
};

/// times: how often the hidden state's noise reaches a logit through the output's rows.
void expect_int8_noise(const Difference& off, int least, int times = 1) {
    EXPECT_GT(off.compared, least);
    EXPECT_GT(off.worst, 0);
    EXPECT_LT(off.rms(), times * kInt8Noise);
    EXPECT_LT(off.worst, times * 10 * kInt8Noise);
}

/// Of one row in two lattices, over the tokens that both have: what else is a candidate moves all
/// edges alike, since they are normalised.
void compare_rows(const std::vector<std::pair<float, float>>& row, Difference& result) {
    double sums[2] = {0, 0};
    for (const auto& [x, y] : row) {
        sums[0] += std::exp(double{x});
        sums[1] += std::exp(double{y});
    }
    const double shift = std::log(sums[0]) - std::log(sums[1]);
    for (const auto& [x, y] : row) {
        const double off = double{x} - double{y} - shift;
        result.worst = std::max(result.worst, std::abs(off));
        result.squares += off * off;
        ++result.compared;
    }
}

/// Of log-probabilities, or of edges if there are any.
Difference difference(LatticeView a, LatticeView b) {
    Difference result;
    EXPECT_EQ(*a.depths, *b.depths);
    EXPECT_EQ(*a.has_edges, *b.has_edges);
    for (int32_t depth = 0; depth < *a.depths; ++depth) {
        const bool edges = depth > 0 && *a.has_edges;
        for (int32_t p = 0; p < (edges ? a.state_count[depth - 1] : 1); ++p) {
            const int32_t parent = edges ? state_of(b, depth - 1, a.token[a.at(depth - 1, p)]) : 0;
            std::vector<std::pair<float, float>> row;
            for (int32_t s = 0; parent >= 0 && s < a.state_count[depth]; ++s) {
                const int32_t other = state_of(b, depth, a.token[a.at(depth, s)]);
                if (other < 0) continue;
                row.emplace_back(
                    edges ? a.edge[a.edge_at(depth, p, s)] : a.log_prob[a.at(depth, s)],
                    edges ? b.edge[b.edge_at(depth, parent, other)]
                          : b.log_prob[b.at(depth, other)]);
            }
            compare_rows(row, result);
        }
    }
    return result;
}

Difference fast_against_reference(const json& description, const std::string& folder) {
    Subject fast(description, folder, Kernels::fast);
    Subject reference(description, folder, Kernels::reference);
    LatticeStorage drafted = fast.draft_at(70), exact = reference.draft_at(70);
    return difference(drafted.view(), exact.view());
}

/// A gate has the most rows, and they are wider than any layer's.
TEST(DflashWeights, AQuantisedGateOfAWideHead) {
    json description = dflash_case("gated");
    constexpr int32_t kRank = 192;
    description["config"]["block_size"] = 64;
    description["config"]["dflash_config"]["markov_rank"] = kRank;
    tensor_of(description, "markov_head.markov_w1.weight")[1] = {320, kRank};
    tensor_of(description, "markov_head.markov_w2.weight")[1] = {320, kRank};
    tensor_of(description, "markov_head.gate_proj.weight")[1] = {kRank, 64 + kRank};
    tensor_of(description, "markov_head.gate_proj.bias")[1] = {kRank};
    const std::string folder = write_dflash_gguf(description, DType::q8_0);
    const Difference off = fast_against_reference(description, folder);
    RecordProperty("rms", std::to_string(off.rms()));
    expect_int8_noise(off, 2000);
}

TEST(DflashWeights, QuantisedDraftsAgree) {
    for (const char* name : {"full", "residual", "dspark", "draft_vocabulary"}) {
        SCOPED_TRACE(name);
        const json description = dflash_case(name);
        const int times = description["name"] == "residual" ? 2 : 1;  // E h + E Wo s(h)
        const std::string folder = write_dflash_gguf(description, DType::q8_0);
        const Difference kernels = fast_against_reference(description, folder);
        RecordProperty(std::string(name) + "_kernels", std::to_string(kernels.rms()));
        expect_int8_noise(kernels, 150, times);
        Subject published(description, Kernels::reference);
        Subject quantised(description, folder, Kernels::reference);
        LatticeStorage expected = published.draft_at(70), drafted = quantised.draft_at(70);
        const Difference weights = difference(drafted.view(), expected.view());
        RecordProperty(std::string(name) + "_weights", std::to_string(weights.rms()));
        expect_int8_noise(weights, 150, times);
    }
}

}  // namespace
}  // namespace kd
