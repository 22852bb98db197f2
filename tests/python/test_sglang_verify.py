"""What the verify backend for SGLang decides from shapes and options, without torch and SGLang."""

import os
import unittest
from dataclasses import replace
from types import SimpleNamespace
from unittest import mock

import support

from kdtree.sglang_ext import kv_move, verify
from kdtree.sglang_ext.config import MASK_CHECKS, ConfigError, DefragConfig, mask_check
from kdtree.sglang_ext.verify_call import Refusal, Tally, VerifyCall, refuse_call


class Tensor(support.FakeTensor):
    def dim(self):
        return len(self.shape)


def bf16(*shape):
    return Tensor("bfloat16", *shape)


CALL = VerifyCall(
    q=bf16(8, 16, 576), out=bf16(8, 16, 512), k_buffer=bf16(100, 1, 576),
    v_buffer=bf16(100, 1, 512), qo_indptr=Tensor("int32", 3), kv_indptr=Tensor("int32", 3),
    kv_indices=Tensor("int64", 50), custom_mask=Tensor("bool", 300), causal=True,
    mask_indptr=Tensor("int64", 3), nodes=4, k_descale=1.0, v_descale=1.0, scale=0.1)


SHARED = Tensor("float8_e4m3fn", 100, 1, 576)
FP8 = {"k_buffer": SHARED, "v_buffer": Tensor("float8_e4m3fn", 100, 1, 512)}


class Calls(unittest.TestCase):
    def test_served(self):
        self.assertIsNone(refuse_call(CALL))
        self.assertIsNone(refuse_call(replace(CALL, custom_mask=None)))
        self.assertIsNone(refuse_call(replace(CALL, causal=False)))
        self.assertIsNone(refuse_call(replace(CALL, logit_cap=30.0)))
        self.assertIsNone(refuse_call(replace(CALL, **FP8, k_descale=0.5, v_descale=0.25)))

    def test_refused(self):
        for changes, refusal in (
                ({"sinks": 1}, Refusal.SINKS),
                ({"sliding_window_size": 128}, Refusal.WINDOW),
                ({"xai_temperature_len": 1}, Refusal.XAI_TEMPERATURE),
                ({"causal": False, "custom_mask": None}, Refusal.NOT_CAUSAL),
                ({"k_descale": 2.0}, Refusal.KV_SCALE), ({"nodes": 129}, Refusal.NODES),
                ({"k_buffer": SHARED, "v_buffer": SHARED, "v_descale": 0.5}, Refusal.KV_SCALE),
                ({"nodes": 5}, Refusal.RAGGED),
                ({"q": bf16(0, 16, 576), "qo_indptr": Tensor("int32", 1)}, Refusal.REQUESTS),
                ({"k_buffer": bf16(100, 64, 1, 576)}, Refusal.LAYOUT),
                ({"q": bf16(8, 15, 576), "k_buffer": bf16(100, 2, 576),
                  "v_buffer": bf16(100, 2, 512)}, Refusal.SHAPE)):
            self.assertEqual(refuse_call(replace(CALL, **changes)), refusal, changes)

    def test_each_reason_is_logged_once_and_counted(self):
        tally = Tally()
        with self.assertLogs("kdtree.sglang_ext.verify_call", "WARNING") as logged:
            for refusal in (Refusal.SINKS, Refusal.NODES, Refusal.SINKS):
                tally.refuse(refusal, "layer 3")
        self.assertEqual(len(logged.output), 2)
        self.assertIn("attention sinks (layer 3)", logged.output[0])
        tally.serve()
        self.assertEqual(tally.as_dict(), {"served": 1, "refused": {
            "attention sinks": 2, "more than 128 nodes a request": 1}})


class Settings(unittest.TestCase):
    def test_mask_check(self):
        self.assertEqual(mask_check({}), "first")
        for mode in MASK_CHECKS:
            self.assertEqual(mask_check({"KDTREE_VERIFY_CHECK": mode}), mode)
        with self.assertRaisesRegex(ConfigError, "KDTREE_VERIFY_CHECK=sometimes"):
            mask_check({"KDTREE_VERIFY_CHECK": "sometimes"})

    def test_kv_move(self):
        self.assertFalse(DefragConfig.from_env({}).kv_move)
        self.assertTrue(DefragConfig.from_env({"KDTREE_KV_MOVE": "1"}).kv_move)
        with self.assertRaisesRegex(ConfigError, "KDTREE_KV_MOVE=yes"):
            DefragConfig.from_env({"KDTREE_KV_MOVE": "yes"})

    def test_nothing_was_counted_before_a_backend(self):
        self.assertEqual(verify.verify_counts(), {"served": 0, "refused": {}})


class Moves(unittest.TestCase):
    """On a GPU without the kernel library the rows are left to SGLang."""

    def test_no_library(self):
        class Buffer(Tensor):
            def __getitem__(self, _index):
                return self

            def numel(self):
                return 576

            def element_size(self):
                return 2

        pool = SimpleNamespace(kv_buffer=[Buffer("bfloat16", 100, 1, 576)] * 3)
        kv_move._has_kernels.cache_clear()
        self.addCleanup(kv_move._has_kernels.cache_clear)
        with mock.patch.dict(os.environ, {"KDTREE_LIBRARY_PATH": "/nowhere"}), \
                self.assertLogs("kdtree.sglang_ext.kv_move", "ERROR"):
            for _ in range(2):
                self.assertEqual(kv_move.unfit(pool, pool.kv_buffer),
                                 "libkdtree_kernels.so cannot be loaded")


if __name__ == "__main__":
    unittest.main()
