"""A module of ctypes structs and enums against the C header that it mirrors, as gcc lays it out."""

import ctypes
import re
import subprocess
import tempfile
import types
from pathlib import Path

from support import ROOT, compile_c


class MirrorTest:
    """For a unittest.TestCase that sets these four; `module` has declare(library)."""

    include: str  # "kdtree/kernels.h"
    prefix: str  # of its functions: "kdt"
    structs: dict[str, type[ctypes.Structure]]
    values: dict[str, int]
    module: types.ModuleType

    @classmethod
    def layout_program(cls) -> str:
        """Prints "name value" for every size, offset, field size and constant."""
        lines = ["#include <stdio.h>", f'#include "{cls.include}"', "int main(void) {"]
        for struct, mirror in cls.structs.items():
            lines.append(f'printf("{struct} %zu\\n", sizeof({struct}));')
            for field, _ in mirror._fields_:
                name = field.rstrip("_")
                lines.append(f'printf("{struct}.{name} %zu\\n", offsetof({struct}, {name}));')
                lines.append(
                    f'printf("{struct}.{name}.size %zu\\n", sizeof((({struct}*)0)->{name}));')
        lines += [f'printf("{name} %d\\n", (int){name});' for name in cls.values]
        return "\n".join(lines + ["return 0;", "}", ""])

    @classmethod
    def setUpClass(cls):
        with tempfile.TemporaryDirectory() as folder:
            program = compile_c(Path(folder), "layout", cls.layout_program())
            printed = subprocess.run([program], check=True, capture_output=True, text=True).stdout
        cls.header = {name: int(value) for name, value in map(str.split, printed.splitlines())}

    def test_layout(self):
        for struct, mirror in self.structs.items():
            with self.subTest(struct):
                self.assertEqual(ctypes.sizeof(mirror), self.header[struct])
                for field, kind in mirror._fields_:
                    name = f"{struct}.{field.rstrip('_')}"
                    self.assertEqual(getattr(mirror, field).offset, self.header[name], name)
                    self.assertEqual(ctypes.sizeof(kind), self.header[name + ".size"], name)

    def test_values(self):
        for name, value in self.values.items():
            self.assertEqual(int(value), self.header[name], name)

    def test_nothing_of_the_header_is_missing(self):
        text = (ROOT / "include" / self.include).read_text()
        text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
        macro = self.prefix.upper()
        constants = set(re.findall(rf"\b({macro}_\w+)(?= = \d)", text))
        constants |= set(re.findall(rf"^#define ({macro}_\w*ABI) ", text, flags=re.M))
        self.assertEqual(constants, set(self.values))
        self.assertEqual(set(re.findall(r"^typedef struct (\w+) {", text, flags=re.M)),
                         set(self.structs))
        functions = set(re.findall(rf"^{macro}_API [^(]*?({self.prefix}_\w+)\(", text, flags=re.M))
        declared = set()

        class Library:
            def __getattr__(self, name):
                declared.add(name)
                return types.SimpleNamespace()

        self.module.declare(Library())
        self.assertEqual(functions, declared)
