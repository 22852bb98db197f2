"""KDTREE_KV_MOVE: rows of all layers at once, against SGLang's own copies; by the CUDA kernel where
there is a GPU and libkdtree_kernels.so."""

import unittest
from unittest import mock

import verify_support as support

support.require_torch()

import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
support.require_sglang(DEVICE)

import numpy
from kdtree.sglang_ext import hooks, kv_move
from kdtree.sglang_ext.config import DefragConfig
from kdtree.sglang_ext.kv_move import buffers_of
from sglang.srt.mem_cache import memory_pool

ORIGINAL = {pool: pool.move_kv_cache
            for pool in (memory_pool.MLATokenToKVPool, memory_pool.MHATokenToKVPool)}
kv_move.install(DefragConfig(kv_move=True))
hooks.apply_hooks()
# SGLang's Triton kernel for MHA needs a GPU.
NATIVE_MOVE = {"SGLANG_NATIVE_MOVE_KV_CACHE": "1"} if DEVICE == "cpu" else {}


def mla_pool(dtype=torch.bfloat16, layers=5, page_size=1):
    return memory_pool.MLATokenToKVPool(
        size=256, page_size=page_size, dtype=dtype, kv_lora_rank=32, qk_rope_head_dim=16,
        layer_num=layers, device=DEVICE, enable_memory_saver=False)


def mha_pool(layers=3, **sizes):
    with mock.patch.dict("os.environ", NATIVE_MOVE):
        return memory_pool.MHATokenToKVPool(
            size=256, page_size=1, dtype=torch.bfloat16, head_num=2, head_dim=16, layer_num=layers,
            device=DEVICE, enable_memory_saver=False, enable_alt_stream=False,
            enable_kv_cache_copy=DEVICE == "cuda", **sizes)


def fill(pool, seed):
    generator = torch.Generator().manual_seed(seed)
    for buffer in buffers_of(pool):
        buffer.copy_(torch.randn(buffer.shape, generator=generator))


def slots_of(values):
    return torch.tensor(values, dtype=torch.int64, device=DEVICE)


def accepted(random, requests, step):
    """Slots as SGLang gives them: of each request some of its `step` nodes go to the first ones, in
    order; the lists are packed and end in moves from 0 to 0."""
    slots = 1 + random.permutation(256)[: requests * step].reshape(requests, step)
    targets, sources = [], []
    for row in slots:
        kept = numpy.sort(random.choice(step, int(random.integers(1, step + 1)), replace=False))
        targets += list(row[: len(kept)])
        sources += list(row[kept])
    padding = [0] * (requests * step - len(targets))
    return slots_of(targets + padding), slots_of(sources + padding), len(targets)


class Moves(unittest.TestCase):
    def check(self, pool, reference, targets, sources, moved=1):
        fill(pool, 3)
        fill(reference, 3)
        before = kv_move.move_counts().get("moved", 0)
        pool.move_kv_cache(targets, sources)
        ORIGINAL[type(reference)](reference, targets, sources)
        for ours, theirs in zip(buffers_of(pool), buffers_of(reference)):
            self.assertTrue(torch.equal(ours, theirs))
        self.assertEqual(kv_move.move_counts().get("moved", 0) - before, moved)

    def setUp(self):
        # Read when the original moves, in 0.5.14 and 0.5.15.
        patch = mock.patch.dict("os.environ", NATIVE_MOVE)
        patch.start()
        self.addCleanup(patch.stop)

    def test_hooked(self):
        for pool, original in ORIGINAL.items():
            self.assertIsNot(pool.move_kv_cache, original)

    def test_accepted_paths(self):
        random = numpy.random.default_rng(5)
        for requests in (1, 3, 8):
            for make in (mla_pool, mha_pool):
                targets, sources, live = accepted(random, requests, 16)
                with mock.patch.object(kv_move, "SGLANG_MOVES", 0):
                    self.check(make(), make(), targets, sources)
                self.assertEqual(int(kv_move.live_moves(targets, sources)), live)

    def test_few_rows_of_mha(self):
        """SGLang's own kernel takes all layers at once, too."""
        targets, sources, _ = accepted(numpy.random.default_rng(6), 4, 16)
        self.assertEqual(len(targets), kv_move.SGLANG_MOVES)
        self.check(mha_pool(), mha_pool(), targets, sources, moved=0)
        more = slots_of([0])
        self.check(mha_pool(), mha_pool(), torch.cat([targets, more]), torch.cat([sources, more]))

    def test_overlap_and_duplicates_of_slot_0(self):
        targets = slots_of([5, 6, 7, 8, 0, 0, 0])
        sources = slots_of([5, 7, 8, 5, 0, 0, 0])
        self.check(mla_pool(), mla_pool(), targets, sources)
        self.assertEqual(int(kv_move.live_moves(targets, sources)), 4)

    def test_padding_alone(self):
        zeros = slots_of([0] * 6)
        self.check(mla_pool(), mla_pool(), zeros, zeros)
        self.assertEqual(kv_move.live_moves(zeros, zeros).tolist(), [0])

    def test_all_moves_are_live(self):
        moves = slots_of(list(range(1, 9)))
        self.assertEqual(kv_move.live_moves(moves, moves.flip(0)).tolist(), [8])

    def test_nothing(self):
        empty = slots_of([])
        self.check(mla_pool(), mla_pool(), empty, empty, moved=0)

    def test_two_dimensional_lists_and_pages(self):
        targets, sources = slots_of([[17, 18], [33, 0]]), slots_of([[18, 31], [40, 0]])
        self.check(mla_pool(page_size=16), mla_pool(page_size=16), targets, sources)


