"""The kernels of include/kdtree/kernels.h on PyTorch tensors.

    once:        workspace = Workspace(shape, requests, max_nodes, max_context)
    once a step: attn_plan(shape, batch, workspace)
    each layer:  rope_append(...), then attn_verify_mla(...) or attn_verify_gqa(...)
    at the end:  kv_move(...) of the accepted rows, all layers at once

    beside:      pool = KvPagePool(pages, reserved=1): who gets which page of the cache

Every call of a kernel goes to torch.cuda.current_stream() of the tensors' device and returns at
once. Only Workspace(...) and row_pointers(...) allocate, so everything else may be captured in a
torch.cuda.graph; what changes between replays is written into the tensors of the AttnBatch. The
pool is book-keeping on the host and needs neither torch nor a device.

TypeError and ValueError name the argument and the value that does not fit; KernelError carries the
library's message. Contents of tensors are not checked: kernels.h says what they must satisfy.
"""

from __future__ import annotations

import contextlib
import ctypes
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kdtree import _structs
from kdtree._library import KernelError, call, call_in, load_pool, version
from kdtree._structs import (
    AttnKind,
    AttnMode,
    AttnPath,
    KvFormat,
    PoolPlacement,
    RopePairing,
    Status,
)

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "AttnBatch",
    "AttnKind",
    "AttnMode",
    "AttnPath",
    "AttnShape",
    "KernelError",
    "KvFormat",
    "KvPagePool",
    "PoolPlacement",
    "PoolStats",
    "RopePairing",
    "Status",
    "Workspace",
    "attn_plan",
    "attn_verify_gqa",
    "attn_verify_mla",
    "attn_workspace_bytes",
    "kv_move",
    "rope_append",
    "row_pointers",
    "version",
]

MLA_LATENT = 512
MLA_ROPE = 64
MLA_DIM = MLA_LATENT + MLA_ROPE
MLA656_BYTES = 656

_BF16 = ("bfloat16",)
_E4M3 = ("float8_e4m3fn", "uint8")  # uint8: the same bytes, for pools that are kept as such
_KV_DTYPES = {KvFormat.BF16: _BF16, KvFormat.FP8: _E4M3, KvFormat.FP8_MLA656: _E4M3}


# ---- checks: by attributes alone, so that they need no torch -----------------------------------


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _on_gpu(name: str, tensor: Tensor) -> None:
    if not hasattr(tensor, "data_ptr"):
        raise TypeError(f"{name}: a tensor is needed, got {type(tensor).__name__}")
    if not tensor.is_cuda:
        raise ValueError(f"{name}: on {tensor.device}, a CUDA device is needed")


def _check(name: str, tensor: Tensor, dtypes: tuple[str, ...], shape: tuple[int | None, ...],
           contiguous: bool = True) -> None:
    """`shape`: None where any length will do. Not contiguous: the last stride must still be 1."""
    _on_gpu(name, tensor)
    if _dtype(tensor) not in dtypes:
        raise TypeError(f"{name}: dtype {_dtype(tensor)}, {' or '.join(dtypes)} is needed")
    got = tuple(tensor.shape)
    if len(got) != len(shape) or any(w is not None and w != g for w, g in zip(shape, got)):
        wanted = ", ".join("any" if w is None else str(w) for w in shape)
        raise ValueError(f"{name}: shape {list(got)}, [{wanted}] is needed")
    if contiguous and not tensor.is_contiguous():
        raise ValueError(f"{name}: strides {list(tensor.stride())}, it must be contiguous")
    if shape and tensor.stride(-1) != 1:
        raise ValueError(f"{name}: strides {list(tensor.stride())}, the last must be 1")


def _check_ints(name: str, tensor: Tensor, dtype: str, length: int | None) -> None:
    _check(name, tensor, (dtype,), (length,))


def _check_rows(name: str, tensor: Tensor, rows: int, heads: int, dim: int) -> None:
    """A strided bf16 [rows or more, heads, dim]."""
    _check(name, tensor, _BF16, (None, heads, dim), contiguous=False)
    if tensor.shape[0] < rows:
        raise ValueError(f"{name}: {tensor.shape[0]} rows, the batch may have {rows}")


def _check_output(name: str, tensor: Tensor, dtype: str, rows: int, *shape: int) -> None:
    _check(name, tensor, (dtype,), (None, *shape))
    if tensor.shape[0] < rows:
        raise ValueError(f"{name}: {tensor.shape[0]} rows, the batch may have {rows}")


