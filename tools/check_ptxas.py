#!/usr/bin/env python3
"""Checks what ptxas reported about every CUDA kernel of a build folder.

    tools/check_ptxas.py BUILD_FOLDER

Fails on register spills, on more static shared memory than a thread block of that architecture may
have, on an object without a report, and on a kernel that was not compiled for every architecture.
Dynamic shared memory is not in the report; a kernel states its own with a static_assert.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

# Bytes of shared memory that one thread block can have.
SHARED_LIMIT_BYTES = {"sm_90a": 232_448, "sm_120a": 101_376}

ENTRY = re.compile(r"Compiling entry function '(?P<name>[^']+)' for '(?P<arch>[^']+)'")
PROPERTIES = re.compile(r"Function properties for (?P<name>\S+)")
SPILLS = re.compile(r"(?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads")
USED = re.compile(r"Used (?P<registers>\d+) registers")
SHARED = re.compile(r"(?P<bytes>\d+) bytes smem")


@dataclass
class Function:
    """One kernel, or a device function that was not inlined into its kernel."""

    name: str
    arch: str
    is_kernel: bool
    registers: int = 0
    shared_bytes: int = 0
    spill_store_bytes: int = 0
    spill_load_bytes: int = 0


def parse_report(text: str) -> list[Function]:
    functions: list[Function] = []
    current: Function | None = None  # whose spills come next
    kernel: Function | None = None  # whose registers come next
    arch = ""
    for line in text.splitlines():
        if match := ENTRY.search(line):
            arch = match["arch"]
            kernel = Function(match["name"], arch, is_kernel=True)
            functions.append(kernel)
        elif match := PROPERTIES.search(line):
            if kernel and match["name"] == kernel.name:
                current = kernel
            else:
                current = Function(match["name"], arch, is_kernel=False)
                functions.append(current)
        elif (match := SPILLS.search(line)) and current:
            current.spill_store_bytes = int(match["stores"])
            current.spill_load_bytes = int(match["loads"])
        elif (match := USED.search(line)) and kernel:
            kernel.registers = int(match["registers"])
            if shared := SHARED.search(line):
                kernel.shared_bytes = int(shared["bytes"])
    return functions


def faults_of(functions: list[Function]) -> list[str]:
    faults = []
    for f in functions:
        if f.spill_store_bytes or f.spill_load_bytes:
            faults.append(
                f"{f.name} ({f.arch}) spills registers: {f.spill_store_bytes} bytes stored, "
                f"{f.spill_load_bytes} bytes loaded"
            )
        limit = SHARED_LIMIT_BYTES.get(f.arch)
        if f.is_kernel and limit is None:
            faults.append(f"{f.name}: no shared-memory limit is known for {f.arch}")
        elif limit is not None and f.shared_bytes > limit:
            faults.append(
                f"{f.name} ({f.arch}) takes {f.shared_bytes} bytes of shared memory, "
                f"{limit} is the most"
            )
    archs_of: dict[str, set[str]] = {}
    for f in functions:
        if f.is_kernel:
            archs_of.setdefault(f.name, set()).add(f.arch)
    for name, archs in archs_of.items():
        if lacking := set(SHARED_LIMIT_BYTES) - archs:
            faults.append(f"{name} was not compiled for {', '.join(sorted(lacking))}")
    return faults


def cuda_objects(build: Path) -> list[tuple[Path, Path]]:
    """(source, object) of every CUDA compilation that CMake planned."""
    objects = []
    for entry in json.loads((build / "compile_commands.json").read_text()):
        if not entry["file"].endswith(".cu"):
            continue
        words = shlex.split(entry["command"])
        output = words[words.index("-o") + 1]
        objects.append((Path(entry["file"]), Path(entry["directory"]) / output))
    return objects


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print(__doc__.strip(), file=sys.stderr)
        return 1
    faults: list[str] = []
    kernels = {"src": 0, "tests": 0}  # instances; one per architecture
    try:
        for source, compiled in cuda_objects(Path(arguments[0])):
            report = compiled.with_name(compiled.name + ".ptxas")
            if not report.exists():
                faults.append(f"{source.name}: no ptxas report; build the target kdtree_cuda first")
                continue
            functions = parse_report(report.read_text())
            faults += [f"{source.name}: {fault}" for fault in faults_of(functions)]
            place = "tests" if "tests" in source.parts else "src"
            kernels[place] += sum(f.is_kernel for f in functions)
    except (OSError, ValueError, KeyError) as error:
        print(f"error: cannot read the CUDA build {arguments[0]}: {error}", file=sys.stderr)
        return 1
    for fault in faults:
        print(f"ptxas: {fault}", file=sys.stderr)
    verdict = f"{len(faults)} faults" if faults else "no spills, shared memory within limits"
    print(
        f"ptxas: {kernels['src']} kernels in src, {kernels['tests']} in tests "
        f"(each architecture counted): {verdict}"
    )
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
