// The tokenizer of a model, whatever its form.
#pragma once

#include <cstdint>

#include "formats/model_file.h"
#include "formats/tokenizer.h"

namespace kd {

/// Throws what the Tokenizer's readers throw, and kd::Error{corrupt} for more tokens than
/// `vocabulary`, the model's. Fewer are fine: embeddings are padded.
Tokenizer read_tokenizer(const ModelFile& file, int32_t vocabulary = INT32_MAX);

}  // namespace kd
