"""The structs and enums of include/kdtree/kdtree.h. tests/python compares them with the header."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_double, c_float, c_int32, c_int64, c_uint32, c_uint64
from ctypes import c_void_p
from enum import IntEnum

ABI = 1  # KDTREE_ABI

LogitMask = ctypes.CFUNCTYPE(c_int32, c_void_p, POINTER(c_int32), c_int64, POINTER(c_uint32),
                             c_int64)
Release = ctypes.CFUNCTYPE(None, c_void_p)


class Status(IntEnum):
    OK = 0
    INVALID = 1
    NOT_FOUND = 2
    IO = 3
    CORRUPT = 4
    UNSUPPORTED = 5
    OUT_OF_RESOURCES = 6
    BUSY = 7
    CLOSED = 8
    INTERNAL = 9


class Drafter(IntEnum):
    DEFAULT = 0  # ngram
    NONE = 1
    NGRAM = 2
    ORACLE = 3
    DFLASH = 4


class DraftShape(IntEnum):
    TREE = 0
    CHAIN = 1
    PLAIN = 2


class FinishReason(IntEnum):
    NONE = 0
    STOP = 1
    LENGTH = 2
    ABORT = 3
    ERROR = 4


class _Struct(ctypes.Structure):
    """struct_bytes is set; the rest is zero unless given by name. Numbers that do not fit are
    refused, where ctypes would cut them."""

    def __init__(self, **fields):
        super().__init__(struct_bytes=ctypes.sizeof(type(self)), **fields)
        for name, value in fields.items():
            if isinstance(value, int) and getattr(self, name) != value:
                raise OverflowError(f"{name} = {value} does not fit into its field")


class COptions(_Struct):
    _fields_ = [
        ("struct_bytes", c_uint32),
        ("drafter", c_int32),
        ("model", c_char_p),
        ("draft_model_path", c_char_p),
        ("context_length", c_int32),
        ("threads", c_int32),
        ("max_running_requests", c_int32),
        ("max_total_tokens", c_int32),
        ("chunked_prefill_size", c_int32),
        ("max_draft_tokens", c_int32),
        ("reference_kernels", c_int32),
        ("page_size", c_int32),
        ("disable_radix_cache", c_int32),
        ("kv_extent", c_int32),
        ("kv_headroom", c_int32),
        ("kv_relocate", c_int32),
        ("kv_evict_batch", c_double),
    ]


class CModelInfo(_Struct):
    _fields_ = [("struct_bytes", c_uint32)] + [
        (name, c_int32)
        for name in ("vocabulary", "context_length", "max_running_requests", "max_total_tokens",
                     "max_draft_tokens", "threads", "bos_token", "eos_token", "has_chat_template")
    ]


class CResult(ctypes.Structure):
    _fields_ = [
        ("id_count", c_int64),
        ("ids", POINTER(c_int32)),
        ("text_bytes", c_int64),
        ("text", c_void_p),
    ]


class CSampling(_Struct):
    _fields_ = [
        ("struct_bytes", c_uint32),
        ("temperature", c_float),
        ("top_k", c_int32),
        ("top_p", c_float),
        ("min_p", c_float),
        ("repetition_penalty", c_float),
        ("presence_penalty", c_float),
        ("frequency_penalty", c_float),
        ("seed", c_uint64),
    ]


class CLogitBias(ctypes.Structure):
    _fields_ = [("token", c_int32), ("bias", c_float)]


class CRequest(_Struct):
    _fields_ = [
        ("struct_bytes", c_uint32),
        ("samples", c_int32),
        ("prompt_ids", POINTER(c_int32)),
        ("prompt_id_count", c_int64),
        ("prompt_text", c_char_p),
        ("prompt_text_bytes", c_int64),
        ("parse_special", c_int32),
        ("max_tokens", c_int32),
        ("min_tokens", c_int32),
        ("ignore_eos", c_int32),
        ("sampling", CSampling),
        ("stop", POINTER(c_char_p)),
        ("stop_count", c_int32),
        ("logit_bias_count", c_int32),
        ("logit_bias", POINTER(CLogitBias)),
        ("logit_mask", LogitMask),
        ("logit_mask_user", c_void_p),
        ("logit_mask_release", Release),
        ("logprobs", c_int32),
        ("top_logprobs", c_int32),
        ("prompt_logprobs", c_int32),
        ("top_prompt_logprobs", c_int32),
        ("prompt_only", c_int32),
        ("draft_shape", c_int32),
        ("draft_tokens", c_int32),
        ("known_continuation", POINTER(c_int32)),
        ("known_continuation_count", c_int64),
    ]


class CTokenLogprob(ctypes.Structure):
    _fields_ = [("token", c_int32), ("logprob", c_float)]


class CPositionLogprobs(ctypes.Structure):
    _fields_ = [("logprob", c_float), ("top_count", c_int32), ("top", POINTER(CTokenLogprob))]


class CRequestStats(ctypes.Structure):
    _fields_ = [
        ("prompt_tokens", c_int32),
        ("tokens", c_int32),
        ("rounds", c_int32),
        ("nodes", c_int32),
        ("retracted", c_int32),
        ("reused_tokens", c_int32),
        ("prefill_s", c_double),
        ("decode_s", c_double),
    ]


class CDelta(ctypes.Structure):
    _fields_ = [
        ("finish_reason", c_int32),
        ("reserved", c_int32),
        ("id_count", c_int64),
        ("ids", POINTER(c_int32)),
        ("text_bytes", c_int64),
        ("text", c_void_p),
        ("logprob_count", c_int64),
        ("logprobs", POINTER(CPositionLogprobs)),
        ("prompt_logprob_count", c_int64),
        ("prompt_logprobs", POINTER(CPositionLogprobs)),
        ("error", c_char_p),
        ("stats", CRequestStats),
    ]


class CRoundStats(ctypes.Structure):
    _fields_ = [
        (name, c_int32)
        for name in ("requests", "decoding", "prefill_rows", "nodes", "emitted", "reused_rows")
    ] + [
        (name, c_double)
        for name in ("draft_s", "tree_s", "verify_s", "accept_s", "commit_s", "total_s",
                     "predicted_verify_s")
    ]


class CEngineStats(_Struct):
    _fields_ = (
        [("struct_bytes", c_uint32)]
        + [(name, c_int32)
           for name in ("background", "running", "slots_total", "slots_used", "slots_free",
                        "slots_cached", "reserved")]
        + [(name, c_int64)
           for name in ("submitted", "unfinished", "finished", "aborted", "failed", "dropped",
                        "unpolled", "tokens", "rounds")]
        + [("busy_s", c_double), ("last_round", CRoundStats)]
    )


class CLattice(_Struct):
    _fields_ = [
        ("struct_bytes", c_uint32),
        ("depths", c_int32),
        ("states", c_int32),
        ("state_count", POINTER(c_int32)),
        ("token", POINTER(c_int32)),
        ("log_prob", POINTER(c_float)),
        ("edge", POINTER(c_float)),
    ]


class CTree(_Struct):
    _fields_ = [
        ("struct_bytes", c_uint32),
        ("capacity", c_int32),
        ("count", c_int32),
        ("token", POINTER(c_int32)),
        ("parent", POINTER(c_int32)),
        ("depth", POINTER(c_int32)),
        ("log_score", POINTER(c_float)),
        ("ancestors", POINTER(c_uint64)),
    ]


class CAccepted(_Struct):
    _fields_ = [
        ("struct_bytes", c_uint32),
        ("capacity", c_int32),
        ("count", c_int32),
        ("path", POINTER(c_int32)),
        ("emitted", POINTER(c_int32)),
    ]


def declare(library: ctypes.CDLL) -> None:
    """Argument and result types of every function of the header."""
    engine, ids, result = c_void_p, POINTER(c_uint64), POINTER(POINTER(CResult))
    text = ctypes.c_char_p
    signatures = {
        "kdtree_last_error": (text, []),
        "kdtree_abi": (c_int32, []),
        "kdtree_version": (text, []),
        "kdtree_engine_create": (c_int32, [POINTER(COptions), POINTER(c_void_p)]),
        "kdtree_engine_free": (None, [engine]),
        "kdtree_engine_info": (c_int32, [engine, POINTER(CModelInfo)]),
        "kdtree_result_free": (None, [POINTER(CResult)]),
        "kdtree_tokenize": (c_int32, [engine, text, c_int64, c_int32, result]),
        "kdtree_detokenize": (c_int32, [engine, POINTER(c_int32), c_int64, c_int32, result]),
        "kdtree_apply_chat_template": (c_int32, [engine, text, c_int64, c_int32, result]),
        "kdtree_submit": (c_int32, [engine, POINTER(CRequest), ids, c_int32]),
        "kdtree_cancel": (c_int32, [engine, c_uint64]),
        "kdtree_drop": (c_int32, [engine, c_uint64]),
        "kdtree_delta_free": (None, [POINTER(CDelta)]),
        "kdtree_poll": (c_int32, [engine, c_uint64, c_int64, POINTER(POINTER(CDelta))]),
        "kdtree_wait": (c_int32, [engine, c_int64, ids, c_int32, POINTER(c_int32)]),
        "kdtree_step": (c_int32, [engine, POINTER(c_int32)]),
        "kdtree_start": (c_int32, [engine]),
        "kdtree_stop": (c_int32, [engine]),
        "kdtree_stats": (c_int32, [engine, POINTER(CEngineStats)]),
        "kdtree_build_tree": (c_int32, [POINTER(CLattice), c_int32, c_int32, POINTER(CTree)]),
        "kdtree_accept_tree": (
            c_int32,
            [POINTER(CTree), POINTER(c_float), c_int32, c_int64, POINTER(CSampling),
             POINTER(c_double), c_int32, POINTER(CAccepted)],
        ),
    }
    for name, (returned, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype = returned
        function.argtypes = arguments
