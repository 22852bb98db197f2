#!/usr/bin/env python3
"""Chat sessions that share a long prefix: time to first token of the first and of the later ones.

    bench/shared_prefix.py [--model FILE] [--threads N] [--sessions N] [--prefix TOKENS]
                           [--page-size N] [--answer TOKENS] [--json FILE]

The sessions have one system message of about --prefix tokens and each its own question. They come
in turn (one is answered before the next comes) and together (all are submitted at once), each with
the prefix cache and without it (--disable-radix-cache), every time in a fresh engine. Answers must
be equal with and without the cache. The library is found as the package python/kdtree does
(KDTREE_LIBRARY_PATH).

The JSON: {"schema": 1, "commit", "device", "threads", "model", "page_size", "rows": [{"arrival":
"in turn" | "together", "radix_cache", "sessions": [{"prompt_tokens", "reused_tokens",
"first_token_s"}], "first_s", "later_s" (median), "ratio" (first by later), "same_answers"}]}.
first_token_s counts from the submission.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))

from kdtree.engine import DraftShape, Engine, version  # noqa: E402

SENTENCES = (
    "You are the assistant of the botanical garden in the old town.",
    "Visitors ask about opening hours, plants, paths and the history of the glass houses.",
    "The large glass house was built in 1873 and holds the palms and the water lilies.",
    "Dogs stay outside, children under twelve come with somebody who looks after them.",
    "The rose garden is at its best in June, the alpine beds already in April.",
)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="default: smollm2")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--sessions", type=int, default=8)
    parser.add_argument("--prefix", type=int, default=2000)
    parser.add_argument("--page-size", type=int, default=1)
    parser.add_argument("--answer", type=int, default=16)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.sessions < 2 or options.prefix < 100 or options.answer < 1:
        parser.error("at least 2 sessions, 100 tokens of prefix and 1 of an answer")
    return options


def prompts_of(engine: Engine, options: argparse.Namespace) -> list[list[int]]:
    """Conversations of one long system message and different questions."""
    system = ""
    number = 0
    while len(engine.tokenize(system)) < options.prefix:
        system += f"Rule {number}. {SENTENCES[number % len(SENTENCES)]} "
        number += 1
    return [engine.apply_chat_template([
        {"role": "system", "content": system},
        {"role": "user", "content": f"What does rule {session * 3 + 1} say?"}])[0]
        for session in range(options.sessions)]


def run(options: argparse.Namespace, together: bool, radix_cache: bool) -> tuple[dict, list]:
    context = options.prefix + 512
    with Engine(options.model, threads=options.threads, context_length=context,
                max_running_requests=options.sessions if together else 1,
                max_total_tokens=options.sessions * context, page_size=options.page_size,
                radix_cache=radix_cache) as engine:
        prompts = prompts_of(engine, options)
        settings = {"max_tokens": options.answer, "ignore_eos": True,
                    "draft_shape": DraftShape.PLAIN}
        begun, first, answers, stats = {}, {}, {}, {}

        def answer(requests: list[int]) -> None:
            open_requests = set(requests)
            while open_requests:
                engine.step()
                now = time.perf_counter()
                for request in list(open_requests):
                    delta = engine.poll(request)
                    answers.setdefault(request, []).extend(delta.ids)
                    if delta.ids:
                        first.setdefault(request, now - begun[request])
                    if delta.finished:
                        stats[request] = delta.stats
                        open_requests.remove(request)

        def submit(prompt: list[int]) -> int:
            now = time.perf_counter()
            request = engine.submit(prompt, **settings)
            begun[request] = now
            return request

        if together:
            order = [submit(prompt) for prompt in prompts]
            answer(order)
        else:
            order = []
            for prompt in prompts:
                order.append(submit(prompt))
                answer(order[-1:])
        threads = engine.info()["threads"]
    later = statistics.median(first[request] for request in order[1:])
    row = {
        "arrival": "together" if together else "in turn",
        "radix_cache": radix_cache,
        "sessions": [{"prompt_tokens": stats[request]["prompt_tokens"],
                      "reused_tokens": stats[request]["reused_tokens"],
                      "first_token_s": first[request]} for request in order],
        "first_s": first[order[0]],
        "later_s": later,
        "ratio": first[order[0]] / later,
        "threads": threads,
    }
    return row, [answers[request] for request in order]


def device() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(": ", 1)[1]
    return "unknown processor"


def main() -> int:
    options = parse()
    rows = []
    for together in (False, True):
        cached, cached_answers = run(options, together, radix_cache=True)
        plain, plain_answers = run(options, together, radix_cache=False)
        for row in (cached, plain):
            row["same_answers"] = cached_answers == plain_answers
            rows.append(row)
            reused = [session["reused_tokens"] for session in row["sessions"]]
            print(f"{row['arrival']:<9} cache {'on ' if row['radix_cache'] else 'off'}  "
                  f"first {row['first_s']:7.3f} s  later {row['later_s']:7.3f} s  "
                  f"ratio {row['ratio']:6.1f}  reused {min(reused[1:])}..{max(reused[1:])}  "
                  f"{'same answers' if row['same_answers'] else 'ANSWERS DIFFER'}", flush=True)
    threads = {row.pop("threads") for row in rows}.pop()
    if options.json:
        model = Path(options.model).name if options.model else "smollm2"
        commit = version().partition("(")[2].rstrip(")")
        options.json.write_text(json.dumps(
            {"schema": 1, "commit": commit, "device": device(), "threads": threads,
             "model": model, "page_size": options.page_size, "rows": rows}, indent=2) + "\n")
    return 0 if all(row["same_answers"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
