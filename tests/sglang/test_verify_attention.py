"""The backend kdtree_verify on a real SGLang, on the CPU: its own test kit and random trees."""

import dataclasses
import logging
import unittest
from unittest import mock

import verify_support as support

VERSION = support.require_sglang()

import numpy
import torch
from kdtree.sglang_ext import contract, verify
from kdtree.sglang_ext.contract_types import Touched
from kdtree.sglang_ext.verify import NAME, install_verify, verify_counts

install_verify()

import verify_cases as cases
from kdtree.sglang_ext import verify_backend
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.model_executor.forward_context import ForwardContext, forward_context
from verify_cases import Case, Step, Strict


class Registration(unittest.TestCase):
    def test_chosen_by_name(self):
        from sglang.srt import server_args
        from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS

        install_verify()  # a second time
        self.assertIn(NAME, ATTENTION_BACKENDS)
        self.assertEqual(server_args.ATTENTION_BACKEND_CHOICES.count(NAME), 1)
        parser = server_args.argparse.ArgumentParser()
        server_args.ServerArgs.add_cli_args(parser)
        parsed = parser.parse_args(["--model-path", "none", "--attention-backend", NAME])
        self.assertEqual(parsed.attention_backend, NAME)

    def test_contract(self):
        self.assertEqual(contract.installed_version(), VERSION)
        self.assertEqual(contract.problems(verify.CONTRACT, VERSION), [])

    def test_another_signature_is_refused_when_the_backend_is_made(self):
        other = verify.CONTRACT + (
            Touched("sglang.srt.server_args:add_attention_backend_choices", {"*": ("names",)}),)
        with mock.patch.object(verify, "CONTRACT", other), self.assertRaisesRegex(
                RuntimeError, f"kdtree_verify cannot serve SGLang {VERSION}: .*names.* is needed"):
            Step(self, Case(prefix_lens=(1,), nodes=1), NAME)

    def test_another_version_does_not_offer_it(self):
        from sglang.srt.layers.attention import attention_registry

        with mock.patch.object(contract, "installed_version", lambda: "0.6.0"), \
                mock.patch.dict(attention_registry.ATTENTION_BACKENDS, clear=True), \
                self.assertLogs("kdtree.sglang_ext.verify", "ERROR") as logged:
            install_verify()
            self.assertEqual(attention_registry.ATTENTION_BACKENDS, {})
        self.assertIn("SGLang 0.6.0 is not supported", logged.output[0])

    def test_draft_workers_are_told_to_take_triton(self):
        for changes, warned in (({}, False), ({"speculative_algorithm": "EAGLE"}, True),
                                ({"speculative_algorithm": "EAGLE",
                                  "speculative_draft_attention_backend": "triton"}, False)):
            args = mock.Mock(spec=list(changes), **changes)
            runner = mock.Mock(server_args=args, is_draft_worker=False)
            with self.subTest(changes), self.assertLogs(level="WARNING") as logged:
                verify_backend._warn_of_draft_backend(runner)
                logging.warning("the end")
            self.assertEqual(len(logged.output), 1 + warned, logged.output)


class Served(Strict):
    """Every test says how many calls the seam served, and that none was refused."""

    def setUp(self):
        self.before = verify_counts()

    def check_counts(self, served):
        now = verify_counts()
        self.assertEqual(now["refused"], self.before["refused"])
        self.assertEqual(now["served"] - self.before["served"], served)


class Kit(Served):
    """SGLang's MLA verify kit, with its shuffled pages, its layer and its tolerance."""

    def run_kit(self, *, topk, spec_kind, page_size=1, prefix_lens=(4, 7), **sizes):
        case = cases.mla.MLAAttentionCase(
            name=f"{spec_kind}_{topk}_{page_size}", backend=NAME,
            forward_mode=ForwardMode.TARGET_VERIFY, num_heads=4, page_size=page_size,
            prefix_lens=prefix_lens, extend_lens=(3,) * len(prefix_lens))
        cases.verify_kit.run_mla_eagle_verify_case(self, case, topk=topk, spec_kind=spec_kind,
                                                   device="cpu", **sizes)
        self.check_counts(1)

    def test_eagle_chain(self):
        self.run_kit(topk=1, spec_kind="eagle")

    def test_eagle_tree(self):
        self.run_kit(topk=2, spec_kind="eagle")

    def test_ngram_tree(self):
        self.run_kit(topk=2, spec_kind="ngram")

    def test_tree_on_pages_of_16(self):
        self.run_kit(topk=2, spec_kind="eagle", page_size=16, prefix_lens=(14, 16, 31))

    def test_dflash_chain(self):
        self.run_kit(topk=1, spec_kind="dflash")

    def test_tree_of_512_and_64_values(self):
        self.run_kit(topk=2, spec_kind="eagle", kv_lora_rank=512, qk_rope_head_dim=64,
                     dtype=torch.bfloat16)


