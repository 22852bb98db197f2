#!/usr/bin/env python3
"""How contiguous the slots of requests are in SGLang with its prefix tree on and its pool full,
before and after each switch of kdtree.sglang_ext, on SGLang's own allocators, tree and allocating
functions (sglang_server.py); what an allocation costs on the host; and the share of prompt tokens
that the tree has. No device is needed. The wheel to measure stands on PYTHONPATH:

    KDTREE_LIBRARY_PATH=build/cpu PYTHONPATH=WHEEL:python python3 bench/sglang_runs.py \\
        --concurrency 16 --json bench/results/sglang_runs-0.5.18.json

The load: prompts of 800 to 3000 tokens, of which 512 are one of eight common beginnings, 40 % go on
with an earlier conversation; answers of 100 to 700 tokens; one to eight tokens accepted a step.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from array import array
from dataclasses import asdict, dataclass
from pathlib import Path

import sglang_server
from sglang_report import made_by
from sglang_server import Server

from kdtree.sglang_ext import contract, parts
from kdtree.sglang_ext.config import DefragConfig
from kdtree.sglang_ext.fragmentation import Fragmentation

POOLS = {1: 32_768, 4: 65_536, 16: 131_072, 64: 327_680}  # slots, by concurrent requests

# Those that are not sorted come first: the sort hook stays once it is there.
CONFIGS = {
    "stock": DefragConfig(),
    "evict": DefragConfig(evict=0.1),
    "extent 64": DefragConfig(extent=64),
    "sort": DefragConfig(sort=True),
    "sort, evict": DefragConfig(sort=True, evict=0.1),
    "sort, extent 64": DefragConfig(sort=True, extent=64),
    "sort, evict, extent 64": DefragConfig(sort=True, evict=0.1, extent=64),
    "sort, evict, extent 256": DefragConfig(sort=True, evict=0.1, extent=256),
    "best fit": DefragConfig(best_fit=True),
    "best fit, evict": DefragConfig(best_fit=True, evict=0.1),
    "best fit, extent 64": DefragConfig(best_fit=True, extent=64),
    "best fit, evict 0.05, extent 64": DefragConfig(best_fit=True, evict=0.05, extent=64),
    "best fit, evict 0.07, extent 64": DefragConfig(best_fit=True, evict=0.07, extent=64),
    "best fit, evict, extent 64": DefragConfig(best_fit=True, evict=0.1, extent=64),
    "best fit, evict 0.15, extent 64": DefragConfig(best_fit=True, evict=0.15, extent=64),
    "best fit, evict, extent 256": DefragConfig(best_fit=True, evict=0.1, extent=256),
}


@dataclass
class Row:
    config: str
    concurrency: int
    page_size: int
    mean_run_tokens: float
    contiguous_tile_share: float
    hit_share: float  # of the prompt tokens
    steps: int
    new_tokens: int
    waits: int  # best fit: how often it read freed pages back
    calls: dict  # of alloc, free and evict
    microseconds: dict  # of each call, mean; evict frees as well


class Load:
    """Prompts and answers; the same ones for the same seed, whoever asks."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.beginnings = [self.tokens(512) for _ in range(8)]
        self.finished: list[array] = []  # texts that a conversation may go on with

    def tokens(self, count: int) -> array:
        return array("q", (self.random.randrange(1 << 17) for _ in range(count)))

    def prompt(self) -> tuple[array, int]:
        answer = self.random.randrange(100, 701)
        length = self.random.randrange(800, 3001)
        if self.finished and self.random.random() < 0.4:
            earlier = self.random.choice(self.finished[-64:])
            if len(earlier) < 4096:
                return earlier + self.tokens(self.random.randrange(50, 400)), answer
        return self.random.choice(self.beginnings) + self.tokens(length - 512), answer


def simulate(name: str, config: DefragConfig, concurrency: int, page_size: int, pools: float,
             seed: int) -> Row:
    sglang_server.install(config)
    slots = POOLS[concurrency]
    server = Server(slots, page_size, concurrency, 8192, config)
    load = Load(seed)
    waiting = server.request(*load.prompt())
    new, steps, half = 0, 0, pools * slots / 2
    measured = Fragmentation()
    while new < pools * slots:
        while len(server.running) < concurrency and server.fits(waiting):
            hit = server.hit
            server.start(waiting)
            new += len(waiting.prompt) - (server.hit - hit)
            waiting = server.request(*load.prompt())
        server.speculate()
        steps += 1
        for request in list(server.running):
            tokens = load.tokens(load.random.randrange(1, 9))
            server.accept(request, tokens)
            new += len(tokens)
            if request.committed - len(request.prompt) >= request.output:
                load.finished.append(request.text)
                server.finish(request)
        if new > half and steps % 20 == 0:
            measured += server.fragmentation()
        if steps % 500 == 0:
            server.check_books()
    costs = server.costs
    return Row(name, concurrency, page_size, measured.mean_run_tokens,
               measured.contiguous_tile_share, server.hit / server.asked, steps, new,
               getattr(server.allocator, "waits", 0), dict(costs.calls),
               {kind: 1e6 * costs.seconds[kind] / costs.calls[kind] for kind in costs.calls})


def table(rows: list[Row]) -> str:
    columns = ("switches", "requests", "page", "mean run", "contiguous tiles", "prefix hits",
               "waits per 1000 steps", "µs an alloc", "µs a free", "µs an evict")
    lines = [f"| {' | '.join(columns)} |", "|---" + 9 * "|--:" + "|"]
    for row in rows:
        cost = [f"{row.microseconds[kind]:.0f}" if kind in row.microseconds else ""
                for kind in ("alloc", "free", "evict")]
        cells = (row.config, row.concurrency, row.page_size, f"{row.mean_run_tokens:.1f}",
                 f"{100 * row.contiguous_tile_share:.0f} %", f"{row.hit_share:.3f}",
                 f"{1000 * row.waits / row.steps:.1f}", *cost)
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--concurrency", type=int, nargs="+", choices=POOLS, default=[16])
    parser.add_argument("--page-size", type=int, nargs="+", default=[1])
    parser.add_argument("--only", nargs="+", metavar="SWITCHES", choices=CONFIGS,
                        default=list(CONFIGS), help="rows of the table, as it names them")
    parser.add_argument("--pools", type=float, default=6.0,
                        help="new tokens, in sizes of the pool; the second half is measured")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()

    version = contract.installed_version()
    chosen = {name: config for name, config in CONFIGS.items() if name in arguments.only
              and not parts.refusals(config, version, look_inside=False)}
    sglang_server.prepare(DefragConfig())
    rows = []
    begin = time.time()
    for name, config in chosen.items():
        for concurrency in arguments.concurrency:
            for page_size in arguments.page_size:
                rows.append(simulate(name, config, concurrency, page_size, arguments.pools,
                                     arguments.seed))
                print(f"{time.time() - begin:6.0f} s  {name}, {concurrency} requests, page "
                      f"{page_size}", file=sys.stderr)
    print(f"SGLang {version}\n\n{table(rows)}")
    if arguments.json:
        arguments.json.write_text(json.dumps({
            "schema": 1, **made_by(), "sglang": version, "pools": arguments.pools,
            "seed": arguments.seed, "load_average": os.getloadavg()[:2],
            "rows": [asdict(row) for row in rows]}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
