#!/usr/bin/env python3
"""Writes tests/data/models/deepseek.json: what transformers computes on tiny DeepSeek models whose
weights are functions of tensor name and index (tools/counter_weights.py), one for every corner of
the architecture that changes a number.

    python3 -m venv venv && . venv/bin/activate
    pip install torch==2.15.0 transformers==5.24.0 gguf==0.19.0 safetensors==0.8.0 numpy==2.4.6
    OMP_NUM_THREADS=1 python tools/make_deepseek_fixtures.py

Each model is written as a folder under the names that published checkpoints use and read back by
transformers' own loader; float32, eager attention. FP8 and INT4 weights are generated as codes and
scales and reach transformers dequantised (weights of few bits, activations in float32).
A tree of 8 nodes is computed twice: in one call with a 4-D mask and positions context + depth, and
every path from the root as a sequence of its own; the second is what is written, and the script
stops if the first differs by more than 2e-5 (relative L2).
It also stops where a router's choice is closer than 1e-4: ids must not hang on rounding.

Layout: `cases[]`: `name`; `config` (config.json as a checkpoint would hold it); `weights` (how they
depart from the plain generator, see weights_of); `ids`; `tree` {tokens, parents}; `rows`: which
prompt positions follow; `logits` [rows + nodes][vocabulary]; `features` [layers][hidden], the
residual stream behind each layer at the last prompt position; `routing`, one for each MoE layer:
`logits` [prompt][experts], `ids` [prompt][used] rising, `weights` [prompt][used] in that order,
`bias` [experts]. `gguf`: what llama.cpp's converter makes of the case `base`: metadata, and
name, dims (contiguous first) and FNV-1a-64 of the float32 bytes of every tensor.
"""
import json
import math
import pathlib
import re
import tempfile

import gguf
import numpy as np
import torch
import transformers
from safetensors.torch import save_file

from counter_weights import (counter_bias, counter_matrix, counter_norm, counter_uniform,
                             counter_values)

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests/data/models/deepseek.json"
PROMPT = 24
ROWS = (0, 11, 23)
PARENTS = (-1, 0, 0, 1, 1, 2, 3, 6)

BASE = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "attention_bias": False,
    "first_k_dense_replace": 1,
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 96,
    "kv_lora_rank": 32,
    "max_position_embeddings": 512,
    "moe_intermediate_size": 32,
    "moe_layer_freq": 1,
    "n_group": 4,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 4,
    "num_experts_per_tok": 3,
    "num_hidden_layers": 3,
    "num_key_value_heads": 4,
    "q_lora_rank": 48,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "rms_norm_eps": 1e-6,
    "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0,
                     "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096,
                     "type": "yarn"},
    "rope_theta": 10000,
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "tie_word_embeddings": False,
    "topk_group": 2,
    "topk_method": "noaux_tc",
    "torch_dtype": "bfloat16",
    "v_head_dim": 16,
    "vocab_size": 320,
}

