#!/usr/bin/env python3
"""A verify step of all layers through our seam in SGLang, against SGLang's own Triton kernels.

    bench/sglang_verify.py [--heads N] [--nodes LIST] [--contexts LIST] [--requests N] [--layers N]
                           [--page-size N] [--repeat N] [--json FILE] [--device cuda|cpu] [--small]

MLA layers (576 and 512 values, bfloat16) with a cache each, the same shuffled pages in all of them.
One process, one run; on PYTHONPATH an SGLang of 0.5.16 or later (its files, not its requirements)
and this package, KDTREE_LIBRARY_PATH our CUDA library.

    kdtree          what KdtreeVerifyBackend does of a step: SGLang's metadata into the kernels'
                    batch, once; the plan, once; attention of every layer. Random trees.
    sglang_extend   extend_attention_fwd with the same tree mask: what stock SGLang runs on CUDA
    sglang_verify   verify_shared_kv_fwd, a causal chain of as many nodes: stock SGLang has it for
                    chains on another vendor's GPU (0.5.18 and later). Up to 16 nodes: it keeps all
                    rows in one tile, and at 32 Triton compiles its two kernels for 48 s

A step is captured in a CUDA graph; the graphs of a case are replayed in turn, --repeat times, or
less often (3 times at least) where that would take longer than 4 s. step_us: the median; layer_us:
that of a graph of the layers alone (kdtree: without the batch and the plan), by their number;
ratio: the median over the rounds of their step by ours of the same round. rel_l2: the first layer
against the plain reference; exit code 1 where it is above 5e-3.

--device cpu --small runs all of it where there is no GPU (reference and interpreted kernels, no
graphs): its times say nothing.

The JSON: {"schema": 1, "commit", "kernels", "arguments" (sglang_report.py), "device", "torch",
"triton", "sglang", "rows": [{"contender", "mask", "heads", "nodes", "context", "requests",
"layers", "page_size", "rounds", "step_us", "min_step_us", "layer_us", "ratio" (null for ours),
"rel_l2"}], "absent": {contender: reason}, "left_out": {contender: [nodes]}}.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "python"), str(HERE / "attn_verify")]
if {"cpu", "--device=cpu"} & set(sys.argv):
    os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported

import torch  # noqa: E402
from kdtree.sglang_ext import verify_reference  # noqa: E402
from kdtree.sglang_ext.verify_call import refuse_call  # noqa: E402
from kdtree.sglang_ext.verify_kernels import KernelAttention  # noqa: E402
from kdtree.sglang_ext.verify_step import StepBuffers  # noqa: E402
from peers import token_list  # noqa: E402
from sglang_files import kernel_module  # noqa: E402
from sglang_report import made_by  # noqa: E402
from sglang_verify_data import CHAIN, LATENT, TREE, Case, Data  # noqa: E402

REL_L2_LIMIT = 5e-3
MIN_ROUNDS = 3
CASE_US = 4e6  # of a case's rounds, about


class Contender:
    """One way to attend; a step is begin() and then layer(i) for each. `mask`: TREE or CHAIN."""

    name = ""
    mask = TREE
    begins_steps = False  # begin() does something
    max_nodes = 128

    def prepare(self, data: Data) -> None:
        self.data = data
        case, device = data.case, data.mask.device
        shape = (case.requests * case.nodes, case.heads, LATENT)
        self.outs = [torch.full(shape, torch.nan, dtype=data.dtype, device=device)
                     for _ in range(case.layers)]
        self.calls = [data.call(i, out, self.mask) for i, out in enumerate(self.outs)]

    def forget(self) -> None:
        """What it holds of a case."""
        for name in ("data", "outs", "calls", "rows", "values", "buffers", "attention"):
            self.__dict__.pop(name, None)

    def begin(self) -> None:
        pass

    def layer(self, layer: int) -> None:
        raise NotImplementedError

    def layers(self) -> None:
        for layer in range(self.data.case.layers):
            self.layer(layer)

    def step(self) -> None:
        self.begin()
        self.layers()


class Kdtree(Contender):
    name = "kdtree"
    begins_steps = True

    def prepare(self, data: Data) -> None:
        super().prepare(data)
        case, device = data.case, data.mask.device
        self.buffers = StepBuffers(case.requests, case.context, device)
        self.attention = (
            KernelAttention(case.requests, case.context, device) if device.type == "cuda"
            else verify_reference.ReferenceAttention())
        refusal = refuse_call(self.calls[0]) or self.attention.refuse(self.calls[0])
        if refusal is not None:
            raise SystemExit(f"error: kdtree_verify refuses: {refusal.value}")

    def begin(self) -> None:
        batch = self.buffers.fill(self.calls[0], self.data.out_cache_loc)
        self.attention.begin_step(batch)

    def layer(self, layer: int) -> None:
        self.attention.attend(self.calls[layer])


class Sglang(Contender):
    """A function of SGLang's with the seam's arguments."""

    def __init__(self, name: str, mask: str, max_nodes: int, module: str, function: str):
        self.name, self.mask, self.max_nodes = name, mask, max_nodes
        self._attend = getattr(kernel_module(module), function)

    def prepare(self, data: Data) -> None:
        super().prepare(data)
        # SGLang hands over the new rows beside the cache.
        self.rows = [cache[data.out_cache_loc] for cache in data.caches]
        self.values = [rows[..., :LATENT].contiguous() for rows in self.rows]

    def layer(self, layer: int) -> None:
        call = self.calls[layer]
        done = self._attend(
            call.q, self.rows[layer], self.values[layer], call.out, call.k_buffer, call.v_buffer,
            call.qo_indptr, call.kv_indptr, call.kv_indices, call.custom_mask, call.causal,
            call.mask_indptr, call.nodes, 1.0, 1.0, sm_scale=call.scale)
        if done is False:
            raise RuntimeError(f"{self.name} refuses this call")


def contenders_here() -> tuple[list[Contender], dict[str, str]]:
    here: list[Contender] = [Kdtree()]
    absent = {}
    for arguments in (("sglang_extend", TREE, 128, "extend_attention", "extend_attention_fwd"),
                      ("sglang_verify", CHAIN, 16, "verify_mla", "verify_shared_kv_fwd")):
        try:
            here.append(Sglang(*arguments))
        except (ImportError, AttributeError) as error:
            absent[arguments[0]] = str(error)
    return here, absent


def fitting(contenders: list[Contender], case: Case) -> list[Contender]:
    return [contender for contender in contenders if case.nodes <= contender.max_nodes]


def drop_unfit(contenders: list[Contender], absent: dict[str, str], cases: list[Case],
               device: str) -> None:
    """Runs a layer of each kind of tree, which compiles it; SGLang's that cannot are absent."""
    for case in cases:
        data = Data(case, device)
        for contender in fitting(contenders, case):
            try:
                contender.prepare(data)
                contender.begin()
                contender.layer(0)
            except Exception as error:  # Triton raises several kinds
                if isinstance(contender, Kdtree):
                    raise
                contenders.remove(contender)
                absent[contender.name] = f"{case.nodes} nodes: {error}"
            contender.forget()


