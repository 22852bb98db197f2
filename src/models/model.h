// The seam between the engine and an architecture: one virtual, forward.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backends/stream.h"
#include "base/views.h"
#include "formats/model_config.h"
#include "formats/model_file.h"
#include "kernels/attn_verify_gqa/attn_verify_gqa.h"
#include "kernels/kv_view.h"
#include "kernels/linear/linear.h"
#include "kernels/weight.h"

namespace kd {

/// New rows of many sessions in one forward: prefill chunks and draft trees mix. A row's results
/// are a function of its path alone.
struct ForwardBatch {
    std::span<const int32_t> tokens;        // [rows]
    std::span<const int32_t> positions;     // [rows]
    std::span<const int32_t> slots;         // [rows] where each row's K/V is written; distinct
    std::span<const AttnSegment> segments;  // cover the rows in order
    std::span<const int32_t> logit_rows;    // rows whose logits are wanted, ascending
    KvView kv;
    MatrixView<float> logits;    // [logit_rows, vocabulary]
    MatrixView<float> features;  // [rows, feature_layers * hidden]; null data: not wanted
};

/// The largest batch that a model must be able to run; sizes its workspace.
struct ForwardLimits {
    int32_t rows = 0;
    int32_t logit_rows = 0;
    int32_t keys = 0;  // context plus new rows that one row may attend to
    /// Layers, counted from 0, whose output (the residual stream behind them) a drafter reads:
    /// their values stand one after the other in a row of ForwardBatch::features.
    std::vector<int32_t> feature_layers;
};

/// Weights of the target that a drafter without its own works with.
struct SharedWeights {
    WeightView embedding;                 // [vocabulary, hidden]
    const LinearWeights* head = nullptr;  // hidden -> vocabulary
};

class Model {
  public:
    virtual ~Model() = default;
    Model(const Model&) = delete;
    Model& operator=(const Model&) = delete;

    /// Writes K/V of every row to its slot, the logits of batch.logit_rows, and where wanted the
    /// features of every row.
    virtual void forward(const ForwardBatch& batch, Stream& stream) = 0;

    /// Valid as long as the model.
    const SharedWeights& shared() const { return shared_; }

    const ModelConfig config;

  protected:
    explicit Model(ModelConfig model_config) : config(std::move(model_config)) {}

    SharedWeights shared_;  // set when loaded
};

/// The cache that a model of this shape works with, without memory.
KvView cache_view(const ModelConfig& config, DType type, int64_t slots);

/// Loads the model and re-packs its weights for `stream`'s kernels. The file must outlive the
/// model. Throws what read_model_config does, and kd::Error naming file and tensor for a missing,
/// surplus, misshapen or non-finite one.
std::unique_ptr<Model> load_model(const ModelFile& file, const ForwardLimits& limits,
                                  Stream& stream);

/// What load_model would refuse about the file's tensors, appended to `faults`, one line each:
/// reads no weights, so values that are not finite are not seen. config: read without a fault.
void check_tensors(const ModelFile& file, const ModelConfig& config,
                   std::vector<std::string>& faults);

}  // namespace kd
