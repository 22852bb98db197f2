"""The verify backend with the CUDA kernels: SGLang's MLA verify kit, random trees against the plain
result, captured graphs. Needs a GPU of theirs, libkdtree_kernels.so, and an SGLang whose
requirements are installed (sgl_kernel is a stand-in)."""

import dataclasses
import unittest
from unittest import mock

import verify_support as support

VERSION = support.require_sglang("cuda")

import numpy
import torch
from kdtree.sglang_ext.verify import NAME, install_verify, verify_counts

install_verify()

import verify_cases as cases
from sglang.srt.mem_cache import memory_pool
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.model_executor.forward_context import ForwardContext, forward_context
from verify_cases import Case, Step

SIZES = dict(kv_lora_rank=512, qk_rope_head_dim=64, dtype=torch.bfloat16, device="cuda")
MLA = Case(prefix_lens=(), nodes=0, heads=8, key_dim=576, value_dim=512, dtype=torch.bfloat16,
           device="cuda")
GQA = dataclasses.replace(MLA, kv_heads=2, key_dim=128, value_dim=128)
REL_L2_LIMIT = 3e-3  # of bfloat16 outputs


class Served(cases.Strict):
    """Every test says how many calls the seam served, and that none was refused."""

    def setUp(self):
        self.before = verify_counts()
        # SGLang compiles a kernel for new rows of MHA where it can; it writes what this path does.
        patch = mock.patch.object(memory_pool, "can_use_store_cache", lambda *_: False, create=True)
        patch.start()
        self.addCleanup(patch.stop)

    def check_counts(self, served=None):
        now = verify_counts()
        self.assertEqual(now["refused"], self.before["refused"])
        if served is None:
            self.assertGreater(now["served"], self.before["served"])
        else:
            self.assertEqual(now["served"] - self.before["served"], served)


class Kit(Served):
    def case(self, page_size=1, prefix_lens=(4, 7)):
        return cases.mla.MLAAttentionCase(
            name="gpu", backend=NAME, forward_mode=ForwardMode.TARGET_VERIFY, num_heads=8,
            page_size=page_size, prefix_lens=prefix_lens, extend_lens=(3,) * len(prefix_lens))

    def test_eager(self):
        for topk, spec_kind, page_size in ((1, "eagle", 1), (2, "eagle", 1), (2, "ngram", 1),
                                           (2, "eagle", 16), (1, "dflash", 1)):
            with self.subTest(topk=topk, spec_kind=spec_kind, page_size=page_size):
                cases.verify_kit.run_mla_eagle_verify_case(
                    self, self.case(page_size), topk=topk, spec_kind=spec_kind, **SIZES)
        self.check_counts(5)

    def test_metadata_of_a_captured_graph(self):
        for topk in (1, 2):
            with self.subTest(topk=topk):
                cases.verify_kit.run_mla_eagle_verify_cuda_graph_case(
                    self, self.case(), topk=topk, **SIZES)
        self.check_counts()


