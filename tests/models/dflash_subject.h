// A dflash drafter of a checkpoint of counter weights, with all that a draft reads.
#pragma once

#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "base/storage.h"
#include "models/dflash_drafter.h"
#include "support/dflash_checkpoint.h"

namespace kd {

inline std::vector<std::byte> bf16_storage(const std::vector<float>& values) {
    std::vector<std::byte> bytes(values.size() * 2);
    for (size_t i = 0; i < values.size(); ++i) {
        const uint16_t bits = f32_to_bf16(values[i]);
        std::memcpy(&bytes[2 * i], &bits, 2);
    }
    return bytes;
}

/// A drafter of a fixture's case on a target of which there are only embedding, head and features.
class Subject {
  public:
    static constexpr int32_t kPoolSlots = 1000;
    static constexpr int32_t kSessions = 3;

    Subject(const nlohmann::json& description, Kernels kernels, int threads = 1,
            int32_t ingest_rows = 40)
        : Subject(description, write_dflash_checkpoint(description), kernels, threads,
                  ingest_rows) {}

    /// folder: of the checkpoint, however it was written.
    Subject(const nlohmann::json& description, const std::string& folder, Kernels kernels,
            int threads = 1, int32_t ingest_rows = 40)
        : threads_(threads), stream_{&threads_, kernels} {
        const nlohmann::json& fixture = dflash_fixture();
        const auto name = description["name"].get<std::string>();
        const auto hidden = fixture["hidden"].get<int32_t>();
        const auto vocabulary = fixture["vocabulary"].get<int32_t>();
        tokens = fixture["tokens"].get<std::vector<int32_t>>();
        embedding_ =
            bf16_storage(dflash_values(name + "/target.embedding", {vocabulary, hidden}, "matrix"));
        head_ = bf16_storage(dflash_values(name + "/target.head", {vocabulary, hidden}, "head"));
        WeightView view = {DType::bf16, head_.data(), vocabulary, hidden, {}};
        head_weights_ = std::make_unique<LinearWeights>(std::span(&view, 1), stream_);
        view.data = embedding_.data();
        ModelConfig target;
        target.layers = fixture["target_layers"].get<int32_t>();
        target.hidden = hidden;
        target.vocabulary = vocabulary;
        const DflashConfig config = read_dflash_config(folder);
        check_dflash_target(config, target);
        columns_ = std::ssize(config.target_layers) * int64_t{hidden};
        features = dflash_values(name + "/features", {std::ssize(tokens), columns_}, "feature");
        drafter = std::make_unique<DflashDrafter>(
            config,
            load_dflash_weights(folder, config, target,
                                {.embedding = view, .head = head_weights_.get()}, stream_),
            DflashLimits{.sessions = kSessions,
                         .rows = ingest_rows,
                         .context = static_cast<int32_t>(tokens.size()),
                         .slots = kPoolSlots},
            stream_);
    }

    /// Slots of a session, scattered over the pool.
    static std::vector<int32_t> slots_of(int32_t session, int32_t count) {
        std::vector<int32_t> slots;
        for (int32_t i = 0; i < count; ++i) slots.push_back((i * 7 + session * 331) % kPoolSlots);
        return slots;
    }

    IngestSegment segment(int32_t first, int32_t count, std::span<const int32_t> slots,
                          std::span<const int32_t> feature_rows) const {
        const auto begin = static_cast<size_t>(first), rows = static_cast<size_t>(count);
        return {.first_position = first,
                .tokens = std::span(tokens).subspan(begin, rows),
                .slots = slots.subspan(begin, rows),
                .features = {features.data(), std::ssize(tokens), columns_, columns_},
                .feature_rows = feature_rows.subspan(begin, rows)};
    }

    void ingest(int32_t first, int32_t count, std::span<const int32_t> slots) {
        std::vector<int32_t> rows(tokens.size());
        std::iota(rows.begin(), rows.end(), 0);
        const IngestSegment one = segment(first, count, slots, rows);
        drafter->ingest({&one, 1});
    }

    DraftContext context(int32_t anchor, std::span<const int32_t> slots) const {
        return {.tokens = std::span(tokens).first(static_cast<size_t>(anchor) + 1),
                .slots = slots.first(static_cast<size_t>(anchor)),
                .max_depth = kMaxDraftDepths};
    }

    LatticeStorage draft(const DraftContext& context) {
        LatticeStorage storage(drafter->depth_capacity, drafter->state_capacity);
        LatticeView view = storage.view();
        drafter->draft({&context, 1}, {&view, 1});
        return storage;
    }

    /// All tokens before `anchor` ingested in one go, then a draft.
    LatticeStorage draft_at(int32_t anchor) {
        const std::vector<int32_t> slots = slots_of(0, anchor);
        ingest(0, anchor, slots);
        return draft(context(anchor, slots));
    }

    std::vector<int32_t> tokens;
    std::vector<float> features;
    std::unique_ptr<DflashDrafter> drafter;

  private:
    ThreadPool threads_;
    Stream stream_;
    std::vector<std::byte> embedding_, head_;
    std::unique_ptr<LinearWeights> head_weights_;
    int64_t columns_ = 0;
};

/// Everything that a tree is built from, to the bit.
inline std::vector<float> bits_of(LatticeView lattice) {
    std::vector<float> all = {static_cast<float>(*lattice.depths), *lattice.has_edges ? 1.f : 0.f};
    for (int32_t depth = 0; depth < *lattice.depths; ++depth) {
        const int32_t states = lattice.state_count[depth];
        for (int32_t s = 0; s < states; ++s) {
            all.push_back(static_cast<float>(lattice.token[lattice.at(depth, s)]));
            all.push_back(lattice.log_prob[lattice.at(depth, s)]);
        }
        for (int32_t p = 0; depth > 0 && *lattice.has_edges && p < lattice.state_count[depth - 1];
             ++p) {
            const float* edges = lattice.edge + lattice.edge_at(depth, p, 0);
            all.insert(all.end(), edges, edges + states);
        }
    }
    return all;
}

/// Of a token among a depth's candidates; -1: none.
inline int32_t state_of(LatticeView lattice, int32_t depth, int32_t token) {
    for (int32_t s = 0; s < lattice.state_count[depth]; ++s) {
        if (lattice.token[lattice.at(depth, s)] == token) return s;
    }
    return -1;
}

}  // namespace kd
