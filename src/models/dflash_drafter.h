// DFlash: a block-diffusion drafter. One forward over [anchor, mask, ...] drafts all depths; its
// attention reads keys and values made of the target's features of every committed token.
//
// Chen et al., "DFlash: Block Diffusion for Flash Speculative Decoding" (arXiv 2602.06036), and the
// checkpoints' public implementations; what a config says is listed in docs/drafter-format.md.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backends/cpu/lazy_array.h"
#include "backends/stream.h"
#include "kernels/attn_verify_gqa/attn_verify_gqa.h"
#include "kernels/rope_append/rope_append.h"
#include "models/dflash_weights.h"
#include "models/drafter.h"

namespace kd {

struct DflashLimits {
    int32_t sessions = 0;  // that draft at once
    int32_t rows = 0;      // ingested at once
    int32_t context = 0;   // committed tokens of a session
    int64_t slots = 0;     // of the pool
};

class DflashDrafter final : public Drafter {
  public:
    /// Candidates of a depth. Conditional edges are normalised over them.
    static constexpr int32_t kStates = 32;

    /// `stream` must outlive the drafter.
    DflashDrafter(DflashConfig config, DflashWeights weights, const DflashLimits& limits,
                  Stream& stream);
    ~DflashDrafter() override;

    /// K and V of the rows go to their slots in the cache.
    void ingest(std::span<const IngestSegment> segments) override;
    void draft(std::span<const DraftContext> contexts, std::span<LatticeView> lattices) override;

  private:
    struct Workspace;

    void project(const LinearWeights& weights, const float* x, int64_t rows, const float* bias,
                 const float* residual, float* y);
    void norm(const float* x, const std::vector<float>& weight, float* y, int64_t rows,
              int64_t groups, int64_t stride);
    void ingest_rows(int64_t rows);
    void append_kv(const float* x, int64_t rows, size_t layer);
    void plan_attention(std::span<const DraftContext> contexts, const DflashAttention& layer);
    void plan_window(const DraftContext& context, std::span<const int32_t> block,
                     const DflashAttention& layer, int32_t first_row);
    void run_block(std::span<const DraftContext> contexts);
    void run_layer(std::span<const DraftContext> contexts, size_t layer);
    void choose_candidates(std::span<const DraftContext> contexts);
    void bias_first_draft(int32_t anchor, int64_t draft, float* logits);
    void add_edges(const DraftContext& context, int64_t first_draft, LatticeView lattice);
    void markov_factors(std::span<const int32_t> parents, std::span<const int32_t> children,
                        int64_t first_draft);
    void residual_factors(std::span<const int32_t> parents, std::span<const int32_t> children,
                          int64_t first_draft);

    DflashConfig config_;
    DflashWeights weights_;
    DflashLimits limits_;
    Stream* stream_;
    RopeTable rope_;
    LazyArray<std::byte> cache_memory_;
    std::unique_ptr<Workspace> workspace_;

    // Of the present call.
    std::vector<int32_t> tokens_;
    std::vector<int32_t> positions_;
    std::vector<int32_t> slots_;
    std::vector<AttnSegment> segments_;
    int64_t window_slots_used_ = 0;
    std::vector<int64_t> first_draft_;  // [contexts] among the drafted rows
};

}  // namespace kd
