// The dflash drafter against drafts of a transcription in PyTorch (tools/make_dflash_fixtures.py),
// and what must not change a draft.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "kernels/kv_move/kv_move.h"
#include "models/dflash_lattice.h"
#include "models/dflash_subject.h"

namespace kd {
namespace {

using nlohmann::json;

class DflashFixture : public testing::TestWithParam<std::string> {};

/// `tolerance` holds for logits of up to 8; roundings grow with them.
void expect_close(float actual, double expected, double tolerance, const std::string& what) {
    EXPECT_NEAR(actual, expected, tolerance * std::max(1.0, std::abs(expected) / 8)) << what;
}

void expect_depth(LatticeView lattice, int32_t depth, const json& expected, const json& before,
                  double tolerance) {
    ASSERT_EQ(lattice.state_count[depth], 32);
    for (size_t i = 0; i < expected["ids"].size(); ++i) {
        const int32_t state = state_of(lattice, depth, expected["ids"][i].get<int32_t>());
        ASSERT_GE(state, 0) << "candidate " << i;
        const std::string what = "candidate " + std::to_string(i);
        expect_close(lattice.log_prob[lattice.at(depth, state)],
                     expected["log_probs"][i].get<double>(), tolerance, what);
        for (size_t p = 0; expected.contains("edges") && p < before["ids"].size(); ++p) {
            const int32_t parent = state_of(lattice, depth - 1, before["ids"][p].get<int32_t>());
            expect_close(lattice.edge[lattice.edge_at(depth, parent, state)],
                         expected["edges"][p][i].get<double>(), tolerance,
                         what + " of parent " + std::to_string(p));
        }
    }
}

void expect_fixture(const std::string& name, Kernels kernels, double tolerance) {
    const json description = dflash_case(name);
    Subject subject(description, kernels);
    for (const json& draft : description["drafts"]) {
        const auto anchor = draft["anchor"].get<int32_t>();
        LatticeStorage storage = subject.draft_at(anchor);
        const LatticeView lattice = storage.view();
        const json& depths = draft["depths"];
        ASSERT_EQ(*lattice.depths, static_cast<int32_t>(depths.size()));
        EXPECT_EQ(*lattice.has_edges, depths[1].contains("edges"));
        for (int32_t depth = 0; depth < *lattice.depths; ++depth) {
            SCOPED_TRACE(testing::Message() << "anchor " << anchor << ", depth " << depth);
            const auto at = static_cast<size_t>(depth);
            expect_depth(lattice, depth, depths[at], depths[at > 0 ? at - 1 : 0], tolerance);
        }
    }
}

TEST_P(DflashFixture, ReferenceKernelsAgree) {
    // Float activations and cache: a few hundred roundings of logits of about 8.
    expect_fixture(GetParam(), Kernels::reference, 5e-5);
}

TEST_P(DflashFixture, FastKernelsAgree) {
    // K and V are rounded to f16: 2^-11 of each.
    expect_fixture(GetParam(), Kernels::fast, 2e-2);
}

TEST_P(DflashFixture, HowRowsComeChangesNothing) {
    const json description = dflash_case(GetParam());
    constexpr int32_t kAnchor = 149;
    Subject whole(description, Kernels::fast);
    LatticeStorage expected = whole.draft_at(kAnchor);
    const std::vector<float> bits = bits_of(expected.view());

    // Pieces of any size, as prompt chunks and accepted paths come: features at any rows.
    Subject pieces(description, Kernels::fast, 3, 17);
    std::mt19937 random(3);
    std::vector<int32_t> rows(pieces.tokens.size());
    std::iota(rows.begin(), rows.end(), 0);
    std::shuffle(rows.begin(), rows.end(), random);
    const auto columns = pieces.features.size() / rows.size();
    std::vector<float> shuffled(pieces.features.size());
    for (size_t i = 0; i < rows.size(); ++i) {
        std::copy_n(
            pieces.features.begin() + static_cast<ptrdiff_t>(i * columns), columns,
            shuffled.begin() + static_cast<ptrdiff_t>(rows[i]) * static_cast<ptrdiff_t>(columns));
    }
    pieces.features = shuffled;
    const std::vector<int32_t> slots = Subject::slots_of(1, kAnchor);
    const std::vector<int32_t> others = Subject::slots_of(2, kAnchor);
    for (int32_t at = 0; at < kAnchor;) {
        const int32_t count = std::min(static_cast<int32_t>(random() % 30) + 1, kAnchor - at);
        const int32_t behind = std::max(at - 5, 0);
        const IngestSegment both[] = {pieces.segment(at, count, slots, rows),
                                      pieces.segment(behind, at - behind, others, rows)};
        pieces.drafter->ingest(both);
        at += count;
    }
    LatticeStorage drafted = pieces.draft(pieces.context(kAnchor, slots));
    EXPECT_EQ(bits_of(drafted.view()), bits);

    // With other sessions in the call, and again behind rows that moved to other slots.
    const std::vector<int32_t> moved = [&] {
        std::vector<int32_t> to;
        for (int32_t slot = 0; std::ssize(to) < kAnchor; ++slot) {
            if (std::ranges::find(slots, slot) == slots.end()) to.push_back(slot);
        }
        return to;
    }();
    ThreadPool one(1);
    Stream stream{&one, Kernels::fast};
    kv_move({.kv = pieces.drafter->cache(), .moves = {.from = slots, .to = moved}}, stream);
    const DraftContext contexts[] = {pieces.context(20, std::span<const int32_t>(moved)),
                                     pieces.context(kAnchor, moved), pieces.context(7, moved)};
    std::vector<LatticeStorage> storages(
        3, LatticeStorage(pieces.drafter->depth_capacity, pieces.drafter->state_capacity));
    std::vector<LatticeView> views;
    for (LatticeStorage& each : storages) views.push_back(each.view());
    pieces.drafter->draft(contexts, views);
    EXPECT_EQ(bits_of(views[1]), bits);
}

TEST_P(DflashFixture, SeesNothingAtOrBehindTheAnchor) {
    const json description = dflash_case(GetParam());
    constexpr int32_t kAnchor = 70;
    Subject subject(description, Kernels::fast), leaking(description, Kernels::fast);
    LatticeStorage expected = subject.draft_at(kAnchor);
    // Everything is ingested, and what the anchor's row and those behind it hold is no number.
    const auto columns = leaking.features.size() / leaking.tokens.size();
    std::fill(leaking.features.begin() + static_cast<ptrdiff_t>(kAnchor * columns),
              leaking.features.end(), std::numeric_limits<float>::quiet_NaN());
    const auto count = static_cast<int32_t>(leaking.tokens.size());
    const std::vector<int32_t> slots = Subject::slots_of(0, count);
    leaking.ingest(0, count, slots);
    LatticeStorage drafted = leaking.draft(leaking.context(kAnchor, slots));
    EXPECT_EQ(bits_of(drafted.view()), bits_of(expected.view()));
    // And it does read what stands right before the anchor.
    leaking.features[static_cast<size_t>(kAnchor - 1) * columns] += 1;
    leaking.ingest(kAnchor - 1, 1, slots);
    LatticeStorage other = leaking.draft(leaking.context(kAnchor, slots));
    EXPECT_NE(bits_of(other.view()), bits_of(expected.view()));
}

TEST_P(DflashFixture, ShallowDraftsAreTheBeginning) {
    const json description = dflash_case(GetParam());
    Subject subject(description, Kernels::fast);
    LatticeStorage all = subject.draft_at(70);
    const std::vector<int32_t> slots = Subject::slots_of(0, 70);
    DraftContext context = subject.context(70, slots);
    context.max_depth = 3;
    LatticeStorage three = subject.draft(context);
    EXPECT_EQ(*three.view().depths, 3);
    *all.view().depths = 3;
    EXPECT_EQ(bits_of(three.view()), bits_of(all.view()));
}

std::vector<std::string> case_names() {
    std::vector<std::string> names;
    for (const json& each : dflash_fixture()["cases"]) names.push_back(each["name"]);
    return names;
}

INSTANTIATE_TEST_SUITE_P(All, DflashFixture, testing::ValuesIn(case_names()),
                         [](const auto& test) { return test.param; });

TEST(Dflash, GreedyPowersHoldForGreedyRequests) {
    json description = dflash_case("residual");
    description["config"]["kdtree"]["greedy_power"] = {1.5, 1.0, 1.0, 1.0, 1.0, 1.0, 2.0};
    Subject plain(dflash_case("residual"), Kernels::fast), fitted(description, Kernels::fast);
    LatticeStorage raw = plain.draft_at(30), greedy = fitted.draft_at(30);
    const std::vector<int32_t> slots = Subject::slots_of(0, 30);
    DraftContext sampling = fitted.context(30, slots);
    sampling.greedy = false;
    LatticeStorage sampled = fitted.draft(sampling);
    EXPECT_EQ(bits_of(sampled.view()), bits_of(raw.view()));
    // p^1.5 / (sum of p^1.5 + rest^1.5), at depth 0; power 2 at the last depth's edges.
    for (const auto& [depth, power] : {std::pair{0, 1.5}, std::pair{6, 2.0}}) {
        const bool edges = depth > 0;
        const auto row = [&, d = depth](LatticeView view) {
            return edges ? view.edge + view.edge_at(d, 3, 0) : view.log_prob;
        };
        double rest = 1, sum = 0;
        for (int s = 0; s < 32; ++s) {
            const double p = std::exp(double{row(raw.view())[s]});
            rest -= p;
            sum += std::pow(p, power);
        }
        sum += std::pow(std::max(rest, 0.0), power);
        for (int s = 0; s < 32; ++s) {
            EXPECT_NEAR(row(greedy.view())[s], power * double{row(raw.view())[s]} - std::log(sum),
                        1e-4);
        }
    }
}

TEST(Dflash, LogitsThatAreNoNumbersDraftNothing) {
    Subject subject(dflash_case("residual"), Kernels::fast);
    std::fill(subject.features.begin(), subject.features.end(),
              std::numeric_limits<float>::quiet_NaN());
    LatticeStorage drafted = subject.draft_at(10);
    EXPECT_EQ(*drafted.view().depths, 0);
}

}  // namespace
}  // namespace kd
