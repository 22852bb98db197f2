"""A verify step of bench/sglang_verify.py: its case, metadata, queries and caches."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch

from kdtree.sglang_ext.verify_call import VerifyCall

LATENT, DIM = 512, 576
SCALE = 192**-0.5  # a query head of the model has 128 + 64 values before absorption
INTERPRETED = torch.float32  # Triton's interpreter computes nonsense in bfloat16
TREE, CHAIN = "tree", "chain"


@dataclass(frozen=True)
class Case:
    heads: int
    nodes: int
    context: int
    requests: int
    layers: int
    page_size: int


class Data:
    """A step's metadata as SGLang has it, and the layers' queries and caches."""

    def __init__(self, case: Case, device: str):
        self.case = case
        generator = torch.Generator(device).manual_seed(case.nodes * 1000003 + case.context)
        rows, keys = case.requests * case.nodes, case.context + case.nodes
        pages = -(-keys // case.page_size)
        slots = (1 + case.requests * pages) * case.page_size  # page 0 is padding

        self.dtype = torch.bfloat16 if device == "cuda" else INTERPRETED

        def normal(*shape):
            return torch.randn(*shape, generator=generator, dtype=self.dtype, device=device)

        self.caches = [normal(slots, 1, DIM) for _ in range(case.layers)]
        self.queries = [normal(rows, case.heads, DIM) for _ in range(case.layers)]
        order = 1 + torch.randperm(case.requests * pages, generator=generator, device=device)
        table = (order.view(case.requests, pages, 1) * case.page_size
                 + torch.arange(case.page_size, device=device)).flatten(1)
        self.kv_indices = table[:, : case.context].flatten()
        self.out_cache_loc = table[:, case.context : keys].flatten()
        self.qo_indptr = torch.arange(case.requests + 1, dtype=torch.int32,
                                      device=device) * case.nodes
        self.kv_indptr = torch.arange(case.requests + 1, dtype=torch.int32,
                                      device=device) * case.context
        self.mask_indptr = torch.arange(case.requests + 1, device=device) * (case.nodes * keys)
        # uint8, as the buffer of a captured graph.
        mask = torch.ones(case.requests, case.nodes, keys, dtype=torch.uint8)
        source = random.Random(case.nodes)
        for request in mask:
            request[:, case.context :] = torch.tensor(_random_tree(source, case.nodes))
        self.mask = mask.flatten().to(device)

    def call(self, layer: int, out: torch.Tensor, mask: str) -> VerifyCall:
        cache = self.caches[layer]
        return VerifyCall(
            q=self.queries[layer], out=out, k_buffer=cache, v_buffer=cache[..., :LATENT],
            qo_indptr=self.qo_indptr, kv_indptr=self.kv_indptr, kv_indices=self.kv_indices,
            custom_mask=self.mask if mask == TREE else None, causal=True,
            mask_indptr=self.mask_indptr, nodes=self.case.nodes, k_descale=1.0, v_descale=1.0,
            scale=SCALE)


def _random_tree(source: random.Random, nodes: int) -> list[list[int]]:
    rows: list[list[int]] = []
    for i in range(nodes):
        row = list(rows[source.randrange(i)]) if i else [0] * nodes
        row[i] = 1
        rows.append(row)
    return rows
