"""How the library is found, and what is said when it is not."""

import os
import re
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from support import HEADER, compile_c, compile_stub

from kdtree import KernelError, _library


class Library(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = Path(self.folder.name)
        self.package = self.path / "package"
        self.package.mkdir()
        patches = [
            mock.patch.object(_library, "__file__", str(self.package / "_library.py")),
            mock.patch("ctypes.util.find_library", lambda name: None),
            mock.patch.dict(os.environ),
        ]
        for patch in patches:
            patch.start()
            self.addCleanup(patch.stop)
        os.environ.pop("KDTREE_LIBRARY_PATH", None)
        _library.load.cache_clear()
        self.addCleanup(_library.load.cache_clear)

    def error(self) -> str:
        with self.assertRaises(KernelError) as caught:
            _library.load()
        return str(caught.exception)

    def test_by_variable_folder_or_file(self):
        library = compile_stub(self.path)
        for value in (self.path, library):
            os.environ["KDTREE_LIBRARY_PATH"] = str(value)
            _library.load.cache_clear()
            self.assertEqual(_library.version(), "0.1.0 (stub)")

    def test_beside_the_package(self):
        compile_stub(self.package)
        self.assertEqual(_library.version(), "0.1.0 (stub)")

    def test_a_wrong_variable_is_an_error(self):
        compile_stub(self.package)
        os.environ["KDTREE_LIBRARY_PATH"] = str(self.path / "nowhere")
        self.assertIn(f"there is no {self.path / 'nowhere'}", self.error())
        os.environ["KDTREE_LIBRARY_PATH"] = str(self.path)
        self.assertIn(f"there is no {self.path / 'libkdtree_kernels.so'}", self.error())

    def test_says_where_it_looked(self):
        message = self.error()
        for word in ("KDTREE_LIBRARY_PATH", str(self.package), "system's library path"):
            self.assertIn(word, message)

    def test_the_pool_by_itself(self):
        """Where the kernels are not built; where they are, theirs is taken."""
        os.environ["KDTREE_LIBRARY_PATH"] = str(self.path)
        names = list(re.findall(r"KDT_API \w+ \*?(kdt_pool_\w+)\(", HEADER.read_text()))
        self.assertGreater(len(names), 5)
        source = "int kdt_kernels_abi(void) { return 1; } void* kdt_last_error(void) { return 0; }"
        source += "".join(f" int {name}(void) {{ return 0; }}" for name in names)
        compile_c(self.path, "libkdtree_pool.so", source, "-shared", "-fPIC")
        self.addCleanup(_library.load_pool.cache_clear)
        self.assertIn("libkdtree_pool.so", _library.load_pool()._name)
        self.assertIn("libkdtree_kernels.so", self.error())
        _library.load_pool.cache_clear()
        compile_stub(self.path)
        self.assertIn("libkdtree_kernels.so", _library.load_pool()._name)

    def test_unfit_libraries(self):
        os.environ["KDTREE_LIBRARY_PATH"] = str(self.path)
        compile_stub(self.path, "libkdtree_kernels.so", "-DSTUB_ABI=99")
        self.assertIn("has ABI 99, this package is for ABI 1", self.error())
        other = self.path / "other"
        other.mkdir()
        os.environ["KDTREE_LIBRARY_PATH"] = str(other)
        compile_c(other, "libkdtree_kernels.so", "int nothing;", "-shared", "-fPIC")
        self.assertIn("is not the kernel library", self.error())


if __name__ == "__main__":
    unittest.main()
