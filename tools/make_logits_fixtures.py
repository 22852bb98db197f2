#!/usr/bin/env python3
"""Makes tests/data/models/*.json: what outside implementations compute on SmolLM2's GGUF file.

    make_logits_fixtures.py --model SmolLM2-135M-Instruct.Q4_1.gguf [--out tests/data/models]
    make_logits_fixtures.py --model ... --faults      # what the fixtures can see; writes nothing

The layout of the files and the versions used are in tests/data/models/README.md.
Needs: torch, transformers, gguf, numpy, jinja2, tokenizers, llama-cpp-python.
"""

import argparse
import hashlib
import importlib.metadata
import json
import pathlib
import platform

import gguf
import jinja2
import numpy as np
import tokenizers
import torch
import transformers

from llama_cpp_logits import LlamaCpp, describe, log_softmax

TOP = 20
GREEDY_TOKENS = 32
TAP_VALUES = 8
LINEARS = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


class GgufFile:
    def __init__(self, path):
        self.reader = gguf.GGUFReader(path)
        self.tensors = {tensor.name: tensor for tensor in self.reader.tensors}

    def value(self, key):
        return self.reader.fields[key].contents()

    def weight(self, name):
        """The tensor in float32, [rows, columns] or [columns]."""
        tensor = self.tensors[name]
        return gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)

    def tokenizer(self):
        """Byte-level BPE by the `tokenizers` library; pre-tokenizer as the model's own
        tokenizer.json has it: single digits, then GPT-2's pattern."""
        tokens = self.value("tokenizer.ggml.tokens")
        types = self.value("tokenizer.ggml.token_type")
        merges = [tuple(merge.split(" ")) for merge in self.value("tokenizer.ggml.merges")]
        vocab = {token: index for index, token in enumerate(tokens)}
        result = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=merges))
        result.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([
            tokenizers.pre_tokenizers.Digits(individual_digits=True),
            tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ])
        result.decoder = tokenizers.decoders.ByteLevel()
        control = int(gguf.TokenType.CONTROL)
        result.add_special_tokens([t for t, kind in zip(tokens, types) if kind == control])
        return result

    def render_chat(self, messages, add_generation_prompt):
        template = jinja2.Environment(trim_blocks=True, lstrip_blocks=True).from_string(
            self.value("tokenizer.chat_template"))
        return template.render(messages=messages, add_generation_prompt=add_generation_prompt)


