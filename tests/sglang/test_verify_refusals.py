"""What the seam refuses goes to SGLang's own kernel: counted by reason, with its result to the bit."""

import dataclasses
import unittest
from unittest import mock

import verify_support as support

support.require_sglang()

import torch
from kdtree.sglang_ext.verify import NAME, install_verify, verify_counts
from kdtree.sglang_ext.verify_call import Refusal

install_verify()

from kdtree.sglang_ext import verify_backend
from sglang.srt.layers.radix_attention import AttentionType
from sglang.srt.model_executor.forward_context import ForwardContext, forward_context
from verify_cases import Case, Step, Strict

SMALL = Case(prefix_lens=(5, 0, 9), nodes=4, seed=21)
GQA = Case(prefix_lens=(5, 0, 9), nodes=4, heads=4, kv_heads=2, key_dim=32, value_dim=32, seed=22)


class Refused(Strict):
    def check(self, refusal, case=SMALL, change=lambda step: None, late=lambda step: None,
              **keywords):
        """`change` is made to the step before its metadata, `late` after them."""
        outputs = []
        before = verify_counts()
        for backend in (NAME, "triton"):
            step = Step(self, case, backend)
            change(step)
            with torch.no_grad(), forward_context(ForwardContext(attn_backend=step.backend)):
                step.backend.init_forward_metadata(step.batch)
                late(step)
                outputs.append(step.extend(**keywords))
        now = verify_counts()
        ours, theirs = outputs
        self.assertTrue(torch.equal(ours, theirs), (ours - theirs).abs().max())
        self.assertEqual(now["served"], before["served"])
        counted = now["refused"].get(refusal.value, 0) - before["refused"].get(refusal.value, 0)
        self.assertEqual(counted, 1, now)
        self.assertEqual(sum(now["refused"].values()) - sum(before["refused"].values()), 1)

    def test_sinks(self):
        self.check(Refusal.SINKS, case=GQA, sinks=torch.tensor([0.5, -1.0, 2.0, 0.0]))

    def test_window(self):
        self.check(Refusal.WINDOW, case=Case(**{**vars(GQA), "window": 3}))

    def test_xai_temperature(self):
        self.check(Refusal.XAI_TEMPERATURE,
                   change=lambda step: setattr(step.layer, "xai_temperature_len", 2))

    def test_negative_logit_cap(self):
        self.check(Refusal.LOGIT_CAP, case=dataclasses.replace(GQA, logit_cap=-1.5))

    def test_draft_of_dflash(self):
        """A TARGET_VERIFY forward that is neither causal nor masked."""
        def bidirectional(step):
            step.layer.attn_type = AttentionType.ENCODER_ONLY
            step.set_masks(None)

        self.check(Refusal.NOT_CAUSAL, change=bidirectional)

    def test_scales_of_a_cache_that_is_not_fp8(self):
        self.check(Refusal.KV_SCALE, case=dataclasses.replace(GQA, kv_scales=(2.0, 4.0)))

    def test_two_scales_of_one_row(self):
        self.check(Refusal.KV_SCALE,
                   case=dataclasses.replace(SMALL, fp8_cache=True, kv_scales=(2.0, 4.0)))

    def test_scale_of_k_alone(self):
        """SGLang then scales the row that it writes and hands us no scale."""
        def scale(step):
            step.layer.k_scale, step.layer.k_scale_float = torch.tensor(2.0), 2.0

        self.check(Refusal.KV_SCALE, change=scale)

    def test_too_many_nodes(self):
        self.check(Refusal.NODES, case=Case(prefix_lens=(2,), nodes=129, heads=1, trees="chain"))

    def test_too_many_requests(self):
        self.check(Refusal.REQUESTS, case=Case(prefix_lens=(2,) * 65, nodes=1, heads=1))

    def test_first_call_in_a_capture(self):
        with mock.patch.object(verify_backend, "_capturing", lambda call: True):
            self.check(Refusal.CAPTURE)

    def test_rows_that_are_not_saved(self):
        """The cache has NaN where they would be."""
        self.check(Refusal.UNSAVED_ROWS, save_kv_cache=False)

    def test_virtual_slots(self):
        def virtual(step):
            if hasattr(step.backend, "kv_index_translator"):
                step.backend.kv_index_translator.is_translating = True
            else:
                step.backend._translate_kv_loc = lambda slots: slots

        self.check(Refusal.VIRTUAL_SLOTS, late=virtual)

    def test_contexts_beyond_the_kernels(self):
        self.check(Refusal.CONTEXT,
                   late=lambda step: setattr(step.backend, "max_context_len", 262145))

    def test_no_tree(self):
        def gap(step):
            # Node 2 sees node 1 and not node 1's parent.
            step.set_masks([torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0],
                                          [1, 0, 0, 1]]).bool()] * 3)

        self.check(Refusal.NO_TREE, change=gap)


class Check(Strict):
    """When masks are looked at: KDTREE_VERIFY_CHECK."""

    def runs(self, mode, masks):
        """Whether each of the masks, in order, is served."""
        step = Step(self, SMALL, NAME)
        step.backend._check = mode
        served = []
        for mask in masks:
            before = verify_counts()["served"]
            step.set_masks([mask] * 3)
            step.run()
            served.append(verify_counts()["served"] > before)
        return served

    def test_modes(self):
        tree = torch.ones(4, 4).tril().bool()
        bad = torch.ones(4, 4).bool()
        self.assertEqual(self.runs("first", [bad, tree, bad]), [False, True, True])
        self.assertEqual(self.runs("always", [bad, tree, bad]), [False, True, False])
        self.assertEqual(self.runs("off", [bad, tree]), [True, True])

    def test_not_in_a_capture(self):
        """Where the host cannot wait for the device."""
        step = Step(self, SMALL, NAME)
        step.run()
        step.backend._check = "always"
        step.set_masks([torch.ones(4, 4).bool()] * 3)
        before = verify_counts()["served"]
        with mock.patch.object(verify_backend, "_capturing", lambda call: True):
            step.run()
        self.assertEqual(verify_counts()["served"] - before, 1)

    def test_a_mask_that_nobody_looked_at_means_what_it_says(self):
        step = Step(self, SMALL, NAME)
        step.backend._check = "off"
        step.masks = [torch.ones(4, 4).bool(), torch.eye(4).bool(),
                      torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [1, 0, 1, 1]]).bool()]
        step.set_masks(step.masks)
        torch.testing.assert_close(step.run().double(), step.expected(), atol=2e-5, rtol=2e-5)

    def test_unknown_mode(self):
        with mock.patch.dict("os.environ", {"KDTREE_VERIFY_CHECK": "often"}), \
                self.assertRaisesRegex(ValueError, "often: one of first, always, off"):
            Step(self, SMALL, NAME)

    def test_runs_before_a_capture_are_not_looked_at(self):
        """Their masks are made up: all ones."""
        step = Step(self, SMALL, NAME)
        step.backend.max_context_len = SMALL.max_context_len
        step.backend.init_cuda_graph_state(3, 12)
        step.set_masks([torch.ones(4, 4).bool()] * 3)
        before = verify_counts()
        with torch.no_grad(), forward_context(ForwardContext(attn_backend=step.backend)):
            step.backend.init_forward_metadata_out_graph(step.batch, in_capture=True)
            step.extend()
            step.extend()
        self.assertEqual(verify_counts()["served"] - before["served"], 2)
        self.assertEqual(verify_counts()["refused"], before["refused"])


if __name__ == "__main__":
    unittest.main()
