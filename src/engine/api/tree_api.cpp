// Tree building and acceptance over a caller's arrays: every shape, count and index is checked
// before anything is read through it.
#include <algorithm>
#include <limits>
#include <span>

#include "core/accept.h"
#include "core/tree.h"
#include "engine/api/api_error.h"
#include "engine/api/api_request.h"
#include "kdtree/kdtree.h"

namespace {

using kd::api::expect_array;
using kd::api::expect_pointer;
using kd::api::expect_range;

void check_lattice(const kdtree_lattice& lattice) {
    expect_range("lattice.depths", lattice.depths, 0, kd::kMaxDraftDepths);
    expect_range("lattice.states", lattice.states, 1, kd::kMaxDraftStates);
    if (lattice.depths == 0) return;
    expect_pointer("lattice.state_count", lattice.state_count);
    expect_pointer("lattice.token", lattice.token);
    expect_pointer("lattice.log_prob", lattice.log_prob);
    for (int32_t depth = 0; depth < lattice.depths; ++depth) {
        expect_range("lattice.state_count", lattice.state_count[depth], 0, lattice.states);
    }
}

/// The arrays of a tree that no caller asked for.
class TreeOutput {
  public:
    explicit TreeOutput(kdtree_tree& tree, int32_t nodes)
        : tree_(tree), nodes_(nodes), kept_(nodes) {}

    kd::TreeView view() {
        kd::TreeView view = kept_.view();
        view.capacity = nodes_;
        view.count = &tree_.count;
        view.token = tree_.token;
        view.parent = tree_.parent;
        if (tree_.depth != nullptr) view.depth = tree_.depth;
        if (tree_.log_score != nullptr) view.log_score = tree_.log_score;
        if (tree_.ancestors != nullptr) view.ancestors = tree_.ancestors;
        return view;
    }

  private:
    kdtree_tree& tree_;
    int32_t nodes_;
    kd::TreeStorage kept_;
};

/// Throws unless parents stand before children; returns the deepest node's depth.
int32_t check_tree(const kdtree_tree& tree) {
    expect_range("tree.capacity", tree.capacity, 1, std::numeric_limits<int32_t>::max());
    expect_range("tree.count", tree.count, 1, std::min(tree.capacity, kd::kMaxTreeNodes));
    expect_pointer("tree.token", tree.token);
    expect_pointer("tree.parent", tree.parent);
    if (tree.parent[0] != -1) {
        KD_THROW(invalid_argument, "tree.parent[0] is {}, must be -1: node 0 is the root",
                 tree.parent[0]);
    }
    int32_t depth[kd::kMaxTreeNodes] = {};
    for (int32_t node = 1; node < tree.count; ++node) {
        const int32_t parent = tree.parent[node];
        if (parent < 0 || parent >= node) {
            KD_THROW(invalid_argument, "tree.parent[{}] is {}, must be 0..{}", node, parent,
                     node - 1);
        }
        depth[node] = depth[parent] + 1;
    }
    return *std::max_element(depth, depth + tree.count);
}

kd::SamplingParams check_sampling(const kdtree_sampling& sampling) {
    const kd::SamplingParams params = kd::api::sampling_of(sampling);
    kd::validate(params);
    if (params.repetition_penalty != 1.0f || params.presence_penalty != 0.0f ||
        params.frequency_penalty != 0.0f) {
        KD_THROW(invalid_argument,
                 "penalties (repetition {}, presence {}, frequency {}) need the history: apply "
                 "them to the logits",
                 params.repetition_penalty, params.presence_penalty, params.frequency_penalty);
    }
    return params;
}

void check_draws(const double* draws, int32_t count, int32_t needed) {
    expect_range("draw_count", count, needed, std::numeric_limits<int32_t>::max());
    expect_pointer("draws", draws);
    for (int32_t i = 0; i < needed; ++i) {
        if (!(draws[i] >= 0.0 && draws[i] < 1.0)) {
            KD_THROW(invalid_argument, "draws[{}] is {}, must be in [0, 1)", i, draws[i]);
        }
    }
}

}  // namespace

kdtree_status kdtree_build_tree(const kdtree_lattice* lattice, int32_t root_token,
                                int32_t max_nodes, kdtree_tree* tree) {
    return kd::api::guarded([&] {
        const kdtree_lattice& given = kd::api::expect_struct("lattice", lattice);
        check_lattice(given);
        kd::api::expect_struct("tree", tree);
        expect_range("max_nodes", max_nodes, 1, kd::kMaxTreeNodes);
        expect_range("tree.capacity", tree->capacity, 1, std::numeric_limits<int32_t>::max());
        expect_pointer("tree.token", tree->token);
        expect_pointer("tree.parent", tree->parent);

        int32_t depths = given.depths;
        bool has_edges = given.edge != nullptr;
        // build_tree reads its lattice; the view has no const form.
        const kd::LatticeView view = {.depth_capacity = depths,
                                      .state_capacity = given.states,
                                      .depths = &depths,
                                      .has_edges = &has_edges,
                                      .state_count = const_cast<int32_t*>(given.state_count),
                                      .token = const_cast<int32_t*>(given.token),
                                      .log_prob = const_cast<float*>(given.log_prob),
                                      .edge = const_cast<float*>(given.edge)};
        TreeOutput out(*tree, std::min(max_nodes, tree->capacity));
        kd::TreeScratch scratch;
        kd::build_tree(view, root_token, max_nodes, out.view(), scratch);
        return KDTREE_OK;
    });
}

kdtree_status kdtree_accept_tree(const kdtree_tree* tree, const float* logits, int32_t vocabulary,
                                 int64_t row_stride, const kdtree_sampling* sampling,
                                 const double* draws, int32_t draw_count,
                                 kdtree_accepted* accepted) {
    return kd::api::guarded([&] {
        const kdtree_tree& given = kd::api::expect_struct("tree", tree);
        const int32_t deepest = check_tree(given);
        expect_pointer("logits", logits);
        expect_range("vocabulary", vocabulary, 1, kd::kMaxVocabulary);
        expect_range("row_stride", row_stride, vocabulary, int64_t{1} << 40);
        const kd::SamplingParams params =
            check_sampling(kd::api::expect_struct("sampling", sampling));
        if (params.temperature > 0) check_draws(draws, draw_count, deepest + 1);
        kd::api::expect_struct("accepted", accepted);
        expect_range("accepted.capacity", accepted->capacity, deepest + 1,
                     std::numeric_limits<int32_t>::max());
        expect_pointer("accepted.path", accepted->path);
        expect_pointer("accepted.emitted", accepted->emitted);

        int32_t count = given.count;
        const kd::TreeView view = {.capacity = given.capacity,
                                   .count = &count,
                                   .token = given.token,
                                   .parent = given.parent};
        // The caller's arrays keep what they held if a row has no finite logit.
        kd::AcceptedStorage result(deepest + 1);
        kd::SamplerScratch scratch;
        const kd::MatrixView<const float> rows = {
            .data = logits, .rows = count, .columns = vocabulary, .stride = row_stride};
        const auto draw_values = params.temperature > 0
                                     ? std::span(draws, static_cast<size_t>(deepest) + 1)
                                     : std::span<const double>();
        kd::accept_tree(view, rows, params, draw_values, scratch, result.view());
        const kd::AcceptedView path = result.view();
        accepted->count = *path.count;
        std::copy_n(path.path, *path.count, accepted->path);
        std::copy_n(path.emitted, *path.count, accepted->emitted);
        return KDTREE_OK;
    });
}
