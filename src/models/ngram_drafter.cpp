#include "models/ngram_drafter.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace kd {

namespace {

// How often a match of n tokens predicts the next one, before a session has learned anything, and
// the number of observations that this is worth. Round figures in the range that greedy answers of
// a small chat model showed; they only steer the first rounds.
constexpr std::array<double, NgramDrafter::kMaxMatch + 1> kPriorHitRate = {
    0.02, 0.10, 0.25, 0.40, 0.50, 0.60, 0.65, 0.70, 0.75};
constexpr double kPriorTrials = 4;
// One more matching token makes an occurrence this much heavier beside shorter matches.
constexpr double kWeightPerToken = 4;

int32_t bucket(int32_t match) {
    return std::min(match, NgramDrafter::kMaxMatch);
}

}  // namespace

NgramDrafter::NgramDrafter(int32_t sessions, int32_t depths)
    : Drafter(std::clamp(depths, 1, kMaxDraftDepths), kMaxOccurrences),
      sessions_(static_cast<size_t>(sessions)) {
    for (Session& session : sessions_) reset(session);
    for (std::vector<Occurrence>& list : by_match_) list.reserve(kMaxOccurrences);
    occurrences_.reserve(kMaxOccurrences);
}

void NgramDrafter::reset(Session& session) const {
    session.trie.clear();
    session.drafted_tokens = -1;
    for (size_t n = 0; n < kPriorHitRate.size(); ++n) {
        session.trials[n] = kPriorTrials;
        session.hits[n] = kPriorTrials * kPriorHitRate[n];
    }
}

void NgramDrafter::ingest(std::span<const IngestSegment> segments) {
    for (const IngestSegment& segment : segments) {
        if (segment.first_position == 0) reset(sessions_[static_cast<size_t>(segment.session)]);
    }
}

int32_t NgramDrafter::find_child(const Session& session, int32_t parent, int32_t token) {
    const auto depth = static_cast<size_t>(session.trie[static_cast<size_t>(parent)].depth + 1);
    for (int32_t state = 0; state < session.states[depth]; ++state) {
        const int32_t index = session.at_depth[depth][static_cast<size_t>(state)];
        const Node& node = session.trie[static_cast<size_t>(index)];
        if (node.parent == parent && node.token == token) return index;
    }
    return -1;
}

bool NgramDrafter::has_children(const Session& session, int32_t parent) {
    const auto depth = static_cast<size_t>(session.trie[static_cast<size_t>(parent)].depth + 1);
    for (int32_t state = 0; state < session.states[depth]; ++state) {
        const int32_t index = session.at_depth[depth][static_cast<size_t>(state)];
        if (session.trie[static_cast<size_t>(index)].parent == parent) return true;
    }
    return false;
}

void NgramDrafter::learn(Session& session, std::span<const int32_t> tokens) const {
    const auto drafted = static_cast<size_t>(std::max(session.drafted_tokens, 0));
    if (session.trie.size() < 2 || drafted == 0 || tokens.size() <= drafted) return;
    int32_t node = 0;
    for (size_t next = drafted; next < tokens.size(); ++next) {
        if (!has_children(session, node)) return;
        const auto n = static_cast<size_t>(bucket(session.trie[static_cast<size_t>(node)].match));
        const int32_t child = find_child(session, node, tokens[next]);
        session.trials[n] += 1;
        if (child < 0) return;
        session.hits[n] += 1;
        node = child;
    }
}

/// The best occurrences: longest match first, then the most recent.
void NgramDrafter::find_occurrences(std::span<const int32_t> tokens) {
    for (std::vector<Occurrence>& list : by_match_) list.clear();
    const auto last = static_cast<int32_t>(tokens.size()) - 1;
    const int32_t root = tokens[static_cast<size_t>(last)];
    for (int32_t i = last - 1; i >= 0; --i) {
        if (tokens[static_cast<size_t>(i)] != root) continue;
        int32_t match = 1;
        while (match < kMaxMatch && match <= i &&
               tokens[static_cast<size_t>(i - match)] ==
                   tokens[static_cast<size_t>(last - match)]) {
            ++match;
        }
        std::vector<Occurrence>& list = by_match_[static_cast<size_t>(match)];
        if (list.size() < kMaxOccurrences) list.push_back({.next = i + 1, .match = match});
    }
    occurrences_.clear();
    for (int32_t match = kMaxMatch; match >= 1; --match) {
        for (const Occurrence& each : by_match_[static_cast<size_t>(match)]) {
            if (occurrences_.size() == kMaxOccurrences) return;
            occurrences_.push_back(each);
        }
    }
}

