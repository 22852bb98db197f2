#include "engine/engine.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "base/error.h"
#include "base/log.h"
#include "engine/cost_cache.h"
#include "engine/cost_measure.h"
#include "formats/model_tokenizer.h"
#include "formats/oracle_profile.h"
#include "models/dflash_drafter.h"
#include "models/ngram_drafter.h"
#include "models/oracle_drafter.h"

namespace kd {

std::string_view name_of(FinishReason reason) {
    switch (reason) {
        case FinishReason::none:
            return "none";
        case FinishReason::stop:
            return "stop";
        case FinishReason::length:
            return "length";
        case FinishReason::abort:
            return "abort";
        case FinishReason::error:
            return "error";
    }
    return "?";
}

SessionStats& SessionStats::operator+=(const SessionStats& other) {
    prompt_tokens += other.prompt_tokens;
    reused_tokens += other.reused_tokens;
    prefill_rows += other.prefill_rows;
    tokens += other.tokens;
    rounds += other.rounds;
    nodes += other.nodes;
    retracted += other.retracted;
    prefill_s += other.prefill_s;
    decode_s += other.decode_s;
    phases += other.phases;
    return *this;
}

void append(Delta& whole, Delta&& later) {
    const auto move_behind = [](auto& to, auto& from) {
        to.insert(to.end(), std::make_move_iterator(from.begin()),
                  std::make_move_iterator(from.end()));
    };
    move_behind(whole.ids, later.ids);
    move_behind(whole.logprobs, later.logprobs);
    move_behind(whole.prompt_logprobs, later.prompt_logprobs);
    whole.text += later.text;
    whole.finish = later.finish;
    whole.error = std::move(later.error);
    whole.stats = later.stats;
}

namespace {

/// False for names that the system refuses to look up, too long ones for example.
bool exists(const std::string& path) {
    std::error_code error;
    return std::filesystem::exists(path, error);
}

/// Where `kdtree fetch` kept the model's SHA-256: whether the drafter was made for another file.
void warn_of_other_target(const DflashConfig& drafter, const std::string& model) {
    std::string known;
    std::ifstream(model + ".sha256") >> known;
    if (drafter.target_sha256.empty() || known.size() != 64) return;
    if (known != drafter.target_sha256) {
        log_warning(
            fmt::format("{}: kdtree.target_sha256 {} is not that of {}: fewer of its "
                        "drafts may be accepted",
                        drafter.path, drafter.target_sha256, model));
    }
}

}  // namespace

std::string resolve_model(const std::string& model) {
    if (model == "smollm2") {
        std::string path = read_environment().cache_folder + "/SmolLM2-135M-Instruct.Q4_1.gguf";
        if (!exists(path)) {
            KD_THROW(not_found, "model smollm2 is not at {}: kdtree fetch smollm2 fetches it",
                     path);
        }
        return path;
    }
    if (!model.ends_with(".gguf") && !exists(model)) {
        KD_THROW(not_found, "model \"{}\" is neither a known name (smollm2) nor a file or folder",
                 model);
    }
    return model;
}

Engine::Engine(const Config& config) : config_(config) {
    load();
}

Engine::Engine(const Config& config, std::unique_ptr<Drafter> drafter)
    : config_(config), drafter_(std::move(drafter)) {
    load();
}

Engine::~Engine() = default;

void Engine::load() {
    validate(config_);
    config_.model = resolve_model(config_.model);
    if (config_.threads == 0) config_.threads = default_threads();
    file_ = std::make_unique<ModelFile>(config_.model);
    const ModelConfig shape = read_model_config(*file_);
    tokenizer_ = std::make_unique<Tokenizer>(read_tokenizer(*file_, shape.vocabulary));
    if (config_.context_length == 0) config_.context_length = shape.context_length;
    if (config_.context_length > shape.context_length) {
        KD_THROW(invalid_argument, "context length {} is beyond the model's {}",
                 config_.context_length, shape.context_length);
    }
    const int64_t asked = config_.max_total_tokens > 0
                              ? int64_t{config_.max_total_tokens}
                              : int64_t{config_.context_length} * config_.max_running_requests;
    const int64_t page = config_.page_size;
    const int64_t slots = (asked + page - 1) / page * page;
    if (slots > (int64_t{1} << 30)) {
        KD_THROW(invalid_argument, "a pool of {} tokens is beyond {}", slots, 1 << 30);
    }
    config_.max_total_tokens = static_cast<int32_t>(slots);

    // What a drafter reads of the target has to be known before the target is loaded.
    std::optional<DflashConfig> dflash;
    if (drafter_ == nullptr && config_.speculative_algorithm == SpeculativeAlgorithm::dflash) {
        dflash = read_dflash_config(config_.speculative_draft_model_path);
        check_dflash_target(*dflash, shape);
        warn_of_other_target(*dflash, config_.model);
    }
    const bool none = config_.speculative_algorithm == SpeculativeAlgorithm::none;
    if (drafter_ == nullptr && none) config_.max_draft_tokens = 1;

    BatchLimits limits = {.sessions = config_.max_running_requests,
                          .nodes = config_.max_draft_tokens,
                          .prefill_rows = config_.chunked_prefill_size,
                          .depth_capacity = 1,
                          .state_capacity = 1,
                          .vocabulary = shape.vocabulary};
    // The measurement of costs puts the rows of all trees into one chain.
    limits.keys = config_.context_length + limits.tree_rows();
    threads_ = std::make_unique<ThreadPool>(config_.threads);
    stream_ = {.threads = threads_.get(),
               .kernels = config_.reference_kernels ? Kernels::reference : Kernels::fast,
               .weights = &weights_};
    model_ = load_model(*file_,
                        {.rows = limits.rows(),
                         .logit_rows = limits.rows(),
                         .keys = limits.keys,
                         .feature_layers = dflash ? dflash->target_layers : std::vector<int32_t>()},
                        stream_);
    if (drafter_ == nullptr) drafter_ = make_drafter(dflash, limits);
    if (drafter_ != nullptr) {
        limits.depth_capacity = drafter_->depth_capacity;
        limits.state_capacity = drafter_->state_capacity;
    }
    if (dflash) limits.feature_columns = std::ssize(dflash->target_layers) * int64_t{shape.hidden};

    kv_ = cache_view(shape, config_.reference_kernels ? DType::f32 : DType::f16,
                     slots + limits.tree_rows());
    kv_memory_ = std::make_unique<LazyArray<std::byte>>(kv_.bytes());
    kv_.data = kv_memory_->data();
    pool_ = std::make_unique<KvPool>(
        KvPoolOptions{.slots = config_.max_total_tokens,
                      .page_size = config_.page_size,
                      .extent = std::clamp(config_.kv_extent, 1, config_.max_total_tokens),
                      .prefix_index = config_.radix_cache,
                      .evict_batch = config_.kv_evict_batch});
    for (int32_t i = 0; i < limits.tree_rows(); ++i) {
        tail_slots_.push_back(static_cast<int32_t>(slots) + i);
    }
    batch_ = std::make_unique<Batch>(limits);
    running_.resize(static_cast<size_t>(config_.max_running_requests), nullptr);
}

std::unique_ptr<Drafter> Engine::make_drafter(const std::optional<DflashConfig>& dflash,
                                              const BatchLimits& limits) {
    const std::string& path = config_.speculative_draft_model_path;
    switch (config_.speculative_algorithm) {
        case SpeculativeAlgorithm::none:
            break;
        case SpeculativeAlgorithm::ngram:
            return std::make_unique<NgramDrafter>(limits.sessions, limits.nodes - 1);
        case SpeculativeAlgorithm::oracle:
            return std::make_unique<OracleDrafter>(read_oracle_profile(path), limits.vocabulary);
        case SpeculativeAlgorithm::dflash:
            return std::make_unique<DflashDrafter>(
                *dflash,
                load_dflash_weights(path, *dflash, model_->config, model_->shared(), stream_),
                DflashLimits{.sessions = limits.sessions,
                             .rows = limits.rows(),
                             .context = config_.context_length,
                             .slots = config_.max_total_tokens},
                stream_);
    }
    return nullptr;
}

void Engine::cancel(RequestId id) {
    const auto found = sessions_.find(id);
    if (found == sessions_.end() || found->second->finish != FinishReason::none) return;
    finish(*found->second, FinishReason::abort);
    std::erase(waiting_, found->second.get());
}

Delta Engine::poll(RequestId id) {
    const auto found = sessions_.find(id);
    if (found == sessions_.end()) KD_THROW(invalid_argument, "no request {}", id);
    Session& session = *found->second;
    Delta delta = {.ids = std::exchange(session.new_ids, {}),
                   .text = std::exchange(session.new_text, {}),
                   .logprobs = std::exchange(session.new_logprobs, {}),
                   .prompt_logprobs = std::exchange(session.new_prompt_logprobs, {}),
                   .finish = session.finish,
                   .error = session.error,
                   .stats = session.stats};
    if (session.finish != FinishReason::none) sessions_.erase(found);
    return delta;
}

int32_t Engine::running() const {
    return static_cast<int32_t>(std::count_if(running_.begin(), running_.end(),
                                              [](const Session* each) { return each != nullptr; }));
}

const CostTable& Engine::cost(const std::function<void(double share)>& progress) {
    if (!cost_.has_value()) {
        cost_ = config_.reference_kernels ? proportional_cost(batch_->limits.tree_rows())
                                          : cached_cost(progress);
    }
    return *cost_;
}

void Engine::set_cost(CostTable table) {
    table.validate();
    cost_ = std::move(table);
}

CostTable Engine::cached_cost(const std::function<void(double share)>& progress) {
    const int32_t rows = batch_->limits.tree_rows();
    const int32_t max_context = std::min(config_.context_length, pool_->total());
    const std::string key = cost_key(*file_, config_.threads, rows, max_context);
    const std::string path = cost_cache_path(read_environment().cache_folder, key);
    CostTable table = load_cost(path, key);
    if (!table.empty()) return table;
    log_notice("measuring the cost of verification (once a machine, model and build) ...");
    table = measure_cost(round_context(), *batch_, rows, max_context, tail_slots_, progress);
    const std::string problem = save_cost(table, path, key);
    if (!problem.empty()) log_warning(problem);
    return table;
}

RoundContext Engine::round_context() {
    return {.model = model_.get(),
            .drafter = drafter_.get(),
            .kv = kv_,
            .stream = &stream_,
            .cost = cost_.has_value() ? &*cost_ : &no_cost_};
}

const RoundStats* Engine::step() {
    if (config_.kv_relocate > 0) relocate(config_.kv_relocate);
    admit();
    plan();
    if (batch_->entries.empty()) return nullptr;
    stats_ = run_round(*batch_, round_context());
    stats_.reused_rows = reused_rows_;
    stats_.fragmentation = pool_->fragmentation();
    stats_.free_runs = pool_->free_pages().runs();
    refine_cost(stats_);
    judge_draft(stats_);
    apply(stats_);
    return &stats_;
}

/// By the sessions that drafted under a budget; what else is in the round takes its time with and
/// without their drafts. Times are those of the cost table: what else the machine did is no fault
/// of the draft.
void Engine::judge_draft(const RoundStats& stats) {
    if (stats.predicted_plain_s == 0 || batch_->gated.empty()) return;
    int32_t emitted = 0;
    for (const size_t entry : batch_->gated) {
        const int32_t tokens = *batch_->accepted[entry].view().count;
        if (tokens == 0) return;  // its rules failed
        emitted += tokens;
    }
    RoundLessons& lessons = batch_->lessons;
    const size_t gated = batch_->gated.size();
    const size_t drafted = batch_->draft_contexts.size();
    const double overhead = lessons.overhead.seconds();
    lessons.gate.observe(
        static_cast<double>(emitted) / static_cast<double>(gated),
        (overhead + lessons.draft_s(drafted) + stats.predicted_verify_s) /
            (overhead + lessons.draft_s(drafted - gated) + stats.predicted_plain_s));
}

void Engine::refine_cost(const RoundStats& stats) {
    RoundLessons& lessons = batch_->lessons;
    lessons.overhead.observe(stats.total_s - stats.draft_s - stats.verify_s);
    const size_t drafted = batch_->draft_contexts.size();
    if (drafted > 0) lessons.draft_of(drafted).observe(stats.draft_s);
    // Prompt rows skip the head: such a round says little about the cost of verification.
    if (!cost_.has_value() || stats.prefill_rows > 0) return;
    double context = 0;
    for (const AttnSegment& segment : batch_->segments) {
        context += static_cast<double>(segment.context.size()) * segment.rows;
    }
    const auto rows = static_cast<int32_t>(batch_->tokens.size());
    cost_->observe(rows, context / rows, stats.verify_s);
}

}  // namespace kd
