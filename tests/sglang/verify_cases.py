"""One verify step of one layer on SGLang's own pools and backends, and its exact result.

Import after verify_support.require_sglang().
"""

from __future__ import annotations

import unittest
from dataclasses import dataclass, replace

import numpy
import torch
import verify_support as support
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.model_executor.forward_context import ForwardContext, forward_context
from sglang.test.kits.attention_unittest.attention_methods import dense_attention as dense
from sglang.test.kits.attention_unittest.attention_methods import mla_attention as mla
from sglang.test.kits.attention_unittest.runner_modes import (
    speculative_target_verify_runner as verify_kit,
)


class Strict(unittest.TestCase):
    """The kit skips a test where a backend cannot be made; here that is a failure."""

    def skipTest(self, reason):
        self.fail(f"skipped: {reason}")


@dataclass(frozen=True)
class Case:
    prefix_lens: tuple[int, ...]
    nodes: int
    heads: int = 4
    kv_heads: int = 1
    key_dim: int = 48
    value_dim: int = 32  # below key_dim: MLA
    page_size: int = 1
    dtype: torch.dtype = torch.float32
    fp8_cache: bool = False
    kv_scales: tuple[float, float] | None = None  # of K and V in an FP8 cache
    logit_cap: float = 0.0
    window: int | None = None  # GQA
    trees: str = "random"  # or "chain"
    spec_kind: str = "eagle"
    layout: str = "shuffled_pages"
    seed: int = 1
    device: str = "cpu"

    @property
    def mla(self) -> bool:
        return self.value_dim < self.key_dim

    @property
    def max_context_len(self) -> int:
        room = max(self.prefix_lens) + self.nodes
        return -(-room // self.page_size) * self.page_size


def replays(case: Case) -> list[Case]:
    """What a graph of this case, of three requests, is replayed with: other trees, contexts and
    slots, the longest context elsewhere; at the end two requests, then one."""
    most = max(case.prefix_lens)
    contexts = ((1, most, most // 2), (most, 0, most // 3), (most // 4, most), (most,))
    layouts = ("interleaved_pages", "non_monotonic_extend", "contiguous", "shuffled_pages")
    return [replace(case, prefix_lens=lens, layout=layout, seed=31 + number)
            for number, (lens, layout) in enumerate(zip(contexts, layouts))]


def _make_fp8(pool) -> None:
    """Turns a fresh MHA pool into one of FP8 values; the kit has no such fixture."""
    pool.dtype, pool.store_dtype = torch.float8_e4m3fn, torch.uint8
    for buffers in (pool.k_buffer, pool.v_buffer):
        buffers[:] = [torch.zeros(each.shape, dtype=torch.uint8, device=each.device)
                      for each in buffers]


class Step:
    """The step's batch, rows and caches under one backend; the same values for every backend."""

    @torch.no_grad()  # the kit's weights are parameters, which 0.5.23 writes to its cache as such
    def __init__(self, testcase, case: Case, backend: str):
        self.case = case
        random = numpy.random.default_rng(case.seed)
        extend_lens = (case.nodes,) * len(case.prefix_lens)
        common = dict(name="case", backend=backend, forward_mode=ForwardMode.TARGET_VERIFY,
                      num_heads=case.heads, page_size=case.page_size,
                      prefix_lens=case.prefix_lens, extend_lens=extend_lens)
        sizes = dict(max_context_len=case.max_context_len, dtype=case.dtype, device=case.device,
                     hidden_size=16, loc_layout=case.layout)
        if case.mla:
            kit_case = mla.MLAAttentionCase(**common)
            fixture = mla.build_mla_attention_fixture(
                testcase, kit_case, kv_lora_rank=case.value_dim,
                qk_rope_head_dim=case.key_dim - case.value_dim, fp8_kv_cache=case.fp8_cache,
                **sizes)
            self.layer = fixture.actual_module.attn_mqa
        else:
            kit_case = dense.DenseAttentionCase(**common, num_kv_heads=case.kv_heads,
                                                sliding_window_size=case.window)
            fixture = dense.build_dense_attention_fixture(testcase, kit_case,
                                                          head_dim=case.key_dim, **sizes)
            self.layer = fixture.actual_module.attn
            if case.fp8_cache:
                _make_fp8(fixture.runner.token_to_kv_pool)
        self.layer.logit_cap = case.logit_cap
        if case.kv_scales is not None:
            self.layer.k_scale_float, self.layer.v_scale_float = case.kv_scales
            self.layer.k_scale, self.layer.v_scale = (
                torch.tensor(scale, device=case.device) for scale in case.kv_scales)
        self.backend, self.runner = fixture.backend, fixture.runner
        self.pool = fixture.runner.token_to_kv_pool
        self.batch = fixture.forward_batch
        verify_kit._prepare_target_verify_batch(self.batch, kit_case, case.device)
        self.batch.spec_info = verify_kit._make_spec_verify_input(
            kit_case, self.batch, topk=1, device=case.device, spec_kind=case.spec_kind)

        parents = [support.random_parents(random, case.nodes) if case.trees == "random"
                   else support.chain_parents(case.nodes) for _ in case.prefix_lens]
        self.masks = [torch.tensor(support.mask_of(p), device=case.device) for p in parents]
        self.set_masks(self.masks)
        rows = case.nodes * len(case.prefix_lens)
        self.q = self._normal(random, rows, case.heads, case.key_dim)
        self.k = self._normal(random, rows, case.kv_heads, case.key_dim)
        self.v = self.k[..., : case.value_dim] if case.mla else self._normal(
            random, rows, case.kv_heads, case.value_dim)
        self._fill_pool(random)

    def _cached(self, rows: torch.Tensor, scale: float) -> torch.Tensor:
        """What the cache makes of rows."""
        if not self.case.fp8_cache:
            return rows
        return (rows / scale).to(torch.float8_e4m3fn).to(rows.dtype) * scale

    def _normal(self, random, *shape: int) -> torch.Tensor:
        values = torch.from_numpy(random.standard_normal(shape))
        return values.to(self.case.device, self.case.dtype)

    def set_masks(self, masks: list[torch.Tensor] | None) -> None:
        """Tree masks bool [nodes, nodes], one a request."""
        self.batch.spec_info.custom_mask = None if masks is None else torch.cat([
            torch.cat([mask.new_ones(mask.shape[0], prefix), mask], dim=1).reshape(-1)
            for prefix, mask in zip(self.case.prefix_lens, masks)])

    def _fill_pool(self, random) -> None:
        """Random rows where the contexts are, NaN elsewhere: nobody may look there."""
        case = self.case
        buffers = self._buffers()
        for buffer in buffers:
            buffer.fill_(torch.nan)
        self.prefix_k, self.prefix_v = [], []
        for r, prefix in enumerate(case.prefix_lens):
            slots = self.runner.req_to_token_pool.req_to_token[r, :prefix].long()
            k = self._normal(random, prefix, case.kv_heads, case.key_dim)
            v = k[..., : case.value_dim] if case.mla else self._normal(
                random, prefix, case.kv_heads, case.value_dim)
            for buffer, rows, scale in zip(buffers, (k, v), case.kv_scales or (1.0, 1.0)):
                buffer[slots] = (rows / scale).to(buffer.dtype)
            self.prefix_k.append(k)
            self.prefix_v.append(v)

    def _buffers(self) -> list[torch.Tensor]:
        """Of the layer: the rows of MLA, V included, or K and V."""
        buffers = [self.pool.get_key_buffer(self.layer.layer_id)]
        return buffers if self.case.mla else [
            *buffers, self.pool.get_value_buffer(self.layer.layer_id)]

    @torch.no_grad()
    def take(self, other: Step) -> None:
        """Another step's contexts, slots, rows and trees in this one's memory, as SGLang fills the
        static buffers of its graphs: of as many requests, or of fewer, which it then pads. Ask
        `other` what is expected of its rows."""
        requests, rows = len(other.case.prefix_lens), other.q.shape[0]
        assert other.case.max_context_len == self.case.max_context_len
        for mine, theirs in zip(self._buffers(), other._buffers()):
            mine.fill_(torch.nan)
            mine[: theirs.shape[0]] = theirs
        table = other.runner.req_to_token_pool.req_to_token
        self.runner.req_to_token_pool.req_to_token[: table.shape[0]] = table
        batch = self.batch
        for name, padding in (("req_pool_indices", 0), ("out_cache_loc", 0), ("seq_lens", 1),
                              ("seq_lens_cpu", 1)):
            mine, theirs = getattr(batch, name), getattr(other.batch, name)
            mine.fill_(padding)
            mine[: theirs.shape[0]] = theirs
        batch.seq_lens_sum = int(batch.seq_lens_cpu.sum())
        batch.spec_info.custom_mask = other.batch.spec_info.custom_mask
        self.q[:rows], self.k[:rows] = other.q, other.k
        if not self.case.mla:  # else V is a part of K
            self.v[:rows] = other.v
        assert requests <= batch.batch_size

    def run(self, **keywords) -> torch.Tensor:
        """The layer's attention with fresh metadata."""
        with torch.no_grad(), forward_context(ForwardContext(attn_backend=self.backend)):
            self.backend.init_forward_metadata(self.batch)
            return self.extend(**keywords)

    def extend(self, **keywords) -> torch.Tensor:
        """[T, heads, value_dim] with the metadata that there is."""
        case = self.case
        out = self.backend.forward_extend(
            self.q.reshape(self.q.shape[0], -1), self.k, self.v, self.layer, self.batch, **keywords)
        return out.view(-1, case.heads, case.value_dim)

    def expected(self) -> torch.Tensor:
        """float64, from the rows themselves: no slot, word or index takes part."""
        case, parts = self.case, []
        group = case.heads // case.kv_heads
        k_scale, v_scale = case.kv_scales or (1.0, 1.0)
        for r, mask in enumerate(self.masks):
            rows = slice(r * case.nodes, (r + 1) * case.nodes)
            k = self._cached(torch.cat([self.prefix_k[r], self.k[rows]]), k_scale)
            v = self._cached(torch.cat([self.prefix_v[r], self.v[rows]]), v_scale)
            k, v = (each.double().repeat_interleave(group, 1) for each in (k, v))
            scores = torch.einsum("nhd,khd->nhk", self.q[rows].double(), k) * self.layer.scaling
            if case.logit_cap:
                scores = case.logit_cap * torch.tanh(scores / case.logit_cap)
            hidden = torch.cat([mask.new_zeros(case.nodes, case.prefix_lens[r]), ~mask], dim=1)
            weights = scores.masked_fill(hidden[:, None, :], -torch.inf).softmax(dim=2)
            parts.append(torch.einsum("nhk,khd->nhd", weights, v))
        return torch.cat(parts)

    def rel_l2(self, actual: torch.Tensor) -> float:
        expected = self.expected()
        return ((actual.double() - expected).norm() / expected.norm()).item()
