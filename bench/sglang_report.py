"""What the JSONs of bench/sglang_*.py say of where they come from."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def made_by(kernels_version: str | None = None) -> dict:
    """{"commit": of this program, with -dirty where the checkout has changes, null where it is in
    none; "kernels": commit of the CUDA library, null where it took no part; "arguments"}.
    `kernels_version`: kdtree.kernels.version()."""
    git = subprocess.run(["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
                         cwd=Path(__file__).resolve().parent, capture_output=True, text=True,
                         check=False)
    return {"commit": git.stdout.strip() or None,
            "kernels": (kernels_version or "").partition("(")[2].rstrip(")") or None,
            "arguments": sys.argv[1:]}
