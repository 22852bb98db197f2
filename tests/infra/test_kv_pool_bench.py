"""bench/kv_pool: results counted by hand, refused traces, equal runs, the report and its plot.

The program's path is in KDTREE_KV_POOL (set by CTest); without it there is nothing to test.
"""

import json
import os
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
sys.dont_write_bytecode = True
import plot_kv_pool  # noqa: E402

PROGRAM = os.environ.get("KDTREE_KV_POOL", "")
SKIPPED = 77
TIERS = ["none", "sorted", "bestfit", "bestfit+extents", "relocate"]
TIMES = {"alloc_us_per_token", "index_us_per_token", "relocate_us_per_round", "seconds"}
FIELDS = ["load", "tier", "mode", "prefix_tree", "evict_batch", "page", "concurrency",
          "pool_tokens", "sessions", "rounds", "sampled_rounds", "warm", "occupancy", "mean_run",
          "runs_per_session", "contiguous_tiles", "free_runs", "hit_rate", "emitted_tokens",
          "allocated_tokens", "evicted_tokens", "retractions", "ignored_events",
          "moved_tokens_per_token", "moved_bytes_per_token", "alloc_us_per_token",
          "index_us_per_token", "relocate_us_per_round", "seconds"]
SMALL = ("--concurrency", 4, "--evict-batch", 0.1, "--pool-fills", 5)


def start(t, name, prompt, output=None):
    event = {"t": t, "id": name, "event": "start", "prompt": prompt}
    return event | ({} if output is None else {"output": output})


def ids(first, count):
    return list(range(first, first + count))


class KvPoolTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def run_program(self, *arguments):
        return subprocess.run([PROGRAM, *map(str, arguments)], cwd=self.folder,
                              capture_output=True, text=True, timeout=100)

    def report(self, *arguments):
        done = self.run_program("--json", "out.json", *arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads((self.folder / "out.json").read_text())

    def replay(self, *events, **changes):
        """The one row of a trace: plain, best fit, page 1, a pool of 64 tokens unless changed."""
        (self.folder / "trace.jsonl").write_text(
            "".join(json.dumps(event) + "\n" for event in events))
        options = {"tiers": "bestfit", "modes": "plain", "page": 1, "evict-batch": 0,
                   "prefix-tree": "on", "concurrency": 2, "pool-tokens": 64} | changes
        flags = [word for name, value in options.items() for word in (f"--{name}", value)]
        (row,) = self.report("--trace", "trace.jsonl", "--check", *flags)["rows"]
        return row


class CountedByHand(KvPoolTest):
    def test_one_session(self):
        # Rows after each round: 9 of the prompt, then 10 to 13, in one run.
        row = self.replay(start(0, "a", ids(1, 10), 4))
        self.assertEqual((row["mean_run"], row["runs_per_session"]), (11, 1))
        self.assertEqual((row["rounds"], row["sampled_rounds"]), (5, 5))
        self.assertAlmostEqual(row["occupancy"], 11 / 64)
        self.assertEqual((row["emitted_tokens"], row["allocated_tokens"]), (4, 13))
        self.assertEqual((row["contiguous_tiles"], row["free_runs"]), (1, 1))

    def test_two_sessions_take_turns(self):
        # 01|23, 01.4|23.5, 01.4.6|23.5.7: 18 slots in 12 runs.
        pair = (start(0, "a", ids(1, 3), 2), start(0, "b", ids(10, 3), 2))
        for tier in ("none", "sorted", "bestfit"):
            self.assertEqual(self.replay(*pair, tiers=tier)["mean_run"], 1.5, tier)
        # 0123|4567 from the start, of which 2, 3 and 4 are needed: 18 slots in 6 runs.
        extents = self.replay(*pair, **{"tiers": "bestfit+extents", "extent": 4})
        self.assertEqual(extents["mean_run"], 3)
        # The same by head-room: a 32nd of 128 for both, 2 for each behind its prompt.
        headroom = {"tiers": "bestfit+extents", "extent": 1, "pool-tokens": 128}
        self.assertEqual(self.replay(*pair, **headroom)["mean_run"], 3)
        self.assertEqual(self.replay(*pair, **headroom, headroom=0)["mean_run"], 1.5)

    def test_tiles(self):
        # 32 rows of each prompt are neighbours, the other 32 of a tile are not.
        pair = (start(0, "a", {"tokens": 33}, 40), start(0, "b", {"tokens": 33}, 40))
        self.assertEqual(self.replay(*pair, **{"pool-tokens": 256})["contiguous_tiles"], 0)
        moved = self.replay(*pair, **{"pool-tokens": 256, "tiers": "relocate", "extent": 1,
                                      "headroom": 0})
        self.assertGreater(moved["contiguous_tiles"], 0.5)
        self.assertGreater(moved["moved_tokens_per_token"], 0)
        self.assertAlmostEqual(moved["moved_bytes_per_token"],
                               moved["moved_tokens_per_token"] * 61 * 1152)
        alone = self.replay(pair[0], **{"pool-tokens": 256})
        self.assertEqual(alone["contiguous_tiles"], 1)

    def test_prefix_hits(self):
        # Counted from the second of three sessions on: 6 and 5 of 10 tokens each.
        events = (start(0, "a", ids(1, 9), 1), start(10, "b", ids(1, 6) + ids(50, 5), 1),
                  start(20, "c", {"shared": ["a", 5], "tokens": 6}, 1))
        self.assertEqual(self.replay(*events)["hit_rate"], 0.55)
        self.assertEqual(self.replay(*events, page=16)["hit_rate"], 0)
        self.assertEqual(self.replay(*events, **{"prefix-tree": "off"})["hit_rate"], 0)

    def test_a_hit_inside_a_page_and_in_an_output(self):
        # a leaves two pages of 16; b finds one and copies 4 rows of the other.
        events = (start(0, "a", {"tokens": 33}, 1),
                  start(9, "b", {"shared": ["a", 20], "tokens": 13}, 1))
        self.assertEqual(self.replay(*events, page=16, **{"pool-tokens": 128})["hit_rate"], 0.625)
        # The output is text too: 9 of the prompt and 4 of it, of 19 tokens.
        events = (start(0, "a", {"tokens": 10}, 4),
                  start(9, "b", {"shared": ["a", 14], "tokens": 6}, 1))
        self.assertAlmostEqual(self.replay(*events)["hit_rate"], 13 / 19)

    def test_the_youngest_makes_room(self):
        row = self.replay(start(0, "a", {"tokens": 33}, 25), start(0, "b", {"tokens": 33}, 25))
        self.assertEqual((row["retractions"], row["emitted_tokens"]), (1, 50))
        self.assertGreater(row["evicted_tokens"], 0)
        # c, behind b in the queue, starts with it and ends the sampling long before it.
        row = self.replay(start(0, "a", {"tokens": 33}, 25), start(0, "b", {"tokens": 33}, 25),
                          start(0, "c", {"tokens": 3}, 1))
        self.assertEqual(row["retractions"], 1)
        self.assertTrue(26 < row["emitted_tokens"] < 35, row["emitted_tokens"])

    def test_trees_accept_several(self):
        row = self.replay(start(0, "a", {"tokens": 9}, 40), modes="tree")
        self.assertEqual(row["emitted_tokens"], 40)
        self.assertTrue(5 < row["rounds"] < 20, row["rounds"])
        # The draws know nothing of the pool.
        pair = (start(0, "a", {"tokens": 9}, 90), start(0, "b", {"tokens": 9}, 90))
        rows = [self.replay(*pair, modes="tree", tiers=tier, **{"pool-tokens": 512})
                for tier in TIERS]
        self.assertEqual(len({row["rounds"] for row in rows}), 1, rows)

    def test_ends_by_event(self):
        def end(kind, t, name="a"):
            return {"t": t, "id": name, "event": kind}

        # Read before round 1, four tokens in rounds 1 to 4.
        for kind in ("finish", "cancel"):
            row = self.replay(start(0, "a", {"tokens": 9}), end(kind, 5))
            self.assertEqual((row["emitted_tokens"], row["ignored_events"]), (4, 0))
        # A finish waits for the first token, a cancel does not.
        last = start(3, "z", {"tokens": 2}, 1)
        row = self.replay(start(0, "a", {"tokens": 9}, 9), end("finish", 0), last)
        self.assertEqual(row["rounds"], 5)
        row = self.replay(start(0, "a", {"tokens": 9}, 9), start(0, "b", {"tokens": 9}, 9),
                          end("cancel", 2, "b"), concurrency=1)
        self.assertEqual(row["rounds"], 10)
        # By itself it ended long ago.
        row = self.replay(start(0, "a", {"tokens": 9}, 1), end("finish", 1e9))
        self.assertEqual((row["ignored_events"], row["emitted_tokens"]), (1, 1))

    def test_time(self):
        events = (start(0, "a", {"tokens": 9}, 1), start(2.5, "b", {"tokens": 9}, 1))
        self.assertEqual(self.replay(*events)["rounds"], 4)
        self.assertEqual(self.replay(*events, **{"rounds-per-t": 100})["rounds"], 252)


class Refused(KvPoolTest):
    def refused(self, line, words, pool_tokens=64, page=1):
        text = line if isinstance(line, (str, bytes)) else json.dumps(line)
        first = json.dumps(start(1, "a", [1, 2], 1))
        content = text if isinstance(text, bytes) else text.encode()
        (self.folder / "bad.jsonl").write_bytes(first.encode() + b"\n\n" + content + b"\n")
        done = self.run_program("--trace", "bad.jsonl", "--concurrency", 2, "--page", page,
                                "--pool-tokens", pool_tokens)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertTrue(done.stderr.startswith("error: bad.jsonl:3: "), done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertIn(words, done.stderr)
        self.assertLess(len(done.stderr), 250)

    def test_lines(self):
        good = start(2, "b", [3], 1)
        for line in ("{", "[]", "7", b"{\"t\": \"\xff\"}", "[" * 100000):
            self.refused(line, "not a JSON object")
        for field in ("t", "id", "event", "prompt"):
            self.refused({key: good[key] for key in good if key != field}, f'no "{field}"')
        self.refused(good | {"more": 1}, 'unknown field "more"')
        self.refused({"t": 2, "id": "a", "event": "finish", "output": 2}, "unknown field")

    def test_values(self):
        good = start(2, "b", [3], 1)
        for t in (-1, "2", None, 1e300, 10**30):
            self.refused(good | {"t": t}, '"t" is ')
        self.refused(good | {"t": 0.5}, "earlier than the line before")
        for name in ("", 1.5, None, ["b"]):
            self.refused(good | {"id": name}, '"id" has ')
        self.refused(good | {"event": "stop"}, '"event" is "stop"')
        for output in (0, -5, 1.5, "9", 10**12, 2**64 - 1, 10**30):
            self.refused(good | {"output": output}, '"output" is ')

    def test_prompts(self):
        for prompt, words in (
                ([], '"prompt" is empty'), ([1, -1], "not a token id"), ([2**31], "not a token id"),
                ([1.5], "not a token id"), ("text", "neither a list"), (None, "neither a list"),
                ({}, 'no "tokens"'), ({"tokens": 0}, "a prompt of 0 tokens"),
                ({"tokens": -1}, '"tokens" is -1'), ({"tokens": 2**63}, '"tokens" is '),
                ({"tokens": 5, "shared": 3}, "not [name, tokens]"),
                ({"tokens": 5, "shared": ["a", -3]}, '"shared" is -3'),
                ({"tokens": 5, "shared": ["a", 3, 4]}, "not [name, tokens]"),
                ({"tokens": 5, "shared": [{"a" * 999: 1}, 3]}, '"shared" has '),
                ({"tokens": 5, "more": 1}, "unknown field"),
                ({"tokens": 64}, "65 tokens with the output, the pool holds 64"),
                ({"tokens": 5, "shared": ["a", 59]}, "65 tokens with the output")):
            self.refused(start(2, "b", prompt, 1), words)
        # Whole pages count.
        self.refused(start(2, "b", {"tokens": 64}, 1), "the pool holds 64", 79, page=16)

    def test_sessions(self):
        self.refused(start(2, "a", [3], 1), 'session "a" has started already')
        self.refused({"t": 2, "id": "b", "event": "finish"}, 'session "b" has not started')
        lines = ({"t": 2, "id": "a", "event": "finish"}, {"t": 2, "id": "a", "event": "cancel"},
                 start(2, "b", {"shared": ["c", 3], "tokens": 1}, 1), start(3, "c", [1], 1))
        for first, second, words in ((*lines[:2], 'session "a" has ended already'),
                                     (*lines[2:], "behind a line that shares it")):
            (self.folder / "bad.jsonl").write_text(
                "\n".join(map(json.dumps, (start(1, "a", [1, 2], 1), first, second))))
            done = self.run_program("--trace", "bad.jsonl")
            self.assertEqual(done.returncode, 1)
            self.assertIn("bad.jsonl:3: ", done.stderr)
            self.assertIn(words, done.stderr)

    def test_files_and_arguments(self):
        (self.folder / "empty.jsonl").write_text("\n")
        for arguments, words in (
                (("--trace", "absent.jsonl"), "cannot read absent.jsonl"),
                (("--trace", "."), "cannot read ."),
                (("--trace", "empty.jsonl"), "no session starts"),
                (("--json", "no/such/folder.json"), "cannot write no/such/folder.json"),
                (("--save-trace", "out.jsonl"), "--save-trace is for one load, not 5"),
                (("--tiers", "best"), "--tiers"), (("--page", "2"), "--page"),
                (("--concurrency", "0"), "--concurrency"), (("--seed", "x"), "--seed")):
            done = self.run_program(*arguments)
            self.assertNotEqual(done.returncode, 0, arguments)
            self.assertIn(words, done.stderr)


class Synthetic(KvPoolTest):
    def same(self, rows):
        return [{key: row[key] for key in row if key not in TIMES | {"load"}} for row in rows]

    def test_report(self):
        report = self.report(*SMALL, "--prefix-tree", "on,off", "--pool-tokens", 16384)
        self.assertEqual(list(report)[:5], ["schema", "commit", "device", "seed", "sampled"])
        self.assertEqual(report["schema"], 1)
        rows = report["rows"]
        self.assertEqual([(row["tier"], row["prefix_tree"]) for row in rows],
                         [(tier, on) for on in (True, False) for tier in TIERS])
        for row in rows:
            self.assertEqual(list(row), FIELDS)
            self.assertEqual((row["mode"], row["page"], row["concurrency"]), ("tree", 1, 4))
            self.assertTrue(0 < row["occupancy"] <= 1 and 0 <= row["contiguous_tiles"] <= 1, row)
            self.assertGreaterEqual(row["mean_run"], 1)
            self.assertEqual(row["evict_batch"], 0.1 if row["prefix_tree"] else 0)
            if row["prefix_tree"] or row["tier"] != "relocate":
                self.assertEqual(row["moved_tokens_per_token"] > 0, row["tier"] == "relocate")
            self.assertTrue(row["warm"])
        self.assertGreater(rows[3]["hit_rate"], 0.1)
        self.assertGreater(rows[3]["mean_run"], 4 * rows[0]["mean_run"])

    def test_equal_runs(self):
        arguments = (*SMALL, "--tiers", "bestfit+extents,relocate")
        saved = self.report(*arguments, "--save-trace", "saved.jsonl")["rows"]
        self.assertEqual(self.same(self.report(*arguments)["rows"]), self.same(saved))
        replayed = self.report(*arguments, "--trace", "saved.jsonl")["rows"]
        self.assertEqual(self.same(replayed), self.same(saved))
        other = self.report(*arguments, "--seed", 1)["rows"]
        self.assertNotEqual(self.same(other), self.same(saved))

    def test_plot(self):
        self.report(*SMALL, "--modes", "plain,tree", "--tiers", "none,relocate")
        path = self.folder / "out.json"
        with redirect_stderr(StringIO()) as said:
            self.assertEqual(plot_kv_pool.main([str(path)]), 0)
            self.assertEqual(plot_kv_pool.main([str(path), "--page", "16"]), 1)
        self.assertIn("no row with the prefix tree on, page 16", said.getvalue())
        root = xml.etree.ElementTree.fromstring(path.with_suffix(".svg").read_text())
        words = [node.text for node in root.iter() if node.tag.endswith("text")]
        self.assertIn("mean run: 0.8-3k, plain, batch 0.1", words)
        lines = [node for node in root.iter() if node.tag.endswith("polyline")]
        self.assertEqual(len(lines), 2 * 2 * 2)  # modes, figures, tiers; not by batch


if __name__ == "__main__":
    if not PROGRAM:
        print("KDTREE_KV_POOL is not set: the benchmarks are not built")
        sys.exit(SKIPPED)
    unittest.main()
