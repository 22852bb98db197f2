"""The attention backend `kdtree_verify`: SGLang's Triton backend with our tree-verify attention in
its seam for target verification.

TritonAttnBackend.forward_extend asks `verify_splitkv_fwd(...) -> bool` first and runs its own
kernel where that says False; so everything but TARGET_VERIFY, and every call that is refused here,
is SGLang's.
"""

from __future__ import annotations

import logging

import torch
from sglang.srt.layers.attention.triton_backend import TritonAttnBackend

from kdtree.sglang_ext.config import mask_check
from kdtree.sglang_ext.verify_call import (
    MAX_CONTEXT,
    MAX_REQUESTS,
    Refusal,
    Tally,
    VerifyCall,
    refuse_call,
)
from kdtree.sglang_ext.verify_kernels import KernelAttention
from kdtree.sglang_ext.verify_reference import ReferenceAttention
from kdtree.sglang_ext.verify_step import StepBuffers, is_forest, tree_mask

logger = logging.getLogger(__name__)

TALLY = Tally()  # of all backends of this process


class KdtreeVerifyBackend(TritonAttnBackend):
    def __init__(self, model_runner, *args, **kwargs):
        super().__init__(model_runner, *args, **kwargs)
        for name in ("use_verify_splitkv", "verify_splitkv_fwd"):
            if not hasattr(self, name):
                raise RuntimeError(f"kdtree_verify: this SGLang's TritonAttnBackend has no {name}")
        self.use_verify_splitkv = True
        self.use_verify_shared_kv = False  # 0.5.18 on: it would be asked instead
        self.verify_splitkv_fwd = torch.compiler.disable(self._verify)
        self._check = mask_check()
        self._checked_nodes: set[int] = set()
        self._attention = None
        self._buffers = None
        self._layer = self._forward_batch = None
        self._rows_are_saved = False
        self._end_step()
        self._warming_up = False
        _warn_of_draft_backend(model_runner)

    # ---- where a step begins -------------------------------------------------------------------
    # A step's batch is made by its first call, on the device: in a captured graph it is part of the
    # graph. The next step is known by new metadata, or by a layer that does not come after the last
    # one: SGLang runs a step several times, with the metadata of the first, before it captures it.

    def init_forward_metadata(self, forward_batch):
        super().init_forward_metadata(forward_batch)
        self._end_step()
        self._warming_up = False

    def init_forward_metadata_out_graph(self, forward_batch, in_capture: bool = False):
        super().init_forward_metadata_out_graph(forward_batch, in_capture)
        self._end_step()
        self._warming_up = in_capture

    def _end_step(self) -> None:
        self._last_layer = None
        self._step_refusal = None

    def forward_extend(self, q, k, v, layer, forward_batch, save_kv_cache=True, **kwargs):
        """As SGLang's; keeps what the seam is not told."""
        self._layer, self._forward_batch = layer, forward_batch
        self._rows_are_saved = save_kv_cache or k is None
        try:
            return super().forward_extend(q, k, v, layer, forward_batch,
                                          save_kv_cache=save_kv_cache, **kwargs)
        finally:
            self._layer = self._forward_batch = None

    # ---- the seam ------------------------------------------------------------------------------

    def _verify(self, q, k, v, o, k_buffer, v_buffer, qo_indptr, kv_indptr, kv_indices, custom_mask,
                causal, mask_indptr, max_extend_len, k_descale, v_descale, scaling, *, logit_cap,
                sliding_window_size, sinks, window_kv_offsets, xai_temperature_len, max_bs) -> bool:
        """True: o is written. False: nothing was done."""
        call = VerifyCall(
            q=q, out=o, k_buffer=k_buffer, v_buffer=v_buffer, qo_indptr=qo_indptr,
            kv_indptr=kv_indptr, kv_indices=kv_indices, custom_mask=custom_mask, causal=causal,
            mask_indptr=mask_indptr, nodes=max_extend_len, k_descale=k_descale,
            v_descale=v_descale, scale=scaling, logit_cap=logit_cap,
            sliding_window_size=sliding_window_size, sinks=sinks,
            window_kv_offsets=window_kv_offsets, xai_temperature_len=xai_temperature_len)
        refusal = (refuse_call(call) or self._refuse(call) or self._allocate(call, max_bs)
                   or self._attention.refuse(call) or self._enter_step(call))
        if refusal is not None:
            TALLY.refuse(refusal, f"layer {self._layer.layer_id}, q {list(q.shape)} {q.dtype}, "
                                  f"cache {list(k_buffer.shape)} {k_buffer.dtype}")
            return False
        self._attention.attend(call)
        TALLY.serve()
        return True

    def _refuse(self, call: VerifyCall) -> Refusal | None:
        """What depends on the backend or the layer and not on the call alone."""
        if not self._rows_are_saved:
            return Refusal.UNSAVED_ROWS
        if (self._layer.k_scale is not None and self._layer.v_scale is None
                and self._layer.k_scale_float != 1.0):
            return Refusal.KV_SCALE  # SGLang then scales the row that it writes and says nothing
        if getattr(self, "_translate_kv_loc", None) is not None:  # 0.5.15 to 0.5.18
            return Refusal.VIRTUAL_SLOTS
        translator = getattr(self, "kv_index_translator", None)  # 0.5.23
        if translator is not None and translator.is_translating:
            return Refusal.VIRTUAL_SLOTS
        if self.max_context_len > MAX_CONTEXT:
            return Refusal.CONTEXT
        if self._forward_batch.out_cache_loc.shape[0] != call.q.shape[0]:
            return Refusal.RAGGED
        return None

    def _allocate(self, call: VerifyCall, max_bs: int) -> Refusal | None:
        """Makes what outlives a step, at the first call: SGLang makes many backends that never
        verify. That call is never a captured one, since SGLang runs a step before it captures it."""
        if self._attention is not None:
            return None
        if _capturing(call):
            return Refusal.CAPTURE
        requests = min(max(max_bs, call.requests), MAX_REQUESTS)
        device = call.q.device
        self._buffers = StepBuffers(requests, self.max_context_len, device)
        self._attention = (
            KernelAttention(requests, self.max_context_len, device) if device.type == "cuda"
            else ReferenceAttention()
        )
        return None

    def _enter_step(self, call: VerifyCall) -> Refusal | None:
        """Begins a step unless this layer belongs to the present one."""
        layer_id = self._layer.layer_id
        if self._last_layer is None or layer_id <= self._last_layer:
            self._step_refusal = self._check_tree(call)
            if self._step_refusal is None:
                batch = self._buffers.fill(call, self._forward_batch.out_cache_loc)
                self._attention.begin_step(batch)
        self._last_layer = layer_id
        return self._step_refusal

    def _check_tree(self, call: VerifyCall) -> Refusal | None:
        """Looks at the mask, which makes the host wait for the device. Not possible in a capture,
        and pointless in the runs before it, whose masks are made up. A mask that is not looked at
        still means what it says: the kernels take its bits as they are, and a node's own as set."""
        if self._check == "off" or call.custom_mask is None or self._warming_up:
            return None
        if self._check == "first" and call.nodes in self._checked_nodes:
            return None
        if _capturing(call):
            return None
        if not bool(is_forest(tree_mask(call))):
            return Refusal.NO_TREE
        self._checked_nodes.add(call.nodes)
        return None


def _capturing(call: VerifyCall) -> bool:
    return call.q.is_cuda and torch.cuda.is_current_stream_capturing()


def _warn_of_draft_backend(model_runner) -> None:
    """Draft workers know their backends by name; another name falls back to flashinfer, or fails."""
    args = model_runner.server_args
    if model_runner.is_draft_worker or not getattr(args, "speculative_algorithm", None):
        return
    if getattr(args, "speculative_draft_attention_backend", None) is None:
        logger.warning("kdtree_verify: no draft worker has this backend; pass "
                       "--speculative-draft-attention-backend triton")
