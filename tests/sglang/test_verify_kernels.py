"""What of a call reaches the CUDA kernels, and what they are not asked: needs torch, neither SGLang
nor a GPU. The kernels are played by the reference, from the arrays that they are given."""

import unittest
from unittest import mock

import verify_support as support

support.require_torch()

import numpy
import torch
from kdtree import kernels
from kdtree.sglang_ext import verify_kernels, verify_reference, verify_step
from kdtree.sglang_ext.verify_call import Refusal, VerifyCall, refuse_call

SLOTS = 300


def mla_call(heads=8, requests=2, nodes=4, contexts=(30, 7), dtype=torch.bfloat16, **changes):
    generator = torch.Generator().manual_seed(2)
    cache = torch.randn(SLOTS, 1, 576, generator=generator).to(dtype)
    call = dict(k_buffer=cache, v_buffer=cache[..., :512],
                q=torch.randn(requests * nodes, heads, 576, generator=generator).to(dtype),
                out=torch.zeros(requests * nodes, heads, 512, dtype=dtype))
    return VerifyCall(**common(contexts, nodes, **{**call, **changes}))


def gqa_call(heads=8, kv_heads=2, dim=128, nodes=4, contexts=(30, 7), dtype=torch.bfloat16,
             **changes):
    generator = torch.Generator().manual_seed(3)
    rows = len(contexts) * nodes
    k, v = (torch.randn(SLOTS, kv_heads, dim, generator=generator).to(dtype) for _ in range(2))
    call = dict(k_buffer=k, v_buffer=v,
                q=torch.randn(rows, heads, dim, generator=generator).to(dtype),
                out=torch.zeros(rows, heads, dim, dtype=dtype))
    return VerifyCall(**common(contexts, nodes, **{**call, **changes}))


def common(contexts, nodes, **tensors):
    ends = torch.tensor([0, *contexts]).cumsum(0)
    return {**dict(qo_indptr=torch.arange(len(contexts) + 1) * nodes,
                   kv_indptr=ends.to(torch.int32), kv_indices=torch.randperm(SLOTS)[: ends[-1]],
                   custom_mask=None, causal=True, mask_indptr=None, nodes=nodes, k_descale=1.0,
                   v_descale=1.0, scale=0.1), **tensors}


class PlayedKernels:
    """Stands in for kdtree.kernels where a device is needed."""

    def __init__(self, status=kernels.Status.OK):
        self.status, self.calls = status, []

    def __enter__(self):
        self._patches = [mock.patch.object(kernels, name, getattr(self, name)) for name in
                         ("Workspace", "AttnBatch", "attn_plan", "attn_verify_mla",
                          "attn_verify_gqa")]
        for patch in self._patches:
            patch.start()
        return self

    def __exit__(self, *_exception):
        for patch in self._patches:
            patch.stop()

    def Workspace(self, shape, requests, max_nodes, max_context, device):
        self.calls.append(("workspace", shape, requests, max_nodes, max_context))
        if self.status != kernels.Status.OK:
            raise kernels.KernelError("no", self.status)
        return f"workspace of {shape.heads} heads"

    def AttnBatch(self, **arrays):
        self.calls.append(("batch",))
        return verify_step.StepBatch(**arrays)

    def attn_plan(self, shape, batch, workspace):
        self.calls.append(("plan", shape, workspace))

    def attn_verify_mla(self, shape, batch, q_latent, q_rope, kv, out, workspace, *, scale,
                        logit_cap, kv_scale):
        self.calls.append(("mla", shape, workspace))
        q = torch.cat([q_latent, q_rope], dim=2)
        out.copy_(verify_reference.attend(q, kv, kv[..., :512], batch, scale=scale,
                                          logit_cap=logit_cap, k_scale=kv_scale,
                                          v_scale=kv_scale))

    def attn_verify_gqa(self, shape, batch, q, k, v, out, workspace, *, scale, logit_cap,
                        k_scale, v_scale):
        self.calls.append(("gqa", shape, workspace))
        out.copy_(verify_reference.attend(q, k, v, batch, scale=scale, logit_cap=logit_cap,
                                          k_scale=k_scale, v_scale=v_scale))


