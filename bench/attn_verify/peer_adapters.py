"""What peers.py compares: one adapter each for our kernel and the public ones.

An adapter has
    name, mask ("tree" or "chain"), page    what it computes and on which page size
    available() -> str | None               why it cannot run here; None: it can
    prepare(data)                           tables, plans and outputs of one case
    run(pool)                               one layer on cache `pool`, on torch's current stream
    output() -> Tensor                      of the last run(0), [nodes, heads, 512]
    expected_slots(data), expected_mask(data)   what output() must agree with
run() allocates nothing of its own, or only from the graph's memory pool.
"""

from __future__ import annotations

import inspect
import random
from dataclasses import dataclass

import torch
from sglang_files import kernel_module

LATENT, ROPE = 512, 64
DIM = LATENT + ROPE
SCALE = 192**-0.5  # a query head of the model has 128 + 64 values before absorption
PAGE = 64
MAX_DEPTH = 16


@dataclass(frozen=True)
class Case:
    heads: int
    nodes: int  # of one request
    context: int
    batch: int = 1

    def min_bytes(self) -> float:
        keys = self.context + self.nodes
        return self.batch * (keys * DIM * 2 + self.nodes * self.heads * (DIM + LATENT) * 2)

    def flops(self) -> float:
        keys = self.context + self.nodes
        return 2.0 * self.batch * self.nodes * self.heads * keys * (DIM + LATENT)


def random_tree(nodes: int, source: random.Random) -> list[int]:
    """Parents; -1: the root."""
    parents, depth = [-1], [0]
    for node in range(1, nodes):
        parent = source.randrange(node)
        while depth[parent] >= MAX_DEPTH:
            parent = source.randrange(node)
        parents.append(parent)
        depth.append(depth[parent] + 1)
    return parents


def visible_nodes(parents: list[int]) -> list[int]:
    """Bit a of word i: node i sees node a."""
    seen: list[int] = []
    for node, parent in enumerate(parents):
        seen.append(1 << node | (seen[parent] if parent >= 0 else 0))
    return seen


