#!/usr/bin/env python3
"""Writes logit_rules.json: random logits, histories and rules, and the logits that the rules leave,
computed in plain Python from the formulas.

    tools/make_logit_rules_fixtures.py tests/data/core

The formulas, in this order, each operation rounded to float32:
    repetition r: tokens of prompt or answer: logit > 0 ? logit / r : logit * r
    frequency f:  tokens that stand n > 0 times in the answer: logit - f * n
    presence p:   the same tokens: logit - p
    bias b:       logit + b
    min_tokens:   stop tokens get -inf while the answer is shorter
    allowed:      tokens that are not listed get -inf; null: every token is allowed
Numbers are float32 in their shortest decimal form as float64, so reading loses nothing; what JSON
cannot hold is a string ("nan", "inf", "-inf").
"""

import argparse
import json
import math
import pathlib
import random
import struct

SEED = 20411
VOCABULARY = 70  # the last mask word has unused bits
CASES = 60


def f32(value):
    """The nearest float32. Of two float32 operands, +, -, * and / in float64 and then this round
    like the operation in float32 (53 >= 2 * 24 + 2)."""
    if math.isnan(value) or math.isinf(value):
        return value
    try:
        return struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)


def apply_rules(case):
    out = list(case["logits"])
    history = set(case["prompt"]) | set(case["answer"])
    for token in range(len(out)):
        count = case["answer"].count(token)
        if token in history:
            r = case["repetition"]
            out[token] = f32(out[token] / r) if out[token] > 0 else f32(out[token] * r)
        if count > 0:
            out[token] = f32(out[token] - f32(case["frequency"] * count))
            out[token] = f32(out[token] - case["presence"])
    for token, bias in case["bias"]:
        out[token] = f32(out[token] + bias)
    if len(case["answer"]) < case["min_tokens"]:
        for token in case["stop_ids"]:
            out[token] = -math.inf
    if case["allowed"] is not None:
        for token in range(len(out)):
            if token not in case["allowed"]:
                out[token] = -math.inf
    return out


def random_case(rng):
    def tokens(most):
        return [rng.randrange(VOCABULARY) for _ in range(rng.randrange(most + 1))]

    def maybe(value, neutral):
        return f32(value) if rng.random() < 0.7 else neutral

    logits = [f32(rng.gauss(0, 8)) for _ in range(VOCABULARY)]
    for odd in (0.0, -0.0, math.nan, math.inf, -math.inf, 3e38, -3e38, 1e-44):
        if rng.random() < 0.2:
            logits[rng.randrange(VOCABULARY)] = f32(odd)
    phrase = tokens(4)
    case = {
        "logits": logits,
        "prompt": tokens(25),
        "answer": tokens(10) + phrase * rng.randrange(6),
        "repetition": maybe(rng.choice([0.5, 0.9, 1.05, 1.3, 2.0, 100.0]) * rng.uniform(0.9, 1.1), 1.0),
        "frequency": maybe(rng.uniform(-2, 2), 0.0),
        "presence": maybe(rng.uniform(-2, 2), 0.0),
        "min_tokens": rng.choice([0, 0, 5, 12]),
        "stop_ids": sorted(rng.sample(range(VOCABULARY), rng.randrange(4))),
        "bias": [
            [token, f32(rng.choice([rng.uniform(-100, 100), rng.uniform(-1, 1), -math.inf]))]
            for token in rng.sample(range(VOCABULARY), rng.randrange(6))
        ],
        "allowed": None,
    }
    if rng.random() < 0.5:
        case["allowed"] = sorted(rng.sample(range(VOCABULARY), rng.randrange(VOCABULARY + 1)))
    return case


def jsonable(value):
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, list):
        return [jsonable(each) for each in value]
    return value


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    folder = parser.parse_args().folder
    rng = random.Random(SEED)
    lines = []
    for _ in range(CASES):
        case = random_case(rng)
        case["expected"] = apply_rules(case)
        lines.append(json.dumps({key: jsonable(value) for key, value in case.items()}, allow_nan=False))
    folder.mkdir(parents=True, exist_ok=True)
    head = f'{{"seed": {SEED}, "cases": [\n'
    (folder / "logit_rules.json").write_text(head + ",\n".join(lines) + "\n]}\n")


if __name__ == "__main__":
    main()
