"""The structs and enums of include/kdtree/kernels.h. tests/python compares them with the header."""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_int32, c_int64, c_size_t, c_uint32, c_void_p
from enum import IntEnum

ABI = 1  # KDT_KERNELS_ABI


class Status(IntEnum):
    OK = 0
    INVALID = 1
    UNSUPPORTED = 2
    CUDA_ERROR = 3
    SHORT = 4  # page pool: too few pages are free now


class AttnKind(IntEnum):
    MLA = 0  # absorbed latent attention: rows of 512 latent and 64 rope values
    GQA = 1


class KvFormat(IntEnum):
    BF16 = 0
    FP8 = 1  # e4m3, one scale for K and one for V (MLA: one for the row)
    FP8_MLA656 = 2  # MLA: 512 e4m3, 4 float scales, 64 bf16 rope values: 656 bytes a token


class AttnMode(IntEnum):
    FAST = 0
    DETERMINISTIC = 1  # a node's output is a function of its path alone


class AttnPath(IntEnum):
    AUTO = 0
    WGMMA = 1  # sm_90a
    MMA_SYNC = 2  # sm_120a and sm_90a


class RopePairing(IntEnum):
    ADJACENT = 0  # (2i, 2i + 1) rotate together
    HALF = 1  # (i, i + rotated / 2)


class PoolPlacement(IntEnum):
    UNSORTED = 0  # in the order in which pages came back
    SORTED = 1  # the lowest free pages
    BEST_FIT = 2  # behind the request's last page, else the shortest free run that holds it


class _Struct(ctypes.Structure):
    """struct_bytes is set; the rest is zero unless given by name."""

    def __init__(self, **fields):
        super().__init__(struct_bytes=ctypes.sizeof(type(self)), **fields)


class CAttnShape(_Struct):
    _fields_ = [
        ("struct_bytes", c_uint32),
        ("kind", c_int32),
        ("heads", c_int32),
        ("kv_heads", c_int32),
        ("head_dim", c_int32),
        ("kv_format", c_int32),
        ("mode", c_int32),
        ("path", c_int32),
        ("max_depth", c_int32),
        ("sliding_window", c_int32),
        ("splits", c_int32),
    ]


class CAttnBatch(_Struct):
    _fields_ = [
        ("struct_bytes", c_uint32),
        ("requests", c_int32),
        ("max_nodes", c_int32),
        ("max_context", c_int32),
        ("page_size", c_int32),
        ("context", c_void_p),
        ("node_start", c_void_p),
        ("tail_slots", c_void_p),
        ("ancestors", c_void_p),
        ("depth", c_void_p),
        ("pages", c_void_p),
        ("pages_start", c_void_p),
        ("pages_stride", c_int64),
    ]


class CMlaTensors(_Struct):
    _fields_ = [
        ("struct_bytes", c_uint32),
        ("scale", c_float),
        ("logit_cap", c_float),
        ("kv_scale", c_float),
        ("q_latent", c_void_p),
        ("q_rope", c_void_p),
        ("q_latent_node_stride", c_int64),
        ("q_latent_head_stride", c_int64),
        ("q_rope_node_stride", c_int64),
        ("q_rope_head_stride", c_int64),
        ("kv", c_void_p),
        ("kv_slot_stride", c_int64),
        ("out", c_void_p),
        ("lse", c_void_p),
    ]


class CGqaTensors(_Struct):
    _fields_ = [
        ("struct_bytes", c_uint32),
        ("scale", c_float),
        ("logit_cap", c_float),
        ("k_scale", c_float),
        ("v_scale", c_float),
        ("q", c_void_p),
        ("q_node_stride", c_int64),
        ("q_head_stride", c_int64),
        ("k", c_void_p),
        ("v", c_void_p),
        ("kv_slot_stride", c_int64),
        ("kv_head_stride", c_int64),
        ("out", c_void_p),
        ("lse", c_void_p),
    ]


