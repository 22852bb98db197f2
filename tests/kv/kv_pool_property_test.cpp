// Random operations over KvPool, everything checked after each: see kv_pool_model.h.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "kv/relocation.h"
#include "kv_pool_model.h"

namespace kd {
namespace {

#ifdef __SANITIZE_ADDRESS__
// Fewer of the same operations: at 2 these were two fifths of the time of all sanitizer tests.
constexpr int kScale = 10;
#else
constexpr int kScale = 1;
#endif

struct Load {
    KvPoolOptions pool;
    size_t sessions = 6;  // at most, at a time
    size_t prompt = 0;    // at most, and about as much again is generated
    int steps = 0;
    int check_every = 1;
    uint32_t seed = 0;
};

class Operations {
  public:
    explicit Operations(const Load& load) : load_(load), model_(load.pool), random_(load.seed) {}

    void run();

  private:
    size_t below(size_t bound) { return random_() % bound; }
    bool one_in(size_t bound) { return below(bound) == 0; }
    ModelSession& any_session() { return *model_.sessions[below(model_.sessions.size())]; }
    KvPool& pool() { return model_.pool; }
    bool relocates() const { return load_.pool.placement != Placement::unsorted; }

    void step();
    void append_random(Tokens& tokens, size_t count);
    Tokens any_prompt();
    void start();
    void reuse(ModelSession& session, size_t asked);
    int64_t tokens_of_others(const ModelSession& session) const;
    bool extend(ModelSession& session, int32_t need, int32_t want);
    void compute_prompt(ModelSession& session);
    void publish(ModelSession& session);
    void go_on();
    void ask_for_less();
    void ask_for_too_much();
    void end(bool with_publish);
    void start_over();
    void hold();
    void release();
    void move(const PageMoves& moves);
    void move_random_pages();
    void relocate();
    void drop_cached();
    void expect_totals();
    void expect_everything_happened();
    void finish_everything();

