#!/usr/bin/env python3
"""Answers one prompt, streaming, from Python.

    PYTHONPATH=python KDTREE_LIBRARY_PATH=build/cpu examples/generate_from_python.py [MODEL] PROMPT

Without a model: smollm2, which ./quickstart fetches. The prompt goes through the model's chat
template. Exit code 1 if a call fails.
"""

import sys

from kdtree.engine import Engine, EngineError


def main(arguments: list[str]) -> int:
    if len(arguments) not in (1, 2):
        print(f"usage: {sys.argv[0]} [MODEL] PROMPT", file=sys.stderr)
        return 2
    try:
        with Engine(arguments[0] if len(arguments) == 2 else None) as engine:
            ids, _ = engine.apply_chat_template([{"role": "user", "content": arguments[-1]}])
            for delta in engine.stream(ids, max_tokens=32):
                print(delta.text, end="", flush=True)
            stats = engine.stats()
            print(f"\n{stats['tokens']} tokens in {stats['rounds']} rounds")
    except EngineError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
