"""KDTREE_DEFRAG_EVICT: the prefix tree gives back a share of itself at once.

SGLang evicts what an allocation lacks and no token more, so with a full pool the free list is
always a handful of crumbs that no order makes contiguous. Where something has to go anyway, this
lets at least the given share of what may be evicted go with it.
"""

from __future__ import annotations

from kdtree.sglang_ext import contract
from kdtree.sglang_ext.allocators import evictable_tokens, is_plain
from kdtree.sglang_ext.config import DefragConfig
from kdtree.sglang_ext.contract_types import Touched
from kdtree.sglang_ext.hooks import hook

SINCE = "0.5.14"

_FUNCTION = "sglang.srt.mem_cache.common:evict_from_tree_cache"
_METHOD = "sglang.srt.mem_cache.allocator.base:BaseTokenToKVPoolAllocator.evict_to_free_tokens"
# From here on the function calls the method, and so does the check before a decode step.
_METHOD_SINCE = "0.5.21"

CONTRACT = (
    Touched(_FUNCTION, {"*": ("tree_cache", "num_tokens")}),
    Touched(_METHOD, {"0.5.23": ("self", "tree_cache", "num_tokens")}),
)

_share = 0.0


def install(config: DefragConfig) -> None:
    global _share
    _share = config.evict
    if config.evict == 0.0:
        return
    version = contract.installed_version()
    if contract.release(version) >= contract.release(_METHOD_SINCE):
        hook(_METHOD.replace(":", "."), _method, "around")
    else:
        hook(_FUNCTION.replace(":", "."), _function, "around")


def tokens_to_free(needed: int, available: int, evictable: int, share: float) -> int:
    """What to ask for in place of `needed` tokens, so that at least `share` of the evictable ones
    go if any has to. SGLang evicts the difference to `available`."""
    shortage = needed - available
    if shortage <= 0:
        return needed
    return needed + max(0, min(int(share * evictable), evictable) - shortage)


def _raised(allocator, tree_cache, num_tokens: int) -> int:
    if tree_cache is None or not is_plain(allocator):
        return num_tokens
    return tokens_to_free(num_tokens, allocator.available_size(),
                          evictable_tokens(tree_cache), _share)


def _function(original, tree_cache, num_tokens):
    allocator = getattr(tree_cache, "token_to_kv_pool_allocator", None)
    return original(tree_cache, _raised(allocator, tree_cache, num_tokens))


def _method(original, allocator, tree_cache, num_tokens):
    return original(allocator, tree_cache, _raised(allocator, tree_cache, num_tokens))
