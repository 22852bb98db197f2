// The free pages of a pool as runs of neighbours (Tier 0), and who gets which.
//
// Runs are kept by boundary tags (Knuth, TAOCP 1, 2.5): the first and the last page of a free run
// know its length, so pages that come back join their neighbours at once; runs of one length hang
// in one list, and a bit tree finds the shortest list that is long enough. Taking and giving costs
// a few memory accesses a run, however many pages or runs there are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "kv/bit_tree.h"

namespace kd {

/// Where pages come from.
enum class Placement : uint8_t {
    unsorted,  // in the order in which they came back; what a plain free list does
    sorted,    // the lowest pages
    // As many as there are behind the request's last page; the others from the shortest run that
    // holds them, where none does from the longest runs.
    best_fit,
};

struct PageRun {
    int32_t first = 0;
    int32_t count = 0;

    bool operator==(const PageRun&) const = default;
};

class FreePages {
  public:
    /// All pages are free.
    FreePages(int32_t pages, Placement placement);

    int32_t total() const { return total_; }
    int32_t count() const { return count_; }
    int32_t runs() const { return runs_; }
    /// Length of the longest run; 0: nothing is free.
    int32_t longest() const;
    bool is_free(int32_t page) const { return free_[static_cast<size_t>(page)]; }
    /// The run that a free page lies in. Costs a search where the page is inside its run.
    PageRun run_of(int32_t page) const;
    /// The first free run that begins at or after `page`; count 0: none. For walks in order.
    PageRun run_at_or_after(int32_t page) const;

    /// Appends `count` pages to `out` and returns true; or, if fewer are free, changes nothing and
    /// returns false. `last`: the page to continue; -1: none.
    [[nodiscard]] bool take(int32_t count, int32_t last, std::vector<int32_t>& out);
    /// Takes exactly these pages, all of them free. Not with Placement::unsorted.
    void take_run(PageRun run);
    /// Gives pages back. None may be free already.
    void give(std::span<const int32_t> pages);

  private:
    void take_front(int32_t first, int32_t count, std::vector<int32_t>& out);
    void give_run(PageRun run);
    void link(PageRun run);
    void unlink(PageRun run);

    int32_t total_;
    Placement placement_;
    int32_t count_ = 0;
    int32_t runs_ = 0;
    std::vector<bool> free_;  // [pages]
    // What a run needs at one page, in one cache line: pages come back in any order, so each of
    // these is a miss in a large pool.
    struct Tag {
        int32_t length = 0;  // of the run, at its first and at its last page
        // best_fit, at the first page: a doubly linked list of runs of one length; -1: end.
        int32_t next = -1;
        int32_t previous = -1;
        int32_t head = -1;  // of the list of runs that are as long as this tag's index
    };
    std::vector<Tag> tags_;  // [pages + 1]
    BitTree first_;          // first pages of runs
    BitTree lengths_;        // that some run has
    // unsorted: a ring of free pages in the order in which they came back.
    std::vector<int32_t> queue_;  // [pages]
    size_t queue_head_ = 0;
};

}  // namespace kd
