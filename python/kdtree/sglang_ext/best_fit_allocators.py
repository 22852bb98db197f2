"""SGLang's two plain allocators with kdt_pool behind them. Imports torch and SGLang: only where the
allocator is made.

What SGLang's methods do with pages stays theirs: they turn free_pages into slots, keep frees in
groups and park them. These classes put the pages of each call, and no others, into free_pages.

Freed ids lie on the device, and reading them waits for it. So they stay parked, as need_sort parks
them, until the pool is short: then all of them come back at once, at the same call on every rank.
"""

from __future__ import annotations

import torch
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator

from kdtree._library import KernelError
from kdtree.kernels import KvPagePool, PoolStats


class _BestFit:
    is_kdtree_best_fit = True

    def clear(self):
        super().clear()
        pages = len(self.free_pages)
        self.free_pages = self.free_pages[:0]
        self._pool = KvPagePool(pages + 1, reserved=1)  # page 0 takes what padding writes
        self._pool_free = pages
        self._rows: list[int | None] | None = None  # of the requests of the running call
        self._tokens: list[int] | None = None
        self._ends: list[int] = []  # last page that each request of the last call got, -1: none
        self._last_page: dict[int, int] = {}  # by row; a row's next owner overwrites it
        self.waits = 0  # times that parked pages were read from the device
        self.misplaced = 0  # calls whose last pages were free again, so that all counted as new

    def expect(self, rows: list[int | None] | None, tokens: list[int] | None) -> None:
        """For whom the next call allocates: a row (None: a new request) and tokens for each. None:
        nobody knows."""
        self._rows, self._tokens = rows, tokens

    def assign_rows(self, rows: list[int | None]) -> None:
        """The rows of the requests of the last call; those that were new have one by now."""
        if len(rows) != len(self._ends):  # they were not told apart
            return
        for row, end in zip(rows, self._ends):
            if row is not None and end >= 0:
                self._last_page[row] = end

    def available_size(self):
        return (self._pool_free + self._parked_pages()) * self.page_size

    def merge_and_sort_free(self):
        """SGLang's methods call it when free_pages looks short, as it always does here."""

    def pool_stats(self) -> PoolStats:
        """Of the free pages, those that are parked not included."""
        return self._pool.stats()

    def _parked_pages(self) -> int:
        released = 0 if self.release_pages is None else len(self.release_pages)
        return released + getattr(self, "num_staged_pages", 0)

    def _take_back(self) -> None:
        parked = list(getattr(self, "staged_pages", []))
        if self.release_pages is not None:
            parked.append(self.release_pages)
            self.release_pages = self.release_pages[:0]
        if hasattr(self, "staged_pages"):
            self.staged_pages, self.num_staged_pages = [], 0
        pages = torch.cat(parked).to("cpu", torch.int32) if parked else torch.empty(0)
        if len(pages) > 0:
            self.waits += 1
            self._pool.free(pages)
            self._pool_free += len(pages)

    def _take(self, counts: list[int]) -> bool:
        """Puts `counts` pages for each request, one after the other, into free_pages. False: there
        are not enough, and nothing changed."""
        rows = self._rows
        if rows is not None and len(rows) != len(counts):  # a call that was not announced
            rows = None
        if sum(counts) > self._pool_free:
            self._take_back()
        extended = self._extend(counts, rows)
        if extended is None:
            return False
        pages, offsets = extended
        self._pool_free -= len(pages)
        self._ends = [pages[end - 1] if end > begin else -1
                      for begin, end in zip(offsets, offsets[1:])]
        if rows is not None:
            self.assign_rows(rows)
        if len(pages) > 0:
            # Pageable memory: staged before this returns, and nothing waits for the device.
            taken = torch.frombuffer(pages, dtype=torch.int32)
            self.free_pages = taken.to(self.device, non_blocking=True).to(torch.int64)
        return True

    def _extend(self, counts: list[int], rows: list[int | None] | None):
        if rows is None:
            return self._pool.extend_flat(counts)
        lasts = [-1 if row is None else self._last_page.get(row, -1) for row in rows]
        try:
            return self._pool.extend_flat(counts, lasts)
        except KernelError:
            # A prompt that was in the tree already: its own last page was given back for the
            # tree's. The pool has changed nothing.
            self.misplaced += 1
            return self._pool.extend_flat(counts)


class BestFitTokenAllocator(_BestFit, TokenToKVPoolAllocator):
    def alloc(self, need_size: int):
        tokens = self._tokens
        known = tokens is not None and sum(tokens) == need_size
        if not self._take(tokens if known else [need_size]):
            return None
        return super().alloc(need_size)


class BestFitPagedAllocator(_BestFit, PagedTokenToKVPoolAllocator):
    def alloc(self, need_size: int):
        if not self._take([need_size // self.page_size]):
            return None
        return super().alloc(need_size)

    def alloc_extend(self, prefix_lens, prefix_lens_cpu, seq_lens, seq_lens_cpu, last_loc,
                     extend_num_tokens, num_new_pages=None):
        size = self.page_size
        pages = (seq_lens_cpu + size - 1) // size - (prefix_lens_cpu + size - 1) // size
        counts = pages.tolist()
        if not self._take(counts):
            return None
        return super().alloc_extend(prefix_lens, prefix_lens_cpu, seq_lens, seq_lens_cpu, last_loc,
                                    extend_num_tokens, sum(counts))

    def alloc_decode(self, seq_lens, seq_lens_cpu, last_loc):
        # The new token is the first of its page.
        if not self._take((seq_lens_cpu % self.page_size == 1).int().tolist()):
            return None
        return super().alloc_decode(seq_lens, seq_lens_cpu, last_loc)


def best_fit_of(allocator):
    """An empty allocator like `allocator`, which is fresh; any other than SGLang's two plain ones
    comes back as it is."""
    if type(allocator) is TokenToKVPoolAllocator:
        ours, sizes = BestFitTokenAllocator, (allocator.size,)
    elif type(allocator) is PagedTokenToKVPoolAllocator:
        ours, sizes = BestFitPagedAllocator, (allocator.size, allocator.page_size)
    else:
        return allocator
    return ours(*sizes, dtype=allocator.dtype, device=allocator.device,
                kvcache=allocator.get_kvcache(), need_sort=True)
