"""How the library is found, and what is said when it is not."""

import os
import tempfile
import unittest
from pathlib import Path
from unittest import mock

from support import compile_c, compile_stub

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
