// DFlash checkpoints of counter weights, as tests/data/models/dflash.json describes them.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/dtype.h"

namespace kd {

/// What tools/make_dflash_fixtures.py wrote.
const nlohmann::json& dflash_fixture();
/// One of its cases by name.
nlohmann::json dflash_case(const std::string& name);

/// The values of a tensor [name, shape, kind, file] of a case. kind "nan": the last one is none.
std::vector<float> dflash_values(const std::string& name, const std::vector<int64_t>& shape,
                                 const std::string& kind);

/// Writes the case's folder, config.json and files of tensors, to the temporary folder and returns
/// its path.
std::string write_dflash_checkpoint(const nlohmann::json& description);

/// The same with one GGUF file in place of model.safetensors, its matrices of `type` where their
/// rows are a multiple of 32 values, all else F32.
std::string write_dflash_gguf(const nlohmann::json& description, DType type);

/// A case for the tiny model of tiny_model.h: features of both its layers.
nlohmann::json tiny_dflash_case(const std::string& name);

}  // namespace kd