def _pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _same_device(**tensors: Tensor | None) -> object:
    """The device that all of them are on."""
    first_name, device = None, None
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        if device is None:
            first_name, device = name, tensor.device
        elif tensor.device != device:
            raise ValueError(f"{name} is on {tensor.device}, {first_name} on {device}")
    return device


@contextlib.contextmanager
def _stream(device):
    """The current stream of the device, which is the current device inside."""
    import torch

    with torch.cuda.device(device):
        yield torch.cuda.current_stream(device).cuda_stream


# ---- shape, batch, workspace -------------------------------------------------------------------


@dataclass(frozen=True)
class AttnShape:
    """What is fixed when a model is loaded: kdt_attn_shape."""

    kind: AttnKind
    heads: int  # query heads on this rank, 1..128
    kv_heads: int = 1
    head_dim: int = MLA_DIM  # MLA: 576; GQA: 64, 96, 128 or 256
    kv_format: KvFormat = KvFormat.BF16
    mode: AttnMode = AttnMode.FAST
    path: AttnPath = AttnPath.AUTO
    max_depth: int = 0  # deterministic mode: no node is deeper than this, 0..64
    sliding_window: int = 0  # GQA; 0: all keys are seen
    splits: int = 0  # 0: planned
    _c: _structs.CAttnShape = field(init=False, repr=False, compare=False)

    def __post_init__(self):
        object.__setattr__(
            self,
            "_c",
            _structs.CAttnShape(
                kind=self.kind,
                heads=self.heads,
                kv_heads=self.kv_heads,
                head_dim=self.head_dim,
                kv_format=self.kv_format,
                mode=self.mode,
                path=self.path,
                max_depth=self.max_depth,
                sliding_window=self.sliding_window,
                splits=self.splits,
            ),
        )


@dataclass(frozen=True, eq=False)
class AttnBatch:
    """The requests of one step: kdt_attn_batch. Keeps its tensors, whose contents may change from
    replay to replay within max_context and the number of tail_slots."""

    context: Tensor  # int32 [requests] committed tokens
    node_start: Tensor  # int32 [requests + 1], ascending from 0
    tail_slots: Tensor  # int32 [nodes at most] slot of each node's K/V row
    ancestors: Tensor  # int64 or uint64 [nodes, 2] bit words, the node's own bit set
    pages: Tensor  # int32 [requests, pages a request], or [n] with pages_start
    max_context: int
    page_size: int = 1
    depth: Tensor | None = None  # int32 [nodes], the root 0: deterministic mode, sliding window
    pages_start: Tensor | None = None  # int64 [requests] first entry of each request in pages
    device: object = field(init=False, repr=False)
    max_nodes: int = field(init=False)
    _c: _structs.CAttnBatch = field(init=False, repr=False)

    def __post_init__(self):
        _check_ints("context", self.context, "int32", None)
        requests = self.context.shape[0]
        _check_ints("node_start", self.node_start, "int32", requests + 1)
        _check_ints("tail_slots", self.tail_slots, "int32", None)
        nodes = self.tail_slots.shape[0]
        _check("ancestors", self.ancestors, ("int64", "uint64"), (nodes, 2))
        if self.depth is not None:
            _check_ints("depth", self.depth, "int32", nodes)
        stride = 0
        if self.pages_start is not None:
            _check_ints("pages_start", self.pages_start, "int64", requests)
            _check_ints("pages", self.pages, "int32", None)
        else:
            _check("pages", self.pages, ("int32",), (requests, None), contiguous=False)
            stride = self.pages.stride(0)
        device = _same_device(
            context=self.context,
            node_start=self.node_start,
            tail_slots=self.tail_slots,
            ancestors=self.ancestors,
            depth=self.depth,
            pages=self.pages,
            pages_start=self.pages_start,
        )
        object.__setattr__(self, "device", device)
        object.__setattr__(self, "max_nodes", nodes)
        object.__setattr__(
            self,
            "_c",
            _structs.CAttnBatch(
                requests=requests,
                max_nodes=nodes,
                max_context=self.max_context,
                page_size=self.page_size,
                context=_pointer(self.context),
                node_start=_pointer(self.node_start),
                tail_slots=_pointer(self.tail_slots),
                ancestors=_pointer(self.ancestors),
                depth=_pointer(self.depth),
                pages=_pointer(self.pages),
                pages_start=_pointer(self.pages_start),
                pages_stride=stride,
            ),
        )


