#!/usr/bin/env python3
"""Plots reports of bench/policy as SVG: what rounds cost and what fixed budgets and the policy give.

    tools/plot_policy.py REPORT.json [REPORT.json ...] --out OUT.svg

Two panels a report. Left: milliseconds of the target's forward by its rows, measured, as the cost
table says and with the corrections learnt in the rounds. Right: tokens a second against plain
decoding by budget, with 95 % intervals; the band is the policy. Needs nothing but Python.
"""

from __future__ import annotations

import argparse
import json
import sys
from html import escape
from pathlib import Path

MEASURED, TABLE, CORRECTED, POLICY = "#2471a3", "#d68910", "#1e8449", "#c0392b"
LEGEND = {"measured": MEASURED, "cost table": TABLE, "with corrections": CORRECTED,
          "policy": POLICY}
WIDTH, HEIGHT = 400, 260
LEFT, RIGHT, TOP, BOTTOM = 46, 16, 34, 40
HEADER = 60


class Panel:
    """Linear axes from 0 at (left, top) of the image; collects SVG elements."""

    def __init__(self, left: float, top: float, most_x: float, most_y: float):
        self.left, self.right = left + LEFT, left + WIDTH - RIGHT
        self.top, self.bottom = top + TOP, top + HEIGHT - BOTTOM
        self.most_x, self.most_y = most_x, most_y
        self.out: list[str] = []

    def x(self, value: float) -> float:
        return self.left + value / self.most_x * (self.right - self.left)

    def y(self, value: float) -> float:
        return self.bottom - value / self.most_y * (self.bottom - self.top)

    def text(self, x: float, y: float, words: str, anchor: str = "middle", more: str = "") -> None:
        self.out.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>'
                        f'{escape(words)}</text>')

    def line(self, x1: float, y1: float, x2: float, y2: float, color: str,
             width: float = 1) -> None:
        self.out.append(f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" '
                        f'stroke="{color}" stroke-width="{width}"/>')

    def frame(self, title: str, below: str, places: list[float], step: float) -> None:
        middle = (self.left + self.right) / 2
        self.text(middle, self.top - 10, title, more=' font-weight="bold"')
        self.text(middle, self.bottom + 30, below)
        value = 0.0
        while value <= self.most_y * (1 + 1e-9):
            self.line(self.left, self.y(value), self.right, self.y(value), "#e3e3e3")
            self.text(self.left - 5, self.y(value) + 3.5, f"{value:g}", "end")
            value += step
        for place in places:
            self.text(self.x(place), self.bottom + 14, f"{place:g}")

    def curve(self, points: list[tuple[float, float]], color: str, name: str) -> None:
        path = " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in points)
        self.out.append(f'<polyline points="{path}" fill="none" stroke="{color}" '
                        'stroke-width="1.6"/>')
        self.out += [f'<circle cx="{self.x(x):.1f}" cy="{self.y(y):.1f}" r="2.6" fill="{color}">'
                     f'<title>{escape(name)}, {x:g}: {y:.3g}</title></circle>' for x, y in points]


def round_step(most: float) -> float:
    """A round number of which 4 to 10 make `most`."""
    step = 0.05
    while most / step > 10:
        for factor in (2, 2.5, 2):
            step *= factor
            if most / step <= 10:
                break
    return step


def cost_panel(report: dict, left: float, top: float) -> list[str]:
    rows = report["prediction_fixed"]["rows"]
    curves = {"measured": "measured_ms", "cost table": "table_ms",
              "with corrections": "predicted_ms"}
    most = 1.05 * max(row[key] for row in rows for key in curves.values())
    panel = Panel(left, top, 1.04 * max(row["rows"] for row in rows), most)
    panel.frame(f"{report['profile']}: ms of a forward", "rows", [row["rows"] for row in rows],
                round_step(most))
    for name, key in curves.items():
        panel.curve([(row["rows"], row[key]) for row in rows], LEGEND[name], name)
    return panel.out


def gain_panel(report: dict, left: float, top: float) -> list[str]:
    fixed = [row for row in report["modes"] if row["mode"] != "policy"]
    policy = next(row for row in report["modes"] if row["mode"] == "policy")
    most = 1.1 * max(row["ratio_to_plain"][2] for row in report["modes"])
    panel = Panel(left, top, 1.04 * max(row["budget"] for row in fixed), most)
    value, low, high = policy["ratio_to_plain"]
    panel.frame(f"{report['profile']}: tokens/s by plain decoding's",
                f"budget (the policy takes {policy['mean_rows']:.2f} rows on average)",
                [row["budget"] for row in fixed], round_step(most))
    panel.out.append(f'<rect x="{panel.left}" y="{panel.y(high):.1f}" '
                     f'width="{panel.right - panel.left}" '
                     f'height="{panel.y(low) - panel.y(high):.1f}" fill="{POLICY}" '
                     'fill-opacity="0.25"/>')
    panel.line(panel.left, panel.y(value), panel.right, panel.y(value), POLICY, 1.4)
    for row in fixed:
        _, bottom, top_ = row["ratio_to_plain"]
        x = panel.x(row["budget"])
        panel.line(x, panel.y(bottom), x, panel.y(top_), MEASURED, 1.4)
    panel.curve([(row["budget"], row["ratio_to_plain"][0]) for row in fixed], MEASURED, "budget")
    return panel.out


def plot(reports: list[dict]) -> str:
    width, height = 2 * WIDTH, HEADER + HEIGHT * len(reports)
    first = reports[0]
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="12" y="22" font-weight="bold" font-size="13">{escape(first["device"])}, '
        f'{escape(first["target"])}, {first["threads"]} threads, commit '
        f'{escape(first["commit"])}</text>',
    ]
    x = 12
    for name, color in LEGEND.items():
        out.append(f'<rect x="{x}" y="36" width="18" height="4" fill="{color}"/>')
        out.append(f'<text x="{x + 23}" y="42">{escape(name)}</text>')
        x += 40 + 7 * len(name)
    for number, report in enumerate(reports):
        top = HEADER + number * HEIGHT
        out += cost_panel(report, 0, top) + gain_panel(report, WIDTH, top)
    return "\n".join(out + ["</svg>", ""])


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reports", type=Path, nargs="+", metavar="REPORT.json")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    try:
        reports = [json.loads(path.read_text(encoding="utf-8")) for path in options.reports]
        if any(report.get("schema") != 1 or "modes" not in report for report in reports):
            raise ValueError("not all are reports of bench/policy")
        options.out.write_text(plot(reports), encoding="utf-8")
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
