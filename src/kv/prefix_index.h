// The prefix index: which prefixes have their rows in the cache, and where.
//
// A radix tree over token ids at page granularity (as in SGLang's RadixAttention, Zheng et al.
// 2023, arXiv 2312.07104). A node holds a stretch of whole pages; siblings differ within their
// first page. Locks count the tables that read through a node; whoever locks a node locks its
// ancestors. What no one locks may be evicted, leaves first, the longest unused first. Book-keeping
// only: it owns page numbers, not bytes; drafter rows lie in the same slots as the target's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <utility>
#include <vector>

namespace kd {

class PrefixIndex {
  public:
    using NodeId = int32_t;
    static constexpr NodeId kRoot = 0;

    struct Node {
        std::vector<int32_t> tokens;  // [pages, page size]
        std::vector<int32_t> pages;
        NodeId parent = -1;            // -1: the root, or an unused node
        std::vector<NodeId> children;  // by their first page's tokens
        int32_t locks = 0;
        uint64_t used = 0;  // when it was last matched, inserted or let go of
    };

    struct Match {
        NodeId node = kRoot;  // the last node that matches
        int32_t pages = 0;    // from the root
        int32_t in_node = 0;  // of them in `node`, whose stretch may go on
        // The page behind them whose first tokens match best.
        int32_t next_page = -1;
        int32_t next_tokens = 0;  // 0: none
        NodeId next_node = kRoot;
    };

    explicit PrefixIndex(int32_t page_size);

    int32_t page_size() const { return page_size_; }
    /// Pages it owns.
    int32_t pages() const { return pages_; }
    /// Of them in nodes that nobody locks.
    int32_t evictable() const { return evictable_; }

    /// The longest prefix of `tokens` that is here. Changes nothing.
    Match find(std::span<const int32_t> tokens) const;
    /// The pages from the root to the end of a node, in order, appended to `out`.
    void append_pages(NodeId id, std::vector<int32_t>& out) const;
    /// Makes the match end at the end of a node (splitting one if need be), marks its path as used
    /// now, locks it and returns its last node.
    NodeId lock(const Match& match);
    /// One more lock of a node and its ancestors.
    void lock(NodeId node);
    /// Takes one back, and marks the path as used now.
    void unlock(NodeId node);

    /// Takes over `pages` (page i holds the rows of tokens [i, i + 1) x page size) where it has
    /// none for these tokens, locks the whole path and returns its last node and how many leading
    /// pages were here before: of those the caller keeps what it owns.
    struct Inserted {
        NodeId node = kRoot;
        int32_t known_pages = 0;
    };
    Inserted insert(std::span<const int32_t> tokens, std::span<const int32_t> pages);

    /// Evicts whole leaves, the longest unused first, until at least `pages` are gone or nothing
    /// may go; appends their pages to `out`.
    void evict(int32_t pages, std::vector<int32_t>& out);
    /// Takes the longest prefix of `tokens` that is here out again, from its end on, as far as
    /// nobody reads it and nothing else goes on from it; appends its pages to `out`. A stretch goes
    /// whole, with what it holds behind the prefix.
    void forget(std::span<const int32_t> tokens, std::vector<int32_t>& out);

    // For relocation, statistics and checks. Ids run from 0 to node_count(); unused ones have no
    // parent.
    int32_t node_count() const { return static_cast<int32_t>(nodes_.size()); }
    const Node& node(NodeId id) const { return nodes_[static_cast<size_t>(id)]; }
    void set_page(NodeId id, size_t index, int32_t page);
    /// Aborts unless every invariant holds.
    void check() const;

  private:
    Node& at(NodeId id) { return nodes_[static_cast<size_t>(id)]; }
    NodeId add_node(NodeId parent);
    void evict_leaf(NodeId id, std::vector<int32_t>& out);
    NodeId split(NodeId id, int32_t pages);
    std::vector<NodeId>::const_iterator child_at(const Node& node,
                                                 std::span<const int32_t> page) const;
    bool is_leaf(NodeId id) const { return id != kRoot && node(id).children.empty(); }
    void list(NodeId id);
    void unlist(NodeId id);

    int32_t page_size_;
    std::vector<Node> nodes_;
    std::vector<NodeId> unused_;                        // node ids to be used again
    std::set<std::pair<uint64_t, NodeId>> evictables_;  // unlocked leaves by last use
    uint64_t clock_ = 0;
    int32_t pages_ = 0;
    int32_t evictable_ = 0;
};

}  // namespace kd
