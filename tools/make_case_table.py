#!/usr/bin/env python3
"""Writes src/formats/jinja_case_table.cpp: the case mappings that Python's str.upper, lower and title use.

    tools/make_case_table.py src/formats/jinja_case_table.cpp
"""

import sys
import unicodedata


def scalar_values():
    return [c for c in range(0x80, 0x110000) if not 0xD800 <= c < 0xE000]


def runs(pairs):
    """Of (code point, value): [first, last, distance, value] where neighbours have one distance and value."""
    out = []
    for point, value in pairs:
        if out:
            first, last, distance, other = out[-1]
            step = point - last
            if other == value and (step == distance if last != first else step in (1, 2)):
                out[-1] = [first, point, step, value]
                continue
        out.append([point, point, 1, value])
    return out


def mapped(name):
    """Runs of single mappings, and those to several characters."""
    single, several = [], []
    for point in scalar_values():
        result = getattr(chr(point), name)()
        if result == chr(point):
            continue
        if len(result) == 1:
            single.append((point, ord(result) - point))
        else:
            several.append((point, "".join(f"\\U{ord(c):08X}" for c in result)))
    return runs(single), several


def rows(items, width=100):
    line = "   "
    for item in items:
        if len(line) + len(item) + 2 > width:
            yield line
            line = "   "
        line += f" {item},"
    yield line


def main():
    cased = [(c, 0) for c in scalar_values() if chr(c).islower() or chr(c).isupper() or chr(c).istitle()]
    lines = [f"// Written by tools/make_case_table.py from Python's tables, Unicode {unicodedata.unidata_version}.",
             '#include "formats/jinja_case.h"', "", "namespace kd::jinja {", "", "namespace {", "", "// clang-format off", ""]
    for name in ("upper", "lower", "title"):
        single, several = mapped(name)
        lines.append(f"constexpr CaseRun k{name.capitalize()}Runs[] = {{")
        lines += rows(f"{{0x{a:X}, 0x{b:X}, {d}, {v}}}" for a, b, d, v in single)
        lines += ["};", "", f"constexpr CaseText k{name.capitalize()}Texts[] = {{"]
        lines += rows(f'{{0x{c:X}, "{t}"}}' for c, t in several)
        lines += ["};", ""]
    cased = runs(cased)
    lines.append("constexpr CaseRun kCasedRuns[] = {")
    lines += rows(f"{{0x{a:X}, 0x{b:X}, {d}, {v}}}" for a, b, d, v in cased)
    lines += ["};", "", "}  // namespace", ""]
    lines += [f"const CaseTable k{name}Case{{k{name}Runs, k{name}Texts}};" for name in ("Upper", "Lower", "Title")]
    lines += ["const CaseTable kCased{kCasedRuns, {}};", "", "}  // namespace kd::jinja", ""]
    open(sys.argv[1], "w", encoding="ascii", newline="\n").write("\n".join(lines))


if __name__ == "__main__":
    main()
