"""The plugin in the processes that SGLang starts: found by its entry point in a spawned child that
runs the real run_scheduler_process, light in the one that launches."""

import json
import re
import unittest

from sglang_support import ROOT, VERSION, needs_sglang, run

needs_sglang()

SCHEDULER = str(ROOT / "tests" / "sglang" / "scheduler_process.py")
LOAD = """
import logging, sys
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
from sglang.srt.plugins import load_plugins
load_plugins()
print("LOADED", "sglang.srt.managers.scheduler" in sys.modules, "torch" in sys.modules)
import torch
print("CUDA", torch.cuda.is_initialized())
"""


class SchedulerProcess(unittest.TestCase):
    def state(self, said):
        found = re.search(r"^STATE (.*)$", said, re.MULTILINE)
        self.assertIsNotNone(found, said)
        return json.loads(found.group(1))

    def test_the_hook_acts_in_a_spawned_scheduler(self):
        code, said = run(self, SCHEDULER, KDTREE_DEFRAG_SORT="1", KDTREE_DEFRAG_EVICT="0.1")
        self.assertEqual(code, 0, said)
        line, = re.findall(r"kdtree in rank .*", said)
        self.assertEqual(line, "kdtree in rank tp3 pp0: TokenToKVPoolAllocator; sort proved, "
                               "evict 0.1")
        state = self.state(said)
        self.assertEqual(state["from"], "sglang")
        ours = state["kdtree"]
        self.assertEqual(ours["switches"], {"sort": True, "evict": 0.1, "extent": 0,
                                            "best_fit": False, "kv_move": False})
        self.assertTrue(ours["sorted"])
        self.assertEqual((ours["requests"], ours["mean_run_tokens"],
                          ours["contiguous_tile_share"]), (1, 128.0, 1.0))
        self.assertEqual((ours["free_pages"], ours["free_runs"]), (200, 1))

    def test_without_a_switch_nothing_is_touched(self):
        code, said = run(self, SCHEDULER)
        self.assertEqual(code, 0, said)
        self.assertIn("kdtree: no switch is on", said)
        self.assertEqual(self.state(said), {"from": "sglang"})

    def test_what_cannot_act_ends_the_process(self):
        """Traps 2 and 3: SGLang itself would log the exception and serve without the plugin."""
        code, said = run(self, SCHEDULER, version="9.9.9", KDTREE_DEFRAG_SORT="1")
        self.assertNotEqual(code, 0)
        self.assertIn("kdtree refuses to start: KDTREE_DEFRAG_SORT: SGLang 9.9.9 is not", said)
        self.assertNotIn("STATE", said)


    def test_a_missing_library_ends_the_process(self):
        if VERSION in ("0.5.14", "0.5.15.post1"):
            self.skipTest("from 0.5.16 on")
        code, said = run(self, SCHEDULER, KDTREE_DEFRAG_BESTFIT="1",
                         KDTREE_LIBRARY_PATH="/nowhere")
        self.assertNotEqual(code, 0)
        self.assertIn("kdtree refuses to start: KDTREE_LIBRARY_PATH=/nowhere", said)
        self.assertNotIn("STATE", said)


class LaunchingProcess(unittest.TestCase):
    """Trap 6: register() runs there too, and since 0.5.22 in the detokenizer."""

    def test_it_stays_light(self):
        code, said = run(self, "-c", LOAD, KDTREE_DEFRAG_SORT="1")
        self.assertEqual(code, 0, said)
        self.assertIn("Loaded plugin kdtree", said)
        self.assertIn("LOADED False", said)
        self.assertIn("CUDA False", said)

    def test_it_refuses_before_anything_is_started(self):
        code, said = run(self, "-c", LOAD, version="0.4.9", KDTREE_DEFRAG_SORT="1")
        self.assertEqual(code, 1)
        self.assertIn("SGLang 0.4.9 is not supported", said)
        self.assertNotIn("LOADED", said)


class Doctor(unittest.TestCase):
    def doctor(self, **options):
        return run(self, "-m", "kdtree.sglang_ext", "doctor", **options)

    def test_all_is_well(self):
        code, said = self.doctor(KDTREE_DEFRAG_SORT="1")
        self.assertEqual(code, 0, said)
        self.assertIn(f"SGLang     {VERSION}", said)
        self.assertRegex(said, r"KDTREE_DEFRAG_SORT +on\n")
        self.assertRegex(said, r"KDTREE_DEFRAG_EVICT +off; would act\n")
        self.assertIn("a small allocator sorts", said)

    def test_a_switch_that_cannot_act(self):
        code, said = self.doctor(version="0.5.99", KDTREE_DEFRAG_SORT="1")
        self.assertEqual(code, 1, said)
        self.assertIn("PROBLEM    KDTREE_DEFRAG_SORT: SGLang 0.5.99 is not supported", said)

    def test_not_installed_or_left_out(self):
        code, said = self.doctor(installed=False)
        self.assertEqual(code, 1, said)
        self.assertIn("not installed, so SGLang does not find it", said)
        code, said = self.doctor(SGLANG_PLUGINS="another", KDTREE_DEFRAG_EXTENT="65")
        self.assertEqual(code, 1, said)
        self.assertIn("SGLANG_PLUGINS=another leaves kdtree out", said)
        self.assertIn("KDTREE_DEFRAG_EXTENT=65", said)


if __name__ == "__main__":
    unittest.main()
