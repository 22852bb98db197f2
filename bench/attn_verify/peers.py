#!/usr/bin/env python3
"""Our MLA kernel and the public ones in one run, interleaved: who is faster, and by how much.

    bench/attn_verify/peers.py [--json FILE] [--peers LIST] [--heads LIST --nodes LIST
                               --contexts LIST --batch N] [--repeat N] [--quick] [--list]

Peers (see peer_adapters.py): flashmla (package sgl-flash-mla; causal chain, page size 64),
flashinfer_fa3 and flashinfer_fa2 (flashinfer-python; causal chain, page size 1), sglang_extend (the
Triton kernel of the sglang wheel; tree mask, page size 1). What cannot be imported is named and
skipped. Ours: tree mask, page size 1, shuffled slots, found by the package python/kdtree.

Each contender's layers are captured in a graph that rotates through caches of more than three times
the L2; the graphs are replayed A B C A B C ... and `us` is the median of a layer. ratio: the median
over the rounds of peer's time by ours of the same round (above 1: ours is faster).

--json FILE adds the rows to what attn_verify wrote there (earlier rows of this program are
replaced) and takes the ceilings of the floor from it; a new file has no floors. Rows of this
program have "run": "peers" and "peer": the name, null for ours.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path

CONTEXTS = (4096, 16384, 65536, 131072)
TABLE = [(8, 1), (8, 8), (8, 16), (8, 32), (8, 64), (64, 32)]
WARM_UPS = 2
GRAPH_US = 2000.0  # a graph is at least about this long
SLOW_US = 20000.0  # graphs longer than this are replayed in SLOW_ROUNDS rounds only
SLOW_ROUNDS = 5
REL_L2_LIMIT = 5e-3


def tokens(text: str) -> int:
    text = text.strip().lower()
    return int(text[:-1]) * 1024 if text.endswith("k") else int(text)


def token_list(text: str) -> list[int]:
    return [tokens(part) for part in text.split(",")]


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--peers", help="comma-separated names; default: all")
    parser.add_argument("--heads", type=token_list)
    parser.add_argument("--nodes", type=token_list)
    parser.add_argument("--contexts", type=token_list)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=40)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--list", action="store_true", help="the peers and whether they run here")
    options = parser.parse_args(arguments)
    if options.repeat < 1 or options.batch < 1:
        parser.error("--repeat and --batch are 1 or more")
    return options


def case_keys(options: argparse.Namespace) -> list[tuple[int, int, int, int]]:
    """(heads, nodes, context, batch) of each case."""
    if options.heads or options.nodes or options.contexts or options.batch > 1:
        return [(heads, nodes, context, options.batch)
                for heads in options.heads or [8]
                for nodes in options.nodes or [8]
                for context in options.contexts or [65536]]
    if options.quick:
        return [(8, nodes, context, 1) for nodes in (8, 32) for context in (4096, 65536)]
    keys = [(heads, nodes, context, 1) for heads, nodes in TABLE for context in CONTEXTS]
    return keys + [(8, 8, 16384, 8)]


class Runner:
    """One contender in one case: prepared, checked, captured."""

    def __init__(self, contender, data):
        import torch
        from peer_adapters import expected

        self.contender, self.times = contender, []
        contender.prepare(data)
        contender.run(0)
        torch.cuda.synchronize()
        want = expected(data, contender.expected_slots(data), contender.expected_mask(data))
        got = contender.output().float()
        self.rel_l2 = ((got - want).norm() / want.norm()).item()
        del want, got

        one_us = self._time_us(lambda: contender.run(1))
        rounds = max(1, round(min(GRAPH_US / max(one_us, 1.0), 64.0) / data.pools))
        self.layers = rounds * data.pools
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            for layer in range(self.layers):
                contender.run(layer % data.pools)
        for _ in range(WARM_UPS):
            self.graph.replay()
        self.slow = self._time_us(self.graph.replay) > SLOW_US

    @staticmethod
    def _time_us(launch) -> float:
        import torch

        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        launch()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e3

    def measure(self, round_: int) -> None:
        """One more time, in µs a layer; None in the rounds that a slow one sits out."""
        if self.slow and round_ >= SLOW_ROUNDS:
            self.times.append(None)
        else:
            self.times.append(self._time_us(self.graph.replay) / self.layers)

    def seen(self) -> list[float]:
        return [time for time in self.times if time is not None]


def ratio(peer: Runner, ours: Runner) -> float:
    pairs = zip(peer.times, ours.times)
    return statistics.median(p / o for p, o in pairs if p is not None and o is not None)


def floor_us(case, ceilings: dict | None) -> float | None:
    if not ceilings:
        return None
    return max(case.min_bytes() / ceilings["read_tb_s"] * 1e-6,
               case.flops() / ceilings["bf16_tflop_s"] * 1e-6)


def row_of(runner: Runner, case, ours: Runner | None, arch: str, ceilings: dict | None) -> dict:
    contender, times = runner.contender, runner.seen()
    quartiles = statistics.quantiles(times, n=4) if len(times) > 1 else [times[0]] * 3
    is_ours = contender.name == "kdtree"
    floor = floor_us(case, ceilings)
    return {
        "op": "attn_verify_mla",
        "arch": arch,
        "heads": case.heads,
        "nodes": case.nodes,
        "context": case.context,
        "page": contender.page,
        "kv_dtype": "bf16",
        "batch": case.batch,
        "slots": "shuffled",
        "us": round(statistics.median(times), 3),
        "floor_us": None if floor is None else round(floor, 3),
        "splits": round(contender.splits(), 1) if is_ours else None,
        "rel_l2": float(f"{runner.rel_l2:.3g}") if runner.rel_l2 == runner.rel_l2 else None,
        "mask": contender.mask,
        "min_us": round(min(times), 3),
        "iqr_us": round(quartiles[2] - quartiles[0], 3),
        "layers": runner.layers,
        "rounds": len(times),
        "run": "peers",
        "peer": None if is_ours else contender.name,
        "ratio": None if is_ours or ours is None else round(ratio(runner, ours), 3),
    }


def measure_case(case, contenders: list, repeat: int) -> list[Runner]:
    import torch
    from peer_adapters import Data

    torch.cuda.empty_cache()
    data = Data(case, torch.cuda.get_device_properties(0).L2_cache_size)
    runners = []
    for contender in contenders:
        try:
            runners.append(Runner(contender, data))
        except Exception as error:  # noqa: BLE001  (a peer that fails is named, not fatal)
            if contender.name == "kdtree":
                raise
            text = str(error).strip().splitlines() or [type(error).__name__]
            print(f"  {contender.name}: skipped: {text[0]}", flush=True)
    for round_ in range(repeat if runners else 0):
        # The order turns, so that nobody always follows the same one.
        shift = round_ % len(runners)
        for runner in runners[shift:] + runners[:shift]:
            runner.measure(round_)
    return runners


def print_rows(rows: list[dict]) -> None:
    for row in rows:
        name = row["peer"] or "kdtree"
        floor = f"{row['us'] / row['floor_us']:8.2f}" if row["floor_us"] else f"{'-':>8}"
        by_ours = f"{row['ratio']:8.3f}" if row["ratio"] else f"{'':>8}"
        error = "-" if row["rel_l2"] is None else f"{row['rel_l2']:.1e}"
        wrong = row["rel_l2"] is None or row["rel_l2"] > REL_L2_LIMIT
        print(f"{row['heads']:>3} x {row['nodes']:<4}{row['batch']:>3}{row['context']:>8}  "
              f"{name:<16}{row['mask']:<7}{row['page']:>3}{row['us']:>11.2f}{row['min_us']:>11.2f}"
              f"{row['iqr_us']:>8.2f}{floor}{by_ours}{error:>10}{'  WRONG' if wrong else ''}",
              flush=True)


def load(path: Path | None) -> dict | None:
    """The report to add to; earlier rows of this program are dropped."""
    if path is None or not path.exists():
        return None
    report = json.loads(path.read_text())
    if report.get("schema") != 1:
        raise SystemExit(f"error: {path} has schema {report.get('schema')}, 1 is needed")
    report["rows"] = [row for row in report["rows"] if row.get("run") != "peers"]
    return report


def write(path: Path, report: dict) -> None:
    """A row a line, as attn_verify writes it."""
    head = {key: value for key, value in report.items() if key != "rows"}
    lines = [f' "{key}": {json.dumps(value)},' for key, value in head.items()]
    rows = ",\n".join("  " + json.dumps(row) for row in report["rows"])
    path.write_text("{\n" + "\n".join(lines) + '\n "rows": [\n' + rows + "\n ]\n}\n")


def contenders_here(wanted: str | None) -> list:
    from peer_adapters import Kdtree, all_peers

    known = all_peers()
    if wanted is not None:
        names = [name.strip() for name in wanted.split(",") if name.strip()]
        unknown = set(names) - {peer.name for peer in known}
        if unknown:
            raise SystemExit(f"error: --peers: unknown {', '.join(sorted(unknown))}; known are "
                             f"{', '.join(peer.name for peer in known)}")
        known = [peer for peer in known if peer.name in names]
    here = []
    for contender in [Kdtree(), *known]:
        reason = contender.available()
        print(f"{contender.name:<16}{reason or 'runs here'}", flush=True)
        if reason is None:
            here.append(contender)
    return here


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    keys = case_keys(options)
    try:
        import torch
    except ImportError:
        print("error: torch is needed", file=sys.stderr)
        return 1
    if not torch.cuda.is_available():
        print("error: a CUDA device is needed", file=sys.stderr)
        return 1
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))
    contenders = contenders_here(options.peers)
    if options.list:
        return 0
    if not contenders:
        print("error: there is nothing to measure", file=sys.stderr)
        return 1
    fresh = new_report(contenders)
    report = load(options.json) or fresh
    if fault := of_another_run(report, fresh):
        print(f"error: {options.json}: {fault}", file=sys.stderr)
        return 1
    major, minor = torch.cuda.get_device_capability()
    print(f"\n{'H x T':>7}{'B':>6}{'context':>8}  {'':<16}{'mask':<7}{'pg':>3}{'us':>11}{'min':>11}"
          f"{'iqr':>8}{'x floor':>8}{'ratio':>8}{'rel L2':>10}")
    from peer_adapters import Case

    right = True
    for key in keys:
        case = Case(*key)
        runners = measure_case(case, contenders, options.repeat)
        ours = next((r for r in runners if r.contender.name == "kdtree"), None)
        rows = [row_of(runner, case, ours, f"sm_{major}{minor}a", report.get("ceilings"))
                for runner in runners]
        print_rows(rows)
        right = right and (ours is None or ours.rel_l2 <= REL_L2_LIMIT)
        report["rows"] += rows
        if options.json is not None:
            write(options.json, report)
        for contender in contenders:  # what it holds of this case
            contender.__dict__.pop("data", None)
        del runners, ours
    return 0 if right else 1


def of_another_run(report: dict, fresh: dict) -> str | None:
    """Why rows measured now do not belong into `report`; None: they do."""
    for what in ("commit", "device"):
        if report.get(what) != fresh[what]:
            return f"its {what} is {report.get(what)}, here it is {fresh[what]}"
    return None


def new_report(contenders: list) -> dict:
    import torch

    commit = None
    if any(contender.name == "kdtree" for contender in contenders):
        from kdtree import kernels

        commit = kernels.version().partition("(")[2].rstrip(")")
    return {"schema": 1, "commit": commit, "device": torch.cuda.get_device_name(),
            "ceilings": None, "rows": []}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
