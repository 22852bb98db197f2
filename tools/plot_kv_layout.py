#!/usr/bin/env python3
"""Plots bench/results/kv_layout-<device>.json as SVG: time by that of a whole cache over mean run.

    tools/plot_kv_layout.py REPORT.json [OUT.svg]

A panel for each probe and each attention kernel x format x nodes; a line for each row format or
context x batch. Dots are runs, squares random pages (at their page size), crosses page tables from a
file, named. The grey band is how far "whole" moved between its two measurements. The horizontal
axis is logarithmic. OUT defaults to the report's name with .svg. Needs nothing but Python.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from html import escape
from pathlib import Path

COLORS = ("#c0392b", "#2471a3", "#1e8449", "#d68910", "#8e44ad", "#17a589", "#34495e")
COLUMNS = 3
PANEL_WIDTH, PANEL_HEIGHT = 320, 250
MARGIN_LEFT, MARGIN_RIGHT, MARGIN_TOP, MARGIN_BOTTOM = 48, 12, 28, 34
HEADER = 40
LEGEND_LINE = 13
LAYOUTS = ("whole", "runs", "pages", "table")

Panels = dict[str, dict[str, list[dict]]]  # title -> line -> rows


def context_name(context: int) -> str:
    return f"{context // 1024}k" if context % 1024 == 0 and context else str(context)


def title_of(row: dict) -> str:
    if row["part"] == "probe":
        return {"gather_loads": "probe, 16-byte loads",
                "gather_bulk": "probe, one bulk copy a run"}.get(row["op"], row["op"])
    kind = "MLA" if row["op"] == "attn_verify_mla" else "GQA"
    return f"{kind} {row['kv_dtype']}, {row['heads']}/{row['kv_heads']} heads x {row['nodes']} nodes"


def line_of(row: dict) -> str:
    if row["part"] == "probe":
        planes = f"{row['buffers']} x " if row["buffers"] > 1 else ""
        return f"{planes}{row['row_bytes']} bytes"
    return f"{row['batch']} x {context_name(row['context'])}"


def panels(report: dict) -> Panels:
    """In the report's order."""
    found: Panels = {}
    for row in report["rows"]:
        if row["part"] not in ("probe", "attention") or row["layout"] not in LAYOUTS:
            continue
        found.setdefault(title_of(row), {}).setdefault(line_of(row), []).append(row)
    return {title: lines for title, lines in found.items()
            if any(row["layout"] != "whole" for rows in lines.values() for row in rows)}


def text(x: float, y: float, words: str, anchor: str = "middle", more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escape(words)}</text>'


class Axes:
    """x: log2 of the mean run, "whole" at the right end; y: the ratio."""

    def __init__(self, left: float, top: float, rows: list[dict]):
        self.left, self.right = left + MARGIN_LEFT, left + PANEL_WIDTH - MARGIN_RIGHT
        self.top, self.bottom = top + MARGIN_TOP, top + PANEL_HEIGHT - MARGIN_BOTTOM
        runs = [row["mean_run"] for row in rows if row["layout"] != "whole"]
        self.octaves = max(1.0, math.log2(max(runs)))
        ratios = [row["ratio"] for row in rows]
        self.low, self.high = min(0.95, min(ratios) - 0.01), max(1.1, max(ratios) * 1.03)

    def x(self, mean_run: float) -> float:
        at = math.log2(max(mean_run, 1)) / (self.octaves + 1.5)
        return self.left + 8 + min(at, 1) * (self.right - self.left - 16)

    def x_of(self, row: dict) -> float:
        return self.right - 8 if row["layout"] == "whole" else self.x(row["mean_run"])

    def y(self, ratio: float) -> float:
        return self.bottom - (ratio - self.low) / (self.high - self.low) * (self.bottom - self.top)

    def ticks(self) -> list[float]:
        span = self.high - self.low
        step = next(s for s in (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 1e9) if span / s <= 7)
        first = math.ceil(self.low / step)
        return [step * i for i in range(first, math.floor(self.high / step) + 1)]


