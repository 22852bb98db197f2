"""Finds and loads the shared libraries; turns the kernel library's statuses into KernelError."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

from kdtree import _structs
from kdtree._structs import Status

NAME = "libkdtree_kernels.so"
POOL_NAME = "libkdtree_pool.so"
ENGINE_NAME = "libkdtree.so"
PATH_VARIABLE = "KDTREE_LIBRARY_PATH"


class KernelError(RuntimeError):
    """The library is missing, unfit, or refused a call; `status` is its Status, if it gave one."""

    def __init__(self, message: str, status: Status | None = None):
        super().__init__(message)
        self.status = status


def _from_variable(value: str, name: str) -> Path:
    """KDTREE_LIBRARY_PATH names a library or the folder of all. Where it is set, nothing else is
    tried: a wrong path must not end in another build of the library."""
    path = Path(value)
    if path.is_dir():
        path = path / name
    elif path.name in {NAME, POOL_NAME, ENGINE_NAME}:
        path = path.with_name(name)  # it may name another one
    if not path.is_file():
        raise OSError(f"{PATH_VARIABLE}={value}: there is no {path}")
    return path


def _candidates(name: str) -> list[str]:
    """What to hand to dlopen, in this order."""
    value = os.environ.get(PATH_VARIABLE)
    if value:
        return [str(_from_variable(value, name))]
    found = [str(path) for path in [Path(__file__).resolve().parent / name] if path.is_file()]
    system = ctypes.util.find_library(name.removeprefix("lib").removesuffix(".so"))
    return found + [name] + ([system] if system else [])


def open_library(
    name: str, what: str, declare: Callable[[ctypes.CDLL], None], abi: tuple[str, int],
    error: type[Exception],
) -> ctypes.CDLL:
    """The first candidate that loads, with the functions that `declare` gives their types. `abi`:
    the function that says which ABI it has, and the one that is needed. Raises `error`."""
    try:
        candidates = _candidates(name)
    except OSError as wrong:
        raise error(str(wrong)) from wrong
    failures = []
    for candidate in candidates:
        try:
            library = ctypes.CDLL(candidate)
        except OSError as failure:
            failures.append(f"{candidate}: {failure}")
            continue
        return _checked(library, candidate, what, declare, abi, error)
    raise error(
        f"{name} cannot be loaded. Looked in {PATH_VARIABLE} (unset or empty: the library or its "
        f"folder), beside the package ({Path(__file__).resolve().parent}) and in the system's "
        "library path; tried " + "; ".join(failures)
    )


def _checked(
    library: ctypes.CDLL, origin: str, what: str, declare: Callable[[ctypes.CDLL], None],
    abi: tuple[str, int], error: type[Exception],
) -> ctypes.CDLL:
    try:
        declare(library)
    except AttributeError as missing:
        raise error(f"{origin} is not {what}: {missing}") from missing
    function, wanted = abi
    found = getattr(library, function)()
    if found != wanted:
        raise error(f"{origin} has ABI {found}, this package is for ABI {wanted}")
    return library


_ABI = ("kdt_kernels_abi", _structs.ABI)


@cache
def load() -> ctypes.CDLL:
    """The kernel library, loaded at the first call."""
    return open_library(NAME, "the kernel library", _structs.declare, _ABI, KernelError)


@cache
def load_pool() -> ctypes.CDLL:
    """The page pool: in the kernel library, or by itself where that one is missing."""
    try:
        return load()
    except KernelError as no_kernels:
        try:
            return open_library(POOL_NAME, "the page pool", _structs.declare_pool, _ABI,
                                KernelError)
        except KernelError as no_pool:
            raise KernelError(f"{no_kernels}; {no_pool}") from no_pool


def call(function: str, *arguments) -> None:
    """Calls a function of the kernel library that returns a kdt_status."""
    call_in(load(), function, *arguments)


def call_in(library: ctypes.CDLL, function: str, *arguments) -> None:
    status = getattr(library, function)(*arguments)
    if status != Status.OK:
        message = (library.kdt_last_error() or b"").decode(errors="replace")
        known = status in list(Status)
        raise KernelError(
            f"{function}: {message or 'no message'}", Status(status) if known else None
        )


def version() -> str:
    """Version and commit of the library that was loaded."""
    return load().kdt_kernels_version().decode()
