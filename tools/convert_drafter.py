#!/usr/bin/env python3
"""Writes a DFlash drafter with quantised matrices: OUT/config.json and OUT/model.gguf.

    python3 -m venv V && V/bin/pip install gguf==0.19.0 numpy==2.4.6
    V/bin/python tools/convert_drafter.py FOLDER OUT [--type Q8_0|Q4_0|Q4_1|F16] [--target MODEL.gguf]
        [--draft-vocabulary N --ids ANSWERS.jsonl ...]

Tensors keep their names (docs/drafter-format.md). Matrices whose rows are no multiple of 32, and all
vectors, become F32. A residual head and other files that the config names are copied. With --target
the config also records the SHA-256 of the model that the drafter was trained for.

--draft-vocabulary lets the drafter propose N tokens only: the most frequent ones among the "ids" of
lines such as `kdtree run --prompts FILE --json ANSWERS.jsonl` writes, then, as merges are learned in
the order of frequency, those of the smallest ids. A drafter without a head of its own needs nothing
else: it takes these rows of the target's.
"""
import argparse
import collections
import hashlib
import json
import shutil
import struct
import sys
from pathlib import Path

import gguf
import numpy as np

BLOCK = 32


def read_safetensors(path):
    """name -> (type, array); bf16 as float32."""
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8:8 + length])
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        raw = data[begin:end]
        if entry["dtype"] == "BF16":
            bits = np.frombuffer(raw, np.uint16).astype(np.uint32) << 16
            array = bits.view(np.float32)
        elif entry["dtype"] in ("F32", "F16"):
            array = np.frombuffer(raw, np.dtype(entry["dtype"].replace("F", "float")))
            array = array.astype(np.float32)
        else:
            sys.exit(f"{path}: tensor {name} of {entry['dtype']} cannot be written to GGUF")
        tensors[name] = array.reshape(entry["shape"])
    return tensors


def draft_tokens(count, vocabulary, paths):
    """The `count` tokens to draft, ascending."""
    times = collections.Counter()
    for path in paths:
        for line in path.read_text().splitlines():
            times.update(json.loads(line)["ids"])
    return sorted(sorted(range(vocabulary), key=lambda token: (-times[token], token))[:count])


def cut_vocabulary(tensors, tokens):
    """Rows of what has one for each drafted token, and the map d2t."""
    for name in tensors:
        if name.endswith(("lm_head.weight", "markov_w2.weight")):
            tensors[name] = tensors[name][tokens]
    tensors["d2t"] = np.array(tokens, np.int64) - np.arange(len(tokens))


def sha256_of(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--type", default="Q8_0", choices=["Q8_0", "Q4_0", "Q4_1", "F16"])
    parser.add_argument("--target", type=Path)
    parser.add_argument("--draft-vocabulary", type=int, metavar="N")
    parser.add_argument("--ids", type=Path, nargs="+", default=[], metavar="ANSWERS.jsonl")
    args = parser.parse_args()
    config = json.loads((args.folder / "config.json").read_text())
    additions = config.setdefault("kdtree", {})
    if "weights" in additions:
        sys.exit(f"{args.folder}: its weights are converted already")
    args.out.mkdir(parents=True, exist_ok=True)
    kind = gguf.GGMLQuantizationType[args.type]
    writer = gguf.GGUFWriter(args.out / "model.gguf", "dflash")
    tensors = read_safetensors(args.folder / "model.safetensors")
    if args.draft_vocabulary is not None:
        vocabulary = config["vocab_size"]
        if config.get("draft_vocab_size", vocabulary) != vocabulary:
            sys.exit(f"{args.folder}: its vocabulary is reduced already")
        if not 1 <= args.draft_vocabulary <= vocabulary:
            sys.exit(f"--draft-vocabulary: {args.draft_vocabulary} is not in 1..{vocabulary}")
        cut_vocabulary(tensors, draft_tokens(args.draft_vocabulary, vocabulary, args.ids))
        config["draft_vocab_size"] = args.draft_vocabulary
    for name, array in tensors.items():
        if array.ndim == 2 and array.shape[1] % BLOCK == 0:
            writer.add_tensor(name, gguf.quants.quantize(array, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    additions["weights"] = "model.gguf"
    if "residual_head" in additions:
        shutil.copyfile(args.folder / additions["residual_head"],
                        args.out / additions["residual_head"])
    if args.target:
        additions["target_sha256"] = sha256_of(args.target)
    (args.out / "config.json").write_text(json.dumps(config, indent=1) + "\n")


if __name__ == "__main__":
    main()
