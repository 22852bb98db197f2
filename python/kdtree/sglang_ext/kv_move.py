"""KDTREE_KV_MOVE=1: after a verification SGLang copies the accepted rows to their places layer by
layer; this copies those of all layers at once.

SGLang's lists of slots end in moves from slot 0 to slot 0, which pad them; slot 0 is nobody's. A slot
may stand in both lists: all rows are read before any is written.
"""

from __future__ import annotations

import functools
import logging
import weakref
from collections import Counter
from typing import TYPE_CHECKING

from kdtree import kernels
from kdtree.sglang_ext.config import DefragConfig
from kdtree.sglang_ext.contract_types import Touched
from kdtree.sglang_ext.hooks import hook

if TYPE_CHECKING:
    from torch import Tensor

SINCE = "0.5.14"

logger = logging.getLogger(__name__)

_POOLS = "sglang.srt.mem_cache.memory_pool"
_METHODS = (f"{_POOLS}:MLATokenToKVPool.move_kv_cache", f"{_POOLS}:MHATokenToKVPool.move_kv_cache")

CONTRACT = tuple(Touched(path, {"*": ("self", "tgt_loc", "src_loc")}) for path in _METHODS)

_SCALES = ("k_scale_buffer", "native_k_scale_buffer")

MAX_MOVES = 1024  # kdt_kv_move
_MOVED = "moved"

_counts: Counter[str] = Counter()
_pointers: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()  # pool: (addresses, tensor)


def install(config: DefragConfig) -> None:
    if config.kv_move:
        for path in _METHODS:
            hook(path.replace(":", "."), _move_kv_cache, "around")


def move_counts() -> dict[str, int]:
    """Calls of this process: {"moved": calls, and for each reason to leave it to SGLang: calls}."""
    return dict(_counts)


def _move_kv_cache(original, pool, tgt_loc: Tensor, src_loc: Tensor):
    if tgt_loc.numel() == 0:
        return original(pool, tgt_loc, src_loc)
    buffers, reason = movable(pool, tgt_loc.numel())
    if reason:
        if reason not in _counts:
            logger.warning("kdtree: SGLang itself moves the rows of %s: %s", type(pool).__name__,
                           reason)
        _counts[reason] += 1
        return original(pool, tgt_loc, src_loc)
    _counts[_MOVED] += 1
    targets, sources = tgt_loc.reshape(-1), src_loc.reshape(-1)
    if buffers[0].is_cuda:
        _move_by_kernel(pool, buffers, targets, sources)
    else:
        move_rows(buffers, targets, sources)


def movable(pool, moves: int) -> tuple[list[Tensor], str | None]:
    """The buffers of a pool, all layers, K and V; and why their rows are left to SGLang, None if
    they are not."""
    mla = hasattr(pool, "kv_buffer")
    buffers = list(pool.kv_buffer) if mla else [*pool.k_buffer, *pool.v_buffer]
    if not buffers:
        return buffers, "no layers"
    if moves > MAX_MOVES:
        return buffers, f"more than {MAX_MOVES} moves"
    if not mla and any(getattr(pool, name, None) is not None for name in _SCALES):
        return buffers, "scales in buffers of their own"
    first = buffers[0]
    # [slots, ...] with dense rows; other layouts put pages first.
    if first.dim() != 3 or not first[0].is_contiguous():
        return buffers, "layout of the buffers"
    if any(each.shape[1:] != first.shape[1:] or each.stride() != first.stride()
           or each.dtype != first.dtype for each in buffers):
        return buffers, "rows of different length"
    if _row_bytes(first) % 16 != 0 or _stride_bytes(first) % 16 != 0:
        return buffers, "rows of no whole 16 bytes"
    if first.is_cuda and not _has_kernels():
        return buffers, "libkdtree_kernels.so cannot be loaded"
    return buffers, None


@functools.cache
def _has_kernels() -> bool:
    try:
        kernels.version()
    except kernels.KernelError as error:
        logger.error("kdtree: %s", error)
        return False
    return True


def _row_bytes(buffer: Tensor) -> int:
    return buffer[0].numel() * buffer.element_size()


def _stride_bytes(buffer: Tensor) -> int:
    return buffer.stride(0) * buffer.element_size()


def move_rows(buffers: list[Tensor], targets: Tensor, sources: Tensor) -> None:
    """The plain version: buffer[targets] = buffer[sources], all reads first. Slots int [moves]."""
    targets, sources = targets.long(), sources.long()
    rows = [buffer[sources] for buffer in buffers]
    for buffer, row in zip(buffers, rows):
        buffer[targets] = row


def live_moves(targets: Tensor, sources: Tensor) -> Tensor:
    """How many moves there are before the padding: int32 [1], on their device. What is left has
    distinct targets, as the kernel needs."""
    import torch

    place = torch.arange(1, targets.shape[0] + 1, dtype=torch.int32, device=targets.device)
    return torch.where((targets != 0) | (sources != 0), place, 0).amax(0, keepdim=True)


def _move_by_kernel(pool, buffers: list[Tensor], targets: Tensor, sources: Tensor) -> None:
    import torch

    kernels.kv_move(
        _row_pointers(pool, buffers), sources.to(torch.int32), targets.to(torch.int32),
        row_bytes=_row_bytes(buffers[0]), slot_stride_bytes=_stride_bytes(buffers[0]),
        move_count=live_moves(targets, sources))


def _row_pointers(pool, buffers: list[Tensor]) -> Tensor:
    """The buffers' addresses on the device; made anew where SGLang made the buffers anew."""
    addresses = [buffer.data_ptr() for buffer in buffers]
    known = _pointers.get(pool)
    if known is None or known[0] != addresses:
        known = _pointers[pool] = (addresses, kernels.row_pointers(buffers))
    return known[1]
