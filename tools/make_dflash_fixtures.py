#!/usr/bin/env python3
"""Makes tests/data/models/dflash.json: drafts of tiny random DFlash checkpoints, one of each variant
that the engine knows, by a transcription of the published description in PyTorch, in float64.

    python3 -m venv V && V/bin/pip install torch==2.15.0 numpy==2.4.6
    V/bin/python tools/make_dflash_fixtures.py

Weights, embeddings and features are counter weights (tools/counter_weights.py) under the name
CASE/TENSOR, so the file holds none; the test writes the same checkpoints.
What was read: z-lab/dflash at 44947fb (dflash/model.py), sgl-project/SpecForge at a6b6b02
(specforge/modeling/draft/{dflash,dspark}.py, algorithms/common/dflash_family_model.py),
vllm-project/speculators at c05b95b (models/dflash/{core,attention}.py, models/dspark).
"""
import json
import math
from pathlib import Path

import numpy
import torch

from counter_weights import counter_values

OUT = Path(__file__).parents[1] / "tests" / "data" / "models" / "dflash.json"
HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE, VOCABULARY = 64, 4, 2, 16, 96, 320
TOKENS, ANCHORS, BLOCK, MASK, WINDOW = 150, (1, 30, 70, 149), 8, 17, 12
CANDIDATES, LISTED = 32, 10
LAYERS, TARGET_LAYERS, TARGET_COUNT = 2, [0, 2], 4


def base_config():
    return {
        "architectures": ["DFlashDraftModel"], "model_type": "qwen3", "hidden_act": "silu",
        "block_size": BLOCK, "num_target_layers": TARGET_COUNT, "num_hidden_layers": LAYERS,
        "hidden_size": HIDDEN, "intermediate_size": INTERMEDIATE, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM, "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0, "attention_bias": False, "tie_word_embeddings": False,
        "vocab_size": VOCABULARY, "layer_types": ["full_attention"] * LAYERS,
        "sliding_window": None, "use_sliding_window": False,
        "dflash_config": {"mask_token_id": MASK, "target_layer_ids": TARGET_LAYERS},
    }


def sliding(config, types):
    config.update(layer_types=types, sliding_window=WINDOW, use_sliding_window=True)
    return config


def speculators(config, **fields):
    """The same drafter as vllm-project/speculators writes it."""
    inner = {k: v for k, v in config.items() if k not in
             ("architectures", "block_size", "num_target_layers", "dflash_config")}
    return {"architectures": ["DFlashSpeculator"], "speculators_model_type": "dflash",
            "transformer_layer_config": inner, "block_size": BLOCK, "mask_token_id": MASK,
            "aux_hidden_state_layer_ids": [i + 1 for i in TARGET_LAYERS], **fields}


def cases():
    """name -> (config, how the transcription computes it)"""
    full = dict(causal=[False] * LAYERS, window=[None] * LAYERS, from_anchor=False, first_row=1,
                drafts=BLOCK - 1, draft_vocabulary=VOCABULARY, head=None)
    result = {"full": (base_config(), dict(full))}

    config = base_config()
    config["dflash_config"]["causal_head"] = True
    result["causal_head"] = (config, full | dict(causal=[True] * LAYERS))

    config = sliding(base_config(), ["sliding_attention", "full_attention"])
    result["sliding"] = (config, full | dict(causal=[True, False], window=[WINDOW, None]))

    config = sliding(base_config(), ["sliding_attention"] * LAYERS)
    config["is_causal"] = False
    result["sliding_bidirectional"] = (config, full | dict(window=[WINDOW] * LAYERS))

    config = speculators(sliding(base_config(), ["full_attention", "sliding_attention"]),
                         draft_vocab_size=200)
    result["speculators"] = (config, full | dict(causal=[False, True], window=[None, WINDOW],
                                                 from_anchor=True, draft_vocabulary=200))

    config = speculators(sliding(base_config(), ["sliding_attention", "full_attention"]),
                         draft_vocab_size=VOCABULARY, sliding_window_non_causal=True)
    result["speculators_bidirectional"] = (config, full | dict(window=[WINDOW, None],
                                                               from_anchor=True))

    config = base_config()
    config["architectures"] = ["DSparkDraftModel"]
    config["dflash_config"].update(projector_type="dspark", markov_rank=24,
                                   markov_head_type="vanilla", enable_confidence_head=True,
                                   confidence_head_with_markov=True)
    result["dspark"] = (config, full | dict(first_row=0, drafts=BLOCK, head="markov"))

    config = base_config()
    config["attention_bias"] = True
    config["dflash_config"].update(markov_rank=24, markov_head_type="gated")
    result["gated"] = (config, full | dict(head="gated"))

    config = base_config()
    config["kdtree"] = {"residual_head": "head.safetensors"}
    result["residual"] = (config, full | dict(head="residual"))

    config = base_config()
    config["rope_scaling"] = {"rope_type": "yarn", "factor": 8.0, "beta_fast": 4, "beta_slow": 1,
                              "original_max_position_embeddings": 64}
    result["yarn"] = (config, full | dict(yarn=(8.0, 4, 1, 64)))

    config = base_config()
    config["draft_vocab_size"] = 200
    config["dflash_config"]["draft_shift"] = True
    result["draft_vocabulary"] = (config, full | dict(first_row=0, draft_vocabulary=200))
    return result


