#!/usr/bin/env python3
"""Writes tests/data/formats/safetensors.json: files in the safetensors format and what the
`safetensors` package says of them.

    pip install safetensors==0.8.0 numpy
    tools/make_safetensors_fixtures.py tests/data/formats

  written  a file that the package wrote, and the tensors it holds
  judged   files, good and bad, and whether the package reads them. Where this project is stricter
           ("strict") it says why.
Bytes are hexadecimal.
"""

import argparse
import importlib.metadata
import json
import pathlib
import struct

import numpy as np
import safetensors

SEED = 20251
# The package's names of element types when it writes, and their bytes.
TYPES = [
    ("bool", 1),
    ("uint8", 1),
    ("int8", 1),
    ("float8_e5m2", 1),
    ("float8_e4m3fn", 1),
    ("int16", 2),
    ("uint16", 2),
    ("float16", 2),
    ("bfloat16", 2),
    ("int32", 4),
    ("uint32", 4),
    ("float32", 4),
    ("int64", 8),
    ("uint64", 8),
    ("float64", 8),
]
METADATA = {"format": "pt", "quote\"": "line\n\u2028"}
SHAPES = [[], [3], [2, 3], [2, 1, 3], [0, 4], [1]]


def written(random):
    specs = {}
    kept = []
    for i, (dtype, size) in enumerate(TYPES):
        shape = SHAPES[i % len(SHAPES)]
        count = int(np.prod(shape, dtype=np.int64))
        data = random.integers(0, 2 if dtype == "bool" else 256, count * size, dtype=np.uint8)
        kept.append(data)  # the package reads it where it lies
        specs[f"layer.{i} \u00e9\"\\{dtype}"] = safetensors.TensorSpec(
            dtype=dtype, shape=shape, data_ptr=data.ctypes.data, data_len=data.nbytes
        )
    blob = bytes(safetensors.serialize(specs, metadata=METADATA))
    read = safetensors.deserialize(blob)
    return {
        "file": blob.hex(),
        "metadata": METADATA,
        "tensors": [
            {"name": name, "type": t["dtype"], "shape": t["shape"], "data": bytes(t["data"]).hex()}
            for name, t in read
        ],
    }


def file_of(header, data=b"", length=None):
    if not isinstance(header, bytes):
        header = header.encode()
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def entry(begin, end, shape="[2]", dtype="F32"):
    return '{"dtype":"%s","shape":%s,"data_offsets":[%d,%d]}' % (dtype, shape, begin, end)


def judged_files():
    eight = bytes(range(8))
    one = '{"a":%s}' % entry(0, 8)
    return {
        "one": file_of(one, eight),
        "nothing": file_of("{}"),
        "spaces behind": file_of(one + "   ", eight),
        "white space inside": file_of(one.replace(":", " :\n\t").replace(",", " ,\r"), eight),
        "fields in another order": file_of('{"a":{"data_offsets":[0,8],"shape":[2],"dtype":"F32"}}', eight),
        "two, the second first": file_of('{"b":%s,"a":%s}' % (entry(4, 8, "[1]"), entry(0, 4, "[1]")), eight),
        "escaped name": file_of('{"\\u00e9\\ud83d\\ude00\\n":%s}' % entry(0, 8), eight),
        "a scalar": file_of('{"a":%s}' % entry(0, 8, "[]", "I64"), eight),
        "an empty tensor at the end": file_of('{"a":%s,"e":%s}' % (entry(0, 8), entry(8, 8, "[0,3]")), eight),
        "an empty tensor inside another": file_of('{"a":%s,"e":%s}' % (entry(0, 8), entry(4, 4, "[0]")), eight),
        "metadata": file_of('{"__metadata__":{"k":"v"},"a":%s}' % entry(0, 8), eight),
        "metadata of a number": file_of('{"__metadata__":{"k":1},"a":%s}' % entry(0, 8), eight),
        "a hole": file_of('{"a":%s,"b":%s}' % (entry(0, 3, "[3]", "U8"), entry(4, 8, "[4]", "U8")), eight),
        "an overlap": file_of('{"a":%s,"b":%s}' % (entry(0, 5, "[5]", "U8"), entry(4, 8, "[4]", "U8")), eight),
        "bytes behind": file_of(one, eight + b"x"),
        "bytes missing": file_of(one, eight[:7]),
        "a wrong shape": file_of('{"a":%s}' % entry(0, 8, "[3]"), eight),
        "a huge shape": file_of('{"a":%s}' % entry(0, 8, "[4611686018427387904,4611686018427387904]"), eight),
        "a negative dimension": file_of('{"a":%s}' % entry(0, 8, "[-2]"), eight),
        "a dimension with a fraction": file_of('{"a":%s}' % entry(0, 8, "[2.0]"), eight),
        "an unknown type": file_of('{"a":%s}' % entry(0, 8, dtype="F31"), eight),
        "no shape": file_of('{"a":{"dtype":"F32","data_offsets":[0,8]}}', eight),
        "offsets the wrong way": file_of('{"a":%s}' % entry(8, 0), eight),
        "no object": file_of("[]"),
        "white space before": file_of(" " + one, eight),
        "trailing comma": file_of('{"a":%s,}' % entry(0, 8), eight),
        "more behind the object": file_of(one + "{}", eight),
        "not UTF-8": file_of(one.encode().replace(b'"a"', b'"\xff"'), eight),
        "half a surrogate": file_of('{"\\ud83d":%s}' % entry(0, 8), eight),
        "a control character": file_of('{"a\nb":%s}' % entry(0, 8), eight),
        "header length beyond the file": file_of(one, eight, 1000),
        "header length of 2^63": file_of(one, eight, 1 << 63),
        "seven bytes": b"\2\0\0\0\0\0\0",
        "the same name twice": file_of('{"a":%s,"a":%s}' % (entry(0, 4, "[1]"), entry(4, 8, "[1]")), eight),
        "an unknown field": file_of('{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1}}', eight),
    }


STRICT = {
    "an unknown field": "what it says is not known to be harmless",
    "white space before": "the format wants '{' first",
}


def judge(blob):
    try:
        safetensors.deserialize(blob)
        return True
    except safetensors.SafetensorError:
        return False


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    folder = parser.parse_args().folder
    judged = []
    for name, blob in judged_files().items():
        each = {"name": name, "file": blob.hex(), "reads": judge(blob)}
        if each["reads"] and name in STRICT:
            each["strict"] = STRICT[name]
        judged.append(each)
    fixture = {
        "safetensors": importlib.metadata.version("safetensors"),
        "seed": SEED,
        "written": written(np.random.default_rng(SEED)),
        "judged": judged,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "safetensors.json").write_text(json.dumps(fixture, indent=1) + "\n")


if __name__ == "__main__":
    main()
