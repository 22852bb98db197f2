// The architectures that load_model knows: one function each to load a model, and to say what is
// wrong with its tensors without reading weights.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "models/model.h"

namespace kd {

/// "llama", "qwen2", "qwen3".
std::unique_ptr<Model> load_dense_gqa(const ModelFile& file, const ModelConfig& config,
                                      const ForwardLimits& limits, Stream& stream);
void check_dense_gqa(const ModelFile& file, const ModelConfig& config,
                     std::vector<std::string>& faults);

/// "deepseek2": DeepSeek-V2, DeepSeek-V3, Kimi-K2.
std::unique_ptr<Model> load_deepseek(const ModelFile& file, const ModelConfig& config,
                                     const ForwardLimits& limits, Stream& stream);
void check_deepseek(const ModelFile& file, const ModelConfig& config,
                    std::vector<std::string>& faults);

}  // namespace kd
