"""Ctrl-C and SIGTERM: what was generated is kept, exit code 130; the second one kills."""

import json
import signal
import subprocess
import time
import unittest
from pathlib import Path

from cli_support import MODEL, TIMEOUT_S, CliTest, main, needs_model

SIGNALS = (signal.SIGINT, signal.SIGTERM)
STORY = ("--speculative-num-draft-tokens", 4, "--max-tokens", 4000, "Count from one to a million.")


def catches(process: subprocess.Popen, number: int) -> bool:
    status = Path(f"/proc/{process.pid}/status").read_text()
    mask = next(line for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(mask.split()[1], 16) >> (number - 1) & 1)


def wait_until(condition) -> None:
    end = time.monotonic() + TIMEOUT_S
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(0.002)


class BeforeTheAnswer(CliTest):
    def test_while_standard_input_is_awaited(self):
        for number in SIGNALS:
            with self.start("run", stdin=subprocess.PIPE) as process:
                wait_until(lambda: catches(process, number))
                process.send_signal(number)
                self.assertEqual(process.wait(TIMEOUT_S), 130)
                self.assertEqual(process.stdout.read() + process.stderr.read(), b"")

    @needs_model
    def test_while_loading_measuring_or_reading_the_prompt(self):
        prompt = self.write("long.txt", "one two three four " * 1500)
        cache = self.folder / "fresh-cache"
        for delay in (0, 0.05, 0.2, 0.8):
            with self.subTest(delay=delay), \
                    self.start("run", "--model", MODEL, "--prompt-file", prompt,
                               env=self.environment(KDTREE_CACHE=str(cache))) as process:
                wait_until(lambda: catches(process, signal.SIGINT))
                time.sleep(delay)
                process.send_signal(signal.SIGINT)
                self.assertEqual(process.wait(TIMEOUT_S), 130)
                self.assertEqual(process.stdout.read().strip() + process.stderr.read(), b"")


@needs_model
class DuringTheAnswer(CliTest):
    def test_what_was_generated_is_kept(self):
        whole = self.answer(*STORY[:2], "--max-tokens", 40, STORY[-1]).rstrip(b"\n")
        for number in SIGNALS:
            with self.start("run", "--stats-json", "stats.json", *STORY) as process:
                first = process.stdout.read(5)
                process.send_signal(number)
                self.assertEqual(process.wait(TIMEOUT_S), 130)
                text = first + process.stdout.read()
                self.assertEqual(process.stderr.read(), b"")
            self.assertTrue(text.endswith(b"\n"))
            common = min(len(whole), len(text) - 1)
            self.assertEqual(text[:common], whole[:common])
            stats = json.loads((self.folder / "stats.json").read_text())
            self.assertEqual(stats["finish_reason"], "abort")
            self.assertTrue(0 < stats["tokens"] < 4000)

    def test_the_second_one_kills(self):
        # Rounds of the references last long enough for a second signal inside one.
        with self.start("run", "--kernels", "ref", "--raw", "--speculative-algorithm", "none",
                        "--max-tokens", 4000, "Once") as process:
            process.stdout.read(1)
            process.send_signal(signal.SIGINT)
            wait_until(lambda: not catches(process, signal.SIGINT))
            process.send_signal(signal.SIGINT)
            self.assertEqual(process.wait(TIMEOUT_S), -signal.SIGINT)

    def test_bench_writes_nothing(self):
        prompts = self.write("one.jsonl", '{"turns": ["Tell me a story"]}\n')
        for number in SIGNALS:
            for delay in (0, 0.6):
                with self.start("bench", "--prompts", prompts, "--modes", "plain,tree",
                                "--repeat", 1000, "--json", "out.json") as process:
                    wait_until(lambda: catches(process, number))
                    time.sleep(delay)
                    process.send_signal(number)
                    self.assertEqual(process.wait(TIMEOUT_S), 130)
                    self.assertEqual(process.stdout.read() + process.stderr.read(), b"")
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()),
                         ["cache", "one.jsonl"])


if __name__ == "__main__":
    main()
