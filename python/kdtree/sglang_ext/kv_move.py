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
from dataclasses import dataclass
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
# SGLang's own kernel moves the K and V rows of all layers at once. Measured for 8 heads of 128
# (sglang_kv_move-h200.json): up to 64 rows it is the faster one, at 512 ours, by 8. Where between
# them the lines cross was not measured.
SGLANG_MOVES = 64
_MOVED = "moved"

_counts: Counter[str] = Counter()
_known: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()  # pool: _Rows


def install(config: DefragConfig) -> None:
    if config.kv_move:
        for path in _METHODS:
            hook(path.replace(":", "."), _move_kv_cache, "around")


def move_counts() -> dict[str, int]:
    """Calls of this process: {"moved": calls, and for each reason to leave it to SGLang: calls}."""
    return dict(_counts)


@dataclass
class _Rows:
    """A pool's buffers, as they were looked at once: that takes longer than the copy."""

    addresses: list[int]
    row_bytes: int
    stride_bytes: int
    unfit: str | None  # why SGLang itself moves them
    pointers: Tensor | None = None  # the addresses on the device


def _move_kv_cache(original, pool, tgt_loc: Tensor, src_loc: Tensor):
    moves = tgt_loc.numel()
    if moves == 0:
        return original(pool, tgt_loc, src_loc)
    if not _is_mla(pool) and moves <= SGLANG_MOVES:
        return original(pool, tgt_loc, src_loc)
    buffers = buffers_of(pool)
    rows = _rows_of(pool, buffers)
    reason = rows.unfit or (f"more than {MAX_MOVES} moves" if moves > MAX_MOVES else None)
    if reason:
        if reason not in _counts:
            logger.warning("kdtree: SGLang itself moves the rows of %s: %s", type(pool).__name__,
                           reason)
        _counts[reason] += 1
        return original(pool, tgt_loc, src_loc)
    _counts[_MOVED] += 1
    targets, sources = tgt_loc.reshape(-1), src_loc.reshape(-1)
    if buffers[0].is_cuda:
        _move_by_kernel(rows, buffers, targets, sources)
    else:
        move_rows(buffers, targets, sources)


def buffers_of(pool) -> list[Tensor]:
    """Of all layers, K and V."""
    return list(pool.kv_buffer) if _is_mla(pool) else [*pool.k_buffer, *pool.v_buffer]


def _is_mla(pool) -> bool:
    return hasattr(pool, "kv_buffer")


def _rows_of(pool, buffers: list[Tensor]) -> _Rows:
    """Looked at anew where SGLang made the buffers anew."""
    addresses = [buffer.data_ptr() for buffer in buffers]
    known = _known.get(pool)
    if known is None or known.addresses != addresses:
        reason = unfit(pool, buffers)
        row, stride = (0, 0) if reason else (_row_bytes(buffers[0]), _stride_bytes(buffers[0]))
        known = _known[pool] = _Rows(addresses, row, stride, reason)
    return known


def unfit(pool, buffers: list[Tensor]) -> str | None:
    """Why SGLang itself moves the rows of these buffers; None: it need not."""
    if not buffers:
        return "no layers"
    if not _is_mla(pool) and any(getattr(pool, name, None) is not None for name in _SCALES):
        return "scales in buffers of their own"
    first = buffers[0]
    # [slots, ...] with dense rows; other layouts put pages first.
    if first.dim() != 3 or not first[0].is_contiguous():
        return "layout of the buffers"
    if any(each.shape[1:] != first.shape[1:] or each.stride() != first.stride()
           or each.dtype != first.dtype for each in buffers):
        return "rows of different length"
    if _row_bytes(first) % 16 != 0 or _stride_bytes(first) % 16 != 0:
        return "rows of no whole 16 bytes"
    if first.is_cuda and not _has_kernels():
        return "libkdtree_kernels.so cannot be loaded"
    return None


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
    return (((targets | sources) != 0) * place).amax(0, keepdim=True)


def _move_by_kernel(rows: _Rows, buffers: list[Tensor], targets: Tensor, sources: Tensor) -> None:
    import torch

    if rows.pointers is None:
        rows.pointers = kernels.row_pointers(buffers)
    kernels.kv_move(
        rows.pointers, sources.to(torch.int32), targets.to(torch.int32), row_bytes=rows.row_bytes,
        slot_stride_bytes=rows.stride_bytes, move_count=live_moves(targets, sources))
