"""What the command-line tests share: the program, a cache of their own, one-line errors.

The program's path is in KDTREE_PROGRAM (set by CTest). Tests of the real model need SmolLM2 in the
user's cache; without it they are skipped and the script exits with 77, which CTest shows.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

PROGRAM = os.environ["KDTREE_PROGRAM"]
MODEL_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SKIPPED = 77
TIMEOUT_S = 120


def user_cache() -> Path:
    if os.environ.get("KDTREE_CACHE"):
        return Path(os.environ["KDTREE_CACHE"])
    if os.environ.get("XDG_CACHE_HOME"):
        return Path(os.environ["XDG_CACHE_HOME"]) / "kdtree"
    return Path.home() / ".cache" / "kdtree"


MODEL = user_cache() / MODEL_FILE
needs_model = unittest.skipUnless(MODEL.is_file(), f"SmolLM2 is not at {MODEL}")


class CliTest(unittest.TestCase):
    """A temporary working folder with a cache in it that holds the model, if there is one."""

    @classmethod
    def setUpClass(cls) -> None:
        cls.folder = Path(tempfile.mkdtemp(prefix="kdtree-cli-"))
        cls.cache = cls.folder / "cache"
        cls.cache.mkdir()
        if MODEL.is_file():
            (cls.cache / MODEL_FILE).symlink_to(MODEL.resolve())

    @classmethod
    def tearDownClass(cls) -> None:
        shutil.rmtree(cls.folder)

    def environment(self, **changes: str) -> dict[str, str]:
        return {**os.environ, "KDTREE_CACHE": str(self.cache), **changes}

    def start(self, *arguments: object, **options) -> subprocess.Popen:
        environment = options.pop("env", None) or self.environment()
        return subprocess.Popen(
            [PROGRAM, *map(argument, arguments)],
            cwd=self.folder, env=environment, stdin=options.pop("stdin", subprocess.DEVNULL),
            stdout=options.pop("stdout", subprocess.PIPE),
            stderr=options.pop("stderr", subprocess.PIPE), **options)

    def kdtree(self, *arguments: object, stdin: bytes = b"", **options):
        """Runs to the end: exit code, standard output and standard error as bytes."""
        with self.start(*arguments, stdin=subprocess.PIPE, **options) as process:
            try:
                out, err = process.communicate(stdin, timeout=TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                self.fail(f"{arguments} still ran after {TIMEOUT_S} s")
        return process.returncode, out, err

    def answer(self, *arguments: object, **options) -> bytes:
        code, out, err = self.kdtree("run", *arguments, **options)
        self.assertEqual(code, 0, err)
        return out

    def refused(self, *arguments: object, naming: str, **options) -> None:
        """Exit code 1, one line on standard error that names the value, nothing on output."""
        code, out, err = self.kdtree(*arguments, **options)
        text = err.decode(errors="replace")
        self.assertEqual(code, 1, text)
        self.assertTrue(text.startswith("kdtree: ") and text.endswith("\n"), text)
        self.assertEqual(text.count("\n"), 1, text)
        self.assertNotIn("\0", text)
        self.assertIn(naming, text)
        self.assertEqual(out, b"")

    def write(self, name: str, content: str | bytes) -> Path:
        path = self.folder / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path


def argument(value: object) -> str | bytes:
    return value if isinstance(value, bytes) else str(value)


def main() -> None:
    program = unittest.main(module="__main__", exit=False)
    if not program.result.wasSuccessful():
        sys.exit(1)
    sys.exit(SKIPPED if program.result.skipped else 0)
