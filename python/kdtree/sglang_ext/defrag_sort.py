"""KDTREE_DEFRAG_SORT: SGLang's free lists are sorted before they are used again.

SGLang can do it (need_sort), but asks for it only where prefill and decode run on different
machines. Freed ids then wait apart, and are merged and sorted when the list runs short.
"""

from __future__ import annotations

from kdtree.sglang_ext.config import DefragConfig
from kdtree.sglang_ext.contract_types import Touched
from kdtree.sglang_ext.hooks import apply_hooks, hook

SINCE = "0.5.14"

_INIT = ("self", "size", "page_size", "dtype", "device", "kvcache", "need_sort")
_NEED_SORT = _INIT.index("need_sort")
_ALLOCATOR = "sglang.srt.mem_cache.allocator.base:BaseTokenToKVPoolAllocator"

CONTRACT = (
    Touched(f"{_ALLOCATOR}.__init__", {"*": _INIT}),
    Touched(f"{_ALLOCATOR}.merge_and_sort_free", {"*": ("self",)}),
    Touched(f"{_ALLOCATOR}.available_size", {"*": ("self",)}),
    Touched("sglang.srt.mem_cache.allocator.token:TokenToKVPoolAllocator.__init__",
            {"*": ("self", "size", "dtype", "device", "kvcache", "need_sort")}),
    Touched("sglang.srt.mem_cache.allocator.token:TokenToKVPoolAllocator.alloc",
            {"*": ("self", "need_size")}),
    Touched("sglang.srt.mem_cache.allocator.token:TokenToKVPoolAllocator.free",
            {"*": ("self", "free_index")}),
)


def install(config: DefragConfig) -> None:
    if config.sort:
        hook(_ALLOCATOR.replace(":", ".") + ".__init__", _force_need_sort, "before")


def install_defrag_sort() -> None:
    """The same by hand, for who builds SGLang's objects without its plugin loader: at once, for
    every allocator that is made from now on. A second call does nothing."""
    install(DefragConfig(sort=True))
    apply_hooks()
    prove()


def _force_need_sort(*args, **kwargs):
    if len(args) > _NEED_SORT:
        args = (*args[:_NEED_SORT], True, *args[_NEED_SORT + 1:])
    else:
        kwargs["need_sort"] = True
    return args, kwargs


def prove() -> None:
    """Makes a small allocator as SGLang would and looks at the order in which it hands out again
    what came back unordered. RuntimeError: the hook does not act in this process."""
    import torch
    from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator

    allocator = TokenToKVPoolAllocator(4, torch.float32, "cpu", None, need_sort=False)
    taken = allocator.alloc(4)
    allocator.free(taken[[2, 0, 3, 1]])
    again = allocator.alloc(4)
    if again is None or again.tolist() != sorted(taken.tolist()):
        raise RuntimeError("the sort hook does not act: freed slots come back unsorted")


def unsorted(allocators: list) -> list[str]:
    """The classes of those that keep a list of pages and do not sort it. A composite allocator
    leaves its own flag unused and False, so the ones inside are what counts."""
    return [type(each).__name__ for each in allocators
            if getattr(each, "free_pages", None) is not None and not each.need_sort]