def tensor_list(name, config, how):
    """[name, shape, kind, file]: everything that the checkpoint holds."""
    q, kv, draft = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM, how["draft_vocabulary"]
    own_output = name == "speculators"
    tensors = [("fc.weight", [HIDDEN, len(TARGET_LAYERS) * HIDDEN], "matrix"),
               ("hidden_norm.weight", [HIDDEN], "norm"), ("norm.weight", [HIDDEN], "norm")]
    for i in range(LAYERS):
        p = f"layers.{i}."
        tensors += [(p + "input_layernorm.weight", [HIDDEN], "norm"),
                    (p + "post_attention_layernorm.weight", [HIDDEN], "norm"),
                    (p + "self_attn.q_proj.weight", [q, HIDDEN], "matrix"),
                    (p + "self_attn.k_proj.weight", [kv, HIDDEN], "matrix"),
                    (p + "self_attn.v_proj.weight", [kv, HIDDEN], "matrix"),
                    (p + "self_attn.o_proj.weight", [HIDDEN, q], "matrix"),
                    (p + "self_attn.q_norm.weight", [HEAD_DIM], "norm"),
                    (p + "self_attn.k_norm.weight", [HEAD_DIM], "norm"),
                    (p + "mlp.gate_proj.weight", [INTERMEDIATE, HIDDEN], "matrix"),
                    (p + "mlp.up_proj.weight", [INTERMEDIATE, HIDDEN], "matrix"),
                    (p + "mlp.down_proj.weight", [HIDDEN, INTERMEDIATE], "matrix")]
        if config.get("attention_bias"):
            tensors += [(p + "self_attn.q_proj.bias", [q], "bias"),
                        (p + "self_attn.k_proj.bias", [kv], "bias"),
                        (p + "self_attn.v_proj.bias", [kv], "bias"),
                        (p + "self_attn.o_proj.bias", [HIDDEN], "bias")]
    if own_output:
        tensors += [("embed_tokens.weight", [VOCABULARY, HIDDEN], "matrix"),
                    ("lm_head.weight", [draft, HIDDEN], "head")]
    if draft < VOCABULARY:
        tensors.append(("d2t", [draft], "d2t"))
    if own_output:
        tensors.append(("t2d", [VOCABULARY], "t2d"))
    if how["head"] in ("markov", "gated"):
        tensors += [("markov_head.markov_w1.weight", [VOCABULARY, 24], "factor"),
                    ("markov_head.markov_w2.weight", [draft, 24], "factor")]
    if how["head"] == "markov":
        tensors += [("confidence_head.proj.weight", [1, HIDDEN + 24], "matrix"),
                    ("confidence_head.proj.bias", [1], "bias")]
    if how["head"] == "gated":
        tensors += [("markov_head.gate_proj.weight", [24, HIDDEN + 24], "matrix"),
                    ("markov_head.gate_proj.bias", [24], "bias")]
    listed = [[n, s, k, "model.safetensors"] for n, s, k in tensors]
    if how["head"] == "residual":
        listed += [["cond_h.weight", [24, HIDDEN], "matrix", "head.safetensors"],
                   ["cond_e.weight", [24, HIDDEN], "factor", "head.safetensors"],
                   ["cond_o.weight", [HIDDEN, 24], "factor", "head.safetensors"]]
    return listed


def draft_to_target(i):
    """Which tokens a reduced vocabulary holds: ascending, with gaps."""
    return i + i // 2 + (1 if i >= 100 else 0)


