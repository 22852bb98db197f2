// A load: which sessions come and go, with which texts. Built once and replayed for every setting,
// so all are compared on identical work.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kd {

/// A text without end. Its first tokens are given or are those of an earlier text, the others are
/// its own: no two texts agree in them.
struct Text {
    int32_t parent = -1;       // an earlier text; -1: none
    int32_t shared = 0;        // leading tokens that are the parent's
    std::vector<int32_t> ids;  // leading tokens that are given; not with a parent
};

struct LoadSession {
    std::string id;
    int32_t text = 0;    // the prompt and, behind it, the output
    int32_t prompt = 0;  // tokens, at least 1
    int32_t output = 0;  // tokens; 0: until an event ends it or the pool is full
    int32_t line = 0;    // of the trace; 0: synthetic
};

enum class EventKind : uint8_t { start, finish, cancel };

struct LoadEvent {
    int64_t round = 0;  // takes effect before this round
    EventKind kind = EventKind::start;
    int32_t session = 0;
};

struct Load {
    std::string name;
    std::vector<Text> texts;
    std::vector<std::string> text_names;  // [texts], as a trace calls them
    std::vector<LoadSession> sessions;
    std::vector<LoadEvent> events;  // rounds never decrease; a session's start comes first
};

/// The first tokens of a text.
std::vector<int32_t> tokens_of(const Load& load, int32_t text, int32_t tokens);

/// Adds a text that begins with `shared` tokens of `parent`. Returns its number.
int32_t add_text(Load& load, std::string name, int32_t parent, int32_t shared);

/// Throws kd::Error naming the first session that a pool of that many tokens cannot hold.
void check_fits(const Load& load, int32_t pool_tokens);

// The synthetic loads. Fresh conversations begin with one of 8 prefixes of 512 tokens; 40 % of the
// sessions continue an earlier conversation; outputs have 100 to 1500 tokens.
struct LoadKind {
    std::string_view name;
    int32_t prompt_least;  // tokens
    int32_t prompt_most;
    bool bursts;  // else there is always a session that waits
};

inline constexpr LoadKind kLoadKinds[] = {
    {"0.8-3k", 800, 3000, false},
    {"2-8k", 2000, 8000, false},
    {"0.8-3k-bursts", 800, 3000, true},
};

/// Of the pool for so many sessions: between a third and a half of it is read by running sessions
/// from 4 on.
int32_t pool_tokens_for(const LoadKind& kind, int32_t concurrency);

/// tokens_per_round: of a session that decodes, on average; it sets the pace of bursts.
/// pool_fills: new tokens of the whole load by those of pool_tokens_for.
Load synthetic_load(const LoadKind& kind, int32_t concurrency, double tokens_per_round,
                    int32_t pool_fills, uint64_t seed);

}  // namespace kd
