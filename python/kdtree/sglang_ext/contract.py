"""Compares what the plugin touches in SGLang with the SGLang that is installed."""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import re
from collections.abc import Iterable

from kdtree.sglang_ext.contract_types import Touched

# Every row of every table was compared with these releases. One in between is taken where what is
# touched looks as in one of its neighbours; any other is refused.
TESTED = ("0.5.14", "0.5.15.post1", "0.5.16", "0.5.17", "0.5.18", "0.5.23")

ABSENT = None


def installed_version() -> str | None:
    """SGLang's version, without importing it; None: it is not installed."""
    try:
        return importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        return None


def release(version: str) -> tuple[int, int, int]:
    """The leading numbers of a version; (0, 0, 0) if it does not begin with three."""
    match = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    return tuple(int(part) for part in match.groups()) if match else (0, 0, 0)


def version_problem(version: str | None, since: str = TESTED[0]) -> str | None:
    """Why this version is refused, None if it is not. Needs no import of SGLang."""
    if version is None:
        return "SGLang is not installed here"
    if not release(since) <= release(version) <= release(TESTED[-1]):
        return f"SGLang {version} is not supported, {since} to {TESTED[-1]} are"
    return None


def expected(row: Touched, version: str) -> tuple[tuple[str, ...] | None, ...]:
    """The signatures that an attribute may have in a version; ABSENT: it may be missing."""
    if version in TESTED:
        named = (version,)
    else:
        older = [tested for tested in TESTED if release(tested) <= release(version)]
        newer = [tested for tested in TESTED if release(tested) >= release(version)]
        named = (*older[-1:], *newer[:1])
    anywhere = row.signatures.get("*", ABSENT)
    return tuple(row.signatures.get(name, anywhere) for name in named)


def found(path: str) -> tuple[str, ...] | None:
    """The parameter names of what is installed, () for what is no function, None if absent."""
    module_name, attributes = path.split(":")
    try:
        value = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # A module of SGLang that imports something else that is missing is no absent module.
        if module_name.startswith(error.name or "-"):
            return ABSENT
        raise
    for name in attributes.split("."):
        if not hasattr(value, name):
            return ABSENT
        value = inspect.getattr_static(value, name) if isinstance(value, type) \
            else getattr(value, name)
    if isinstance(value, (classmethod, staticmethod)):
        value = value.__func__
    if not inspect.isroutine(value):
        return ()
    return tuple(inspect.signature(value).parameters)


def problems(rows: Iterable[Touched], version: str) -> list[str]:
    """One line for each attribute that is not as the table says. Imports SGLang's modules."""
    lines = []
    for row in rows:
        allowed, actual = expected(row, version), found(row.path)
        if actual not in allowed:
            wanted = " or ".join(dict.fromkeys(map(_shown, allowed)))
            lines.append(f"{row.path} is {_shown(actual)}, {wanted} is needed")
    return lines


def _shown(signature: tuple[str, ...] | None) -> str:
    if signature is ABSENT:
        return "absent"
    return f"({', '.join(signature)})" if signature else "an attribute"
