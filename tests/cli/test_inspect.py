"""kdtree inspect: what it says about files that can be run, that cannot, and that are hostile."""

import json
import os
import pty
import unittest

from cli_support import MODEL, CliTest, main, needs_model
from gguf_bytes import TENSOR_Q4_0, TENSOR_Q4_2, TENSOR_Q3_K, Gguf

SUPPORTED, ERROR, UNSUPPORTED = 0, 1, 2


def without(*names):
    def change(gguf):
        for name in names:
            del gguf.tensors[name]
    return change


def with_metadata(**values):
    def change(gguf):
        for key, value in values.items():
            gguf.metadata[key.replace("__", ".")] = value
    return change


def with_tensor(name, dims, kind, content):
    def change(gguf):
        gguf.tensors[name] = (dims, kind, content)
    return change


# A change to the tiny model -> what its only reason names.
UNSUPPORTED_FILES = {
    "architecture": (with_metadata(general__architecture="gpt9"), ["general.architecture", "gpt9"]),
    "experts": (with_metadata(llama__expert_count=8), ["expert_count", "8"]),
    "rope scaling": (with_metadata(llama__rope__scaling__type="yarn"), ["yarn"]),
    "no layers": (with_metadata(llama__block_count=0), ["block_count"]),
    "heads": (with_metadata(llama__attention__head_count=5), ["head_count"]),
    "vocabulary": (with_metadata(llama__vocab_size=9), ["vocab_size"]),
    "tokenizer": (with_metadata(tokenizer__ggml__model="llama"), ["tokenizer.ggml.model"]),
    "pre-tokenizer": (with_metadata(tokenizer__ggml__pre="odd"), ["odd"]),
    "merges": (with_metadata(tokenizer__ggml__merges=["a c"]), ["merges"]),
    "missing": (without("blk.0.ffn_up.weight"), ["blk.0.ffn_up.weight", "missing"]),
    "surplus": (with_tensor("blk.7.odd.weight", (32,), 0, b"\0" * 128), ["blk.7.odd.weight"]),
    "shape": (with_tensor("output_norm.weight", (16,), 0, b"\0" * 64), ["output_norm.weight"]),
    "mixed layer": (with_tensor("blk.0.attn_k.weight", (32, 16), TENSOR_Q4_0, b"\0" * 18 * 16),
                    ["one linear layer", "Q4_0"]),
    "foreign type": (with_tensor("output_norm.weight", (256,), TENSOR_Q3_K, b"\0" * 110),
                     ["Q3_K", "1 tensor", "output_norm.weight"]),
    "type given up": (with_tensor("output_norm.weight", (32,), TENSOR_Q4_2, b"\0" * 16), ["Q4_2"]),
}


class InspectTest(CliTest):
    def file(self, change=lambda gguf: None, name="tiny.gguf"):
        gguf = Gguf()
        change(gguf)
        return self.write(name, gguf.bytes())

    def report(self, path, *arguments):
        code, out, err = self.kdtree("inspect", path, "--json", "-", *arguments)
        self.assertEqual(err, b"")
        self.assertTrue(out.isascii())
        return code, json.loads(out)

    def text(self, path, *arguments):
        code, out, err = self.kdtree("inspect", path, *arguments)
        self.assertEqual(err, b"")
        return code, out.decode()

    def assert_harmless(self, text, columns=80):
        for line in text.split("\n"):
            self.assertTrue(line.isprintable(), line)
            if "/" not in line:  # paths keep their length
                self.assertLessEqual(len(line), columns, line)


