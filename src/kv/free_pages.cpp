#include "kv/free_pages.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace kd {

namespace {

void append_run(PageRun run, std::vector<int32_t>& out) {
    const size_t begin = out.size();
    out.resize(begin + static_cast<size_t>(run.count));
    std::iota(out.begin() + static_cast<ptrdiff_t>(begin), out.end(), run.first);
}

}  // namespace

FreePages::FreePages(int32_t pages, Placement placement)
    : total_(pages),
      placement_(placement),
      free_(static_cast<size_t>(pages), false),
      tags_(static_cast<size_t>(pages) + 1),
      first_(pages),
      lengths_(pages + 1) {
    if (placement == Placement::unsorted) {
        queue_.resize(static_cast<size_t>(pages));
        std::iota(queue_.begin(), queue_.end(), 0);
    }
    if (pages > 0) give_run({.first = 0, .count = pages});
}

int32_t FreePages::longest() const {
    if (placement_ == Placement::best_fit) return std::max(lengths_.last(), 0);
    int32_t longest = 0;
    for (PageRun run = run_at_or_after(0); run.count > 0;
         run = run_at_or_after(run.first + run.count)) {
        longest = std::max(longest, run.count);
    }
    return longest;
}

PageRun FreePages::run_of(int32_t page) const {
    KD_CHECK(is_free(page), "page {} is not free", page);
    const int32_t first = first_.at_or_before(page);
    return {.first = first, .count = tags_[static_cast<size_t>(first)].length};
}

PageRun FreePages::run_at_or_after(int32_t page) const {
    const int32_t first = first_.at_or_after(page);
    if (first < 0) return {};
    return {.first = first, .count = tags_[static_cast<size_t>(first)].length};
}

void FreePages::link(PageRun run) {
    tags_[static_cast<size_t>(run.first)].length = run.count;
    tags_[static_cast<size_t>(run.first + run.count - 1)].length = run.count;
    first_.insert(run.first);
    runs_ += 1;
    if (placement_ != Placement::best_fit) return;
    int32_t& head = tags_[static_cast<size_t>(run.count)].head;
    if (head < 0) lengths_.insert(run.count);
    if (head >= 0) tags_[static_cast<size_t>(head)].previous = run.first;
    tags_[static_cast<size_t>(run.first)].next = head;
    tags_[static_cast<size_t>(run.first)].previous = -1;
    head = run.first;
}

void FreePages::unlink(PageRun run) {
    first_.erase(run.first);
    runs_ -= 1;
    if (placement_ != Placement::best_fit) return;
    const int32_t next = tags_[static_cast<size_t>(run.first)].next;
    const int32_t previous = tags_[static_cast<size_t>(run.first)].previous;
    if (next >= 0) tags_[static_cast<size_t>(next)].previous = previous;
    if (previous >= 0) {
        tags_[static_cast<size_t>(previous)].next = next;
        return;
    }
    tags_[static_cast<size_t>(run.count)].head = next;
    if (next < 0) lengths_.erase(run.count);
}

void FreePages::take_run(PageRun run) {
    KD_CHECK(run.first >= 0 && run.count > 0 && run.first + run.count <= total_,
             "pages {} to {} of {}", run.first, run.first + run.count, total_);
    const PageRun whole = run_of(run.first);
    const int32_t before = run.first - whole.first;
    const int32_t behind = whole.count - before - run.count;
    KD_CHECK(behind >= 0, "pages {} to {} are not all free", run.first, run.first + run.count);
    unlink(whole);
    if (before > 0) link({.first = whole.first, .count = before});
    if (behind > 0) link({.first = run.first + run.count, .count = behind});
    std::fill_n(free_.begin() + run.first, run.count, false);
    count_ -= run.count;
}

void FreePages::take_front(int32_t first, int32_t count, std::vector<int32_t>& out) {
    take_run({.first = first, .count = count});
    append_run({.first = first, .count = count}, out);
}

bool FreePages::take(int32_t count, int32_t last, std::vector<int32_t>& out) {
    KD_CHECK(count >= 0, "count {}", count);
    if (count > count_) return false;
    if (placement_ == Placement::unsorted) {
        for (int32_t i = 0; i < count; ++i) {
            take_front(queue_[queue_head_], 1, out);
            queue_head_ = (queue_head_ + 1) % queue_.size();
        }
        return true;
    }
    const int32_t behind = last + 1;
    if (placement_ == Placement::best_fit && count > 0 && last >= 0 && behind < total_ &&
        first_.contains(behind)) {
        const int32_t here = std::min(count, tags_[static_cast<size_t>(behind)].length);
        take_front(behind, here, out);
        count -= here;
    }
    while (count > 0) {
        int32_t first = -1;
        if (placement_ == Placement::sorted) {
            first = first_.at_or_after(0);
        } else {
            const int32_t fitting = lengths_.at_or_after(count);
            first = tags_[static_cast<size_t>(fitting >= 0 ? fitting : lengths_.last())].head;
        }
        const int32_t here = std::min(count, tags_[static_cast<size_t>(first)].length);
        take_front(first, here, out);
        count -= here;
    }
    return true;
}

void FreePages::give_run(PageRun run) {
    for (int32_t page = run.first; page < run.first + run.count; ++page) {
        KD_CHECK(!free_[static_cast<size_t>(page)], "page {} is free already", page);
        free_[static_cast<size_t>(page)] = true;
    }
    count_ += run.count;
    const int32_t end = run.first + run.count;
    if (end < total_ && free_[static_cast<size_t>(end)]) {
        const PageRun right = {.first = end, .count = tags_[static_cast<size_t>(end)].length};
        unlink(right);
        run.count += right.count;
    }
    if (run.first > 0 && free_[static_cast<size_t>(run.first - 1)]) {
        const int32_t count = tags_[static_cast<size_t>(run.first - 1)].length;
        const PageRun left = {.first = run.first - count, .count = count};
        unlink(left);
        run = {.first = left.first, .count = left.count + run.count};
    }
    link(run);
}

void FreePages::give(std::span<const int32_t> pages) {
    if (placement_ == Placement::unsorted) {
        for (size_t i = 0; i < pages.size(); ++i) {
            queue_[(queue_head_ + static_cast<size_t>(count_) + i) % queue_.size()] = pages[i];
        }
    }
    for (size_t i = 0; i < pages.size();) {
        size_t end = i + 1;
        while (end < pages.size() && pages[end] == pages[end - 1] + 1) ++end;
        KD_CHECK(pages[i] >= 0 && pages[end - 1] < total_, "pages {} to {} of {}", pages[i],
                 pages[end - 1], total_);
        give_run({.first = pages[i], .count = static_cast<int32_t>(end - i)});
        i = end;
    }
}

}  // namespace kd
