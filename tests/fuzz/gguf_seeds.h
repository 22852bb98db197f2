// Small GGUF files that fuzzing starts from.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "support/gguf_writer.h"

namespace kd {

/// A llama model of one layer and 32 columns with six tokens: everything that a load reads, in 2 to
/// 30 KiB.
GgufWriter smallest_model(DType weights);

/// (name, file): models of several weight types; all kinds of metadata; all kinds of tensors; and
/// one file for each way to be wrong that chance would seldom find.
std::vector<std::pair<std::string, std::string>> gguf_seeds();

}  // namespace kd
