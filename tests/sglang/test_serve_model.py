"""The model of bench/sglang_serve.py writes what its docstring says: by a plain forward in float32."""

import json
import random
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
import sglang_serve  # noqa: E402
import sglang_serve_model as model  # noqa: E402

LAYERS, VOCABULARY = 3, 4096
EPSILON = 1e-6


def norm(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPSILON)


def rotate(x: torch.Tensor) -> torch.Tensor:
    """[tokens, ..., ROPE], pairs of neighbours, by their position."""
    pairs = torch.arange(model.ROPE // 2, dtype=torch.float64)
    angles = torch.outer(torch.arange(len(x), dtype=torch.float64),
                         model.ROPE_BASE ** (-2 * pairs / model.ROPE))
    angles = angles.reshape(len(x), *[1] * (x.dim() - 2), -1)
    cos, sin = angles.cos().float(), angles.sin().float()
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)


def logits(weights: dict[str, torch.Tensor], tokens: list[int]) -> torch.Tensor:
    """[tokens, vocabulary]."""
    x = weights["model.embed_tokens.weight"][tokens]
    for layer in range(LAYERS):
        w = {name.removeprefix(f"model.layers.{layer}."): value for name, value in weights.items()}
        h = norm(x)
        q = (h @ w["self_attn.q_proj.weight"].T).unflatten(1, (model.HEADS, -1))
        latent = h @ w["self_attn.kv_a_proj_with_mqa.weight"].T
        kv = (norm(latent[:, :model.LATENT]) @ w["self_attn.kv_b_proj.weight"].T).unflatten(
            1, (model.HEADS, -1))
        scores = torch.einsum("ihd,jhd->hij", q[..., :model.NOPE], kv[..., :model.NOPE])
        scores += torch.einsum("ihd,jd->hij", rotate(q[..., model.NOPE:]),
                               rotate(latent[:, model.LATENT:]))
        scores *= (model.NOPE + model.ROPE) ** -0.5
        scores.masked_fill_(torch.ones(len(x), len(x), dtype=torch.bool).triu(1), -torch.inf)
        heads = torch.einsum("hij,jhd->ihd", scores.softmax(-1), kv[..., model.NOPE:])
        x = x + heads.flatten(1) @ w["self_attn.o_proj.weight"].T
        h = norm(x)
        gate = torch.nn.functional.silu(h @ w["mlp.gate_proj.weight"].T)
        x = x + gate * (h @ w["mlp.up_proj.weight"].T) @ w["mlp.down_proj.weight"].T
    return norm(x) @ weights["lm_head.weight"].T


class Model(unittest.TestCase):
    def test_text_is_a_walk_through_the_prompt(self):
        generator = random.Random(1)
        weights = model.weights(LAYERS, VOCABULARY)
        cycle = generator.sample(range(64), 20)
        filler = [generator.randrange(64, VOCABULARY) for _ in range(300)]
        tokens = filler[:170] + cycle * 2 + filler[170:] + cycle
        best = logits(weights, tokens)[-len(cycle):].topk(2)
        self.assertEqual(best.indices[:-1, 0].tolist(), cycle[1:])
        gaps = best.values[:, 0] - best.values[:, 1]
        # The last token of the cycle is followed by its first and, once, by a filler.
        self.assertGreater(gaps[:-1].min().item(), 0.3 * best.values[:, 0].mean().item())

    def test_prompt_and_text(self):
        case = sglang_serve.case_of("1024x2x100")
        prompts, texts = zip(*(sglang_serve.prompt_and_text(case, index) for index in range(2)))
        self.assertFalse(set(texts[0]) & set(texts[1]))
        for prompt, text in zip(prompts, texts):
            self.assertEqual((len(prompt), len(text), prompt[-1]), (1024, 100, text[47]))
            pairs = list(zip(prompt, prompt[1:]))
            repeats = sglang_serve.REPEATS
            self.assertEqual([pairs.count(pair) for pair in zip(text[:47], text[1:48])],
                             [repeats] * 46 + [repeats - 1])  # the last one leads from end to start


class Program(unittest.TestCase):
    def test_switches_of_the_caller_do_not_reach_a_server(self):
        environment = {"PATH": "/bin", "KDTREE_LIBRARY_PATH": "/lib", "KDTREE_DEFRAG_EVICT": "0.1",
                       "KDTREE_KV_MOVE": "1", "KDTREE_VERIFY_CHECK": "off"}
        self.assertEqual(sglang_serve.without_switches(environment),
                         {"PATH": "/bin", "KDTREE_LIBRARY_PATH": "/lib"})

    def test_what_was_measured_is_kept_when_a_server_dies(self):
        def measure(_case, first_index, _servers, _runs, report):
            if first_index > 0:
                raise TimeoutError("no answer")
            report.rows.append({"expected": 1, "requests": 1})

        def start(server, _checkpoint, _logs):
            server.up = True

        with tempfile.TemporaryDirectory() as folder, mock.patch.multiple(
                sglang_serve, start=start, wait_until_up=lambda *_: None, measure=measure,
                warm_up=lambda _server: None, header=lambda _arguments: {"schema": 1}):
            file = Path(folder) / "out.json"
            arguments = sglang_serve.parse(["--model", folder, "--json", str(file)])
            with self.assertRaises(TimeoutError):
                sglang_serve.run(arguments, Path(folder))
            report = json.loads(file.read_text())
        self.assertEqual((len(report["rows"]), report["error"]), (1, "TimeoutError('no answer')"))


if __name__ == "__main__":
    unittest.main()
