// The config.json of a DFlash drafter: block diffusion over features of the target. Published forms
// (z-lab, SpecForge, vLLM speculators, JetSpec, DSpark) and what this project adds to them:
// docs/drafter-format.md.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "formats/model_config.h"

namespace kd {

/// A head that scores a draft token by the one before it.
enum class DraftHeadType : uint8_t {
    none,
    markov,        // DSpark, vanilla: bias W2 W1[prev]
    gated_markov,  // DSpark, gated: bias W2 (sigmoid(G [h; W1[prev]] + g) * W1[prev])
    residual,      // this project's: h + Wo silu(Wh h + We E[prev]), before the target's head
};

struct DflashAttention {
    bool causal = false;  // within the block
    int32_t window = 0;   // tokens; 0: none
};

struct DflashConfig {
    std::string path;  // of the config.json, for messages
    int32_t hidden = 0;
    int32_t intermediate = 0;
    int32_t heads = 0;
    int32_t kv_heads = 0;
    int32_t head_dim = 0;
    bool attention_bias = false;
    double norm_epsilon = 1e-6;
    double rope_base = 10000;
    RopeScaling rope_scaling;
    std::vector<DflashAttention> layers;
    /// A window's first token: `window` before the anchor for all rows of the block (speculators),
    /// or window - 1 before the row itself.
    bool window_from_anchor = false;

    int32_t block = 0;  // rows: the anchor and the masks behind it
    int32_t mask_token = 0;
    int32_t first_row = 1;  // that drafts: 1: a row drafts the token at its own position; 0: the
                            // one behind it, the anchor's row the first draft
    int32_t drafts = 0;

    std::vector<int32_t> target_layers;  // whose outputs are the features, from 0, ascending
    int32_t target_hidden = 0;
    int32_t target_layer_count = 0;  // 0: not stated
    int32_t vocabulary = 0;          // the target's
    int32_t draft_vocabulary = 0;    // what is drafted; fewer: with a map to the target's

    DraftHeadType head = DraftHeadType::none;
    int32_t head_rank = 0;         // 0 with head residual: what the file has
    bool confidence_head = false;  // there are tensors of one; it is not used

    // This project's additions (member "kdtree").
    std::string weights;        // file name; empty: model.safetensors
    std::string residual_head;  // file name of the residual head's tensors
    std::vector<float>
        greedy_power;           // [depth] see calibrate() in models/dflash_lattice.h; or empty
    std::string target_sha256;  // 64 hex digits, or empty
};

/// Whether FOLDER/config.json names a class of these drafters. False where there is none; throws
/// what read_json_file throws.
bool is_dflash_folder(const std::string& folder);

/// Reads FOLDER/config.json. Throws kd::Error naming file and field: corrupt for a value that is
/// missing, of another kind or out of range; unsupported for a drafter that would have to be
/// computed in a way this build does not know.
DflashConfig read_dflash_config(const std::string& folder);

/// Throws kd::Error naming field and values where the drafter was made for another target.
void check_dflash_target(const DflashConfig& config, const ModelConfig& target);

}  // namespace kd
