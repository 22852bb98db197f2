"""SGLang's verify metadata as kdt_attn_batch of kdtree/kernels.h.

SGLang                                           kdt_attn_batch
kv_indptr[r + 1] - kv_indptr[r]                  context[r]
qo_indptr                                        node_start
forward_batch.out_cache_loc                      tail_slots
kv_indices, kv_indptr                            pages, pages_start; page_size 1, so that SGLang's
                                                 own page size does not matter
custom_mask, its last `nodes` columns of a row   ancestors, two 64-bit words a node
(no mask, causal)                                ancestors of a chain

Everything is plain torch on the tensors' device: no value is read by the host and the results lie
in buffers that are allocated once, so a step may be part of a captured CUDA graph.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kdtree.sglang_ext.verify_call import MAX_NODES, VerifyCall

_WORD_BITS = 64


@dataclass(frozen=True)
class StepBatch:
    """Views of StepBuffers for one step: the arrays of kdt_attn_batch with page_size 1."""

    context: Tensor  # int32 [requests]
    node_start: Tensor  # int32 [requests + 1]
    tail_slots: Tensor  # int32 [requests * nodes]
    ancestors: Tensor  # int64 [requests * nodes, 2]
    pages: Tensor  # int32 [n], of all requests
    pages_start: Tensor  # int64 [requests]
    max_context: int


def tree_mask(call: VerifyCall) -> Tensor:
    """The part of the mask that speaks of tree nodes: bool [requests, nodes, nodes]. SGLang's own
    kernel takes the context's columns for true, too."""
    context = (call.kv_indptr[1:] - call.kv_indptr[:-1]).to(torch.int64)
    node = torch.arange(call.nodes, device=call.q.device)
    row = context + call.nodes
    first = call.mask_indptr[: call.requests].to(torch.int64) + context
    cell = first[:, None, None] + node[:, None] * row[:, None, None] + node
    return call.custom_mask[cell] != 0


def is_forest(mask: Tensor) -> Tensor:
    """Whether a tree mask [requests, nodes, nodes] is one of trees numbered parent before child: a
    bool of no dimension. A node's row has to be its parent's row and the node itself."""
    nodes = mask.shape[1]
    self_bit = torch.eye(nodes, dtype=torch.bool, device=mask.device)
    above = mask & ~self_bit
    node = torch.arange(nodes, device=mask.device)
    parent = torch.where(above, node, -1).amax(dim=2)
    parents_row = mask.gather(1, parent.clamp(min=0)[:, :, None].expand(-1, -1, nodes))
    parents_row = parents_row & (parent >= 0)[:, :, None]
    return (
        (mask | ~self_bit).all() & (parent < node).all() & (above == parents_row).all()
    )


def _bit(node: int) -> int:
    """2^(node % 64) as an int64."""
    value = 1 << (node % _WORD_BITS)
    return value - (1 << _WORD_BITS) if value >> (_WORD_BITS - 1) else value


class StepBuffers:
    """The arrays of the largest step, allocated once; each step refills them."""

    def __init__(self, requests: int, max_context: int, device: torch.device | str):
        nodes = requests * MAX_NODES
        self.max_context = max_context
        self._context = torch.zeros(requests, dtype=torch.int32, device=device)
        self._node_start = torch.zeros(requests + 1, dtype=torch.int32, device=device)
        self._tail_slots = torch.zeros(nodes, dtype=torch.int32, device=device)
        self._ancestors = torch.zeros(nodes, 2, dtype=torch.int64, device=device)
        self._pages = torch.zeros(requests * max_context, dtype=torch.int32, device=device)
        self._pages_start = torch.zeros(requests, dtype=torch.int64, device=device)
        # [128, 2]: the words of a node with no ancestors, and of the last node of a chain.
        self._self_words = torch.tensor(
            [[_bit(i) if i // _WORD_BITS == word else 0 for word in range(2)]
             for i in range(MAX_NODES)], dtype=torch.int64, device=device)
        self._chain_words = self._self_words.cumsum(0)

    def fill(self, call: VerifyCall, out_cache_loc: Tensor) -> StepBatch:
        """The step of a call. out_cache_loc [requests * nodes]: where the new rows are."""
        requests, nodes = call.requests, call.nodes
        rows = requests * nodes
        # What lies beyond the contexts in kv_indices (a captured graph's buffer is of full size) is
        # copied with them and never read.
        slots = min(call.kv_indices.shape[0], requests * self.max_context)
        batch = StepBatch(
            context=self._context[:requests],
            node_start=self._node_start[: requests + 1],
            tail_slots=self._tail_slots[:rows],
            ancestors=self._ancestors[:rows],
            pages=self._pages[: max(slots, 1)],  # an empty tensor has no address
            pages_start=self._pages_start[:requests],
            max_context=self.max_context,
        )
        batch.context.copy_(call.kv_indptr[1:] - call.kv_indptr[:-1])
        batch.node_start.copy_(call.qo_indptr)
        batch.tail_slots.copy_(out_cache_loc)
        batch.pages[:slots].copy_(call.kv_indices[:slots])
        batch.pages_start.copy_(call.kv_indptr[:-1])
        words = batch.ancestors.view(requests, nodes, 2)
        if call.custom_mask is None:
            words.copy_(self._chain_words[:nodes])
        else:
            self._mask_words(tree_mask(call), words)
        return batch

    def _mask_words(self, mask: Tensor, words: Tensor) -> None:
        """A mask [requests, nodes, nodes] as words [requests, nodes, 2]. A node always sees itself:
        the rows that pad a captured graph have any mask, and the kernels demand that bit."""
        nodes = mask.shape[1]
        bits = mask.to(torch.int64)
        for word in range(2):
            columns = slice(word * _WORD_BITS, min(nodes, (word + 1) * _WORD_BITS))
            weights = self._self_words[columns, word]
            words[:, :, word] = (bits[:, :, columns] * weights).sum(2)
        words |= self._self_words[:nodes]
