"""cmake --install, pkg-config and a program that knows nothing else; what the library exports."""

import os
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = os.environ.get("KDTREE_BUILD")
MODEL = os.environ.get("KDTREE_TINY_MODEL")


def run(*command, **options):
    result = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False,
                            **options)
    if result.returncode != 0:
        raise AssertionError(f"{command}: {result.returncode}\n{result.stdout}{result.stderr}")
    return result.stdout


@unittest.skipUnless(BUILD and MODEL, "KDTREE_BUILD and KDTREE_TINY_MODEL are not set")
class Install(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.prefix = Path(cls.folder.name) / "installed"
        run("cmake", "--install", BUILD, "--prefix", cls.prefix)
        cls.library = next(cls.prefix.rglob("libkdtree.so")).parent
        cls.environment = {**os.environ, "PKG_CONFIG_PATH": str(cls.library / "pkgconfig"),
                           "LD_LIBRARY_PATH": str(cls.library)}

    def pkg_config(self, *options):
        return run("pkg-config", *options, "kdtree", env=self.environment).split()

    def build(self, compiler, name, *options):
        """Compiles an example in a folder of its own, through pkg-config alone."""
        elsewhere = Path(self.folder.name) / "elsewhere"
        elsewhere.mkdir(exist_ok=True)
        (elsewhere / name).write_text((ROOT / "examples" / name).read_text())
        run(compiler, *options, name, "-o", "program", *self.pkg_config("--cflags", "--libs"),
            cwd=elsewhere, env=self.environment)
        return elsewhere / "program"

    def test_a_c_program_elsewhere(self):
        program = self.build("cc", "generate_from_c.c", "-std=c11")
        self.assertIn(" tokens in ", run(program, MODEL, "hello", env=self.environment))

    def test_a_cpp_program_elsewhere(self):
        program = self.build("c++", "generate_from_cpp.cpp", "-std=c++20")
        self.assertIn(" tokens in ", run(program, MODEL, "hello", env=self.environment))

    def test_the_program_runs(self):
        version = self.pkg_config("--modversion")[0]
        printed = run(self.prefix / "bin" / "kdtree", "--version")
        self.assertTrue(printed.startswith(f"kdtree {version} ("), printed)

    def test_soname(self):
        dynamic = run("readelf", "-d", self.library / "libkdtree.so")
        soname = re.search(r"SONAME.*\[(.*)\]", dynamic)[1]
        self.assertRegex(soname, r"^libkdtree\.so\.\d+$")
        self.assertTrue((self.library / soname).exists())

    def test_only_the_abi_is_exported(self):
        symbols = run("nm", "-D", "--defined-only", self.library / "libkdtree.so").splitlines()
        exported = {line.split()[-1] for line in symbols}
        header = (self.prefix / "include" / "kdtree" / "kdtree.h").read_text()
        declared = set(re.findall(r"^KDTREE_API [^(;]*?\b(kdtree_\w+)\(", header, flags=re.M))
        self.assertGreater(len(declared), 15)
        self.assertEqual(exported, declared)


if __name__ == "__main__":
    unittest.main()
