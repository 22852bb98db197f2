"""Tree-verify attention by the CUDA kernels of kdtree.kernels."""

from __future__ import annotations

import torch

from kdtree import kernels
from kdtree.sglang_ext.verify_call import MAX_NODES, Refusal, VerifyCall
from kdtree.sglang_ext.verify_step import StepBatch

_GQA_HEAD_DIMS = (64, 96, 128, 256)
_MAX_GROUP = 16
_MAX_HEADS = 128


def _is_mla(call: VerifyCall) -> bool:
    """One latent row a token, whose first values are V."""
    return (
        call.shares_rows
        and call.key_dim == kernels.MLA_DIM
        and call.value_dim == kernels.MLA_LATENT
    )


def shape_of(call: VerifyCall) -> kernels.AttnShape | None:
    """The kernels' shape of a layer; None: there is none."""
    if call.heads > _MAX_HEADS:
        return None
    kv_format = kernels.KvFormat.FP8 if call.is_fp8 else kernels.KvFormat.BF16
    if _is_mla(call):
        return kernels.AttnShape(kernels.AttnKind.MLA, call.heads, kv_format=kv_format)
    if call.key_dim != call.value_dim or call.key_dim not in _GQA_HEAD_DIMS:
        return None
    if call.heads // call.kv_heads > _MAX_GROUP:
        return None
    return kernels.AttnShape(kernels.AttnKind.GQA, call.heads, call.kv_heads, call.key_dim,
                             kv_format)


def _aligned(tensor: torch.Tensor) -> bool:
    """Rows and heads begin at multiples of 16 bytes."""
    return all(stride * tensor.element_size() % 16 == 0 for stride in tensor.stride()[:2])


class KernelAttention:
    """The implementation on CUDA. One workspace for each shape of layers, as long as the backend
    lives: captured graphs hold its address."""

    def __init__(self, requests: int, max_context: int, device: torch.device | str):
        self._requests = requests
        self._max_context = max_context
        self._device = device
        self._workspaces: dict[kernels.AttnShape, kernels.Workspace] = {}
        self._planned: set[kernels.AttnShape] = set()  # in this step
        self._refused: dict[kernels.AttnShape, Refusal] = {}

    def refuse(self, call: VerifyCall) -> Refusal | None:
        """What the kernels do not serve; None: go on."""
        cache = torch.float8_e4m3fn if call.is_fp8 else torch.bfloat16
        if call.q.dtype != torch.bfloat16 or call.out.dtype != torch.bfloat16:
            return Refusal.DTYPE
        if call.k_buffer.dtype != cache or call.v_buffer.dtype != cache:
            return Refusal.DTYPE
        shape = shape_of(call)
        if shape is None:
            return Refusal.SHAPE
        if not call.out.is_contiguous() or call.q.stride(2) != 1 or call.k_buffer.stride(2) != 1:
            return Refusal.LAYOUT
        if not _aligned(call.q) or not _aligned(call.k_buffer):
            return Refusal.LAYOUT
        if shape.kind == kernels.AttnKind.GQA and call.k_buffer.stride() != call.v_buffer.stride():
            return Refusal.LAYOUT
        return self._prepare(shape)

    def _prepare(self, shape: kernels.AttnShape) -> Refusal | None:
        """Makes the workspace of a shape that is met for the first time. SGLang runs each step
        eagerly before it captures it, so this is not part of a capture."""
        if shape in self._workspaces:
            return None
        if shape not in self._refused:
            try:
                self._workspaces[shape] = kernels.Workspace(
                    shape, self._requests, self._requests * MAX_NODES, self._max_context,
                    self._device)
                return None
            except kernels.KernelError as error:
                unfit = (kernels.Status.INVALID, kernels.Status.UNSUPPORTED)
                if error.status is None:
                    self._refused[shape] = Refusal.LIBRARY
                elif error.status in unfit:
                    self._refused[shape] = Refusal.DEVICE
                else:
                    raise
        return self._refused[shape]

    def begin_step(self, batch: StepBatch) -> None:
        self._batch = kernels.AttnBatch(
            context=batch.context, node_start=batch.node_start, tail_slots=batch.tail_slots,
            ancestors=batch.ancestors, pages=batch.pages, pages_start=batch.pages_start,
            max_context=batch.max_context)
        self._planned.clear()

    def attend(self, call: VerifyCall) -> None:
        """Writes call.out. The step's first layer of each shape plans it."""
        shape = shape_of(call)
        workspace = self._workspaces[shape]
        if shape not in self._planned:
            kernels.attn_plan(shape, self._batch, workspace)
            self._planned.add(shape)
        if shape.kind == kernels.AttnKind.MLA:
            kernels.attn_verify_mla(
                shape, self._batch, call.q[..., : kernels.MLA_LATENT],
                call.q[..., kernels.MLA_LATENT :], call.k_buffer, call.out, workspace,
                scale=call.scale, logit_cap=call.logit_cap, kv_scale=call.k_descale)
        else:
            kernels.attn_verify_gqa(shape, self._batch, call.q, call.k_buffer, call.v_buffer,
                                    call.out, workspace, scale=call.scale,
                                    logit_cap=call.logit_cap, k_scale=call.k_descale,
                                    v_scale=call.v_descale)
