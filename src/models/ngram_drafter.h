// Prompt lookup: what followed the present suffix earlier in the same text, several continuations
// merged into one lattice.
//
// Every earlier place whose preceding tokens match the suffix is an occurrence; its weight grows
// with the match length. Occurrences are merged into a trie, one lattice state a trie node, one
// edge a parent. An edge's probability is its share of the parent's weight times the chance that a
// match of this length predicts the next token at all, which each session learns from its own
// rounds. Loops are unrolled: a continuation that reaches the end of the text goes on with itself.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "models/drafter.h"

namespace kd {

class NgramDrafter final : public Drafter {
  public:
    static constexpr int32_t kMaxMatch = 8;
    static constexpr int32_t kMaxOccurrences = 16;

    /// sessions: how many session numbers there are; depths: deepest draft.
    NgramDrafter(int32_t sessions, int32_t depths);

    void ingest(std::span<const IngestSegment> segments) override;
    void draft(std::span<const DraftContext> contexts, std::span<LatticeView> lattices) override;

  private:
    struct Occurrence {
        int32_t next = 0;   // index of the token that followed
        int32_t match = 0;  // matching tokens before it, at most kMaxMatch
    };
    struct Node {
        int32_t token = -1;
        int32_t parent = -1;
        int32_t depth = 0;  // the root has depth 0
        int32_t state = 0;  // index within its depth
        int32_t match = 0;  // longest match among its occurrences, plus depth
        double weight = 0;  // of the occurrences that pass through
    };
    struct Session {
        std::vector<Node> trie;                             // of the last draft; node 0 is the root
        std::array<int32_t, kMaxDraftDepths + 2> states{};  // trie nodes at each depth
        std::array<std::array<int32_t, kMaxOccurrences>, kMaxDraftDepths + 2> at_depth{};
        int32_t drafted_tokens = -1;             // length of the text when it was made
        std::array<double, kMaxMatch + 1> hits;  // by match length
        std::array<double, kMaxMatch + 1> trials;
    };

    void reset(Session& session) const;
    /// Compares the last trie with what the target wrote since.
    void learn(Session& session, std::span<const int32_t> tokens) const;
    void find_occurrences(std::span<const int32_t> tokens);
    void build_trie(Session& session, std::span<const int32_t> tokens, int32_t depths) const;
    static void write_lattice(const Session& session, LatticeView lattice);
    static int32_t find_child(const Session& session, int32_t parent, int32_t token);
    static bool has_children(const Session& session, int32_t parent);

    std::vector<Session> sessions_;
    std::vector<Occurrence> occurrences_;
    std::array<std::vector<Occurrence>, kMaxMatch + 1> by_match_;
};

}  // namespace kd
