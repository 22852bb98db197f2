"""bench/sglang_verify.py runs end to end without a GPU, and its contenders agree."""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import verify_support as support

VERSION = support.require_sglang()


class Bench(unittest.TestCase):
    @unittest.skipIf(VERSION in ("0.5.14", "0.5.15.post1"), "its kernels are elsewhere")
    def test_small_on_the_cpu(self):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "out.json"
            ran = subprocess.run(
                [sys.executable, "-W", "ignore", support.ROOT / "bench" / "sglang_verify.py",
                 "--device", "cpu", "--small", "--page-size", "16", "--json", file],
                capture_output=True, text=True, env=os.environ, check=False)
            self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
            report = json.loads(file.read_text())
        self.assertEqual((report["device"], report["sglang"]), ("cpu", VERSION))
        names = ["kdtree", "sglang_extend", "sglang_verify"]
        here = [name for name in names if name not in report["absent"]]
        self.assertEqual(here == names, VERSION in ("0.5.18", "0.5.23"))
        self.assertEqual([(row["contender"], row["nodes"]) for row in report["rows"]],
                         [(name, nodes) for nodes in (3, 8) for name in here])
        for row in report["rows"]:
            if row["contender"] != "sglang_verify":  # its partial results are bfloat16
                self.assertLess(row["rel_l2"], 1e-5, row)
            self.assertGreaterEqual(row["step_us"], row["min_step_us"])
            self.assertEqual(row["ratio"] is None, row["contender"] == "kdtree")

    def test_without_a_device_it_says_so(self):
        ran = subprocess.run([sys.executable, support.ROOT / "bench" / "sglang_verify.py"],
                             capture_output=True, text=True, env=os.environ, check=False)
        self.assertEqual((ran.returncode, ran.stderr.splitlines()[-1]),
                         (1, "error: a CUDA device is needed, or --device cpu --small"))


if __name__ == "__main__":
    unittest.main()
