"""The ctypes structs and enums against include/kdtree/kernels.h, as gcc lays it out."""

import ctypes
import re
import subprocess
import tempfile
import types
import unittest
from pathlib import Path

from support import HEADER, compile_c

from kdtree import _structs

STRUCTS = {
    "kdt_attn_shape": _structs.CAttnShape,
    "kdt_attn_batch": _structs.CAttnBatch,
    "kdt_attn_mla_tensors": _structs.CMlaTensors,
    "kdt_attn_gqa_tensors": _structs.CGqaTensors,
    "kdt_rope_append_params": _structs.CRopeAppend,
    "kdt_kv_move_params": _structs.CKvMove,
}
VALUES = {
    "KDT_KERNELS_ABI": _structs.ABI,
    "KDT_OK": _structs.Status.OK,
    "KDT_INVALID": _structs.Status.INVALID,
    "KDT_UNSUPPORTED": _structs.Status.UNSUPPORTED,
    "KDT_CUDA_ERROR": _structs.Status.CUDA_ERROR,
    "KDT_ATTN_MLA": _structs.AttnKind.MLA,
    "KDT_ATTN_GQA": _structs.AttnKind.GQA,
    "KDT_KV_BF16": _structs.KvFormat.BF16,
    "KDT_KV_FP8": _structs.KvFormat.FP8,
    "KDT_KV_FP8_MLA656": _structs.KvFormat.FP8_MLA656,
    "KDT_ATTN_FAST": _structs.AttnMode.FAST,
    "KDT_ATTN_DETERMINISTIC": _structs.AttnMode.DETERMINISTIC,
    "KDT_PATH_AUTO": _structs.AttnPath.AUTO,
    "KDT_PATH_WGMMA": _structs.AttnPath.WGMMA,
    "KDT_PATH_MMA_SYNC": _structs.AttnPath.MMA_SYNC,
    "KDT_ROPE_ADJACENT": _structs.RopePairing.ADJACENT,
    "KDT_ROPE_HALF": _structs.RopePairing.HALF,
}


def layout_program() -> str:
    """Prints "name value" for every size, offset, field size and constant."""
    lines = ["#include <stdio.h>", '#include "kdtree/kernels.h"', "int main(void) {"]
    for struct, mirror in STRUCTS.items():
        lines.append(f'printf("{struct} %zu\\n", sizeof({struct}));')
        for field, _ in mirror._fields_:
            name = field.rstrip("_")
            lines.append(f'printf("{struct}.{name} %zu\\n", offsetof({struct}, {name}));')
            lines.append(f'printf("{struct}.{name}.size %zu\\n", sizeof((({struct}*)0)->{name}));')
    lines += [f'printf("{name} %d\\n", (int){name});' for name in VALUES]
    return "\n".join(lines + ["return 0;", "}", ""])


class Structs(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with tempfile.TemporaryDirectory() as folder:
            program = compile_c(Path(folder), "layout", layout_program())
            printed = subprocess.run([program], check=True, capture_output=True, text=True).stdout
        cls.header = {name: int(value) for name, value in map(str.split, printed.splitlines())}

    def test_layout(self):
        for struct, mirror in STRUCTS.items():
            with self.subTest(struct):
                self.assertEqual(ctypes.sizeof(mirror), self.header[struct])
                for field, kind in mirror._fields_:
                    name = f"{struct}.{field.rstrip('_')}"
                    self.assertEqual(getattr(mirror, field).offset, self.header[name], name)
                    self.assertEqual(ctypes.sizeof(kind), self.header[name + ".size"], name)

    def test_struct_bytes_is_set(self):
        for mirror in STRUCTS.values():
            self.assertEqual(mirror().struct_bytes, ctypes.sizeof(mirror))

    def test_values(self):
        for name, value in VALUES.items():
            self.assertEqual(int(value), self.header[name], name)

    def test_nothing_of_the_header_is_missing(self):
        text = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.S)
        constants = set(re.findall(r"\b(KDT_\w+)(?= = \d)", text)) | {"KDT_KERNELS_ABI"}
        self.assertEqual(constants, set(VALUES))
        structs = set(re.findall(r"^typedef struct (\w+) {", text, flags=re.M))
        self.assertEqual(structs, set(STRUCTS))
        functions = set(re.findall(r"^KDT_API [^(]*?(kdt_\w+)\(", text, flags=re.M))
        declared = set()

        class Library:
            def __getattr__(self, name):
                declared.add(name)
                return types.SimpleNamespace()

        _structs.declare(Library())
        self.assertEqual(functions, declared)


if __name__ == "__main__":
    unittest.main()
