"""Tree-verify attention in plain torch: what the kernels compute, from the same arrays.

For machines without a GPU and for tests. Loops over requests, accumulates in float32.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kdtree.sglang_ext.verify_call import Refusal, VerifyCall
from kdtree.sglang_ext.verify_step import StepBatch

_FLOATS = (torch.float32, torch.float16, torch.bfloat16)
_CACHES = (*_FLOATS, torch.float8_e4m3fn)


def visible_nodes(ancestors: Tensor) -> Tensor:
    """Ancestor words [nodes, 2] of one request as bool [nodes, nodes]: row i sees column a."""
    nodes = ancestors.shape[0]
    node = torch.arange(nodes, device=ancestors.device)
    return (ancestors[:, node // 64] >> (node % 64)) & 1 != 0


def attend(q: Tensor, k_cache: Tensor, v_cache: Tensor, batch: StepBatch, *, scale: float,
           logit_cap: float = 0.0, k_scale: float = 1.0, v_scale: float = 1.0) -> Tensor:
    """softmax(scale * q . k) v over each node's context and ancestors. logit_cap c, unless 0:
    scores become c * tanh(score / c). k_scale, v_scale: of what the caches hold.

    q [T, heads, key_dim], k_cache [slots, kv_heads, key_dim], v_cache [slots, kv_heads, value_dim];
    float32 [T, heads, value_dim]. A node that sees nothing gives 0.
    """
    group = q.shape[1] // k_cache.shape[1]
    outputs = []
    for r in range(batch.context.shape[0]):
        context, begin = int(batch.context[r]), int(batch.pages_start[r])
        nodes = slice(int(batch.node_start[r]), int(batch.node_start[r + 1]))
        slots = torch.cat([batch.pages[begin : begin + context], batch.tail_slots[nodes]]).long()
        keys = k_cache[slots].float().repeat_interleave(group, dim=1)
        values = v_cache[slots].float().repeat_interleave(group, dim=1)
        scores = torch.einsum("nhd,khd->hnk", q[nodes].float(), keys) * (scale * k_scale)
        if logit_cap:
            scores = logit_cap * torch.tanh(scores / logit_cap)
        sees = visible_nodes(batch.ancestors[nodes])
        sees = torch.cat([sees.new_ones(sees.shape[0], context), sees], dim=1)
        weights = torch.softmax(scores.masked_fill(~sees, -torch.inf), dim=-1).nan_to_num()
        outputs.append(torch.einsum("hnk,khd->nhd", weights, values) * v_scale)
    return torch.cat(outputs)


class ReferenceAttention:
    """The implementation on devices other than CUDA."""

    def refuse(self, call: VerifyCall) -> Refusal | None:
        """What this implementation does not serve; None: go on."""
        if call.q.dtype not in _FLOATS or call.k_buffer.dtype not in _CACHES:
            return Refusal.DTYPE
        return None

    def begin_step(self, batch: StepBatch) -> None:
        self._batch = batch

    def attend(self, call: VerifyCall) -> None:
        """Writes call.out."""
        call.out.copy_(attend(call.q, call.k_buffer, call.v_buffer, self._batch, scale=call.scale,
                              logit_cap=call.logit_cap, k_scale=call.k_descale,
                              v_scale=call.v_descale))
