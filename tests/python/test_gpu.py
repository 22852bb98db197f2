"""The kernels on torch tensors against a float64 computation, eager and captured in a graph.
Skipped without torch, a CUDA device or the library."""

import unittest

import support  # noqa: F401  (puts the package on sys.path)

from kdtree import KernelError
from kdtree import kernels as kd

try:
    import torch

    reason = None if torch.cuda.is_available() else "no CUDA device"
except ImportError:
    reason = "no torch"
if reason is None:
    try:
        kd.version()
    except KernelError as error:
        reason = str(error)

LIMIT = 3e-3  # relative L2, bf16


def random_tree(nodes, generator):
    """Parents (-1: the root), ancestor words [nodes, 2], depths."""
    parents = [-1]
    for node in range(1, nodes):
        parents.append(int(torch.randint(0, node, (), generator=generator)))
    visible, depth = [], []
    for node, parent in enumerate(parents):
        visible.append((visible[parent] if parent >= 0 else 0) | 1 << node)
        depth.append(depth[parent] + 1 if parent >= 0 else 0)
    signed = [[(word >> shift & (1 << 64) - 1) for shift in (0, 64)] for word in visible]
    signed = [[w - (1 << 64) if w >> 63 else w for w in words] for words in signed]
    return visible, signed, depth


class Step:
    """Random requests: contexts, trees, shuffled slots (page size 1)."""

    def __init__(self, contexts, nodes, seed=1, capacity_context=None, capacity_nodes=None):
        generator = torch.Generator().manual_seed(seed)
        self.contexts, self.nodes = contexts, nodes
        total = sum(nodes)
        self.slots = sum(contexts) + total + 7
        order = torch.randperm(self.slots, generator=generator).to(torch.int32)
        width = max(capacity_context or max(contexts), 1)
        pages = torch.full((len(contexts), width), -1, dtype=torch.int32)
        used, self.context_slots = 0, []
        for r, context in enumerate(contexts):
            self.context_slots.append(order[used:used + context].long())
            pages[r, :context] = order[used:used + context]
            used += context
        self.tail = order[used:used + total].long()
        capacity = capacity_nodes or total
        tail = torch.zeros(capacity, dtype=torch.int32)
        tail[:total] = self.tail
        ancestors = torch.zeros(capacity, 2, dtype=torch.int64)
        depth = torch.zeros(capacity, dtype=torch.int32)
        self.visible, start = [], [0]
        for count in nodes:
            visible, words, depths = random_tree(count, generator)
            self.visible.append(visible)
            ancestors[start[-1]:start[-1] + count] = torch.tensor(words)
            depth[start[-1]:start[-1] + count] = torch.tensor(depths, dtype=torch.int32)
            start.append(start[-1] + count)
        self.start = start
        self.host = {
            "context": torch.tensor(contexts, dtype=torch.int32),
            "node_start": torch.tensor(start, dtype=torch.int32),
            "tail_slots": tail,
            "ancestors": ancestors,
            "depth": depth,
            "pages": pages,
        }
        self.batch = kd.AttnBatch(**{k: v.cuda() for k, v in self.host.items()}, max_context=width)

    def become(self, other):
        """Takes over another step of the same capacity in place, as between replays."""
        for name, value in other.host.items():
            getattr(self.batch, name).copy_(value)

    def expected(self, q, keys, values, scale):
        """float64 [nodes, heads, value dim]; q [nodes, heads, d], keys [slots, heads, d]."""
        out = torch.zeros(sum(self.nodes), q.shape[1], values.shape[-1], dtype=torch.float64,
                          device="cuda")
        for r, (context, nodes) in enumerate(zip(self.contexts, self.nodes)):
            tail = self.tail[self.start[r]:self.start[r + 1]]
            slots = torch.cat([self.context_slots[r], tail]).cuda()
            k, v = keys[slots].double(), values[slots].double()
            for i in range(nodes):
                seen = torch.ones(context + nodes, dtype=torch.bool)
                seen[context:] = torch.tensor([self.visible[r][i] >> j & 1 == 1
                                               for j in range(nodes)])
                node = self.start[r] + i
                scores = torch.einsum("hd,khd->hk", q[node].double(), k) * scale
                scores[:, ~seen.cuda()] = float("-inf")
                out[node] = torch.einsum("hk,khd->hd", scores.softmax(-1), v)
        return out


def relative(got, expected):
    return ((got.double() - expected).norm() / expected.norm()).item()