class Timer:
    """Times a function that was called before, on CUDA as a captured graph."""

    def __init__(self, function, device: str):
        self._run, self._cuda = function, device == "cuda"
        if self._cuda:
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                function()
            self._run = self._graph.replay

    def us(self) -> float:
        if not self._cuda:
            begin = time.perf_counter()
            self._run()
            return (time.perf_counter() - begin) * 1e6
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        self._run()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e3


def rel_l2(contender: Contender, data: Data) -> float:
    """Of the first layer, against the plain reference."""
    call = contender.calls[0]
    batch = StepBuffers(data.case.requests, data.case.context, call.q.device).fill(
        call, data.out_cache_loc)
    want = verify_reference.attend(call.q, call.k_buffer, call.v_buffer, batch, scale=call.scale)
    return ((call.out.float() - want).norm() / want.norm()).item()


class Running:
    """A contender's times of a case."""

    def __init__(self, contender: Contender, data: Data, device: str):
        self.contender = contender
        contender.prepare(data)
        contender.begin()
        contender.layer(0)  # compiles; no more, since a step of some takes seconds
        contender.outs[0].fill_(torch.nan)  # what is compared has to come from the graph
        self._step = Timer(contender.step, device)
        self._layers = Timer(contender.layers, device) if contender.begins_steps else None
        self.round_us = self._time()[0] * (2 if contender.begins_steps else 1)
        self.step_us: list[float] = []
        self.layers_us: list[float] = []

    def _time(self) -> tuple[float, float]:
        step_us = self._step.us()
        return step_us, self._layers.us() if self._layers else step_us

    def turn(self) -> None:
        step_us, layers_us = self._time()
        self.step_us.append(step_us)
        self.layers_us.append(layers_us)


