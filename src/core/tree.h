// The draft tree: the best n prefixes of a lattice.
//
// A node's weight is the product of the (conditional) probabilities on its path; the expected
// number of accepted tokens of a tree is the sum of its nodes' weights. A child never weighs more
// than its parent, so the n heaviest prefixes form a tree, and best-first enumeration with two
// successors (next sibling, first child) yields them in order. Source of the objective and of this
// argument: OPT-Tree (Wang et al. 2024) and DDTree (arXiv 2604.12989); edges between states are our
// addition.
#pragma once

#include <cstdint>
#include <vector>

#include "base/views.h"

namespace kd {

/// Scratch of build_tree, reusable; sized on first use, never shrinks.
struct TreeScratch {
    struct Candidate {
        float log_score;
        int32_t depth;
        int32_t parent;  // node
        int32_t rank;    // among the parent's children, heaviest first
        int32_t state;
    };
    std::vector<Candidate> heap;
    std::vector<int32_t> order;    // [depth, parent state, rank] the child's state
    std::vector<int32_t> ordered;  // [depth, parent state] ranks known so far; -1: untouched
    std::vector<uint64_t> left;    // [depth, parent state] bit s set: state s has no rank yet
    std::vector<int32_t> state_of_node;
};

/// The heaviest prefixes of the lattice as a tree of at most min(max_nodes, out.capacity) nodes,
/// the root (`root_token`) included; ancestors filled. log_score = float32(parent + edge),
/// additions only. Ties go to the smaller depth, then parent index, then rank; equal siblings rank
/// by state index. Never two siblings with one token: the lighter one is dropped. NaN and -inf
/// edges are no edges; an edge above 0 counts as 0. max_nodes >= 1.
void build_tree(const LatticeView& lattice, int32_t root_token, int32_t max_nodes, TreeView out,
                TreeScratch& scratch);

/// Reduces the lattice to its best chain: one state a depth, each the heaviest child of the one
/// before (marginals: the heaviest state of each depth).
void keep_best_chain(LatticeView lattice);

/// Drops the tree's nodes from `nodes` on. What remains is the best tree of that size. nodes >= 1.
void truncate_tree(TreeView tree, int32_t nodes);

/// Sets the ancestor words of every node from the parents.
void fill_ancestors(TreeView tree);

}  // namespace kd