def random_case(random, number: int) -> Case:
    """MLA and GQA, batches of 1 to 8, trees of 1 to 64 nodes, pages of 1, 16 and 64."""
    layouts = ("contiguous", "shuffled_pages", "interleaved_pages", "non_monotonic_extend")
    common = dict(
        prefix_lens=tuple(int(n) for n in random.choice(
            [0, 1, 15, 64, 65, 300, 1000, 2111], int(random.integers(1, 9)))),
        nodes=int(random.integers(1, 65)), page_size=(1, 16, 64)[number % 3],
        layout=layouts[number // 2 % 4], spec_kind=("eagle", "ngram", "frozen_kv_mtp")[number % 3],
        seed=100 + number)
    if number % 2 == 0:
        return dataclasses.replace(MLA, heads=int(random.choice([8, 16, 64])), **common)
    kv_heads, dim = int(random.choice([1, 2, 4])), int(random.choice([64, 96, 128, 256]))
    return dataclasses.replace(
        MLA, kv_heads=kv_heads, heads=kv_heads * int(random.choice([1, 4, 8])), key_dim=dim,
        value_dim=dim, **common)


class Trees(Served):
    def check(self, case: Case) -> None:
        step = Step(self, case, NAME)
        first, again = step.run(), step.run()
        self.assertLess(step.rel_l2(first), REL_L2_LIMIT)
        self.assertTrue(torch.equal(first, again))

    def test_random(self):
        random = numpy.random.default_rng(11)
        for number in range(24):
            case = random_case(random, number)
            with self.subTest(case=case):
                self.check(case)
        self.check_counts(48)

    def test_128_nodes(self):
        self.check(dataclasses.replace(MLA, prefix_lens=(700, 3), nodes=128))
        self.check_counts(2)

    def test_dflash_block_without_a_mask(self):
        step = Step(self, dataclasses.replace(MLA, prefix_lens=(90, 0, 200), nodes=16,
                                              trees="chain", spec_kind="dflash"), NAME)
        step.set_masks(None)
        self.assertLess(step.rel_l2(step.run()), REL_L2_LIMIT)
        self.check_counts(1)

    def test_logit_cap(self):
        for case in (MLA, GQA):
            self.check(dataclasses.replace(case, prefix_lens=(700, 3), nodes=33, logit_cap=1.5))
        self.check_counts(4)

    def test_fp8_caches(self):
        """All rows as the cache has them, the new ones too."""
        for case, scales in ((MLA, None), (MLA, (0.5, 0.5)), (GQA, None), (GQA, (0.5, 0.25))):
            with self.subTest(case=case, scales=scales):
                case = dataclasses.replace(case, prefix_lens=(700, 0, 300), nodes=33,
                                           fp8_cache=True, kv_scales=scales)
                self.check(case)
                theirs = Step(self, case, "triton")
                print(f"fp8, SGLang's kernel: {theirs.rel_l2(theirs.run()):.2e}")
        self.check_counts(8)

    def test_as_sglang(self):
        """The same step by SGLang's own kernel."""
        for case in (dataclasses.replace(MLA, prefix_lens=(65, 0, 1000), nodes=33),
                     dataclasses.replace(GQA, prefix_lens=(200, 3), nodes=64, page_size=16)):
            ours, theirs = Step(self, case, NAME), Step(self, case, "triton")
            self.assertLess(ours.rel_l2(ours.run()), REL_L2_LIMIT)
            self.assertLess(theirs.rel_l2(theirs.run()), 2 * REL_L2_LIMIT)
        self.check_counts(2)


class Graph(Served):
    def check(self, case: Case) -> None:
        """A graph of three requests, replayed with cases.replays(): other trees, contexts and
        slots, and fewer requests."""
        case = dataclasses.replace(case, prefix_lens=(600, 20, 90), nodes=24)
        step = Step(self, case, NAME)
        backend, batch, requests = step.backend, step.batch, len(case.prefix_lens)
        backend.max_context_len = case.max_context_len
        backend.init_cuda_graph_state(requests, requests * case.nodes)
        with torch.no_grad(), forward_context(ForwardContext(attn_backend=backend)):
            backend.init_forward_metadata_out_graph(batch, in_capture=True)
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                step.extend()  # SGLang's runs before a capture
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                out = step.extend()
            for replay in cases.replays(case):
                other = Step(self, replay, NAME)
                step.take(other)
                backend.init_forward_metadata_out_graph(batch)
                out.fill_(torch.nan)
                graph.replay()
                with self.subTest(replay=replay):
                    self.assertLess(other.rel_l2(out[: other.q.shape[0]]), REL_L2_LIMIT)
        self.check_counts(2)  # the run before the capture, and the capture

    def test_mla(self):
        self.check(MLA)

    def test_gqa(self):
        self.check(dataclasses.replace(GQA, page_size=16))

    def test_fp8_caches(self):
        self.check(dataclasses.replace(MLA, fp8_cache=True))
        self.before = verify_counts()
        self.check(dataclasses.replace(GQA, fp8_cache=True, kv_scales=(0.5, 0.25)))

    def test_logit_cap(self):
        self.check(dataclasses.replace(GQA, logit_cap=1.5))


if __name__ == "__main__":
    unittest.main()
