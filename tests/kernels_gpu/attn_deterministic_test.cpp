// Deterministic mode: a node's output is a function of its path alone. One path of tokens is
// attended to as plain decoding, as chains and inside random trees, in batches of any order and
// page layouts of any kind; the bits must be the same.
#include <algorithm>
#include <map>
#include <numeric>

#include "attn_device.h"
#include "kernels/attn_plan/attn_workspace.h"

namespace kd {
namespace {

constexpr uint64_t kOtherIds = uint64_t{1} << 40;  // rows that are not on the path

/// How the positions are attended to.
struct Style {
    const char* name;
    int32_t tail;    // nodes of the path before the position's own, at most; and max_depth at most
    int32_t others;  // other nodes of the tree, at most
    int32_t page_size;
    CasePages pages;
    bool shuffled;  // requests in another order
    int32_t splits;
};

constexpr Style kPlain = {"plain", 0, 0, 1, CasePages::shuffled, false, 0};
constexpr Style kStyles[] = {
    {"plain, other pages", 0, 0, 64, CasePages::contiguous, true, 0},
    {"chain", 64, 0, 16, CasePages::shuffled, true, 0},
    {"tree", 64, 20, 1, CasePages::shuffled, true, 0},
    {"large tree", 64, 100, 32, CasePages::shuffled, false, 0},
    {"tree of siblings", 3, 12, 64, CasePages::shuffled, true, 7},
};

/// A tree in which a path ends at `position`.
struct PathRequest {
    AttnRequestSpec spec;
    int32_t node = 0;  // of the position
};

PathRequest path_request(CaseRandom& random, int32_t position, const Style& style,
                         int32_t max_depth) {
    const int32_t tail = std::min(style.tail, max_depth);
    const int32_t before = std::min(tail == 0 ? 0 : random.below(tail + 1), position);
    const int32_t room = max_depth == 0 ? 0 : 127 - before;
    const int32_t others = std::min(style.others == 0 ? 0 : random.below(style.others + 1), room);
    PathRequest request;
    request.spec.context = position - before;
    request.spec.context_id = 0;
    // Which nodes are the path: the root and a random rising choice.
    std::vector<bool> on_path(static_cast<size_t>(before + 1 + others), false);
    on_path[0] = true;
    for (int32_t left = before; left > 0;) {
        const auto at = static_cast<size_t>(random.below(static_cast<int32_t>(on_path.size())));
        if (!on_path[at]) --left;
        on_path[at] = true;
    }
    std::vector<int32_t> depth;
    int32_t last = -1;
    for (size_t node = 0; node < on_path.size(); ++node) {
        int32_t parent = last;
        if (!on_path[node]) {
            do {
                parent = random.below(static_cast<int32_t>(node));
            } while (depth[static_cast<size_t>(parent)] >= max_depth);
        }
        depth.push_back(parent < 0 ? 0 : depth[static_cast<size_t>(parent)] + 1);
        request.spec.parents.push_back(parent);
        if (on_path[node]) {
            last = static_cast<int32_t>(node);
            request.spec.node_ids.push_back(
                static_cast<uint64_t>(request.spec.context + depth.back()));
        } else {
            request.spec.node_ids.push_back(kOtherIds + random.bits());
        }
    }
    request.node = last;
    return request;
}

struct Row {
    std::vector<uint16_t> out;
    std::vector<float> lse;
    bool operator==(const Row&) const = default;
};

/// Output and log-sum-exp of all heads at each position; empty if no kernel serves the shape.
/// Values must also agree with the reference.
template <class MakeCase>
std::map<int32_t, Row> attend(MakeCase&& make_case, std::vector<int32_t> positions,
                              const Style& style, int32_t max_depth, uint32_t seed,
                              kdt_attn_path path) {
    CaseRandom random(seed);
    if (style.shuffled) {
        for (size_t i = positions.size(); i > 1; --i) {
            std::swap(positions[i - 1],
                      positions[static_cast<size_t>(random.below(static_cast<int32_t>(i)))]);
        }
    }
    std::vector<AttnRequestSpec> requests;
    std::vector<int32_t> nodes;
    int32_t first = 0;
    for (const int32_t position : positions) {
        PathRequest request = path_request(random, position, style, max_depth);
        nodes.push_back(first + request.node);
        first += static_cast<int32_t>(request.spec.parents.size());
        requests.push_back(std::move(request.spec));
    }
    AttnDeviceCase on_device(make_case(
        make_attn_step(requests, style.page_size, style.pages, style.shuffled, 576, seed + 1)));
    kdt_attn_shape shape = on_device.shape();
    shape.path = path;
    shape.mode = KDT_ATTN_DETERMINISTIC;
    shape.max_depth = max_depth;
    shape.splits = style.splits;
    const AttnRun run = run_attn(on_device, shape);
    if (run.status == KDT_UNSUPPORTED) {
        std::printf("skipped: %s: %s\n", name_of(path), run.message.c_str());
        return {};
    }
    EXPECT_EQ(run.status, KDT_OK) << run.message;
    if (run.status != KDT_OK) return {};
    EXPECT_TRUE(on_device.agrees(run.out, run.lse));
    std::map<int32_t, Row> rows;
    const int64_t heads = shape.heads;
    const int64_t values = heads * on_device.value_dim();
    for (size_t i = 0; i < positions.size(); ++i) {
        Row& row = rows[positions[i]];
        row.out.assign(run.out.begin() + nodes[i] * values,
                       run.out.begin() + (nodes[i] + 1) * values);
        row.lse.assign(run.lse.begin() + nodes[i] * heads,
                       run.lse.begin() + (nodes[i] + 1) * heads);
    }
    return rows;
}

std::vector<int32_t> range(int32_t begin, int32_t end) {
    std::vector<int32_t> positions(static_cast<size_t>(end - begin));
    std::iota(positions.begin(), positions.end(), begin);
    return positions;
}

/// Every position modulo 64; the first positions, and those around the first boundaries; where
/// segments change their length, for either tile of the main loops.
std::vector<std::vector<int32_t>> position_sets(const kdt_attn_shape& shape, int32_t max_depth) {
    if (reduced_cases()) return {{0, 15, 16, 79, 80, 81, 300}};
    std::vector<int32_t> segments;
    for (const AttnEngine engine : {AttnEngine::wgmma_sm90, AttnEngine::mma_sync_sm90}) {
        const PlanShape plan = plan_shape(shape, {}, 0, 132, engine);
        int32_t left = 2;  // changes; and one more, from few segments to many
        for (int32_t boundary = 0; boundary < 40000 && left >= 0; boundary += kBoundaryKeys) {
            const int32_t keys = segment_of(plan, boundary);
            const int32_t then = segment_of(plan, boundary + kBoundaryKeys);
            if (then == keys || (left == 0 && then > keys)) continue;
            --left;
            const int32_t first = boundary + kBoundaryKeys + max_depth;  // of the new length
            for (const int32_t p : range(first - 2, first + 3)) segments.push_back(p);
        }
    }
    std::vector<int32_t> edges = range(0, 20);
    for (const int32_t position : range(12, 36)) edges.push_back(position + max_depth);
    for (const int32_t position : range(92, 102)) edges.push_back(position + max_depth);
    for (std::vector<int32_t>* positions : {&edges, &segments}) {
        std::ranges::sort(*positions);
        positions->erase(std::ranges::unique(*positions).begin(), positions->end());
    }
    return {range(300, 364), edges, segments};
}

template <class MakeCase>
void expect_a_function_of_the_path(MakeCase&& make_case, int32_t max_depth) {
    CaseRandom random(1);
    const std::vector<AttnRequestSpec> any = {path_request(random, 0, kPlain, max_depth).spec};
    const kdt_attn_shape shape =
        AttnDeviceCase(make_case(make_attn_step(any, 1, kPlain.pages, false, 576, 1))).shape();

    for (const kdt_attn_path path : {KDT_PATH_WGMMA, KDT_PATH_MMA_SYNC}) {
        SCOPED_TRACE(name_of(path));
        uint32_t seed = 70;
        for (const std::vector<int32_t>& positions : position_sets(shape, max_depth)) {
            const std::map<int32_t, Row> plain =
                attend(make_case, positions, kPlain, max_depth, seed, path);
            if (plain.empty()) break;
            for (const Style& style : kStyles) {
                SCOPED_TRACE(style.name);
                for (const auto& [position, row] :
                     attend(make_case, positions, style, max_depth, ++seed, path)) {
                    EXPECT_TRUE(row == plain.at(position))
                        << "position " << position << " (modulo 64: " << position % 64
                        << ") depends on more than its path, seed " << seed;
                }
            }
            // Alone in its batch.
            for (const size_t i : {size_t{0}, positions.size() / 2, positions.size() - 1}) {
                const std::map<int32_t, Row> alone =
                    attend(make_case, {positions[i]}, kStyles[2], max_depth, ++seed, path);
                ASSERT_EQ(alone.size(), 1u);
                EXPECT_TRUE(alone.begin()->second == plain.at(positions[i]))
                    << "position " << positions[i] << " alone, seed " << seed;
            }
        }
    }
}

class AttnDeterministic : public AttnGpuTest {};

TEST_F(AttnDeterministic, MlaIsAFunctionOfThePath) {
    struct {
        int32_t heads;
        kdt_kv_format format;
    } const tests[] = {{8, KDT_KV_BF16},
                       {8, KDT_KV_FP8},
                       {8, KDT_KV_FP8_MLA656},
                       {16, KDT_KV_FP8_MLA656},
                       {12, KDT_KV_BF16}};
    for (const auto& of : tests) {
        SCOPED_TRACE(testing::Message() << of.heads << " heads, format " << of.format);
        expect_a_function_of_the_path(
            [&](AttnStep step) {
                AttnVerifyMlaCase test;
                test.heads = of.heads;
                test.format = of.format;
                test.step.seed = 7;  // of the rows: the same in all runs
                return make_attn_verify_mla_inputs(test, std::move(step));
            },
            kBoundaryKeys);
    }
}

TEST_F(AttnDeterministic, GqaIsAFunctionOfThePath) {
    // With the depth the keys of a path unit that a node has: 16, 32, 64, and 128, two tiles.
    struct {
        int32_t heads, kv_heads, dim, window;
        kdt_kv_format format;
        int32_t max_depth;
    } const tests[] = {
        {8, 2, 128, 0, KDT_KV_BF16, 16},   {8, 2, 128, 0, KDT_KV_FP8, 16},
        {4, 4, 96, 0, KDT_KV_BF16, 16},    {4, 4, 96, 9, KDT_KV_FP8, 16},
        {8, 2, 128, 100, KDT_KV_BF16, 16}, {7, 1, 64, 0, KDT_KV_FP8, 16},
        {6, 2, 256, 0, KDT_KV_BF16, 16},   {8, 2, 128, 0, KDT_KV_BF16, 0},
        {8, 2, 128, 0, KDT_KV_BF16, 40},   {8, 2, 128, 0, KDT_KV_BF16, 64},
    };
    for (const auto& of : tests) {
        SCOPED_TRACE(testing::Message() << "dim " << of.dim << ", format " << of.format
                                        << ", window " << of.window << ", depth " << of.max_depth);
        expect_a_function_of_the_path(
            [&](AttnStep step) {
                AttnVerifyGqaCudaCase test;
                test.heads = of.heads;
                test.kv_heads = of.kv_heads;
                test.head_dim = of.dim;
                test.format = of.format;
                test.sliding_window = of.window;
                test.step.seed = 7;
                return make_attn_verify_gqa_cuda_inputs(test, std::move(step));
            },
            of.max_depth);
    }
}

}  // namespace
}  // namespace kd
