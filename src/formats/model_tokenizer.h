// The tokenizer of a model, whatever its form.
#pragma once

#include <cstdint>
#include <optional>

#include "formats/model_file.h"
#include "formats/tokenizer.h"

namespace kd {

/// vocabulary: of the model, if it is known. Embeddings are padded, so a model may have more ids
/// than its tokenizer: they become tokens without bytes. Throws what tokenizer_spec and
/// tokenizer_spec_from_folder throw, and kd::Error{corrupt} for more tokens than ids; every
/// message names the path.
Tokenizer read_tokenizer(const ModelFile& file, std::optional<int32_t> vocabulary = {});

}  // namespace kd