class CRopeAppend(_Struct):
    _fields_ = [
        ("struct_bytes", c_uint32),
        ("kind", c_int32),
        ("kv_format", c_int32),
        ("rows", c_int32),
        ("heads", c_int32),
        ("kv_heads", c_int32),
        ("head_dim", c_int32),
        ("rotated", c_int32),
        ("pairing", c_int32),
        ("row_count", c_void_p),
        ("positions", c_void_p),
        ("slots", c_void_p),
        ("inverse_frequency", c_void_p),
        ("attention_factor", c_float),
        ("q", c_void_p),
        ("q_row_stride", c_int64),
        ("q_head_stride", c_int64),
        ("k", c_void_p),
        ("v", c_void_p),
        ("k_row_stride", c_int64),
        ("v_row_stride", c_int64),
        ("k_scale", c_float),
        ("v_scale", c_float),
        ("k_cache", c_void_p),
        ("v_cache", c_void_p),
        ("kv_slot_stride", c_int64),
        ("kv_head_stride", c_int64),
    ]


class CKvMove(_Struct):
    _fields_ = [
        ("struct_bytes", c_uint32),
        ("buffers", c_int32),
        ("max_moves", c_int32),
        ("row_bytes", c_int32),
        ("slot_stride_bytes", c_int64),
        ("buffer", c_void_p),
        ("move_count", c_void_p),
        ("from_", c_void_p),
        ("to", c_void_p),
    ]


class CPoolOptions(_Struct):
    _fields_ = [
        ("struct_bytes", c_uint32),
        ("pages", c_int32),
        ("placement", c_int32),
        ("reserved", c_int32),
    ]


class CPoolStats(_Struct):
    _fields_ = [
        ("struct_bytes", c_uint32),
        ("pages", c_int32),
        ("reserved", c_int32),
        ("free_pages", c_int32),
        ("free_runs", c_int32),
        ("longest_free_run", c_int32),
    ]


def declare(library: ctypes.CDLL) -> None:
    """Argument and result types of every function of the header."""
    declare_pool(library)
    shape, batch = ctypes.POINTER(CAttnShape), ctypes.POINTER(CAttnBatch)
    _declare(library, {
        "kdt_kernels_version": (ctypes.c_char_p, []),
        "kdt_attn_workspace_bytes": (
            c_int32,
            [shape, c_int32, c_int32, c_int32, ctypes.POINTER(c_size_t)],
        ),
        "kdt_attn_plan": (c_int32, [shape, batch, c_void_p, c_size_t, c_void_p]),
        "kdt_attn_verify_mla": (
            c_int32,
            [shape, batch, ctypes.POINTER(CMlaTensors), c_void_p, c_size_t, c_void_p],
        ),
        "kdt_attn_verify_gqa": (
            c_int32,
            [shape, batch, ctypes.POINTER(CGqaTensors), c_void_p, c_size_t, c_void_p],
        ),
        "kdt_rope_append": (c_int32, [ctypes.POINTER(CRopeAppend), c_void_p]),
        "kdt_kv_move": (c_int32, [ctypes.POINTER(CKvMove), c_void_p]),
    })


def declare_pool(library: ctypes.CDLL) -> None:
    """The functions that libkdtree_pool.so has as well."""
    _declare(library, {
        "kdt_last_error": (ctypes.c_char_p, []),
        "kdt_kernels_abi": (c_int32, []),
        "kdt_pool_create": (c_int32, [ctypes.POINTER(CPoolOptions), ctypes.POINTER(c_void_p)]),
        "kdt_pool_destroy": (None, [c_void_p]),
        "kdt_pool_allocate": (c_int32, [c_void_p, c_int32, c_void_p]),
        "kdt_pool_extend": (c_int32, [c_void_p, c_int32, c_int32, c_void_p]),
        "kdt_pool_extend_batch": (
            c_int32,
            [c_void_p, c_int32, c_void_p, c_void_p, c_void_p, c_int64, c_void_p],
        ),
        "kdt_pool_free": (c_int32, [c_void_p, c_void_p, c_int64]),
        "kdt_pool_read_stats": (c_int32, [c_void_p, ctypes.POINTER(CPoolStats)]),
    })


def _declare(library: ctypes.CDLL, signatures: dict[str, tuple]) -> None:
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