def attn_workspace_bytes(shape: AttnShape, requests: int, max_nodes: int, max_context: int) -> int:
    """Bytes that plan and verify need for the largest step, on the current device."""
    size = ctypes.c_size_t()
    call("kdt_attn_workspace_bytes", ctypes.byref(shape._c), requests, max_nodes, max_context,
         ctypes.byref(size))
    return size.value


class Workspace:
    """Device memory of plan and verify for steps of up to `requests` requests, `max_nodes` nodes
    in all and `max_context` context tokens a request. One serves all layers and all steps of a
    stream."""

    def __init__(self, shape: AttnShape, requests: int, max_nodes: int, max_context: int,
                 device=None):
        import torch

        with torch.cuda.device(device):
            self.bytes = attn_workspace_bytes(shape, requests, max_nodes, max_context)
            # torch's blocks are 512-byte aligned, which covers the 256 that are needed.
            self.tensor = torch.empty(self.bytes, dtype=torch.uint8, device="cuda")

    @property
    def device(self):
        return self.tensor.device


# ---- attention ---------------------------------------------------------------------------------


def attn_plan(shape: AttnShape, batch: AttnBatch, workspace: Workspace) -> None:
    """Cuts the step's attention into work units; the layers of the step pass the same three."""
    device = _same_device(batch=batch, workspace=workspace)
    with _stream(device) as stream:
        call("kdt_attn_plan", ctypes.byref(shape._c), ctypes.byref(batch._c),
             workspace.tensor.data_ptr(), workspace.bytes, stream)


def _mla_rows(kv: Tensor, kv_format: KvFormat, name: str) -> int:
    """Checks a latent cache, [slots, 576] ([slots, 656] bytes) or with a head of 1 between; its
    slot stride in values."""
    width = MLA656_BYTES if kv_format == KvFormat.FP8_MLA656 else MLA_DIM
    between = (1,) if hasattr(kv, "data_ptr") and len(kv.shape) == 3 else ()
    _check(name, kv, _KV_DTYPES[kv_format], (None, *between, width), contiguous=False)
    return kv.stride(0)


def attn_verify_mla(shape: AttnShape, batch: AttnBatch, q_latent: Tensor, q_rope: Tensor,
                    kv: Tensor, out: Tensor, workspace: Workspace, *, scale: float,
                    logit_cap: float = 0.0, kv_scale: float = 1.0,
                    lse: Tensor | None = None) -> None:
    """out = softmax(scale * q . k) v over the context and each node's ancestors.

    q_latent  bf16 [nodes, heads, 512], absorbed; q_rope bf16 [nodes, heads, 64]; both may be
              strided, the last dimension dense
    kv        [slots, 576] bf16 or e4m3 (value = e4m3 * kv_scale), or [slots, 656] uint8
    out       bf16 [nodes, heads, 512] contiguous; lse float32 [nodes, heads], natural logarithm
    """
    nodes, heads = batch.max_nodes, shape.heads
    _check_rows("q_latent", q_latent, nodes, heads, MLA_LATENT)
    _check_rows("q_rope", q_rope, nodes, heads, MLA_ROPE)
    slot_stride = _mla_rows(kv, shape.kv_format, "kv")
    _check_output("out", out, "bfloat16", nodes, heads, MLA_LATENT)
    if lse is not None:
        _check_output("lse", lse, "float32", nodes, heads)
    device = _same_device(batch=batch, q_latent=q_latent, q_rope=q_rope, kv=kv, out=out, lse=lse,
                          workspace=workspace)
    tensors = _structs.CMlaTensors(
        scale=scale,
        logit_cap=logit_cap,
        kv_scale=kv_scale,
        q_latent=_pointer(q_latent),
        q_rope=_pointer(q_rope),
        q_latent_node_stride=q_latent.stride(0),
        q_latent_head_stride=q_latent.stride(1),
        q_rope_node_stride=q_rope.stride(0),
        q_rope_head_stride=q_rope.stride(1),
        kv=_pointer(kv),
        kv_slot_stride=slot_stride,
        out=_pointer(out),
        lse=_pointer(lse),
    )
    with _stream(device) as stream:
        call("kdt_attn_verify_mla", ctypes.byref(shape._c), ctypes.byref(batch._c),
             ctypes.byref(tensors), workspace.tensor.data_ptr(), workspace.bytes, stream)