KIMI_YARN = {"beta_fast": 1.0, "beta_slow": 1.0, "factor": 32.0, "mscale": 1.0,
             "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096, "type": "yarn"}
KIMI = {"model_type": "kimi_k2", "n_group": 1, "topk_group": 1, "n_routed_experts": 16,
        "num_experts_per_tok": 4, "routed_scaling_factor": 2.827, "rope_theta": 50000.0,
        "rope_scaling": KIMI_YARN, "v_head_dim": 24}
V2 = {"architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2",
      "q_lora_rank": None, "scoring_func": "softmax", "topk_method": "greedy",
      "norm_topk_prob": False, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.0,
      "n_shared_experts": 2,
      "rope_scaling": BASE["rope_scaling"] | {"mscale": 0.707, "mscale_all_dim": 0.707}}


def yarn(**changes):
    return {"rope_scaling": BASE["rope_scaling"] | changes}


# name, changes of the config, how the weights depart from the plain generator
CASES = [
    ("base", {}, {}),
    ("no_q_lora", {"q_lora_rank": None, "n_group": 1, "topk_group": 1}, {}),
    # Latents so small that an epsilon of 1e-5 in their norms would show.
    ("eps", {"rms_norm_eps": 1e-5}, {"latent_scale": 2.0**-6}),
    ("kimi", KIMI, {}),
    ("mscale_0707", yarn(mscale=0.707, mscale_all_dim=0.707), {}),
    ("mscale_ratio", yarn(mscale=1.0, mscale_all_dim=0.5), {}),
    # All that a key of its own would say is left out; positions beyond the original context.
    ("yarn_bare", {"max_position_embeddings": 128,
                   "rope_scaling": {"rope_type": "yarn", "factor": 8,
                                    "original_max_position_embeddings": 16}}, {}),
    ("half_pairs", {"rope_interleave": False}, {}),
    ("rope_parameters", {"rope_scaling": None, "rope_theta": None,
                         "rope_parameters": {"rope_type": "default", "rope_theta": 20000.0}}, {}),
    ("negative_bias", {"n_routed_experts": 16, "num_experts_per_tok": 5},
     {"bias_offset": -1.5}),
    ("not_normalised", {"norm_topk_prob": False, "routed_scaling_factor": 2.827}, {}),
    ("first_dense_0", {"first_k_dense_replace": 0, "num_hidden_layers": 2}, {}),
    ("first_dense_3", {"first_k_dense_replace": 3, "num_hidden_layers": 4,
                       "n_shared_experts": 2}, {}),
    ("all_dense", {"first_k_dense_replace": 3}, {}),
    ("tied", {"tie_word_embeddings": True}, {}),
    ("attention_bias", {"attention_bias": True}, {}),
    ("fp8", {"quantization_config": {"activation_scheme": "dynamic", "fmt": "e4m3",
                                     "quant_method": "fp8", "weight_block_size": [32, 40]}},
     {"format": "fp8"}),
    ("int4", KIMI | {"quantization_config": {
        "config_groups": {"group_0": {
            "input_activations": None, "output_activations": None, "targets": ["Linear"],
            "weights": {"actorder": None, "block_structure": None, "dynamic": False,
                        "group_size": 32, "num_bits": 4, "observer": "minmax",
                        "observer_kwargs": {}, "strategy": "group", "symmetric": True,
                        "type": "int"}}},
        "format": "pack-quantized",
        "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*",
                   "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"],
        "kv_cache_scheme": None, "quant_method": "compressed-tensors",
        "quantization_status": "compressed"}}, {"format": "int4"}),
    ("v2_greedy", V2, {}),
    ("v2_groups", V2 | {"q_lora_rank": 48, "topk_method": "group_limited_greedy", "n_group": 4,
                        "topk_group": 2, "routed_scaling_factor": 16.0}, {}),
]


def shapes_of(c):
    """Every tensor of a checkpoint: name -> shape, in file order."""
    hidden, heads = c["hidden_size"], c["num_attention_heads"]
    qk = c["qk_nope_head_dim"] + c["qk_rope_head_dim"]
    out = {"model.embed_tokens.weight": (c["vocab_size"], hidden)}

    def mlp(prefix, intermediate):
        out[f"{prefix}.gate_proj.weight"] = (intermediate, hidden)
        out[f"{prefix}.up_proj.weight"] = (intermediate, hidden)
        out[f"{prefix}.down_proj.weight"] = (hidden, intermediate)

    for layer in range(c["num_hidden_layers"]):
        p = f"model.layers.{layer}"
        a = f"{p}.self_attn"
        out[f"{p}.input_layernorm.weight"] = (hidden,)
        if c["q_lora_rank"] is None:
            out[f"{a}.q_proj.weight"] = (heads * qk, hidden)
        else:
            out[f"{a}.q_a_proj.weight"] = (c["q_lora_rank"], hidden)
            if c["attention_bias"]:
                out[f"{a}.q_a_proj.bias"] = (c["q_lora_rank"],)
            out[f"{a}.q_a_layernorm.weight"] = (c["q_lora_rank"],)
            out[f"{a}.q_b_proj.weight"] = (heads * qk, c["q_lora_rank"])
        kv_a = c["kv_lora_rank"] + c["qk_rope_head_dim"]
        out[f"{a}.kv_a_proj_with_mqa.weight"] = (kv_a, hidden)
        if c["attention_bias"]:
            out[f"{a}.kv_a_proj_with_mqa.bias"] = (kv_a,)
        out[f"{a}.kv_a_layernorm.weight"] = (c["kv_lora_rank"],)
        out[f"{a}.kv_b_proj.weight"] = (heads * (c["qk_nope_head_dim"] + c["v_head_dim"]),
                                        c["kv_lora_rank"])
        out[f"{a}.o_proj.weight"] = (hidden, heads * c["v_head_dim"])
        if c["attention_bias"]:
            out[f"{a}.o_proj.bias"] = (hidden,)
        out[f"{p}.post_attention_layernorm.weight"] = (hidden,)
        if layer < c["first_k_dense_replace"]:
            mlp(f"{p}.mlp", c["intermediate_size"])
            continue
        out[f"{p}.mlp.gate.weight"] = (c["n_routed_experts"], hidden)
        if c["topk_method"] == "noaux_tc":
            out[f"{p}.mlp.gate.e_score_correction_bias"] = (c["n_routed_experts"],)
        for expert in range(c["n_routed_experts"]):
            mlp(f"{p}.mlp.experts.{expert}", c["moe_intermediate_size"])
        mlp(f"{p}.mlp.shared_experts", c["moe_intermediate_size"] * c["n_shared_experts"])
    out["model.norm.weight"] = (hidden,)
    if not c["tie_word_embeddings"]:
        out["lm_head.weight"] = (c["vocab_size"], hidden)
    return out