class Tiny(InspectTest):
    def test_a_model_that_can_be_run(self):
        code, report = self.report(self.file(), "--tensors")
        self.assertEqual((code, report["supported"], report["faults"]), (SUPPORTED, True, []))
        shape = report["shape"]
        self.assertEqual([shape[key] for key in ("layers", "hidden", "heads", "kv_heads",
                                                 "head_dim", "intermediate", "vocabulary")],
                         [1, 32, 2, 1, 16, 64, 8])
        elements = 8 * 32 + 3 * 32 + 2 * 32 * 32 + 2 * 16 * 32 + 3 * 64 * 32
        self.assertEqual(report["parameters"], elements)
        self.assertEqual(report["weights"], [{"type": "F32", "tensors": 11,
                                              "parameters": elements, "bytes": 4 * elements}])
        self.assertEqual(report["kv_bytes_per_token"], 1 * 2 * 16 * 2)
        self.assertEqual(report["decode_bytes_per_token"], 4 * elements)
        self.assertEqual(report["tokenizer"]["eos"], {"id": 0, "text": "<|endoftext|>"})
        self.assertEqual(len(report["tensors"]), 11)
        first = report["tensors"][0]
        self.assertEqual((first["name"], first["dims"], first["bytes"]),
                         ("token_embd.weight", [32, 8], 1024))
        self.assertEqual(first["offset"] % 32, 0)

    def test_text(self):
        code, text = self.text(self.file(), "--tensors")
        self.assertEqual(code, SUPPORTED)
        for word in ("GGUF v3", "llama", "blk.0.attn_q.weight", "32 x 32", "can run", "line two"):
            self.assertIn(word, text)
        self.assert_harmless(text)

    def test_every_reason_alone_is_the_one_named_and_run_agrees(self):
        for name, (change, words) in UNSUPPORTED_FILES.items():
            with self.subTest(name=name):
                path = self.file(change)
                code, report = self.report(path)
                self.assertEqual(code, UNSUPPORTED, report["faults"])
                self.assertEqual(len(report["faults"]), 1, report["faults"])
                for word in words:
                    self.assertIn(word, report["faults"][0])
                self.assertNotIn(str(path), report["faults"][0])
                code, text = self.text(path)
                self.assertEqual(code, UNSUPPORTED)
                self.assertIn("for one reason", text)
                self.assert_harmless(text)
                self.refused("run", "--model", path, "--raw", "ab", naming=words[0])

    def test_the_tiny_model_runs(self):
        self.answer("--model", self.file(), "--raw", "--max-tokens", 3,
                    "--speculative-algorithm", "none", "ab")

    def test_all_reasons_are_collected(self):
        def change(gguf):
            for name in ("rope scaling", "experts", "vocabulary", "tokenizer", "missing", "surplus",
                         "foreign type"):
                UNSUPPORTED_FILES[name][0](gguf)
        code, report = self.report(self.file(change))
        self.assertEqual((code, len(report["faults"])), (UNSUPPORTED, 7), report["faults"])

    def test_another_architecture_shows_its_shape(self):
        def change(gguf):
            gguf.metadata = {key.replace("llama.", "gpt9."): value
                             for key, value in gguf.metadata.items()}
            gguf.metadata["general.architecture"] = "gpt9"
        code, report = self.report(self.file(change))
        self.assertEqual((code, report["architecture"]), (UNSUPPORTED, "gpt9"))
        self.assertEqual((report["shape"]["layers"], report["shape"]["hidden"]), (1, 32))
        self.assertIn("layers", self.text(self.file(change))[1])

    def test_many_reasons_are_cut_in_the_text(self):
        def change(gguf):
            for i in range(40):
                gguf.tensors[f"odd.{i}"] = gguf.tensors["output_norm.weight"]
        code, text = self.text(self.file(change))
        self.assertEqual(code, UNSUPPORTED)
        self.assertIn("and 28 more", text)
        self.assertEqual(len(self.report(self.file(change))[1]["faults"]), 40)

    def test_counts_that_do_not_add_up(self):
        def change(gguf):
            for i in range(4):
                gguf.tensors[f"huge.{i}"] = ((1 << 62,), TENSOR_Q4_2, b"")
        code, report = self.report(self.file(change), "--tensors")
        self.assertEqual((code, report["parameters"]), (UNSUPPORTED, 2**63 - 1))

    def test_no_metadata_at_all(self):
        def change(gguf):
            gguf.metadata = {}
            gguf.tensors = {}
        code, report = self.report(self.file(change))
        self.assertEqual((code, report["parameters"]), (UNSUPPORTED, 0))
        self.assert_harmless(self.text(self.file(change))[1])

    def test_broken_files_give_the_parser_s_line(self):
        whole = self.file().read_bytes()
        for name, content in [("magic.gguf", b"GGML" + whole[4:]), ("half.gguf", whole[:900]),
                              ("cut.gguf", whole[:-32]), ("empty.gguf", b""),
                              ("version.gguf", whole[:4] + b"\x09" + whole[5:])]:
            self.refused("inspect", self.write(name, content), naming=name)
        self.refused("inspect", "/no/such.gguf", naming="/no/such.gguf")
        self.refused("inspect", self.folder, naming=str(self.folder))
        # A foreign tensor beyond the end is a broken file, not an unsupported one.
        self.refused("inspect", self.file(with_tensor("x", (1 << 20,), TENSOR_Q3_K, b"")),
                     naming="exceed")


