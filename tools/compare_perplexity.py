#!/usr/bin/env python3
"""kdtree score beside transformers and llama.cpp on the texts of tests/data/score.

    compare_perplexity.py [--program build/cpu/kdtree] [--model smollm2] [--kernels fast|ref]
                          [--tokens N] [--threads N] [--json OUT]

Prints the perplexities and how far the single log-probabilities lie apart. What the two others say
was recorded by make_score_fixtures.py: transformers in float32, llama.cpp with int8 activations.
With --tokens only the first N tokens of each text are scored: the references (--kernels ref) need
0.1 to 0.3 seconds a token.
"""

import argparse
import json
import math
import pathlib
import subprocess

DATA = pathlib.Path(__file__).resolve().parent.parent / "tests/data/score"
PEERS = ("float32", "llama_cpp")


def expected_texts(tokens=None):
    """[{name, ids, float32, llama_cpp}], cut to their first tokens where that is asked for."""
    texts = json.loads((DATA / "expected.json").read_text(encoding="utf-8"))["texts"]
    if tokens is None:
        return texts
    return [{"name": text["name"], "ids": text["ids"][:tokens],
             **{peer: text[peer][:tokens - 1] for peer in PEERS}} for text in texts]


def perplexity(log_probs):
    return math.exp(-math.fsum(log_probs) / len(log_probs))


def distance(ours, theirs):
    """Of two lists of log-probabilities: ratio of the perplexities, and the differences."""
    delta = [a - b for a, b in zip(ours, theirs, strict=True)]
    return {"perplexity_ratio": perplexity(ours) / perplexity(theirs),
            "rms": math.sqrt(math.fsum(d * d for d in delta) / len(delta)),
            "mean": math.fsum(delta) / len(delta),
            "max": max(map(abs, delta))}


def compare(texts, lines):
    """Ours (the output lines of kdtree score) against each peer, and the peers' own distance."""
    ours = [position["logprob"] for line in lines for position in line["positions"]]
    theirs = {peer: [value for text in texts for value in text[peer]] for peer in PEERS}
    return {"positions": len(ours),
            "perplexity": {"ours": perplexity(ours),
                           **{peer: perplexity(theirs[peer]) for peer in PEERS}},
            "ours_against_float32": distance(ours, theirs["float32"]),
            "ours_against_llama_cpp": distance(ours, theirs["llama_cpp"]),
            "llama_cpp_against_float32": distance(theirs["llama_cpp"], theirs["float32"])}


def score(command, texts):
    """The output of kdtree score for the ids of the texts, and what it said at the end."""
    lines = "".join(json.dumps({"ids": text["ids"]}) + "\n" for text in texts)
    done = subprocess.run(command, input=lines, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"error: {' '.join(command)} ended with {done.returncode}:\n"
                         f"{done.stderr.strip()}")
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr.strip()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--program", default="build/cpu/kdtree", help="default: %(default)s")
    parser.add_argument("--model", default="smollm2", help="default: %(default)s")
    parser.add_argument("--kernels", choices=("fast", "ref"), default="fast")
    parser.add_argument("--tokens", type=int, help="first tokens of each text (default: all)")
    parser.add_argument("--threads", type=int, default=2, help="default: %(default)s")
    parser.add_argument("--json", help="write the figures here")
    args = parser.parse_args()
    if args.tokens is not None and args.tokens < 2:
        parser.error("--tokens is at least 2")

    texts = expected_texts(args.tokens)
    lines, said = score([args.program, "score", "--model", args.model, "--kernels", args.kernels,
                         "--threads", str(args.threads)], texts)
    figures = compare(texts, lines)
    print(said)
    for name, value in figures["perplexity"].items():
        print(f"{name:<28}perplexity {value:9.4f}")
    for name in ("ours_against_float32", "ours_against_llama_cpp", "llama_cpp_against_float32"):
        apart = figures[name]
        print(f"{name.replace('_', ' '):<28}perplexity ratio {apart['perplexity_ratio']:.6f}, "
              "log-probabilities: "
              + ", ".join(f"{key} {apart[key]:.6f}" for key in ("rms", "mean", "max")))
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
