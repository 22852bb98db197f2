// The small models of tests/data/models/dense_gqa.json, whose weights are counter_weights.h's.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/gguf_writer.h"
#include "support/hf_writer.h"

namespace kd {

/// The weights of a case by its `parameters`, as BF16, which holds them exactly.
std::vector<HfTensor> counter_tensors(const nlohmann::ordered_json& model);

/// tokenizer.json and tokenizer_config.json of byte-level BPE without merges: ids 0 to 255 are the
/// bytes, the others up to `tokens` control tokens, the first of which is eos.
void write_byte_tokenizer(const TempFolder& folder, int tokens);

/// The same model as a GGUF file: matrices BF16, norms and biases F32, Q and K permuted where the
/// architecture is llama, metadata as the converters write them; a tokenizer of single letters.
GgufWriter counter_gguf(const nlohmann::ordered_json& model);

}  // namespace kd
