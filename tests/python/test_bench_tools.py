"""bench/attn_verify/peers.py and tools/plot_attn_verify.py: what needs neither torch nor a GPU."""

import io
import json
import sys
import tempfile
import types
import unittest
import xml.etree.ElementTree
from contextlib import redirect_stderr
from pathlib import Path

from support import ROOT

sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "bench" / "attn_verify")]
import peers  # noqa: E402
import plot_attn_verify  # noqa: E402

CEILINGS = {"read_tb_s": 4.5, "bf16_tflop_s": 800.0, "launch_gap_us": 0.8}


def row(nodes=8, context=4096, us=20.0, floor_us=10.0, **more):
    return {"op": "attn_verify_mla", "arch": "sm_90a", "heads": 8, "nodes": nodes,
            "context": context, "page": 1, "kv_dtype": "bf16", "batch": 1, "slots": "shuffled",
            "us": us, "floor_us": floor_us, "splits": 16, "rel_l2": 1e-3, **more}


def report(*rows):
    return {"schema": 1, "commit": "abc", "device": "A <GPU>", "ceilings": CEILINGS,
            "rows": list(rows)}


class Plot(unittest.TestCase):
    def test_lines(self):
        svg = plot_attn_verify.plot(report(
            row(context=4096), row(context=65536, us=15), row(nodes=16, context=4096),
            row(context=4096, us=90, peer="flashmla", run="peers"),
            row(context=4096, us=9000, peer="slow", run="peers"),
            row(context=65536, us=40, peer="other", run="peers")))
        root = xml.etree.ElementTree.fromstring(svg)
        words = [node.text for node in root.iter() if node.tag.endswith("text")]
        for word in ("MLA, 8 heads x 8 nodes", "4k", "64k", "kdtree", "flashmla", "other",
                     "slow: 900 to 900"):
            self.assertIn(word, words)
        self.assertNotIn("MLA, 8 heads x 16 nodes", words)  # one context is no line
        lines = [node for node in root.iter() if node.tag.endswith("polyline")]
        self.assertEqual(len(lines), 3)
        self.assertIn("A &lt;GPU&gt;", svg)

    def test_native_rows_come_before_interleaved_ones(self):
        found = plot_attn_verify.panels(report(
            row(us=99, peer=None, run="peers"), row(us=20), row(us=70, forced_splits=16),
            row(context=65536), row(us=50, batch=8), row(us=5, kv_dtype="fp8")), "bf16", 1)
        line = found[("attn_verify_mla", 8, 1, 8)]["kdtree"]
        self.assertEqual(line, {4096: 2.0, 65536: 2.0})

    def test_command(self):
        with tempfile.TemporaryDirectory() as folder, redirect_stderr(io.StringIO()) as said:
            path = Path(folder) / "r.json"
            path.write_text(json.dumps(report(row(), row(context=65536))))
            self.assertEqual(plot_attn_verify.main([str(path)]), 0)
            self.assertTrue(path.with_suffix(".svg").read_text().startswith("<svg"))
            path.write_text(json.dumps(report(row())))
            self.assertEqual(plot_attn_verify.main([str(path)]), 1)
            path.write_text("{}")
            self.assertEqual(plot_attn_verify.main([str(path)]), 1)
        self.assertIn("schema None, 1 is needed", said.getvalue())


class Peers(unittest.TestCase):
    def keys(self, *arguments):
        return peers.case_keys(peers.parse(list(arguments)))

    def test_cases(self):
        default = self.keys()
        self.assertEqual(len(default), 25)
        self.assertIn((64, 32, 131072, 1), default)
        self.assertIn((8, 8, 16384, 8), default)
        self.assertEqual(self.keys("--nodes", "1,16", "--contexts", "4k,1000"),
                         [(8, 1, 4096, 1), (8, 1, 1000, 1), (8, 16, 4096, 1), (8, 16, 1000, 1)])
        self.assertEqual(self.keys("--batch", "8", "--heads", "16"), [(16, 8, 65536, 8)])
        with self.assertRaises(SystemExit), redirect_stderr(io.StringIO()):
            peers.parse(["--repeat", "0"])

    def test_rows_and_ratio(self):
        case = types.SimpleNamespace(heads=8, nodes=8, context=65536, batch=1,
                                     min_bytes=lambda: 9e6, flops=lambda: 8e9)

        def runner(name, times, **more):
            contender = types.SimpleNamespace(name=name, mask="tree", page=1, splits=lambda: 15.96)
            made = peers.Runner.__new__(peers.Runner)
            made.__dict__.update(contender=contender, times=times, layers=8, rel_l2=1.234567e-3)
            return made

        ours = runner("kdtree", [10.0, 11.0, 10.0, 10.0])
        slow = runner("sglang_extend", [1000.0, 1100.0, None, None])
        row_ = peers.row_of(slow, case, ours, "sm_90a", CEILINGS)
        self.assertEqual((row_["us"], row_["ratio"], row_["rounds"]), (1050.0, 100.0, 2))
        self.assertEqual((row_["peer"], row_["splits"], row_["floor_us"]),
                         ("sglang_extend", None, 10.0))
        row_ = peers.row_of(ours, case, ours, "sm_90a", None)
        self.assertEqual((row_["peer"], row_["splits"], row_["ratio"], row_["floor_us"]),
                         (None, 16.0, None, None))
        self.assertEqual(row_["rel_l2"], 0.00123)
        for key in row():  # the contract of the report
            self.assertIn(key, row_)

    def test_report_is_added_to(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "r.json"
            self.assertIsNone(peers.load(path))
            path.write_text(json.dumps(report(row(), row(run="peers", peer="flashmla"))))
            loaded = peers.load(path)
            self.assertEqual(loaded["rows"], [row()])
            loaded["rows"].append(row(run="peers", peer="flashinfer_fa3"))
            peers.write(path, loaded)
            self.assertEqual(json.loads(path.read_text()), loaded)
            path.write_text('{"schema": 2}')
            with self.assertRaises(SystemExit):
                peers.load(path)

    def test_rows_of_another_build_or_card_are_refused(self):
        fresh = {"commit": "abc", "device": "card", "rows": []}
        self.assertIsNone(peers.of_another_run(dict(fresh), fresh))
        self.assertEqual(peers.of_another_run(fresh | {"commit": "abd"}, fresh),
                         "its commit is abd, here it is abc")
        self.assertEqual(peers.of_another_run(fresh | {"device": "other"}, fresh),
                         "its device is other, here it is card")


if __name__ == "__main__":
    unittest.main()
