#!/usr/bin/env python3
"""Makes tests/data/models/dense_gqa.json: what transformers computes on small random models of the
dense families (Llama, Mistral, Qwen2, Qwen3), and the frequencies of its rope types.

    python3 -m venv venv && . venv/bin/activate
    pip install torch==2.15.0 transformers==5.24.0 gguf==0.19.0 numpy==2.4.6
    python tools/make_model_fixtures.py [--out tests/data/models/dense_gqa.json]

The weights are those of tools/counter_weights.py, by the names that the model classes give them, so
the fixture holds none. Arithmetic is float32 (frequencies: float64), attention eager. The layout of the file is in
tests/data/models/README.md.
"""

import argparse
import contextlib
import copy
import importlib.metadata
import json
import math
import pathlib
import tempfile

import gguf
import numpy as np
import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from counter_weights import counter_bias, counter_matrix, counter_norm, counter_values

COLUMN_STEP = 10  # every tenth logit is kept
CONTEXT = 16      # tokens before the tree
TREE_PARENTS = [-1, 0, 0, 1, 1, 2, 3, 6]

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
    "vocab_size": 320, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False,
    "attention_bias": False, "mlp_bias": False,
}
MISTRAL = {key: value for key, value in LLAMA.items() if not key.endswith("_bias")} | {
    "architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": None,
}
QWEN2 = {key: value for key, value in LLAMA.items() if not key.endswith("_bias")} | {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0, "use_sliding_window": False, "sliding_window": 64,
    "max_window_layers": 3,
}
QWEN3 = QWEN2 | {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 32,
    "attention_bias": False,
}


def llama3(factor=8.0):
    return {"rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 64}


def yarn(**more):
    return {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64} | more


# name, config.json, tokens: more than the original context where a scaling has one.
CASES = [
    ("llama", LLAMA, 24),
    # 9 heads over 3, as SmolLM2 has them, and one matrix for embedding and head.
    ("llama_tied", LLAMA | {"hidden_size": 144, "num_attention_heads": 9, "num_key_value_heads": 3,
                            "tie_word_embeddings": True, "rope_theta": 100000.0}, 24),
    ("llama_biases", LLAMA | {"attention_bias": True, "mlp_bias": True}, 24),
    ("llama_one_kv_head", LLAMA | {"num_key_value_heads": 1, "head_dim": 24}, 24),
    ("llama_linear", LLAMA | {"rope_scaling": {"type": "linear", "factor": 4.0}}, 200),
    ("llama_llama3", LLAMA | {"rope_scaling": llama3()}, 200),
    ("llama_llama3_parameters", {key: value for key, value in LLAMA.items() if key != "rope_theta"}
     | {"rope_parameters": llama3(32.0) | {"rope_theta": 5000.0}}, 200),
    ("llama_yarn", LLAMA | {"rope_scaling": yarn(), "head_dim": 32}, 200),
    ("qwen2_yarn_exact_ends", QWEN2 | {"rope_scaling": yarn(truncate=False, beta_fast=16.0,
                                                            beta_slow=2.0)}, 200),
    ("llama_yarn_mscale", LLAMA | {"rope_scaling": yarn(mscale=1.5, mscale_all_dim=0.7)}, 200),
    ("qwen3_yarn_attention_factor", QWEN3 | {"rope_scaling": yarn(attention_factor=1.25)}, 200),
    ("mistral", MISTRAL | {"head_dim": 24}, 24),
    ("qwen2", QWEN2, 24),
    ("qwen2_tied", QWEN2 | {"tie_word_embeddings": True}, 24),
    ("qwen3", QWEN3, 24),
    ("qwen3_tied_biases", QWEN3 | {"tie_word_embeddings": True, "attention_bias": True}, 24),
]

# Frequencies and magnitude only, at the head sizes of real models.
ROPES = [
    ("none", {"head_dim": 64, "rope_theta": 100000.0}),
    ("linear", {"head_dim": 128, "rope_scaling": {"type": "linear", "factor": 2.5}}),
    ("llama 3.1", {"head_dim": 128, "rope_theta": 500000.0, "max_position_embeddings": 131072,
                   "rope_scaling": llama3() | {"original_max_position_embeddings": 8192}}),
    ("llama 3.2", {"head_dim": 64, "rope_theta": 500000.0, "max_position_embeddings": 131072,
                   "rope_scaling": llama3(32.0) | {"original_max_position_embeddings": 8192}}),
    ("qwen2.5 yarn", {"head_dim": 128, "rope_theta": 1000000.0, "max_position_embeddings": 131072,
                      "rope_scaling": yarn() | {"original_max_position_embeddings": 32768}}),
    ("kimi k2 yarn", {"head_dim": 64, "rope_theta": 50000.0, "max_position_embeddings": 131072,
                      "rope_scaling": yarn(factor=32.0, beta_fast=1.0, beta_slow=1.0, mscale=1.0,
                                           mscale_all_dim=1.0)
                      | {"original_max_position_embeddings": 4096}}),
    ("deepseek v3 yarn", {"head_dim": 64, "max_position_embeddings": 163840,
                          "rope_scaling": yarn(factor=40.0, beta_fast=32, beta_slow=1, mscale=0.707,
                                               mscale_all_dim=0.707)
                          | {"original_max_position_embeddings": 4096}}),
    ("yarn, two mscales, exact ends", {"head_dim": 64, "max_position_embeddings": 163840,
                                       "rope_scaling": yarn(factor=40.0, mscale=1.0,
                                                            mscale_all_dim=0.5, truncate=False)
                                       | {"original_max_position_embeddings": 4096}}),
    ("yarn, factor below 1", {"head_dim": 64, "rope_scaling": yarn(factor=0.5)}),
    ("yarn, factor left out", {"head_dim": 64, "rope_scaling": yarn(factor=None)}),
    ("yarn, original context beside", {"head_dim": 64, "original_max_position_embeddings": 128,
                                       "rope_scaling": yarn()}),
]


def numbers(values):
    return [float(f"{value:.7g}") for value in np.asarray(values, np.float64).ravel()]


def token_ids(name, count):
    unit = (counter_values("tokens of " + name, count, 0, 1) + 1) / 2
    return [int(value * 319.0) for value in unit]


def parameter(name, shape):
    count = math.prod(shape)
    if name.endswith("norm.weight"):
        values = counter_norm(name, count)
    elif name.endswith(".bias"):
        values = counter_bias(name, count)
    elif name == "model.embed_tokens.weight":
        values = counter_values(name, count, 0, math.sqrt(3.0))
    else:
        values = counter_matrix(name, shape[0], shape[1])
    return torch.from_numpy(values.reshape(shape).copy())


def load(config):
    """The model that transformers makes of this config.json and the counter weights."""
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "config.json").write_text(json.dumps(config))
        loaded = transformers.AutoConfig.from_pretrained(folder, attn_implementation="eager")
    model = transformers.AutoModelForCausalLM.from_config(loaded, attn_implementation="eager")
    model = model.float().eval()
    names = []
    with torch.no_grad():
        for name, value in model.named_parameters():
            value.copy_(parameter(name, tuple(value.shape)))
            names.append([name, list(value.shape)])
    return model, names