def _check_kv_heads(k: Tensor, v: Tensor, shape_like, names: tuple[str, str]) -> None:
    """K and V caches [slots, kv_heads, head_dim] of one layout."""
    for name, tensor in zip(names, (k, v)):
        _check(name, tensor, _KV_DTYPES[shape_like.kv_format],
               (None, shape_like.kv_heads, shape_like.head_dim), contiguous=False)
    if k.stride() != v.stride():
        raise ValueError(f"{names[0]} has strides {list(k.stride())}, {names[1]} "
                         f"{list(v.stride())}: they must be the same")


def attn_verify_gqa(shape: AttnShape, batch: AttnBatch, q: Tensor, k: Tensor, v: Tensor,
                    out: Tensor, workspace: Workspace, *, scale: float, logit_cap: float = 0.0,
                    k_scale: float = 1.0, v_scale: float = 1.0,
                    lse: Tensor | None = None) -> None:
    """As attn_verify_mla, with q and out bf16 [nodes, heads, head_dim] and k, v [slots, kv_heads,
    head_dim] bf16 or e4m3."""
    nodes, heads = batch.max_nodes, shape.heads
    _check_rows("q", q, nodes, heads, shape.head_dim)
    _check_kv_heads(k, v, shape, ("k", "v"))
    _check_output("out", out, "bfloat16", nodes, heads, shape.head_dim)
    if lse is not None:
        _check_output("lse", lse, "float32", nodes, heads)
    device = _same_device(batch=batch, q=q, k=k, v=v, out=out, lse=lse, workspace=workspace)
    tensors = _structs.CGqaTensors(
        scale=scale,
        logit_cap=logit_cap,
        k_scale=k_scale,
        v_scale=v_scale,
        q=_pointer(q),
        q_node_stride=q.stride(0),
        q_head_stride=q.stride(1),
        k=_pointer(k),
        v=_pointer(v),
        kv_slot_stride=k.stride(0),
        kv_head_stride=k.stride(1),
        out=_pointer(out),
        lse=_pointer(lse),
    )
    with _stream(device) as stream:
        call("kdt_attn_verify_gqa", ctypes.byref(shape._c), ctypes.byref(batch._c),
             ctypes.byref(tensors), workspace.tensor.data_ptr(), workspace.bytes, stream)


# ---- new rows and accepted rows ----------------------------------------------------------------


