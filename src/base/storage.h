// Host-side owners of the views in views.h. Allocated once; a view stays valid as long as its
// owner.
#pragma once

#include <vector>

#include "base/views.h"

namespace kd {

class LatticeStorage {
  public:
    LatticeStorage(int32_t depth_capacity, int32_t state_capacity)
        : depth_capacity_(depth_capacity),
          state_capacity_(state_capacity),
          state_count_(static_cast<size_t>(depth_capacity)),
          token_(cells()),
          log_prob_(cells()),
          edge_(cells() * static_cast<size_t>(state_capacity)) {}

    LatticeView view() {
        return {.depth_capacity = depth_capacity_,
                .state_capacity = state_capacity_,
                .depths = &depths_,
                .has_edges = &has_edges_,
                .state_count = state_count_.data(),
                .token = token_.data(),
                .log_prob = log_prob_.data(),
                .edge = edge_.data()};
    }

  private:
    size_t cells() const {
        return static_cast<size_t>(depth_capacity_) * static_cast<size_t>(state_capacity_);
    }

    int32_t depth_capacity_;
    int32_t state_capacity_;
    int32_t depths_ = 0;
    bool has_edges_ = false;
    std::vector<int32_t> state_count_;
    std::vector<int32_t> token_;
    std::vector<float> log_prob_;
    std::vector<float> edge_;
};

class TreeStorage {
  public:
    explicit TreeStorage(int32_t capacity)
        : token_(static_cast<size_t>(capacity)),
          parent_(token_.size()),
          depth_(token_.size()),
          log_score_(token_.size()),
          ancestors_(token_.size() * kAncestorWords) {}

    TreeView view() {
        return {.capacity = static_cast<int32_t>(token_.size()),
                .count = &count_,
                .token = token_.data(),
                .parent = parent_.data(),
                .depth = depth_.data(),
                .log_score = log_score_.data(),
                .ancestors = ancestors_.data()};
    }

  private:
    int32_t count_ = 0;
    std::vector<int32_t> token_;
    std::vector<int32_t> parent_;
    std::vector<int32_t> depth_;
    std::vector<float> log_score_;
    std::vector<uint64_t> ancestors_;
};

class AcceptedStorage {
  public:
    explicit AcceptedStorage(int32_t capacity)
        : path_(static_cast<size_t>(capacity)), emitted_(path_.size()) {}

    AcceptedView view() {
        return {.capacity = static_cast<int32_t>(path_.size()),
                .count = &count_,
                .path = path_.data(),
                .emitted = emitted_.data()};
    }

  private:
    int32_t count_ = 0;
    std::vector<int32_t> path_;
    std::vector<int32_t> emitted_;
};

}  // namespace kd
