// Cost tables kept in the cache folder.
#pragma once

#include <cstdint>
#include <string>

#include "core/budget.h"
#include "formats/model_file.h"

namespace kd {

/// What a table is of: the model and this program, both by path, size and time of their files
/// (other builds take other times), the arguments of measure_cost, this processor and the
/// instruction set that the dispatch takes.
std::string cost_key(const ModelFile& model, int threads, int32_t max_rows, int32_t max_context);

std::string cost_cache_path(const std::string& cache_folder, const std::string& key);

/// An empty table if there is none of this key or it cannot be read.
CostTable load_cost(const std::string& path, const std::string& key);
/// Writes through a temporary file; a failure leaves nothing behind and is returned as a message
/// (empty: written).
std::string save_cost(const CostTable& table, const std::string& path, const std::string& key);

}  // namespace kd
