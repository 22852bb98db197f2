"""A GGUF file as bytes, for tests of commands: a model of a few kilobytes that loads, and any change to it."""

import struct

U32, I32, F32, BOOL, STRING, ARRAY, U64 = 4, 5, 6, 7, 8, 9, 10
TENSOR_F32, TENSOR_Q4_0, TENSOR_Q3_K, TENSOR_Q4_2 = 0, 2, 11, 4
ALIGNMENT = 32


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def value_bytes(value) -> bytes:
    """The type code and the value, as Python's types say: int is uint32, float float32."""
    if isinstance(value, bool):
        return struct.pack("<IB", BOOL, value)
    if isinstance(value, int):
        return struct.pack("<II", U32, value)
    if isinstance(value, float):
        return struct.pack("<If", F32, value)
    if isinstance(value, (str, bytes)):
        return struct.pack("<I", STRING) + text(value)
    if all(isinstance(each, (str, bytes)) for each in value):
        body = b"".join(map(text, value))
        return struct.pack("<IIQ", ARRAY, STRING, len(value)) + body
    return struct.pack(f"<IIQ{len(value)}i", ARRAY, I32, len(value), *value)


class Gguf:
    """metadata: key -> value. tensors: name -> (dims, the contiguous one first; type; data)."""

    def __init__(self):
        layer = {"attn_norm": (32,), "ffn_norm": (32,), "attn_q": (32, 32), "attn_k": (32, 16),
                 "attn_v": (32, 16), "attn_output": (32, 32), "ffn_gate": (32, 64),
                 "ffn_up": (32, 64), "ffn_down": (64, 32)}
        self.metadata = {
            "general.architecture": "llama", "general.name": "tiny",
            "llama.block_count": 1, "llama.context_length": 512, "llama.embedding_length": 32,
            "llama.feed_forward_length": 64, "llama.attention.head_count": 2,
            "llama.attention.head_count_kv": 1,
            "llama.attention.layer_norm_rms_epsilon": 1e-5,
            "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2",
            "tokenizer.ggml.tokens": ["<|endoftext|>", "a", "b", "ab", "e", "t", "h", "l"],
            "tokenizer.ggml.token_type": [3, 1, 1, 1, 1, 1, 1, 1],
            "tokenizer.ggml.merges": ["a b"], "tokenizer.ggml.eos_token_id": 0,
            "tokenizer.chat_template": "{{ messages[0]['content'] }}\nline two",
        }
        self.tensors = {"token_embd.weight": self.floats((32, 8)),
                        "output_norm.weight": self.floats((32,))}
        for name, dims in layer.items():
            self.tensors[f"blk.0.{name}.weight"] = self.floats(dims)

    @staticmethod
    def floats(dims):
        count = 1
        for dim in dims:
            count *= dim
        # Fixed numbers in [-0.5, 0.5) that no short period repeats.
        weights = [(i * 2654435761 % 4096) / 4096 - 0.5 for i in range(count)]
        return dims, TENSOR_F32, struct.pack(f"<{count}f", *weights)

    def bytes(self) -> bytes:
        head = struct.pack("<4sIQQ", b"GGUF", 3, len(self.tensors), len(self.metadata))
        for key, value in self.metadata.items():
            head += text(key) + value_bytes(value)
        data = b""
        for name, (dims, kind, content) in self.tensors.items():
            head += text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, len(data))
            data += content + b"\0" * (-len(content) % ALIGNMENT)
        return head + b"\0" * (-len(head) % ALIGNMENT) + data
