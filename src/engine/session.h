// A request and what became of it: the session.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/sampling_params.h"
#include "engine/batch.h"
#include "engine/round.h"
#include "engine/text_stream.h"
#include "formats/tokenizer.h"
#include "kv/kv_pool.h"

namespace kd {

using RequestId = uint64_t;

/// What the target thought of one position (base/sampling_params.h says which logprobs).
struct PositionLogprobs {
    float logprob = 0.0f;           // of the token that stands there
    std::vector<TokenLogprob> top;  // the most likely ones, by (logprob descending, id ascending)
};

struct Request {
    std::vector<int32_t> prompt;  // at least one token
    SamplingParams sampling;
    int32_t max_tokens = 0;  // 0: as many as the context holds
    std::vector<std::string> stop;
    Speculation speculation;
    std::vector<int32_t> known_continuation;  // for the oracle drafter
    std::vector<LogitBias> logit_bias;        // distinct tokens
    LogitMask logit_mask;                     // empty: every token is allowed
    int32_t top_logprobs = -1;     // of emitted tokens: how many to list; -1: no logprobs at all
    int32_t prompt_logprobs = -1;  // the same for the prompt's tokens from the second on
    bool prompt_only = false;      // ends with the prompt; nothing is generated (scoring)
};

/// `length` is also the end of a request with prompt_only.
enum class FinishReason : uint8_t { none, stop, length, abort, error };
std::string_view name_of(FinishReason reason);

/// What one session did so far. Seconds of the rounds it took part in.
struct SessionStats {
    int32_t prompt_tokens = 0;
    int32_t reused_tokens = 0;  // of the prompt, found in the prefix cache at its first reading
    int32_t prefill_rows = 0;   // computed, also those computed anew after a retraction
    int32_t tokens = 0;         // emitted
    int32_t rounds = 0;         // decoding rounds
    int32_t nodes = 0;          // verified rows, roots included
    int32_t retracted = 0;
    double prefill_s = 0;
    double decode_s = 0;
    RoundStats phases;  // sums over its decoding rounds

    /// Sums what several sessions did.
    SessionStats& operator+=(const SessionStats& other);
};

/// What is new since the last poll.
struct Delta {
    std::vector<int32_t> ids;                // emitted tokens, a stop token included
    std::string text;                        // whole characters, ended before any stop string
    std::vector<PositionLogprobs> logprobs;  // [ids] where the request asked for them
    std::vector<PositionLogprobs> prompt_logprobs;  // of prompt tokens 1, 2, ...; each once
    FinishReason finish = FinishReason::none;
    std::string error;  // one line; with FinishReason::error
    SessionStats stats;
};

/// Adds what came later to what came so far.
void append(Delta& whole, Delta&& later);

/// Has its slots through the page table; owned by Engine::sessions_.
struct Session {
    Session(RequestId request_id, Request&& asked, KvPool& pool, const Tokenizer& tokenizer)
        : id(request_id),
          request(std::move(asked)),
          tokens(request.prompt),
          table(pool),
          text(tokenizer, request.stop) {
        stats.prompt_tokens = static_cast<int32_t>(tokens.size());
    }

    RequestId id;
    Request request;
    std::vector<int32_t> tokens;  // prompt and emitted
    int32_t committed = 0;        // rows in the cache
    PageTable table;
    TextStream text;
    int32_t number = -1;     // in the running table; -1: waiting or finished
    uint64_t admission = 0;  // larger: admitted later
    FinishReason finish = FinishReason::none;
    SessionStats stats;
    TokenCounts counts;            // of prompt and answer; empty: not decoding yet, or no penalties
    int32_t scored = 1;            // prompt tokens whose logprobs are known (the first has none)
    std::string error;             // with FinishReason::error
    std::vector<int32_t> new_ids;  // since the last poll
    std::string new_text;
    std::vector<PositionLogprobs> new_logprobs;
    std::vector<PositionLogprobs> new_prompt_logprobs;

    int32_t emitted() const { return static_cast<int32_t>(tokens.size() - request.prompt.size()); }
    std::span<const int32_t> answer() const {
        return std::span(tokens).subspan(request.prompt.size());
    }
    bool prefilling() const { return committed + 1 < static_cast<int32_t>(tokens.size()); }
};

}  // namespace kd