def grid(axes: Axes, title: str, rows: list[dict]) -> list[str]:
    out = [text((axes.left + axes.right) / 2, axes.top - 12, title, more=' class="title"')]
    repeats = [abs(row["ratio"] - 1) for row in rows if row["layout"] == "whole"]
    noise = max(repeats, default=0)
    high, low = axes.y(min(1 + noise, axes.high)), axes.y(max(1 - noise, axes.low))
    out.append(f'<rect x="{axes.left}" y="{high:.1f}" width="{axes.right - axes.left}" '
               f'height="{low - high:.1f}" fill="#eeeeee"/>')
    for tick in axes.ticks():
        y = axes.y(tick)
        out.append(f'<line x1="{axes.left}" x2="{axes.right}" y1="{y:.1f}" y2="{y:.1f}" '
                   f'class="{"one" if abs(tick - 1) < 1e-9 else "grid"}"/>')
        out.append(text(axes.left - 5, y + 3.5, f"{tick:.4g}", "end"))
    for octave in range(0, int(axes.octaves) + 1, 2):
        out.append(text(axes.x(2**octave), axes.bottom + 15, str(2**octave)))
    out.append(text(axes.right - 8, axes.bottom + 15, "whole"))
    return out


def mark(axes: Axes, row: dict, color: str, line: str) -> str:
    x, y = axes.x_of(row), axes.y(row["ratio"])
    name = row.get("table") or {"pages": f"pages of {row['page']}"}.get(row["layout"], row["layout"])
    hint = (f"<title>{escape(line)}, {escape(name)}: mean run {row['mean_run']:g}, "
            f"{100 * row['contiguous_tiles']:.0f} % of tiles, {row['us']:g} us, "
            f"ratio {row['ratio']:.3f}</title>")
    if row["layout"] == "pages":
        return (f'<rect x="{x - 3:.1f}" y="{y - 3:.1f}" width="6" height="6" fill="none" '
                f'stroke="{color}">{hint}</rect>')
    if row["layout"] == "table":
        return (f'<path d="M{x - 4:.1f} {y - 4:.1f}l8 8m0 -8l-8 8" stroke="{color}" '
                f'stroke-width="1.6">{hint}</path>' +
                text(x + 6, y - 5, row["table"], "start", ' font-size="9"'))
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.6" fill="{color}">{hint}</circle>'


def panel(title: str, lines: dict[str, list[dict]], left: float, top: float) -> list[str]:
    rows = [row for line in lines.values() for row in line]
    axes = Axes(left, top, rows)
    out = grid(axes, title, rows)
    for index, (line, points) in enumerate(lines.items()):
        color = COLORS[index % len(COLORS)]
        made = sorted((row for row in points if row["layout"] in ("runs", "whole")),
                      key=axes.x_of)
        if any(row["layout"] == "runs" for row in made):
            path = " ".join(f"{axes.x_of(r):.1f},{axes.y(r['ratio']):.1f}" for r in made)
            out.append(f'<polyline points="{path}" fill="none" stroke="{color}" '
                       'stroke-width="1.4"/>')
        out += [mark(axes, row, color, line) for row in points]
        y = axes.top + 10 + LEGEND_LINE * index
        out.append(text(axes.right - 4, y, line, "end", f' fill="{color}"'))
    return out


def plot(report: dict) -> str:
    """The SVG. Raises ValueError if the report has nothing to plot."""
    found = panels(report)
    if not found:
        raise ValueError("no row of a probe or of attention with a layout besides whole")
    columns = min(COLUMNS, len(found))
    width = columns * PANEL_WIDTH
    height = HEADER + -(-len(found) // columns) * PANEL_HEIGHT
    head = (f"{report['device']}, commit {report['commit']}: time by that of a whole cache over "
            "mean run, slots")
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11">',
        "<style>.title{font-weight:bold}.grid{stroke:#e3e3e3}"
        ".one{stroke:#999;stroke-dasharray:4 3}</style>",
        f'<rect width="{width}" height="{height}" fill="white"/>',
        text(12, 22, head, "start", ' class="title" font-size="13"'),
    ]
    for index, (title, lines) in enumerate(found.items()):
        out += panel(title, lines, index % columns * PANEL_WIDTH,
                     HEADER + index // columns * PANEL_HEIGHT)
    return "\n".join(out + ["</svg>", ""])


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=Path)
    parser.add_argument("out", type=Path, nargs="?")
    options = parser.parse_args(arguments)
    try:
        report = json.loads(options.report.read_text())
        if report.get("schema") != 1:
            raise ValueError(f"schema {report.get('schema')}, 1 is needed")
        (options.out or options.report.with_suffix(".svg")).write_text(plot(report))
    except (OSError, ValueError) as error:
        print(f"error: {options.report}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
