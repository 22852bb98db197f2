#!/usr/bin/env python3
"""Our CPU path beside llama.cpp: same file, same prompts, same threads, runs interleaved.

    compare_llama_cpp.py --model FILE.gguf [--program build/cpu/kdtree] [--threads 2]
                         [--repeat 5] [--json OUT] [--llama-bench PATH]

The peer is the Python package llama-cpp-python where the Python that runs this has it, or a
llama-bench program. What is compared, in milliseconds:
  decode C   one greedy token, mean over 64 after a prompt of C tokens, arg max included
  prefill    512 prompt tokens
  rows T     ours: a whole round that verifies T rows (draft, tree, forward, acceptance, commit),
             mean over 64 rounds around context 256, with an oracle drafter that is always wrong, so
             that every round emits one token; llama.cpp: one decode of a batch of T rows at context
             256 with the logits of all rows, mean over 16
A repetition runs every kind once, ours and theirs right after each other in turning order. The
ratio is theirs by ours (above 1: ours is faster) of the medians; beside it the smallest and largest
ratio of one repetition, and the ratio of the minima, which a busy machine disturbs least.

llama-bench fills the context with tokens of its own and computes the logits of the last row only:
it does less in `rows T` than ours.
"""

import argparse
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

CONTEXTS = (256, 1024)
DECODED_TOKENS = 64
PREFILL_TOKENS = 512
ROWS = (1, 2, 4, 8)
ROWS_CONTEXT = 256
PEER_ROWS_DECODES = 16
N_CTX = 2048

# Each is one token of the usual byte-pair vocabularies, so that a text has as many tokens as words.
WORDS = (
    "the of and to in is that for it was on are as with his they at be this from have or by one "
    "had not but what all were when we there can an your which their said if do will each about "
    "how up out them then she many some so these would other into has more her two like him see "
    "time could no make than first been its who now people my made over did down only way find "
    "use may water long little very after words called just where most know"
).split()


def prompt_text(tokens):
    source = random.Random(7)
    return " ".join(source.choice(WORDS) for _ in range(tokens))


