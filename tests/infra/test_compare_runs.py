"""tools/compare_runs.py: the table and the verdict that end ./quickstart."""

import io
import json
import sys
import tempfile
import unittest
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
sys.dont_write_bytecode = True
import compare_runs  # noqa: E402

FIGURES = {
    "tokens": 160,
    "seconds": 1.5,
    "tokens_per_s": 106.66,
    "rounds": 80,
    "acceptance_length": 2.0,
    "mean_nodes": 4.25,
    "prefill_s": 0.25,
    "finish_reason": "length",
}


class CompareRunsTest(unittest.TestCase):
    def compare(self, tree_text, plain_text, figures=json.dumps(FIGURES)):
        with tempfile.TemporaryDirectory() as folder:
            names = [str(Path(folder) / name) for name in ("tree", "plain")]
            for name, text in zip(names, (tree_text, plain_text)):
                Path(name + ".txt").write_bytes(text)
                Path(name + ".json").write_text(figures)
            with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
                status = compare_runs.main(names)
        return status, out.getvalue(), err.getvalue()

    def test_identical(self):
        status, out, _ = self.compare(b"caf\xc3\xa9", b"caf\xc3\xa9")
        self.assertEqual(status, 0)
        self.assertTrue(out.endswith("texts identical: yes\n"))
        for words in (["tokens/s", "106.7", "106.7"], ["mean", "tree", "size", "4.25", "4.25"]):
            self.assertIn(words, [line.split() for line in out.splitlines()])

    def test_different(self):
        for plain in (b"abd", b"ab", b"abcd"):
            status, out, _ = self.compare(b"abc", plain)
            self.assertEqual(status, 1)
            at = 2 if plain != b"abcd" else 3
            self.assertTrue(out.endswith(f"texts identical: no (first difference at byte {at})\n"))

    def test_bad_figures(self):
        for figures, words in (("{", "error: "), ("{}", "lack 'tokens'")):
            status, _, err = self.compare(b"a", b"a", figures)
            self.assertEqual(status, 1)
            self.assertIn(words, err)


if __name__ == "__main__":
    unittest.main()