class LeftToSglang(unittest.TestCase):
    def check(self, pool, reason, moves=3):
        targets = slots_of(list(range(1, moves + 1))) % 200
        with mock.patch.object(kv_move, "move_rows", side_effect=AssertionError):
            calls = []
            before = kv_move.move_counts().get(reason, 0)
            with mock.patch.object(kv_move, "SGLANG_MOVES", 0):
                kv_move._move_kv_cache(lambda *a: calls.append(a), pool, targets, targets)
        self.assertEqual(len(calls), 1)
        self.assertEqual(kv_move.move_counts()[reason] - before, 1)

    def test_too_many_moves(self):
        self.check(mla_pool(), "more than 1024 moves", moves=1025)

    def test_scales(self):
        pool = mha_pool()
        pool.k_scale_buffer = [torch.zeros(1)]
        self.check(pool, "scales in buffers of their own")

    def test_rows_of_different_length(self):
        pool = mha_pool()
        pool.v_buffer = [buffer[..., :8].contiguous() for buffer in pool.v_buffer]
        self.check(pool, "rows of different length")

    def test_layouts(self):
        pool = mha_pool()
        pool.k_buffer = [buffer[None] for buffer in pool.k_buffer]
        self.check(pool, "layout of the buffers")

    def test_short_rows(self):
        pool = mla_pool()
        pool.kv_buffer = [torch.zeros(8, 1, 9, dtype=torch.uint8)]
        self.check(pool, "rows of no whole 16 bytes")


class Kernel(unittest.TestCase):
    """What reaches kdt_kv_move, without a GPU."""

    def test_arguments(self):
        pool = mla_pool()
        fill(pool, 4)
        expected = [buffer.clone() for buffer in pool.kv_buffer]
        targets, sources = slots_of([9, 10, 0, 0]), slots_of([10, 12, 0, 0])
        kv_move.move_rows(expected, targets, sources)

        def kernel(pointers, from_slots, to_slots, *, row_bytes, slot_stride_bytes, move_count):
            self.assertEqual(pointers.tolist(), [buffer.data_ptr() for buffer in pool.kv_buffer])
            self.assertEqual((row_bytes, slot_stride_bytes), (96, 96))
            self.assertEqual((from_slots.dtype, to_slots.dtype), (torch.int32, torch.int32))
            self.assertEqual(move_count.tolist(), [2])
            kv_move.move_rows(pool.kv_buffer, to_slots[:2], from_slots[:2])

        with mock.patch.object(kv_move.kernels, "kv_move", kernel), mock.patch.object(
                kv_move.kernels, "row_pointers",
                lambda buffers: torch.tensor([buffer.data_ptr() for buffer in buffers])):
            kv_move._move_by_kernel(kv_move._rows_of(pool, pool.kv_buffer), pool.kv_buffer,
                                    targets, sources)
        for ours, wanted in zip(pool.kv_buffer, expected):
            self.assertTrue(torch.equal(ours, wanted))

    def test_addresses_are_kept_until_the_buffers_change(self):
        pool, made = mla_pool(), []
        with mock.patch.object(kv_move.kernels, "row_pointers",
                               lambda buffers: made.append(len(buffers)) or len(made)), \
                mock.patch.object(kv_move.kernels, "kv_move",
                                  lambda pointers, *_lists, **_sizes: moved.append(pointers)):
            moved = []
            for renew in (False, False, True, False):
                if renew:
                    pool.kv_buffer = [buffer.clone() for buffer in pool.kv_buffer]
                kv_move._move_by_kernel(kv_move._rows_of(pool, pool.kv_buffer), pool.kv_buffer,
                                        slots_of([1]), slots_of([2]))
        self.assertEqual(moved, [1, 1, 2, 2])


if __name__ == "__main__":
    unittest.main()