def values(name, shape, kind):
    count, fan_in = math.prod(shape), shape[-1]
    offset, scale = {"matrix": (0, math.sqrt(3 / fan_in)), "norm": (1, 0.25), "bias": (0, 0.5),
                     "head": (0, 4 * math.sqrt(3 / fan_in)), "factor": (0, 1.0),
                     "feature": (0, 1.0)}[kind]
    flat = counter_values(name, count, offset, scale)
    return torch.from_numpy(numpy.array(flat, numpy.float64)).reshape(shape)


class Drafter:
    """The published forward, a row at a time where a row has its own mask."""

    def __init__(self, name, config, how):
        self.how = how
        self.t = {t: values(f"{name}/{t}", shape, kind)
                  for t, shape, kind, _ in tensor_list(name, config, how)
                  if kind not in ("d2t", "t2d")}
        self.embedding = self.t.get("embed_tokens.weight")
        if self.embedding is None:
            self.embedding = values(f"{name}/target.embedding", [VOCABULARY, HIDDEN], "matrix")
        self.ids = [draft_to_target(i) for i in range(how["draft_vocabulary"])]
        if how["draft_vocabulary"] == VOCABULARY:
            self.ids = list(range(VOCABULARY))
        self.output = self.t.get("lm_head.weight")
        if self.output is None:
            head = values(f"{name}/target.head", [VOCABULARY, HIDDEN], "head")
            self.output = head[self.ids]
        self.features = values(f"{name}/features", [TOKENS, len(TARGET_LAYERS) * HIDDEN], "feature")

    @staticmethod
    def rms_norm(x, weight, eps=1e-6):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight

    def rotate(self, x, positions):
        """[rows, heads, dim], halves paired, absolute positions."""
        frequency = 10000.0 ** (-torch.arange(0, HEAD_DIM, 2, dtype=torch.float64) / HEAD_DIM)
        magnitude = 1.0
        if "yarn" in self.how:
            # transformers' _compute_yarn_parameters: pairs that turn often keep their frequency.
            factor, fast, slow, original = self.how["yarn"]
            low, high = [HEAD_DIM * math.log(original / (turns * 2 * math.pi)) /
                         (2 * math.log(10000.0)) for turns in (fast, slow)]
            low, high = max(math.floor(low), 0), min(math.ceil(high), HEAD_DIM - 1)
            ramp = ((torch.arange(HEAD_DIM // 2, dtype=torch.float64) - low) /
                    (high - low)).clamp(0, 1)
            frequency = frequency / factor * ramp + frequency * (1 - ramp)
            magnitude = 0.1 * math.log(factor) + 1.0
        angle = positions.to(torch.float64)[:, None] * frequency
        cos, sin = [torch.cat([f(angle)] * 2, -1)[:, None, :] * magnitude
                    for f in (torch.cos, torch.sin)]
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat([-second, first], -1) * sin

    def linear(self, name, x):
        y = x @ self.t[name + ".weight"].T
        return y + self.t[name + ".bias"] if name + ".bias" in self.t else y

    def keys_values(self, p, x, positions):
        k = self.linear(p + "k_proj", x).view(-1, KV_HEADS, HEAD_DIM)
        v = self.linear(p + "v_proj", x).view(-1, KV_HEADS, HEAD_DIM)
        return self.rotate(self.rms_norm(k, self.t[p + "k_norm.weight"]), positions), v

    def mask(self, layer, anchor):
        """[block, context + block] True: attended to."""
        context, row = torch.arange(anchor), torch.arange(BLOCK)
        window = self.how["window"][layer]
        if window is None:
            sees = torch.ones(BLOCK, anchor, dtype=torch.bool)
        elif self.how["from_anchor"]:
            sees = (context >= anchor - window)[None].expand(BLOCK, anchor)
        else:
            sees = context[None] >= (anchor + row - (window - 1))[:, None]
        block = torch.ones(BLOCK, BLOCK, dtype=torch.bool)
        if self.how["causal"][layer]:
            block = row[None] <= row[:, None]
        return torch.cat([sees, block], 1)

    def attention(self, layer, x, context, anchor):
        p = f"layers.{layer}.self_attn."
        positions = torch.arange(anchor, anchor + BLOCK)
        q = self.linear(p + "q_proj", x).view(BLOCK, HEADS, HEAD_DIM)
        q = self.rotate(self.rms_norm(q, self.t[p + "q_norm.weight"]), positions)
        k, v = [torch.cat(pair).repeat_interleave(HEADS // KV_HEADS, 1) for pair in zip(
            self.keys_values(p, context, torch.arange(anchor)), self.keys_values(p, x, positions))]
        scores = torch.einsum("qhd,khd->hqk", q, k) / math.sqrt(HEAD_DIM)
        scores = scores.masked_fill(~self.mask(layer, anchor)[None], -math.inf)
        out = torch.einsum("hqk,khd->qhd", torch.softmax(scores, -1), v)
        return self.linear(p + "o_proj", out.reshape(BLOCK, -1))

    def hidden(self, tokens, anchor):
        """Of the drafting rows, behind the last norm."""
        context = self.rms_norm(self.features[:anchor] @ self.t["fc.weight"].T,
                                self.t["hidden_norm.weight"])
        x = self.embedding[[tokens[anchor]] + [MASK] * (BLOCK - 1)]
        for i in range(LAYERS):
            p = f"layers.{i}."
            normed = self.rms_norm(x, self.t[p + "input_layernorm.weight"])
            x = x + self.attention(i, normed, context, anchor)
            normed = self.rms_norm(x, self.t[p + "post_attention_layernorm.weight"])
            gate, up = [self.linear(p + f"mlp.{n}_proj", normed) for n in ("gate", "up")]
            x = x + self.linear(p + "mlp.down_proj", torch.nn.functional.silu(gate) * up)
        x = self.rms_norm(x, self.t["norm.weight"])
        return x[self.how["first_row"]:self.how["first_row"] + self.how["drafts"]]

    def biased(self, h, logits, previous):
        """Logits of one draft given the token before it."""
        if self.how["head"] == "residual":
            previous = self.embedding[previous]
            s = torch.nn.functional.silu(self.t["cond_h.weight"] @ h +
                                         self.t["cond_e.weight"] @ previous)
            return self.output @ (h + self.t["cond_o.weight"] @ s)
        latent = self.t["markov_head.markov_w1.weight"][previous]
        if self.how["head"] == "gated":
            gate = torch.sigmoid(self.linear("markov_head.gate_proj", torch.cat([h, latent])))
            latent = gate * latent
        return logits + self.t["markov_head.markov_w2.weight"] @ latent

    def draft(self, tokens, anchor):
        hidden = self.hidden(tokens, anchor)
        logits = hidden @ self.output.T
        if self.how["head"] in ("markov", "gated"):
            logits[0] = self.biased(hidden[0], logits[0], tokens[anchor])
        log_probs = torch.log_softmax(logits, -1)
        top = torch.topk(log_probs, CANDIDATES, -1)
        result = []
        for d in range(len(logits)):
            best = top.indices[d]
            depth = {"ids": [self.ids[i] for i in best[:LISTED]],
                     "log_probs": [round(float(v), 6) for v in top.values[d][:LISTED]]}
            if d > 0 and self.how["head"]:
                mass = torch.logsumexp(top.values[d], 0)
                depth["edges"] = []
                for parent in top.indices[d - 1][:LISTED]:
                    given = self.biased(hidden[d], logits[d], self.ids[parent])[best]
                    edge = torch.log_softmax(given, 0) + mass
                    depth["edges"].append([round(float(v), 6) for v in edge[:LISTED]])
            result.append(depth)
        return result


def main():
    torch.set_num_threads(1)
    tokens = [(7 * i * i + 3 * i + 5) % VOCABULARY for i in range(TOKENS)]
    fixture = {"made_by": f"tools/make_dflash_fixtures.py, torch {torch.__version__}, float64",
               "tokens": tokens, "hidden": HIDDEN, "vocabulary": VOCABULARY,
               "target_layers": TARGET_COUNT, "cases": []}
    for name, (config, how) in cases().items():
        drafter = Drafter(name, config, how)
        fixture["cases"].append({
            "name": name, "config": config, "tensors": tensor_list(name, config, how),
            "target_ids": drafter.ids if len(drafter.ids) < VOCABULARY else [],
            "drafts": [{"anchor": a, "depths": drafter.draft(tokens, a)} for a in ANCHORS]})
    lines = json.dumps(fixture).replace('{"name"', '\n{"name"').replace('{"anchor"', '\n{"anchor"')
    OUT.write_text(lines + "\n")


if __name__ == "__main__":
    main()
