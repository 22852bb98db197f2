"""The attention backend in the process that launches SGLang, found by the plugin's entry point."""

import unittest

from sglang_support import needs_sglang, run

needs_sglang()

PARSE = """
import sys
from sglang.srt.plugins import load_plugins
load_plugins()
from sglang.srt.server_args import ServerArgs
import argparse
parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
print("BACKEND", parser.parse_args(["--model-path", "none", "--attention-backend",
                                    "kdtree_verify"]).attention_backend)
import torch
print("LIGHT", not torch.cuda.is_initialized(), "sglang.srt.managers.scheduler" not in sys.modules,
      "sglang.srt.layers.attention.triton_backend" not in sys.modules)
"""


class LaunchingProcess(unittest.TestCase):
    def test_the_backend_can_be_asked_for(self):
        code, said = run(self, "-c", PARSE)
        self.assertEqual(code, 0, said)
        self.assertIn("BACKEND kdtree_verify", said)
        self.assertIn("LIGHT True True True", said)

    def test_not_of_a_version_that_is_not_supported(self):
        code, said = run(self, "-c", PARSE, version="9.9.9")
        self.assertNotEqual(code, 0)
        self.assertIn("kdtree: no attention backend kdtree_verify: SGLang 9.9.9 is not", said)
        self.assertIn("invalid choice: 'kdtree_verify'", said)


class Doctor(unittest.TestCase):
    def test_it_names_the_backend_and_its_variable(self):
        code, said = run(self, "-m", "kdtree.sglang_ext", "doctor", KDTREE_VERIFY_CHECK="often")
        self.assertEqual(code, 1)
        self.assertRegex(said, "(?m)^kdtree_verify +would act; ")
        self.assertIn("PROBLEM    KDTREE_VERIFY_CHECK=often: one of first, always, off", said)


if __name__ == "__main__":
    unittest.main()