@unittest.skipIf(reason is not None, reason)
class Gpu(unittest.TestCase):
    scale = 192 ** -0.5

    def mla(self, step, heads, kv_format=kd.KvFormat.BF16, **shape):
        """Tensors of one MLA call and what it must give."""
        rows = step.batch.max_nodes
        torch.manual_seed(7)
        q = torch.randn(rows, heads, 576, device="cuda").bfloat16()
        kv = torch.randn(step.slots, 576, device="cuda")
        kv[step.tail.cuda()] *= 3  # so that a fault of the mask shows
        stored = kv.bfloat16() if kv_format == kd.KvFormat.BF16 else kv.to(torch.float8_e4m3fn)
        plain = stored.float()[:, None, :].expand(-1, heads, -1)
        out = torch.full((rows, heads, 512), float("nan"), device="cuda").bfloat16()
        shape = kd.AttnShape(kd.AttnKind.MLA, heads=heads, kv_format=kv_format, **shape)
        workspace = kd.Workspace(shape, len(step.contexts), rows, step.batch.max_context)

        def run():
            kd.attn_plan(shape, step.batch, workspace)
            kd.attn_verify_mla(shape, step.batch, q[..., :512], q[..., 512:], stored, out,
                               workspace, scale=self.scale)

        return run, out, lambda s: s.expected(q, plain, plain[..., :512], self.scale)

    def test_mla(self):
        for contexts, nodes, heads in (((1000,), (1,), 8), ((0, 63, 700), (5, 40, 1), 12),
                                       ((3000,), (128,), 16)):
            with self.subTest(contexts=contexts, nodes=nodes, heads=heads):
                step = Step(contexts, nodes)
                run, out, expected = self.mla(step, heads)
                run()
                self.assertLess(relative(out, expected(step)), LIMIT)

    def test_mla_fp8(self):
        step = Step((777,), (20,))
        run, out, expected = self.mla(step, 8, kd.KvFormat.FP8)
        run()
        self.assertLess(relative(out, expected(step)), 1e-2)

    def test_deterministic_mode(self):
        step = Step((777, 64), (20, 3))
        run, out, expected = self.mla(step, 8, mode=kd.AttnMode.DETERMINISTIC, max_depth=32)
        run()
        self.assertLess(relative(out, expected(step)), LIMIT)
        first = out.clone()
        run()
        self.assertTrue(torch.equal(first, out))

    def test_gqa(self):
        step = Step((500, 64), (9, 17))
        q = torch.randn(26, 12, 128, device="cuda").bfloat16()
        k = torch.randn(step.slots, 4, 128, device="cuda").bfloat16()
        v = torch.randn(step.slots, 4, 128, device="cuda").bfloat16()
        out, lse = torch.empty_like(q), torch.empty(26, 12, device="cuda")
        shape = kd.AttnShape(kd.AttnKind.GQA, heads=12, kv_heads=4, head_dim=128)
        workspace = kd.Workspace(shape, 2, 26, 500)
        kd.attn_plan(shape, step.batch, workspace)
        kd.attn_verify_gqa(shape, step.batch, q, k, v, out, workspace, scale=128 ** -0.5, lse=lse)
        each = lambda cache: cache.repeat_interleave(3, dim=1)  # noqa: E731
        expected = step.expected(q, each(k), each(v), 128 ** -0.5)
        self.assertLess(relative(out, expected), LIMIT)
        self.assertTrue(torch.isfinite(lse).all())

    def test_captured_large_replayed_small(self):
        step = Step((2000, 1500), (30, 34))
        run, out, expected = self.mla(step, 8)
        run()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
        for contexts, nodes in (((2000, 1500), (30, 34)), ((1, 0), (1, 1)), ((64, 1999), (2, 61)),
                                ((65, 63), (33, 1))):
            with self.subTest(contexts=contexts, nodes=nodes):
                # Slots of the largest step, so that every replay stays inside the cache.
                other = Step(contexts, nodes, seed=5, capacity_context=2000, capacity_nodes=64)
                step.become(other)
                out.fill_(float("nan"))
                graph.replay()
                self.assertLess(relative(out[:sum(nodes)], expected(other)), LIMIT)

    def test_rope_append_and_kv_move(self):
        rows, heads = 6, 8
        shape = kd.AttnShape(kd.AttnKind.MLA, heads=heads)
        q = torch.randn(rows, heads, 64, device="cuda").bfloat16()
        latent = torch.randn(rows, 512, device="cuda").bfloat16()
        rope = torch.randn(rows, 64, device="cuda").bfloat16()
        cache = torch.zeros(32, 576, device="cuda").bfloat16()
        positions = torch.tensor([0, 1, 2, 2, 3, 70000], device="cuda", dtype=torch.int32)
        slots = torch.tensor([5, 9, 1, 31, -1, 12], device="cuda", dtype=torch.int32)
        inverse = 10000.0 ** (-torch.arange(0, 64, 2, device="cuda") / 64)

        def rotated(x):
            angle = positions.double()[:, None] * inverse.double()
            shape_ = (rows,) + (1,) * (x.dim() - 2) + (32,)
            cos, sin = angle.cos().reshape(shape_), angle.sin().reshape(shape_)
            even, odd = x.double()[..., 0::2], x.double()[..., 1::2]
            return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)

        expected_q, expected_k = rotated(q), rotated(rope)
        kd.rope_append(shape, q, latent, rope, cache, None, positions, slots, inverse.float(),
                       pairing=kd.RopePairing.ADJACENT)
        real = slots >= 0
        self.assertLess(relative(q[real], expected_q[real]), 1e-2)
        written = cache[slots[real].long()]
        self.assertTrue(torch.equal(written[:, :512], latent[real]))
        self.assertLess(relative(written[:, 512:], expected_k[real]), 1e-2)
        self.assertEqual(int((cache != 0).any(-1).sum()), 5)

        before = cache.clone()
        moves = torch.tensor([[5, 9], [9, 5]], device="cuda", dtype=torch.int32)
        kd.kv_move(kd.row_pointers([cache]), moves[0].contiguous(), moves[1].contiguous(),
                   row_bytes=1152, slot_stride_bytes=1152)
        self.assertTrue(torch.equal(cache[9], before[5]) and torch.equal(cache[5], before[9]))


if __name__ == "__main__":
    unittest.main()
