// kdtree/engine.h: the engine for C++20, over the C ABI of kdtree.h and nothing else.
//
//     kdtree::Engine engine({.model = "model.gguf"});
//     kdtree::Request request = engine.submit({.prompt = "Once", .max_tokens = 20});
//     engine.start();
//     for (bool more = true; more;) {
//         kdtree::Delta delta = request.poll();
//         std::fputs(delta.text.c_str(), stdout);
//         more = !delta.finished();
//     }
//
// Every refusal throws kdtree::Error. Threads: as kdtree.h says. Defaults are zero as there.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kdtree/kdtree.h"

namespace kdtree {

class Error : public std::runtime_error {
  public:
    Error(kdtree_status error_status, const std::string& message)
        : std::runtime_error(message), status(error_status) {}
    const kdtree_status status;
};

namespace detail {

inline void check(kdtree_status status) {
    if (status != KDTREE_OK) throw Error(status, kdtree_last_error());
}

template <class Struct>
Struct zeroed() {
    Struct value{};
    value.struct_bytes = sizeof(Struct);
    return value;
}

inline const char* text_or_null(const std::string& text) {
    return text.empty() ? nullptr : text.c_str();
}

struct FreeResult {
    void operator()(kdtree_result* result) const { kdtree_result_free(result); }
};
struct FreeDelta {
    void operator()(kdtree_delta* delta) const { kdtree_delta_free(delta); }
};
struct FreeEngine {
    void operator()(kdtree_engine* engine) const { kdtree_engine_free(engine); }
};

}  // namespace detail

/// No wait; or without end.
inline constexpr std::chrono::milliseconds kNow{0};
inline constexpr std::chrono::milliseconds kForever{-1};

struct Options {
    std::string model;  // a .gguf file or a known name; empty: smollm2
    kdtree_drafter drafter = KDTREE_DRAFTER_DEFAULT;
    std::string draft_model_path;
    int32_t context_length = 0;
    int32_t threads = 0;
    int32_t max_running_requests = 0;
    int32_t max_total_tokens = 0;
    int32_t chunked_prefill_size = 0;
    int32_t max_draft_tokens = 0;
    bool reference_kernels = false;
    int32_t page_size = 0;
    bool radix_cache = true;
    int32_t kv_extent = 0;
    int32_t kv_headroom = 0;
    int32_t kv_relocate = 0;
    double kv_evict_batch = 0;
};

/// Which tokens may follow `answer`: clears bits of `allowed`. What it throws ends the request with
/// KDTREE_FINISH_ERROR.
using LogitMask = std::function<void(std::span<const int32_t> answer, std::span<uint32_t> allowed)>;

struct Sampling {
    float temperature = 0;  // 0: greedy
    int32_t top_k = 0;
    float top_p = 1;
    float min_p = 0;
    float repetition_penalty = 1;
    float presence_penalty = 0;
    float frequency_penalty = 0;
    uint64_t seed = 0;
};

/// What is asked of the engine; see kdtree_request.
struct Prompt {
    std::string prompt;        // text; or
    std::vector<int32_t> ids;  // ids, where it is empty
    bool parse_special = false;
    int32_t max_tokens = 0;
    int32_t min_tokens = 0;
    bool ignore_eos = false;
    Sampling sampling;
    std::vector<std::string> stop;
    std::vector<kdtree_logit_bias> logit_bias;
    LogitMask logit_mask;
    std::optional<int32_t> top_logprobs;         // unset: no logprobs
    std::optional<int32_t> top_prompt_logprobs;  // unset: none
    bool prompt_only = false;
    kdtree_draft_shape draft_shape = KDTREE_DRAFT_TREE;
    int32_t draft_tokens = 0;
    std::vector<int32_t> known_continuation;
};

struct PositionLogprobs {
    float logprob = 0;
    std::vector<kdtree_token_logprob> top;
};

/// What is new of a request.
struct Delta {
    std::vector<int32_t> ids;
    std::string text;
    std::vector<PositionLogprobs> logprobs;
    std::vector<PositionLogprobs> prompt_logprobs;
    kdtree_finish_reason finish_reason = KDTREE_FINISH_NONE;
    std::string error;
    kdtree_request_stats stats{};

    bool finished() const { return finish_reason != KDTREE_FINISH_NONE; }
};

/// A running request. Dropped when it goes before its end was polled. The engine must outlive it.
class Request {
  public:
    Request(kdtree_engine* engine, kdtree_request_id id) : engine_(engine), id_(id) {}
    ~Request() { drop(); }
    Request(Request&& other) noexcept : engine_(other.engine_), id_(std::exchange(other.id_, 0)) {}
    Request& operator=(Request&& other) noexcept {
        if (this != &other) {
            drop();
            engine_ = other.engine_;
            id_ = std::exchange(other.id_, 0);
        }
        return *this;
    }
    Request(const Request&) = delete;
    Request& operator=(const Request&) = delete;

