#include "kv/relocation.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <span>
#include <unordered_set>

#include "base/check.h"

namespace kd {

namespace {

/// The pool's free runs in order, less what the plan has taken.
class Room {
  public:
    explicit Room(const FreePages& free) {
        for (PageRun run = free.run_at_or_after(0); run.count > 0;
             run = free.run_at_or_after(run.first + run.count)) {
            runs_.push_back(run);
        }
    }

    std::span<const PageRun> runs() const { return runs_; }
    bool contains(int32_t page) const {
        const auto run = behind(page);
        return run != runs_.begin() && page < (run - 1)->first + (run - 1)->count;
    }
    void take(int32_t page) {
        const auto run = runs_.begin() + (behind(page) - runs_.begin()) - 1;
        const PageRun rest = {.first = page + 1, .count = run->first + run->count - page - 1};
        run->count = page - run->first;
        if (run->count > 0 && rest.count > 0) {
            runs_.insert(run + 1, rest);
        } else if (rest.count > 0) {
            *run = rest;
        } else if (run->count == 0) {
            runs_.erase(run);
        }
    }

  private:
    /// The first run that begins behind a page.
    std::vector<PageRun>::const_iterator behind(int32_t page) const {
        return std::upper_bound(runs_.begin(), runs_.end(), page,
                                [](int32_t p, const PageRun& run) { return p < run.first; });
    }

    std::vector<PageRun> runs_;
};

class Planner {
  public:
    Planner(const KvPool& pool, int32_t max_pages)
        : pool_(pool), room_(pool.free_pages()), pages_left_(max_pages) {
        for (const PageTable* table : pool.tables()) {
            if (table->held()) held_.insert(table->pages().begin(), table->pages().end());
        }
    }

    PageMoves plan() {
        join_free_runs();
        for (const PageTable* table : pool_.tables()) make_whole(*table);
        return std::move(moves_);
    }

  private:
    int32_t tile_pages() const { return kTileTokens / pool_.page_size(); }

    void make_whole(const PageTable& table) {
        if (table.held()) return;
        const Fragmentation& state = table.fragmentation();
        int64_t broken = state.tiles - state.whole_tiles;
        const auto count = static_cast<size_t>(tile_pages());
        for (size_t begin = 0; broken > 0 && pages_left_ > 0; begin += count) {
            if (is_whole(table.pages().subspan(begin, count))) continue;
            broken -= 1;
            if (may_move(table, begin)) move_tile(table, begin);
        }
    }

    static bool is_whole(std::span<const int32_t> tile) {
        for (size_t i = 1; i < tile.size(); ++i) {
            if (tile[i] != tile[i - 1] + 1) return false;
        }
        return true;
    }

    /// Whether no page of the tile is held or moves already, and nobody who shares a part of it has
    /// it whole.
    bool may_move(const PageTable& table, size_t begin) const {
        const auto count = static_cast<size_t>(tile_pages());
        const std::span<const int32_t> tile = table.pages().subspan(begin, count);
        for (const int32_t page : tile) {
            if (held_.contains(page) || moving_.contains(page)) return false;
        }
        if (begin >= static_cast<size_t>(table.shared_pages())) return true;
        for (const PageTable* other : pool_.tables()) {
            if (other == &table || other->pages().size() < begin + count) continue;
            const std::span<const int32_t> theirs = other->pages().subspan(begin, count);
            if (theirs.front() == tile.front() && is_whole(theirs)) return false;
        }
        return true;
    }

    /// Pages that have to move for the tile to begin at page `base`; none: it cannot.
    std::optional<int32_t> moves_to(std::span<const int32_t> tile, int32_t base) const {
        int32_t moves = 0;
        for (const int32_t page : tile) {
            if (page != base && !room_.contains(base)) return std::nullopt;
            moves += page != base ? 1 : 0;
            base += 1;
        }
        return moves;
    }

