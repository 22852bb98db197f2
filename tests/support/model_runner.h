// A model with a cache of its own, run row set by row set: below the engine, for tests of logits.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backends/cpu/lazy_array.h"
#include "base/views.h"
#include "models/model.h"

namespace kd {

class ModelRunner {
  public:
    static constexpr int32_t kMaxRows = 256;

    /// max_context: most committed tokens of a session. The cache has slots for two such sessions
    /// and some trees. feature_layers: as in ForwardLimits.
    ModelRunner(const std::string& path, Kernels kernels, int32_t max_context,
                std::vector<int32_t> feature_layers = {});

    const ModelConfig& config() const { return model_->config; }
    int32_t vocabulary() const { return model_->config.vocabulary; }
    /// Of a row of the last run: [feature layers, hidden].
    std::span<const float> features(int64_t row) const;

    struct Rows {
        std::vector<int32_t> tokens, positions, slots, logit_rows;
        std::vector<AttnSegment> segments;

        /// Appends `chunk` as one causal segment on `context`, the new rows in the first of
        /// `slots`; all rows' logits wanted. The spans must outlive the run.
        void add_chunk(std::span<const int32_t> chunk, std::span<const int32_t> context,
                       std::span<const int32_t> new_slots);
        void add_tree(const TreeView& tree, std::span<const int32_t> context,
                      std::span<const int32_t> new_slots);
    };

    /// Runs the rows; returns the logits of logit_rows one after the other.
    std::vector<float> run(const Rows& rows);

    /// Logits of every position of a text, [tokens, vocabulary], run from an empty cache in chunks.
    std::vector<float> logits_of(std::span<const int32_t> tokens);

  private:
    ModelFile file_;
    ThreadPool threads_;
    Stream stream_;
    std::unique_ptr<Model> model_;
    KvView kv_;
    LazyArray<std::byte> memory_;
    LazyArray<float> logits_;
    int64_t feature_columns_ = 0;
    std::vector<float> features_;
};

/// Natural log-probabilities of one row of logits, in double.
std::vector<double> log_softmax(std::span<const float> logits);

}  // namespace kd
