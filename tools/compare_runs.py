#!/usr/bin/env python3
"""Compares two runs of `kdtree run`: a table of their figures, and whether their texts are equal.

    tools/compare_runs.py TREE PLAIN

TREE and PLAIN name runs without suffix: NAME.json as --stats-json wrote it, NAME.txt the output.
Exit code 1 if the texts differ.
"""

import json
import sys
from pathlib import Path

ROWS = [
    ("tokens", "tokens", "{:.0f}"),
    ("tokens/s", "tokens_per_s", "{:.1f}"),
    ("acceptance length", "acceptance_length", "{:.2f}"),
    ("rounds", "rounds", "{:.0f}"),
    ("mean tree size", "mean_nodes", "{:.2f}"),
    ("prompt, seconds", "prefill_s", "{:.2f}"),
]


def table(tree: dict, plain: dict) -> str:
    lines = [f"{'':<20}{'draft tree':>12}{'plain':>12}"]
    for label, key, form in ROWS:
        lines.append(f"{label:<20}{form.format(tree[key]):>12}{form.format(plain[key]):>12}")
    return "\n".join(lines)


def first_difference(a: bytes, b: bytes) -> int:
    for offset, (x, y) in enumerate(zip(a, b)):
        if x != y:
            return offset
    return min(len(a), len(b))


def main(arguments: list[str]) -> int:
    if len(arguments) != 2:
        print(__doc__.strip(), file=sys.stderr)
        return 1
    figures, texts = [], []
    for name in arguments:
        try:
            figures.append(json.loads(Path(name + ".json").read_text()))
            texts.append(Path(name + ".txt").read_bytes())
        except (OSError, ValueError) as error:
            print(f"error: {name}: {error}", file=sys.stderr)
            return 1
    try:
        print("\n" + table(*figures) + "\n")
    except KeyError as key:
        print(f"error: the figures of a run lack {key}", file=sys.stderr)
        return 1
    if texts[0] == texts[1]:
        print("texts identical: yes")
        return 0
    print(f"texts identical: no (first difference at byte {first_difference(*texts)})")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