    /// 0 once its end was polled.
    kdtree_request_id id() const { return id_; }
    void cancel() { detail::check(kdtree_cancel(engine_, id_)); }
    /// Waits for news, kForever without end; an empty delta after a timeout.
    Delta poll(std::chrono::milliseconds timeout = kForever) {
        kdtree_delta* raw = nullptr;
        detail::check(kdtree_poll(engine_, id_, timeout.count(), &raw));
        const std::unique_ptr<kdtree_delta, detail::FreeDelta> owned(raw);
        Delta delta = {.ids = {raw->ids, raw->ids + raw->id_count},
                       .text = {raw->text, static_cast<size_t>(raw->text_bytes)},
                       .logprobs = copy(raw->logprobs, raw->logprob_count),
                       .prompt_logprobs = copy(raw->prompt_logprobs, raw->prompt_logprob_count),
                       .finish_reason = static_cast<kdtree_finish_reason>(raw->finish_reason),
                       .error = raw->error,
                       .stats = raw->stats};
        if (delta.finished()) id_ = 0;
        return delta;
    }

  private:
    static std::vector<PositionLogprobs> copy(const kdtree_position_logprobs* from, int64_t count) {
        std::vector<PositionLogprobs> to;
        for (const kdtree_position_logprobs& each : std::span(from, static_cast<size_t>(count))) {
            to.push_back({.logprob = each.logprob, .top = {each.top, each.top + each.top_count}});
        }
        return to;
    }
    void drop() {
        if (id_ != 0) kdtree_drop(engine_, id_);  // an unknown id is nothing to drop
        id_ = 0;
    }

    kdtree_engine* engine_;
    kdtree_request_id id_;
};

class Engine {
  public:
    /// Loads model and drafter.
    explicit Engine(const Options& options = {}) {
        auto given = detail::zeroed<kdtree_options>();
        given.model = detail::text_or_null(options.model);
        given.drafter = options.drafter;
        given.draft_model_path = detail::text_or_null(options.draft_model_path);
        given.context_length = options.context_length;
        given.threads = options.threads;
        given.max_running_requests = options.max_running_requests;
        given.max_total_tokens = options.max_total_tokens;
        given.chunked_prefill_size = options.chunked_prefill_size;
        given.max_draft_tokens = options.max_draft_tokens;
        given.reference_kernels = options.reference_kernels ? 1 : 0;
        given.page_size = options.page_size;
        given.disable_radix_cache = options.radix_cache ? 0 : 1;
        given.kv_extent = options.kv_extent;
        given.kv_headroom = options.kv_headroom;
        given.kv_relocate = options.kv_relocate;
        given.kv_evict_batch = options.kv_evict_batch;
        kdtree_engine* engine = nullptr;
        detail::check(kdtree_engine_create(&given, &engine));
        engine_.reset(engine);
    }

    kdtree_model_info info() const {
        auto info = detail::zeroed<kdtree_model_info>();
        detail::check(kdtree_engine_info(engine_.get(), &info));
        return info;
    }
    kdtree_engine_stats stats() const {
        auto stats = detail::zeroed<kdtree_engine_stats>();
        detail::check(kdtree_stats(engine_.get(), &stats));
        return stats;
    }

    std::vector<int32_t> tokenize(std::string_view text, bool parse_special = false) const {
        kdtree_result* raw = nullptr;
        detail::check(kdtree_tokenize(engine_.get(), text.data(), static_cast<int64_t>(text.size()),
                                      parse_special ? 1 : 0, &raw));
        const Result result(raw);
        return {raw->ids, raw->ids + raw->id_count};
    }
    std::string detokenize(std::span<const int32_t> ids, bool with_special = false) const {
        kdtree_result* raw = nullptr;
        detail::check(kdtree_detokenize(engine_.get(), ids.data(), static_cast<int64_t>(ids.size()),
                                        with_special ? 1 : 0, &raw));
        const Result result(raw);
        return {raw->text, static_cast<size_t>(raw->text_bytes)};
    }
    /// JSON messages, as kdtree_apply_chat_template() takes them, to the prompt's ids.
    std::vector<int32_t> apply_chat_template(std::string_view json,
                                             bool add_generation_prompt = true) const {
        kdtree_result* raw = nullptr;
        detail::check(kdtree_apply_chat_template(engine_.get(), json.data(),
                                                 static_cast<int64_t>(json.size()),
                                                 add_generation_prompt ? 1 : 0, &raw));
        const Result result(raw);
        return {raw->ids, raw->ids + raw->id_count};
    }

