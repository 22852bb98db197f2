#!/usr/bin/env python3
"""Makes tests/data/score/expected.json: what outside implementations say of the texts beside it.

    make_score_fixtures.py --model SmolLM2-135M-Instruct.Q4_1.gguf [--out tests/data/score]

Per text of texts.jsonl the token ids and the log-probability of every next token: by transformers
in float32 with the file's dequantised weights, and by llama.cpp on the file itself. Of the shortest
text also the most likely tokens of every position. The versions and the way the two are run are
those of make_logits_fixtures.py (tests/data/models/README.md). Needs its packages.
"""

import argparse
import json
import math
import pathlib

import numpy as np
import torch

import make_logits_fixtures as logits
from llama_cpp_logits import LlamaCpp

TOP = 5


def perplexity(log_probs):
    return math.exp(-math.fsum(log_probs) / len(log_probs))


def tops_of(rows):
    """The best tokens of each position and their log-probabilities, [positions][TOP] each."""
    tops = [(row, np.argsort(-row, kind="stable")[:TOP]) for row in rows]
    return {"ids": [best.tolist() for _, best in tops],
            "log_probs": [logits.rounded(row[best]) for row, best in tops]}


def main():
    here = pathlib.Path(__file__).resolve().parent.parent / "tests/data/score"
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", required=True, help="the GGUF file")
    parser.add_argument("--out", default=str(here), help="folder of texts.jsonl and the result")
    args = parser.parse_args()

    torch.set_num_threads(1)  # spinning helpers of a second thread starve on a busy machine
    lines = (pathlib.Path(args.out) / "texts.jsonl").read_text(encoding="utf-8").splitlines()
    texts = [json.loads(line) for line in lines]
    file = logits.GgufFile(args.model)
    model, llama = logits.load_float32(file), LlamaCpp(args.model)
    encode = logits.make_encoder(file.tokenizer(), llama)
    shortest = min(texts, key=lambda text: len(text["text"]))
    made, float32, llama_cpp = [], [], []
    for text in texts:
        ids = encode(text["text"])
        rows = logits.hf_log_probs(model, ids)
        entry = {"name": text["name"], "ids": ids,
                 "float32": logits.next_log_probs(rows, ids),
                 "llama_cpp": logits.next_log_probs(llama.log_probs(ids), ids)}
        if text is shortest:
            entry["float32_top"] = tops_of(rows[:-1])
        made.append(entry)
        float32 += entry["float32"]
        llama_cpp += entry["llama_cpp"]
    delta = np.array(llama_cpp) - np.array(float32)
    figures = {"positions": len(float32),
               "float32_perplexity": round(perplexity(float32), 4),
               "llama_cpp_perplexity": round(perplexity(llama_cpp), 4),
               "llama_cpp_minus_float32": {"rms": round(float(logits.rms(delta)), 4),
                                           "mean": round(float(delta.mean()), 4),
                                           "max": round(float(np.abs(delta).max()), 4)}}
    logits.write(args.out, "expected.json",
                 {"made": logits.provenance(args.model), **figures, "texts": made})
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
