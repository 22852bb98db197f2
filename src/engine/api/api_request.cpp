#include "engine/api/api_request.h"

#include <cstring>
#include <limits>

#include "engine/api/api_error.h"

namespace kd::api {

namespace {

// No request has stop strings or tokens beyond these; counts above them are refused
// before anything is read.
constexpr int64_t kMaxStops = 1024;
constexpr int64_t kMaxTokens = int64_t{1} << 24;

bool flag_of(const char* name, int32_t value) {
    expect_range(name, value, 0, 1);
    return value != 0;
}

std::vector<int32_t> prompt_of(const kdtree_request& request, const Engine& engine) {
    if (request.prompt_text != nullptr && request.prompt_ids != nullptr) {
        KD_THROW(invalid_argument, "both request.prompt_ids and request.prompt_text are given");
    }
    if (request.prompt_text != nullptr) {
        const std::string_view text =
            text_of("request.prompt_text", request.prompt_text, request.prompt_text_bytes);
        return engine.tokenizer().encode(text,
                                         flag_of("request.parse_special", request.parse_special));
    }
    expect_array("request.prompt_ids", request.prompt_ids, request.prompt_id_count, kMaxTokens);
    return {request.prompt_ids, request.prompt_ids + request.prompt_id_count};
}

std::vector<std::string> stops_of(const kdtree_request& request) {
    expect_array("request.stop", request.stop, request.stop_count, kMaxStops);
    std::vector<std::string> stops;
    for (int32_t i = 0; i < request.stop_count; ++i) {
        expect_pointer("a string of request.stop", request.stop[i]);
        stops.emplace_back(request.stop[i]);
    }
    return stops;
}

DraftShape shape_of(int32_t shape) {
    switch (shape) {
        case KDTREE_DRAFT_TREE:
            return DraftShape::tree;
        case KDTREE_DRAFT_CHAIN:
            return DraftShape::chain;
        case KDTREE_DRAFT_PLAIN:
            return DraftShape::plain;
        default:
            KD_THROW(invalid_argument, "request.draft_shape {} is none of kdtree_draft_shape",
                     shape);
    }
}

/// How many top log-probabilities are wanted; -1: none at all.
int32_t logprobs_of(const char* name, int32_t wanted, int32_t top) {
    const bool on = flag_of(name, wanted);
    if (!on && top != 0) KD_THROW(invalid_argument, "top {} is {}, but {} is 0", name, top, name);
    expect_range(name, top, 0, kMaxTopLogprobs);
    return on ? top : -1;
}

float one_if_zero(float value) {
    return value == 0.0f ? 1.0f : value;
}

SpeculativeAlgorithm algorithm_of(int32_t drafter) {
    switch (drafter) {
        case KDTREE_DRAFTER_DEFAULT:
            return Config{}.speculative_algorithm;
        case KDTREE_DRAFTER_NONE:
            return SpeculativeAlgorithm::none;
        case KDTREE_DRAFTER_NGRAM:
            return SpeculativeAlgorithm::ngram;
        case KDTREE_DRAFTER_ORACLE:
            return SpeculativeAlgorithm::oracle;
        case KDTREE_DRAFTER_DFLASH:
            return SpeculativeAlgorithm::dflash;
        default:
            KD_THROW(invalid_argument, "options.drafter {} is none of kdtree_drafter", drafter);
    }
}

}  // namespace

std::string_view text_of(const char* name, const char* text, int64_t bytes) {
    expect_range(name, bytes, -1, kMaxTextBytes);
    if (bytes == 0) return {};
    expect_pointer(name, text);
    if (bytes > 0) return {text, static_cast<size_t>(bytes)};
    const size_t length = std::strlen(text);
    expect_range(name, static_cast<int64_t>(length), 0, kMaxTextBytes);
    return {text, length};
}

Config config_of(const kdtree_options& options) {
    Config config;
    const auto take = [](int32_t& setting, int32_t value) {
        if (value != 0) setting = value;
    };
    if (options.model != nullptr) config.model = options.model;
    config.speculative_algorithm = algorithm_of(options.drafter);
    if (options.draft_model_path != nullptr) {
        config.speculative_draft_model_path = options.draft_model_path;
    }
    take(config.context_length, options.context_length);
    take(config.threads, options.threads);
    take(config.max_running_requests, options.max_running_requests);
    take(config.max_total_tokens, options.max_total_tokens);
    take(config.chunked_prefill_size, options.chunked_prefill_size);
    take(config.max_draft_tokens, options.max_draft_tokens);
    config.reference_kernels = flag_of("options.reference_kernels", options.reference_kernels);
    take(config.page_size, options.page_size);
    config.radix_cache = !flag_of("options.disable_radix_cache", options.disable_radix_cache);
    take(config.kv_extent, options.kv_extent);
    take(config.kv_headroom, options.kv_headroom);
    take(config.kv_relocate, options.kv_relocate);
    if (options.kv_evict_batch != 0) config.kv_evict_batch = options.kv_evict_batch;
    return config;
}

SamplingParams sampling_of(const kdtree_sampling& sampling) {
    SamplingParams params;
    params.temperature = sampling.temperature;
    params.top_k = sampling.top_k;
    params.top_p = one_if_zero(sampling.top_p);
    params.min_p = sampling.min_p;
    params.seed = sampling.seed;
    params.repetition_penalty = one_if_zero(sampling.repetition_penalty);
    params.presence_penalty = sampling.presence_penalty;
    params.frequency_penalty = sampling.frequency_penalty;
    return params;
}

void MaskOwner::call(std::span<const int32_t> answer, std::span<uint32_t> allowed) const {
    const int32_t result = mask_(user_, answer.data(), static_cast<int64_t>(answer.size()),
                                 allowed.data(), static_cast<int64_t>(allowed.size()));
    if (result != 0) KD_THROW(invalid_argument, "the logit mask returned {}", result);
}

RequestCopies requests_of(const kdtree_request& given, const Engine& engine, int32_t id_capacity) {
    const int32_t samples = given.samples == 0 ? 1 : given.samples;
    expect_range("request.samples", samples, 1, kMaxChoices);
    expect_range("id_capacity", id_capacity, samples, std::numeric_limits<int32_t>::max());
    expect_struct_bytes("request.sampling", given.sampling.struct_bytes, sizeof given.sampling);
    expect_array("request.logit_bias", given.logit_bias, given.logit_bias_count,
                 engine.model_config().vocabulary);
    expect_array("request.known_continuation", given.known_continuation,
                 given.known_continuation_count, engine.config().context_length);

    RequestCopies copies;
    Request request;
    request.prompt = prompt_of(given, engine);
    request.sampling = sampling_of(given.sampling);
    request.sampling.min_tokens = given.min_tokens;
    request.sampling.ignore_eos = flag_of("request.ignore_eos", given.ignore_eos);
    request.max_tokens = given.max_tokens;
    request.stop = stops_of(given);
    request.speculation = {.shape = shape_of(given.draft_shape), .nodes = given.draft_tokens};
    request.known_continuation.assign(given.known_continuation,
                                      given.known_continuation + given.known_continuation_count);
    for (int32_t i = 0; i < given.logit_bias_count; ++i) {
        request.logit_bias.push_back(
            {.token = given.logit_bias[i].token, .bias = given.logit_bias[i].bias});
    }
    request.top_logprobs = logprobs_of("request.logprobs", given.logprobs, given.top_logprobs);
    request.prompt_logprobs =
        logprobs_of("request.prompt_logprobs", given.prompt_logprobs, given.top_prompt_logprobs);
    request.prompt_only = flag_of("request.prompt_only", given.prompt_only);
    if (given.logit_mask != nullptr) {
        copies.mask = std::make_shared<MaskOwner>(given);
        request.logit_mask = [owner = copies.mask](std::span<const int32_t> answer,
                                                   std::span<uint32_t> allowed) {
            owner->call(answer, allowed);
        };
    }
    engine.check(request);  // before there are many of it
    for (int32_t i = 0; i < samples; ++i) {
        copies.samples.push_back(request);
        copies.samples.back().sampling.seed += static_cast<uint64_t>(i);
    }
    return copies;
}

}  // namespace kd::api