class Hostile(InspectTest):
    EVIL = "\x1b]0;owned\x07\x9b31m\u202egnp.exe\r\x7f"

    def hostile(self):
        def change(gguf):
            gguf.metadata["general.name"] = self.EVIL
            gguf.metadata["general." + self.EVIL] = [self.EVIL] * 3
            gguf.metadata["bytes"] = b"\xff\xfe\x9b31m"
            gguf.metadata["tokenizer.ggml.tokens"] = ["<|endoftext|>", "a", "b", "ab", self.EVIL,
                                                      "t", "h", "l"]
            gguf.metadata["tokenizer.ggml.token_type"] = [3, 1, 1, 1, 3, 1, 1, 1]
            gguf.metadata["tokenizer.chat_template"] = "{# " + self.EVIL + " #}\nhello\tworld"
            gguf.tensors[self.EVIL] = gguf.tensors["output_norm.weight"]
            gguf.tensors[b"\xc3\x28\x1b[2J"] = gguf.tensors["output_norm.weight"]
        return self.file(change, "hostile.gguf")

    def test_text_and_json(self):
        code, text = self.text(self.hostile(), "--tensors")
        self.assertEqual(code, UNSUPPORTED)
        self.assertIn("\\x1b]0;owned\\x07", text)
        self.assert_harmless(text)
        code, report = self.report(self.hostile(), "--tensors", "--template")
        self.assertEqual(report["name"], self.EVIL)

    def test_errors(self):
        path = self.file(with_tensor(self.EVIL, (0,), 0, b""), "zero.gguf")
        code, out, err = self.kdtree("inspect", path)
        self.assertEqual((code, out), (ERROR, b""))
        self.assertTrue(err[:-1].decode().isprintable(), err)

    def test_template_is_exact_in_a_file_and_harmless_on_a_terminal(self):
        path = self.hostile()
        code, out, _ = self.kdtree("inspect", "--template", path)
        self.assertEqual(code, UNSUPPORTED)
        self.assertEqual(out.decode(), "{# " + self.EVIL + " #}\nhello\tworld")
        ours, theirs = pty.openpty()
        with self.start("inspect", "--template", path, stdout=theirs) as process:
            process.wait()
        os.close(theirs)
        shown = os.read(ours, 65536).decode()
        os.close(ours)
        self.assertTrue(all(c.isprintable() or c in "\r\n\t" for c in shown), shown)
        self.assertIn("\r\nhello\tworld", shown)

    def test_no_template(self):
        def change(gguf):
            del gguf.metadata["tokenizer.chat_template"]
        self.refused("inspect", "--template", self.file(change), naming="no chat template")

    def test_template_that_does_not_parse(self):
        code, report = self.report(self.file(with_metadata(tokenizer__chat_template="{% if %}")))
        self.assertEqual(code, SUPPORTED)  # prompts without it still run
        self.assertIn("line 1", report["chat_template"]["error"])


class Output(InspectTest):
    def test_json_file(self):
        path = self.folder / "out.json"
        code, out, err = self.kdtree("inspect", self.file(), "--json", path)
        self.assertEqual((code, err), (SUPPORTED, b""))
        self.assertIn(b"Shape", out)
        self.assertEqual(json.loads(path.read_text())["schema"], 1)
        self.refused("inspect", self.file(), "--json", "/no/such/folder/out.json",
                     naming="/no/such/folder/out.json")

    def test_full_disk_and_closed_pipe(self):
        with open("/dev/full", "wb") as full:
            code, _, err = self.kdtree("inspect", self.file(), stdout=full)
        self.assertEqual((code, err.count(b"\n")), (ERROR, 1))
        self.assertIn(b"No space left", err)

    def test_default_is_smollm2(self):
        environment = self.environment(KDTREE_CACHE="/no/such/cache")
        self.refused("inspect", naming="kdtree fetch smollm2", env=environment)


@needs_model
class SmolLm2(InspectTest):
    def test_known_facts(self):
        code, report = self.report("smollm2", "--tensors")
        self.assertEqual((code, report["faults"]), (SUPPORTED, []))
        self.assertEqual(report["bytes"], MODEL.stat().st_size)
        shape = report["shape"]
        self.assertEqual([shape[key] for key in ("layers", "hidden", "heads", "kv_heads",
                                                 "head_dim", "intermediate", "vocabulary",
                                                 "context_length", "rope_base", "head")],
                         [30, 576, 9, 3, 64, 1536, 49152, 8192, 100000, "shared"])
        self.assertEqual(report["parameters"], 134_515_008)  # what its makers say: 135M
        self.assertEqual(report["kv_bytes_per_token"], 30 * 2 * 3 * 64 * 2)
        self.assertEqual(report["tokenizer"]["bos"], {"id": 1, "text": "<|im_start|>"})
        self.assertEqual(report["tokenizer"]["eos"], {"id": 2, "text": "<|im_end|>"})
        self.assertEqual(sum(each["bytes"] for each in report["weights"]),
                         sum(each["bytes"] for each in report["tensors"]))

    def test_text(self):
        code, text = self.text("smollm2", "--tensors")
        self.assertEqual(code, SUPPORTED)
        self.assert_harmless(text)


if __name__ == "__main__":
    main()
