#!/usr/bin/env python3
"""SGLang servers with and without our plugin, side by side: are their texts equal, how fast are they.

    bench/sglang_serve.py [--servers LIST] [--cases LIST] [--layers N] [--runs N] [--model FOLDER]
                          [--logs FOLDER] [--json FILE]

On PYTHONPATH a whole SGLang with its requirements and this package, installed (its entry point is
what a server finds it by); KDTREE_LIBRARY_PATH the folder of our libraries. Without --model a small
MLA model is made (sglang_serve_model.py) whose text is known beforehand.

    plain        Triton attention, no speculation
    stock        Triton attention, trees of n-grams of what was written before (NGRAM), no plugin
    kdtree       the same with kdtree_verify and KDTREE_DEFRAG_SORT=1
    kdtree_move  and KDTREE_KV_MOVE=1 besides
    kdtree_all   with best fit, batched eviction and extents instead of the sort, and the KV move

A server is NAME or NAME-NODES (nodes of a tree, 16). All start at once on one GPU; then they are
asked one at a time. A case is CONTEXTxREQUESTSxTOKENS[@SERVER+SERVER...]: its prompts are sent for
one token (their prefill), for one more (their prefix cached), and --runs times for TOKENS greedy
ones, all requests in one call. step_ms: what a run took longer than one token, by its steps. The
first run writes the text for the first time, a later one finds it among its n-grams. `expected`:
requests whose text is the model's known one; `same`: those whose text is the first server's. Where
a text differs, the two best logits of both servers at the first such token are reported.

The JSON: {"schema": 1, "commit", "kernels", "arguments" (sglang_report.py), "device", "torch",
"sglang", "layers", "rows": [{"server", "context", "requests", "tokens", "run", "seconds",
"prefill_seconds", "first_token_seconds", "tokens_per_s", "verify_steps", "acceptance_length",
"step_ms", "expected", "same"}], "differences": [...], "plugin": {server: what the plugin reports,
null without it}, "error": null, or what ended the run before its end}; it is written then too.
Exit code 1 where a text is not the known one or a server does not start. Switches of the plugin in
the environment do not reach the servers.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import sglang_serve_model as model
from sglang_report import made_by

FIRST_PORT = 30111
START_SECONDS, ANSWER_SECONDS = 150, 120
MAX_REQUESTS, POOL_TOKENS, ROW_TOKENS = 4, 100_000, 70_000
PERIOD, REPEATS = 48, 4  # the cycle that a text ends up in
FILLER = range(4096, model.VOCABULARY)  # tokens of which no cycle is made
SORT = {"KDTREE_DEFRAG_SORT": "1"}
MOVE = {"KDTREE_KV_MOVE": "1"}
SLOTS = {"KDTREE_DEFRAG_BESTFIT": "1", "KDTREE_DEFRAG_EVICT": "0.07", "KDTREE_DEFRAG_EXTENT": "64"}
NO_PLUGIN = {"SGLANG_PLUGINS": "none"}
SWITCHES = ("KDTREE_DEFRAG_", "KDTREE_KV_MOVE", "KDTREE_VERIFY_CHECK", "SGLANG_PLUGINS")

TRITON = ["--attention-backend", "triton"]
OURS = ["--attention-backend", "kdtree_verify", "--speculative-draft-attention-backend", "triton"]
KINDS = {  # whether it speculates, its arguments, its environment
    "plain": (False, TRITON, NO_PLUGIN), "stock": (True, TRITON, NO_PLUGIN),
    "kdtree": (True, OURS, SORT), "kdtree_move": (True, OURS, SORT | MOVE),
    "kdtree_all": (True, OURS, SLOTS | MOVE)}


@dataclass
class Server:
    name: str
    port: int
    process: subprocess.Popen | None = None
    up: bool = False


@dataclass(frozen=True)
class Case:
    context: int
    requests: int
    tokens: int
    servers: tuple[str, ...] = ()  # by name; none: all of them


@dataclass
class Report:
    rows: list[dict] = field(default_factory=list)
    differences: list[dict] = field(default_factory=list)
    plugin: dict[str, dict | None] = field(default_factory=dict)
    error: str | None = None


# ---- servers ------------------------------------------------------------------------------------


def start(server: Server, checkpoint: Path, logs: Path) -> None:
    """Its output goes to a file of its name; its processes are a group of their own."""
    kind, _, nodes = server.name.partition("-")
    speculates, more, environment = KINDS[kind]
    command = [
        sys.executable, "-m", "sglang.launch_server", "--model-path", str(checkpoint),
        "--skip-tokenizer-init", "--dtype", "bfloat16", "--sampling-backend", "pytorch",
        "--grammar-backend", "none", "--page-size", "1", "--random-seed", "1",
        "--max-running-requests", str(MAX_REQUESTS), "--cuda-graph-max-bs-decode",
        str(MAX_REQUESTS), "--mem-fraction-static", "0.5", "--max-total-tokens", str(POOL_TOKENS),
        "--context-length", str(ROW_TOKENS), "--host", "127.0.0.1", "--port", str(server.port),
        *more]
    if speculates:
        command += ["--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens",
                    nodes or "16"]
    with open(logs / f"{server.name}.log", "wb") as log:
        server.process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            env=without_switches(os.environ) | environment)


def without_switches(environment: Mapping[str, str]) -> dict[str, str]:
    """What a server does is said by its name alone."""
    return {name: value for name, value in environment.items()
            if not name.startswith(SWITCHES)}


def wait_until_up(servers: list[Server], logs: Path) -> None:
    """Until each has answered a request of its own or ended."""
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and not all(
            server.up or server.process.poll() is not None for server in servers):
        time.sleep(0.5)
        for server in servers:
            server.up = server.up or b"fired up" in (logs / f"{server.name}.log").read_bytes()


def stop(server: Server) -> None:
    try:
        os.killpg(server.process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    server.process.wait()


def ask(server: Server, path: str, body: dict | None = None) -> dict | list:
    request = urllib.request.Request(
        f"http://127.0.0.1:{server.port}{path}", None if body is None else json.dumps(body).encode(),
        {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as reply:
        return json.loads(reply.read())


def generate(server: Server, prompts: list[list[int]], tokens: int,
             **more) -> tuple[float, list[dict]]:
    """Seconds, and a reply for each prompt."""
    sampling = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
    begin = time.perf_counter()
    replies = ask(server, "/generate",
                  {"input_ids": prompts, "sampling_params": sampling, **more})
    return time.perf_counter() - begin, replies


def warm_up(server: Server) -> None:
    """What is compiled at its first use: SGLang's kernels, with one and with several requests."""
    for requests in (1, MAX_REQUESTS):
        generate(server, [[FILLER[i]] * 300 for i in range(requests)], 40)


