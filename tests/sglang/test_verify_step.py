"""SGLang's metadata as the kernels' batch: needs torch, not SGLang."""

import unittest

import verify_support as support

support.require_torch()

import numpy
import torch
from kdtree.sglang_ext import verify_reference, verify_step
from kdtree.sglang_ext.verify_call import VerifyCall

MAX_CONTEXT = 96


def call_of(contexts, masks, *, kv_indices, mask_dtype=torch.bool, mask_extra=0):
    """A call of one layer with one value a head; masks None: a causal chain."""
    requests, nodes = len(contexts), len(masks[0]) if masks else 3
    flat = None
    if masks:
        parts = []
        for context, mask in zip(contexts, masks):
            # The context's columns say nothing: SGLang's kernel does not look at them.
            part = torch.zeros(nodes, context + nodes, dtype=torch.bool)
            part[:, context:] = torch.tensor(mask)
            parts.append(part.reshape(-1))
        flat = torch.cat([*parts, torch.ones(mask_extra, dtype=torch.bool)]).to(mask_dtype)
    ends = torch.tensor([0, *contexts]).cumsum(0)
    cells = torch.tensor([0, *(nodes * (context + nodes) for context in contexts)]).cumsum(0)
    row = torch.zeros(requests * nodes, 1, 1)
    cache = torch.zeros(1, 1, 1)
    return VerifyCall(
        q=row, out=row, k_buffer=cache, v_buffer=cache,
        qo_indptr=torch.arange(requests + 1) * nodes, kv_indptr=ends.to(torch.int32),
        kv_indices=kv_indices, custom_mask=flat, causal=True, mask_indptr=cells, nodes=nodes,
        k_descale=1.0, v_descale=1.0, scale=1.0)


def words_of(parents):
    """Two 64-bit words a node, from the parents alone, as signed integers."""
    words = []
    for i, parent in enumerate(parents):
        bits = 1 << i
        while parent >= 0:
            bits |= 1 << parent
            parent = parents[parent]
        low, high = bits & (2**64 - 1), bits >> 64
        words.append([word - 2**64 if word >= 2**63 else word for word in (low, high)])
    return words