def mask_4d(allowed):
    mask = torch.full(allowed.shape, torch.finfo(torch.float32).min)
    mask[allowed] = 0
    return mask[None, None]


def path_to(node):
    path = []
    while node >= 0:
        path.append(node)
        node = TREE_PARENTS[node]
    return path[::-1]


def tree_logits(model, context, tree):
    """[nodes, vocabulary], every root-to-node path as a sequence of its own; the same in one call
    with a mask has to agree."""
    paths = [path_to(node) for node in range(len(tree))]
    with torch.no_grad():
        single = torch.stack([
            model(torch.tensor([context + [tree[n] for n in path]])).logits[0, -1]
            for path in paths])
        total = len(context) + len(tree)
        allowed = torch.tril(torch.ones(total, total, dtype=torch.bool))
        for node, path in enumerate(paths):
            allowed[len(context) + node, len(context):] = False
            allowed[len(context) + node, [len(context) + n for n in path]] = True
        positions = list(range(len(context))) + [len(context) + len(p) - 1 for p in paths]
        masked = model(torch.tensor([context + tree]), attention_mask=mask_4d(allowed),
                       position_ids=torch.tensor([positions])).logits[0, len(context):]
    error = (single - masked).norm() / single.norm()
    assert error < 2e-6, error
    return single


def make_case(name, config, tokens):
    model, names = load(config)
    ids = token_ids(name, tokens)
    tree = token_ids(name + " tree", len(TREE_PARENTS))
    tree[2] = (tree[1] + 1) % 320  # siblings differ
    with torch.no_grad():
        out = model(torch.tensor([ids]), output_hidden_states=True)
    logits = out.logits[0]
    rows = list(range(tokens)) if tokens <= 24 else [0, 1, 31, 63, 64, 65, 100, 150, 198, 199]
    kept = logits[rows][:, ::COLUMN_STEP]
    # hidden_states[i] stands before layer i; the last one is behind the final norm.
    taps = [state[0, -1] for state in out.hidden_states[1:-1]]
    return {
        "name": name, "config": config, "parameters": names, "ids": ids, "rows": rows,
        "logits": numbers(kept), "last_logits": numbers(logits[-1]),
        "taps": [numbers(tap) for tap in taps],
        "tree": {"context": CONTEXT, "ids": tree, "parents": TREE_PARENTS,
                 "logits": numbers(tree_logits(model, ids[:CONTEXT], tree)[:, ::COLUMN_STEP])},
    }


