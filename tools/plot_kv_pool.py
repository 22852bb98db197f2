#!/usr/bin/env python3
"""Plots a report of bench/kv_pool as SVG: how contiguous the KV cache of running sessions is.

    tools/plot_kv_pool.py REPORT.json [OUT.svg] [--page 1] [--evict-batch 0.1] [--concurrency 16]

A row of panels for each load and mode, one line for each tier, with the prefix tree on: mean run
and contiguous tiles by concurrency, at one eviction batch; the same by eviction batch, at one
concurrency. Mean runs and concurrency are on logarithmic axes. OUT defaults to the report's name
with .svg. Needs nothing but Python.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import dataclass
from html import escape
from pathlib import Path

COLORS = {"none": "#7f8c8d", "sorted": "#d68910", "bestfit": "#2471a3",
          "bestfit+extents": "#1e8449", "relocate": "#c0392b"}

PANEL_WIDTH, PANEL_HEIGHT = 260, 200
MARGIN_LEFT, MARGIN_RIGHT, MARGIN_TOP, MARGIN_BOTTOM = 46, 12, 30, 38
HEADER = 64

Series = dict[str, dict[float, float]]  # tier -> where -> value


@dataclass(frozen=True)
class Panel:
    title: str
    by: str  # what the x axis shows
    lines: Series
    shares: bool  # the values are 0 to 1, else tokens


def lines_of(rows: list[dict], by: str, value: str) -> Series:
    found: Series = {}
    for row in rows:
        found.setdefault(row["tier"], {})[row[by]] = row[value]
    return {tier: found[tier] for tier in COLORS if tier in found}


def panels(report: dict, page: int, evict_batch: float, concurrency: int) -> list[list[Panel]]:
    """A list of panels for each load and mode."""
    rows = [row for row in report["rows"] if row["prefix_tree"] and row["page"] == page]
    found = []
    for load, mode in dict.fromkeys((row["load"], row["mode"]) for row in rows):
        these = [row for row in rows if (row["load"], row["mode"]) == (load, mode)]
        cuts = (("concurrency", "evict_batch", evict_batch, f"batch {evict_batch:g}"),
                ("evict_batch", "concurrency", concurrency, f"{concurrency} sessions"))
        line = []
        for by, fixed, at, words in cuts:
            cut = [row for row in these if row[fixed] == at]
            for value, name in (("mean_run", "mean run"), ("contiguous_tiles", "whole tiles")):
                if cut:
                    line.append(Panel(f"{name}: {load}, {mode}, {words}", by,
                                      lines_of(cut, by, value), value != "mean_run"))
        if line:
            found.append(line)
    return found


class Axes:
    """Scales of one panel at (left, top)."""

    def __init__(self, panel: Panel, left: float, top: float):
        self.left, self.right = left + MARGIN_LEFT, left + PANEL_WIDTH - MARGIN_RIGHT
        self.top, self.bottom = top + MARGIN_TOP, top + PANEL_HEIGHT - MARGIN_BOTTOM
        self.log_x, self.log_y = panel.by == "concurrency", not panel.shares
        self.places = sorted({x for line in panel.lines.values() for x in line})
        self.low, self.high = self.scaled(self.places[0]), self.scaled(self.places[-1])
        highest = max(y for line in panel.lines.values() for y in line.values())
        self.decades = max(1, math.ceil(math.log10(max(highest, 1))))

    def scaled(self, x: float) -> float:
        return math.log2(x) if self.log_x else x

    def x(self, place: float) -> float:
        share = (self.scaled(place) - self.low) / max(self.high - self.low, 1e-9)
        return self.left + 10 + share * (self.right - self.left - 20)

    def y(self, value: float) -> float:
        share = math.log10(max(value, 1)) / self.decades if self.log_y else value
        return self.bottom - share * (self.bottom - self.top)

    def ticks(self) -> list[float]:
        if self.log_y:
            return [10.0**power for power in range(self.decades + 1)]
        return [0, 0.25, 0.5, 0.75, 1]


def text(x: float, y: float, words: str, anchor: str = "middle", more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escape(words)}</text>'


def draw(panel: Panel, left: float, top: float) -> list[str]:
    axes = Axes(panel, left, top)
    out = [text((axes.left + axes.right) / 2, top + 18, panel.title, more=' class="title"')]
    for value in axes.ticks():
        y = axes.y(value)
        out.append(f'<line x1="{axes.left}" x2="{axes.right}" y1="{y:.1f}" y2="{y:.1f}" '
                   'class="grid"/>')
        out.append(text(axes.left - 5, y + 3.5, f"{value:g}", "end"))
    for place in axes.places:
        out.append(text(axes.x(place), axes.bottom + 14, f"{place:g}"))
    words = "sessions at once" if panel.by == "concurrency" else "share evicted at once"
    out.append(text((axes.left + axes.right) / 2, axes.bottom + 28, words))
    for tier, line in panel.lines.items():
        points = [(axes.x(x), axes.y(y), x, y) for x, y in sorted(line.items())]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _, _ in points)
        out.append(f'<polyline points="{path}" fill="none" stroke="{COLORS[tier]}" '
                   'stroke-width="1.8"/>')
        out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.6" fill="{COLORS[tier]}">'
                f'<title>{escape(tier)}, {place:g}: {value:.3g}</title></circle>'
                for x, y, place, value in points]
    return out


def plot(report: dict, page: int = 1, evict_batch: float = 0.1, concurrency: int = 16) -> str:
    """The SVG. Raises ValueError if the report has nothing to plot."""
    found = panels(report, page, evict_batch, concurrency)
    if not found:
        raise ValueError(f"no row with the prefix tree on, page {page} and either "
                         f"eviction batch {evict_batch:g} or {concurrency} sessions")
    width = max(len(line) for line in found) * PANEL_WIDTH
    height = HEADER + len(found) * PANEL_HEIGHT
    head = f"KV pool, commit {report['commit']}: contiguity of running sessions, page {page}"
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11">',
        "<style>.title{font-weight:bold;font-size:10px}.grid{stroke:#e3e3e3}</style>",
        f'<rect width="{width}" height="{height}" fill="white"/>',
        text(12, 22, head, "start", ' font-weight="bold" font-size="13"'),
    ]
    x = 12.0
    for tier, color in COLORS.items():
        out.append(f'<rect x="{x}" y="36" width="18" height="4" fill="{color}"/>')
        out.append(text(x + 23, 42, tier, "start"))
        x += 40 + 7 * len(tier)
    for number, line in enumerate(found):
        for column, panel in enumerate(line):
            out += draw(panel, column * PANEL_WIDTH, HEADER + number * PANEL_HEIGHT)
    return "\n".join(out + ["</svg>", ""])


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=Path)
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--page", type=int, default=1)
    parser.add_argument("--evict-batch", type=float, default=0.1)
    parser.add_argument("--concurrency", type=int, default=16)
    options = parser.parse_args(arguments)
    try:
        report = json.loads(options.report.read_text())
        if report.get("schema") != 1:
            raise ValueError(f"schema {report.get('schema')}, 1 is needed")
        svg = plot(report, options.page, options.evict_batch, options.concurrency)
        out = options.out or options.report.with_suffix(".svg")
        if out == options.report:
            raise ValueError(f"{out} is the report itself")
        out.write_text(svg)
    except (OSError, ValueError) as error:
        print(f"error: {options.report}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