def hf_row_order(weight, heads):
    """Undoes the llama conversion's row permutation: GGUF interleaves the two halves of each head
    (for RoPE on adjacent pairs), transformers wants them one after the other."""
    rows, columns = weight.shape
    pairs = rows // heads // 2
    return weight.reshape(heads, pairs, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def load_float32(file, rope_theta=None, eps=None, lost_block=False):
    """LlamaForCausalLM with the file's dequantised weights. The last three arguments plant faults."""
    value = lambda name: file.value("llama." + name)
    heads, kv_heads = value("attention.head_count"), value("attention.head_count_kv")
    vocab_tokens, hidden = file.weight("token_embd.weight").shape
    config = transformers.LlamaConfig(
        vocab_size=vocab_tokens,
        hidden_size=hidden,
        intermediate_size=value("feed_forward_length"),
        num_hidden_layers=value("block_count"),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=value("rope.dimension_count"),
        hidden_act="silu",
        max_position_embeddings=value("context_length"),
        rms_norm_eps=eps or value("attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default",
                         "rope_theta": rope_theta or value("rope.freq_base")},
        tie_word_embeddings="output.weight" not in file.tensors,
        attention_bias=False,
        mlp_bias=False,
        attn_implementation="eager",
    )
    state = {
        "model.embed_tokens.weight": file.weight("token_embd.weight"),
        "model.norm.weight": file.weight("output_norm.weight"),
    }
    head = "output.weight" if "output.weight" in file.tensors else "token_embd.weight"
    state["lm_head.weight"] = file.weight(head)
    for layer in range(config.num_hidden_layers):
        for ours, theirs in LINEARS.items():
            weight = file.weight(f"blk.{layer}.{theirs}.weight")
            if theirs == "attn_q":
                weight = hf_row_order(weight, heads)
            elif theirs == "attn_k":
                weight = hf_row_order(weight, kv_heads)
            elif lost_block and layer == 12 and theirs == "ffn_down":
                weight[:, 64:96] = 0
            state[f"model.layers.{layer}.{ours}.weight"] = weight
    model = transformers.LlamaForCausalLM(config).to(torch.float32).eval()
    model.load_state_dict({name: torch.from_numpy(w) for name, w in state.items()}, strict=True)
    assert model.config._attn_implementation == "eager"
    return model


@torch.inference_mode()
def hf_log_probs(model, ids, positions=None):
    """[len(ids), vocabulary], one causal forward over the whole sequence. The explicit mask keeps
    transformers from reading odd `positions` (a planted fault) as several packed sequences."""
    positions = torch.arange(len(ids)) if positions is None else torch.tensor(positions)
    out = model(torch.tensor([ids]), use_cache=False, position_ids=positions[None],
                attention_mask=torch.ones(1, len(ids), dtype=torch.long))
    return log_softmax(out.logits[0].numpy())


@torch.inference_mode()
def hf_greedy(model, ids, eos):
    """Greedy tokens (EOS included, then stop) and best-minus-second logit at each step."""
    tokens, margins = [], []
    step, past = torch.tensor([ids]), transformers.DynamicCache(config=model.config)
    while len(tokens) < GREEDY_TOKENS and (not tokens or tokens[-1] != eos):
        best = model(step, past_key_values=past, use_cache=True).logits[0, -1].topk(2)
        tokens.append(int(best.indices[0]))
        margins.append(round(float(best.values[0] - best.values[1]), 5))
        step = torch.tensor([[tokens[-1]]])
    return tokens, margins


@torch.inference_mode()
def hf_taps(model, ids):
    """The residual stream [len(ids), hidden] by name, in the order of computation."""
    taps = {}
    hooks = [model.model.embed_tokens.register_forward_hook(
        lambda module, args, out: taps.update(embed=out[0]))]
    for index, layer in enumerate(model.model.layers):
        hooks.append(layer.post_attention_layernorm.register_forward_pre_hook(
            lambda module, args, name=f"attn.{index}": taps.update({name: args[0][0]})))
        hooks.append(layer.register_forward_hook(
            lambda module, args, out, name=f"block.{index}": taps.update(
                {name: (out if torch.is_tensor(out) else out[0])[0]})))
    hooks.append(model.model.norm.register_forward_hook(
        lambda module, args, out: taps.update(norm=out[0])))
    model(torch.tensor([ids]), use_cache=False)
    for hook in hooks:
        hook.remove()
    return {name: value.numpy() for name, value in taps.items()}


def rounded(values, digits=5):
    return [round(float(value), digits) for value in values]


def significant(value):
    return float(f"{value:.6g}")


def top_of(row):
    ids = np.argsort(-row, kind="stable")[:TOP]
    return ids.tolist(), rounded(row[ids])


def next_log_probs(rows, ids):
    """Log-probability of ids[i + 1] after ids[i]; one fewer than the ids."""
    return rounded(rows[np.arange(len(ids) - 1), ids[1:]])


def make_encoder(tokenizer, llama):
    """Text to ids, on which the two outside tokenizers have to agree."""
    def encode(text):
        ids = tokenizer.encode(text).ids
        assert ids == llama.tokenize(text), f"the two tokenizers differ on {text!r}"
        return ids
    return encode


def make_logits(file, model, llama, encode, sequences):
    result = []
    for sequence in sequences:
        text = sequence.get("text") or file.render_chat(sequence["messages"], False)
        ids = encode(text)
        ours, theirs = hf_log_probs(model, ids), llama.log_probs(ids)
        positions = []
        for row, other in zip(ours, theirs):
            top_ids, top = top_of(row)
            llama_ids, llama_top = top_of(other)
            positions.append({
                "float32": {"ids": top_ids, "log_probs": top},
                "llama_cpp": {"ids": llama_ids, "log_probs": llama_top,
                              "at_float32_ids": rounded(other[top_ids])},
            })
        result.append({"name": sequence["name"], "text": text, "ids": ids,
                       "next_log_probs": next_log_probs(ours, ids), "positions": positions})
    return result


def make_greedy(file, model, tokenizer, encode, prompts):
    eos = file.value("tokenizer.ggml.eos_token_id")
    result = []
    for prompt in prompts:
        rendered = file.render_chat([{"role": "user", "content": prompt}], True)
        ids = encode(rendered)
        tokens, margins = hf_greedy(model, ids, eos)
        result.append({"prompt": prompt, "rendered": rendered, "ids": ids, "tokens": tokens,
                       "margins": margins,
                       "text": tokenizer.decode(tokens, skip_special_tokens=False)})
    return result


def make_taps(model, encode, text):
    ids = encode(text)
    taps = [{"name": name,
             "norms": [significant(n) for n in np.linalg.norm(rows.astype(np.float64), axis=1)],
             "first": [[significant(v) for v in row[:TAP_VALUES]] for row in rows]}
            for name, rows in hf_taps(model, ids).items()]
    return {"text": text, "ids": ids, "taps": taps}


def rms(difference, axis=None):
    return np.sqrt(np.mean(np.square(difference), axis=axis))


def summary(logits, long):
    """How far llama.cpp lies from float32: the yardstick for int8 activations."""
    positions = [p for sequence in logits for p in sequence["positions"]]
    top = np.array([p["float32"]["log_probs"] for p in positions])
    other = np.array([p["llama_cpp"]["at_float32_ids"] for p in positions])
    per_position = rms(top - other, axis=1)
    delta = np.array(long["next_log_probs"]) - np.array(long["llama_cpp_next_log_probs"])
    return {
        "positions": len(positions),
        "top20_rms_median": round(float(np.median(per_position)), 4),
        "top20_rms_max": round(float(per_position.max()), 4),
        "argmax_equal": sum(p["float32"]["ids"][0] == p["llama_cpp"]["ids"][0]
                            for p in positions),
        "long_next_rms": round(float(rms(delta)), 4),
        "long_next_mean_difference": round(float(delta.mean()), 4),
        "long_next_max": round(float(np.abs(delta).max()), 4),
    }


def provenance(path):
    data = pathlib.Path(path).read_bytes()
    return {
        "model": {"file": pathlib.Path(path).name, "bytes": len(data),
                  "sha256": hashlib.sha256(data).hexdigest()},
        "float32": {
            "implementation": "transformers LlamaForCausalLM, eager attention, CPU, one forward "
                              "over the whole sequence (greedy: with its K/V cache)",
            "weights": "dequantised by the gguf package, Q/K rows un-permuted to HF order",
            "transformers": transformers.__version__, "torch": torch.__version__,
            "gguf": importlib.metadata.version("gguf"), "tokenizers": tokenizers.__version__, "jinja2": jinja2.__version__,
            "numpy": np.__version__, "python": platform.python_version(),
        },
        "llama_cpp": describe(),
        "log_probs": "natural logarithm, softmax over the full vocabulary",
    }


def write(folder, name, value):
    """One inner list of numbers a line: small, and still readable in a diff."""
    text = json.dumps(value, ensure_ascii=False, indent=1)
    text = collapse_number_lists(text)
    path = pathlib.Path(folder) / name
    path.write_text(text + "\n", encoding="utf-8")
    print(f"{name}: {path.stat().st_size} bytes")


def collapse_number_lists(text):
    lines, run = [], None
    for line in text.split("\n"):
        stripped = line.strip()
        is_number = stripped[:1] in "-0123456789" and stripped != ""
        if run is not None and is_number:
            run.append(stripped)
        elif run is not None and stripped.rstrip(",") == "]":
            lines[-1] += " ".join(run) + stripped
            run = None
        else:
            if run:
                lines.extend(run)
            lines.append(line)
            run = [] if stripped.endswith("[") else None
    return "\n".join(lines)


def show_faults(file, model, long_ids, taps_ids):
    """What planted faults change: the next-token log-probs of the long sequence, and the taps."""
    right = np.array(next_log_probs(hf_log_probs(model, long_ids), long_ids))
    right_taps = hf_taps(model, taps_ids)

    def report(name, wrong_model, positions=None):
        rows = hf_log_probs(wrong_model, long_ids, positions)
        delta = np.array(next_log_probs(rows, long_ids)) - right
        print(f"{name}\n  log-probs: rms {rms(delta):.6f}, of the last 100 "
              f"{rms(delta[-100:]):.6f}, max {np.abs(delta).max():.6f}, mean {delta.mean():+.6f}")
        if positions is None:
            # Relative error of the recorded values at the worst position, as a test would see it.
            first = lambda rows: rows[:, :TAP_VALUES].astype(np.float64)
            worst = {tap: (np.linalg.norm(first(rows) - first(right_taps[tap]), axis=1)
                           / np.linalg.norm(first(right_taps[tap]), axis=1)).max()
                     for tap, rows in hf_taps(wrong_model, taps_ids).items()}
            begin = next((tap for tap, error in worst.items() if error > 1e-4), "none")
            print(f"  taps: worst relative error {max(worst.values()):.2g}, first above 1e-4: "
                  f"{begin}")

    positions = np.arange(len(long_ids))
    report("positions from 512 on too high by 1", model, (positions + (positions >= 512)).tolist())
    report("positions end at 511", model, np.minimum(positions, 511).tolist())
    report("rope base 90000", load_float32(file, rope_theta=90000.0))
    report("rope base 10000", load_float32(file, rope_theta=10000.0))
    report("norm eps 1e-6", load_float32(file, eps=1e-6))
    report("norm eps 1e-4", load_float32(file, eps=1e-4))
    report("one lost 32-column block (blk.12.ffn_down)", load_float32(file, lost_block=True))
    report("no fault, products in float64", load_float32(file).double())


def main():
    here = pathlib.Path(__file__).resolve().parent.parent / "tests/data/models"
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", required=True, help="the GGUF file")
    parser.add_argument("--out", default=str(here), help="folder of inputs.json and the results")
    parser.add_argument("--faults", action="store_true", help="print what planted faults change")
    args = parser.parse_args()

    torch.set_num_threads(1)  # spinning helpers of a second thread starve on a busy machine
    inputs = json.loads((pathlib.Path(args.out) / "inputs.json").read_text(encoding="utf-8"))
    file = GgufFile(args.model)
    tokenizer, model = file.tokenizer(), load_float32(file)
    llama = LlamaCpp(args.model)
    encode = make_encoder(tokenizer, llama)
    long_text = "\n\n".join(inputs["long_text"])
    long_ids = encode(long_text)
    if args.faults:
        show_faults(file, model, long_ids, encode(inputs["taps_text"]))
        return
    long = {"text": long_text, "ids": long_ids,
            "next_log_probs": next_log_probs(hf_log_probs(model, long_ids), long_ids),
            "llama_cpp_next_log_probs": next_log_probs(llama.log_probs(long_ids), long_ids)}
    logits = make_logits(file, model, llama, encode, inputs["sequences"])
    distance = summary(logits, long)
    made = provenance(args.model)
    write(args.out, "logits.json", {"made": made, "llama_cpp_against_float32": distance,
                                    "sequences": logits})
    write(args.out, "long.json", {"made": made, **long})
    write(args.out, "greedy.json", {"made": made, "prompts": make_greedy(
        file, model, tokenizer, encode, inputs["greedy_prompts"])})
    write(args.out, "taps.json", {"made": made, **make_taps(model, encode,
                                                            inputs["taps_text"])})
    print(json.dumps(distance, indent=1))


if __name__ == "__main__":
    main()