    Request submit(const Prompt& prompt) { return std::move(submit_n(prompt, 1).front()); }
    /// `samples` requests of one prompt (0: 1); sample i draws with seed + i.
    std::vector<Request> submit_n(const Prompt& prompt, int32_t samples) {
        std::vector<const char*> stop;
        for (const std::string& each : prompt.stop) stop.push_back(each.c_str());
        kdtree_request given = request_of(prompt, stop);
        given.samples = samples;
        std::unique_ptr<LogitMask> mask;
        if (prompt.logit_mask) {
            mask = std::make_unique<LogitMask>(prompt.logit_mask);
            given.logit_mask = call_mask;
            given.logit_mask_user = mask.get();
            given.logit_mask_release = [](void* user) { delete static_cast<LogitMask*>(user); };
        }
        std::vector<kdtree_request_id> ids(samples > 0 ? static_cast<size_t>(samples) : 1);
        std::vector<Request> requests;
        requests.reserve(ids.size());
        detail::check(
            kdtree_submit(engine_.get(), &given, ids.data(), static_cast<int32_t>(ids.size())));
        mask.release();  // the library's now
        for (const kdtree_request_id id : ids) requests.emplace_back(engine_.get(), id);
        return requests;
    }
    /// Ids of at most `most` requests with news; none after a timeout.
    std::vector<kdtree_request_id> wait(std::chrono::milliseconds timeout = kForever,
                                        int32_t most = 64) {
        std::vector<kdtree_request_id> ids(static_cast<size_t>(most > 0 ? most : 1));
        int32_t count = 0;
        detail::check(kdtree_wait(engine_.get(), timeout.count(), ids.data(), most, &count));
        ids.resize(static_cast<size_t>(count));
        return ids;
    }

    /// Runs one round; false if there was nothing to do.
    bool step() {
        int32_t ran = 0;
        detail::check(kdtree_step(engine_.get(), &ran));
        return ran != 0;
    }
    void start() { detail::check(kdtree_start(engine_.get())); }
    void stop() { detail::check(kdtree_stop(engine_.get())); }

    /// For what only the C ABI has.
    kdtree_engine* get() const { return engine_.get(); }

  private:
    using Result = std::unique_ptr<kdtree_result, detail::FreeResult>;

    /// Points into `prompt` and `stop`.
    static kdtree_request request_of(const Prompt& prompt, const std::vector<const char*>& stop) {
        auto given = detail::zeroed<kdtree_request>();
        if (prompt.prompt.empty()) {
            given.prompt_ids = prompt.ids.data();
            given.prompt_id_count = static_cast<int64_t>(prompt.ids.size());
        } else {
            given.prompt_text = prompt.prompt.data();
            given.prompt_text_bytes = static_cast<int64_t>(prompt.prompt.size());
        }
        given.parse_special = prompt.parse_special ? 1 : 0;
        given.max_tokens = prompt.max_tokens;
        given.min_tokens = prompt.min_tokens;
        given.ignore_eos = prompt.ignore_eos ? 1 : 0;
        given.sampling = {.struct_bytes = sizeof given.sampling,
                          .temperature = prompt.sampling.temperature,
                          .top_k = prompt.sampling.top_k,
                          .top_p = prompt.sampling.top_p,
                          .min_p = prompt.sampling.min_p,
                          .repetition_penalty = prompt.sampling.repetition_penalty,
                          .presence_penalty = prompt.sampling.presence_penalty,
                          .frequency_penalty = prompt.sampling.frequency_penalty,
                          .seed = prompt.sampling.seed};
        given.stop = stop.data();
        given.stop_count = static_cast<int32_t>(stop.size());
        given.logit_bias = prompt.logit_bias.data();
        given.logit_bias_count = static_cast<int32_t>(prompt.logit_bias.size());
        given.logprobs = prompt.top_logprobs.has_value() ? 1 : 0;
        given.top_logprobs = prompt.top_logprobs.value_or(0);
        given.prompt_logprobs = prompt.top_prompt_logprobs.has_value() ? 1 : 0;
        given.top_prompt_logprobs = prompt.top_prompt_logprobs.value_or(0);
        given.prompt_only = prompt.prompt_only ? 1 : 0;
        given.draft_shape = prompt.draft_shape;
        given.draft_tokens = prompt.draft_tokens;
        given.known_continuation = prompt.known_continuation.data();
        given.known_continuation_count = static_cast<int64_t>(prompt.known_continuation.size());
        return given;
    }
    static int32_t call_mask(void* user, const int32_t* answer, int64_t answer_tokens,
                             uint32_t* allowed, int64_t allowed_words) {
        try {
            (*static_cast<LogitMask*>(user))({answer, static_cast<size_t>(answer_tokens)},
                                             {allowed, static_cast<size_t>(allowed_words)});
            return 0;
        } catch (...) {
            return 1;
        }
    }

    std::unique_ptr<kdtree_engine, detail::FreeEngine> engine_;
};

}  // namespace kdtree
