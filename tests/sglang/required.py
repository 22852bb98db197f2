"""Whether a test script may be skipped. tools/sglang_env.sh names the SGLang that has to be there in
KDTREE_SGLANG_REQUIRED; scripts that are run by hand are skipped where there is none."""

import os
import sys

REQUIRED = os.environ.get("KDTREE_SGLANG_REQUIRED", "")


def absent(reason: str) -> None:
    """Ends a script for want of something: skipped, or failed where SGLang is required."""
    sys.exit(f"error: {reason}" if REQUIRED else _skip(reason))


def no_device() -> None:
    """Ends a script that needs a GPU where there is none."""
    sys.exit(_skip("there is no CUDA device"))


def check_version(found: str) -> None:
    """Ends a script that would test another SGLang than the required one."""
    if REQUIRED and found != REQUIRED:
        sys.exit(f"error: SGLang {REQUIRED} is required, {found} is on the path")


def _skip(reason: str) -> int:
    print(f"skipped: {reason}", file=sys.stderr)
    return 0
