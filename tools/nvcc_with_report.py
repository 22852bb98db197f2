#!/usr/bin/env python3
"""Compiler launcher for nvcc: runs the command and keeps what `ptxas -v` says as OBJECT.ptxas.

Ninja shows a compiler's output once, when it runs; the report has to outlive that. Everything else
that nvcc says is passed on.
"""

import subprocess
import sys
from pathlib import Path


def is_report(line: str) -> bool:
    # Besides ptxas's own lines, the indented line with the stack frame and the spills.
    return line.startswith("ptxas info") or " bytes stack frame, " in line


def main(command: list[str]) -> int:
    result = subprocess.run(
        command, stderr=subprocess.PIPE, text=True, errors="replace", check=False
    )
    lines = result.stderr.splitlines(keepends=True)
    sys.stderr.writelines(line for line in lines if not is_report(line))
    if result.returncode == 0 and "-c" in command and "-o" in command:
        output = command[command.index("-o") + 1]
        Path(output + ".ptxas").write_text("".join(line for line in lines if is_report(line)))
    return result.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
