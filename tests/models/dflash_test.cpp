// The dflash drafter against drafts of a transcription in PyTorch (tools/make_dflash_fixtures.py),
// and what must not change a draft.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <random>

#include "base/storage.h"
#include "kernels/kv_move/kv_move.h"
#include "models/dflash_drafter.h"
#include "models/dflash_lattice.h"
#include "support/dflash_checkpoint.h"

namespace kd {
namespace {

using nlohmann::json;

std::vector<std::byte> bf16_storage(const std::vector<float>& values) {
    std::vector<std::byte> bytes(values.size() * 2);
    for (size_t i = 0; i < values.size(); ++i) {
        const uint16_t bits = f32_to_bf16(values[i]);
        std::memcpy(&bytes[2 * i], &bits, 2);
    }
    return bytes;
}

/// A drafter of a fixture's case on a target of which there are only embedding, head and features.
class Subject {
  public:
    static constexpr int32_t kPoolSlots = 1000;
    static constexpr int32_t kSessions = 3;

    Subject(const json& description, Kernels kernels, int threads = 1, int32_t ingest_rows = 40)
        : threads_(threads), stream_{&threads_, kernels} {
        const json& fixture = dflash_fixture();
        const auto name = description["name"].get<std::string>();
        const auto hidden = fixture["hidden"].get<int32_t>();
        const auto vocabulary = fixture["vocabulary"].get<int32_t>();
        tokens = fixture["tokens"].get<std::vector<int32_t>>();
        embedding_ =
            bf16_storage(dflash_values(name + "/target.embedding", {vocabulary, hidden}, "matrix"));
        head_ = bf16_storage(dflash_values(name + "/target.head", {vocabulary, hidden}, "head"));
        WeightView view = {DType::bf16, head_.data(), vocabulary, hidden, {}};
        head_weights_ = std::make_unique<LinearWeights>(std::span(&view, 1), stream_);
        view.data = embedding_.data();
        ModelConfig target;
        target.layers = fixture["target_layers"].get<int32_t>();
        target.hidden = hidden;
        target.vocabulary = vocabulary;
        const std::string folder = write_dflash_checkpoint(description);
        const DflashConfig config = read_dflash_config(folder);
        check_dflash_target(config, target);
        columns_ = std::ssize(config.target_layers) * int64_t{hidden};
        features = dflash_values(name + "/features", {std::ssize(tokens), columns_}, "feature");
        drafter = std::make_unique<DflashDrafter>(
            config,
            load_dflash_weights(folder, config, target,
                                {.embedding = view, .head = head_weights_.get()}, stream_),
            DflashLimits{.sessions = kSessions,
                         .rows = ingest_rows,
                         .context = static_cast<int32_t>(tokens.size()),
                         .slots = kPoolSlots},
            stream_);
    }

    /// Slots of a session, scattered over the pool.
    static std::vector<int32_t> slots_of(int32_t session, int32_t count) {
        std::vector<int32_t> slots;
        for (int32_t i = 0; i < count; ++i) slots.push_back((i * 7 + session * 331) % kPoolSlots);
        return slots;
    }

    IngestSegment segment(int32_t first, int32_t count, std::span<const int32_t> slots,
                          std::span<const int32_t> feature_rows) const {
        const auto begin = static_cast<size_t>(first), rows = static_cast<size_t>(count);
        return {.first_position = first,
                .tokens = std::span(tokens).subspan(begin, rows),
                .slots = slots.subspan(begin, rows),
                .features = {features.data(), std::ssize(tokens), columns_, columns_},
                .feature_rows = feature_rows.subspan(begin, rows)};
    }

    void ingest(int32_t first, int32_t count, std::span<const int32_t> slots) {
        std::vector<int32_t> rows(tokens.size());
        std::iota(rows.begin(), rows.end(), 0);
        const IngestSegment one = segment(first, count, slots, rows);
        drafter->ingest({&one, 1});
    }

    DraftContext context(int32_t anchor, std::span<const int32_t> slots) const {
        return {.tokens = std::span(tokens).first(static_cast<size_t>(anchor) + 1),
                .slots = slots.first(static_cast<size_t>(anchor)),
                .max_depth = kMaxDraftDepths};
    }

    LatticeStorage draft(const DraftContext& context) {
        LatticeStorage storage(drafter->depth_capacity, drafter->state_capacity);
        LatticeView view = storage.view();
        drafter->draft({&context, 1}, {&view, 1});
        return storage;
    }

    /// All tokens before `anchor` ingested in one go, then a draft.
    LatticeStorage draft_at(int32_t anchor) {
        const std::vector<int32_t> slots = slots_of(0, anchor);
        ingest(0, anchor, slots);
        return draft(context(anchor, slots));
    }

    std::vector<int32_t> tokens;
    std::vector<float> features;
    std::unique_ptr<DflashDrafter> drafter;

  private:
    ThreadPool threads_;
    Stream stream_;
    std::vector<std::byte> embedding_, head_;
    std::unique_ptr<LinearWeights> head_weights_;
    int64_t columns_ = 0;
};

/// Everything that a tree is built from, to the bit.
std::vector<float> bits_of(LatticeView lattice) {
    std::vector<float> all = {static_cast<float>(*lattice.depths), *lattice.has_edges ? 1.f : 0.f};
    for (int32_t depth = 0; depth < *lattice.depths; ++depth) {
        const int32_t states = lattice.state_count[depth];
        for (int32_t s = 0; s < states; ++s) {
            all.push_back(static_cast<float>(lattice.token[lattice.at(depth, s)]));
            all.push_back(lattice.log_prob[lattice.at(depth, s)]);
        }
        for (int32_t p = 0; depth > 0 && *lattice.has_edges && p < lattice.state_count[depth - 1];
             ++p) {
            const float* edges = lattice.edge + lattice.edge_at(depth, p, 0);
            all.insert(all.end(), edges, edges + states);
        }
    }
    return all;
}

class DflashFixture : public testing::TestWithParam<std::string> {};

int32_t state_of(LatticeView lattice, int32_t depth, int32_t token) {
    for (int32_t s = 0; s < lattice.state_count[depth]; ++s) {
        if (lattice.token[lattice.at(depth, s)] == token) return s;
    }
    return -1;
}

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