class Fill(unittest.TestCase):
    def test_trees_of_every_size(self):
        random = numpy.random.default_rng(7)
        buffers = verify_step.StepBuffers(8, MAX_CONTEXT, "cpu")
        for nodes in (1, 2, 3, 17, 63, 64, 65, 100, 127, 128):
            with self.subTest(nodes=nodes):
                requests = int(random.integers(1, 9))
                contexts = [int(c) for c in random.integers(0, MAX_CONTEXT + 1, requests)]
                parents = [support.random_parents(random, nodes) for _ in contexts]
                slots = torch.from_numpy(random.permutation(4000)[: sum(contexts)])
                rows = torch.from_numpy(random.permutation(4000)[: requests * nodes])
                call = call_of(contexts, [support.mask_of(p) for p in parents], kv_indices=slots)
                batch = buffers.fill(call, rows)
                self.assertEqual(batch.context.tolist(), contexts)
                self.assertEqual(batch.node_start.tolist(),
                                 [nodes * r for r in range(requests + 1)])
                self.assertEqual(batch.tail_slots.tolist(), rows.tolist())
                self.assertEqual(batch.ancestors.tolist(),
                                 [word for p in parents for word in words_of(p)])
                self.assertEqual(batch.pages[: len(slots)].tolist(), slots.tolist())
                self.assertEqual(batch.pages_start.tolist(), call.kv_indptr[:-1].tolist())
                self.assertEqual({batch.context.dtype, batch.node_start.dtype, batch.pages.dtype,
                                  batch.tail_slots.dtype}, {torch.int32})
                self.assertEqual({batch.ancestors.dtype, batch.pages_start.dtype}, {torch.int64})
                self.assertTrue(bool(verify_step.is_forest(verify_step.tree_mask(call))))

    def test_chain_without_a_mask(self):
        buffers = verify_step.StepBuffers(2, MAX_CONTEXT, "cpu")
        for nodes in (1, 64, 65, 128):
            call = call_of([4, 0], [support.mask_of(support.chain_parents(nodes))] * 2,
                           kv_indices=torch.arange(4))
            masked = buffers.fill(call, torch.arange(2 * nodes)).ancestors.clone()
            call = call_of([4, 0], None, kv_indices=torch.arange(4))
            call = VerifyCall(**{**vars(call), "nodes": nodes})
            bare = buffers.fill(call, torch.arange(2 * nodes)).ancestors
            self.assertTrue(torch.equal(bare, masked), nodes)

    def test_buffers_of_a_captured_graph(self):
        """Masks are bytes in a larger buffer, kv_indices a buffer of full size; nothing moves."""
        parents = [support.chain_parents(3), [-1, 0, 0]]
        buffers = verify_step.StepBuffers(4, MAX_CONTEXT, "cpu")
        padded = torch.full((4 * MAX_CONTEXT + 99,), 2**40, dtype=torch.int64)
        padded[:7] = torch.arange(100, 107)
        call = call_of([5, 2], [support.mask_of(p) for p in parents], kv_indices=padded,
                       mask_dtype=torch.uint8, mask_extra=50)
        first = buffers.fill(call, torch.arange(6))
        self.assertEqual(first.pages.shape[0], 2 * MAX_CONTEXT)
        self.assertEqual(first.pages[:7].tolist(), list(range(100, 107)))
        self.assertEqual(first.ancestors.tolist(), [w for p in parents for w in words_of(p)])
        again = buffers.fill(call, torch.arange(6))
        for name, tensor in vars(first).items():
            if name != "max_context":
                self.assertEqual(tensor.data_ptr(), getattr(again, name).data_ptr(), name)

    def test_no_contexts(self):
        """The kernels want an address for the pages even so."""
        buffers = verify_step.StepBuffers(2, MAX_CONTEXT, "cpu")
        empty = torch.zeros(0, dtype=torch.int64)
        batch = buffers.fill(call_of([0, 0], None, kv_indices=empty), torch.arange(6))
        self.assertNotEqual(batch.pages.data_ptr(), 0)
        self.assertEqual(batch.context.tolist(), [0, 0])

    def test_a_node_sees_itself_whatever_the_mask(self):
        """As the rows that pad a captured graph: the kernels demand that bit."""
        buffers = verify_step.StepBuffers(1, MAX_CONTEXT, "cpu")
        call = call_of([2], [[[False] * 3] * 3], kv_indices=torch.arange(2))
        self.assertEqual(buffers.fill(call, torch.arange(3)).ancestors.tolist(),
                         words_of([-1, -1, -1]))

    def test_words_are_read_as_they_are_written(self):
        random = numpy.random.default_rng(3)
        parents = support.random_parents(random, 128)
        words = torch.tensor(words_of(parents))
        self.assertEqual(verify_reference.visible_nodes(words).tolist(), support.mask_of(parents))


class Forest(unittest.TestCase):
    def check(self, mask, expected):
        self.assertEqual(bool(verify_step.is_forest(torch.tensor([mask]))), expected, mask)

    def test_trees(self):
        self.check(support.mask_of([-1, 0, 0]), True)
        self.check(support.mask_of([-1, -1, 1]), True)  # two roots
        self.check([[True]], True)

    def test_others(self):
        self.check([[True, True], [False, True]], False)  # a child before its parent
        self.check([[True, False], [True, False]], False)  # a node that does not see itself
        self.check([[True, False, False], [True, True, False], [False, True, True]], False)  # a gap
        self.check([[True, False, False], [False, True, False], [True, True, True]], False)
        self.check([[True] * 3] * 3, False)  # what SGLang makes up before a capture

    def test_one_of_many_requests(self):
        good, bad = support.mask_of([-1, 0, 1]), [[True] * 3] * 3
        masks = torch.tensor([good, good, bad, good])
        self.assertFalse(bool(verify_step.is_forest(masks)))
        self.assertTrue(bool(verify_step.is_forest(masks[:2])))


if __name__ == "__main__":
    unittest.main()
