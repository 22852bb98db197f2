"""KDTREE_DEFRAG_BESTFIT: pages come from kdt_pool, which places them by request.

SGLang's allocators hand out the head of a list. Here a request goes on behind its last page while
there is room, and what does not fit goes to the shortest free run that holds it
(include/kdtree/kernels.h). SGLang's calls do not say for whom they allocate, so hooks around its
three steps that know tell the allocator (expect()).
"""

from __future__ import annotations

from kdtree.sglang_ext.allocators import is_best_fit, row_of
from kdtree.sglang_ext.config import DefragConfig
from kdtree.sglang_ext.contract_types import Touched
from kdtree.sglang_ext.hooks import hook

SINCE = "0.5.16"  # before, nothing hands the requests of a speculative step to one function

_VERSIONS = ("0.5.16", "0.5.17", "0.5.18", "0.5.23")
_BUILDER = ("sglang.srt.mem_cache.kv_cache_configurator:"
            "KVCacheConfigurator._build_token_to_kv_pool_allocator")
_EXTEND = "sglang.srt.mem_cache.allocation:alloc_for_extend"
_DECODE = "sglang.srt.mem_cache.allocation:alloc_for_decode"
_TOKEN = "sglang.srt.mem_cache.allocator.token:TokenToKVPoolAllocator"
_PAGED = "sglang.srt.mem_cache.allocator.paged:PagedTokenToKVPoolAllocator"
_INIT = ("self", "size", "page_size", "dtype", "device", "kvcache", "need_sort")


def _rows(path: str, *parameters: str) -> Touched:
    return Touched(path, dict.fromkeys(_VERSIONS, parameters))


CONTRACT = (
    _rows(_BUILDER, "self", "sizes", "token_to_kv_pool", "is_dsv4_model", "req_to_token_pool",
          "token_to_kv_pool_allocator"),
    _rows(_EXTEND, "batch"),
    _rows(_DECODE, "batch", "token_per_req"),
    Touched(f"{_TOKEN}.__init__", {"*": (*_INIT[:2], *_INIT[3:])}),
    Touched(f"{_TOKEN}.clear", {"*": ("self",)}),
    Touched(f"{_TOKEN}.alloc", {"*": ("self", "need_size")}),
    Touched(f"{_PAGED}.__init__", {"*": _INIT}),
    Touched(f"{_PAGED}.clear", {"*": ("self",)}),
    Touched(f"{_PAGED}.alloc", {"*": ("self", "need_size")}),
    Touched(f"{_PAGED}.alloc_extend",
            {"*": ("self", "prefix_lens", "prefix_lens_cpu", "seq_lens", "seq_lens_cpu",
                   "last_loc", "extend_num_tokens", "num_new_pages")}),
    Touched(f"{_PAGED}.alloc_decode",
            {"*": ("self", "seq_lens", "seq_lens_cpu", "last_loc")}),
    Touched("sglang.srt.mem_cache.memory_pool:HybridReqToTokenPool", {"*": ()}),
)


def install(config: DefragConfig) -> None:
    if not config.best_fit:
        return
    from kdtree._library import load_pool

    load_pool()  # a missing library is a reason not to start, not one to fail at the first prompt
    hook(_BUILDER.replace(":", "."), _replace, "after")
    hook(_EXTEND.replace(":", "."), _alloc_for_extend, "around")
    hook(_DECODE.replace(":", "."), _alloc_for_decode, "around")


def _replace(allocator, configurator, **arguments):
    """Our allocator in place of one of SGLang's two plain ones, before anybody has seen it. A draft
    model is built with its target's, which is ours already; the others stay (report.py says so)."""
    from sglang.srt.mem_cache.memory_pool import HybridReqToTokenPool

    from kdtree.sglang_ext.best_fit_allocators import best_fit_of

    if isinstance(arguments["req_to_token_pool"], HybridReqToTokenPool):
        return allocator
    return best_fit_of(allocator)


def around(original, allocator, rows: list[int | None], tokens: list[int]):
    """Runs an allocation of SGLang's for requests whose rows of req_to_token are `rows`, None for
    those that have none yet, and that get `tokens` each. Returns what it returns."""
    if not is_best_fit(allocator):
        return original()
    allocator.expect(rows, tokens)
    try:
        return original()
    finally:
        allocator.expect(None, None)


def _alloc_for_extend(original, batch):
    allocator = batch.tree_cache.token_to_kv_pool_allocator
    # A request that has a row already goes on with its prompt; a new one gets it in the call.
    rows = [row_of(request) for request in batch.reqs]
    result = around(lambda: original(batch), allocator, rows, list(batch.extend_lens))
    if is_best_fit(allocator):
        allocator.assign_rows([row_of(request) for request in batch.reqs])
    return result


def _alloc_for_decode(original, batch, token_per_req):
    rows = [row_of(request) for request in batch.reqs]
    return around(lambda: original(batch, token_per_req),
                  batch.tree_cache.token_to_kv_pool_allocator, rows, [token_per_req] * len(rows))
