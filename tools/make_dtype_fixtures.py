#!/usr/bin/env python3
"""Writes tests/data/base/dtypes.json: weights of every type in bytes, and the float32 values that
outside implementations make of them.

    pip install gguf==0.19.0 ml_dtypes==0.6.0 torch==2.15.0 transformers==5.24.0 \\
        compressed-tensors==0.20.1
    tools/make_dtype_fixtures.py tests/data/base

  blocks   random blocks of GGUF's types, by the `gguf` package
  f8_e4m3  all 256 codes, by `ml_dtypes` (NaN where it says so)
  scaled   matrices with scales beside them, packed and dequantised by `compressed-tensors`: INT4 in
           groups (pack-quantized) and F8_E4M3 in blocks, the last ones cut off

Bytes and values (little-endian float32) are hexadecimal. The scales of 16 bits are given to
`compressed-tensors` as float32, for it would round its results to their type.
"""

import argparse
import importlib.metadata
import json
import pathlib

import ml_dtypes
import numpy as np
import torch
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import dequantize
from gguf import GGMLQuantizationType, quants

SEED = 20250
PACKAGES = ["gguf", "ml_dtypes", "torch", "compressed-tensors"]
# Factors by block: ordinary, negative, subnormal, and the largest finite one.
FACTORS = [0.0123, -1.5, 3e-7, 65504.0]
# Bytes of a block, its weights, and where its f16 factors stand.
LAYOUTS = {
    "Q4_K": (144, 256, [0, 2]),
    "Q6_K": (210, 256, [208]),
    "Q5_K": (176, 256, [0, 2]),
    "Q8_0": (34, 32, [0]),
    "Q4_0": (18, 32, [0]),
    "Q4_1": (20, 32, [0, 2]),
    "Q5_0": (22, 32, [0]),
    "Q5_1": (24, 32, [0, 2]),
    "IQ4_NL": (18, 32, [0]),
}


def hex_of(array):
    return np.ascontiguousarray(array).tobytes().hex()


def random_blocks(random, size, factor_offsets):
    blocks = random.integers(0, 256, (len(FACTORS), size), dtype=np.uint8)
    for i, block in enumerate(blocks):
        for n, at in enumerate(factor_offsets):
            factor = np.float16(FACTORS[(i + n) % len(FACTORS)])
            block[at : at + 2] = np.frombuffer(factor.tobytes(), dtype=np.uint8)
    return blocks


def gguf_blocks(random):
    types = {}
    for name, (size, weights_each, factor_offsets) in LAYOUTS.items():
        blocks = random_blocks(random, size, factor_offsets)
        weights = quants.dequantize(blocks, GGMLQuantizationType[name]).astype("<f4")
        types[name] = [
            {"block": hex_of(block), "weights": hex_of(row)}
            for block, row in zip(blocks, weights.reshape(len(FACTORS), weights_each))
        ]
    return types


def f8_codes():
    codes = np.arange(256, dtype=np.uint8)
    return hex_of(codes.view(ml_dtypes.float8_e4m3fn).astype("<f4"))


def matrix(dtype, block, scale, data, weights):
    """One entry of `scaled`; `scale` as it is stored."""
    return {
        "type": dtype,
        "shape": list(weights.shape),
        "block": block,
        "scale_type": {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32"}[scale.dtype],
        "scales": hex_of(scale.view(torch.uint8).numpy()),
        "data": hex_of(data),
        "weights": hex_of(weights.numpy().astype("<f4")),
    }


def int4_matrix(random, rows, columns, group, scale_dtype):
    values = torch.from_numpy(random.integers(-8, 8, (rows, columns), dtype=np.int8))
    scale = torch.from_numpy(random.normal(0, 0.01, (rows, columns // group))).to(scale_dtype)
    args = QuantizationArgs(num_bits=4, type="int", strategy="group", group_size=group, symmetric=True)
    weights = dequantize(values, scale.float(), None, args, torch.float32)
    return matrix("INT4", [1, group], scale, pack_to_int32(values, 4).numpy(), weights)


def f8_matrix(random, rows, columns, block, scale_dtype):
    codes = random.integers(0, 256, (rows, columns), dtype=np.uint8)
    codes[(codes & 0x7F) == 0x7F] = 0x7E
    blocks = (-(-rows // block[0]), -(-columns // block[1]))
    scale = torch.from_numpy(random.uniform(1e-4, 1e-2, blocks)).to(scale_dtype)
    args = QuantizationArgs(num_bits=8, type="float", strategy="block", block_structure=block)
    values = torch.from_numpy(codes).view(torch.float8_e4m3fn)
    weights = dequantize(values, scale.float(), None, args, torch.float32)
    return matrix("F8_E4M3", block, scale, codes, weights)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    folder = parser.parse_args().folder
    random = np.random.default_rng(SEED)
    fixture = {
        "packages": {name: importlib.metadata.version(name) for name in PACKAGES},
        "seed": SEED,
        "blocks": gguf_blocks(random),
        "f8_e4m3": f8_codes(),
        "scaled": [
            int4_matrix(random, 3, 96, 32, torch.bfloat16),
            int4_matrix(random, 2, 128, 64, torch.float16),
            int4_matrix(random, 2, 64, 32, torch.float32),
            f8_matrix(random, 9, 20, [4, 8], torch.float32),
            f8_matrix(random, 8, 16, [4, 8], torch.bfloat16),
        ],
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "dtypes.json").write_text(json.dumps(fixture, indent=1) + "\n")


if __name__ == "__main__":
    main()