# ---- prompts ------------------------------------------------------------------------------------


def prompt_and_text(case: Case, index: int) -> tuple[list[int], list[int]]:
    """Random tokens, among which somewhere a cycle of tokens stands that are nowhere else, REPEATS
    times; the prompt ends with the cycle's first token. What the model then writes: the cycle."""
    generator = random.Random(1000 * case.context + index)
    cycle = list(range(100 + PERIOD * index, 100 + PERIOD * (index + 1)))
    generator.shuffle(cycle)
    filler = [generator.choice(FILLER) for _ in range(case.context - PERIOD * REPEATS - 1)]
    at = generator.randrange(len(filler) // 4, 3 * len(filler) // 4)
    prompt = filler[:at] + cycle * REPEATS + filler[at:] + cycle[:1]
    return prompt, [cycle[(i + 1) % PERIOD] for i in range(case.tokens)]


# ---- measuring ----------------------------------------------------------------------------------


def measure(case: Case, first_index: int, servers: list[Server], runs: int, report: Report) -> None:
    prompts, texts = zip(*(prompt_and_text(case, first_index + i) for i in range(case.requests)))
    reference: list[list[list[int]]] = []  # the first server's texts, by run
    for server in servers:
        prefill_seconds, _ = generate(server, prompts, 1)
        first_token_seconds, _ = generate(server, prompts, 1)
        for run in range(runs):
            seconds, replies = generate(server, prompts, case.tokens)
            written = [reply["output_ids"] for reply in replies]
            if server is servers[0]:
                reference.append(written)
            steps = [reply["meta_info"].get("spec_verify_ct") or case.tokens for reply in replies]
            row = {
                "server": server.name, "context": case.context, "requests": case.requests,
                "tokens": case.tokens, "run": run + 1, "seconds": seconds,
                "prefill_seconds": prefill_seconds, "first_token_seconds": first_token_seconds,
                "tokens_per_s": sum(map(len, written)) / seconds, "verify_steps": steps,
                "acceptance_length": sum(map(len, written)) / sum(steps),
                "step_ms": 1e3 * (seconds - first_token_seconds) / max(steps),
                "expected": sum(map(list.__eq__, written, texts)),
                "same": sum(map(list.__eq__, written, reference[run])),
            }
            report.rows.append(row)
            print(f"{case.context:6} x {case.requests} run {row['run']} {server.name:12}"
                  f"{row['tokens_per_s']:9.1f} tokens/s {row['step_ms']:8.2f} ms a step, "
                  f"{row['acceptance_length']:5.2f} tokens a step, prefill {prefill_seconds:.2f} s, "
                  f"expected {row['expected']}, same {row['same']}", flush=True)
            for index, (here, there) in enumerate(zip(written, reference[run])):
                if here != there:
                    report.differences.append(
                        difference(server, servers[0], prompts[index], here, there)
                        | {"context": case.context, "request": index, "run": run + 1})
                    print("  differs:", report.differences[-1], flush=True)


def difference(server: Server, reference: Server, prompt: list[int], here: list[int],
               there: list[int]) -> dict:
    """The first token that is another, and both servers' two best log-probabilities there. Each is
    asked for that token alone, which is prefill for both, not the step that differed."""
    shorter = min(len(here), len(there))
    at = next((i for i in range(shorter) if here[i] != there[i]), shorter)
    best = {each.name: generate(each, [prompt + there[:at]], 1, return_logprob=True,
                                top_logprobs_num=2)[1][0]["meta_info"]["output_top_logprobs"][0]
            for each in (server, reference)}
    return {"server": server.name, "token": at, "here": here[at:at + 1], "there": there[at:at + 1],
            "best": best}


def of_plugin(server: Server) -> dict | None:
    """Its part of the server's internal state."""
    return ask(server, "/server_info")["internal_states"][0].get("kdtree")


# ---- the program --------------------------------------------------------------------------------


def case_of(text: str) -> Case:
    numbers, _, servers = text.partition("@")
    return Case(*map(int, numbers.split("x")), tuple(servers.split("+")) if servers else ())


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", default="stock,kdtree,plain,kdtree_all")
    parser.add_argument("--cases", default="1024x1x384,16384x1x384,16384x4x384,65536x1x384")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--model-device", default="cuda", help="where the model is made")
    parser.add_argument("--logs", type=Path)
    parser.add_argument("--json", type=Path)
    return parser.parse_args(arguments)


def header(arguments: argparse.Namespace) -> dict:
    import torch
    from kdtree import kernels

    return {"schema": 1, **made_by(kernels.version()),
            "device": torch.cuda.get_device_name(), "torch": torch.__version__,
            "sglang": importlib.metadata.version("sglang"), "layers": arguments.layers}


def run(arguments: argparse.Namespace, folder: Path) -> int:
    logs = arguments.logs or folder
    logs.mkdir(parents=True, exist_ok=True)
    checkpoint = arguments.model or folder / "model"
    if arguments.model is None:
        # In a process of its own: this one shall hold no memory of the device.
        subprocess.run([sys.executable, model.__file__, checkpoint, "--layers",
                        str(arguments.layers), "--device", arguments.model_device], check=True)
    servers = [Server(name, FIRST_PORT + 111 * index)
               for index, name in enumerate(arguments.servers.split(","))]
    report, began = Report(), time.monotonic()
    try:
        for server in servers:
            start(server, checkpoint, logs)
        wait_until_up(servers, logs)
        for server in servers:
            if not server.up:
                tail = (logs / f"{server.name}.log").read_text(errors="replace").splitlines()[-12:]
                print(f"{server.name} did not start:", *tail, sep="\n    ", flush=True)
        up = [server for server in servers if server.up]
        print(f"{len(up)} servers after {time.monotonic() - began:.0f} s", flush=True)
        for server in up:
            warm_up(server)
        first_index = 0
        for case in map(case_of, arguments.cases.split(",")):
            asked = [server for server in up if not case.servers or server.name in case.servers]
            measure(case, first_index, asked, arguments.runs, report)
            first_index += case.requests
        for server in up:
            report.plugin[server.name] = of_plugin(server)
            print(server.name, json.dumps(report.plugin[server.name]), flush=True)
    except Exception as error:
        report.error = repr(error)
        raise
    finally:
        for server in servers:
            if server.process is not None:
                stop(server)
        if arguments.json is not None:
            arguments.json.write_text(
                json.dumps(header(arguments) | vars(report), indent=1) + "\n")
    as_expected = all(row["expected"] == row["requests"] for row in report.rows)
    return int(len(up) < len(servers) or not as_expected)


def main() -> int:
    arguments = parse(sys.argv[1:])
    with tempfile.TemporaryDirectory() as folder:
        return run(arguments, Path(folder))


if __name__ == "__main__":
    sys.exit(main())
