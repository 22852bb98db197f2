#!/usr/bin/env python3
"""From the start of the process to the first token, with a warm and with an empty cache folder.

    bench/startup.py [--build build/cpu] [--model smollm2] [--threads 2] [--repeat 20] [--cold 3]
                     [--json OUT]

Runs `kdtree run` on a prompt of 16 tokens until its first byte of text, and bench/load, which says
what the parts of loading take. Warm: the cost table is in the cache folder and the model in the
operating system's page cache, both by a first run that does not count; the two programs take turns;
medians. Cold: an empty cache folder, so that the cost table is measured first; the page cache is
left as it is. Times are wall clock.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import tempfile
import time

# One token each of the usual byte-pair vocabularies.
PROMPT = "the of and to in is that for it was on are as with his they"
PROMPT_TOKENS = 16


def environment(cache):
    return os.environ | ({"KDTREE_CACHE": str(cache)} if cache else {})


def first_token(program, options, folder, cache=None):
    """{"first_token_s", "exit_s", "prefill_s", "seconds" of the first round, "notices"}"""
    stats = folder / "stats.json"
    command = [str(program), "run", *options, "--raw", "--prompt", PROMPT, "--max-tokens", "1",
               "--stats-json", str(stats)]
    begin = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          env=environment(cache)) as process:
        process.stdout.read(1)
        first = time.perf_counter() - begin
        process.stdout.read()
        notices = process.stderr.read().decode(errors="replace")
    end = time.perf_counter() - begin
    if process.returncode != 0:
        raise SystemExit(f"error: {' '.join(command)} ended with {process.returncode}:\n{notices}")
    found = json.loads(stats.read_text(encoding="utf-8"))
    if found["prompt_tokens"] != PROMPT_TOKENS:
        raise SystemExit(f"error: the prompt has {found['prompt_tokens']} tokens for this model, "
                         f"not {PROMPT_TOKENS}")
    return {"first_token_s": first, "exit_s": end, "prefill_s": found["prefill_s"],
            "first_round_s": found["seconds"], "notices": notices.strip()}


def loading(program, options, cache=None):
    """Seconds of the parts, by bench/load."""
    done = subprocess.run([str(program), *options], capture_output=True, text=True, check=False,
                          env=environment(cache))
    if done.returncode != 0:
        raise SystemExit(f"error: {program} ended with {done.returncode}:\n{done.stderr}")
    return json.loads(done.stdout)


def medians(runs):
    """{name: [median, smallest, largest]} of dictionaries with the same numbers."""
    return {name: [statistics.median(run[name] for run in runs), min(run[name] for run in runs),
                   max(run[name] for run in runs)] for name in runs[0]}


def without_notices(runs):
    return [{name: value for name, value in run.items() if name != "notices"} for run in runs]


def print_table(title, figures):
    print(f"\n{title}\n{'':<16}{'median ms':>11}{'min':>9}{'max':>9}")
    for name, (middle, low, high) in figures.items():
        print(f"{name:<16}{middle * 1e3:>11.1f}{low * 1e3:>9.1f}{high * 1e3:>9.1f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", type=pathlib.Path, default="build/cpu",
                        help="the build folder, default: %(default)s")
    parser.add_argument("--model", default="smollm2", help="default: %(default)s")
    parser.add_argument("--threads", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--repeat", type=int, default=20, help="warm runs, default: %(default)s")
    parser.add_argument("--cold", type=int, default=3, help="cold runs, default: %(default)s")
    parser.add_argument("--json", help="write the figures here")
    args = parser.parse_args()
    if args.repeat < 1 or args.cold < 0 or args.threads < 1:
        parser.error("--repeat and --threads are at least 1, --cold at least 0")

    program, load = args.build / "kdtree", args.build / "bench" / "load"
    options = ["--model", args.model, "--threads", str(args.threads)]
    begin_load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        first_token(program, options, folder)
        header = loading(load, options)
        runs, parts = [], []
        for _ in range(args.repeat):
            runs.append(first_token(program, options, folder))
            parts.append(loading(load, options)["seconds"])
        # A name is looked up in the cache folder, which is another one in the cold runs.
        options[1] = str(model_file(args.model))
        cold = []
        for run in range(args.cold):
            cache = folder / f"cache-{run}"
            cold.append(first_token(program, options, folder, cache))

    result = {key: header[key] for key in ("schema", "commit", "device", "target", "threads")}
    result |= {"model": args.model, "repeat": args.repeat,
               "load_average": [round(begin_load, 2), round(os.getloadavg()[0], 2)],
               "warm": medians(without_notices(runs)), "parts": medians(parts)}
    print(f"{result['device']}, {result['target']}, {args.threads} threads, {args.repeat} warm runs, "
          f"load average {result['load_average'][0]} to {result['load_average'][1]}")
    print_table("kdtree run, warm", result["warm"])
    print_table("the parts of loading, and an engine", result["parts"])
    if cold:
        result["cold"] = medians(without_notices(cold)) | {"notices": cold[0]["notices"]}
        print_table("kdtree run, empty cache folder", medians(without_notices(cold)))
        print(f"standard error: {cold[0]['notices']}")
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def model_file(name):
    """Where `kdtree fetch` keeps a model of this name; a path is one already."""
    if name != "smollm2":
        return pathlib.Path(name)
    cache = os.environ.get("KDTREE_CACHE")
    if not cache:
        base = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
        cache = pathlib.Path(base) / "kdtree"
    return pathlib.Path(cache) / "SmolLM2-135M-Instruct.Q4_1.gguf"


if __name__ == "__main__":
    main()
