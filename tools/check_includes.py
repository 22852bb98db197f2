#!/usr/bin/env python3
"""Checks who includes whom: the table of modules below, over src/ and include/.

    tools/check_includes.py [REPOSITORY]

Reports FILE:LINE and the rule that is broken; exit code 1 if any is.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

SOURCE_SUFFIXES = {".h", ".cuh", ".cpp", ".cu"}
HEADER_SUFFIXES = {".h", ".cuh"}


@dataclass(frozen=True)
class Rule:
    """What a module may include besides itself and the C++ standard library."""

    modules: set[str]
    third_party: set[str] = field(default_factory=set)
    system: bool = True  # POSIX, Linux and compiler headers
    refused_std: set[str] = field(default_factory=set)


# A pure module decides; it does not read files or clocks, and starts no threads.
IO = {"fstream", "filesystem", "cstdio", "stdio.h", "iostream", "istream", "ostream", "sstream"}
IMPURE = IO | {"thread", "mutex", "shared_mutex", "condition_variable", "future", "stop_token"}
IMPURE |= {"atomic", "barrier", "latch", "semaphore", "chrono", "ctime", "time.h", "random"}
# What this project does not use anywhere.
REFUSED_EVERYWHERE = {"iostream"}

# base/check.h and base/error.h are written with fmt, so it is in every file anyway.
ANYONES = {"fmt"}

# `api` is include/kdtree.
LOWER = {"base", "core", "kv", "formats", "backends", "kernels", "models"}
MODULES = {
    "api": Rule(set()),
    "base": Rule(set(), {"spdlog"}, system=False, refused_std={"fstream", "filesystem"}),
    "core": Rule({"base"}, system=False, refused_std=IMPURE),
    "kv": Rule({"base"}, system=False, refused_std=IO),
    "kv/api": Rule({"api", "base", "kernels"}, system=False, refused_std=IO),  # the statuses
    "formats": Rule({"base"}, {"nlohmann-json", "PCRE2", "utf8proc"}),
    "backends": Rule({"base"}, {"OpenMP"}),
    "backends/cuda": Rule({"base"}, {"CUDA", "NCCL"}),
    "kernels": Rule(
        {"api", "base", "core", "backends"}, {"Highway", "OpenMP", "CUDA", "CCCL", "CUTLASS"}
    ),
    "models": Rule({"base", "formats", "backends", "kernels"}),
    "engine": Rule(LOWER | {"api"}, {"nlohmann-json"}),
    "app": Rule({"api", "base", "formats", "core", "engine"}, {"nlohmann-json", "libedit"}),
    "server": Rule({"api", "base", "formats"}, {"nlohmann-json", "httplib", "prometheus-cpp"}),
    "cli": Rule({"base", "app", "server"}, {"CLI11"}),
}

# Third-party headers by the beginning of their path.
THIRD_PARTY = {
    "fmt": ("fmt/",),
    "spdlog": ("spdlog/",),
    "nlohmann-json": ("nlohmann/",),
    "PCRE2": ("pcre2.h",),
    "utf8proc": ("utf8proc.h",),
    "libedit": ("histedit.h",),
    "OpenMP": ("omp.h",),
    "Highway": ("hwy/",),
    "NCCL": ("nccl",),
    "CCCL": ("cuda/", "cub/", "thrust/"),
    "CUTLASS": ("cutlass/", "cute/"),
    "CUDA": ("cuda", "cublas", "cupti", "nvtx3/", "nvml", "driver_types.h", "vector_types.h",
             "cooperative_groups", "mma.h", "device_launch_parameters.h"),  # fmt: skip
    "CLI11": ("CLI/",),
    "httplib": ("httplib.h",),
    "prometheus-cpp": ("prometheus/",),
    "GoogleTest": ("gtest/", "gmock/"),
    "Google Benchmark": ("benchmark/",),
    "torch": ("torch/", "ATen/", "c10/"),
}

STANDARD = set(
    """algorithm any array atomic barrier bit bitset cassert cctype cerrno cfenv cfloat charconv
    chrono cinttypes climits clocale cmath compare complex concepts condition_variable coroutine
    csetjmp csignal cstdarg cstddef cstdint cstdio cstdlib cstring ctime cuchar cwchar cwctype deque
    exception execution filesystem format forward_list fstream functional future initializer_list
    iomanip ios iosfwd iostream istream iterator latch limits list locale map memory memory_resource
    mutex new numbers numeric optional ostream queue random ranges ratio regex scoped_allocator
    semaphore set shared_mutex source_location span sstream stack stdexcept stop_token streambuf
    string string_view strstream syncstream system_error thread tuple type_traits typeindex typeinfo
    unordered_map unordered_set utility valarray variant vector version
    assert.h ctype.h errno.h float.h inttypes.h limits.h locale.h math.h setjmp.h signal.h stdarg.h
    stdbool.h stddef.h stdint.h stdio.h stdlib.h string.h time.h uchar.h wchar.h wctype.h""".split()
)

# POSIX, Linux and compiler headers. Any other unknown header is a new dependency, which needs its
# line in this file.
SYSTEM = re.compile(
    r"(sys|linux|asm|arpa|net|netinet|netdb|sanitizer)/.*|"
    r"(cpuid|cxxabi|dirent|dlfcn|execinfo|fcntl|getopt|grp|immintrin|langinfo|link|malloc|netdb|"
    r"nmmintrin|poll|pthread|pwd|sched|signal|spawn|strings|syslog|termios|ucontext|unistd|"
    r"x86intrin|arm_neon|arm_acle)\.h"
)

COMMENT_OR_STRING = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"\n]+)[>"]', re.MULTILINE)
# Or Highway's guard of a header that is included once per instruction set.
PRAGMA_ONCE = re.compile(
    r"^[ \t]*#[ \t]*(pragma[ \t]+once\b|if .*== *defined\(HWY_TARGET_TOGGLE\))", re.MULTILINE
)
VERSION_HEADER = "kdtree_version.h"  # written by CMake
VERSION_READERS = {"engine", "app", "server", "cli"}


def without_comments(text: str) -> str:
    """Comments blanked, lines and strings kept."""

    def blank(match: re.Match) -> str:
        found = match[0]
        return found if found.startswith('"') else re.sub(r"[^\n]", " ", found)

    return COMMENT_OR_STRING.sub(blank, text)


def module_of(path: Path) -> str | None:
    """The module of a file, given relative to the repository; None if the table has none."""
    parts = path.parts
    if parts[0] == "include":
        return "api"
    if len(parts) > 3 and "/".join(parts[1:3]) in MODULES:
        return "/".join(parts[1:3])
    return parts[1] if len(parts) > 2 and parts[1] in MODULES else None


def listing(names: set[str]) -> str:
    return ", ".join(sorted(names)) if names else "nothing"


def own_module_fault(module: str, header: str, included: str) -> str | None:
    allowed = MODULES[module].modules | {module.split("/")[0]}
    if included in allowed:
        return None
    return f"includes {header}: {module} may include {listing(allowed)} only"


def fault_of(module: str, header: str, quoted: bool) -> str | None:
    """Why this file may not include this header; None if it may."""
    rule = MODULES[module]
    first = header.split("/")[0]
    if header.startswith(("./", "../")):
        return f"includes {header}: paths start at src/, not at the including file"
    if "/" in header and (first in MODULES or first == "kdtree"):
        if not quoted:
            return f"includes <{header}>: our own headers stand in quotes"
        return own_module_fault(module, header, "api" if first == "kdtree" else first)
    if header == VERSION_HEADER:
        if module in VERSION_READERS:
            return None
        return f"includes {header}: the version is read by {listing(VERSION_READERS)} only"
    if header in STANDARD:
        if header in REFUSED_EVERYWHERE:
            return f"includes <{header}>: nobody uses it here (fmt prints, std::FILE writes)"
        if header in rule.refused_std:
            return f"includes <{header}>: {module} knows no I/O, threads or clocks"
        return None
    for name, prefixes in THIRD_PARTY.items():
        if header.startswith(prefixes):
            allowed = rule.third_party | ANYONES
            if name in allowed:
                return None
            return f"includes <{header}> of {name}: {module} may use {listing(allowed)} only"
    if SYSTEM.fullmatch(header):
        return None if rule.system else f"includes <{header}>: {module} uses no system headers"
    if quoted:
        return f'includes "{header}": no module of the table (tests and bench are not included)'
    return f"includes <{header}>: a dependency that tools/check_includes.py does not know"


def check_file(root: Path, path: Path) -> list[str]:
    relative = path.relative_to(root)
    module = module_of(relative)
    if module is None:
        return [f"{relative}:1: is in no module of the table ({listing(set(MODULES))})"]
    text = without_comments(path.read_text(encoding="utf-8"))
    faults = []
    if path.suffix in HEADER_SUFFIXES and module != "api" and not PRAGMA_ONCE.search(text):
        faults.append(f"{relative}:1: a header without #pragma once")
    for match in INCLUDE.finditer(text):
        if fault := fault_of(module, match[2], match[1] == '"'):
            line = text.count("\n", 0, match.start(2)) + 1
            faults.append(f"{relative}:{line}: {fault}")
    return faults


def main(arguments: list[str]) -> int:
    root = Path(arguments[0] if arguments else Path(__file__).parent.parent).resolve()
    files = sorted(
        path
        for folder in ("src", "include")
        for path in (root / folder).rglob("*")
        if path.suffix in SOURCE_SUFFIXES
    )
    if not files:
        print(f"error: no source files below {root}/src", file=sys.stderr)
        return 1
    faults = [fault for path in files for fault in check_file(root, path)]
    for fault in faults:
        print(fault)
    print(f"includes of {len(files)} files checked: {len(faults)} broken rules")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