def rope_append(shape: AttnShape, q: Tensor, k: Tensor, v: Tensor, k_cache: Tensor,
                v_cache: Tensor | None, positions: Tensor, slots: Tensor,
                inverse_frequency: Tensor, *, pairing: RopePairing,
                attention_factor: float = 1.0, row_count: Tensor | None = None,
                k_scale: float = 1.0, v_scale: float = 1.0) -> None:
    """Rotates q in place and writes rotated new rows into the cache.

    GQA: q bf16 [rows, heads, head_dim], k and v bf16 [rows, kv_heads, head_dim], k_cache and
    v_cache as in attn_verify_gqa. MLA: q is the rope part [rows, heads, 64], k the latent rows
    [rows, 512], v the rope keys [rows, 64], k_cache the latent cache, v_cache None.
    positions int32 [rows]; slots int32 [rows] distinct, negative: the row is padding.
    inverse_frequency float32 [rotated / 2]; row_count int32 [1]: rows that are real, None: all.
    """
    mla = shape.kind == AttnKind.MLA
    _check_ints("positions", positions, "int32", None)
    rows = positions.shape[0]
    _check_ints("slots", slots, "int32", rows)
    _check_ints("inverse_frequency", inverse_frequency, "float32", None)
    if row_count is not None:
        _check_ints("row_count", row_count, "int32", 1)
    if mla:
        _check("q", q, _BF16, (rows, shape.heads, MLA_ROPE), contiguous=False)
        _check("k", k, _BF16, (rows, MLA_LATENT), contiguous=False)
        _check("v", v, _BF16, (rows, MLA_ROPE), contiguous=False)
        if v_cache is not None:
            raise ValueError("v_cache: MLA has one cache, None is needed")
        slot_stride, head_stride = _mla_rows(k_cache, shape.kv_format, "k_cache"), 0
    else:
        _check("q", q, _BF16, (rows, shape.heads, shape.head_dim), contiguous=False)
        for name, tensor in (("k", k), ("v", v)):
            _check(name, tensor, _BF16, (rows, shape.kv_heads, shape.head_dim), contiguous=False)
            if tensor.stride(1) != shape.head_dim:
                raise ValueError(f"{name}: strides {list(tensor.stride())}, the heads of a row "
                                 "must follow each other")
        _check_kv_heads(k_cache, v_cache, shape, ("k_cache", "v_cache"))
        slot_stride, head_stride = k_cache.stride(0), k_cache.stride(1)
    device = _same_device(q=q, k=k, v=v, k_cache=k_cache, v_cache=v_cache, positions=positions,
                          slots=slots, inverse_frequency=inverse_frequency, row_count=row_count)
    params = _structs.CRopeAppend(
        kind=shape.kind,
        kv_format=shape.kv_format,
        rows=rows,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        rotated=2 * inverse_frequency.shape[0],
        pairing=pairing,
        row_count=_pointer(row_count),
        positions=_pointer(positions),
        slots=_pointer(slots),
        inverse_frequency=_pointer(inverse_frequency),
        attention_factor=attention_factor,
        q=_pointer(q),
        q_row_stride=q.stride(0),
        q_head_stride=q.stride(1),
        k=_pointer(k),
        v=_pointer(v),
        k_row_stride=k.stride(0),
        v_row_stride=v.stride(0),
        k_scale=k_scale,
        v_scale=v_scale,
        k_cache=_pointer(k_cache),
        v_cache=_pointer(v_cache),
        kv_slot_stride=slot_stride,
        kv_head_stride=head_stride,
    )
    with _stream(device) as stream:
        call("kdt_rope_append", ctypes.byref(params), stream)


def row_pointers(buffers: list[Tensor]) -> Tensor:
    """Base pointers of caches, on their device, for kv_move. Allocates: make them once, and keep
    the caches alive as long as the pointers."""
    import torch

    for index, buffer in enumerate(buffers):
        _on_gpu(f"buffers[{index}]", buffer)
    return torch.tensor([buffer.data_ptr() for buffer in buffers], dtype=torch.int64,
                        device=buffers[0].device)


def kv_move(pointers: Tensor, from_slots: Tensor, to_slots: Tensor, *, row_bytes: int,
            slot_stride_bytes: int, move_count: Tensor | None = None) -> None:
    """Copies rows between slots in all buffers of row_pointers(...) in one launch. from_slots and
    to_slots int32 [moves at most]; move_count int32 [1], None: all of them."""
    _check_ints("pointers", pointers, "int64", None)
    _check_ints("from_slots", from_slots, "int32", None)
    moves = from_slots.shape[0]
    _check_ints("to_slots", to_slots, "int32", moves)
    if move_count is not None:
        _check_ints("move_count", move_count, "int32", 1)
    device = _same_device(pointers=pointers, from_slots=from_slots, to_slots=to_slots,
                          move_count=move_count)
    params = _structs.CKvMove(
        buffers=pointers.shape[0],
        max_moves=moves,
        row_bytes=row_bytes,
        slot_stride_bytes=slot_stride_bytes,
        buffer=_pointer(pointers),
        move_count=_pointer(move_count),
        from_=_pointer(from_slots),
        to=_pointer(to_slots),
    )
    with _stream(device) as stream:
        call("kdt_kv_move", ctypes.byref(params), stream)


# ---- page pool ---------------------------------------------------------------------------------

def _int32s(name: str, values: Iterable[int] | Tensor) -> array:
    """Host values as int32: integers, or a one-dimensional int32 tensor or array on the host."""
    if hasattr(values, "data_ptr"):
        if values.is_cuda:
            raise ValueError(f"{name}: on {values.device}, the host is needed")
        values = values.numpy()
    try:
        view = memoryview(values)
    except TypeError:  # no buffer: any integers
        return array("i", values)
    if view.format not in ("i", "<i") or view.ndim != 1:
        raise TypeError(f"{name}: format {view.format!r} of {view.ndim} dimensions, "
                        "one-dimensional int32 is needed")
    return array("i", view.tobytes())


