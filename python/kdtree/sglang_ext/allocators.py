"""What the plugin has to know about SGLang's allocators and requests in general."""

from __future__ import annotations

from kdtree.sglang_ext.contract_types import Touched

CONTRACT = (
    *(Touched(f"sglang.srt.mem_cache.base_prefix_cache:BasePrefixCache.{method}", {"*": ("self",)})
      for method in ("supports_mamba", "evictable_size", "full_evictable_size")),
)


def within(allocator) -> list:
    """An allocator and those that it is made of, as SWA's two."""
    from sglang.srt.mem_cache.allocator.base import BaseTokenToKVPoolAllocator

    seen: list = []
    waiting = [allocator]
    while waiting:
        each = waiting.pop(0)
        if isinstance(each, BaseTokenToKVPoolAllocator) and not any(each is one for one in seen):
            seen.append(each)
            waiting.extend(vars(each).values())
    return seen


def evictable_tokens(tree_cache) -> int:
    """What the prefix tree could give back of the token pool. The trees that keep recurrent states
    too raise at evictable_size(), the others are 0 at full_evictable_size()."""
    if tree_cache.supports_mamba():
        return tree_cache.full_evictable_size()
    return tree_cache.evictable_size()


def is_best_fit(allocator) -> bool:
    return getattr(type(allocator), "is_kdtree_best_fit", False)


def is_plain(allocator) -> bool:
    """Whether it is one of SGLang's two allocators of a single list of pages. The others divide
    their space in ways that batched eviction and extents would have to know."""
    from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
    from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator

    return (type(allocator) in (TokenToKVPoolAllocator, PagedTokenToKVPoolAllocator)
            or is_best_fit(allocator))


def row_of(request) -> int | None:
    """A request's row of req_to_token; None: it has none. By 0.5.23 the row moved to request.kv."""
    holder = request if hasattr(request, "req_pool_idx") else request.kv
    return holder.req_pool_idx