class Wiring(unittest.TestCase):
    def test_layers_of_a_step(self):
        """A plan for each shape of layers in each step, one batch a step, one workspace a shape."""
        attention = verify_kernels.KernelAttention(4, 64, "cpu")
        buffers = verify_step.StepBuffers(4, 64, "cpu")
        calls = (mla_call(), gqa_call(), mla_call(), gqa_call())
        rows = torch.arange(100, 108)
        with PlayedKernels() as played:
            for _ in range(2):
                self.assertEqual([attention.refuse(call) for call in calls], [None] * 4)
                batch = buffers.fill(calls[0], rows)
                attention.begin_step(batch)
                for call in calls:
                    call.out.zero_()
                    # Every layer of a step has the same slots.
                    batch.pages.copy_(calls[0].kv_indices)
                    attention.attend(call)
                    torch.testing.assert_close(
                        call.out.float(),
                        verify_reference.attend(call.q, call.k_buffer, call.v_buffer, batch,
                                                scale=0.1),
                        atol=2e-2, rtol=2**-7)
        self.assertEqual([call[0] for call in played.calls],
                         ["workspace", "workspace"]
                         + 2 * ["batch", "plan", "mla", "plan", "gqa", "mla", "gqa"])
        self.assertEqual(played.calls[0][2:], (4, 512, 64))
        mla = kernels.AttnShape(kernels.AttnKind.MLA, 8)
        gqa = kernels.AttnShape(kernels.AttnKind.GQA, 8, 2, 128)
        self.assertEqual({call[1] for call in played.calls if call[0] in ("plan", "mla")},
                         {mla, gqa})

    def check(self, call, refusal):
        with PlayedKernels():
            self.assertEqual(verify_kernels.KernelAttention(4, 64, "cpu").refuse(call), refusal)

    def test_shapes(self):
        for heads, kv_heads, dim in ((8, 8, 64), (16, 1, 96), (32, 8, 128), (6, 2, 256)):
            self.check(gqa_call(heads, kv_heads, dim), None)
        for heads, kv_heads, dim in ((8, 8, 80), (17, 1, 128), (8, 2, 192), (256, 128, 64)):
            self.check(gqa_call(heads, kv_heads, dim), Refusal.SHAPE)
        self.check(mla_call(heads=128), None)
        self.check(mla_call(heads=129), Refusal.SHAPE)
        other = torch.zeros(SLOTS, 1, 512, dtype=torch.bfloat16)
        self.check(mla_call(v_buffer=other), Refusal.SHAPE)  # V has to be a part of K's rows
        short = torch.zeros(SLOTS, 1, 320, dtype=torch.bfloat16)
        self.check(mla_call(k_buffer=short, v_buffer=short[..., :256], q=torch.zeros(
            8, 8, 320, dtype=torch.bfloat16), out=torch.zeros(8, 8, 256, dtype=torch.bfloat16)),
            Refusal.SHAPE)

    def test_dtypes(self):
        for dtype in (torch.float16, torch.float32):
            self.check(mla_call(dtype=dtype), Refusal.DTYPE)
        for dtype, refusal in ((torch.float8_e4m3fn, None), (torch.float8_e5m2, Refusal.DTYPE)):
            rows = torch.zeros(SLOTS, 1, 576).to(dtype)
            self.check(mla_call(k_buffer=rows, v_buffer=rows[..., :512]), refusal)
            k, v = (torch.zeros(SLOTS, 2, 128).to(dtype) for _ in range(2))
            self.check(gqa_call(k_buffer=k, v_buffer=v), refusal)
        self.check(gqa_call(k_buffer=k.to(torch.float8_e4m3fn)), Refusal.DTYPE)

    def test_layouts(self):
        call = gqa_call()
        wide = torch.zeros(SLOTS, 2, 129, dtype=torch.bfloat16)[..., :128]
        self.check(gqa_call(k_buffer=wide, v_buffer=wide), Refusal.LAYOUT)
        paired = torch.zeros(SLOTS, 4, 128, dtype=torch.bfloat16)
        self.check(gqa_call(v_buffer=paired[:, ::2]), Refusal.LAYOUT)
        self.check(gqa_call(out=call.out.transpose(0, 1).contiguous().transpose(0, 1)),
                   Refusal.LAYOUT)
        joined = torch.zeros(8, 24, 128, dtype=torch.bfloat16)
        self.check(gqa_call(q=joined[:, :8]), None)  # a part of a fused QKV row

    def test_library_and_device(self):
        for status, refusal in ((None, Refusal.LIBRARY),
                                (kernels.Status.UNSUPPORTED, Refusal.DEVICE),
                                (kernels.Status.INVALID, Refusal.DEVICE)):
            attention = verify_kernels.KernelAttention(4, 64, "cpu")
            with PlayedKernels(status) as played:
                for _ in range(3):
                    self.assertEqual(attention.refuse(mla_call()), refusal)
            self.assertEqual(len(played.calls), 1)  # asked once
        with PlayedKernels(kernels.Status.CUDA_ERROR), self.assertRaises(kernels.KernelError):
            verify_kernels.KernelAttention(4, 64, "cpu").refuse(mla_call())


class Options(unittest.TestCase):
    """What refuse_call looks at."""

    def test_each(self):
        self.assertIsNone(refuse_call(mla_call()))
        self.assertIsNone(refuse_call(mla_call(sliding_window_size=-1, xai_temperature_len=-1,
                                               logit_cap=0.0)))
        mask = torch.zeros(1, dtype=torch.bool)
        self.assertIsNone(refuse_call(mla_call(causal=False, custom_mask=mask)))
        for changes, refusal in (
                ({"sinks": mask}, Refusal.SINKS),
                ({"sliding_window_size": 0}, Refusal.WINDOW),
                ({"window_kv_offsets": mask}, Refusal.WINDOW),
                ({"xai_temperature_len": 1024}, Refusal.XAI_TEMPERATURE),
                ({"causal": False}, Refusal.NOT_CAUSAL),
                ({"k_descale": 0.5}, Refusal.KV_SCALE),
                ({"v_descale": 0.5}, Refusal.KV_SCALE),
                ({"logit_cap": -1.0}, Refusal.LOGIT_CAP),
                ({"logit_cap": float("nan")}, Refusal.LOGIT_CAP),
                ({"qo_indptr": torch.tensor([0, 4, 7, 8])}, Refusal.RAGGED),
                ({"k_buffer": torch.zeros(4, 64, 1, 576)}, Refusal.LAYOUT),
                ({"k_buffer": torch.zeros(SLOTS, 1, 640)}, Refusal.LAYOUT),
                ({"v_buffer": torch.zeros(SLOTS, 2, 512)}, Refusal.LAYOUT)):
            self.assertEqual(refuse_call(mla_call(**changes)), refusal, changes)
        self.assertEqual(refuse_call(mla_call(nodes=129, requests=2)), Refusal.NODES)
        self.assertEqual(refuse_call(gqa_call(contexts=(1,) * 65, nodes=1)), Refusal.REQUESTS)
        self.assertEqual(refuse_call(gqa_call(contexts=())), Refusal.REQUESTS)
        self.assertEqual(refuse_call(gqa_call(heads=7)), Refusal.SHAPE)


if __name__ == "__main__":
    numpy.random.seed(0)
    unittest.main()