def fp8_matrix(name, rows, columns, block):
    """Codes uniform over all but NaN, a scale for each block; dequantised."""
    codes = ((counter_uniform(name, rows * columns) + 1) * 128).astype(np.uint8)
    codes = np.where((codes & 0x7f) == 0x7f, codes ^ 1, codes).reshape(rows, columns)
    down, across = -(-rows // block[0]), -(-columns // block[1])
    size = 1 / (128 * math.sqrt(columns))
    scales = counter_values(f"{name}_scale_inv", down * across, size, size / 4)
    values = torch.from_numpy(codes).view(torch.float8_e4m3fn).float().numpy()
    spread = np.kron(scales.reshape(down, across), np.ones(block, np.float32))
    return values * spread[:rows, :columns]


def int4_matrix(name, rows, columns, group=32):
    """Codes 0 to 15 that stand for -8 to 7, a scale for each group of columns; dequantised."""
    codes = ((counter_uniform(name, rows * columns) + 1) * 8).astype(np.int32)
    size = 1 / (4.6 * math.sqrt(columns))
    scales = counter_values(name.replace(".weight", ".weight_scale"), rows * columns // group, size,
                            size / 4)
    values = (codes - 8).astype(np.float32).reshape(rows, columns)
    return values * np.repeat(scales.reshape(rows, -1), group, axis=1)


def weights_of(config, options):
    """`latent_scale` multiplies q_a_proj and kv_a_proj_with_mqa; `bias_offset` is added to the
    router's biases; `format`: fp8 (every linear layer but router and head) or int4 (routed
    experts)."""
    out = {}
    for name, shape in shapes_of(config).items():
        count = math.prod(shape)
        quantised = options.get("format")
        if name.endswith("norm.weight"):
            values = counter_norm(name, count)
        elif name.endswith("correction_bias"):
            values = counter_values(name, count, options.get("bias_offset", 0.0), 0.5)
        elif name.endswith(".bias"):
            values = counter_bias(name, count)
        elif name.endswith("embed_tokens.weight"):
            values = counter_matrix(name, shape[0] * shape[1], 1)
        elif quantised == "fp8" and re.search(r"proj(_with_mqa)?\.weight$", name):
            values = fp8_matrix(name, *shape,
                                config["quantization_config"]["weight_block_size"])
        elif quantised == "int4" and ".experts." in name:
            values = int4_matrix(name, *shape)
        else:
            values = counter_matrix(name, *shape)
            if re.search(r"\.(q_a_proj|kv_a_proj_with_mqa)\.weight$", name):
                values = values * np.float32(options.get("latent_scale", 1.0))
        out[name] = torch.from_numpy(np.ascontiguousarray(values, np.float32).reshape(shape))
    return out


def load(config, weights):
    """Through a folder and transformers' own loader."""
    plain = {k: v for k, v in config.items() if k != "quantization_config"}
    if plain["model_type"] == "kimi_k2":  # transformers reads it as what it is
        plain["model_type"] = "deepseek_v3"
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "config.json").write_text(json.dumps(plain))
        save_file(weights, pathlib.Path(folder, "model.safetensors"), {"format": "pt"})
        model, info = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    missing = set(info["missing_keys"]) - {"lm_head.weight"}
    assert not missing and not info["unexpected_keys"] and not info["mismatched_keys"], info
    return model.eval()


class RouterTap:
    """Keeps what every router returned."""

    def __init__(self, model):
        self.calls = []
        for layer in model.model.layers:
            if hasattr(layer.mlp, "gate"):
                layer.mlp.gate.register_forward_hook(
                    lambda module, args, output: self.calls.append(output))


