"""A Hugging Face folder for tests of commands: a model of a few kilobytes that loads, and any change to it."""

import json
import struct


def byte_symbols():
    """The characters that stand for the 256 bytes in a byte-level vocabulary."""
    plain = [*range(0x21, 0x7f), *range(0xa1, 0xad), *range(0xae, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {**{byte: chr(byte) for byte in plain},
            **{byte: chr(256 + i) for i, byte in enumerate(others)}}


class HfFolder:
    """config, tokenizer: objects of the two JSON files. tensors: name -> (type, shape, data)."""

    def __init__(self):
        self.config = {
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 260,
            "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
            "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 512,
            "rms_norm_eps": 1e-5, "tie_word_embeddings": True,
        }
        level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
        self.tokenizer = {
            "added_tokens": [], "pre_tokenizer": level, "decoder": level,
            "model": {"type": "BPE", "merges": [],
                      "vocab": {symbol: byte for byte, symbol in byte_symbols().items()}},
        }
        self.tensors = {"model.embed_tokens.weight": self.floats((260, 32)),
                        "model.norm.weight": self.floats((32,))}
        for name, shape in {
            "input_layernorm": (32,), "post_attention_layernorm": (32,),
            "self_attn.q_proj": (32, 32), "self_attn.k_proj": (16, 32),
            "self_attn.v_proj": (16, 32), "self_attn.o_proj": (32, 32), "mlp.gate_proj": (64, 32),
            "mlp.up_proj": (64, 32), "mlp.down_proj": (32, 64),
        }.items():
            self.tensors[f"model.layers.0.{name}.weight"] = self.floats(shape)

    @staticmethod
    def floats(shape):
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        # Fixed numbers in [-0.5, 0.5) that no short period repeats.
        weights = [(i * 2654435761 % 4096) / 4096 - 0.5 for i in range(count)]
        return "F32", shape, struct.pack(f"<{count}f", *weights)

    @staticmethod
    def safetensors(tensors) -> bytes:
        header, data = {}, b""
        for name, (kind, shape, content) in tensors.items():
            header[name] = {"dtype": kind, "shape": shape,
                            "data_offsets": [len(data), len(data) + len(content)]}
            data += content
        head = json.dumps(header).encode()
        return struct.pack("<Q", len(head)) + head + data

    def write(self, folder) -> None:
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(self.config))
        (folder / "tokenizer.json").write_text(json.dumps(self.tokenizer))
        (folder / "model.safetensors").write_bytes(self.safetensors(self.tensors))
