"""In each scheduler process: proves at the start that what is switched on acts, logs one line, and
adds the plugin's state to what /server_info reports of the process (internal_states)."""

from __future__ import annotations

import logging
import math
from dataclasses import asdict

from kdtree.sglang_ext import allocators, defrag_sort, fragmentation, kv_move, verify
from kdtree.sglang_ext.config import DefragConfig
from kdtree.sglang_ext.contract_types import Touched
from kdtree.sglang_ext.hooks import hook

SINCE = "0.5.14"

logger = logging.getLogger(__name__)

_SCHEDULER = "sglang.srt.managers.scheduler:Scheduler"
_RANKS = ("self", "server_args", "port_args", "gpu_id", "tp_rank", "moe_ep_rank", "pp_rank",
          "attn_cp_rank", "moe_dp_rank", "dp_rank")

# What the metrics look at, every metrics.PERIOD_SECONDS and in the scheduler's way: 4 MB to the host
# and 3.5 ms there (docs/sglang.md).
SAMPLED_REQUESTS = 64
SAMPLED_TOKENS = 1 << 20

CONTRACT = (
    Touched(f"{_SCHEDULER}.__init__", {"*": _RANKS, "0.5.23": _RANKS[:3]}),
    Touched(f"{_SCHEDULER}.get_internal_state", {"*": ("self", "recv_req")}),
    Touched("sglang.srt.managers.io_struct:GetInternalStateReqOutput", {"*": ()}),
    Touched("sglang.srt.managers.schedule_batch:Req.seqlen", {"*": ()}),
)

_config = DefragConfig()
_scheduler = None  # of this process, once it has started; lives as long


def install(config: DefragConfig) -> None:
    global _config
    _config = config
    if config.any():
        hook(_SCHEDULER.replace(":", ".") + ".__init__", _after_start, "after")
        export_state()


def export_state() -> None:
    """Adds the plugin's state to the scheduler's; without switches too, where kdtree_verify is the
    attention backend."""
    hook(_SCHEDULER.replace(":", ".") + ".get_internal_state", _after_state, "after")


def _after_start(_result, scheduler, *_arguments, **_keywords) -> None:
    global _scheduler
    _scheduler = scheduler
    logger.info(started(scheduler, _config))


def started(scheduler, config: DefragConfig) -> str:
    """The line for the log. RuntimeError, which ends the process: something that was asked for does
    not act in it."""
    allocator = scheduler.token_to_kv_pool_allocator
    parts = []
    if config.sort:
        defrag_sort.prove()
        missed = defrag_sort.unsorted(allocators.within(allocator))
        if missed:
            raise RuntimeError(f"kdtree: {', '.join(missed)} was made without the sort hook")
        parts.append("sort proved")
    if config.best_fit:
        parts.append("best fit" if allocators.is_best_fit(allocator) else
                     f"best fit not for {type(allocator).__name__}: left as it is")
    plain = allocators.is_plain(allocator)
    for name, value in (("evict", config.evict), ("extent", config.extent)):
        if value and not plain:
            parts.append(f"{name} not for {type(allocator).__name__}: left as it is")
        elif name == "extent" and value % allocator.page_size != 0:
            parts.append(f"extent {value} not for pages of {allocator.page_size}: left as it is")
        elif value:
            parts.append(f"{name} {value}")
    return f"kdtree in rank {_rank(scheduler)}: {type(allocator).__name__}; {', '.join(parts)}"


def _rank(scheduler) -> str:
    """As far as the scheduler says: the attributes moved from version to version."""
    ranks = getattr(scheduler, "ps", scheduler)
    names = ("tp_rank", "pp_rank", "dp_rank")
    known = [f"{name[:2]}{getattr(ranks, name)}" for name in names
             if getattr(ranks, name, None) is not None]
    return " ".join(known) or "unknown"


def _after_state(output, scheduler, *_arguments, **_keywords):
    output.internal_state["kdtree"] = state(scheduler, _config)
    return output


def state(scheduler, config: DefragConfig) -> dict:
    """Switches, and gauges of all running requests. Copies their rows to the host: it waits for the
    device, once a request for the server's state."""
    allocator = scheduler.token_to_kv_pool_allocator
    return {
        "switches": asdict(config),
        "verify": verify.verify_counts(),
        "kv_move": kv_move.move_counts(),
        "allocator": type(allocator).__name__,
        "sorted": not defrag_sort.unsorted(allocators.within(allocator)),
        "best_fit": allocators.is_best_fit(allocator),
        **_of_slots(scheduler, _rows(scheduler)),
    }


def gauges() -> dict[str, float]:
    """The numbers of this process's state, those of the slots from a sample (SAMPLED_REQUESTS,
    SAMPLED_TOKENS). Without a switch those of kdtree_verify alone, for which nothing waits."""
    counts = verify.verify_counts()
    values = {"verify_served": counts["served"], "verify_refused": sum(counts["refused"].values())}
    if _scheduler is not None:
        of_slots = _of_slots(_scheduler, _rows(_scheduler, SAMPLED_REQUESTS, SAMPLED_TOKENS))
        values |= {name: value for name, value in of_slots.items() if value is not None}
    return values


def _of_slots(scheduler, rows: list) -> dict:
    """`rows`: of the running requests that are looked at."""
    allocator = scheduler.token_to_kv_pool_allocator
    measured = fragmentation.of_rows(rows)
    runs, free = _free_runs(allocator)
    return {
        "requests": len(scheduler.running_batch.reqs),
        "mean_run_tokens": round(measured.mean_run_tokens, 2),
        "contiguous_tile_share": round(measured.contiguous_tile_share, 4),
        "free_pages": free,
        "free_runs": runs,
        "waits": getattr(allocator, "waits", 0),  # of best fit, for freed pages from the device
    }


def _rows(scheduler, requests: int | None = None, tokens: float = math.inf) -> list:
    """Slots of the running requests on the host, by one copy: of the first `requests` of them
    (None: of all), and of `tokens` in all at most."""
    import torch

    table = scheduler.req_to_token_pool.req_to_token
    lengths, rows, left = [], [], tokens
    for request in scheduler.running_batch.reqs[:requests]:
        row = allocators.row_of(request)
        # The last token has no slot before its own step.
        length = min(request.seqlen - 1, left)
        if row is not None and length > 0:
            lengths.append(length)
            rows.append(table[row, :length])
            left -= length
    return list(torch.cat(rows).cpu().split(lengths)) if rows else []


def _free_runs(allocator) -> tuple[int | None, int]:
    """Runs among the free pages, None for an allocator that keeps no list of them; and pages. They
    are counted where the list is."""
    import torch

    pages = allocator.available_size() // allocator.page_size
    if allocators.is_best_fit(allocator):
        stats = allocator.pool_stats()
        return stats.free_runs, stats.free_pages
    lists = [getattr(allocator, name, None) for name in ("free_pages", "release_pages")]
    lists += getattr(allocator, "staged_pages", [])
    lists = [each for each in lists if each is not None]
    return (fragmentation.free_runs(torch.cat(lists)) if lists else None), pages
