#!/usr/bin/env python3
"""A small MLA model for a server's test: random weights, save two heads made by hand, so that what
it writes needs attention and is known beforehand.

    bench/sglang_serve_model.py FOLDER [--layers N] [--device cpu|cuda]

The model's text is a walk through its prompt. One head of the first layer finds the token before
(by position: rotary values alone); one head of the last layer but one finds where the present token
was the token before (by content: latent values alone) and copies what stood there into the logits.
Each token takes a search of the whole context, and the best logit leads the second by far more
than bfloat16 can shift. The other heads, the MLPs and their sum are random and reach the logits with
a hundredth of the weight.

Residual stream: the token's code, that of the token before, that of the token to come (128 values
each), the random rest, and a constant. Latent row: the first two of them, the rest random.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import torch

HIDDEN, HEADS, INTERMEDIATE, VOCABULARY = 2048, 16, 4096, 32768
NOPE, ROPE, VALUE, LATENT = 128, 64, 128, 512
CODE = 128  # values of a token's code, one head's values
TOKEN, BEFORE, NEXT = (slice(i * CODE, (i + 1) * CODE) for i in range(3))
REST, CONSTANT = slice(3 * CODE, HIDDEN - 1), HIDDEN - 1
REST_VALUES = HIDDEN - 1 - 3 * CODE
ROPE_BASE = 10000.0
SHARP_PAIRS = 16  # rotary pairs of the first head, the fast ones


def config(layers: int, vocabulary: int = VOCABULARY) -> dict:
    """config.json: DeepSeek-V3's architecture, all layers dense."""
    return {
        "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3",
        "hidden_size": HIDDEN, "intermediate_size": INTERMEDIATE, "moe_intermediate_size": 512,
        "num_hidden_layers": layers, "first_k_dense_replace": layers, "moe_layer_freq": 1,
        "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2, "n_group": 1,
        "topk_group": 1, "topk_method": "noaux_tc", "scoring_func": "sigmoid",
        "norm_topk_prob": True, "routed_scaling_factor": 1.0, "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS, "q_lora_rank": None, "kv_lora_rank": LATENT,
        "qk_nope_head_dim": NOPE, "qk_rope_head_dim": ROPE, "v_head_dim": VALUE,
        "vocab_size": vocabulary, "max_position_embeddings": 131072, "rope_theta": ROPE_BASE,
        "rms_norm_eps": 1e-6, "hidden_act": "silu", "tie_word_embeddings": False,
        "attention_bias": False, "torch_dtype": "bfloat16", "bos_token_id": 0, "eos_token_id": 1,
    }


def weights(layers: int, vocabulary: int = VOCABULARY, device: str = "cpu") -> dict:
    """{name: float32 tensor}, by the names of a checkpoint; the same on every call."""
    generator = torch.Generator(device).manual_seed(1)

    def normal(*shape: int, deviation: float) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, device=device) * deviation

    identity = torch.eye(CODE, device=device)
    ones = torch.ones(HIDDEN, device=device)
    code = torch.nn.functional.normalize(normal(vocabulary, CODE, deviation=1.0), dim=1)
    embedding = torch.zeros(vocabulary, HIDDEN, device=device)
    embedding[:, TOKEN] = 16 * code
    embedding[:, REST] = normal(vocabulary, REST_VALUES, deviation=0.3)
    embedding[:, CONSTANT] = 8
    head = torch.zeros(vocabulary, HIDDEN, device=device)
    head[:, NEXT] = code
    head[:, REST] = normal(vocabulary, REST_VALUES, deviation=0.003)
    out = {"model.embed_tokens.weight": embedding, "lm_head.weight": head,
           "model.norm.weight": ones}
    for layer in range(layers):
        q = normal(HEADS, NOPE + ROPE, HIDDEN, deviation=HIDDEN**-0.5)
        kv_a = torch.zeros(LATENT + ROPE, HIDDEN, device=device)
        kv_a[TOKEN, TOKEN] = identity
        kv_a[BEFORE, BEFORE] = identity
        kv_a[2 * CODE:LATENT] = normal(LATENT - 2 * CODE, HIDDEN, deviation=0.3 * HIDDEN**-0.5)
        kv_a[LATENT:] = normal(ROPE, HIDDEN, deviation=HIDDEN**-0.5)
        kv_b = normal(HEADS, NOPE + VALUE, LATENT, deviation=LATENT**-0.5)
        o = torch.zeros(HIDDEN, HEADS, VALUE, device=device)
        o[REST] = normal(REST_VALUES, HEADS, VALUE, deviation=0.3 * (HEADS * VALUE)**-0.5)
        target = None
        if layer == 0:
            q[0] = 0
            kv_a[LATENT:] = 0
            for pair in range(SHARP_PAIRS):  # scores: sum of cos(angle * (distance - 1))
                angle = ROPE_BASE ** (-2 * pair / ROPE)
                kv_a[LATENT + 2 * pair, CONSTANT] = 1.5
                q[0, NOPE + 2 * pair, CONSTANT] = 1.5 * math.cos(angle)
                q[0, NOPE + 2 * pair + 1, CONSTANT] = -1.5 * math.sin(angle)
            target = BEFORE
        elif layer == layers - 2:
            q[0] = 0
            q[0, :NOPE, TOKEN] = 2.7 * identity
            kv_b[0, :NOPE] = 0
            kv_b[0, :NOPE, BEFORE] = identity
            target = NEXT
        if target is not None:  # the value is the token that stands there
            kv_b[0, NOPE:] = 0
            kv_b[0, NOPE:, TOKEN] = identity
            o[:, 0] = 0
            o[target, 0] = identity
        down = torch.zeros(HIDDEN, INTERMEDIATE, device=device)
        down[REST] = normal(REST_VALUES, INTERMEDIATE, deviation=0.3 * INTERMEDIATE**-0.5)
        name = f"model.layers.{layer}."
        out |= {
            name + "input_layernorm.weight": ones,
            name + "self_attn.q_proj.weight": q.reshape(-1, HIDDEN),
            name + "self_attn.kv_a_proj_with_mqa.weight": kv_a,
            name + "self_attn.kv_a_layernorm.weight": torch.ones(LATENT, device=device),
            name + "self_attn.kv_b_proj.weight": kv_b.reshape(-1, LATENT),
            name + "self_attn.o_proj.weight": o.reshape(HIDDEN, -1),
            name + "post_attention_layernorm.weight": ones,
            name + "mlp.gate_proj.weight": normal(INTERMEDIATE, HIDDEN, deviation=HIDDEN**-0.5),
            name + "mlp.up_proj.weight": normal(INTERMEDIATE, HIDDEN, deviation=HIDDEN**-0.5),
            name + "mlp.down_proj.weight": down,
        }
    return out


def write(folder: Path, layers: int, device: str) -> None:
    """A checkpoint in bfloat16: config.json, model.safetensors."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.to(torch.bfloat16).cpu().clone()
               for name, tensor in weights(layers, device=device).items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config(layers), indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    write(arguments.folder, arguments.layers, arguments.device)


if __name__ == "__main__":
    main()
