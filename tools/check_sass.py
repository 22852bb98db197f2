#!/usr/bin/env python3
"""Checks in the machine code how the shipped kernels read device memory.

    tools/check_sass.py LIBRARY [--cuobjdump PROGRAM] [--table]

LIBRARY: libkdtree_kernels.so, or an object of it. Rows of the cache, of partial results and of what
kv_move copies have to be read 16 bytes an instruction and thread or in bulk, whatever an optimiser
or an edit did. So this fails on a kernel without such loads, on an asynchronous copy narrower than
16 bytes, on more than a few 1- and 2-byte loads (a work unit has two such fields; rope_append needs
them for rotary halves that are not aligned), and on local memory, which is where registers spill
to, and parameters and arrays that are indexed. Loads of 4 and 8 bytes are page numbers, lengths,
masks, log-sum-exps; attn_plan reads those alone. --table prints all loads of every kernel.

It also fails where a block tells another one of its cluster (an arrival at the other's mbarrier)
while loads from its own shared memory are under way: such arrivals are relaxed and overtake them,
and ptxas moves what waits for the loads behind (ptx::hold_until). The code is followed along every
branch, each wait for a scoreboard read from the instruction's control bits.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field

# What each kernel has to have, as a pattern of instructions; None: lists and lengths only.
WIDE = r"LDG\.\S*128"
GATHER = r"LDGSTS\.\S*128|UBLKCP"
NEEDED = {
    "attn_verify_gqa": GATHER,
    "attn_verify_mla": GATHER,
    "attn_combine": WIDE,
    "kv_move": WIDE,
    "rope_append": WIDE,
    "attn_plan": None,
}

# 1- and 2-byte loads of fields, in the code of one kernel.
FIELD_LOADS = 8

# Loads from shared memory under way that are told apart; with more, the last ones are.
MOST_LOADS = 32

ARCH = re.compile(r"^\s*code for (\S+)")
NARROW = re.compile(r"\.[US]?(8|16)(\.|$)")
FUNCTION = re.compile(r"^\s*Function : (\S+)")
WORDS = re.compile(r"/\* 0x([0-9a-f]{16}) \*/\s*$")
INSTRUCTION = re.compile(
    r"^\s*/\*(?P<address>[0-9a-f]{4,})\*/\s+(?P<predicate>@!?U?P\d+\s+)?"
    r"(?P<opcode>[A-Z][\w.]*)(?P<operands>[^;]*);"
)
ARRIVAL_ELSEWHERE = re.compile(r"SYNCS\.ARRIVE\.\S*\bRED\b")
TARGET = re.compile(r"(?P<condition>.*,\s*)?0x(?P<address>[0-9a-f]+)$")
LOAD = re.compile(r"\b(LDGSTS\.\S+|LDG\.\S+|LD\.\S+|UBLKCP\S*|UTMALDG\S*|LDL\S*|STL\S*)")


@dataclass
class Kernel:
    name: str
    arch: str
    loads: Counter[str] = field(default_factory=Counter)
    arrivals: int = 0  # at another block's barriers
    early_arrivals: int = 0  # with loads from shared memory under way

    def family(self) -> str | None:
        # Mangled names have each identifier whole; the longest, as one op's name may begin another's.
        found = [family for family in NEEDED if family in self.name]
        return max(found, key=len) if found else None


@dataclass
class Instruction:
    address: int
    predicated: bool
    opcode: str
    operands: str
    control: int  # bits 105 to 125

    def goes_to(self) -> int | None:
        target = TARGET.match(self.operands)
        return int(target["address"], 16) if target and self.opcode.startswith("BRA") else None

    def goes_on(self) -> bool:
        """The next instruction may follow. BRA.DIV goes where a warp's lanes are apart."""
        family = self.opcode.split(".")[0]
        if self.predicated or family not in ("BRA", "EXIT", "RET"):
            return True
        target = TARGET.match(self.operands)
        return self.opcode.startswith("BRA.DIV") or bool(target and target["condition"])


def early_arrivals(code: list[Instruction]) -> int:
    """Arrivals at another block's barriers with loads from shared memory under way on some path."""
    places = {instruction.address: place for place, instruction in enumerate(code)}
    # The scoreboards of the loads under way, in the order in which they come back; 7: a load has
    # none, a later one's serves.
    met: list[set[tuple[int, ...]]] = [set() for _ in code]
    early = set()
    work: list[tuple[int, tuple[int, ...]]] = [(0, ())]
    while work:
        place, loads = work.pop()
        if place >= len(code) or loads in met[place]:
            continue
        met[place].add(loads)
        instruction = code[place]
        for scoreboard in range(6):
            if instruction.control >> 11 + scoreboard & 1 and scoreboard in loads:
                loads = loads[len(loads) - loads[::-1].index(scoreboard):]
        if ARRIVAL_ELSEWHERE.match(instruction.opcode):
            if loads:
                early.add(place)
        elif instruction.opcode.startswith("LDS"):
            loads = (*loads, instruction.control >> 5 & 7)[-MOST_LOADS:]
        if instruction.goes_to() in places:
            work.append((places[instruction.goes_to()], loads))
        if instruction.goes_on():
            work.append((place + 1, loads))
    return len(early)


