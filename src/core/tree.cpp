#include "core/tree.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "base/check.h"

namespace kd {

namespace {

using Candidate = TreeScratch::Candidate;

constexpr float kNoEdge = -std::numeric_limits<float>::infinity();

// The children of one parent state, or of a whole depth when the states are marginals.
struct ChildList {
    int64_t index;         // in the scratch
    int32_t states;        // filled states of the depth
    const int32_t* token;  // [states]
    const float* edge;     // [states] as the lattice has them
};

ChildList child_list(const LatticeView& lattice, int32_t depth, int32_t parent_state) {
    const bool joint = depth == 0 || !*lattice.has_edges;
    return {.index = lattice.at(depth, joint ? 0 : parent_state),
            .states = lattice.state_count[depth],
            .token = lattice.token + lattice.at(depth, 0),
            .edge = joint ? lattice.log_prob + lattice.at(depth, 0)
                          : lattice.edge + lattice.edge_at(depth, parent_state, 0)};
}

// A probability above 1 is a rounding of 1. NaN stays NaN: it compares as no edge.
float capped(float edge) {
    return edge > 0.0f ? 0.0f : edge;
}

// The heaviest of the states in `left` (ties: the lowest), or -1 when none has an edge.
int32_t heaviest(const ChildList& list, uint64_t left) {
    int32_t best = -1;
    float best_edge = kNoEdge;
    for (; left != 0; left &= left - 1) {
        const int32_t state = std::countr_zero(left);
        const float edge = capped(list.edge[state]);
        if (edge > best_edge) {
            best = state;
            best_edge = edge;
        }
    }
    return best;
}

uint64_t all_states(const ChildList& list) {
    return list.states == 0 ? 0 : ~uint64_t{0} >> (64 - list.states);
}

// The state of the child with this rank, or -1. A list is ranked only as far as it was asked for:
// most parents of a tree use a few of their children. Ranks are asked for in ascending order.
int32_t child_of_rank(const ChildList& list, int32_t state_capacity, int32_t rank,
                      TreeScratch& scratch) {
    int32_t& ordered = scratch.ordered[static_cast<size_t>(list.index)];
    uint64_t& left = scratch.left[static_cast<size_t>(list.index)];
    int32_t* order = scratch.order.data() + list.index * state_capacity;
    if (ordered < 0) {
        ordered = 0;
        left = all_states(list);
    }
    if (rank < ordered) return order[rank];

    const int32_t state = heaviest(list, left);
    if (state < 0) {
        left = 0;
        return -1;
    }
    // The state itself and every lighter one with its token: siblings are distinct tokens.
    for (uint64_t rest = left; rest != 0; rest &= rest - 1) {
        const int32_t other = std::countr_zero(rest);
        if (list.token[other] == list.token[state]) left &= ~(uint64_t{1} << other);
    }
    order[ordered++] = state;
    return state;
}

// Whether `a` is taken after `b`: the order of the heap, and total.
bool taken_after(const Candidate& a, const Candidate& b) {
    if (a.log_score != b.log_score) return a.log_score < b.log_score;
    if (a.depth != b.depth) return a.depth > b.depth;
    if (a.parent != b.parent) return a.parent > b.parent;
    return a.rank > b.rank;
}

void check_lattice(const LatticeView& lattice) {
    KD_CHECK(*lattice.depths >= 0 && *lattice.depths <= lattice.depth_capacity,
             "{} depths in a lattice for {}", *lattice.depths, lattice.depth_capacity);
    for (int32_t d = 0; d < *lattice.depths; ++d) {
        const int32_t states = lattice.state_count[d];
        KD_CHECK(states >= 0 && states <= std::min(lattice.state_capacity, kMaxDraftStates),
                 "{} states at depth {} of a lattice for {}", states, d, lattice.state_capacity);
    }
}

template <class T>
void grow(std::vector<T>& values, size_t count) {
    if (values.size() < count) values.resize(count);
}

// Sized by the capacities, not by what this lattice fills, so that later rounds do not allocate.
void prepare(const LatticeView& lattice, TreeScratch& scratch) {
    const size_t states = static_cast<size_t>(lattice.state_capacity);
    const size_t lists = static_cast<size_t>(lattice.depth_capacity) * states;
    grow(scratch.order, lists * states);
    grow(scratch.ordered, lists);
    grow(scratch.left, lists);
    grow(scratch.state_of_node, kMaxTreeNodes);
    // Every step takes one candidate and adds at most two.
    scratch.heap.reserve(kMaxTreeNodes + 1);
    scratch.heap.clear();
    std::fill_n(scratch.ordered.begin(), lattice.at(*lattice.depths, 0), -1);
}

// Adds the child of `parent` with this rank to the heap, if there is one.
void push_child(const LatticeView& lattice, const TreeView& tree, int32_t parent, int32_t rank,
                TreeScratch& scratch) {
    const int32_t depth = tree.depth[parent];  // the lattice's index of the child's depth
    if (depth == *lattice.depths) return;
    const ChildList list =
        child_list(lattice, depth, scratch.state_of_node[static_cast<size_t>(parent)]);
    const int32_t state = child_of_rank(list, lattice.state_capacity, rank, scratch);
    if (state < 0) return;
    scratch.heap.push_back({.log_score = tree.log_score[parent] + capped(list.edge[state]),
                            .depth = depth + 1,
                            .parent = parent,
                            .rank = rank,
                            .state = state});
    std::push_heap(scratch.heap.begin(), scratch.heap.end(), taken_after);
}

}  // namespace

void build_tree(const LatticeView& lattice, int32_t root_token, int32_t max_nodes, TreeView out,
                TreeScratch& scratch) {
    const int32_t limit = std::min(max_nodes, out.capacity);
    KD_CHECK(limit >= 1 && limit <= kMaxTreeNodes, "a tree of at most {} nodes (capacity {})",
             max_nodes, out.capacity);
    check_lattice(lattice);
    prepare(lattice, scratch);

    out.token[0] = root_token;
    out.parent[0] = -1;
    out.depth[0] = 0;
    out.log_score[0] = 0.0f;
    scratch.state_of_node[0] = 0;  // never read as a state: the children of the root are one list
    int32_t count = 1;
    push_child(lattice, out, 0, 0, scratch);
    while (count < limit && !scratch.heap.empty()) {
        std::pop_heap(scratch.heap.begin(), scratch.heap.end(), taken_after);
        const Candidate taken = scratch.heap.back();
        scratch.heap.pop_back();
        out.token[count] = lattice.token[lattice.at(taken.depth - 1, taken.state)];
        out.parent[count] = taken.parent;
        out.depth[count] = taken.depth;
        out.log_score[count] = taken.log_score;
        scratch.state_of_node[static_cast<size_t>(count)] = taken.state;
        // Neither successor can come before the node just taken: same or smaller score, and the
        // sibling has a higher rank, the child a greater depth.
        push_child(lattice, out, taken.parent, taken.rank + 1, scratch);
        push_child(lattice, out, count, 0, scratch);
        ++count;
    }
    *out.count = count;
    fill_ancestors(out);
}

void keep_best_chain(LatticeView lattice) {
    check_lattice(lattice);
    int32_t parent = 0;
    int32_t depth = 0;
    for (; depth < *lattice.depths; ++depth) {
        const ChildList list = child_list(lattice, depth, parent);
        const int32_t state = heaviest(list, all_states(list));
        if (state < 0) break;
        // Only this depth's cells are written, and its edges were read: the next depth still sees
        // its own edges, indexed by the state that the parent had.
        const int64_t cell = lattice.at(depth, 0);
        const float edge = capped(list.edge[state]);
        lattice.token[cell] = list.token[state];
        lattice.log_prob[cell] = edge;
        lattice.state_count[depth] = 1;
        parent = state;
    }
    *lattice.depths = depth;
    *lattice.has_edges = false;
}

void truncate_tree(TreeView tree, int32_t nodes) {
    KD_CHECK(nodes >= 1, "a tree cut to {} nodes", nodes);
    *tree.count = std::min(*tree.count, nodes);
}

void fill_ancestors(TreeView tree) {
    KD_CHECK(*tree.count <= kMaxTreeNodes, "{} nodes in a tree", *tree.count);
    for (int32_t node = 0; node < *tree.count; ++node) {
        const auto words = tree.ancestor_words(node);
        if (node == 0) {
            std::ranges::fill(words, uint64_t{0});
        } else {
            std::ranges::copy(tree.ancestor_words(tree.parent[node]), words.begin());
        }
        words[static_cast<size_t>(node) / 64] |= uint64_t{1} << (node % 64);
    }
}

}  // namespace kd
