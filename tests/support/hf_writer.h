// Writes model folders in the form of Hugging Face for tests: correct ones, and ones that lie in a
// chosen place.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "support/gguf_writer.h"

namespace kd {

/// A tensor as it shall stand in a safetensors file, sensible or not.
struct HfTensor {
    std::string name;
    std::string type;  // "BF16"
    std::vector<int64_t> shape;
    std::string data;
};

/// `values` as a tensor of type F32, F16 or BF16.
HfTensor hf_tensor(std::string name, DType type, std::vector<int64_t> shape,
                   std::span<const float> values);

std::string safetensors_bytes(std::span<const HfTensor> tensors);

/// A folder in the temporary folder that no other test or process uses; removed with all that is
/// in it.
class TempFolder {
  public:
    TempFolder();
    ~TempFolder();
    TempFolder(const TempFolder&) = delete;
    TempFolder& operator=(const TempFolder&) = delete;

    const std::string& path() const { return path_; }
    /// Replaces a file in it.
    void write(std::string_view name, std::string_view bytes) const;

  private:
    std::string path_;
};

/// config.json and model.safetensors.
void write_hf_folder(const TempFolder& folder, const nlohmann::ordered_json& config,
                     std::span<const HfTensor> tensors);
/// Lengthens the header of the folder's model.safetensors by up to one space, so that the data, and
/// with them every tensor of elements of more than one byte, begin at an odd address.
void misalign_weights(const TempFolder& folder);
/// config.json, `shards` shards that take the tensors in turn, and their index. Returns the index.
nlohmann::ordered_json write_hf_shards(const TempFolder& folder,
                                       const nlohmann::ordered_json& config,
                                       std::span<const HfTensor> tensors, size_t shards);

}  // namespace kd