void NgramDrafter::build_trie(Session& session, std::span<const int32_t> tokens,
                              int32_t depths) const {
    std::vector<Node>& trie = session.trie;
    trie.clear();
    trie.push_back({.match = occurrences_.empty() ? 0 : occurrences_.front().match});
    session.states.fill(0);
    const auto length = static_cast<int32_t>(tokens.size());
    for (const Occurrence& occurrence : occurrences_) {
        const double weight = std::pow(kWeightPerToken, occurrence.match);
        trie[0].weight += weight;
        const int32_t period = length - occurrence.next;
        int32_t node = 0;
        for (int32_t depth = 1; depth <= depths; ++depth) {
            const int32_t offset = (depth - 1) % period;
            const int32_t token = tokens[static_cast<size_t>(occurrence.next + offset)];
            int32_t child = find_child(session, node, token);
            if (child < 0) {
                int32_t& states = session.states[static_cast<size_t>(depth)];
                if (states == state_capacity) break;
                child = static_cast<int32_t>(trie.size());
                session.at_depth[static_cast<size_t>(depth)][static_cast<size_t>(states)] = child;
                trie.push_back({.token = token,
                                .parent = node,
                                .depth = depth,
                                .state = states++,
                                .match = occurrence.match + depth});
            }
            trie[static_cast<size_t>(child)].weight += weight;
            node = child;
        }
    }
}

void NgramDrafter::write_lattice(const Session& session, LatticeView lattice) {
    constexpr float kNoEdge = -std::numeric_limits<float>::infinity();
    const std::vector<Node>& trie = session.trie;
    *lattice.has_edges = true;
    *lattice.depths = 0;
    for (const Node& node : trie) *lattice.depths = std::max(*lattice.depths, node.depth);
    for (int32_t depth = 0; depth < *lattice.depths; ++depth) {
        lattice.state_count[depth] = 0;
        if (depth > 0) {
            std::fill_n(lattice.edge + lattice.edge_at(depth, 0, 0),
                        int64_t{lattice.state_capacity} * lattice.state_capacity, kNoEdge);
        }
    }
    for (size_t i = 1; i < trie.size(); ++i) {
        const Node& node = trie[i];
        const Node& parent = trie[static_cast<size_t>(node.parent)];
        const auto n = static_cast<size_t>(bucket(parent.match));
        const double rate = session.hits[n] / session.trials[n];
        const auto log_prob = static_cast<float>(std::log(rate * node.weight / parent.weight));
        const int32_t depth = node.depth - 1;
        lattice.state_count[depth] += 1;
        lattice.token[lattice.at(depth, node.state)] = node.token;
        lattice.log_prob[lattice.at(depth, node.state)] = log_prob;
        if (depth > 0) {
            lattice.edge[lattice.edge_at(depth, parent.state, node.state)] = log_prob;
        }
    }
}

void NgramDrafter::draft(std::span<const DraftContext> contexts, std::span<LatticeView> lattices) {
    KD_CHECK(contexts.size() == lattices.size(), "{} contexts, {} lattices", contexts.size(),
             lattices.size());
    for (size_t i = 0; i < contexts.size(); ++i) {
        const DraftContext& context = contexts[i];
        Session& session = sessions_[static_cast<size_t>(context.session)];
        learn(session, context.tokens);
        find_occurrences(context.tokens);
        build_trie(session, context.tokens, std::min(context.max_depth, depth_capacity));
        session.drafted_tokens = static_cast<int32_t>(context.tokens.size());
        write_lattice(session, lattices[i]);
    }
}

}  // namespace kd
