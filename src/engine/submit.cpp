// From a request to a session that waits: what is refused, and why.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "core/sampling.h"
#include "engine/engine.h"

namespace kd {

namespace {

void check_tokens(const std::vector<int32_t>& tokens, int32_t vocabulary) {
    for (const int32_t token : tokens) {
        if (token < 0 || token >= vocabulary) {
            KD_THROW(invalid_argument, "token {} is outside the vocabulary of {}", token,
                     vocabulary);
        }
    }
}

void check_bias(const std::vector<LogitBias>& bias, int32_t vocabulary) {
    std::vector<int32_t> tokens;
    for (const LogitBias& each : bias) {
        // -inf forbids a token; +inf would allow no other, which is what a mask is for.
        if (!(each.bias < std::numeric_limits<float>::infinity())) {
            KD_THROW(invalid_argument, "logit bias {} of token {} is not a number below infinity",
                     each.bias, each.token);
        }
        tokens.push_back(each.token);
    }
    check_tokens(tokens, vocabulary);
    std::ranges::sort(tokens);
    const auto twice = std::ranges::adjacent_find(tokens);
    if (twice != tokens.end()) KD_THROW(invalid_argument, "token {} has two logit biases", *twice);
}

void check_logprobs(std::string_view name, int32_t count) {
    if (count < -1 || count > kMaxTopLogprobs) {
        KD_THROW(invalid_argument, "{} {} is outside 0..{} (-1: none)", name, count,
                 kMaxTopLogprobs);
    }
}

void check_speculation(const Speculation& speculation, int32_t max_nodes) {
    if (speculation.nodes < 0 || speculation.nodes > kMaxTreeNodes) {
        KD_THROW(invalid_argument, "speculative num draft tokens {} is outside 1..{}",
                 speculation.nodes, kMaxTreeNodes);
    }
    if (speculation.nodes > max_nodes) {
        KD_THROW(invalid_argument,
                 "speculative num draft tokens {} is beyond the {} this engine was loaded for",
                 speculation.nodes, max_nodes);
    }
}

}  // namespace

void Engine::check(const Request& request) const {
    validate(request.sampling);
    const int32_t vocabulary = model_->config.vocabulary;
    const auto prompt_tokens = static_cast<int64_t>(request.prompt.size());
    const int64_t room = std::min(config_.context_length, pool_->total());
    if (prompt_tokens == 0) KD_THROW(invalid_argument, "the prompt is empty");
    if (prompt_tokens - (request.prompt_only ? 1 : 0) >= room) {
        KD_THROW(invalid_argument, "the prompt has {} tokens, the context holds {}", prompt_tokens,
                 room);
    }
    check_tokens(request.prompt, vocabulary);
    if (request.max_tokens < 0) {
        KD_THROW(invalid_argument, "max tokens {} is negative", request.max_tokens);
    }
    if (request.max_tokens > 0 && request.sampling.min_tokens > request.max_tokens) {
        KD_THROW(invalid_argument, "min tokens {} is beyond max tokens {}",
                 request.sampling.min_tokens, request.max_tokens);
    }
    for (const std::string& stop : request.stop) {
        if (stop.empty()) KD_THROW(invalid_argument, "a stop string is empty");
    }
    check_bias(request.logit_bias, vocabulary);
    check_logprobs("top logprobs", request.top_logprobs);
    check_logprobs("prompt logprobs", request.prompt_logprobs);
    // Without a drafter all speculation is plain decoding, whatever was wished for.
    check_speculation(request.speculation,
                      drafter_ == nullptr ? kMaxTreeNodes : config_.max_draft_tokens);
}

RequestId Engine::submit(Request request) {
    return submit_n(std::move(request), 1).front();
}

std::vector<RequestId> Engine::submit_n(Request request, int32_t n) {
    if (n < 1 || n > kMaxChoices) {
        KD_THROW(invalid_argument, "{} choices are outside 1..{}", n, kMaxChoices);
    }
    check(request);
    if (drafter_ == nullptr) request.speculation = {.shape = DraftShape::plain};
    const bool decodes = !request.prompt_only;
    if (decodes && request.speculation.shape != DraftShape::plain &&
        request.speculation.nodes == 0) {
        cost();
    }
    std::vector<std::unique_ptr<Session>> choices;
    for (int32_t i = 0; i < n; ++i) {
        Request choice = i + 1 < n ? request : std::move(request);
        choice.sampling.seed += static_cast<uint64_t>(i);
        choices.push_back(std::make_unique<Session>(next_id_ + static_cast<RequestId>(i),
                                                    std::move(choice), *pool_, *tokenizer_));
    }
    std::vector<RequestId> ids;
    for (std::unique_ptr<Session>& choice : choices) {
        ids.push_back(next_id_++);
        waiting_.push_back(choice.get());
        sessions_.emplace(ids.back(), std::move(choice));
    }
    return ids;
}

}  // namespace kd
