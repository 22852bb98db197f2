"""Models in Hugging Face folders: the commands take them, and refuse in one line those that lie."""

import json
import math
import struct
import time
import unittest

from cli_support import CliTest, main
from hf_bytes import HfFolder


def with_config(**values):
    def change(folder):
        folder.config.update(values)
    return change


def without(name):
    def change(folder):
        del folder.tensors[name]
    return change


def with_nan(folder):
    kind, shape, _ = folder.tensors["model.norm.weight"]
    folder.tensors["model.norm.weight"] = kind, shape, struct.pack("<32f", *[1.0] * 31, math.nan)


def misshapen(folder):
    folder.tensors["model.norm.weight"] = HfFolder.floats((31,))


def surplus(folder):
    folder.tensors["model.layers.7.odd.weight"] = HfFolder.floats((4,))


# A change to the folder -> what the refusal names.
REFUSED = {
    "sizes of 2^63": (with_config(hidden_size=2**63), ["hidden_size", "9223372036854775808"]),
    "negative sizes": (with_config(num_hidden_layers=-1), ["num_hidden_layers", "-1"]),
    "sizes as text": (with_config(vocab_size="260"), ["vocab_size", "'260'"]),
    "sizes with a fraction": (with_config(intermediate_size=64.5), ["intermediate_size", "64.5"]),
    "many heads": (with_config(num_attention_heads=10**9), ["num_attention_heads"]),
    "a rope scaling": (with_config(rope_scaling={"type": "longrope", "factor": 2}),
                       ["config.json: rope_scaling.type: 'longrope' is not supported"]),
    "another class": (with_config(architectures=["Gpt9ForCausalLM"]), ["Gpt9ForCausalLM"]),
    "a quantisation": (with_config(quantization_config={"quant_method": "gptq"}), ["'gptq'"]),
    "a head that is not there": (with_config(tie_word_embeddings=False), ["lm_head.weight"]),
    "a missing tensor": (without("model.layers.0.mlp.up_proj.weight"),
                         ["model.layers.0.mlp.up_proj.weight is missing"]),
    "a wrong shape": (misshapen, ["model.norm.weight", "[31]", "[32]"]),
    "a surplus tensor": (surplus, ["model.layers.7.odd.weight"]),
    "NaN": (with_nan, ["model.norm.weight", "31"]),
}


