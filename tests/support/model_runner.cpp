#include "support/model_runner.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace kd {

ModelRunner::ModelRunner(const std::string& path, Kernels kernels, int32_t max_context,
                         std::vector<int32_t> feature_layers)
    : file_(path),
      threads_(std::min(default_threads(), 4)),
      stream_{.threads = &threads_, .kernels = kernels},
      model_(load_model(file_,
                        {.rows = kMaxRows,
                         .logit_rows = kMaxRows,
                         .keys = max_context + kMaxRows,
                         .feature_layers = feature_layers},
                        stream_)),
      kv_(cache_view(model_->config, kernels == Kernels::fast ? DType::f16 : DType::f32,
                     2 * max_context + 2 * kMaxRows)),
      memory_(kv_.bytes()),
      logits_(int64_t{kMaxRows} * model_->config.vocabulary),
      feature_columns_(std::ssize(feature_layers) * int64_t{model_->config.hidden}),
      features_(static_cast<size_t>(kMaxRows * feature_columns_)) {
    kv_.data = memory_.data();
}

std::vector<float> ModelRunner::run(const Rows& rows) {
    model_->forward({.tokens = rows.tokens,
                     .positions = rows.positions,
                     .slots = rows.slots,
                     .segments = rows.segments,
                     .logit_rows = rows.logit_rows,
                     .kv = kv_,
                     .logits = {.data = logits_.data(),
                                .rows = kMaxRows,
                                .columns = vocabulary(),
                                .stride = vocabulary()},
                     .features = {.data = feature_columns_ > 0 ? features_.data() : nullptr,
                                  .rows = kMaxRows,
                                  .columns = feature_columns_,
                                  .stride = feature_columns_}},
                    stream_);
    return {logits_.data(),
            logits_.data() + static_cast<int64_t>(rows.logit_rows.size()) * vocabulary()};
}

std::span<const float> ModelRunner::features(int64_t row) const {
    return {features_.data() + row * feature_columns_, static_cast<size_t>(feature_columns_)};
}

std::vector<float> ModelRunner::logits_of(std::span<const int32_t> tokens) {
    std::vector<int32_t> slots(tokens.size());
    std::iota(slots.begin(), slots.end(), 0);
    std::vector<float> logits;
    for (size_t begin = 0; begin < tokens.size(); begin += kMaxRows) {
        const size_t count = std::min<size_t>(kMaxRows, tokens.size() - begin);
        Rows rows;
        rows.add_chunk(tokens.subspan(begin, count), std::span(slots).first(begin),
                       std::span(slots).subspan(begin));
        const std::vector<float> chunk = run(rows);
        logits.insert(logits.end(), chunk.begin(), chunk.end());
    }
    return logits;
}

void ModelRunner::Rows::add_chunk(std::span<const int32_t> chunk, std::span<const int32_t> context,
                                  std::span<const int32_t> new_slots) {
    const auto first = static_cast<int32_t>(tokens.size());
    for (size_t i = 0; i < chunk.size(); ++i) {
        tokens.push_back(chunk[i]);
        positions.push_back(static_cast<int32_t>(context.size() + i));
        slots.push_back(new_slots[i]);
        logit_rows.push_back(first + static_cast<int32_t>(i));
    }
    segments.push_back({.first_row = first,
                        .rows = static_cast<int32_t>(chunk.size()),
                        .context = context,
                        .slots = new_slots.first(chunk.size())});
}

void ModelRunner::Rows::add_tree(const TreeView& tree, std::span<const int32_t> context,
                                 std::span<const int32_t> new_slots) {
    const auto first = static_cast<int32_t>(tokens.size());
    const auto nodes = static_cast<size_t>(*tree.count);
    for (int32_t node = 0; node < *tree.count; ++node) {
        tokens.push_back(tree.token[node]);
        positions.push_back(static_cast<int32_t>(context.size()) + tree.depth[node]);
        slots.push_back(new_slots[static_cast<size_t>(node)]);
        logit_rows.push_back(first + node);
    }
    segments.push_back({.first_row = first,
                        .rows = *tree.count,
                        .context = context,
                        .slots = new_slots.first(nodes),
                        .depth = {tree.depth, nodes},
                        .ancestors = {tree.ancestors, nodes * kAncestorWords}});
}

std::vector<double> log_softmax(std::span<const float> logits) {
    const double largest = *std::max_element(logits.begin(), logits.end());
    double sum = 0;
    for (const float logit : logits) sum += std::exp(logit - largest);
    std::vector<double> out;
    for (const float logit : logits) out.push_back(logit - largest - std::log(sum));
    return out;
}

}  // namespace kd
