#!/usr/bin/env python3
"""Writes tests/data/base/kquants.json: random Q4_K and Q6_K superblocks and the float32 weights that
the `gguf` package makes of them.

    pip install gguf==0.19.0
    tools/make_kquant_fixtures.py tests/data/base

Bytes and weights (little-endian float32) are hexadecimal.
"""

import argparse
import importlib.metadata
import json
import pathlib

import numpy as np
from gguf import GGMLQuantizationType, quants

SEED = 20250
# Factors by superblock: ordinary, negative, subnormal, and the largest finite one.
FACTORS = [0.0123, -1.5, 3e-7, 65504.0]
# Bytes of a superblock, and where its f16 factors stand.
LAYOUTS = {"Q4_K": (144, [0, 2]), "Q6_K": (210, [208])}


def superblocks(random, size, factor_offsets):
    blocks = random.integers(0, 256, (len(FACTORS), size), dtype=np.uint8)
    for i, block in enumerate(blocks):
        for n, at in enumerate(factor_offsets):
            factor = np.float16(FACTORS[(i + n) % len(FACTORS)])
            block[at : at + 2] = np.frombuffer(factor.tobytes(), dtype=np.uint8)
    return blocks


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    folder = parser.parse_args().folder
    random = np.random.default_rng(SEED)
    fixture = {"gguf": importlib.metadata.version("gguf"), "seed": SEED, "types": {}}
    for name, (size, factor_offsets) in LAYOUTS.items():
        blocks = superblocks(random, size, factor_offsets)
        weights = quants.dequantize(blocks, GGMLQuantizationType[name]).astype("<f4")
        fixture["types"][name] = [
            {"block": block.tobytes().hex(), "weights": row.tobytes().hex()}
            for block, row in zip(blocks, weights.reshape(len(FACTORS), 256))
        ]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "kquants.json").write_text(json.dumps(fixture, indent=1) + "\n")


if __name__ == "__main__":
    main()