class Folders(CliTest):
    def model(self, name, change=lambda folder: None):
        folder = HfFolder()
        change(folder)
        folder.write(self.folder / name)
        return self.folder / name

    def test_run(self):
        model = self.model("runs")
        texts = [self.answer("--model", model, "--raw", "--max-tokens", "16",
                             "--speculative-algorithm", algorithm, "abcabcabc")
                 for algorithm in ("none", "ngram")]
        self.assertEqual(texts[0], texts[1])

    def test_inspect(self):
        model = self.model("inspected")
        code, out, _ = self.kdtree("inspect", model, "--tensors", "--json", "-")
        report = json.loads(out)
        self.assertEqual((code, report["faults"]), (0, []))
        self.assertEqual(report["format"], "Hugging Face folder")
        self.assertEqual(report["architecture"], "LlamaForCausalLM")
        self.assertEqual(report["name"], "inspected")
        self.assertEqual(report["shape"]["head"], "shared")
        self.assertEqual(report["shape"]["rope_scaling"], "none")
        self.assertEqual(report["tokenizer"]["vocabulary"], 256)
        self.assertEqual(report["metadata"]["hidden_size"], 32)
        self.assertEqual(len(report["tensors"]), len(HfFolder().tensors))
        code, out, _ = self.kdtree("inspect", model)
        self.assertEqual(code, 0)
        self.assertIn(b"Hugging Face folder", out)

    def test_inspect_of_tokenizer_and_quantisation(self):
        def quantise(folder):
            name = "model.layers.0.self_attn.o_proj.weight"
            folder.tensors[name] = "F8_E4M3", (32, 32), b"\x38" * 1024
            folder.tensors[name + "_scale_inv"] = HfFolder.floats((1, 1))
            folder.config["quantization_config"] = {"quant_method": "fp8",
                                                    "weight_block_size": [128, 128]}
        code, out, _ = self.kdtree("inspect", self.model("fp8", quantise), "--json", "-")
        report = json.loads(out)
        self.assertEqual((code, report["faults"]), (0, []))
        self.assertEqual(report["quantisation"], "fp8, a scale for 128 x 128")
        self.assertEqual(report["tokenizer"]["model"], "tokenizer.json")
        self.assertIn("F8_E4M3", [each["type"] for each in report["weights"]])
        code, out, _ = self.kdtree("inspect", self.model("plain"), "--json", "-")
        self.assertIsNone(json.loads(out)["quantisation"])

    def test_inspect_lists_quantisations_that_cannot_be_run(self):
        def gptq(folder):
            folder.config["quantization_config"] = {"quant_method": "gptq", "bits": 4}
            del folder.tensors["model.layers.0.self_attn.o_proj.weight"]
            folder.tensors["model.layers.0.self_attn.o_proj.qweight"] = "I32", (4, 32), b"\0" * 512
        model = self.model("gptq", gptq)
        code, out, _ = self.kdtree("inspect", model, "--tensors", "--json", "-")
        report = json.loads(out)
        self.assertEqual((code, report["quantisation"]), (2, "not supported"))
        self.assertTrue(any("quantization_config.quant_method: 'gptq' is not supported" in fault
                            for fault in report["faults"]), report["faults"])
        self.assertIn("I32", [each["type"] for each in report["tensors"]])
        self.refused("run", "--model", model, "hi", naming="'gptq'")

    def test_inspect_of_a_drafter(self):
        config = {
            "architectures": ["DFlashDraftModel"], "model_type": "qwen3", "block_size": 8,
            "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
            "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 260,
            "rms_norm_eps": 1e-6, "rope_theta": 10000,
            "dflash_config": {"mask_token_id": 3, "target_layer_ids": [0, 2]},
        }

        def drafter(**values):
            def change(folder):
                folder.config = {**config, **values}
                folder.tensors = {"fc.weight": HfFolder.floats((32, 64)),
                                  "norm.weight": HfFolder.floats((32,))}
            return change
        folder = self.model("drafter", drafter())
        code, out, _ = self.kdtree("inspect", folder, "--tensors", "--json", "-")
        report = json.loads(out)
        self.assertEqual((code, report["format"], report["faults"]), (0, "DFlash drafter", []))
        self.assertEqual(report["architecture"], "DFlashDraftModel")
        wanted = {"layers": 1, "block": 8, "drafts": 7, "mask_token": 3, "target_layers": [0, 2],
                  "head": "none"}
        self.assertEqual({key: report["drafter"][key] for key in wanted}, wanted)
        self.assertEqual(report["tensor_count"], 2)
        self.assertEqual([each["name"] for each in report["tensors"]], ["fc.weight", "norm.weight"])
        code, out, _ = self.kdtree("inspect", folder)
        self.assertEqual(code, 0)
        self.assertIn(b"A DFlash drafter", out)
        folder = self.model("odd-drafter", drafter(head_dim=17))
        code, out, _ = self.kdtree("inspect", folder, "--json", "-")
        report = json.loads(out)
        self.assertEqual((code, report["drafter"]), (2, {}))
        self.assertIn("config.json: head_dim: 17 elements a head", report["faults"][0])
        code, out, _ = self.kdtree("inspect", folder)
        self.assertEqual(code, 2)
        self.assertIn(b"cannot use the DFlash drafter, for one reason", out)
        code, _, err = self.kdtree("inspect", folder, "--template")
        self.assertEqual(code, 1)
        self.assertIn(b"no chat template", err)

    def test_inspect_says_why_not(self):
        model = self.model("faulty", with_config(rope_scaling={"type": "longrope", "factor": 2},
                                                 tie_word_embeddings=False))
        code, out, _ = self.kdtree("inspect", model, "--json", "-")
        report = json.loads(out)
        self.assertEqual(code, 2)
        self.assertEqual(len(report["faults"]), 2)
        self.assertIn("longrope", report["faults"][0])

    def test_tokenize(self):
        code, out, _ = self.kdtree("tokenize", "--model", self.model("tokens"),
                                   stdin=b'{"text": "ab"}\n')
        self.assertEqual((code, json.loads(out)["ids"]), (0, [0x61, 0x62]))

    def test_refused_in_one_line_at_once(self):
        for number, (name, (change, parts)) in enumerate(REFUSED.items()):
            with self.subTest(name):
                model = self.model(f"refused-{number}", change)
                begin = time.monotonic()
                for part in parts:
                    self.refused("run", "--model", model, "hi", naming=part)
                self.assertLess((time.monotonic() - begin) / len(parts), 1)

    def test_paths(self):
        empty = self.folder / "nothing-in-it"
        empty.mkdir()
        self.refused("run", "--model", empty, "hi", naming="is an empty folder")
        model = self.model("parts")
        self.refused("run", "--model", model / "model.safetensors", "hi", naming="give the folder")
        self.refused("run", "--model", model / "config.json", "hi", naming="give the folder")
        (model / "config.json").unlink()
        self.refused("run", "--model", model, "hi", naming="has no config.json")


if __name__ == "__main__":
    main()
