// The engine: sessions, their memory, the scheduler and the only loop.
//
// One thread calls submit, cancel, step and poll. A request becomes a session, waits until it is
// admitted to the running table, runs its prompt in chunks and then decodes, a tree a round. When
// the pool runs short the session admitted last gives its slots back and waits again; its tokens
// are kept and its rows computed anew, to the same bits, so its text does not change.
// What sessions computed stays in the pool's prefix index until space runs short; a prompt starts
// behind the longest prefix that is there.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/config.h"
#include "base/sampling_params.h"
#include "core/budget.h"
#include "engine/batch.h"
#include "engine/round.h"
#include "engine/session.h"
#include "formats/dflash_config.h"
#include "formats/model_file.h"
#include "formats/tokenizer.h"
#include "kv/kv_pool.h"
#include "models/drafter.h"
#include "models/model.h"

namespace kd {

/// Most answers of one submit_n.
inline constexpr int32_t kMaxChoices = 1024;

class Engine {
  public:
    /// Loads model and drafter. Throws kd::Error for bad settings and files.
    explicit Engine(const Config& config);
    /// With a drafter of the caller's in place of the configured one (tests).
    Engine(const Config& config, std::unique_ptr<Drafter> drafter);
    ~Engine();
    Engine(const Engine&) = delete;
    Engine& operator=(const Engine&) = delete;

    /// Throws kd::Error naming the value for a request that can never be served: an empty prompt,
    /// one that leaves no room in the context (one that is only scored may fill it), tokens outside
    /// the vocabulary, bad sampling parameters, more nodes than the engine was configured for, a
    /// bias that is +inf or NaN or names a token twice, more logprobs than kMaxTopLogprobs.
    RequestId submit(Request request);
    /// `n` answers to one prompt: choice i is what the request gives with seed + i (wrapping), so
    /// greedy choices are equal. All or none: throws as submit does, and for n outside
    /// 1..kMaxChoices.
    std::vector<RequestId> submit_n(Request request, int32_t n);
    /// Throws as submit does for a request that it would refuse. Reads only what never changes
    /// after loading: any thread may call it at any time.
    void check(const Request& request) const;
    /// Ends a request; unknown and finished ones are ignored.
    void cancel(RequestId id);
    /// Runs one round and returns its facts, valid until the next call; null when nothing is left.
    const RoundStats* step();
    /// What is new. After a delta that carries a finish reason the id is forgotten; polling an
    /// unknown id throws kd::Error.
    Delta poll(RequestId id);

    const Config& config() const { return config_; }  // with all defaults resolved
    const ModelConfig& model_config() const { return model_->config; }
    const Tokenizer& tokenizer() const { return *tokenizer_; }
    const KvPool& pool() const { return *pool_; }
    /// Trees and accepted paths of the last round.
    Batch& last_batch() { return *batch_; }
    int32_t running() const;
    /// Measures the cost table now (or reads it from the cache) if that did not happen yet.
    /// `progress` is told the measured share, 0 to 1.
    const CostTable& cost(const std::function<void(double share)>& progress = {});
    /// Takes this cost table, its corrections included, in place of the one in use. Throws as
    /// CostTable::validate does.
    void set_cost(CostTable table);
    /// Moves at most `max_tokens` rows so that sessions become contiguous (kv/relocation.h);
    /// returns how many. No output changes. step() does so by Config::kv_relocate.
    int32_t relocate(int32_t max_tokens);
    /// Aborts unless every slot, committed row and emitted token is accounted for.
    void check_books() const;

  private:
    void load();
    std::unique_ptr<Drafter> make_drafter(const std::optional<DflashConfig>& dflash,
                                          const BatchLimits& limits);
    void admit();
    void plan();
    void plan_prefill(Session& session, int32_t& rows_left);
    void plan_decode(Session& session);
    std::span<const int32_t> reusable_tokens(const Session& session) const;
    void reuse_prefix(Session& session);
    void publish(Session& session);
    bool reserve(Session& session, int32_t need);
    void retract(Session& session);
    void copy_rows(const MoveList& moves);
    void apply(const RoundStats& stats);
    void emit(Session& session, std::span<const int32_t> emitted, const LogprobsView& logprobs);
    void take_scores(Session& session, const BatchEntry& entry, const LogprobsView& logprobs);
    void discard_rows(Session& session);
    void finish(Session& session, FinishReason reason);
    int32_t token_limit(const Session& session) const;
    RoundContext round_context();
    CostTable cached_cost(const std::function<void(double share)>& progress);
    void refine_cost(const RoundStats& stats);
    void judge_draft(const RoundStats& stats);

    Config config_;
    std::unique_ptr<ModelFile> file_;
    std::unique_ptr<Tokenizer> tokenizer_;
    std::unique_ptr<ThreadPool> threads_;
    Arena weights_;  // packed, of model and drafter
    Stream stream_;
    std::unique_ptr<Model> model_;
    std::unique_ptr<Drafter> drafter_;
    std::unique_ptr<LazyArray<std::byte>> kv_memory_;
    KvView kv_;
    std::unique_ptr<KvPool> pool_;
    std::vector<int32_t> tail_slots_;  // [running requests, nodes]
    std::unique_ptr<Batch> batch_;
    std::optional<CostTable> cost_;
    CostTable no_cost_;
    SlotCopies copies_;        // scratch
    int32_t reused_rows_ = 0;  // by plan(), for the round's facts
    RoundStats stats_;

    RequestId next_id_ = 1;
    uint64_t next_admission_ = 1;
    std::map<RequestId, std::unique_ptr<Session>> sessions_;  // until polled to their end
    std::deque<Session*> waiting_;
    std::vector<Session*> running_;       // [running requests] by session number; null: free
    std::vector<Session*> planned_;       // [batch entries]
    std::vector<Session*> oldest_first_;  // scratch of plan()
};

/// The file or folder of a model name or path. Throws kd::Error naming it if there is none.
std::string resolve_model(const std::string& model);

}  // namespace kd
