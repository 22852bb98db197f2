#!/usr/bin/env python3
"""Plots bench/results/attn_verify-<device>.json as SVG: time by floor over context.

    tools/plot_attn_verify.py REPORT.json [OUT.svg] [--kv-dtype bf16] [--batch 1]

One panel for each heads x T that was measured at two contexts or more, one line for our kernel and
one for each peer. Both axes are logarithmic; 1 is the floor max(bytes / read bandwidth, flops /
tensor rate). A peer that is everywhere beyond 25 times the floor is named in the panel instead.
OUT defaults to the report's name with .svg. Needs nothing but Python.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import defaultdict
from html import escape
from pathlib import Path

OURS = "kdtree"
COLORS = {OURS: "#c0392b", "flashmla": "#2471a3", "flashinfer_fa3": "#1e8449",
          "flashinfer_fa2": "#7dcea0", "sglang_extend": "#7f8c8d"}
MORE_COLORS = ("#8e44ad", "#d68910", "#17a589", "#34495e")

COLUMNS = 3
PANEL_WIDTH, PANEL_HEIGHT = 300, 210
MARGIN_LEFT, MARGIN_RIGHT, MARGIN_TOP, MARGIN_BOTTOM = 44, 12, 26, 34
HEADER = 64
HIGHEST = 25.0  # times the floor

Series = dict[str, dict[int, float]]  # name -> context -> time by floor


def panels(report: dict, kv_dtype: str, batch: int) -> dict[tuple, Series]:
    """(op, heads, kv_heads, nodes) -> its lines. Of several rows of one point the first counts,
    and those of the native program before those that were interleaved with peers."""
    rows = sorted(report["rows"], key=lambda row: row.get("run") == "peers")
    found: dict[tuple, Series] = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        if row["kv_dtype"] != kv_dtype or row["batch"] != batch or row.get("forced_splits"):
            continue
        if not row["floor_us"]:
            continue
        key = (row["op"], row["heads"], row.get("kv_heads", 1), row["nodes"])
        line = found[key][row.get("peer") or OURS]
        line.setdefault(row["context"], row["us"] / row["floor_us"])
    wide = {key: lines for key, lines in found.items()
            if max(len(line) for line in lines.values()) > 1}
    return dict(sorted(wide.items(), key=lambda item: (item[0][0] != "attn_verify_mla", item[0])))


def context_name(context: int) -> str:
    return f"{context // 1024}k" if context % 1024 == 0 and context else str(context)


def title_of(key: tuple) -> str:
    op, heads, kv_heads, nodes = key
    if op == "attn_verify_mla":
        return f"MLA, {heads} heads x {nodes} nodes"
    return f"GQA, {heads}/{kv_heads} heads x {nodes} nodes"


class Axes:
    """Log scales of one panel at (left, top)."""

    def __init__(self, left: float, top: float, contexts: list[int], highest: float):
        self.left, self.right = left + MARGIN_LEFT, left + PANEL_WIDTH - MARGIN_RIGHT
        self.top, self.bottom = top + MARGIN_TOP, top + PANEL_HEIGHT - MARGIN_BOTTOM
        low, high = math.log2(max(contexts[0], 1)), math.log2(max(contexts[-1], 1))
        self.low, self.span = low, max(high - low, 1e-9)
        self.highest = highest

    def x(self, context: int) -> float:
        at = (math.log2(max(context, 1)) - self.low) / self.span
        return self.left + 8 + at * (self.right - self.left - 16)

    def y(self, value: float) -> float:
        at = math.log(max(value, 1e-3)) / math.log(self.highest)
        return self.bottom - at * (self.bottom - self.top)


def ticks(highest: float) -> list[int]:
    """1, 2, 5, 10, ... up to the top of the axis."""
    return [tick for tick in (1, 2, 3, 5, 10, 20) if tick <= highest]


def text(x: float, y: float, words: str, anchor: str = "middle", more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escape(words)}</text>'


def panel(key: tuple, lines: Series, left: float, top: float, colors: dict[str, str]) -> list[str]:
    contexts = sorted({context for line in lines.values() for context in line})
    beyond = {name: line for name, line in lines.items() if min(line.values()) > HIGHEST}
    shown = {name: line for name, line in lines.items() if name not in beyond}
    values = [value for line in shown.values() for value in line.values()]
    highest = min(HIGHEST, max([2.0, *(1.15 * value for value in values)]))
    axes = Axes(left, top, contexts, highest)
    clip = f"p{left:.0f}_{top:.0f}"
    out = [f'<clipPath id="{clip}"><rect x="{axes.left}" y="{axes.top}" '
           f'width="{axes.right - axes.left}" height="{axes.bottom - axes.top}"/></clipPath>',
           text((axes.left + axes.right) / 2, top + 16, title_of(key), more=' class="title"')]
    for value in ticks(highest):
        y = axes.y(value)
        kind = "floor" if value == 1 else "grid"
        out.append(f'<line x1="{axes.left}" x2="{axes.right}" y1="{y:.1f}" y2="{y:.1f}" '
                   f'class="{kind}"/>')
        out.append(text(axes.left - 5, y + 3.5, f"{value:g}", "end"))
    for context in contexts:
        out.append(text(axes.x(context), axes.bottom + 15, context_name(context)))
    for index, (name, line) in enumerate(sorted(beyond.items())):
        range_ = f"{name}: {min(line.values()):.0f} to {max(line.values()):.0f}"
        out.append(text(axes.right - 4, axes.top + 10 + 13 * index, range_, "end",
                        f' fill="{colors[name]}"'))
    for name in sorted(shown, key=lambda each: each == OURS):  # ours on top
        points = sorted(shown[name].items())
        color, width = colors[name], 2.4 if name == OURS else 1.4
        path = " ".join(f"{axes.x(c):.1f},{axes.y(v):.1f}" for c, v in points)
        out.append(f'<polyline points="{path}" fill="none" stroke="{color}" '
                   f'stroke-width="{width}" clip-path="url(#{clip})"/>')
        for context, value in points:
            if value > highest:
                continue
            out.append(f'<circle cx="{axes.x(context):.1f}" cy="{axes.y(value):.1f}" r="2.6" '
                       f'fill="{color}"><title>{escape(name)}, {context_name(context)}: '
                       f'{value:.2f} x floor</title></circle>')
    return out


def plot(report: dict, kv_dtype: str = "bf16", batch: int = 1) -> str:
    """The SVG. Raises ValueError if the report has nothing to plot."""
    found = panels(report, kv_dtype, batch)
    if not found:
        raise ValueError(f"no heads x T of {kv_dtype}, batch {batch} has two contexts and a floor")
    names = sorted({name for lines in found.values() for name in lines},
                   key=lambda name: (name != OURS, name))
    spare = iter(MORE_COLORS * 4)
    colors = {name: COLORS.get(name) or next(spare) for name in names}
    columns = min(COLUMNS, len(found))
    width = columns * PANEL_WIDTH
    height = HEADER + -(-len(found) // columns) * PANEL_HEIGHT
    head = (f"{report['device']}, commit {report['commit']}: time by floor over context, "
            f"{kv_dtype} KV, batch {batch}")
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11">',
        "<style>.title{font-weight:bold}.grid{stroke:#e3e3e3}"
        ".floor{stroke:#999;stroke-dasharray:4 3}</style>",
        f'<rect width="{width}" height="{height}" fill="white"/>',
        text(12, 22, head, "start", ' class="title" font-size="13"'),
    ]
    x = 12.0
    for name in names:
        out.append(f'<rect x="{x}" y="36" width="18" height="4" fill="{colors[name]}"/>')
        out.append(text(x + 23, 42, name, "start"))
        x += 40 + 7 * len(name)
    for index, (key, lines) in enumerate(found.items()):
        left = index % columns * PANEL_WIDTH
        top = HEADER + index // columns * PANEL_HEIGHT
        out += panel(key, lines, left, top, colors)
    return "\n".join(out + ["</svg>", ""])


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=Path)
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--kv-dtype", default="bf16")
    parser.add_argument("--batch", type=int, default=1)
    options = parser.parse_args(arguments)
    try:
        report = json.loads(options.report.read_text())
        if report.get("schema") != 1:
            raise ValueError(f"schema {report.get('schema')}, 1 is needed")
        svg = plot(report, options.kv_dtype, options.batch)
        (options.out or options.report.with_suffix(".svg")).write_text(svg)
    except (OSError, ValueError) as error:
        print(f"error: {options.report}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
