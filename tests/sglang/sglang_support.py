"""What tests/sglang share. They run on SGLang's real wheels, one version on PYTHONPATH at a time
(./check --sglang); run by hand without one they are skipped."""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "bench")]
os.environ.setdefault("KDTREE_LIBRARY_PATH", str(ROOT / "build" / "cpu"))

import required  # noqa: E402
from kdtree.sglang_ext import contract  # noqa: E402

VERSION = contract.installed_version()
RELEASE = contract.release(VERSION or "")


def needs_sglang(reason="SGLang is not on the path: ./check --sglang"):
    """At a script's start: ends it as a whole."""
    if VERSION is None:
        required.absent(reason)
    required.check_version(VERSION)


def since(version):
    return unittest.skipIf(RELEASE < contract.release(version), f"from {version} on")


def install_folder(test, version=None):
    """A folder for PYTHONPATH with what `pip install` leaves of the package: the entry point.
    `version`: also a distribution that calls itself SGLang of that version."""
    folder = tempfile.TemporaryDirectory()
    test.addCleanup(folder.cleanup)
    entries = (ROOT / "python" / "pyproject.toml").read_text()
    assert '[project.entry-points."sglang.srt.plugins"]\nkdtree = "kdtree.sglang_ext:register"' \
        in entries
    info = Path(folder.name) / "kdtree-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kdtree\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text(
        "[sglang.srt.plugins]\nkdtree = kdtree.sglang_ext:register\n")
    if version:
        other = Path(folder.name) / f"sglang-{version}.dist-info"
        other.mkdir()
        (other / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang\n"
                                        f"Version: {version}\n")
    return folder.name


def run(test, *arguments, version=None, installed=True, **variables):
    """A fresh Python with the plugin installed in it; its exit code and all it said."""
    paths = [install_folder(test, version)] if installed or version else []
    environment = {name: value for name, value in os.environ.items()
                   if not name.startswith(("KDTREE_DEFRAG_", "SGLANG_PLUGINS"))}
    environment["PYTHONPATH"] = os.pathsep.join(
        [*paths, str(ROOT / "python"), os.environ.get("PYTHONPATH", "")])
    result = subprocess.run([sys.executable, "-W", "ignore", *arguments],
                            env={**environment, **variables}, text=True, capture_output=True,
                            check=False, timeout=600)
    return result.returncode, result.stdout + result.stderr