def choice_margin(config, logits, bias):
    """How far the nearest other choice is, over groups and experts: smallest difference."""
    scores = logits.sigmoid() if config["scoring_func"] == "sigmoid" else logits.softmax(-1)
    choice = scores + bias
    groups, kept = config["n_group"], config["topk_group"]
    margin = math.inf
    if kept < groups:
        per_group = choice.view(len(choice), groups, -1)
        best = (per_group.topk(2, -1)[0].sum(-1) if config["scoring_func"] == "sigmoid" else
                per_group.max(-1).values)
        ordered = best.sort(-1, descending=True).values
        margin = (ordered[:, kept - 1] - ordered[:, kept]).min().item()
        keep = torch.zeros_like(best).scatter_(1, best.topk(kept, -1)[1], 1).bool()
        choice = per_group.masked_fill(~keep.unsqueeze(-1), -math.inf).flatten(1)
    ordered = choice.sort(-1, descending=True).values
    used = config["num_experts_per_tok"]
    gap = ordered[:, used - 1] - ordered[:, used]
    return min(margin, gap[torch.isfinite(gap)].min().item())


def relative(a, b):
    return ((a - b).norm() / b.norm()).item()


def tokens_of(name, count):
    return ((counter_uniform(name, count) + 1) * 160).astype(np.int64)


def rounded(tensor, digits=7):
    return [float(f"{value:.{digits}g}") for value in tensor.flatten().tolist()]


@torch.no_grad()
def run_tree(model, ids, tokens):
    """[nodes, vocabulary], every path by itself; checked against one call with a mask."""
    paths = []
    for node in range(len(PARENTS)):
        path = [node]
        while PARENTS[path[0]] >= 0:
            path.insert(0, PARENTS[path[0]])
        paths.append(path)
    alone = torch.stack([
        model(input_ids=torch.tensor([[*ids, *tokens[path]]])).logits[0, -1] for path in paths])
    context, nodes = len(ids), len(PARENTS)
    mask = torch.full((context + nodes, context + nodes), torch.finfo(torch.float32).min)
    mask[:context, :context].triu_(1)
    for node, path in enumerate(paths):
        mask[context + node, :context] = 0
        mask[context + node, [context + n for n in path]] = 0
    positions = [*range(context), *(context + len(path) - 1 for path in paths)]
    together = model(input_ids=torch.tensor([[*ids, *tokens]]), attention_mask=mask[None, None],
                     position_ids=torch.tensor([positions])).logits[0, context:]
    assert relative(together, alone) < 2e-5, relative(together, alone)
    return alone


@torch.no_grad()
def run_case(name, changes, options):
    config = {k: v for k, v in (BASE | changes).items()
              if v is not None or k == "q_lora_rank"}
    weights = weights_of(config, options)
    model = load(config, weights)
    ids = tokens_of(f"{name}.ids", PROMPT)
    tokens = tokens_of(f"{name}.tree", len(PARENTS))
    tree = run_tree(model, ids, tokens)
    tap = RouterTap(model)
    hidden = []
    for layer in model.model.layers:  # (output_hidden_states would hold the last one normed)
        layer.register_forward_hook(lambda module, args, output: hidden.append(output[0, -1]))
    logits = model(input_ids=torch.tensor(ids[None])).logits[0]
    routing = []
    layers = range(config["first_k_dense_replace"], config["num_hidden_layers"])
    for layer, (router_logits, route_weights, route_ids) in zip(layers, tap.calls, strict=True):
        bias = weights.get(f"model.layers.{layer}.mlp.gate.e_score_correction_bias",
                           torch.zeros(config["n_routed_experts"]))
        margin = choice_margin(config, router_logits, bias)
        assert margin > 1e-4, (name, layer, margin)
        order = route_ids.argsort(-1)
        routing.append({
            "logits": [rounded(row, 9) for row in router_logits],
            "bias": rounded(bias, 9),
            "ids": route_ids.gather(1, order).tolist(),
            "weights": [rounded(row) for row in route_weights.gather(1, order)]})
    return {"name": name, "config": config, "weights": options, "ids": ids.tolist(),
            "tree": {"tokens": tokens.tolist(), "parents": list(PARENTS)}, "rows": list(ROWS),
            "logits": [rounded(row) for row in torch.cat([logits[list(ROWS)], tree])],
            "features": [rounded(row) for row in hidden],
            "routing": routing if name in ROUTED else []}


# The cases whose routing differs; the others would only repeat it.
ROUTED = ("base", "kimi", "negative_bias", "not_normalised", "v2_greedy", "v2_groups")


def fnv(data):
    value = 0xcbf29ce484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001b3 & 0xffffffffffffffff
    return f"{value:016x}"


