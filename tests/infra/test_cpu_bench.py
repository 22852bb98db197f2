"""bench/forward, policy, sessions and load on a tiny model: their reports, the plot, their errors.

The folder of the programs is in KDTREE_BENCH_FOLDER, the model in KDTREE_TINY_MODEL (set by CTest);
without them there is nothing to test. No test looks at how long anything took.
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

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
sys.dont_write_bytecode = True
import plot_policy  # noqa: E402

FOLDER = os.environ.get("KDTREE_BENCH_FOLDER", "")
MODEL = os.environ.get("KDTREE_TINY_MODEL", "")
SKIPPED = 77
SMALL = ("--context", 20, "--tokens", 12, "--seconds", 0)


class CpuBenchTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.profile = ROOT / "bench" / "profiles" / "good.json"

    def run_program(self, name, *arguments):
        environment = os.environ | {"KDTREE_CACHE": str(self.folder / "cache")}
        return subprocess.run([Path(FOLDER) / name, "--model", MODEL, *map(str, arguments)],
                              cwd=self.folder, capture_output=True, text=True, timeout=100,
                              env=environment)

    def report(self, name, *arguments):
        done = self.run_program(name, "--json", "out.json", *arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        report = json.loads((self.folder / "out.json").read_text())
        self.assertEqual(report["schema"], 1)
        self.assertIn("--json out.json", report["command"])
        for key in ("commit", "device", "target"):
            self.assertTrue(report[key])
        return report

    def test_forward(self):
        report = self.report("forward", "--rows", "4,9", "--contexts", "0,30", "--seconds", 0)
        self.assertEqual([(row["context"], row["rows"]) for row in report["rows"]],
                         [(0, 1), (0, 4), (0, 9), (30, 1), (30, 4), (30, 9)])
        for row in report["rows"]:
            self.assertGreater(row["ms"], 0)
            self.assertLessEqual(row["ms_min"], row["ms"])
            value, low, high = row["ratio"]
            self.assertTrue(low <= value <= high)
        self.assertEqual(report["rows"][0]["ratio"], [1, 1, 1])

    def test_policy_and_its_plot(self):
        report = self.report("policy", "--profile", self.profile, "--budgets", "3,8", *SMALL)
        self.assertEqual(report["profile"], "good")
        self.assertGreaterEqual(report["prompts"], 2)
        modes = {(row["mode"], row["budget"]): row for row in report["modes"]}
        self.assertEqual(list(modes), [("plain", 1), ("tree", 3), ("tree", 8), ("policy", 0)])
        plain, three = modes["plain", 1], modes["tree", 3]
        for key in ("mean_rows", "acceptance_length", "expected_length"):
            self.assertEqual(plain[key], 1)
        self.assertEqual(plain["ratio_to_plain"], [1, 1, 1])
        # A root, and the two likeliest nodes: 1 + 0.85 + 0.85 * 0.83, less at an answer's end.
        self.assertLessEqual(three["mean_rows"], 3)
        self.assertLessEqual(three["expected_length"], 2.5555 + 1e-9)
        self.assertGreater(three["expected_length"], 2)
        self.assertIn(report["best_fixed_budget"], (1, 3, 8))

        path = self.folder / "policy.svg"
        self.assertEqual(plot_policy.main([str(self.folder / "out.json"), "--out", str(path)]),
                         0 if report["prediction_fixed"] else 1)

    def test_plot_of_a_known_report(self):
        mode = {"mode": "plain", "budget": 1, "mean_rows": 1, "ratio_to_plain": [1, 1, 1]}
        report = {"schema": 1, "commit": "c", "device": "<d>", "target": "t", "threads": 2,
                  "profile": "p",
                  "modes": [mode, {"mode": "tree", "budget": 4, "mean_rows": 3.9,
                                   "ratio_to_plain": [1.5, 1.4, 1.6]},
                            {"mode": "policy", "budget": 0, "mean_rows": 3,
                             "ratio_to_plain": [1.6, 1.5, 1.7]}],
                  "prediction_fixed": {"rows": [
                      {"rows": 1, "measured_ms": 6, "table_ms": 5, "predicted_ms": 6},
                      {"rows": 4, "measured_ms": 8, "table_ms": 7, "predicted_ms": 8}]}}
        source, out = self.folder / "report.json", self.folder / "plot.svg"
        source.write_text(json.dumps(report))
        self.assertEqual(plot_policy.main([str(source), "--out", str(out)]), 0)
        root = xml.etree.ElementTree.parse(out).getroot()
        points = [each for each in root.iter() if each.tag.endswith("circle")]
        self.assertEqual(len(points), 3 * 2 + 2)
        source.write_text("{}")
        with redirect_stderr(StringIO()):
            self.assertEqual(plot_policy.main([str(source), "--out", str(out)]), 1)

    def test_sessions(self):
        report = self.report("sessions", "--sessions", "3", *SMALL)
        self.assertEqual([row["sessions"] for row in report["rows"]], [1, 3])
        self.assertEqual(report["rows"][0]["ratio"], [1, 1, 1])

    def test_load(self):
        report = self.report("load")
        self.assertEqual(list(report["seconds"]),
                         ["file", "tokenizer", "weights", "freed", "engine", "cost_table", "prompt",
                          "first_round"])

    def test_errors_are_one_line(self):
        for arguments, words in (
                (("forward", "--target", "Z80"), 'target "Z80" is none of'),
                (("forward", "--json", "no/such/folder"), "cannot write no/such/folder"),
                (("policy", "--profile", "none.json"), "none.json")):
            done = self.run_program(*arguments)
            self.assertEqual(done.returncode, 1, arguments)
            self.assertRegex(done.stderr, rf"\Aerror: [^\n]*{words}[^\n]*\n\Z")


if __name__ == "__main__":
    if not FOLDER or not MODEL:
        sys.exit(SKIPPED)
    unittest.main()
