#include "kv/kv_pool.h"

#include <algorithm>

#include "base/check.h"
#include "base/error.h"

namespace kd {

namespace {

const KvPoolOptions& validated(const KvPoolOptions& options) {
    constexpr int32_t kPageSizes[] = {1, 16, 32, 64};
    if (std::ranges::find(kPageSizes, options.page_size) == std::end(kPageSizes)) {
        KD_THROW(invalid_argument, "page size {} is none of 1, 16, 32, 64", options.page_size);
    }
    if (options.slots < options.page_size) {
        KD_THROW(invalid_argument, "a pool of {} tokens does not hold a page of {}", options.slots,
                 options.page_size);
    }
    if (options.extent < 1 || options.extent > options.slots) {
        KD_THROW(invalid_argument, "extent {} is outside 1..{}", options.extent, options.slots);
    }
    if (!(options.evict_batch >= 0 && options.evict_batch <= 1)) {
        KD_THROW(invalid_argument, "evict batch {} is outside 0..1", options.evict_batch);
    }
    return options;
}

}  // namespace

KvPool::KvPool(const KvPoolOptions& options)
    : options_(validated(options)),
      free_(options.slots / options.page_size, options.placement),
      index_(options.page_size) {}

KvPool::~KvPool() {
    KD_CHECK(tables_.empty(), "{} tables outlive their pool", tables_.size());
}

Fragmentation KvPool::fragmentation() const {
    Fragmentation sum;
    for (const PageTable* table : tables_) sum += table->fragmentation();
    return sum;
}

/// Own pages beyond what the table needs.
int32_t KvPool::unneeded_pages(const PageTable& table) const {
    if (table.held()) return 0;
    const int32_t needed = std::max(pages_of(table.needed_), table.shared_pages_);
    return std::max(static_cast<int32_t>(table.pages_.size()) - needed, 0);
}

int32_t KvPool::available() const {
    return available_pages(nullptr) * page_size();
}

int32_t KvPool::reach(const PageTable& table) const {
    return (static_cast<int32_t>(table.pages_.size()) + available_pages(&table)) * page_size();
}

/// But for what one of the tables has itself.
int32_t KvPool::available_pages(const PageTable* but) const {
    int32_t pages = free_.count() + index_.evictable();
    for (const PageTable* table : tables_) pages += table == but ? 0 : unneeded_pages(*table);
    return pages;
}

void KvPool::list(PageTable& table) {
    table.place_ = tables_.size();
    tables_.push_back(&table);
}

void KvPool::unlist(PageTable& table) {
    tables_[table.place_] = tables_.back();
    tables_[table.place_]->place_ = table.place_;
    tables_.pop_back();
}

bool KvPool::extend(PageTable& table, int32_t need, int32_t want) {
    if (need > table.tokens()) {
        const auto have = static_cast<int32_t>(table.pages_.size());
        const int32_t need_pages = pages_of(need) - have;
        const int32_t most = std::max(want, need) + options_.extent - 1;
        const int32_t want_pages = pages_of(most - most % options_.extent) - have;
        if (free_.count() < need_pages && need > reach(table)) return false;
        // A wish that cannot be had evicts nothing.
        const bool granted = want_pages <= free_.count() + index_.evictable();
        const int32_t asked = granted ? want_pages : need_pages;
        if (free_.count() < asked) evict(asked - free_.count());
        if (free_.count() < need_pages) trim_others(table, need_pages - free_.count());
        const int32_t last = have > 0 ? table.pages_.back() : -1;
        scratch_.clear();
        const bool taken = free_.take(asked, last, scratch_);
        KD_CHECK(taken, "{} free pages of the {} that were within reach", free_.count(), asked);
        for (const int32_t page : scratch_) table.push(page);
    }
    table.need(need);
    return true;
}

void KvPool::evict(int32_t shortage) {
    const auto batch = static_cast<int32_t>(options_.evict_batch * index_.evictable());
    scratch_.clear();
    index_.evict(std::max(shortage, batch), scratch_);
    free_.give(scratch_);
    totals_.evicted += std::ssize(scratch_) * page_size();
}

void KvPool::trim_others(const PageTable& table, int32_t shortage) {
    // From the back: a table that is left without pages leaves the list, and the last one takes its
    // place.
    for (size_t i = tables_.size(); i-- > 0 && shortage > 0;) {
        PageTable& each = *tables_[i];
        if (&each == &table) continue;
        const int32_t pages = std::min(unneeded_pages(each), shortage);
        truncate(each, static_cast<int32_t>(each.pages_.size()) - pages);
        totals_.trimmed += int64_t{pages} * page_size();
        shortage -= pages;
    }
}

/// Gives own pages back from the end.
void KvPool::truncate(PageTable& table, int32_t pages) {
    KD_CHECK(pages >= table.shared_pages_, "{} pages, {} of them shared", pages,
             table.shared_pages_);
    free_.give(std::span(table.pages_).subspan(static_cast<size_t>(pages)));
    while (static_cast<int32_t>(table.pages_.size()) > pages) table.pop();
}

void KvPool::clear(PageTable& table) {
    KD_CHECK(!table.held(), "a held table is cleared");
    if (table.pages_.empty()) return;
    truncate(table, table.shared_pages_);
    while (!table.pages_.empty()) table.pop();
    table.shared_pages_ = 0;
    table.need(0);
    if (table.lease_ != PrefixIndex::kRoot) index_.unlock(table.lease_);
    table.lease_ = PrefixIndex::kRoot;
}

int32_t KvPool::cached_prefix(std::span<const int32_t> tokens) const {
    const PrefixIndex::Match match = index_.find(tokens);
    return match.pages * page_size() + match.next_tokens;
}

int32_t KvPool::locked_prefix(std::span<const int32_t> tokens) const {
    const PrefixIndex::Match match = index_.find(tokens);
    int32_t pages = match.pages;
    int32_t in_node = match.in_node;
    for (PrefixIndex::NodeId id = match.node; id != PrefixIndex::kRoot;) {
        if (index_.node(id).locks > 0) break;  // so are all before it
        pages -= in_node;
        id = index_.node(id).parent;
        in_node = static_cast<int32_t>(index_.node(id).pages.size());
    }
    return pages * page_size();
}

int32_t KvPool::reuse(PageTable& table, std::span<const int32_t> tokens, SlotCopies& copies) {
    KD_CHECK(table.pages_.empty(), "a table of {} pages looks for a prefix", table.pages_.size());
    totals_.asked += std::ssize(tokens);
    const PrefixIndex::Match match = index_.find(tokens);
    if (match.pages > 0) {
        table.lease_ = index_.lock(match);
        scratch_.clear();
        index_.append_pages(table.lease_, scratch_);
        for (const int32_t page : scratch_) table.push(page);
        table.shared_pages_ = match.pages;
    }
    int32_t reused = match.pages * page_size();
    table.need(reused);
    if (match.next_tokens > 0) {
        // Its rows are read before anything else is written; until then they must not be evicted.
        index_.lock(match.next_node);
        const int32_t with_copies = reused + match.next_tokens;
        if (extend(table, with_copies, with_copies)) {
            for (int32_t i = 0; i < match.next_tokens; ++i) {
                copies.from.push_back(match.next_page * page_size() + i);
                copies.to.push_back(table.slots_[static_cast<size_t>(reused + i)]);
            }
            reused = with_copies;
        }
        index_.unlock(match.next_node);
    }
    totals_.reused += reused;
    return reused;
}

void KvPool::publish(PageTable& table, std::span<const int32_t> tokens) {
    if (!options_.prefix_index) return;
    KD_CHECK(!table.held(), "a held table is published");
    const auto full = tokens.size() / static_cast<size_t>(page_size());
    KD_CHECK(full <= table.pages_.size(), "{} tokens in a table of {} pages", tokens.size(),
             table.pages_.size());
    const auto shared = static_cast<size_t>(table.shared_pages_);
    if (full <= shared) return;
    // Let go first: what only this table reads may grow in place.
    if (table.lease_ != PrefixIndex::kRoot) index_.unlock(table.lease_);
    const PrefixIndex::Inserted inserted = index_.insert(
        tokens.first(full * static_cast<size_t>(page_size())), std::span(table.pages_).first(full));
    const auto known = static_cast<size_t>(inserted.known_pages);
    if (known > shared) {
        // Somebody else computed them too: one copy is enough.
        free_.give(std::span(table.pages_).subspan(shared, known - shared));
        scratch_.clear();
        index_.append_pages(inserted.node, scratch_);
        for (size_t i = shared; i < known; ++i) table.set_page(i, scratch_[i]);
    }
    table.lease_ = inserted.node;
    table.shared_pages_ = static_cast<int32_t>(full);
}

void KvPool::forget(std::span<const int32_t> tokens) {
    scratch_.clear();
    index_.forget(tokens, scratch_);
    free_.give(scratch_);
    totals_.evicted += std::ssize(scratch_) * page_size();
}

void KvPool::drop_cached() {
    scratch_.clear();
    index_.evict(index_.pages(), scratch_);
    free_.give(scratch_);
    totals_.evicted += std::ssize(scratch_) * page_size();
}

void KvPool::rename(std::span<const int32_t> from_pages, std::span<const int32_t> to_pages) {
    KD_CHECK(from_pages.size() == to_pages.size(), "{} pages to {} places", from_pages.size(),
             to_pages.size());
    if (from_pages.empty()) return;
    KD_CHECK(options_.placement != Placement::unsorted, "an unsorted pool does not relocate");
    renamed_.resize(static_cast<size_t>(free_.total()), -1);
    for (size_t i = 0; i < from_pages.size(); ++i) {
        KD_CHECK(!free_.is_free(from_pages[i]), "page {} is free", from_pages[i]);
        free_.take_run({.first = to_pages[i], .count = 1});
        renamed_[static_cast<size_t>(from_pages[i])] = to_pages[i];
    }
    for (PageTable* table : tables_) {
        for (size_t i = 0; i < table->pages_.size(); ++i) {
            const int32_t to = renamed_[static_cast<size_t>(table->pages_[i])];
            if (to < 0) continue;
            KD_CHECK(!table->held(), "page {} of a held table moves", table->pages_[i]);
            table->set_page(i, to);
        }
    }
    for (PrefixIndex::NodeId id = 0; id < index_.node_count(); ++id) {
        const std::vector<int32_t>& pages = index_.node(id).pages;
        for (size_t i = 0; i < pages.size(); ++i) {
            const int32_t to = renamed_[static_cast<size_t>(pages[i])];
            if (to >= 0) index_.set_page(id, i, to);
        }
    }
    for (const int32_t page : from_pages) renamed_[static_cast<size_t>(page)] = -1;
    free_.give(from_pages);
    totals_.moved += std::ssize(from_pages) * page_size();
}

void KvPool::check_books() const {
    index_.check();
    std::vector<int32_t> owners(static_cast<size_t>(free_.total()), 0);
    const auto own = [&](int32_t page) { owners[static_cast<size_t>(page)] += 1; };
    int32_t free = 0, runs = 0, end = -1;
    for (PageRun run = free_.run_at_or_after(0); run.count > 0;
         run = free_.run_at_or_after(run.first + run.count)) {
        KD_CHECK(run.first > end, "free runs touch at page {}", run.first);
        end = run.first + run.count;
        for (int32_t page = run.first; page < end; ++page) {
            KD_CHECK(free_.is_free(page), "page {} of a free run is not free", page);
            own(page);
        }
        free += run.count;
        runs += 1;
    }
    KD_CHECK(free == free_.count() && runs == free_.runs(),
             "{} free pages in {} runs, counted {} in {}", free_.count(), free_.runs(), free, runs);
    int32_t used = 0;
    std::vector<int32_t> locks(static_cast<size_t>(index_.node_count()), 0);
    for (const PageTable* table : tables_) {
        const auto shared = static_cast<size_t>(table->shared_pages_);
        for (size_t i = shared; i < table->pages_.size(); ++i) own(table->pages_[i]);
        used += static_cast<int32_t>(table->pages_.size() - shared);
        std::vector<int32_t> path;
        for (PrefixIndex::NodeId id = table->lease_; id != PrefixIndex::kRoot;) {
            const PrefixIndex::Node& node = index_.node(id);
            locks[static_cast<size_t>(id)] += 1;
            path.insert(path.begin(), node.pages.begin(), node.pages.end());
            id = node.parent;
        }
        if (table->lease_ != PrefixIndex::kRoot) locks[PrefixIndex::kRoot] += 1;
        KD_CHECK(std::ranges::equal(path, std::span(table->pages_).first(shared)),
                 "{} shared pages are not those of the index", shared);
    }
    for (PrefixIndex::NodeId id = 0; id < index_.node_count(); ++id) {
        for (const int32_t page : index_.node(id).pages) own(page);
        KD_CHECK(index_.node(id).locks == locks[static_cast<size_t>(id)],
                 "node {} has {} locks, {} tables read through it", id, index_.node(id).locks,
                 locks[static_cast<size_t>(id)]);
    }
    for (size_t page = 0; page < owners.size(); ++page) {
        KD_CHECK(owners[page] == 1, "page {} has {} owners", page, owners[page]);
    }
    KD_CHECK(free + used + index_.pages() == free_.total(), "{} free + {} used + {} cached != {}",
             free, used, index_.pages(), free_.total());
}

}  // namespace kd