def parse(lines: list[str]) -> list[Kernel]:
    kernels: list[Kernel] = []
    codes: list[list[Instruction]] = []
    arch = ""
    found = None
    for line in lines:
        if found and not INSTRUCTION.match(line) and (words := WORDS.search(line)):
            codes[-1].append(
                Instruction(int(found["address"], 16), bool(found["predicate"]), found["opcode"],
                            found["operands"].strip(), int(words[1], 16) >> 41))
        found = INSTRUCTION.match(line) if kernels else None
        if match := ARCH.match(line):
            arch = match[1]
        elif match := FUNCTION.match(line):
            kernels.append(Kernel(match[1], arch))
            codes.append([])
        elif kernels and (match := LOAD.search(line)):
            # What L2 is told to fetch (LTC128B) says nothing of the instruction's own width.
            kernels[-1].loads[re.sub(r"\.LTC\d+B", "", match[1])] += 1
    for kernel, code in zip(kernels, codes):
        kernel.arrivals = sum(bool(ARRIVAL_ELSEWHERE.match(each.opcode)) for each in code)
        if kernel.arrivals:
            kernel.early_arrivals = early_arrivals(code)
    return kernels


def faults_of(kernel: Kernel) -> list[str]:
    family = kernel.family()
    if family is None:
        return []
    faults = []
    needed = NEEDED[family]
    if needed and not any(re.match(needed, load) for load in kernel.loads):
        faults.append(f"has no load like {needed}")
    narrow = sum(n for load, n in kernel.loads.items() if NARROW.search(load))
    if narrow > FIELD_LOADS and needed and family != "rope_append":
        faults.append(f"loads 1 or 2 bytes at a time, in {narrow} places")
    if kernel.early_arrivals:
        faults.append(f"tells another block of {kernel.early_arrivals} reads that are under way")
    for load, count in sorted(kernel.loads.items()):
        if load.startswith("LDGSTS") and "128" not in load:
            faults.append(f"copies asynchronously less than 16 bytes at a time: {count} x {load}")
        elif load.startswith(("LDL", "STL")):
            faults.append(f"uses local memory: {count} x {load}")
    return faults


def library_faults(kernels: list[Kernel], whole: bool) -> list[str]:
    """Of all kernels; `whole`: every family has to be there for every architecture."""
    # A main loop for one architecture is an empty kernel on the others.
    compiled = [k for k in kernels if k.loads]
    faults = [f"{k.name} ({k.arch}) {fault}" for k in compiled for fault in faults_of(k)]
    readers = {k.name for k in kernels if NEEDED.get(k.family() or "")}
    for name in sorted(readers - {k.name for k in compiled}):
        faults.append(f"{name} loads nothing on any architecture")
    if whole and not any(k.arrivals for k in kernels):
        faults.append("no arrival at another block's barrier: SASS is written in another way")
    for arch in sorted({k.arch for k in kernels}) if whole else []:
        if lacking := set(NEEDED) - {k.family() for k in compiled if k.arch == arch}:
            faults.append(f"no kernel of {', '.join(sorted(lacking))} for {arch}")
    return faults


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("library")
    parser.add_argument("--cuobjdump", default="cuobjdump", metavar="PROGRAM")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    try:
        sass = subprocess.run(
            [options.cuobjdump, "-sass", options.library],
            capture_output=True, text=True, errors="replace", check=True,
        ).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        reason = (getattr(error, "stderr", None) or str(error)).strip()
        print(f"error: cannot disassemble {options.library}: {reason}", file=sys.stderr)
        return 1
    kernels = parse(sass.splitlines())
    faults = library_faults(kernels, options.library.endswith(".so"))
    if options.table:
        for kernel in kernels:
            loads = ", ".join(f"{n} {load}" for load, n in sorted(kernel.loads.items()))
            print(f"{kernel.arch}  {kernel.name}\n    {loads}")
    for fault in faults:
        print(f"sass: {fault}", file=sys.stderr)
    verdict = f"{len(faults)} faults" if faults else "rows are read 16 bytes at a time or in bulk"
    print(f"sass: {sum(bool(k.loads) for k in kernels)} kernels (each architecture counted): {verdict}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