    Load load_;
    KvPoolModel model_;
    std::mt19937 random_;
    std::vector<Tokens> history_;  // what was said before, to be begun with again
    KvPoolTotals expected_;
    int64_t copied_ = 0;   // rows of pages that were shared in part
    int64_t refused_ = 0;  // calls of extend
};

void Operations::append_random(Tokens& tokens, size_t count) {
    // Mostly one token, so that what is fresh meets what is there, within a page too.
    for (; count > 0; --count) {
        tokens.push_back(one_in(8) ? static_cast<int32_t>(below(3)) : 0);
    }
}

Tokens Operations::any_prompt() {
    Tokens tokens;
    if (!model_.sessions.empty() && one_in(3)) {
        tokens = any_session().tokens;  // a fork
    } else if (!history_.empty() && !one_in(4)) {
        tokens = history_[below(history_.size())];  // goes on, or has the same beginning
    }
    tokens.resize(std::min(tokens.size(), 1 + below(load_.prompt)));
    if (!one_in(8)) append_random(tokens, 1 + below(load_.prompt / 4));
    if (tokens.empty()) tokens.push_back(1);
    return tokens;
}

void Operations::reuse(ModelSession& session, size_t asked) {
    const std::span<const int32_t> tokens = std::span(session.tokens).first(asked);
    const int32_t cached = pool().cached_prefix(tokens);
    ASSERT_EQ(cached, model_.longest_cached(tokens));
    const bool has_free_page = pool().free_pages().count() > 0;
    const int64_t others = tokens_of_others(session);
    const int32_t cached_tokens = pool().cached();
    SlotCopies copies;
    const int32_t reused = pool().reuse(session.table, tokens, copies);
    expected_.trimmed += others - tokens_of_others(session);
    expected_.evicted += cached_tokens - pool().cached();
    const int32_t in_page = cached % pool().page_size();
    ASSERT_TRUE(reused == cached || (!has_free_page && reused == cached - in_page))
        << reused << " of " << cached;
    ASSERT_EQ(copies.from.size(), static_cast<size_t>(reused % pool().page_size()));
    ASSERT_EQ(session.table.shared_pages(), reused / pool().page_size());
    model_.copy(copies.view().from, copies.view().to);
    session.rows = reused;
    session.needed = reused;
    copied_ += std::ssize(copies.from);
    expected_.asked += std::ssize(tokens);
    expected_.reused += reused;
}

int64_t Operations::tokens_of_others(const ModelSession& session) const {
    int64_t tokens = 0;
    for (const auto& each : model_.sessions) {
        if (each.get() != &session) tokens += each->table.tokens();
    }
    return tokens;
}

bool Operations::extend(ModelSession& session, int32_t need, int32_t want) {
    const std::vector<int32_t> before(session.table.pages().begin(), session.table.pages().end());
    const int32_t free_before = pool().free();
    const int32_t cached_before = pool().cached();
    const int64_t others = tokens_of_others(session);
    const int32_t page_size = pool().page_size();
    const int32_t reach = model_.reach_pages(session) * page_size;
    EXPECT_EQ(pool().reach(session.table), reach);
    const bool fits = need <= std::max(reach, session.table.tokens());
    const bool extended = pool().extend(session.table, need, want);
    EXPECT_EQ(extended, fits) << need << " of " << reach;
    expected_.trimmed += others - tokens_of_others(session);
    expected_.evicted += cached_before - pool().cached();
    const std::span<const int32_t> after = session.table.pages();
    EXPECT_TRUE(after.size() >= before.size() &&
                std::equal(before.begin(), before.end(), after.begin()));
    if (!extended) {
        EXPECT_EQ(after.size(), before.size());
        EXPECT_EQ(pool().free(), free_before);
        EXPECT_EQ(pool().cached(), cached_before);
        EXPECT_EQ(tokens_of_others(session), others);
        refused_ += 1;
        return false;
    }
    EXPECT_LT(session.table.tokens(),
              std::max(want, std::max(need, static_cast<int32_t>(before.size()) * page_size)) +
                  page_size);
    session.needed = need;
    model_.scribble(session);
    return true;
}

void Operations::publish(ModelSession& session) {
    if (session.table.held()) return;
    const std::span<const int32_t> rows =
        std::span(session.tokens).first(static_cast<size_t>(session.rows));
    pool().publish(session.table, rows);
    if (!load_.pool.prefix_index) {
        ASSERT_EQ(session.table.shared_pages(), 0);
        return;
    }
    ASSERT_EQ(session.table.shared_pages(), session.rows / pool().page_size());
    ASSERT_GE(pool().cached_prefix(rows), session.rows / pool().page_size() * pool().page_size());
}

/// The next chunk of the prompt, as a rule all of it; a whole prompt is published.
void Operations::compute_prompt(ModelSession& session) {
    const size_t left = session.tokens.size() - static_cast<size_t>(session.rows);
    model_.compute(session, static_cast<int32_t>(one_in(3) ? below(left + 1) : left));
    if (session.rows == std::ssize(session.tokens)) publish(session);
}

void Operations::start() {
    if (model_.sessions.size() >= load_.sessions) return;
    const Tokens prompt = any_prompt();
    ModelSession& session = *model_.sessions.emplace_back(std::make_unique<ModelSession>(pool()));
    session.append(prompt);
    // The last token is the first root: as a rule its row is not looked for.
    reuse(session, prompt.size() - (one_in(4) ? 0 : 1));
    const auto need = static_cast<int32_t>(prompt.size());
    if (!extend(session, need, need + static_cast<int32_t>(below(100)))) {
        model_.sessions.pop_back();
        return;
    }
    compute_prompt(session);
}

void Operations::go_on() {
    ModelSession& session = any_session();
    if (session.rows < std::ssize(session.tokens)) return compute_prompt(session);
    if (session.tokens.size() > 2 * load_.prompt) return;
    Tokens more;
    append_random(more, 1 + below(one_in(4) ? 64 : 8));
    const auto need = static_cast<int32_t>(session.tokens.size() + more.size());
    constexpr int32_t kExtents[] = {1, 16, 64};
    const int32_t extent = kExtents[below(3)];
    if (!extend(session, need, (need + extent - 1) / extent * extent)) return;
    session.append(more);
    model_.compute(session, need - session.rows);
}

/// Its other rows may then be taken back, its pages from their end.
void Operations::ask_for_less() {
    ModelSession& session = any_session();
    const auto rows = static_cast<int32_t>(session.rows);
    session.tokens.resize(static_cast<size_t>(rows));
    session.hashes.resize(static_cast<size_t>(rows));
    ASSERT_TRUE(extend(session, rows, rows));
}

void Operations::ask_for_too_much() {
    ModelSession& session = any_session();
    const int32_t reach = pool().reach(session.table);
    if (one_in(2)) {
        ASSERT_FALSE(extend(session, reach + 1, reach + 1));
    } else if (one_in(4)) {
        // Just what there is: everything that may be evicted or taken back goes.
        ASSERT_TRUE(extend(session, reach, reach));
        ASSERT_EQ(session.table.tokens(), reach);
        ASSERT_TRUE(extend(session, static_cast<int32_t>(session.tokens.size()), 0));
    }
}

void Operations::end(bool with_publish) {
    const size_t at = below(model_.sessions.size());
    ModelSession& session = *model_.sessions[at];
    if (session.table.held()) return;
    if (with_publish) publish(session);
    if (history_.size() < 32) history_.emplace_back();
    history_[below(history_.size())] = session.tokens;
    model_.sessions.erase(model_.sessions.begin() + static_cast<ptrdiff_t>(at));
}

void Operations::start_over() {
    ModelSession& session = any_session();
    if (session.table.held()) return;
    session.table.clear();
    ASSERT_EQ(session.table.tokens(), 0);
    ASSERT_EQ(session.table.shared_pages(), 0);
    session.rows = 0;
    session.needed = 0;
    const auto need = static_cast<int32_t>(session.tokens.size());
    reuse(session, session.tokens.size());
    if (!extend(session, need, need)) {
        session.tokens.resize(static_cast<size_t>(session.rows));
        session.hashes.resize(static_cast<size_t>(session.rows));
    }
}

void Operations::hold() {
    ModelSession& session = any_session();
    if (!session.table.held()) {
        session.held.assign(session.table.pages().begin(), session.table.pages().end());
    }
    session.table.hold();
}

void Operations::release() {
    ModelSession& session = any_session();
    if (session.table.held()) session.table.release();
}

void Operations::move(const PageMoves& moves) {
    ASSERT_EQ(moves.from.size(), moves.to.size());
    const SlotCopies slots = slots_of(moves, pool().page_size());
    ASSERT_EQ(slots.from.size(), moves.from.size() * static_cast<size_t>(pool().page_size()));
    model_.copy(slots.from, slots.to);
    pool().rename(moves.from, moves.to);
    expected_.moved += std::ssize(slots.from);
}

/// More than any plan would do: any page that may move, to any place.
void Operations::move_random_pages() {
    if (!relocates()) return;
    enum : uint8_t { kUsed, kFree, kStays };
    std::vector<uint8_t> state(static_cast<size_t>(pool().free_pages().total()), kUsed);
    for (int32_t page = 0; page < pool().free_pages().total(); ++page) {
        if (pool().free_pages().is_free(page)) state[static_cast<size_t>(page)] = kFree;
    }
    for (const auto& session : model_.sessions) {
        if (!session->table.held()) continue;
        for (const int32_t page : session->table.pages()) state[static_cast<size_t>(page)] = kStays;
    }
    PageMoves moves;
    for (int32_t page = 0; page < std::ssize(state); ++page) {
        if (state[static_cast<size_t>(page)] == kUsed) moves.from.push_back(page);
        if (state[static_cast<size_t>(page)] == kFree) moves.to.push_back(page);
    }
    std::ranges::shuffle(moves.from, random_);
    std::ranges::shuffle(moves.to, random_);
    const size_t count = std::min({moves.from.size(), moves.to.size(), 1 + below(8)});
    moves.from.resize(count);
    moves.to.resize(count);
    move(moves);
}

void Operations::relocate() {
    if (!relocates()) return;
    const auto most = static_cast<int32_t>(below(16));
    const PageMoves moves = plan_moves(pool(), most);
    ASSERT_LE(std::ssize(moves.from), most);
    for (const auto& session : model_.sessions) {
        if (!session->table.held()) continue;
        for (const int32_t page : session->table.pages()) {
            ASSERT_EQ(std::ranges::find(moves.from, page), moves.from.end());
        }
    }
    for (const int32_t page : moves.to) ASSERT_TRUE(pool().free_pages().is_free(page));
    move(moves);
}

void Operations::drop_cached() {
    expected_.evicted += pool().index().evictable() * pool().page_size();
    pool().drop_cached();
    for (PrefixIndex::NodeId id = 1; id < pool().index().node_count(); ++id) {
        const PrefixIndex::Node& node = pool().index().node(id);
        ASSERT_TRUE(node.parent < 0 || node.locks > 0);
    }
}

void Operations::expect_totals() {
    const KvPoolTotals& totals = pool().totals();
    ASSERT_EQ(totals.asked, expected_.asked);
    ASSERT_EQ(totals.reused, expected_.reused);
    ASSERT_EQ(totals.moved, expected_.moved);
    ASSERT_EQ(totals.evicted, expected_.evicted);
    ASSERT_EQ(totals.trimmed, expected_.trimmed);
}

void Operations::step() {
    const size_t choice = below(100);
    if (model_.sessions.empty() || choice < 18) return start();
    if (choice < 60) return go_on();
    if (choice < 67) return end(true);
    if (choice < 71) return end(false);
    if (choice < 74) return start_over();
    if (choice < 79) return publish(any_session());
    if (choice < 82) return hold();
    if (choice < 87) return release();
    if (choice < 89) return ask_for_less();
    if (choice < 92) return ask_for_too_much();
    if (choice < 95) return relocate();
    if (choice < 99) return move_random_pages();
    if (one_in(4)) drop_cached();
}

/// A load that never gets there shows nothing.
void Operations::expect_everything_happened() {
    const bool index = load_.pool.prefix_index;
    ASSERT_GT(refused_, 0);
    ASSERT_GT(expected_.trimmed, 0);
    ASSERT_EQ(expected_.moved > 0, relocates());
    ASSERT_EQ(expected_.reused > 0, index);
    ASSERT_EQ(expected_.evicted > 0, index);
    ASSERT_EQ(copied_ > 0, index && load_.pool.page_size > 1);
}

void Operations::finish_everything() {
    while (!model_.sessions.empty()) {
        ModelSession& session = *model_.sessions.back();
        while (session.table.held()) session.table.release();
        if (one_in(2)) publish(session);
        model_.sessions.pop_back();
    }
    model_.check();
    expect_everything_happened();
    drop_cached();
    model_.check();
    pool().check_books();
    expect_totals();
    ASSERT_EQ(pool().free(), pool().total());
    ASSERT_EQ(pool().free_pages().runs(), 1);
    ASSERT_EQ(pool().index().pages(), 0);
}

void Operations::run() {
    for (int step = 0; step < load_.steps; ++step) {
        SCOPED_TRACE(testing::Message() << "seed " << load_.seed << ", step " << step);
        this->step();
        expect_totals();
        if (step % load_.check_every == 0) {
            pool().check_books();
            model_.check();
        }
        if (testing::Test::HasFailure()) FAIL();
    }
    finish_everything();
}

using Configuration = std::tuple<int32_t, Placement, bool>;

std::string name_of(const testing::TestParamInfo<Configuration>& info) {
    const auto [page_size, placement, prefix_index] = info.param;
    const char* names[] = {"unsorted", "sorted", "best_fit"};
    return "page" + std::to_string(page_size) + "_" + names[static_cast<size_t>(placement)] +
           (prefix_index ? "_index" : "_no_index");
}

/// About 1.5 times as much as fits.
Load load_of(const Configuration& configuration, uint32_t seed) {
    const auto [page_size, placement, prefix_index] = configuration;
    const int32_t slots = page_size == 1 ? 256 : 24 * page_size;
    // Of the evictions some take the shortage alone.
    const double evict_batch = seed % 2 == 0 ? 0 : 0.1;
    return {.pool = {.slots = slots + page_size / 2,
                     .page_size = page_size,
                     .placement = placement,
                     .prefix_index = prefix_index,
                     .evict_batch = evict_batch},
            .prompt = static_cast<size_t>(slots) / 6,
            .seed = seed};
}

void run(const Load& load) {
    std::printf("seed %u, %d operations\n", load.seed, load.steps);
    std::fflush(stdout);
    Operations(load).run();
}

const auto kConfigurations = testing::Combine(
    testing::Values(1, 16, 32, 64),
    testing::Values(Placement::unsorted, Placement::sorted, Placement::best_fit), testing::Bool());

class KvPoolProperty : public testing::TestWithParam<Configuration> {};

// 24 configurations x 2 seeds x 20,000, and the large pools: a million.
TEST_P(KvPoolProperty, EveryRowAndEveryPageIsRight) {
    for (const uint32_t seed : {20240614u, 20240615u}) {
        Load load = load_of(GetParam(), seed);
        load.steps = 20000 / kScale;
        run(load);
        if (HasFatalFailure()) return;
    }
}

INSTANTIATE_TEST_SUITE_P(Pools, KvPoolProperty, kConfigurations, name_of);

class KvPoolPropertyLarge : public testing::TestWithParam<Configuration> {};

TEST_P(KvPoolPropertyLarge, EveryRowAndEveryPageIsRight) {
    Load load = load_of(GetParam(), 20240617);
    load.pool.slots = 8192;
    load.sessions = 24;
    load.prompt = 600;
    load.steps = 20000 / kScale;
    load.check_every = 64;
    run(load);
}

INSTANTIATE_TEST_SUITE_P(Pools, KvPoolPropertyLarge,
                         testing::Values(Configuration(1, Placement::best_fit, true),
                                         Configuration(16, Placement::sorted, true)),
                         name_of);

class KvPoolPropertyLong : public testing::TestWithParam<Configuration> {};

TEST_P(KvPoolPropertyLong, EveryRowAndEveryPageIsRight) {
    for (uint32_t seed = 1; seed <= 20; ++seed) {
        Load load = load_of(GetParam(), seed);
        load.steps = 50000 / kScale;
        run(load);
        if (HasFatalFailure()) return;
    }
}

INSTANTIATE_TEST_SUITE_P(Pools, KvPoolPropertyLong, kConfigurations, name_of);

}  // namespace
}  // namespace kd
