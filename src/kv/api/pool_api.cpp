// kdt_pool_*: everything is checked first, since FreePages aborts on what a host may get wrong;
// then nothing can fail any more.
#include <algorithm>
#include <memory>
#include <new>
#include <numeric>
#include <span>
#include <vector>

#include "base/check.h"
#include "kdtree/kernels.h"
#include "kernels/api/api_status.h"
#include "kv/free_pages.h"

struct kdt_pool {
    kdt_pool(int32_t pages, kd::Placement place)
        : free(pages, place), placement(place), taken(static_cast<size_t>(pages), false) {}

    struct Share {
        int32_t request;
        int32_t rest;  // pages that it is still to get
    };

    kd::FreePages free;
    kd::Placement placement;
    int32_t reserved = 0;
    // [pages] handed out: neither free nor reserved. kdt_pool_free() unmarks while it checks, so it
    // meets a page that stands twice in one call.
    std::vector<bool> taken;
    std::vector<int32_t> scratch;
    std::vector<Share> shares;
};

namespace kd::api {

namespace {

constexpr int32_t kMostPages = 1 << 30;

Placement placement_of(int32_t placement) {
    if (placement == KDT_POOL_UNSORTED) return Placement::unsorted;
    return placement == KDT_POOL_SORTED ? Placement::sorted : Placement::best_fit;
}

bool is_taken(const kdt_pool& pool, int32_t page) {
    return page >= 0 && page < pool.free.total() && pool.taken[static_cast<size_t>(page)];
}

void check_last(Checks& checks, const kdt_pool& pool, int32_t last) {
    if (last == -1 || is_taken(pool, last)) return;
    checks.require(false, "last is page %d, must be -1 or a page that is handed out (0..%d)", last,
                   pool.free.total() - 1);
}

void check_short(Checks& checks, const kdt_pool& pool, int64_t count) {
    if (!checks.ok() || count <= pool.free.count()) return;
    checks.add(fail(KDT_SHORT, "%lld pages asked for, %d are free", static_cast<long long>(count),
                    pool.free.count()));
}

/// There are enough free pages, and `scratch` has room.
void take(kdt_pool& pool, int32_t count, int32_t last, int32_t* pages) {
    pool.scratch.clear();
    const bool enough = pool.free.take(count, last, pool.scratch);
    KD_CHECK(enough, "{} pages asked for, {} are free", count, pool.free.count());
    for (size_t i = 0; i < pool.scratch.size(); ++i) {
        pool.taken[static_cast<size_t>(pool.scratch[i])] = true;
        pages[i] = pool.scratch[i];
    }
}

/// What is free directly behind the last page, at most `count`; returns how many.
int32_t take_behind(kdt_pool& pool, int32_t count, int32_t last, int32_t* pages) {
    const int32_t behind = last + 1;
    if (count == 0 || last < 0 || behind == pool.free.total() || !pool.free.is_free(behind)) {
        return 0;
    }
    const int32_t here = std::min(count, pool.free.run_of(behind).count);
    pool.free.take_run({.first = behind, .count = here});
    std::fill_n(pool.taken.begin() + behind, here, true);
    std::iota(pages, pages + here, behind);
    return here;
}

kdt_status extend(kdt_pool* pool, int32_t last, int32_t count, int32_t* pages) {
    Checks checks;
    checks.pointer("pool", pool, alignof(kdt_pool));
    if (!checks.ok()) return checks.status();
    check_last(checks, *pool, last);
    checks.range("count", count, 0, kMostPages);
    if (count > 0) checks.pointer("pages", pages, alignof(int32_t));
    check_short(checks, *pool, count);
    if (!checks.ok()) return checks.status();
    try {
        pool->scratch.reserve(static_cast<size_t>(count));
    } catch (const std::bad_alloc&) {
        return fail(KDT_SHORT, "no host memory for %d pages", count);
    }
    take(*pool, count, last, pages);
    return KDT_OK;
}

void check_batch(Checks& checks, const kdt_pool& pool, int32_t requests, const int32_t* counts,
                 const int32_t* lasts, int32_t* pages, int64_t capacity, int64_t* offsets) {
    checks.range("requests", requests, 0, INT32_MAX);
    checks.range("capacity", capacity, 0, INT64_MAX);
    checks.pointer("offsets", offsets, alignof(int64_t));
    if (requests > 0) checks.pointer("counts", counts, alignof(int32_t));
    if (lasts != nullptr) checks.pointer("lasts", lasts, alignof(int32_t));
    int64_t sum = 0;
    for (int32_t r = 0; checks.ok() && r < requests; ++r) {
        if (counts[r] < 0) {
            checks.require(false, "counts[%d] is %d, must not be negative", r, counts[r]);
        }
        if (lasts != nullptr && lasts[r] != -1 && !is_taken(pool, lasts[r])) {
            checks.require(false,
                           "lasts[%d] is page %d, must be -1 or a page that is handed out (0..%d)",
                           r, lasts[r], pool.free.total() - 1);
        }
        sum += counts[r];
    }
    checks.require(sum <= capacity, "capacity is %lld, %lld pages are asked for",
                   static_cast<long long>(capacity), static_cast<long long>(sum));
    if (sum > 0) checks.pointer("pages", pages, alignof(int32_t));
    check_short(checks, pool, sum);
}

/// As the header says: behind the last pages first, then the rest, the largest first.
void serve_batch(kdt_pool& pool, const int32_t* lasts, int32_t* pages, const int64_t* offsets) {
    if (pool.placement == Placement::best_fit) {
        for (kdt_pool::Share& share : pool.shares) {
            const int32_t last = lasts == nullptr ? -1 : lasts[share.request];
            share.rest -= take_behind(pool, share.rest, last, pages + offsets[share.request]);
        }
        // By request where equal: std::stable_sort allocates.
        std::sort(pool.shares.begin(), pool.shares.end(), [](const auto& a, const auto& b) {
            return a.rest != b.rest ? a.rest > b.rest : a.request < b.request;
        });
    }
    for (const kdt_pool::Share& share : pool.shares) {
        if (share.rest > 0)
            take(pool, share.rest, -1, pages + offsets[share.request + 1] - share.rest);
    }
}

/// The first page of a call that cannot be freed, and why. Those before it were unmarked: they are
/// marked again.
kdt_status refuse_free(kdt_pool& pool, const int32_t* pages, int64_t index) {
    const int32_t page = pages[index];
    const char* why = "stands twice";
    if (page < 0 || page >= pool.free.total()) {
        why = "is out of range";
    } else if (page < pool.reserved) {
        why = "is reserved";
    } else if (pool.free.is_free(page)) {
        why = "is free already";
    }
    for (int64_t i = 0; i < index; ++i) pool.taken[static_cast<size_t>(pages[i])] = true;
    return fail(KDT_INVALID, "pages[%lld] is page %d of %d, which %s",
                static_cast<long long>(index), page, pool.free.total(), why);
}

}  // namespace

}  // namespace kd::api

