"""The hook around SGLang's alloc_for_spec_decode, which two switches share: extents change how much
a request gets, best fit where."""

from __future__ import annotations

from kdtree.sglang_ext import best_fit, extents
from kdtree.sglang_ext.allocators import row_of
from kdtree.sglang_ext.config import DefragConfig
from kdtree.sglang_ext.contract_types import Touched
from kdtree.sglang_ext.hooks import hook

SINCE = "0.5.16"  # before, every speculation sizes and writes its reserve by itself

_PARAMETERS = ("tree_cache", "req_to_token_pool", "reqs", "req_pool_indices", "cur_kv_lens",
               "cur_kv_lens_cpu", "nxt_kv_lens", "nxt_kv_lens_cpu", "num_needed_tokens", "batch")
_TARGET = "sglang.srt.mem_cache.allocation:alloc_for_spec_decode"

CONTRACT = (
    Touched(_TARGET, dict.fromkeys(("0.5.16", "0.5.17", "0.5.18", "0.5.23"), _PARAMETERS)),
)

_extent = 0


def install(config: DefragConfig) -> None:
    global _extent
    _extent = config.extent
    if config.extent > 0 or config.best_fit:
        hook(_TARGET.replace(":", "."), _alloc_for_spec_decode, "around")


def _alloc_for_spec_decode(original, tree_cache, req_to_token_pool, **step):
    step |= extents.grown(step, tree_cache, req_to_token_pool, _extent)
    tokens = (step["nxt_kv_lens_cpu"] - step["cur_kv_lens_cpu"]).tolist()
    return best_fit.around(
        lambda: original(tree_cache, req_to_token_pool, **step),
        tree_cache.token_to_kv_pool_allocator,
        [row_of(request) for request in step["reqs"]], tokens)