    void move_tile(const PageTable& table, size_t begin) {
        const auto count = static_cast<size_t>(tile_pages());
        const std::span<const int32_t> pages = table.pages();
        const std::span<const int32_t> tile = pages.subspan(begin, count);
        int32_t best = -1;
        int32_t fewest = std::numeric_limits<int32_t>::max();
        const auto consider = [&](int32_t base) {
            const std::optional<int32_t> moves = moves_to(tile, base);
            if (!moves.has_value() || *moves >= fewest) return;
            fewest = *moves;
            best = base;
        };
        // Behind the tile before, before the tile behind, around a piece of its own.
        if (begin > 0) consider(pages[begin - 1] + 1);
        if (begin + count < pages.size()) consider(pages[begin + count] - tile_pages());
        for (size_t i = 0; i < count; ++i) {
            if (i == 0 || tile[i] != tile[i - 1] + 1) consider(tile[i] - static_cast<int32_t>(i));
        }
        // Else elsewhere, but in a free run that is of little use to anybody else: measured, what
        // is cut from longer ones costs more tiles later than it repairs now.
        const std::optional<PageRun> hole = best < 0 ? shortest_run(tile_pages()) : std::nullopt;
        if (hole.has_value() && hole->count < 2 * tile_pages()) consider(hole->first);
        if (best < 0 || fewest > pages_left_) return;
        for (size_t i = 0; i < count; ++i) {
            const int32_t to = best + static_cast<int32_t>(i);
            if (tile[i] != to) move(tile[i], to);
        }
    }

    void move(int32_t from, int32_t to) {
        moves_.from.push_back(from);
        moves_.to.push_back(to);
        moving_.insert(from);
        room_.take(to);
        pages_left_ -= 1;
    }

    void join_free_runs() {
        std::vector<PageRun> gaps;
        const std::span<const PageRun> runs = room_.runs();
        for (size_t i = 0; i + 1 < runs.size(); ++i) {
            const int32_t end = runs[i].first + runs[i].count;
            const PageRun gap = {.first = end, .count = runs[i + 1].first - end};
            if (gap.count <= pages_left_) gaps.push_back(gap);
        }
        std::ranges::sort(gaps, [](const PageRun& a, const PageRun& b) {
            return a.count != b.count ? a.count < b.count : a.first < b.first;
        });
        for (const PageRun& gap : gaps) {
            if (gap.count > pages_left_) return;
            if (!movable(gap)) continue;
            const std::optional<PageRun> to = shortest_run(gap.count, gap);
            if (!to.has_value()) continue;
            for (int32_t i = 0; i < gap.count; ++i) move(gap.first + i, to->first + i);
        }
    }

    /// The shortest free run that holds `count` pages and touches neither `gap` nor pages that move
    /// away: those shall join it.
    std::optional<PageRun> shortest_run(int32_t count, PageRun gap = {}) const {
        std::optional<PageRun> best;
        for (const PageRun& run : room_.runs()) {
            const int32_t end = run.first + run.count;
            if (run.count < count || (best.has_value() && run.count >= best->count)) continue;
            if (gap.count > 0 && (end == gap.first || gap.first + gap.count == run.first)) continue;
            if (moving_.contains(run.first - 1) || moving_.contains(end)) continue;
            best = run;
        }
        return best;
    }

    /// Nothing in it is held, and both its ends still touch free pages.
    bool movable(PageRun gap) const {
        if (!room_.contains(gap.first - 1) || !room_.contains(gap.first + gap.count)) return false;
        for (int32_t page = gap.first; page < gap.first + gap.count; ++page) {
            if (held_.contains(page)) return false;
        }
        return true;
    }

    const KvPool& pool_;
    Room room_;
    int32_t pages_left_;
    PageMoves moves_;
    std::unordered_set<int32_t> held_;
    std::unordered_set<int32_t> moving_;
};

}  // namespace

PageMoves plan_moves(const KvPool& pool, int32_t max_pages) {
    KD_CHECK(max_pages >= 0, "max pages {}", max_pages);
    if (pool.options().placement == Placement::unsorted) return {};  // a queue has no places
    return Planner(pool, max_pages).plan();
}

SlotCopies slots_of(const PageMoves& moves, int32_t page_size) {
    SlotCopies slots;
    for (size_t i = 0; i < moves.from.size(); ++i) {
        for (int32_t offset = 0; offset < page_size; ++offset) {
            slots.from.push_back(moves.from[i] * page_size + offset);
            slots.to.push_back(moves.to[i] * page_size + offset);
        }
    }
    return slots;
}

}  // namespace kd
