"""kdtree doctor: its exit code, its lines and its figures."""

import json
import os
import unittest

from cli_support import CliTest, main, needs_model
from gguf_bytes import Gguf


class DoctorTest(CliTest):
    def tiny(self, change=lambda gguf: None):
        gguf = Gguf()
        change(gguf)
        return self.write("tiny.gguf", gguf.bytes())

    def report(self, *arguments, **options):
        code, out, err = self.kdtree("doctor", "--json", "-", *arguments, **options)
        self.assertEqual(err, b"")
        report = json.loads(out)
        self.assertEqual(code, 1 if report["problems"] else 0, report)
        for check in report["checks"]:
            self.assertEqual(check["level"] == "ok", check["advice"] == "", check)
        return report

    def levels(self, report):
        """The worst level of each check, with its section: the model's memory is not the machine's."""
        order = ["ok", "warning", "problem"]
        found = {}
        for check in report["checks"]:
            name = f"{check['section']}: {check['name']}"
            found[name] = max(found.get(name, "ok"), check["level"], key=order.index)
        return found

    def problems(self, report):
        return [check for check in report["checks"] if check["level"] == "problem"]


class Tiny(DoctorTest):
    def test_a_model_that_can_be_run(self):
        report = self.report("--model", self.tiny())
        self.assertEqual(report["problems"], 0, self.problems(report))
        levels = self.levels(report)
        for name in ("Machine: processor", "Machine: instructions", "Machine: memory",
                     "Model: file", "Model: support", "Model: memory", "Model: drafter",
                     "Speed: reading", "Speed: bound", "Speed: plain", "Speed: speculation",
                     "Speed: equality"):
            self.assertIn(name, levels)
        speed = report["speed"]
        for name in ("read_gb_s", "bound_tokens_per_s", "plain_tokens_per_s",
                     "speculative_tokens_per_s"):
            self.assertGreater(speed[name], 0, name)
        self.assertAlmostEqual(speed["bound_tokens_per_s"] * speed["decode_bytes_per_token"],
                               speed["read_gb_s"] * 1e9, delta=1e3)
        self.assertGreaterEqual(speed["acceptance_length"], 1)
        self.assertGreater(report["machine"]["memory_bytes"], 0)
        self.assertGreaterEqual(report["machine"]["cpus"], report["machine"]["cores"])

    def test_text_fits_and_counts(self):
        code, out, err = self.kdtree("doctor", "--model", self.tiny())
        self.assertEqual((code, err), (0, b""))
        text = out.decode()
        for line in text.split("\n"):
            self.assertTrue(line.isprintable(), line)
            if "/" not in line:  # paths keep their length
                self.assertLessEqual(len(line), 80, line)
        self.assertEqual([line for line in text.split("\n") if line in ("Machine", "Model", "Speed")],
                         ["Machine", "Model", "Speed"])
        self.assertIn("in order", text.split("\n")[-2])

    def test_settings(self):
        levels = self.levels(self.report("--model", self.tiny(), "--speculative-algorithm", "none"))
        self.assertNotIn("Speed: speculation", levels)
        threads = os.cpu_count() + 1
        report = self.report("--model", self.tiny(), "--threads", threads)
        self.assertEqual(self.levels(report)["Machine: threads"], "warning")
        self.assertEqual(report["speed"]["threads"], threads)
        report = self.report("--model", self.tiny(), "--context-length", 9000)
        self.assertIn("9,000", self.problems(report)[0]["text"])
        profile = self.write("profile.json", '{"hit": [[0.9], [0.8]]}')
        oracle = ("--speculative-algorithm", "oracle", "--speculative-draft-model-path")
        report = self.report("--model", self.tiny(), *oracle, profile)
        self.assertEqual(self.levels(report)["Speed: equality"], "ok")
        report = self.report("--model", self.tiny(), *oracle, "/no/such.json")
        self.assertIn("/no/such.json", self.problems(report)[0]["text"])
        self.refused("doctor", "--speculative-algorithm", "oracle", naming="profile")
        dflash = ("--speculative-algorithm", "dflash", "--speculative-draft-model-path")
        report = self.report("--model", self.tiny(), *dflash, "/no/such")
        self.assertIn("/no/such/config.json", self.problems(report)[0]["text"])

    def test_models_that_cannot_be_run(self):
        environment = self.environment(KDTREE_CACHE=str(self.folder / "none"))
        report = self.report(env=environment)
        self.assertEqual(len(self.problems(report)), 1)
        self.assertIn("kdtree fetch smollm2", self.problems(report)[0]["advice"])
        self.assertGreater(report["speed"]["read_gb_s"], 0)  # the machine is looked at all the same
        whole = self.tiny().read_bytes()
        for name, content in [("cut.gguf", whole[:-64]), ("text.gguf", b"hello " * 100)]:
            path = self.write(name, content)
            self.assertIn(str(path), self.problems(self.report("--model", path))[0]["text"])
        path = self.tiny(lambda gguf: gguf.metadata.update({"general.architecture": "gpt9"}))
        self.assertIn("gpt9", self.problems(self.report("--model", path))[0]["text"])
        # Weights that are not finite show only when they are read.
        nan = self.tiny(lambda gguf: gguf.tensors.update(
            {"output_norm.weight": ((32,), 0, b"\xff" * 128)}))
        self.assertIn("not finite", self.problems(self.report("--model", nan))[0]["text"])

    def test_cache_that_cannot_be_written(self):
        blocked = self.write("blocked", "")
        code, out, _ = self.kdtree("doctor", "--model", self.tiny(), "--json", "-",
                                   env=self.environment(KDTREE_CACHE=str(blocked)))
        self.assertEqual(code, 0)
        self.assertEqual(self.levels(json.loads(out))["Machine: cache folder"], "warning")

    def test_output(self):
        path = self.folder / "out.json"
        code, out, _ = self.kdtree("doctor", "--model", self.tiny(), "--json", path)
        self.assertEqual(code, 0)
        self.assertIn(b"Machine", out)
        self.assertEqual(json.loads(path.read_text())["schema"], 1)
        self.refused("doctor", "--json", "/no/such/folder/x.json", naming="/no/such/folder/x.json")
        with open("/dev/full", "wb") as full:
            code, _, err = self.kdtree("doctor", "--model", self.tiny(), stdout=full)
        self.assertEqual((code, err.count(b"\n")), (1, 1))


@needs_model
class SmolLm2(DoctorTest):
    def test_in_order(self):
        report = self.report()
        self.assertEqual(self.problems(report), [])
        self.assertEqual(self.levels(report)["Speed: equality"], "ok")
        # All weights, the head shares the embedding: what inspect says too.
        code, out, _ = self.kdtree("inspect", "--json", "-")
        self.assertEqual(json.loads(out)["decode_bytes_per_token"],
                         report["speed"]["decode_bytes_per_token"])


if __name__ == "__main__":
    main()