def gguf_of(config, weights):
    """What llama.cpp's converter (conversion/deepseek.py) writes, names from the gguf package."""
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.DEEPSEEK2, config["num_hidden_layers"])
    heads, nope = config["num_attention_heads"], config["qk_nope_head_dim"]
    stacks = {}
    for name, value in weights.items():
        if name.endswith("kv_b_proj.weight"):
            per_head = value.view(heads, -1, config["kv_lora_rank"])
            stacks[name.replace("kv_b", "k_b")] = per_head[:, :nope].transpose(1, 2)
            stacks[name.replace("kv_b", "v_b")] = per_head[:, nope:]
        elif match := re.match(r"(.*\.experts)\.\d+(\..*)", name):
            stacks.setdefault(match[1] + match[2], []).append(value)
        else:
            stacks[name] = value
    tensors = []
    for name, value in stacks.items():
        if isinstance(value, list):
            value = torch.stack(value)
        # The converter renames "..._bias" before it asks the map.
        asked = name.replace("e_score_correction_bias", "e_score_correction.bias")
        mapped = names.get_name(asked, try_suffixes=(".weight", ".bias"))
        assert mapped is not None, name
        data = np.ascontiguousarray(value.numpy(), np.float32)
        tensors.append({"name": mapped, "dims": list(reversed(data.shape)),
                        "fnv": fnv(data.tobytes())})
    k = gguf.Keys
    scaling = config["rope_scaling"]
    metadata = {
        k.LLM.BLOCK_COUNT: config["num_hidden_layers"],
        k.LLM.CONTEXT_LENGTH: config["max_position_embeddings"],
        k.LLM.EMBEDDING_LENGTH: config["hidden_size"],
        k.LLM.FEED_FORWARD_LENGTH: config["intermediate_size"],
        k.LLM.EXPERT_FEED_FORWARD_LENGTH: config["moe_intermediate_size"],
        k.LLM.LEADING_DENSE_BLOCK_COUNT: config["first_k_dense_replace"],
        k.LLM.VOCAB_SIZE: config["vocab_size"],
        k.LLM.EXPERT_COUNT: config["n_routed_experts"],
        k.LLM.EXPERT_USED_COUNT: config["num_experts_per_tok"],
        k.LLM.EXPERT_SHARED_COUNT: config["n_shared_experts"],
        k.LLM.EXPERT_GROUP_COUNT: config["n_group"],
        k.LLM.EXPERT_GROUP_USED_COUNT: config["topk_group"],
        k.LLM.EXPERT_WEIGHTS_SCALE: config["routed_scaling_factor"],
        k.LLM.EXPERT_WEIGHTS_NORM: config["norm_topk_prob"],
        k.LLM.EXPERT_GATING_FUNC: int(gguf.ExpertGatingFuncType.SIGMOID),
        k.Attention.HEAD_COUNT: heads,
        k.Attention.HEAD_COUNT_KV: 1,
        k.Attention.LAYERNORM_RMS_EPS: config["rms_norm_eps"],
        k.Attention.Q_LORA_RANK: config["q_lora_rank"],
        k.Attention.KV_LORA_RANK: config["kv_lora_rank"],
        k.Attention.KEY_LENGTH: config["kv_lora_rank"] + config["qk_rope_head_dim"],
        k.Attention.VALUE_LENGTH: config["kv_lora_rank"],
        k.Attention.KEY_LENGTH_MLA: nope + config["qk_rope_head_dim"],
        k.Attention.VALUE_LENGTH_MLA: config["v_head_dim"],
        k.Rope.DIMENSION_COUNT: config["qk_rope_head_dim"],
        k.Rope.FREQ_BASE: float(config["rope_theta"]),
        k.Rope.SCALING_TYPE: "yarn",
        k.Rope.SCALING_FACTOR: float(scaling["factor"]),
        k.Rope.SCALING_ORIG_CTX_LEN: scaling["original_max_position_embeddings"],
        k.Rope.SCALING_YARN_BETA_FAST: float(scaling["beta_fast"]),
        k.Rope.SCALING_YARN_BETA_SLOW: float(scaling["beta_slow"]),
        k.Rope.SCALING_YARN_LOG_MUL: 0.1 * scaling["mscale_all_dim"],
    }
    return {"metadata": {key.format(arch="deepseek2"): value for key, value in metadata.items()},
            "tensors": tensors}


def main():
    torch.set_num_threads(1)
    cases = []
    for name, changes, options in CASES:
        cases.append(run_case(name, changes, options))
        print(name, "done")
    base = cases[0]
    made = {"transformers": transformers.__version__, "torch": torch.__version__,
            "gguf": "0.19.0", "by": "tools/make_deepseek_fixtures.py"}
    fixture = {"made": made, "cases": cases,
               "gguf": gguf_of(base["config"], weights_of(base["config"], {}))}
    OUT.write_text(json.dumps(fixture, separators=(",", ":")).replace('{"name"', '\n{"name"')
                   + "\n")
    print(OUT, OUT.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
