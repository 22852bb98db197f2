#!/usr/bin/env python3
"""What SGLang's allocator and ours cost on the host: a speculative step's slots for all requests, a
prompt's, and giving a request's back, in a pool half of which is free in pieces.

    KDTREE_LIBRARY_PATH=build/cpu PYTHONPATH=WHEEL:python python3 bench/sglang_alloc.py \\
        --slots 4000000 --requests 64 [--device cuda]

Prints medians in microseconds until a call returns; the device is idle when it begins. "step,
waits" and "prompt, waits": the calls in which best fit read the ids that were freed since the last
one. They wait for what the device has to do before, here nothing. The kinds take turns, so that
what else the machine does hits all.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections import defaultdict
from pathlib import Path

import torch
from sglang_report import made_by
from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator

from kdtree.sglang_ext import contract
from kdtree.sglang_ext.best_fit_allocators import best_fit_of

TOPUP, PROMPT, HELD = 64, 2000, 200  # tokens: an extent, a prompt; pieces that stay in use


def fragmented(kind: str, slots: int, device: str, seed: int):
    """An allocator of which every other piece of 1 to 2 * HELD slots is free."""
    allocator = TokenToKVPoolAllocator(slots, torch.bfloat16, device, None, kind == "sorted")
    if kind == "best fit":
        allocator = best_fit_of(allocator)
    taken = allocator.alloc(slots)
    pieces, begin = [], 0
    source = random.Random(seed)
    while begin < slots:
        end = min(slots, begin + source.randrange(1, 2 * HELD))
        pieces.append(taken[begin:end])
        begin = end
    freed = pieces[::2]
    source.shuffle(freed)
    allocator.free(torch.cat(freed))
    return allocator


class Kind:
    def __init__(self, name: str, slots: int, requests: int, device: str):
        self.name = name
        self.requests = requests
        self.device = device
        self.allocator = fragmented(name, slots, device, 1)
        self.seconds: defaultdict[str, list[float]] = defaultdict(list)

    def timed(self, what: str, function, *arguments):
        if self.device == "cuda":
            torch.cuda.synchronize()
        waits = getattr(self.allocator, "waits", 0)
        begin = time.perf_counter()
        result = function(*arguments)
        seconds = time.perf_counter() - begin
        if getattr(self.allocator, "waits", 0) > waits:
            what += ", waits"
        self.seconds[what].append(seconds)
        return result

    def turn(self):
        """All requests get an extent, one new prompt comes, and as much goes back."""
        allocator = self.allocator
        if self.name == "best fit":
            allocator.expect(list(range(self.requests)), [TOPUP] * self.requests)
        step = self.timed("step", allocator.alloc, TOPUP * self.requests)
        if self.name == "best fit":
            allocator.expect([None], [PROMPT])
        prompt = self.timed("prompt", allocator.alloc, PROMPT)
        self.timed("free", allocator.free, prompt)
        self.timed("free", allocator.free, step)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--slots", type=int, default=4_000_000)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--turns", type=int, default=300)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    kinds = [Kind(name, arguments.slots, arguments.requests, arguments.device)
             for name in ("stock", "sorted", "best fit")]
    for _ in range(arguments.turns):
        for kind in kinds:
            kind.turn()
    rows = [{"kind": kind.name, "what": what, "calls": len(times),
             "median_us": 1e6 * statistics.median(times), "mean_us": 1e6 * statistics.fmean(times),
             "max_us": 1e6 * max(times)}
            for kind in kinds for what, times in kind.seconds.items()]
    for row in rows:
        print(f"{row['kind']:<10} {row['what']:<14} {row['calls']:>5} calls   "
              f"median {row['median_us']:9.1f} us   mean {row['mean_us']:9.1f}   "
              f"max {row['max_us']:9.1f}")
    if arguments.json:
        arguments.json.write_text(json.dumps({
            "schema": 1, **made_by(), "sglang": contract.installed_version(),
            "device": torch.cuda.get_device_name() if arguments.device == "cuda" else "cpu",
            "slots": arguments.slots, "requests": arguments.requests, "topup": TOPUP,
            "prompt": PROMPT, "rows": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