class Data:
    """Caches, queries and tables of one case: `pools` latent caches of the same slots, as the
    layers of a model have them, more than three times the L2 in all."""

    def __init__(self, case: Case, l2_bytes: int):
        self.case = case
        source = random.Random(case.context * 1000 + case.nodes)
        generator = torch.Generator(device="cuda").manual_seed(case.context + case.nodes)
        keys = case.context + case.nodes
        self.blocks = -(-keys // PAGE)  # of a request
        self.slots = case.batch * self.blocks * PAGE
        self.total_nodes = case.batch * case.nodes
        cache_bytes = self.slots * DIM * 2
        self.pools = min(256, max(4, 3 * l2_bytes // cache_bytes + 1))
        self.kv = torch.empty(self.pools, self.slots, DIM, dtype=torch.bfloat16, device="cuda")
        self.kv.uniform_(-1, 1, generator=generator)
        shape = (self.pools, self.total_nodes, case.heads)
        self.q = torch.empty(*shape, DIM, dtype=torch.bfloat16, device="cuda")
        self.q.normal_(generator=generator)
        self.q_latent = self.q[..., :LATENT].contiguous()
        self.q_rope = self.q[..., LATENT:].contiguous()

        # Page size 1: the slot of each position of a request, [batch, context + nodes].
        order = torch.randperm(self.slots, generator=generator, device="cuda")
        self.slot_table = order.view(case.batch, -1)[:, :keys].contiguous()
        self.tail = self.slot_table[:, case.context:].reshape(-1)
        self.kv[:, self.tail] *= 3  # a heavy tail, so that a fault of the mask shows
        # Page size 64: [batch, blocks].
        blocks = torch.randperm(case.batch * self.blocks, generator=generator, device="cuda")
        self.block_table = blocks.view(case.batch, -1).to(torch.int32)

        self.parents = [random_tree(case.nodes, source) for _ in range(case.batch)]
        self.visible = [visible_nodes(parents) for parents in self.parents]

    def tree_mask(self) -> torch.Tensor:
        """bool [batch, nodes, nodes]."""
        rows = [[[word >> a & 1 == 1 for a in range(self.case.nodes)] for word in words]
                for words in self.visible]
        return torch.tensor(rows, dtype=torch.bool, device="cuda")

    def chain_mask(self) -> torch.Tensor:
        ones = torch.ones(self.case.nodes, self.case.nodes, dtype=torch.bool, device="cuda")
        return ones.tril().expand(self.case.batch, -1, -1)

    def page_slots(self) -> torch.Tensor:
        """The slot of each position by the block table, [batch, context + nodes]."""
        at = torch.arange(self.case.context + self.case.nodes, device="cuda")
        return self.block_table[:, at // PAGE].long() * PAGE + at % PAGE

    def starts(self, step: int, dtype=torch.int32) -> torch.Tensor:
        """[batch + 1]: 0, step, 2 step, ..."""
        return torch.arange(self.case.batch + 1, device="cuda", dtype=dtype) * step


def expected(data: Data, slots: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Attention of cache 0 in float32, [nodes, heads, 512]."""
    case = data.case
    out = []
    for r in range(case.batch):
        rows = data.kv[0][slots[r]].float()
        q = data.q[0, r * case.nodes:(r + 1) * case.nodes].float()
        scores = torch.matmul(q.reshape(-1, DIM), rows.T).mul_(SCALE)
        scores = scores.view(case.nodes, case.heads, -1)
        scores[:, :, case.context:].masked_fill_(~mask[r][:, None, :], float("-inf"))
        weights = scores.softmax(-1).view(case.nodes * case.heads, -1)
        out.append(torch.matmul(weights, rows[:, :LATENT]).view(case.nodes, case.heads, LATENT))
    return torch.cat(out)


class PageSizeOne:
    """What adapters of page size 1 have in common."""

    page = 1

    def expected_slots(self, data: Data) -> torch.Tensor:
        return data.slot_table

    def expected_mask(self, data: Data) -> torch.Tensor:
        return data.tree_mask() if self.mask == "tree" else data.chain_mask()

    def make_outputs(self, data: Data) -> torch.Tensor:
        shape = (data.pools, data.total_nodes, data.case.heads, LATENT)
        return torch.full(shape, float("nan"), dtype=torch.bfloat16, device="cuda")

    def output(self) -> torch.Tensor:
        return self.out[0]


class Kdtree(PageSizeOne):
    """Ours. The plan is made once, ahead, as in a step of many layers."""

    name, mask = "kdtree", "tree"

    def available(self) -> str | None:
        try:
            from kdtree import kernels

            kernels.version()
        except Exception as error:  # noqa: BLE001  (whatever it is, it is the reason)
            return str(error)
        return None

    def prepare(self, data: Data) -> None:
        from kdtree import kernels as kd

        case, ints = data.case, {"dtype": torch.int32, "device": "cuda"}
        words = [[word & (1 << 64) - 1, word >> 64] for words in data.visible for word in words]
        signed = [[w - (1 << 64) if w >> 63 else w for w in pair] for pair in words]
        self.data, self.kd, self.out = data, kd, self.make_outputs(data)
        self.shape = kd.AttnShape(kd.AttnKind.MLA, heads=case.heads)
        self.batch = kd.AttnBatch(
            context=torch.full((case.batch,), case.context, **ints),
            node_start=data.starts(case.nodes),
            tail_slots=data.tail.to(torch.int32),
            ancestors=torch.tensor(signed, dtype=torch.int64, device="cuda"),
            pages=data.slot_table[:, :max(case.context, 1)].to(torch.int32),
            max_context=case.context,
        )
        self.workspace = kd.Workspace(self.shape, case.batch, data.total_nodes, case.context)
        kd.attn_plan(self.shape, self.batch, self.workspace)

    def run(self, pool: int) -> None:
        data = self.data
        self.kd.attn_verify_mla(self.shape, self.batch, data.q_latent[pool], data.q_rope[pool],
                                data.kv[pool], self.out[pool], self.workspace, scale=SCALE)

    def splits(self) -> float:
        """Work units by row tiles; the plan's header is the first thing in the workspace."""
        case = self.data.case
        units = int(self.workspace.tensor[:4].view(torch.int32).item())
        return units / (case.batch * -(-case.nodes * case.heads // 64))


class FlashMla:
    """FlashMLA's dense decode for Hopper, from the sgl-flash-mla (or flash-mla) package."""

    name, mask, page = "flashmla", "chain", PAGE

    def available(self) -> str | None:
        if torch.cuda.get_device_capability()[0] != 9:
            return "its dense kernel is for sm_90"
        try:
            import flash_mla

            if hasattr(flash_mla, "has_legacy") and not flash_mla.has_legacy():
                return "this build of flash_mla has no kernels for sm_90"
        except Exception as error:  # noqa: BLE001
            return f"import flash_mla: {error}"
        return None

    def prepare(self, data: Data) -> None:
        import flash_mla

        case = data.case
        self.data, self.call = data, flash_mla.flash_mla_with_kvcache
        legacy = "use_legacy" in inspect.signature(self.call).parameters
        self.options = {"use_legacy": True} if legacy else {}
        self.seqlens = torch.full((case.batch,), case.context + case.nodes, dtype=torch.int32,
                                  device="cuda")
        self.schedule = flash_mla.get_mla_metadata()[0]  # filled by the first run

    def run(self, pool: int) -> None:
        data, case = self.data, self.data.case
        out, _ = self.call(
            data.q[pool].view(case.batch, case.nodes, case.heads, DIM),
            data.kv[pool].view(-1, PAGE, 1, DIM),
            data.block_table,
            self.seqlens,
            LATENT,
            self.schedule,
            None,
            softmax_scale=SCALE,
            causal=True,
            is_fp8_kvcache=False,
            **self.options,
        )
        if pool == 0:
            self.out = out

    def output(self) -> torch.Tensor:
        return self.out.reshape(self.data.total_nodes, self.data.case.heads, LATENT)

    def expected_slots(self, data: Data) -> torch.Tensor:
        return data.page_slots()

    def expected_mask(self, data: Data) -> torch.Tensor:
        return data.chain_mask()


class FlashInfer(PageSizeOne):
    """FlashInfer's MLA wrapper; the plan is made once, ahead."""

    mask = "chain"
    WORKSPACE_BYTES = 384 << 20

    def __init__(self, backend: str):
        self.backend, self.name = backend, f"flashinfer_{backend}"
        self.workspace = None

    def available(self) -> str | None:
        if self.backend == "fa3" and torch.cuda.get_device_capability()[0] != 9:
            return "fa3 is for sm_90"
        try:
            import flashinfer.mla  # noqa: F401
        except Exception as error:  # noqa: BLE001
            return f"import flashinfer: {error}"
        return None

    def prepare(self, data: Data) -> None:
        import flashinfer.mla

        case = data.case
        keys = case.context + case.nodes
        if self.workspace is None:
            self.workspace = torch.empty(self.WORKSPACE_BYTES, dtype=torch.uint8, device="cuda")
        self.data, self.out = data, self.make_outputs(data)
        self.wrapper = flashinfer.mla.BatchMLAPagedAttentionWrapper(
            self.workspace, backend=self.backend)
        self.wrapper.plan(
            data.starts(case.nodes),
            data.starts(keys),
            data.slot_table.reshape(-1).to(torch.int32),
            torch.full((case.batch,), keys, dtype=torch.int32, device="cuda"),
            case.heads,
            LATENT,
            ROPE,
            1,  # page size
            True,  # causal
            SCALE,
            torch.bfloat16,
            torch.bfloat16,
        )

    def run(self, pool: int) -> None:
        data = self.data
        cache = data.kv[pool].view(-1, 1, DIM)
        self.wrapper.run(data.q_latent[pool], data.q_rope[pool], cache[..., :LATENT],
                         cache[..., LATENT:], out=self.out[pool])


class SglangTriton(PageSizeOne):
    """SGLang's Triton extend kernel with the custom mask: its path for draft trees today."""

    name, mask = "sglang_extend", "tree"

    def available(self) -> str | None:
        try:
            self.module = kernel_module("extend_attention")
        except Exception as error:  # noqa: BLE001
            return f"import of SGLang's extend_attention: {error}"
        return None

    def prepare(self, data: Data) -> None:
        case = data.case
        keys = case.context + case.nodes
        self.data, self.out = data, self.make_outputs(data)
        self.new_rows = data.kv[:, data.tail].view(data.pools, data.total_nodes, 1, DIM)
        mask = torch.ones(case.batch, case.nodes, keys, dtype=torch.bool, device="cuda")
        mask[:, :, case.context:] = data.tree_mask()
        self.custom_mask = mask.reshape(-1)
        self.qo_indptr = data.starts(case.nodes)
        self.kv_indptr = data.starts(case.context)
        self.kv_indices = data.slot_table[:, :case.context].reshape(-1).contiguous()
        self.mask_indptr = data.starts(case.nodes * keys, torch.int64)

    def run(self, pool: int) -> None:
        data = self.data
        cache, new = data.kv[pool].view(-1, 1, DIM), self.new_rows[pool]
        self.module.extend_attention_fwd(
            data.q[pool],
            new,
            new[..., :LATENT],
            self.out[pool],
            cache,
            cache[..., :LATENT],
            self.qo_indptr,
            self.kv_indptr,
            self.kv_indices,
            self.custom_mask,
            True,  # is_causal: ignored where there is a custom mask
            self.mask_indptr,
            data.case.nodes,
            1.0,
            1.0,
            sm_scale=SCALE,
        )


def all_peers() -> list:
    return [FlashMla(), FlashInfer("fa3"), FlashInfer("fa2"), SglangTriton()]