using namespace kd;
using namespace kd::api;

kdt_status kdt_pool_create(const kdt_pool_options* options, kdt_pool** pool) {
    Checks checks;
    checks.pointer("options", options, alignof(kdt_pool_options));
    checks.pointer("pool", pool, alignof(kdt_pool*));
    if (!checks.ok()) return checks.status();
    *pool = nullptr;
    checks.struct_bytes("kdt_pool_options", options->struct_bytes, sizeof *options);
    checks.range("pages", options->pages, 1, kMostPages);
    checks.range("placement", options->placement, KDT_POOL_UNSORTED, KDT_POOL_BEST_FIT);
    checks.range("reserved", options->reserved, 0, options->pages);
    if (!checks.ok()) return checks.status();
    try {
        auto created = std::make_unique<kdt_pool>(options->pages, placement_of(options->placement));
        created->reserved = options->reserved;
        // The lowest pages with every placement, since all are free.
        const bool enough = created->free.take(options->reserved, -1, created->scratch);
        KD_CHECK(
            enough && (options->reserved == 0 || created->scratch.back() == options->reserved - 1),
            "{} leading pages of {}", options->reserved, options->pages);
        *pool = created.release();
    } catch (const std::bad_alloc&) {
        return fail(KDT_SHORT, "no host memory for a pool of %d pages", options->pages);
    }
    return KDT_OK;
}

void kdt_pool_destroy(kdt_pool* pool) {
    delete pool;
}

kdt_status kdt_pool_allocate(kdt_pool* pool, int32_t count, int32_t* pages) {
    return extend(pool, -1, count, pages);
}

kdt_status kdt_pool_extend(kdt_pool* pool, int32_t last, int32_t count, int32_t* pages) {
    return extend(pool, last, count, pages);
}

kdt_status kdt_pool_extend_batch(kdt_pool* pool, int32_t requests, const int32_t* counts,
                                 const int32_t* lasts, int32_t* pages, int64_t capacity,
                                 int64_t* offsets) {
    Checks checks;
    checks.pointer("pool", pool, alignof(kdt_pool));
    if (!checks.ok()) return checks.status();
    check_batch(checks, *pool, requests, counts, lasts, pages, capacity, offsets);
    if (!checks.ok()) return checks.status();
    try {
        const int32_t most = requests > 0 ? *std::max_element(counts, counts + requests) : 0;
        pool->scratch.reserve(static_cast<size_t>(most));
        pool->shares.resize(static_cast<size_t>(requests));
    } catch (const std::bad_alloc&) {
        return fail(KDT_SHORT, "no host memory for %d requests", requests);
    }
    offsets[0] = 0;
    for (int32_t r = 0; r < requests; ++r) {
        pool->shares[static_cast<size_t>(r)] = {.request = r, .rest = counts[r]};
        offsets[r + 1] = offsets[r] + counts[r];
    }
    serve_batch(*pool, lasts, pages, offsets);
    return KDT_OK;
}

kdt_status kdt_pool_free(kdt_pool* pool, const int32_t* pages, int64_t count) {
    Checks checks;
    checks.pointer("pool", pool, alignof(kdt_pool));
    if (!checks.ok()) return checks.status();
    checks.range("count", count, 0, pool->free.total());
    if (count == 0) return checks.status();
    checks.pointer("pages", pages, alignof(int32_t));
    if (!checks.ok()) return checks.status();
    for (int64_t i = 0; i < count; ++i) {
        if (!is_taken(*pool, pages[i])) return refuse_free(*pool, pages, i);
        pool->taken[static_cast<size_t>(pages[i])] = false;
    }
    pool->free.give({pages, static_cast<size_t>(count)});
    return KDT_OK;
}

kdt_status kdt_pool_read_stats(const kdt_pool* pool, kdt_pool_stats* stats) {
    Checks checks;
    checks.pointer("pool", pool, alignof(kdt_pool));
    checks.pointer("stats", stats, alignof(kdt_pool_stats));
    if (!checks.ok()) return checks.status();
    checks.struct_bytes("kdt_pool_stats", stats->struct_bytes, sizeof *stats);
    if (!checks.ok()) return checks.status();
    stats->pages = pool->free.total();
    stats->reserved = pool->reserved;
    stats->free_pages = pool->free.count();
    stats->free_runs = pool->free.runs();
    stats->longest_free_run = pool->free.longest();
    return KDT_OK;
}