def run(command):
    """Standard output of a command; its own words if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace",
                              check=False)
    except OSError as error:
        raise SystemExit(f"error: cannot run {command[0]}: {error.strerror}") from None
    if done.returncode != 0:
        raise SystemExit(f"error: {' '.join(command)} ended with {done.returncode}:\n"
                         f"{done.stderr.strip()}")
    return done.stdout


class Ours:
    def __init__(self, program, model, threads, folder):
        self.command = [program, "run", "--model", model, "--threads", str(threads), "--raw"]
        self.folder = folder
        self.name = run([program, "--version"]).strip()

    def _run(self, prompt_tokens, max_tokens, *options):
        prompt = self.folder / "prompt.txt"
        prompt.write_text(prompt_text(prompt_tokens), encoding="utf-8")
        stats = self.folder / "stats.json"
        run([*self.command, "--prompt-file", str(prompt), "--max-tokens", str(max_tokens),
             "--stats-json", str(stats), *options])
        return json.loads(stats.read_text(encoding="utf-8"))

    def count_tokens(self, prompt_tokens):
        return self._run(prompt_tokens, 1, "--speculative-algorithm", "none")["prompt_tokens"]

    def decode(self, context):
        stats = self._run(context, DECODED_TOKENS, "--speculative-algorithm", "none")
        return stats["seconds"] / stats["tokens"]

    def prefill(self):
        # The last prompt token is the first round's root: it is not part of the prefill.
        return self._run(PREFILL_TOKENS + 1, 1, "--speculative-algorithm", "none")["prefill_s"]

    def rows(self, rows):
        prompt_tokens = ROWS_CONTEXT - DECODED_TOKENS // 2
        if rows == 1:
            stats = self._run(prompt_tokens, DECODED_TOKENS, "--speculative-algorithm", "none")
            return stats["seconds"] / stats["rounds"]
        # All drafted rows are children of the root: as many rows a round to the last but one.
        profile = self.folder / "wrong.json"
        profile.write_text(json.dumps({"hit": [[1e-9] * (rows - 1)]}), encoding="utf-8")
        stats = self._run(prompt_tokens, DECODED_TOKENS, "--speculative-algorithm", "oracle",
                          "--speculative-draft-model-path", str(profile),
                          "--speculative-num-draft-tokens", str(rows))
        if stats["acceptance_length"] > 1 or stats["mean_nodes"] < 0.95 * rows:
            raise SystemExit(f"error: {rows} rows a round and acceptance length 1 were meant, not "
                             f"{stats['mean_nodes']:.2f} and {stats['acceptance_length']:.2f}")
        return stats["seconds"] / stats["rounds"]


class LlamaPython:
    """llama.cpp inside this process."""

    def __init__(self, model, threads):
        import bench_llama_cpp  # ends the program where llama.cpp is missing
        self.peer = bench_llama_cpp.Peer(model, threads, N_CTX)
        self.name = f"llama-cpp-python {bench_llama_cpp.llama_cpp.__version__}"

    def check_prompt(self, prompt_tokens, ours):
        theirs = len(self.peer.tokenize(prompt_text(prompt_tokens)))
        if ours != theirs:
            raise SystemExit(f"error: the same prompt is {ours} tokens for ours and {theirs} for "
                             "llama.cpp")

    def _fill(self, tokens):
        self.peer.keep(0)
        for begin in range(0, len(tokens), PREFILL_TOKENS):
            self.peer.decode(tokens[begin : begin + PREFILL_TOKENS], begin, all_logits=False)

    def decode(self, context):
        tokens = self.peer.tokenize(prompt_text(context))
        self._fill(tokens[:-1])
        token = tokens[-1]
        begin = time.perf_counter()
        for step in range(DECODED_TOKENS):
            self.peer.decode([token], len(tokens) - 1 + step, all_logits=False)
            token = self.peer.best_token()
        return (time.perf_counter() - begin) / DECODED_TOKENS

    def prefill(self):
        tokens = self.peer.tokenize(prompt_text(PREFILL_TOKENS))[:PREFILL_TOKENS]
        self.peer.keep(0)
        return self.peer.decode(tokens, 0, all_logits=False)

    def rows(self, rows):
        tokens = self.peer.tokenize(prompt_text(ROWS_CONTEXT + rows))
        context = len(tokens) - rows
        self._fill(tokens[:context])
        seconds = []
        for _ in range(PEER_ROWS_DECODES):
            seconds.append(self.peer.decode(tokens[context:], context, all_logits=True))
            self.peer.keep(context)
        return statistics.mean(seconds)


class LlamaBench:
    """A llama-bench program, one process a measurement."""

    def __init__(self, program, model, threads):
        self.command = [program, "-m", model, "-t", str(threads), "-ngl", "0", "-r", "1",
                        "-o", "json"]
        self.name = "llama-bench"

    def check_prompt(self, prompt_tokens, ours):
        if ours != prompt_tokens:
            print(f"note: our prompt of {prompt_tokens} words has {ours} tokens")

    def _seconds(self, *options):
        text = run([*self.command, *options])
        try:
            tests = json.loads(text)
            build = tests[0].get("build_commit", "of unknown build")
            seconds = tests[-1]["avg_ns"] * 1e-9
        except (ValueError, LookupError, TypeError):
            raise SystemExit(f"error: {self.command[0]} printed no results as JSON:\n"
                             f"{text[:300]}") from None
        self.name = f"llama-bench {build}"
        return seconds

    def decode(self, context):
        return self._seconds("-p", "0", "-n", str(DECODED_TOKENS), "-d",
                             str(context)) / DECODED_TOKENS

    def prefill(self):
        return self._seconds("-p", str(PREFILL_TOKENS), "-n", "0")

    def rows(self, rows):
        return self._seconds("-p", str(rows), "-n", "0", "-d", str(ROWS_CONTEXT))


def measure(ours, theirs, repeat):
    """{kind: ([our seconds], [their seconds])}, paired by repetition."""
    kinds = {f"decode {context}": ("decode", context) for context in CONTEXTS}
    kinds |= {"prefill": ("prefill",)}
    kinds |= {f"rows {rows}": ("rows", rows) for rows in ROWS}
    seconds = {kind: ([], []) for kind in kinds}
    for repetition in range(repeat):
        for index, (kind, (what, *arguments)) in enumerate(kinds.items()):
            for side in (0, 1) if (repetition + index) % 2 == 0 else (1, 0):
                seconds[kind][side].append(getattr((ours, theirs)[side], what)(*arguments))
        print(f"repetition {repetition + 1} of {repeat}", file=sys.stderr)
    return seconds


def figures(seconds):
    """Median and extremes, milliseconds."""
    values = {"ms": statistics.median(seconds), "ms_min": min(seconds), "ms_max": max(seconds)}
    return {key: round(value * 1e3, 4) for key, value in values.items()}


def row_of(kind, ours, theirs):
    paired = [their / our for our, their in zip(ours, theirs)]
    return {"kind": kind, "ours": figures(ours), "llama_cpp": figures(theirs),
            "ratio": round(statistics.median(theirs) / statistics.median(ours), 3),
            "ratio_min": round(min(paired), 3), "ratio_max": round(max(paired), 3),
            "ratio_of_minima": round(min(theirs) / min(ours), 3)}


def print_table(rows):
    print(f"{'kind':<14}{'ours ms':>10}{'min':>10}{'llama.cpp ms':>14}{'min':>10}{'ratio':>8}"
          f"{'min..max':>16}{'of minima':>11}")
    for row in rows:
        ours, theirs = row["ours"], row["llama_cpp"]
        spread = f"{row['ratio_min']:.2f}..{row['ratio_max']:.2f}"
        print(f"{row['kind']:<14}{ours['ms']:>10.2f}{ours['ms_min']:>10.2f}{theirs['ms']:>14.2f}"
              f"{theirs['ms_min']:>10.2f}{row['ratio']:>8.2f}{spread:>16}"
              f"{row['ratio_of_minima']:>11.2f}")


def processor_name():
    with open("/proc/cpuinfo", encoding="utf-8") as info:
        for line in info:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return "unknown processor"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", required=True, help="the GGUF file, for both")
    parser.add_argument("--program", default="build/cpu/kdtree", help="default: %(default)s")
    parser.add_argument("--threads", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--repeat", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--llama-bench", metavar="PATH",
                        help="a llama-bench program instead of the Python package")
    parser.add_argument("--json", help="write the figures here")
    args = parser.parse_args()
    if args.repeat < 1 or args.threads < 1:
        parser.error("--repeat and --threads are at least 1")
    if not pathlib.Path(args.model).is_file():
        raise SystemExit(f"error: {args.model} is no file")

    if args.llama_bench:
        theirs = LlamaBench(args.llama_bench, args.model, args.threads)
    else:
        theirs = LlamaPython(args.model, args.threads)
    with tempfile.TemporaryDirectory() as folder:
        ours = Ours(args.program, args.model, args.threads, pathlib.Path(folder))
        for context in CONTEXTS:  # also brings the file into memory
            theirs.check_prompt(context, ours.count_tokens(context))
        load_before = os.getloadavg()[0]
        seconds = measure(ours, theirs, args.repeat)
    load = [round(load_before, 2), round(os.getloadavg()[0], 2)]
    rows = [row_of(kind, *both) for kind, both in seconds.items()]
    print(f"{ours.name} and {theirs.name}, {args.threads} threads, {args.repeat} repetitions, load "
          f"average {load[0]} to {load[1]}\n")
    print_table(rows)
    if args.json:
        result = {"schema": 1, "program": ours.name, "peer": theirs.name,
                  "command": " ".join(sys.argv), "device": processor_name(),
                  "model": pathlib.Path(args.model).name, "threads": args.threads,
                  "repeat": args.repeat, "load_average": load, "rows": rows}
        pathlib.Path(args.json).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
