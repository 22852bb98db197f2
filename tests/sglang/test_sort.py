"""The sort hook on every allocator class of the wheel (traps 1 to 5 of docs/sglang.md)."""

import types
import unittest

from sglang_support import RELEASE, needs_sglang, since

needs_sglang()

import torch  # noqa: E402
from sglang.srt.mem_cache.allocator import swa  # noqa: E402
from sglang.srt.mem_cache.allocator.hisparse import HiSparseTokenToKVPoolAllocator  # noqa: E402
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator  # noqa: E402
from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator  # noqa: E402
from sglang.srt.plugins.hook_registry import HookRegistry  # noqa: E402

from kdtree.sglang_ext import (  # noqa: E402
    allocators,
    defrag_sort,
    hooks,
    install_defrag_sort,
    report,
)
from kdtree.sglang_ext.config import DefragConfig  # noqa: E402

FORM = {"dtype": torch.bfloat16, "device": "cpu", "kvcache": None, "need_sort": False}


def made_before():
    return TokenToKVPoolAllocator(8, **FORM)


BEFORE = made_before()
with unittest.TestCase().assertRaisesRegex(RuntimeError, "does not act"):
    defrag_sort.prove()  # and it can fail
install_defrag_sort()
install_defrag_sort()


class Pool(swa.BaseSWAKVPool):
    """A KV pool as composite allocators look at it when they are made."""

    swa_req_ring_size = None  # of later versions: no ring, the window has pages

    def __init__(self):
        self.full_kv_pool = self.swa_kv_pool = types.SimpleNamespace(dtype=torch.bfloat16)

    def register_mapping(self, *_arguments):
        pass

    def __getattr__(self, name):
        return lambda *arguments, **keywords: 1


Pool.__abstractmethods__ = frozenset()


class Sort(unittest.TestCase):
    def check_sorts(self, allocator, page_size=1):
        """What comes back in any order goes out in order once the list has run short."""
        pages = allocator.available_size() // page_size
        taken = allocator.alloc(pages * page_size)
        order = torch.randperm(pages, generator=torch.Generator().manual_seed(1))
        for page in order.tolist():
            allocator.free(taken[page * page_size:(page + 1) * page_size])
        self.assertEqual(allocator.available_size(), pages * page_size)
        again = allocator.alloc(pages * page_size)
        self.assertEqual(again.tolist(), sorted(taken.tolist()))

    def test_token(self):
        self.check_sorts(TokenToKVPoolAllocator(100, **FORM))
        self.check_sorts(TokenToKVPoolAllocator(100, torch.bfloat16, "cpu", None, False))

    def test_paged(self):
        for page_size in (16, 64):
            self.check_sorts(PagedTokenToKVPoolAllocator(page_size * 20, page_size, **FORM),
                             page_size)

    def test_composite_allocators_leave_their_own_flag_and_sort_inside(self):
        """Trap 4."""
        form = {**FORM, "kvcache": Pool()}
        window = swa.SWATokenToKVPoolAllocator(64, 32, page_size=1, **form)
        sparse = HiSparseTokenToKVPoolAllocator(64, page_size=16, host_to_device_ratio=2, **form)
        for outer in (window, sparse):
            inner = allocators.within(outer)[1:]
            self.assertEqual(len(inner), 2, type(outer))
            self.assertFalse(outer.need_sort)
            self.assertTrue(all(each.need_sort for each in inner), type(outer))
            self.assertEqual(defrag_sort.unsorted([*inner]), [])
            self.assertFalse(allocators.is_plain(outer))

    @since("0.5.15")
    def test_pure_swa(self):
        outer = swa.PureSWATokenToKVPoolAllocator(64, page_size=1, **{**FORM, "kvcache": Pool()})
        inner, = allocators.within(outer)[1:]
        self.assertTrue(inner.need_sort)

    @since("0.5.20")
    def test_page_interleave(self):
        """It has lists of its own; the hook sets its flag through the same base class."""
        from sglang.srt.mem_cache.allocator.base import BaseTokenToKVPoolAllocator
        from sglang.srt.mem_cache.allocator.page_interleave import PageInterleavePoolAllocator

        made = PageInterleavePoolAllocator.__new__(PageInterleavePoolAllocator)
        BaseTokenToKVPoolAllocator.__init__(made, 64, 16, torch.bfloat16, "cpu", None, False)
        self.assertTrue(made.need_sort)

    def test_one_made_before_is_seen(self):
        self.assertEqual(defrag_sort.unsorted(allocators.within(BEFORE)),
                         ["TokenToKVPoolAllocator"])

    def test_a_server_with_it_does_not_start(self):
        scheduler = types.SimpleNamespace(token_to_kv_pool_allocator=BEFORE)
        with self.assertRaisesRegex(RuntimeError, "made without the sort hook"):
            report.started(scheduler, DefragConfig(sort=True))

    def test_a_failed_hook_is_not_silent(self):
        """Trap 2 and 3: another plugin's hook on the same function, applied before ours."""
        target = "sglang.srt.mem_cache.allocator.base.BaseTokenToKVPoolAllocator.get_kvcache"
        HookRegistry.register(target, lambda *arguments, **keywords: None)
        HookRegistry.apply_hooks()
        with self.assertRaisesRegex(RuntimeError, "hooked by another plugin before"):
            hooks.hook(target, self.check_sorts, "before")

    def test_free_groups_keep_working(self):
        """Trap 5: the group's fields changed their meaning, and are SGLang's alone."""
        allocator = TokenToKVPoolAllocator(32, **FORM)
        taken = allocator.alloc(32)
        allocator.free_group_begin()
        allocator.free(taken[16:])
        allocator.free(taken[:16])
        self.assertEqual(allocator.available_size(), 0)
        allocator.free_group_end()
        self.assertEqual(allocator.available_size(), 32)
        self.assertEqual(allocator.alloc(32).tolist(), list(range(1, 33)))

    def test_where_paged_allocators_park(self):
        """Trap 5: release_pages of a paged allocator is None from 0.5.20 on."""
        allocator = PagedTokenToKVPoolAllocator(64, 16, **FORM)
        self.assertEqual(allocator.release_pages is None, RELEASE >= (0, 5, 20))


if __name__ == "__main__":
    unittest.main()
