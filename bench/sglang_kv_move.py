#!/usr/bin/env python3
"""Moving accepted rows of all layers: SGLang's own copy against KDTREE_KV_MOVE, on its own pools.

    KDTREE_LIBRARY_PATH=build/cuda PYTHONPATH=WHEEL:python python3 bench/sglang_kv_move.py
                           [--layers N] [--moves LIST] [--slots N] [--repeat N] [--json FILE]

SGLang moves outside of its graphs. us: median of the time from the call to the end of its work on
the device, which is idle before; host_us: until the call returns. Both take turns, and make the
same moves: the bytes of both pools are compared at the end; exit code 1 where they differ.

The JSON: {"schema": 1, "commit", "kernels", "arguments" (sglang_report.py), "device", "sglang",
"rows": [{"pool", "layers", "moves", "sglang_us", "sglang_host_us", "kdtree_us",
"kdtree_host_us"}]}.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import torch
from sglang_report import made_by
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool

from kdtree import kernels
from kdtree.sglang_ext import contract, hooks, kv_move
from kdtree.sglang_ext.config import DefragConfig

POOLS = {"mla": MLATokenToKVPool, "gqa": MHATokenToKVPool}
STOCK = {name: pool.move_kv_cache for name, pool in POOLS.items()}


def make_pool(name: str, slots: int, layers: int):
    common = dict(size=slots, page_size=1, dtype=torch.bfloat16, layer_num=layers, device="cuda",
                  enable_memory_saver=False)
    if name == "mla":
        pool = MLATokenToKVPool(kv_lora_rank=512, qk_rope_head_dim=64, **common)
    else:
        pool = MHATokenToKVPool(head_num=8, head_dim=128, enable_alt_stream=False,
                                enable_kv_cache_copy=True, **common)
    generator = torch.Generator("cuda").manual_seed(1)
    for buffer in kv_move.buffers_of(pool):
        buffer.normal_(generator=generator)
    return pool


def timed(move, pool, targets, sources) -> tuple[float, float]:
    """us, host_us"""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    move(pool, targets, sources)
    returned = time.perf_counter()
    torch.cuda.synchronize()
    return 1e6 * (time.perf_counter() - begin), 1e6 * (returned - begin)


def measure(name: str, options: argparse.Namespace, moves: int) -> dict:
    """Half of the moves are real, the others are the padding that SGLang's lists end in."""
    stock, ours = (make_pool(name, options.slots, options.layers) for _ in range(2))
    generator = torch.Generator().manual_seed(moves)
    times: dict[str, list[tuple[float, float]]] = {"sglang": [], "kdtree": []}
    for round_ in range(options.repeat + 1):
        slots = 1 + torch.randperm(options.slots, generator=generator)[:moves]
        real = max(moves // 2, 1)
        targets, sources = slots.clone(), slots.roll(-1)  # a slot is source and target
        targets[real:] = 0
        sources[real:] = 0
        targets, sources = targets.cuda(), sources.cuda()
        contenders = [("sglang", STOCK[name], stock), ("kdtree", POOLS[name].move_kv_cache, ours)]
        for contender, move, pool in contenders[:: 1 if round_ % 2 else -1]:
            result = timed(move, pool, targets, sources)
            if round_ > 0:  # the first compiles
                times[contender].append(result)
    pairs = zip(kv_move.buffers_of(stock), kv_move.buffers_of(ours))
    if not all(torch.equal(theirs, own) for theirs, own in pairs):
        raise SystemExit(f"error: {name}, {moves} moves: the pools differ")
    row = {"pool": name, "layers": options.layers, "moves": moves}
    for contender, results in times.items():
        for field, values in zip(("us", "host_us"), zip(*results)):
            row[f"{contender}_{field}"] = round(statistics.median(values), 1)
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--layers", type=int, default=61)
    parser.add_argument("--moves", type=lambda text: [int(each) for each in text.split(",")],
                        default=[8, 16, 64, 96, 128, 192, 256, 257, 512])
    parser.add_argument("--slots", type=int, default=4096)
    parser.add_argument("--repeat", type=int, default=30)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    kv_move.SGLANG_MOVES = 0  # from where on ours is the faster one is what is measured
    kv_move.install(DefragConfig(kv_move=True))
    hooks.apply_hooks()
    rows = []
    for name in POOLS:
        for moves in options.moves:
            rows.append(measure(name, options, moves))
            print(json.dumps(rows[-1]), flush=True)
    counts = kv_move.move_counts()
    if set(counts) != {"moved"}:
        print(f"error: SGLang itself moved: {counts}", file=sys.stderr)
        return 1
    if options.json:
        options.json.write_text(json.dumps({
            "schema": 1, **made_by(kernels.version()),
            "device": torch.cuda.get_device_name(), "sglang": contract.installed_version(),
            "rows": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
