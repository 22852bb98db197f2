#!/usr/bin/env python3
"""Plots a report of bench/sglang_runs.py as SVG: for each set of switches the mean run of slots
(logarithmic) and the share of contiguous 64-token tiles, at one concurrency and page size.

    tools/plot_sglang_runs.py REPORT.json [OUT.svg] [--concurrency 16] [--page-size 1]

OUT defaults to the report's name with .svg. Needs nothing but Python.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from html import escape
from pathlib import Path

LABELS, BAR, GAP, LINE, TOP = 230, 240, 70, 24, 54
MOST_TOKENS = 1024.0
RUN_COLOR, TILE_COLOR = "#2471a3", "#1e8449"


def bar(x: float, y: float, share: float, color: str, text: str) -> str:
    width = max(1.0, BAR * share)
    return (f'<rect x="{x}" y="{y + 4}" width="{width:.1f}" height="{LINE - 8}" fill="{color}"/>'
            f'<text x="{x + width + 5:.1f}" y="{y + 16}">{escape(text)}</text>')


def svg(report: dict, concurrency: int, page_size: int) -> str:
    rows = [row for row in report["rows"]
            if row["concurrency"] == concurrency and row["page_size"] == page_size]
    if not rows:
        sys.exit(f"no rows of {concurrency} requests and page size {page_size}")
    width, height = LABELS + 2 * (BAR + GAP), TOP + LINE * len(rows) + 12
    second = LABELS + BAR + GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="12" y="20" font-size="14">SGLang {escape(report["sglang"])}, {concurrency} '
        f'requests, page {page_size}, prefix tree on, pool full</text>',
        f'<text x="{LABELS}" y="44">mean run, tokens (logarithmic)</text>',
        f'<text x="{second}" y="44">contiguous 64-token tiles</text>',
    ]
    for index, row in enumerate(rows):
        y = TOP + LINE * index
        run, tiles = row["mean_run_tokens"], row["contiguous_tile_share"]
        parts += [
            f'<text x="12" y="{y + 16}">{escape(row["config"])}</text>',
            bar(LABELS, y, math.log(max(run, 1.0)) / math.log(MOST_TOKENS), RUN_COLOR,
                f"{run:.1f}"),
            bar(second, y, tiles, TILE_COLOR, f"{100 * tiles:.0f} %"),
        ]
    return "\n".join([*parts, "</svg>\n"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("report", type=Path)
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--page-size", type=int, default=1)
    arguments = parser.parse_args()
    report = json.loads(arguments.report.read_text())
    out = arguments.out or arguments.report.with_suffix(".svg")
    out.write_text(svg(report, arguments.concurrency, arguments.page_size))
    return 0


if __name__ == "__main__":
    sys.exit(main())
