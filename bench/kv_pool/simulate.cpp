#include "kv_pool/simulate.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "base/check.h"
#include "base/rng.h"
#include "kv/kv_pool.h"
#include "kv/relocation.h"
#include "ops/timing.h"

namespace kd {

namespace {

KvPoolOptions pool_options(const SimulationSettings& settings) {
    Placement placement = Placement::best_fit;
    if (settings.tier == Tier::none) placement = Placement::unsorted;
    if (settings.tier == Tier::sorted) placement = Placement::sorted;
    return {.slots = settings.pool_tokens,
            .page_size = settings.page,
            .placement = placement,
            .extent = settings.tier >= Tier::extents ? settings.extent : 1,
            .prefix_index = settings.prefix_tree,
            .evict_batch = settings.evict_batch};
}

/// A session that runs. Row i of its table is for token i; the last token has none yet.
struct Running {
    Running(KvPool& pool, int32_t session_number) : table(pool), session(session_number) {}

    PageTable table;
    int32_t session;
    std::vector<int32_t> text;  // [limit] prompt and output, also what is not emitted yet
    int32_t limit = 0;          // tokens at which the session ends
    int32_t tokens = 0;         // prompt and what was emitted
    int32_t committed = 0;      // rows
    int32_t prefill_rows = 0;   // of this round
    int32_t decode_rows = 0;    // of this round: the root and the depth

    bool prefilling() const { return committed < tokens - 1; }
    std::span<const int32_t> committed_text() const {
        return std::span(text).first(static_cast<size_t>(committed));
    }
};

/// What is kept of a session while it does not run.
struct Progress {
    int32_t emitted = 0;
    bool waiting = false;
    bool admitted = false;   // once at least
    bool finishing = false;  // ends with the next token
    bool ended = false;
};

class Simulation {
  public:
    Simulation(const Load& load, const SimulationSettings& settings)
        : load_(load),
          settings_(settings),
          pool_(pool_options(settings)),
          progress_(load.sessions.size()) {}

    SimulationResult run();

  private:
    void begin_sampling();
    void take_events();
    void take_event(const LoadEvent& event);
    void relocate();
    void admit();
    void start(int32_t number);
    bool reserve(size_t place, int32_t need, int32_t want);
    void plan();
    void apply();
    int32_t accepted(const Running& running) const;
    void sample();
    bool round();
    void publish(Running& running);
    void retract_youngest();
    void end(size_t place);
    void check() const {
        if (settings_.check) pool_.check_books();
    }
    bool events_left() const { return next_event_ < load_.events.size(); }
    Progress& progress(int32_t session) { return progress_[static_cast<size_t>(session)]; }

