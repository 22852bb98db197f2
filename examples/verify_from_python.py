#!/usr/bin/env python3
"""Verifies a small draft tree on a random latent cache, from PyTorch.

    PYTHONPATH=python KDTREE_LIBRARY_PATH=build/cuda examples/verify_from_python.py

Needs torch and a GPU. Compares the kernel with a plain float64 computation and prints the relative
L2 difference; exit code 1 if it is too large.
"""

import sys

import torch

from kdtree import kernels as kd

HEADS = 8
CONTEXT = 1000
SCALE = 192**-0.5  # a head of the model has 128 + 64 query values

# Node 0 is the last emitted token. Two drafts follow it, one of them with two children.
PARENT = [-1, 0, 0, 1, 1, 3]
NODES = len(PARENT)


def ancestor_words(parent: list[int]) -> list[list[int]]:
    """Per node 128 bits in two words: itself and its ancestors. Here all fit in the first."""
    seen: list[int] = []
    for node, above in enumerate(parent):
        seen.append(1 << node | (seen[above] if above >= 0 else 0))
    return [[bits, 0] for bits in seen]


def main() -> int:
    torch.manual_seed(1)
    cuda = {"device": "cuda"}
    ints = {"dtype": torch.int32, **cuda}

    # The cache: one row of 512 latent and 64 rope values a token; any slot for any token.
    slots = torch.randperm(CONTEXT + NODES, **cuda).to(torch.int32)
    kv = torch.randn(CONTEXT + NODES, 576, **cuda).bfloat16()
    q = torch.randn(NODES, HEADS, 576, **cuda).bfloat16()  # absorbed query and its rope part
    out = torch.empty(NODES, HEADS, 512, dtype=torch.bfloat16, **cuda)
    words = ancestor_words(PARENT)

    shape = kd.AttnShape(kd.AttnKind.MLA, heads=HEADS)
    batch = kd.AttnBatch(
        context=torch.tensor([CONTEXT], **ints),
        node_start=torch.tensor([0, NODES], **ints),
        tail_slots=slots[CONTEXT:].contiguous(),
        ancestors=torch.tensor(words, dtype=torch.int64, **cuda),
        pages=slots[:CONTEXT].reshape(1, CONTEXT),  # page size 1: a page id is a slot
        max_context=CONTEXT,
    )
    workspace = kd.Workspace(shape, requests=1, max_nodes=NODES, max_context=CONTEXT)
    kd.attn_plan(shape, batch, workspace)  # once a step, for all layers
    kd.attn_verify_mla(shape, batch, q[..., :512], q[..., 512:], kv, out, workspace, scale=SCALE)

    # The same, plainly: every node sees the context and its own path.
    keys = kv[slots.long()].double()
    visible = torch.ones(NODES, CONTEXT + NODES, dtype=torch.bool, **cuda)
    for node in range(NODES):
        for other in range(NODES):
            visible[node, CONTEXT + other] = bool(words[node][0] >> other & 1)
    scores = torch.einsum("nhd,kd->nhk", q.double(), keys) * SCALE
    scores.masked_fill_(~visible[:, None, :], float("-inf"))
    expected = torch.einsum("nhk,kd->nhd", scores.softmax(-1), keys[:, :512])

    difference = ((out.double() - expected).norm() / expected.norm()).item()
    print(f"{kd.version()}: {NODES} nodes, {HEADS} heads, context {CONTEXT}: "
          f"relative L2 {difference:.2e}")
    return 0 if difference < 3e-3 else 1


if __name__ == "__main__":
    sys.exit(main())