@dataclass(frozen=True)
class PoolStats:
    pages: int  # of them pages - reserved - free_pages are handed out
    reserved: int
    free_pages: int
    free_runs: int  # stretches of neighbours
    longest_free_run: int  # pages


class KvPagePool:
    """Who gets which page of a paged K/V cache: kdt_pool of kernels.h. One thread at a time.

    Pages come as array('i'), which torch.frombuffer and numpy.frombuffer take without a copy. None
    instead: too few are free now, and nothing changed. KernelError with Status.INVALID: the
    caller's books are wrong (a page freed twice, out of range, never handed out), and nothing
    changed either. `reserved` leading pages are never handed out.
    """

    def __init__(self, pages: int, *, placement: PoolPlacement = PoolPlacement.BEST_FIT,
                 reserved: int = 0):
        self._pool = ctypes.c_void_p()
        self._pages = pages
        self._library = load_pool()
        options = _structs.CPoolOptions(pages=pages, placement=placement, reserved=reserved)
        call_in(self._library, "kdt_pool_create", ctypes.byref(options), ctypes.byref(self._pool))

    def close(self) -> None:
        """Ends the pool; a second time does nothing."""
        if self._pool:
            self._library.kdt_pool_destroy(self._pool)
            self._pool = ctypes.c_void_p()

    def __enter__(self) -> KvPagePool:
        return self

    def __exit__(self, *_exception) -> None:
        self.close()

    def __del__(self):
        if hasattr(self, "_library"):
            self.close()

    def allocate(self, count: int) -> array | None:
        """`count` pages for a new request."""
        return self.extend(-1, count)

    def extend(self, last: int, count: int) -> array | None:
        """`count` pages more for the request whose last page is `last`; -1: it has none yet."""
        pages = self._room(count)
        enough = self._call("kdt_pool_extend", last, count, pages.buffer_info()[0])
        return pages if enough else None

    def extend_batch(self, counts: Sequence[int],
                     lasts: Sequence[int] | None = None) -> list[array] | None:
        """extend() for several requests at once, all of them or none; lasts None: all are new. The
        pages of each. kernels.h says in which order they are served."""
        extended = self.extend_flat(counts, lasts)
        if extended is None:
            return None
        pages, offsets = extended
        return [pages[begin:end] for begin, end in zip(offsets, offsets[1:])]

    def extend_flat(self, counts: Sequence[int], lasts: Sequence[int] | None = None
                    ) -> tuple[array, array] | None:
        """extend_batch() with the pages of all requests one after the other, and the array('q')
        of where each begins; its last entry is their number."""
        counts = _int32s("counts", counts)
        if lasts is not None:
            lasts = _int32s("lasts", lasts)
            if len(lasts) != len(counts):
                raise ValueError(f"lasts: {len(lasts)} requests, counts has {len(counts)}")
        capacity = sum(max(count, 0) for count in counts)
        pages = self._room(capacity)
        offsets = array("q", bytes(8 * (len(counts) + 1)))
        enough = self._call(
            "kdt_pool_extend_batch", len(counts), counts.buffer_info()[0],
            None if lasts is None else lasts.buffer_info()[0], pages.buffer_info()[0], capacity,
            offsets.buffer_info()[0])
        return (pages, offsets) if enough else None

    def free(self, pages: Iterable[int] | Tensor) -> None:
        """Gives pages back, of any number of requests. An int32 tensor has to be on the host."""
        pages = _int32s("pages", pages)
        self._call("kdt_pool_free", pages.buffer_info()[0], len(pages))

    def stats(self) -> PoolStats:
        stats = _structs.CPoolStats()
        self._call("kdt_pool_read_stats", ctypes.byref(stats))
        return PoolStats(stats.pages, stats.reserved, stats.free_pages, stats.free_runs,
                         stats.longest_free_run)

    def _room(self, count: int) -> array:
        """For `count` pages, or for none: more than the pool has are never written."""
        return array("i", bytes(4 * min(max(count, 0), self._pages)))

    def _call(self, function: str, *arguments) -> bool:
        """False: too few pages are free. KernelError for anything else that is wrong."""
        if not self._pool:
            raise ValueError("the pool is closed")
        status = getattr(self._library, function)(self._pool, *arguments)
        if status not in (Status.OK, Status.SHORT):
            message = self._library.kdt_last_error().decode(errors="replace")
            raise KernelError(f"{function}: {message}", Status(status))
        return status == Status.OK