@contextlib.contextmanager
def float64_for_float32():
    """transformers computes frequencies in float32; the same code tells more in float64."""
    kept = torch.float, torch.float32
    torch.float = torch.float32 = torch.float64
    yield
    torch.float, torch.float32 = kept


def make_rope(name, changes):
    config = copy.deepcopy(LLAMA) | changes
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "config.json").write_text(json.dumps(config))
        loaded = transformers.AutoConfig.from_pretrained(folder)
    kind = loaded.rope_parameters["rope_type"]
    with float64_for_float32():
        if kind == "default":
            rotary = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(loaded)
            frequencies, magnitude = rotary.inv_freq, rotary.attention_scaling
        else:
            frequencies, magnitude = ROPE_INIT_FUNCTIONS[kind](loaded, None)
    assert frequencies.dtype == torch.float64
    return {"name": name, "config": config, "inverse_frequency": frequencies.tolist(),
            "magnitude": magnitude}


def permute(values, heads):
    """Rows of Q or K as GGUF files of the llama architecture have them: pairs side by side."""
    return (values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
            .swapaxes(1, 2).reshape(values.shape))


def make_gguf(name, config):
    """Tensors of a GGUF file that the gguf package wrote and reads again: name -> type, dims and
    FNV-1a of the bytes."""
    model, _ = load(config)
    architecture = "llama" if config["model_type"] in ("llama", "mistral") else config["model_type"]
    kind = next(kind for kind, text in gguf.MODEL_ARCH_NAMES.items() if text == architecture)
    names = gguf.get_tensor_name_map(kind, config["num_hidden_layers"])
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "model.gguf"
        writer = gguf.GGUFWriter(path, architecture)
        for parameter_name, value in model.named_parameters():
            values = value.detach().numpy()
            if architecture == "llama" and ".q_proj." in parameter_name:
                values = permute(values, config["num_attention_heads"])
            if architecture == "llama" and ".k_proj." in parameter_name:
                values = permute(values, config["num_key_value_heads"])
            gguf_name = names.get_name(parameter_name, try_suffixes=(".weight", ".bias"))
            if values.ndim == 1:
                writer.add_tensor(gguf_name, values)
            else:
                packed = gguf.quants.quantize(values, gguf.GGMLQuantizationType.BF16)
                writer.add_tensor(gguf_name, packed, raw_dtype=gguf.GGMLQuantizationType.BF16)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        tensors = {tensor.name: [tensor.tensor_type.name, [int(n) for n in tensor.shape],
                                 f"{hash_bytes(tensor.data.tobytes()):016x}"]
                   for tensor in gguf.GGUFReader(path).tensors}
    return {"name": name, "tensors": tensors}


def hash_bytes(data):
    value = 0xcbf29ce484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001b3 & 0xffffffffffffffff
    return value


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=pathlib.Path,
                        default=pathlib.Path(__file__).parents[1] / "tests/data/models/dense_gqa.json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    cases = {name: config for name, config, _ in CASES}
    fixture = {
        "made": {"by": "tools/make_model_fixtures.py", "arithmetic": "float32, eager attention"} | {
            package: importlib.metadata.version(package)
            for package in ("torch", "transformers", "gguf", "numpy")},
        "column_step": COLUMN_STEP,
        "cases": [make_case(*case) for case in CASES],
        "ropes": [make_rope(*rope) for rope in ROPES],
        "gguf": [make_gguf(name, cases[name])
                 for name in ("llama_tied", "llama_biases", "qwen2", "qwen3")],
    }
    # One line a case: differences between two versions of the file can be read.
    lines = ",\n".join(f'"{key}": ' + ("[\n" + ",\n".join(map(json.dumps, value)) + "\n]"
                                       if key in ("cases", "ropes", "gguf") else json.dumps(value))
                       for key, value in fixture.items())
    args.out.write_text("{\n" + lines + "\n}\n")
    print(f"{args.out}: {args.out.stat().st_size} bytes, {len(CASES)} cases, {len(ROPES)} rotations")


if __name__ == "__main__":
    main()
