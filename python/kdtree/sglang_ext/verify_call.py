"""One call of SGLang's verify seam as a value, and why a call is refused.

Nothing here imports torch or SGLang: what is decided from a call's shapes and options can be tested
without either.
"""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger(__name__)

MAX_REQUESTS = 64  # kdt_attn_batch: requests of a step, nodes of a request, context of a request
MAX_NODES = 128
MAX_CONTEXT = 262144


class Refusal(Enum):
    """Why a call goes to SGLang's own kernel; the value is what logs and counters say."""

    SINKS = "attention sinks"
    WINDOW = "sliding window"
    XAI_TEMPERATURE = "xai temperature"
    NOT_CAUSAL = "not causal and no mask"
    KV_SCALE = "scales of the K/V cache"
    LOGIT_CAP = "negative logit cap"
    RAGGED = "requests with different numbers of nodes"
    NODES = "more than 128 nodes a request"
    REQUESTS = "no requests, or more than 64"
    CONTEXT = "contexts above 262144 tokens"
    UNSAVED_ROWS = "new rows are not in the cache"
    VIRTUAL_SLOTS = "cache slots are virtual ids"
    NO_TREE = "the mask is no tree with parents before children"
    DTYPE = "dtype of queries or cache"
    SHAPE = "heads or head dimensions"
    LAYOUT = "cache layout"
    CAPTURE = "the first call is part of a capture"
    LIBRARY = "libkdtree_kernels.so cannot be loaded"
    DEVICE = "no kernel for this device or shape"


@dataclass(frozen=True)
class VerifyCall:
    """The seam's arguments. T rows are `requests` x `nodes`, request by request."""

    q: Tensor  # [T, heads, key_dim]
    out: Tensor  # [T, heads, value_dim]
    k_buffer: Tensor  # [slots, kv_heads, key_dim], of this layer
    v_buffer: Tensor  # [slots, kv_heads, value_dim]; MLA: a view of k_buffer; bf16 or e4m3
    qo_indptr: Tensor  # [requests + 1]
    kv_indptr: Tensor  # [requests + 1] into kv_indices
    kv_indices: Tensor  # int64 [context tokens or more] slots of the contexts
    custom_mask: Tensor | None  # flat: [nodes, context + nodes] a request, nonzero: attends
    causal: bool
    mask_indptr: Tensor | None  # [requests + 1] into custom_mask
    nodes: int
    k_descale: float  # of an FP8 cache: value = e4m3 * scale
    v_descale: float
    scale: float
    logit_cap: float = 0.0  # 0: none; c: score = c * tanh(score / c)
    sliding_window_size: int = -1
    sinks: Tensor | None = None
    window_kv_offsets: Tensor | None = None
    xai_temperature_len: int = -1

    @property
    def requests(self) -> int:
        return self.qo_indptr.shape[0] - 1

    @property
    def heads(self) -> int:
        return self.q.shape[1]

    @property
    def kv_heads(self) -> int:
        return self.k_buffer.shape[1]

    @property
    def key_dim(self) -> int:
        return self.q.shape[2]

    @property
    def value_dim(self) -> int:
        return self.out.shape[2]

    @property
    def is_fp8(self) -> bool:
        return str(self.k_buffer.dtype) == "torch.float8_e4m3fn"

    @property
    def shares_rows(self) -> bool:
        """V is the beginning of K's rows: MLA."""
        return self.kv_heads == 1 and self.k_buffer.data_ptr() == self.v_buffer.data_ptr()


def refuse_call(call: VerifyCall) -> Refusal | None:
    """What no implementation serves; None: go on."""
    if call.sinks is not None:
        return Refusal.SINKS
    if call.sliding_window_size > -1 or call.window_kv_offsets is not None:
        return Refusal.WINDOW
    if call.xai_temperature_len is not None and call.xai_temperature_len > 0:
        return Refusal.XAI_TEMPERATURE
    if call.custom_mask is None and not call.causal:
        return Refusal.NOT_CAUSAL  # a DFLASH draft forward is such a TARGET_VERIFY
    if not call.is_fp8 and (call.k_descale != 1.0 or call.v_descale != 1.0):
        return Refusal.KV_SCALE
    if call.shares_rows and call.k_descale != call.v_descale:
        return Refusal.KV_SCALE
    if not call.logit_cap >= 0.0:  # SGLang's kernels then cap nothing, ours refuse
        return Refusal.LOGIT_CAP
    if call.nodes > MAX_NODES:
        return Refusal.NODES
    if call.q.shape[0] != call.requests * call.nodes:
        return Refusal.RAGGED
    if not 1 <= call.requests <= MAX_REQUESTS:
        return Refusal.REQUESTS
    if call.k_buffer.dim() != 3 or call.v_buffer.dim() != 3:
        return Refusal.LAYOUT
    if call.k_buffer.shape[2] != call.key_dim or call.v_buffer.shape[2] != call.value_dim:
        return Refusal.LAYOUT
    if call.v_buffer.shape[:2] != call.k_buffer.shape[:2]:
        return Refusal.LAYOUT
    if call.heads % call.kv_heads != 0:
        return Refusal.SHAPE
    return None


@dataclass
class Tally:
    """Calls of the seam in this process. Replays of a captured graph are not calls: they are
    counted once, when they are captured."""

    served: int = 0
    refused: Counter[str] = field(default_factory=Counter)

    def serve(self) -> None:
        self.served += 1

    def refuse(self, refusal: Refusal, detail: str = "") -> None:
        """Counts; the first of each reason is logged."""
        if refusal.value not in self.refused:
            logger.warning("kdtree_verify: SGLang's own kernel serves calls with: %s%s",
                           refusal.value, f" ({detail})" if detail else "")
        self.refused[refusal.value] += 1

    def as_dict(self) -> dict[str, object]:
        return {"served": self.served, "refused": dict(self.refused)}
