// Model folders in the form of Hugging Face: config.json, and weights in model.safetensors or in
// the shards that model.safetensors.index.json lists.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "formats/file_tensor.h"
#include "formats/hf_quantisation.h"
#include "formats/json_file.h"
#include "formats/mapped_file.h"
#include "formats/safetensors.h"

namespace kd {

class HfFolder {
  public:
    /// Throws kd::Error, one line that names file and field: not_found if config.json or a file of
    /// weights is missing; corrupt for an index that leaves the folder, names a tensor that its
    /// shard does not hold, or misses a tensor or a shard that is there, and for scales or shapes
    /// that do not fit their weights; unsupported for quantisations other than those of
    /// HfQuantisation and for tensor types other than DType's, unless such tensors shall be listed
    /// (of a quantisation that is not supported as they stand in the file); what MappedFile,
    /// read_json_file and SafetensorsFile throw.
    ///
    /// Quantised weights are put together with their scales: whatever the tensors in the file, each
    /// becomes one tensor X.weight of type f8_e4m3 or int4 with its BlockScales.
    explicit HfFolder(const std::string& path, ForeignTensors foreign = ForeignTensors::refuse);

    const std::string& path() const { return path_; }
    /// The folder's own name, to call the model by.
    std::string name() const;
    /// The whole config.json.
    JsonNode config() const { return {config_, path_ + "/config.json"}; }
    /// What stands before "model.layers.0..." and "lm_head...": empty, or "language_model." where
    /// the language model is a part of a larger one.
    std::string_view name_prefix() const { return prefix_; }
    /// The files of weights, by FileTensor::part.
    std::vector<const MappedFile*> files() const;

    /// In the order of names.
    const std::vector<FileTensor>& tensors() const { return tensors_; }
    const std::vector<ForeignTensor>& foreign_tensors() const { return foreign_; }
    /// Null if absent.
    const FileTensor* find_tensor(std::string_view name) const;

  private:
    /// A tensor as it stands in a shard.
    struct Placed {
        const SafetensorsEntry* entry = nullptr;
        int32_t part = 0;
        bool used = false;  // as a part of a quantised weight
    };

    void open_weights();
    void open_shards(const std::string& index_path);
    Placed* find_placed(const std::string& name);
    FileTensor file_tensor(const Placed& placed) const;
    std::string where(const Placed& placed) const;
    const Placed& take_beside(const Placed& weight, std::string_view base, std::string_view suffix);
    BlockScales read_scales(const FileTensor& weight, const Placed& scales,
                            const HfQuantisationScheme& scheme) const;
    FileTensor join_fp8(const Placed& weight, const HfQuantisationScheme& scheme);
    FileTensor join_packed(const Placed& packed, const HfQuantisationScheme& scheme);
    void join_tensors(ForeignTensors foreign);

    std::string path_;
    Json config_;
    std::string_view prefix_;
    std::vector<std::unique_ptr<SafetensorsFile>> shards_;
    std::vector<Placed> placed_;  // in the order of names
    std::vector<FileTensor> tensors_;
    std::vector<ForeignTensor> foreign_;
    std::unordered_map<std::string_view, size_t> index_;
};

}  // namespace kd
