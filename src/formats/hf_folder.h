// Model folders in the form of Hugging Face: config.json, and weights in model.safetensors or in
// the shards that model.safetensors.index.json lists.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "formats/file_tensor.h"
#include "formats/json_file.h"
#include "formats/mapped_file.h"

namespace kd {

class SafetensorsFile;

class HfFolder {
  public:
    /// Throws kd::Error, one line that names file and field: not_found if config.json or a file of
    /// weights is missing; corrupt for an index that leaves the folder, names a tensor that its
    /// shard does not hold, or misses one that a shard holds, and for scales or shapes that do not
    /// fit their weights; unsupported for quantisations other than those below, and for tensor
    /// types other than DType's unless they shall be listed; what MappedFile, read_json_file and
    /// SafetensorsFile throw.
    ///
    /// Weights that config.json's quantization_config names are put together with their scales:
    ///   fp8: X.weight F8_E4M3, X.weight_scale_inv F32, blocks of weight_block_size (128 x 128);
    ///   compressed-tensors pack-quantized, 4 bits, symmetric, groups of 32: X.weight_packed,
    ///   X.weight_scale, X.weight_shape; float-quantized, 8 bits: X.weight F8_E4M3, X.weight_scale
    ///   for the whole matrix or a row.
    /// Each becomes the one tensor X.weight of type f8_e4m3 or int4.
    explicit HfFolder(const std::string& path, ForeignTensors foreign = ForeignTensors::refuse);
    ~HfFolder();
    HfFolder(const HfFolder&) = delete;
    HfFolder& operator=(const HfFolder&) = delete;

    const std::string& path() const { return path_; }
    /// The whole config.json.
    JsonNode config() const { return {config_, config_path_}; }
    /// The folder's own name, to call the model by.
    std::string name() const;
    /// What stands before "model.layers.0..." and "lm_head...": empty, or "language_model." where
    /// the language model is a part of a larger one.
    std::string_view name_prefix() const { return prefix_; }
    /// The files that hold its weights.
    std::vector<const MappedFile*> files() const;

    /// In the order of names. A tensor that no model computes with (rotary_emb.inv_freq) is not
    /// there.
    const std::vector<FileTensor>& tensors() const { return tensors_; }
    const std::vector<ForeignTensor>& foreign_tensors() const { return foreign_; }
    /// Null if absent.
    const FileTensor* find_tensor(std::string_view name) const;

  private:
    void open_shards();
    void combine_tensors(ForeignTensors foreign);

    std::string path_;
    std::string config_path_;
    Json config_;
    std::string prefix_;
    std::vector<std::unique_ptr<SafetensorsFile>> shards_;
    std::vector<FileTensor> tensors_;
    std::vector<ForeignTensor> foreign_;
    std::unordered_map<std::string_view, size_t> index_;
};

}  // namespace kd
