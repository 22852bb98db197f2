"""Calls through a stub of the library: what arrives there, and what is refused before."""

import ctypes
import os
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from support import FakeTensor, compile_stub, fake_torch

from kdtree import KernelError, _library, _structs
from kdtree import kernels as kd


class Seen(ctypes.Structure):
    """What the stub keeps."""

    _fields_ = [
        ("function", ctypes.c_int32),
        ("shape", _structs.CAttnShape),
        ("batch", _structs.CAttnBatch),
        ("mla", _structs.CMlaTensors),
        ("gqa", _structs.CGqaTensors),
        ("rope", _structs.CRopeAppend),
        ("move", _structs.CKvMove),
        ("workspace", ctypes.c_void_p),
        ("workspace_bytes", ctypes.c_uint64),
        ("stream", ctypes.c_void_p),
    ]


class Kernels(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        library = compile_stub(Path(folder.name))
        for patch in (mock.patch.dict(os.environ, {"KDTREE_LIBRARY_PATH": str(library)}),
                      mock.patch.dict(sys.modules, {"torch": fake_torch()})):
            patch.start()
            cls.addClassCleanup(patch.stop)
        _library.load.cache_clear()
        cls.addClassCleanup(_library.load.cache_clear)
        stub = _library.load().stub_seen
        stub.restype = ctypes.POINTER(Seen)
        cls.seen = stub().contents

    def setUp(self):
        self.mla = kd.AttnShape(kd.AttnKind.MLA, heads=8)
        self.gqa = kd.AttnShape(kd.AttnKind.GQA, heads=8, kv_heads=2, head_dim=128)
        self.batch = self.make_batch()
        self.workspace = kd.Workspace(self.mla, 2, 5, 100)

    def make_batch(self, **other):
        tensors = {
            "context": FakeTensor("int32", 2),
            "node_start": FakeTensor("int32", 3),
            "tail_slots": FakeTensor("int32", 5),
            "ancestors": FakeTensor("int64", 5, 2),
            "pages": FakeTensor("int32", 2, 40, strides=(64, 1)),
            "max_context": 100,
        }
        return kd.AttnBatch(**{**tensors, **other})

    def mla_arguments(self, **other):
        arguments = {
            "q_latent": FakeTensor("bfloat16", 5, 8, 512, strides=(8 * 576, 576, 1)),
            "q_rope": FakeTensor("bfloat16", 5, 8, 64),
            "kv": FakeTensor("bfloat16", 1000, 576),
            "out": FakeTensor("bfloat16", 5, 8, 512),
            "lse": FakeTensor("float32", 5, 8),
            "scale": 0.125,
        }
        arguments.update(other)
        kd.attn_verify_mla(self.mla, self.batch, workspace=self.workspace, **arguments)
        return arguments

    def gqa_arguments(self, **other):
        arguments = {
            "q": FakeTensor("bfloat16", 5, 8, 128),
            "k": FakeTensor("bfloat16", 1000, 2, 128),
            "v": FakeTensor("bfloat16", 1000, 2, 128),
            "out": FakeTensor("bfloat16", 5, 8, 128),
            "scale": 0.5,
        }
        arguments.update(other)
        kd.attn_verify_gqa(self.gqa, self.batch, workspace=self.workspace, **arguments)
        return arguments

    def test_workspace(self):
        self.assertEqual(self.workspace.bytes, 2005100)
        self.assertEqual(self.seen.shape.heads, 8)
        self.assertEqual(self.seen.shape.head_dim, 576)

    def test_plan(self):
        kd.attn_plan(self.mla, self.batch, self.workspace)
        self.assertEqual((self.seen.function, self.seen.stream), (2, 0x5000))
        self.assertEqual(self.seen.workspace, self.workspace.tensor.data_ptr())
        self.assertEqual(self.seen.workspace_bytes, 2005100)
        batch = self.seen.batch
        self.assertEqual((batch.requests, batch.max_nodes, batch.max_context, batch.page_size,
                          batch.pages_stride), (2, 5, 100, 1, 64))
        for name in ("context", "node_start", "tail_slots", "ancestors", "pages"):
            self.assertEqual(getattr(batch, name), getattr(self.batch, name).data_ptr(), name)
        self.assertIsNone(batch.depth)
        self.assertIsNone(batch.pages_start)

    def test_pages_start(self):
        batch = self.make_batch(pages=FakeTensor("int32", 77), depth=FakeTensor("int32", 5),
                                pages_start=FakeTensor("int64", 2), page_size=16)
        kd.attn_plan(self.mla, batch, self.workspace)
        self.assertEqual(self.seen.batch.pages_start, batch.pages_start.data_ptr())
        self.assertEqual(self.seen.batch.depth, batch.depth.data_ptr())
        self.assertEqual(self.seen.batch.page_size, 16)

    def test_mla(self):
        given = self.mla_arguments(logit_cap=30.0)
        seen = self.seen.mla
        self.assertEqual(self.seen.function, 3)
        self.assertEqual((seen.scale, seen.logit_cap, seen.kv_scale), (0.125, 30.0, 1.0))
        for name in ("q_latent", "q_rope", "kv", "out", "lse"):
            self.assertEqual(getattr(seen, name), given[name].data_ptr(), name)
        self.assertEqual((seen.q_latent_node_stride, seen.q_latent_head_stride), (8 * 576, 576))
        self.assertEqual((seen.q_rope_node_stride, seen.q_rope_head_stride), (512, 64))
        self.assertEqual(seen.kv_slot_stride, 576)
        self.mla_arguments(lse=None, kv=FakeTensor("bfloat16", 1000, 1, 576))
        self.assertIsNone(self.seen.mla.lse)

    def test_mla_formats(self):
        self.mla = kd.AttnShape(kd.AttnKind.MLA, heads=8, kv_format=kd.KvFormat.FP8)
        self.mla_arguments(kv=FakeTensor("float8_e4m3fn", 9, 576), kv_scale=0.25)
        self.assertEqual(self.seen.mla.kv_scale, 0.25)
        self.mla = kd.AttnShape(kd.AttnKind.MLA, heads=8, kv_format=kd.KvFormat.FP8_MLA656)
        self.mla_arguments(kv=FakeTensor("uint8", 9, 656))
        self.assertEqual(self.seen.mla.kv_slot_stride, 656)
        self.assertEqual(self.seen.shape.kv_format, 2)

    def test_gqa(self):
        given = self.gqa_arguments()
        seen = self.seen.gqa
        self.assertEqual(self.seen.function, 4)
        for name in ("q", "k", "v", "out"):
            self.assertEqual(getattr(seen, name), given[name].data_ptr(), name)
        self.assertEqual((seen.kv_slot_stride, seen.kv_head_stride), (256, 128))

    def test_rope_append(self):
        rows = dict(positions=FakeTensor("int32", 5), slots=FakeTensor("int32", 5),
                    inverse_frequency=FakeTensor("float32", 32), pairing=kd.RopePairing.HALF)
        kd.rope_append(self.mla, FakeTensor("bfloat16", 5, 8, 64), FakeTensor("bfloat16", 5, 512),
                       FakeTensor("bfloat16", 5, 64), FakeTensor("bfloat16", 99, 576), None, **rows)
        seen = self.seen.rope
        self.assertEqual((self.seen.function, seen.rows, seen.rotated, seen.pairing), (5, 5, 64, 1))
        self.assertEqual((seen.kv_slot_stride, seen.k_row_stride, seen.v_row_stride), (576, 512, 64))
        self.assertIsNone(seen.v_cache)
        cache = FakeTensor("bfloat16", 99, 2, 128)
        kd.rope_append(self.gqa, FakeTensor("bfloat16", 5, 8, 128), FakeTensor("bfloat16", 5, 2, 128),
                       FakeTensor("bfloat16", 5, 2, 128), cache, cache, **rows)
        self.assertEqual((seen.kv_slot_stride, seen.kv_head_stride), (256, 128))
        with self.assertRaisesRegex(ValueError, "v_cache: MLA has one cache"):
            kd.rope_append(self.mla, FakeTensor("bfloat16", 5, 8, 64),
                           FakeTensor("bfloat16", 5, 512), FakeTensor("bfloat16", 5, 64), cache,
                           cache, **rows)

    def test_kv_move(self):
        kd.kv_move(FakeTensor("int64", 3), FakeTensor("int32", 16), FakeTensor("int32", 16),
                   row_bytes=1152, slot_stride_bytes=1152)
        seen = self.seen.move
        self.assertEqual((seen.buffers, seen.max_moves, seen.row_bytes), (3, 16, 1152))
        self.assertIsNone(seen.move_count)

    def test_the_library_s_message(self):
        with mock.patch.dict(sys.modules, {"torch": fake_torch(stream=7)}):
            with self.assertRaises(KernelError) as caught:
                kd.attn_plan(self.mla, self.batch, self.workspace)
        self.assertEqual(str(caught.exception), "kdt_attn_plan: heads 129 is not in 1..128")
        self.assertEqual(caught.exception.status, kd.Status.INVALID)

    def test_what_is_refused_names_the_value(self):
        refused = [
            (ValueError, r"context: shape \[2, 1\], \[any\]",
             lambda: self.make_batch(context=FakeTensor("int32", 2, 1))),
            (TypeError, "context: dtype int64, int32 is needed",
             lambda: self.make_batch(context=FakeTensor("int64", 2))),
            (ValueError, r"node_start: shape \[2\], \[3\]",
             lambda: self.make_batch(node_start=FakeTensor("int32", 2))),
            (ValueError, r"ancestors: shape \[4, 2\], \[5, 2\]",
             lambda: self.make_batch(ancestors=FakeTensor("int64", 4, 2))),
            (ValueError, r"pages: shape \[3, 40\], \[2, any\]",
             lambda: self.make_batch(pages=FakeTensor("int32", 3, 40))),
            (ValueError, "context: on cpu, a CUDA device is needed",
             lambda: self.make_batch(context=FakeTensor("int32", 2, device="cpu"))),
            (ValueError, "tail_slots is on cuda:1, context on cuda:0",
             lambda: self.make_batch(tail_slots=FakeTensor("int32", 5, device="cuda:1"))),
            (TypeError, "context: a tensor is needed, got list",
             lambda: self.make_batch(context=[1, 2])),
            (TypeError, "q_latent: dtype float16, bfloat16 is needed",
             lambda: self.mla_arguments(q_latent=FakeTensor("float16", 5, 8, 512))),
            (ValueError, "q_latent: 4 rows, the batch may have 5",
             lambda: self.mla_arguments(q_latent=FakeTensor("bfloat16", 4, 8, 512))),
            (ValueError, r"q_rope: shape \[5, 4, 64\], \[any, 8, 64\]",
             lambda: self.mla_arguments(q_rope=FakeTensor("bfloat16", 5, 4, 64))),
            (ValueError, r"kv: strides \[576, 2\], the last must be 1",
             lambda: self.mla_arguments(kv=FakeTensor("bfloat16", 9, 576, strides=(576, 2)))),
            (ValueError, r"out: strides \[4608, 576, 1\], it must be contiguous",
             lambda: self.mla_arguments(
                 out=FakeTensor("bfloat16", 5, 8, 512, strides=(4608, 576, 1)))),
            (TypeError, "lse: dtype bfloat16, float32 is needed",
             lambda: self.mla_arguments(lse=FakeTensor("bfloat16", 5, 8))),
            (TypeError, "kv: a tensor is needed, got NoneType",
             lambda: self.mla_arguments(kv=None)),
            (ValueError, "they must be the same",
             lambda: self.gqa_arguments(k=FakeTensor("bfloat16", 9, 2, 128, strides=(512, 128, 1)))),
            (ValueError, r"v: shape \[9, 4, 128\], \[any, 2, 128\]",
             lambda: self.gqa_arguments(v=FakeTensor("bfloat16", 9, 4, 128))),
        ]
        for kind, message, call in refused:
            with self.subTest(message), self.assertRaisesRegex(kind, message):
                call()


if __name__ == "__main__":
    unittest.main()
