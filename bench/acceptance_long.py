"""The prototype drafter's acceptance lengths against those by PyTorch: all prompts, greedy and at
temperature 1. Exits with 77 where drafter, sets or target are not there.

The program's path is in KDTREE_ACCEPTANCE (set by CTest), the drafter in KDTREE_PROTOTYPE_DRAFTER and
the evaluation sets in KDTREE_EVAL, or both in the folder `shared` beside the checkout.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

SKIPPED = 77
SHARED = Path(__file__).resolve().parents[2] / "shared"
TARGET = "SmolLM2-135M-Instruct.Q4_1.gguf"
HEAD = "conditional_head_E256.safetensors"
PERCENT = 4


def cache_folder():
    if "KDTREE_CACHE" in os.environ:
        return Path(os.environ["KDTREE_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kdtree"


def with_head(drafter, folder):
    """The drafter's files in `folder`, its residual head named in the config."""
    for file in drafter.iterdir():
        if file.name != "config.json":
            (folder / file.name).symlink_to(file.resolve())
    config = json.loads((drafter / "config.json").read_text())
    config.setdefault("kdtree", {})["residual_head"] = HEAD
    (folder / "config.json").write_text(json.dumps(config))


def main():
    drafter = Path(os.environ.get("KDTREE_PROTOTYPE_DRAFTER", SHARED / "prototype-drafter"))
    sets = Path(os.environ.get("KDTREE_EVAL", SHARED / "eval"))
    for needed in (drafter / "config.json", sets / "gsm8k.jsonl", cache_folder() / TARGET):
        if not needed.exists():
            print(f"skipped: {needed} is not there")
            return SKIPPED
    failed = False
    with tempfile.TemporaryDirectory() as name:
        with_head(drafter, Path(name))
        for temperature in ("0", "1"):
            print(f"temperature {temperature}", flush=True)
            code = subprocess.run([os.environ["KDTREE_ACCEPTANCE"], "--drafter", name, "--eval", sets,
                                   "--temperature", temperature, "--check", str(PERCENT)]).returncode
            failed = failed or code != 0
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
