"""KDTREE_DEFRAG_EXTENT: the decode reserve of a request grows by whole extents.

With speculation SGLang tops up each request's slots at every step by what the last one used, a few
tokens, so neighbours in the list go to different requests. Here a request that needs more takes all
up to the next multiple of the extent.

Nothing else has to know: the extent is taken only where free and evictable slots cover it for the
whole batch, else the step is SGLang's own, so neither its estimate nor a retraction depends on it;
and it ends at the row's end, so rows stay as wide as they are. What a request did not use is freed
when it ends, as SGLang's own reserve is.
"""

from __future__ import annotations

from kdtree.sglang_ext.allocators import evictable_tokens, is_plain


def grown_lengths(now: list[int], needed: list[int], extent: int, row_width: int) -> list[int]:
    """The lengths to allocate, in tokens, for requests that have `now` and need `needed`."""
    def grown(have: int, need: int) -> int:
        if need <= have:
            return need
        return max(need, min(-(-need // extent) * extent, row_width // extent * extent))

    return [grown(have, need) for have, need in zip(now, needed, strict=True)]


def grown(step: dict, tree_cache, req_to_token_pool, extent: int) -> dict:
    """Those arguments of alloc_for_spec_decode that change; none where no extent is taken."""
    import torch

    allocator = tree_cache.token_to_kv_pool_allocator
    if extent == 0 or step["num_needed_tokens"] == 0 or not is_plain(allocator):
        return {}
    if extent % allocator.page_size != 0:  # a larger page is an extent itself
        return {}
    now, needed = step["cur_kv_lens_cpu"].tolist(), step["nxt_kv_lens_cpu"].tolist()
    lengths = grown_lengths(now, needed, extent, req_to_token_pool.req_to_token.shape[1])
    tokens = sum(lengths) - sum(now)
    # SGLang evicts for a page more than that for each request of a paged cache.
    room = tokens + (len(now) * allocator.page_size if allocator.page_size > 1 else 0)
    if room > allocator.available_size() + evictable_tokens(tree_cache):
        return {}
    lengths_cpu = torch.tensor(lengths, dtype=step["nxt_kv_lens_cpu"].dtype)
    return {
        "nxt_kv_lens_cpu": lengths_cpu,
        "nxt_kv_lens": lengths_cpu.to(step["nxt_kv_lens"].device, non_blocking=True),
        "num_needed_tokens": tokens,
    }
