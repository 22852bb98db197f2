#include "kv_pool/load.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/error.h"
#include "base/rng.h"

namespace kd {

namespace {

constexpr int32_t kPrefixes = 8;
constexpr int32_t kPrefixTokens = 512;
constexpr double kContinued = 0.4;
constexpr int32_t kTurnLeast = 50, kTurnMost = 400;  // new tokens of a continued conversation
constexpr int32_t kOutputLeast = 100, kOutputMost = 1500;

/// 31 bits, so unrelated texts differ at their first token. SplitMix64's finaliser.
int32_t token_at(int32_t text, int32_t position) {
    uint64_t bits = (uint64_t{static_cast<uint32_t>(text)} << 32) + static_cast<uint32_t>(position);
    bits = (bits + 0x9E3779B97F4A7C15u) * 0xBF58476D1CE4E5B9u;
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EBu;
    return static_cast<int32_t>((bits ^ (bits >> 31)) & 0x7FFFFFFF);
}

/// Draws of one load in order.
class Draws {
  public:
    explicit Draws(uint64_t seed) : seed_(seed) {}
    double share() { return uniform(seed_, RngStream::test, position_++); }
    int32_t between(int32_t least, int32_t most) {
        return least + static_cast<int32_t>(share() * (most - least + 1));
    }

  private:
    uint64_t seed_;
    uint64_t position_ = 0;
};

/// A session that waited long enough to have ended and not so long that it is forgotten; -1: none
/// leaves room for another turn.
int32_t conversation_to_continue(const Load& load, const std::vector<bool>& continued,
                                 int32_t concurrency, int32_t prompt_most, Draws& draws) {
    const auto count = static_cast<int32_t>(load.sessions.size());
    const int32_t first = std::max(count - 4 * concurrency, 0);
    const int32_t end = count - concurrency - concurrency / 2;
    if (end <= first) return -1;
    const int32_t begin = draws.between(first, end - 1);
    for (int32_t i = 0; i < end - first; ++i) {
        const int32_t candidate = first + (begin - first + i) % (end - first);
        const LoadSession& session = load.sessions[static_cast<size_t>(candidate)];
        if (continued[static_cast<size_t>(candidate)]) continue;
        if (session.prompt + session.output + kTurnMost <= prompt_most) return candidate;
    }
    return -1;
}

}  // namespace

std::vector<int32_t> tokens_of(const Load& load, int32_t text, int32_t tokens) {
    std::vector<int32_t> out(static_cast<size_t>(tokens));
    // From the last token to the first, text by text.
    for (int32_t end = tokens; end > 0;) {
        const Text& here = load.texts[static_cast<size_t>(text)];
        const auto given = static_cast<int32_t>(here.ids.size());
        const int32_t begin = std::min(here.shared, end);
        for (int32_t i = begin; i < end; ++i) {
            out[static_cast<size_t>(i)] =
                i < given ? here.ids[static_cast<size_t>(i)] : token_at(text, i);
        }
        end = begin;
        text = here.parent;
    }
    return out;
}

int32_t add_text(Load& load, std::string name, int32_t parent, int32_t shared) {
    // Straight to the text that has the last shared token, so that no walk is longer than it must.
    while (parent >= 0 && load.texts[static_cast<size_t>(parent)].shared >= shared) {
        parent = load.texts[static_cast<size_t>(parent)].parent;
    }
    load.texts.push_back({.parent = parent, .shared = shared});
    load.text_names.push_back(std::move(name));
    return static_cast<int32_t>(load.texts.size()) - 1;
}

void check_fits(const Load& load, int32_t pool_tokens) {
    for (const LoadSession& session : load.sessions) {
        const int64_t tokens = int64_t{session.prompt} + std::max(session.output, 1);
        if (tokens > pool_tokens) {
            KD_THROW(invalid_argument, "{}:{}: {} tokens with the output, the pool holds {}",
                     load.name, session.line, tokens, pool_tokens);
        }
    }
}

int32_t pool_tokens_for(const LoadKind& kind, int32_t concurrency) {
    // 32k, 64k, 128k and 328k tokens for 1, 4, 16 and 64 sessions, straight lines between them.
    struct Point {
        int32_t sessions;
        double tokens;
    };
    static constexpr Point kPoints[] = {
        {1, 32 * 1024}, {4, 64 * 1024}, {16, 128 * 1024}, {64, 328 * 1024}};
    constexpr Point kLast = kPoints[std::size(kPoints) - 1];
    double tokens = kLast.tokens * concurrency / kLast.sessions;
    for (size_t i = 1; i < std::size(kPoints); ++i) {
        const Point low = kPoints[i - 1], high = kPoints[i];
        if (concurrency > high.sessions) continue;
        const double share =
            static_cast<double>(concurrency - low.sessions) / (high.sessions - low.sessions);
        tokens = low.tokens + share * (high.tokens - low.tokens);
        break;
    }
    // What a running session holds on average, against that of the load these sizes are for.
    const auto held = [](const LoadKind& of) {
        return (of.prompt_least + of.prompt_most) / 2 + (kOutputLeast + kOutputMost) / 4;
    };
    tokens *= static_cast<double>(held(kind)) / held(kLoadKinds[0]);
    return static_cast<int32_t>(std::lround(tokens / 1024)) * 1024;
}

Load synthetic_load(const LoadKind& kind, int32_t concurrency, double tokens_per_round,
                    int32_t pool_fills, uint64_t seed) {
    Draws draws(seed);
    Load load = {.name = std::string(kind.name)};
    for (int32_t i = 0; i < kPrefixes; ++i) add_text(load, fmt::format("prefix-{}", i), -1, 0);
    std::vector<bool> continued;
    // A burst is twice what can run, and the next one comes when most of it has been answered.
    const int32_t burst = 2 * concurrency;
    const double period = 3.0 * (kOutputLeast + kOutputMost) / 2 / tokens_per_round;
    const int64_t enough = static_cast<int64_t>(pool_fills) * pool_tokens_for(kind, concurrency);
    for (int64_t fresh_tokens = 0; fresh_tokens < enough;) {
        const auto number = static_cast<int32_t>(load.sessions.size());
        const double choice = draws.share();
        const int32_t earlier =
            choice >= kContinued
                ? -1
                : conversation_to_continue(load, continued, concurrency, kind.prompt_most, draws);
        LoadSession session = {.id = std::to_string(number)};
        int32_t parent = 0, shared = kPrefixTokens;
        if (earlier < 0) {
            parent = draws.between(0, kPrefixes - 1);
            session.prompt = draws.between(kind.prompt_least, kind.prompt_most);
        } else {
            const LoadSession& before = load.sessions[static_cast<size_t>(earlier)];
            continued[static_cast<size_t>(earlier)] = true;
            parent = before.text;
            shared = before.prompt + before.output;
            session.prompt = shared + draws.between(kTurnLeast, kTurnMost);
        }
        session.output = draws.between(kOutputLeast, kOutputMost);
        session.text = add_text(load, session.id, parent, shared);
        fresh_tokens += session.prompt + session.output - shared;
        const int64_t round = kind.bursts ? std::llround(number / burst * period) : 0;
        load.events.push_back({.round = round, .kind = EventKind::start, .session = number});
        load.sessions.push_back(std::move(session));
        continued.push_back(false);
    }
    return load;
}

}  // namespace kd
