// The weights of a DFlash drafter, packed for the kernels.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "formats/dflash_config.h"
#include "formats/draft_tensors.h"
#include "formats/model_config.h"
#include "kernels/linear/linear.h"
#include "kernels/weight.h"
#include "models/model.h"

namespace kd {

struct DflashLayer {
    std::vector<float> input_norm;      // [hidden]
    std::vector<float> attention_norm;  // [hidden] behind the attention
    std::vector<float> q_norm;          // [head_dim]
    std::vector<float> k_norm;          // [head_dim]
    LinearWeights q;                    // hidden -> heads * head_dim
    LinearWeights kv;                   // hidden -> 2 * kv_heads * head_dim
    LinearWeights output;               // heads * head_dim -> hidden
    LinearWeights gate_up;              // hidden -> 2 * intermediate
    LinearWeights down;                 // intermediate -> hidden
    std::vector<float> q_bias;          // of these layers, or empty
    std::vector<float> kv_bias;
    std::vector<float> output_bias;
};

/// Scores a draft token by the one before it: its logit gains parent . child, both of `rank` values
/// (formulas at DraftHeadType).
struct DflashHead {
    DraftHeadType type = DraftHeadType::none;
    int64_t rank = 0;
    WeightView previous;  // of Markov heads W1 [vocabulary, rank]; residual: We e[token] [draft
                          // vocabulary, rank]
    WeightView next;      // [draft vocabulary, rank] W2; residual: Wo^T E[token]
    // Markov heads
    std::unique_ptr<LinearWeights> bias;  // W2: rank -> draft vocabulary
    std::unique_ptr<LinearWeights> gate;  // G: hidden + rank -> rank
    std::vector<float> gate_bias;         // g [rank]
    // residual head
    std::unique_ptr<LinearWeights> from_hidden;  // Wh: hidden -> rank
};

struct DflashWeights {
    std::unique_ptr<DraftTensors> file;           // what the views point into
    std::unique_ptr<DraftTensors> head_file;      // of a residual head
    std::vector<std::vector<std::byte>> storage;  // of matrices that were made from the file's
    std::unique_ptr<LinearWeights> fuse;          // features -> hidden
    std::vector<float> feature_norm;              // [hidden]
    std::vector<DflashLayer> layers;
    std::vector<float> output_norm;           // [hidden]
    WeightView embedding;                     // [vocabulary, hidden]: its own, or the target's
    std::unique_ptr<LinearWeights> own_head;  // null: the target's
    const LinearWeights* output = nullptr;    // hidden -> draft vocabulary
    WeightView output_rows;                   // the same as it lies in the file
    std::vector<int32_t> target_ids;          // [draft vocabulary]; empty: the same ids
    DflashHead head;
};

/// Loads FOLDER's weights. `shared` must outlive the result. Throws kd::Error naming file and
/// tensor for one that is missing, surplus, misshapen or not finite, and for a vocabulary map that
/// contradicts itself.
DflashWeights load_dflash_weights(const std::string& folder, const DflashConfig& config,
                                  const ModelConfig& target, const SharedWeights& shared,
                                  Stream& stream);

}  // namespace kd