class Trees(Served):
    def check(self, case, tolerance=2e-5):
        """float32 sums of at most a few hundred terms; bfloat16 outputs are rounded to 2^-9."""
        step = Step(self, case, NAME)
        actual = step.run()
        torch.testing.assert_close(actual.double(), step.expected(), atol=tolerance, rtol=tolerance)
        self.check_counts(1)

    def test_one_node(self):
        self.check(Case(prefix_lens=(5,), nodes=1))

    def test_empty_contexts(self):
        self.check(Case(prefix_lens=(0, 3, 0), nodes=6, seed=2))

    def test_64_nodes(self):
        self.check(Case(prefix_lens=(33, 0), nodes=64, seed=3))

    def test_128_nodes(self):
        self.check(Case(prefix_lens=(9,), nodes=128, seed=4))

    def test_dflash_block_without_a_mask(self):
        step = Step(self, Case(prefix_lens=(7, 0, 20), nodes=16, trees="chain", seed=5,
                               spec_kind="dflash"), NAME)
        step.set_masks(None)
        torch.testing.assert_close(step.run().double(), step.expected(), atol=2e-5, rtol=2e-5)
        self.check_counts(1)

    def test_random(self):
        """MLA and GQA, batches of 1 to 8, pages of 1 to 64, every layout of the kit."""
        random = numpy.random.default_rng(11)
        before, ran = verify_counts()["served"], 0
        layouts = ("contiguous", "shuffled_pages", "interleaved_pages", "non_monotonic_extend")
        for number in range(24):
            kv_heads = int(random.choice([1, 2, 4]))
            width = int(random.choice([16, 32, 64]))
            mla = number % 2 == 0
            case = Case(
                prefix_lens=tuple(int(n) for n in random.choice(
                    [0, 1, 15, 16, 17, 63, 64, 65, 90], int(random.integers(1, 9)))),
                nodes=int(random.integers(1, 65)),
                heads=4 if mla else kv_heads * int(random.choice([1, 3, 4])),
                kv_heads=1 if mla else kv_heads, key_dim=width + 16 if mla else width,
                value_dim=width, page_size=int(random.choice([1, 16, 32, 64])),
                layout=layouts[number // 2 % 4],
                spec_kind=("eagle", "ngram", "frozen_kv_mtp")[number % 3], seed=100 + number)
            with self.subTest(case=case):
                step = Step(self, case, NAME)
                torch.testing.assert_close(step.run().double(), step.expected(), atol=2e-5,
                                           rtol=2e-5)
                ran += 1
        self.assertEqual(verify_counts()["served"] - before, ran)

    def test_bfloat16(self):
        for case in (Case(prefix_lens=(70, 11), nodes=20, heads=8, key_dim=576, value_dim=512,
                          dtype=torch.bfloat16, seed=6),
                     Case(prefix_lens=(70, 11), nodes=20, heads=8, kv_heads=2, key_dim=128,
                          value_dim=128, dtype=torch.bfloat16, seed=7)):
            step = Step(self, case, NAME)
            torch.testing.assert_close(step.run().double(), step.expected(), atol=2e-2, rtol=2**-8)
        self.check_counts(2)

    def test_logit_cap(self):
        for case in (Case(prefix_lens=(40, 3), nodes=9, logit_cap=1.5, seed=14),
                     Case(prefix_lens=(40, 3), nodes=9, heads=4, kv_heads=2, key_dim=32,
                          value_dim=32, logit_cap=1.5, seed=15)):
            step = Step(self, case, NAME)
            torch.testing.assert_close(step.run().double(), step.expected(), atol=2e-5, rtol=2e-5)
        self.check_counts(2)

    def test_fp8_caches(self):
        """All rows as the cache has them, the new ones too."""
        gqa = Case(prefix_lens=(40, 3), nodes=9, heads=4, kv_heads=2, key_dim=32, value_dim=32,
                   fp8_cache=True, seed=17)
        for case in (Case(prefix_lens=(40, 3), nodes=9, fp8_cache=True, seed=16),
                     Case(prefix_lens=(40, 3), nodes=9, fp8_cache=True, kv_scales=(0.5, 0.5)),
                     gqa, dataclasses.replace(gqa, kv_scales=(0.5, 0.25))):
            with self.subTest(case=case):
                step = Step(self, case, NAME)
                torch.testing.assert_close(step.run().double(), step.expected(), atol=2e-5,
                                           rtol=2e-5)
        self.check_counts(4)

    def test_as_sglang(self):
        """The same step by SGLang's own kernel, interpreted."""
        for case in (Case(prefix_lens=(5, 0, 17), nodes=7, seed=8),
                     Case(prefix_lens=(20, 3), nodes=9, heads=6, kv_heads=2, key_dim=32,
                          value_dim=32, page_size=16, seed=9)):
            ours, theirs = Step(self, case, NAME), Step(self, case, "triton")
            torch.testing.assert_close(ours.run(), theirs.run(), atol=2e-5, rtol=2e-5)
        self.check_counts(2)


class Steps(Served):
    def test_layers_share_a_step(self):
        """Later layers take the batch of the first; a layer that does not follow begins a step."""
        step = Step(self, Case(prefix_lens=(6, 2), nodes=5, seed=10), NAME)
        expected = step.run()
        fill, filled = step.backend._buffers.fill, []
        step.backend._buffers.fill = lambda *a: filled.append(step.layer.layer_id) or fill(*a)
        # The mock pool has one layer, so its layers differ in name alone.
        key, value = step.pool.get_key_buffer(0), step.pool.get_value_buffer(0)
        step.pool.get_key_buffer = lambda _layer: key
        step.pool.get_value_buffer = lambda _layer: value
        step.pool.set_kv_buffer = lambda *_arguments, **_keywords: None
        with torch.no_grad(), forward_context(ForwardContext(attn_backend=step.backend)):
            step.backend.init_forward_metadata(step.batch)
            for layer in (0, 1, 2, 0, 1, 1):
                step.layer.layer_id = layer
                torch.testing.assert_close(step.extend(), expected, atol=0, rtol=0)
        self.assertEqual(filled, [0, 0, 1])
        self.check_counts(7)

    def test_metadata_of_a_captured_graph(self):
        """What a capture sees, then what each replay puts into the same buffers (cases.replays):
        other trees, contexts and slots, fewer requests than were captured."""
        gqa = Case(prefix_lens=(70, 2, 9), nodes=5, heads=4, kv_heads=2, key_dim=32, value_dim=32,
                   page_size=16, seed=18)
        for case in (Case(prefix_lens=(70, 2, 9), nodes=5, seed=12), gqa,
                     Case(prefix_lens=(70, 2, 9), nodes=5, seed=19, fp8_cache=True),
                     dataclasses.replace(gqa, fp8_cache=True, kv_scales=(0.5, 0.25))):
            with self.subTest(case=case):
                self.check_graph(case)
        self.check_counts(4 * 5)

    def check_graph(self, case: Case) -> None:
        step = Step(self, case, NAME)
        backend, batch = step.backend, step.batch
        backend.max_context_len = case.max_context_len
        backend.init_cuda_graph_state(3, 3 * case.nodes)
        with torch.no_grad(), forward_context(ForwardContext(attn_backend=backend)):
            backend.init_forward_metadata_out_graph(batch, in_capture=True)
            torch.testing.assert_close(step.extend().double(), step.expected(), atol=2e-5,
                                       rtol=2e-5)
            captured = backend.forward_metadata
            self.assertGreater(captured.custom_mask.shape[0],
                               batch.spec_info.custom_mask.shape[0])
            for replay in cases.replays(case):
                other = Step(self, replay, NAME)
                step.take(other)
                backend.init_forward_metadata_out_graph(batch)
                self.assertIs(backend.forward_metadata, captured)
                torch.testing.assert_close(step.extend()[: other.q.shape[0]].double(),
                                           other.expected(), atol=2e-5, rtol=2e-5)


if __name__ == "__main__":
    unittest.main()