    const Load& load_;
    const SimulationSettings& settings_;
    KvPool pool_;
    std::vector<Progress> progress_;                 // [sessions]
    std::deque<int32_t> waiting_;                    // sessions
    std::vector<std::unique_ptr<Running>> running_;  // oldest first
    size_t next_event_ = 0;
    int64_t round_ = 0;
    size_t turns_ = 0;  // sessions that were admitted, or were cancelled before
    bool sampling_ = false;
    bool closing_ = false;      // a place stays empty from now on: the last sampled round
    SimulationSums sums_;       // since sampling began
    KvPoolTotals totals_then_;  // of the pool, when sampling began
    SimulationResult result_;
};

void Simulation::take_event(const LoadEvent& event) {
    Progress& progress = this->progress(event.session);
    if (event.kind == EventKind::start) {
        progress.waiting = true;
        waiting_.push_back(event.session);
        return;
    }
    if (progress.ended) {
        result_.ignored_events += 1;
        return;
    }
    if (event.kind == EventKind::finish && progress.emitted == 0) {
        progress.finishing = true;
        return;
    }
    if (progress.waiting) {
        std::erase(waiting_, event.session);
        progress.ended = true;
        turns_ += progress.admitted ? 0 : 1;
        return;
    }
    const auto found = std::ranges::find(running_, event.session,
                                         [](const auto& running) { return running->session; });
    end(static_cast<size_t>(found - running_.begin()));
}

void Simulation::take_events() {
    if (running_.empty() && waiting_.empty() && events_left()) {
        round_ = std::max(round_, load_.events[next_event_].round);
    }
    while (events_left() && load_.events[next_event_].round <= round_) {
        take_event(load_.events[next_event_++]);
    }
}

void Simulation::relocate() {
    if (settings_.tier != Tier::relocate) return;
    sums_.relocate_s += cpu_seconds_of([&] {
        const PageMoves moves = plan_moves(pool_, settings_.relocate_tokens / settings_.page);
        pool_.rename(moves.from, moves.to);
    });
    check();
}

void Simulation::admit() {
    while (!waiting_.empty() && std::ssize(running_) < settings_.concurrency) {
        const int32_t number = waiting_.front();
        const int32_t tokens =
            load_.sessions[static_cast<size_t>(number)].prompt + progress(number).emitted;
        // Whoever would be retracted at once had better wait; somebody must run.
        if (!running_.empty() && pool_.available() <= tokens) return;
        waiting_.pop_front();
        start(number);
        check();
    }
}

void Simulation::begin_sampling() {
    sampling_ = true;
    sums_ = {};
    totals_then_ = pool_.totals();
    result_.evicted_before = totals_then_.evicted;
}

void Simulation::start(int32_t number) {
    const LoadSession& session = load_.sessions[static_cast<size_t>(number)];
    Progress& progress = this->progress(number);
    if (!sampling_ && 2 * turns_ + 1 >= load_.sessions.size()) begin_sampling();
    auto running = std::make_unique<Running>(pool_, number);
    running->limit = session.output > 0 ? session.prompt + session.output : pool_.total();
    running->text = tokens_of(load_, session.text, running->limit);
    running->tokens = session.prompt + progress.emitted;
    const auto asked = static_cast<size_t>(running->tokens - 1);
    SlotCopies copies;
    sums_.index_s += cpu_seconds_of([&] {
        running->committed =
            pool_.reuse(running->table, std::span(running->text).first(asked), copies);
    });
    if (!progress.admitted) {
        sums_.asked += static_cast<int64_t>(asked);
        sums_.reused += running->committed;
        turns_ += 1;
    }
    progress.admitted = true;
    progress.waiting = false;
    running_.push_back(std::move(running));
}

void Simulation::publish(Running& running) {
    sums_.index_s +=
        cpu_seconds_of([&] { pool_.publish(running.table, running.committed_text()); });
}

void Simulation::retract_youngest() {
    Running& running = *running_.back();
    publish(running);
    progress(running.session).waiting = true;
    waiting_.push_front(running.session);
    running_.pop_back();
    sums_.retractions += 1;
    check();
}

/// Of the session at that place, at the expense of younger ones. The oldest always succeeds.
bool Simulation::reserve(size_t place, int32_t need, int32_t want) {
    PageTable& table = running_[place]->table;
    const int32_t before = table.tokens();
    while (!pool_.extend(table, need, want)) {
        if (place + 1 == running_.size()) {
            KD_CHECK(place > 0, "a pool of {} tokens has no {} for one session", pool_.total(),
                     need);
            return false;
        }
        retract_youngest();
    }
    sums_.allocated += table.tokens() - before;
    return true;
}

void Simulation::plan() {
    const int32_t most = settings_.tier >= Tier::extents ? settings_.headroom : 0;
    const int32_t headroom = headroom_of(pool_.total(), settings_.concurrency, most);
    int32_t rows_left = settings_.chunk;
    for (size_t place = 0; place < running_.size(); ++place) {
        Running& running = *running_[place];
        const int32_t prompt = load_.sessions[static_cast<size_t>(running.session)].prompt;
        const int32_t want =
            std::min(std::max(running.tokens, prompt + headroom) - 1, pool_.total());
        running.prefill_rows = 0;
        running.decode_rows = 0;
        if (running.prefilling()) {
            const int32_t missing = running.tokens - 1 - running.committed;
            const int32_t rows = std::min(missing, rows_left);
            if (rows == 0 || !reserve(place, running.committed + rows, want)) continue;
            running.prefill_rows = rows;
            rows_left -= rows;
            continue;
        }
        int32_t depth =
            settings_.tree ? std::min(settings_.depth, running.limit - running.tokens - 1) : 0;
        if (depth > 0 && running.committed + depth + 1 > running.table.tokens()) {
            // Drafts take what is within reach; only the row of the root may push others out.
            const int32_t reach = pool_.reach(running.table) - running.committed - 1;
            depth = std::clamp(reach, 0, depth);
        }
        const int32_t need = running.committed + depth + 1;
        if (!reserve(place, need, want)) continue;
        running.decode_rows = depth + 1;
    }
}

/// A function of the session and its tokens: the same whatever the pool did to it before.
int32_t Simulation::accepted(const Running& running) const {
    const double draw =
        uniform(settings_.seed, RngStream::sample, static_cast<uint64_t>(running.tokens),
                static_cast<uint32_t>(running.session));
    const auto wish = settings_.tree ? 1 + static_cast<int32_t>(draw * settings_.depth) : 1;
    return std::min({wish, running.decode_rows, running.limit - running.tokens});
}

void Simulation::apply() {
    for (size_t place = 0; place < running_.size();) {
        Running& running = *running_[place];
        Progress& progress = this->progress(running.session);
        running.committed += running.prefill_rows;
        if (running.prefill_rows > 0 && !running.prefilling()) {
            publish(running);
            check();
        }
        if (running.decode_rows > 0) {
            const int32_t count = accepted(running);
            running.committed += count;
            running.tokens += count;
            progress.emitted += count;
            sums_.emitted += count;
        }
        const bool finishing = progress.finishing && progress.emitted > 0;
        if (running.tokens >= running.limit || finishing) {
            end(place);
        } else {
            ++place;
        }
    }
}

void Simulation::end(size_t place) {
    Running& running = *running_[place];
    publish(running);
    sums_.alloc_s += cpu_seconds_of([&] { running.table.clear(); });
    progress(running.session).ended = true;
    running_.erase(running_.begin() + static_cast<ptrdiff_t>(place));
    if (!events_left() && waiting_.empty()) closing_ = true;
    check();
}

void Simulation::sample() {
    if (!sampling_ || closing_ || running_.empty()) return;
    sums_.rounds += 1;
    sums_.occupancy += 1 - static_cast<double>(pool_.free()) / pool_.total();
    sums_.free_runs += pool_.free_pages().runs();
    sums_.fragmentation += pool_.fragmentation();
    if (!result_.tables.empty() || 4 * turns_ < 3 * load_.sessions.size()) return;
    for (const auto& running : running_) {
        const auto rows = running->table.slots().first(static_cast<size_t>(running->committed));
        if (!rows.empty()) result_.tables.emplace_back(rows.begin(), rows.end());
    }
}

/// One round; false: nothing is left to do.
bool Simulation::round() {
    take_events();
    relocate();
    admit();
    // The younger ones' publish() is no part of the allocator's time.
    const double index_s = sums_.index_s;
    const double plan_s = cpu_seconds_of([&] { plan(); });
    sums_.alloc_s += plan_s - (sums_.index_s - index_s);
    sample();
    const bool sampled = sampling_ && !closing_;
    apply();
    check();
    if (sampled) {
        result_.sums = sums_;
        result_.sums.evicted = pool_.totals().evicted - totals_then_.evicted;
        result_.sums.moved = pool_.totals().moved - totals_then_.moved;
    }
    round_ += 1;
    return events_left() || !waiting_.empty() || !running_.empty();
}

SimulationResult Simulation::run() {
    result_.seconds = cpu_seconds_of([&] {
        while (round()) {
        }
    });
    pool_.check_books();
    result_.pool_tokens = pool_.total();
    result_.rounds = round_;
    return result_;
}

}  // namespace

SimulationResult simulate(const Load& load, const SimulationSettings& settings) {
    return Simulation(load, settings).run();
}

}  // namespace kd
