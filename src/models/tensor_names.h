// Names of tensors. The models know GGUF's; files in the form of Hugging Face have their own.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "formats/model_file.h"

namespace kd {

/// The name in `file` of the tensor that GGUF calls `name` ("blk.3.attn_q.weight"): the same in a
/// GGUF file, "model.layers.3.self_attn.q_proj.weight" behind the folder's prefix in a Hugging Face
/// folder. Empty if such folders have no tensor of that kind.
std::string tensor_name(const ModelFile& file, std::string_view name);

/// What the names of a layer's tensors begin with in `file`: "blk.3.", "model.layers.3.".
std::string layer_prefix(const ModelFile& file, int32_t layer);

/// Whether a tensor of `file` is known and not computed with: buffers that some exports carry.
bool is_unused_tensor(const ModelFile& file, std::string_view name);

}  // namespace kd