def measure(case: Case, contenders: list[Contender], repeat: int, device: str) -> list[dict]:
    data = Data(case, device)
    running = [Running(contender, data, device) for contender in fitting(contenders, case)]
    rounds = int(CASE_US / sum(each.round_us for each in running))
    rounds = min(repeat, max(rounds, MIN_ROUNDS))
    for round_ in range(rounds):
        # The order turns, so that nobody always follows the same one.
        shift = round_ % len(running)
        for each in running[shift:] + running[:shift]:
            each.turn()
    ours, rows = running[0].step_us, []
    for each in running:
        contender = each.contender
        ratio = statistics.median(theirs / own for theirs, own in zip(each.step_us, ours))
        rows.append({
            "contender": contender.name, "mask": contender.mask, **vars(case), "rounds": rounds,
            "step_us": round(statistics.median(each.step_us), 1),
            "min_step_us": round(min(each.step_us), 1),
            "layer_us": round(statistics.median(each.layers_us) / case.layers, 2),
            "ratio": None if contender.name == "kdtree" else round(ratio, 3),
            "rel_l2": float(f"{rel_l2(contender, data):.3g}"),
        })
    for contender in contenders:
        contender.forget()
    return rows


def print_rows(rows: list[dict]) -> bool:
    """Whether all are right."""
    right = True
    for row in rows:
        wrong = not row["rel_l2"] <= REL_L2_LIMIT
        right = right and not wrong
        ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f}"
        print(f"{row['nodes']:>4}{row['context']:>8}  {row['contender']:<15}{row['mask']:<7}"
              f"{row['layer_us']:>11.2f}{row['step_us']:>12.1f}{row['min_step_us']:>12.1f}"
              f"{ratio:>8}{row['rel_l2']:>10.1e}{'  WRONG' if wrong else ''}", flush=True)
    return right


def header(device: str) -> dict:
    version = None
    if device == "cuda":
        from kdtree import kernels

        version = kernels.version()
    versions = {}
    for name in ("torch", "triton", "sglang"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    return {"schema": 1, **made_by(version),
            "device": torch.cuda.get_device_name() if device == "cuda" else "cpu", **versions,
            "rows": [], "absent": {}}


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--nodes", type=token_list, default=[8, 16, 32, 64])
    parser.add_argument("--contexts", type=token_list, default=[4096, 16384, 65536, 131072])
    parser.add_argument("--requests", type=int, default=1)
    parser.add_argument("--layers", type=int, default=61)
    parser.add_argument("--page-size", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=20)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true", help="two layers of two small cases")
    options = parser.parse_args(arguments)
    if min(options.heads, options.requests, options.layers, options.repeat,
           options.page_size) < 1:
        parser.error("numbers are 1 or more")
    if options.small:
        options.nodes, options.contexts = [3, 8], [40]
        options.heads, options.layers, options.repeat = 2, 2, 2
    return options


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        print("error: a CUDA device is needed, or --device cpu --small", file=sys.stderr)
        return 1
    base = Case(heads=options.heads, nodes=0, context=0, requests=options.requests,
                layers=options.layers, page_size=options.page_size)
    contenders, absent = contenders_here()
    drop_unfit(contenders, absent, [replace(base, nodes=nodes, context=64, layers=1)
                                    for nodes in options.nodes], options.device)
    report = {**header(options.device), "absent": absent, "left_out": {
        each.name: nodes for each in contenders
        if (nodes := [n for n in options.nodes if n > each.max_nodes])}}
    for name, reason in absent.items():
        print(f"{name}: not here: {reason}")
    print(f"{'T':>4}{'context':>8}  {'':<15}{'mask':<7}{'us a layer':>11}{'us a step':>12}"
          f"{'min':>12}{'ratio':>8}{'rel L2':>10}")
    right = True
    for nodes in options.nodes:
        for context in options.contexts:
            rows = measure(replace(base, nodes=nodes, context=context), contenders, options.repeat,
                           options.device)
            right = print_rows(rows) and right
            report["rows"] += rows
            if options.json is not None:
                options.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
