"""kdtree.engine: its structs against include/kdtree/kdtree.h, and the engine on the tiny model.

KDTREE_LIBRARY_PATH and KDTREE_TINY_MODEL name library and model; without them the second part is
skipped.
"""

import os
import subprocess
import sys
import threading
import unittest

from mirror import MirrorTest
from support import ROOT

from kdtree import _engine_structs as structs
from kdtree import engine as kd

MODEL = os.environ.get("KDTREE_TINY_MODEL")

STRUCTS = {
    "kdtree_options": structs.COptions,
    "kdtree_model_info": structs.CModelInfo,
    "kdtree_result": structs.CResult,
    "kdtree_sampling": structs.CSampling,
    "kdtree_logit_bias": structs.CLogitBias,
    "kdtree_request": structs.CRequest,
    "kdtree_token_logprob": structs.CTokenLogprob,
    "kdtree_position_logprobs": structs.CPositionLogprobs,
    "kdtree_request_stats": structs.CRequestStats,
    "kdtree_delta": structs.CDelta,
    "kdtree_round_stats": structs.CRoundStats,
    "kdtree_engine_stats": structs.CEngineStats,
    "kdtree_lattice": structs.CLattice,
    "kdtree_tree": structs.CTree,
    "kdtree_accepted": structs.CAccepted,
}
ENUMS = {
    "KDTREE_DRAFTER_": structs.Drafter,
    "KDTREE_DRAFT_": structs.DraftShape,
    "KDTREE_FINISH_": structs.FinishReason,
    "KDTREE_": structs.Status,
}
VALUES = {prefix + each.name: each.value for prefix, enum in ENUMS.items() for each in enum}
VALUES["KDTREE_ABI"] = structs.ABI


class Structs(MirrorTest, unittest.TestCase):
    include = "kdtree/kdtree.h"
    prefix = "kdtree"
    module = structs
    structs = STRUCTS
    values = VALUES


@unittest.skipUnless(MODEL, "KDTREE_TINY_MODEL is not set")
class Generation(unittest.TestCase):
    def setUp(self):
        self.engine = kd.Engine(MODEL, threads=1, max_running_requests=2, max_draft_tokens=8)
        self.addCleanup(self.engine.close)

    def generate(self, **settings):
        return self.engine.generate([10, 20, 30, 10, 20], draft_tokens=4, **settings)

    def test_tree_equals_plain(self):
        tree = self.generate(max_tokens=20)
        plain = self.generate(max_tokens=20, draft_shape=kd.DraftShape.PLAIN)
        self.assertEqual((tree.ids, tree.text), (plain.ids, plain.text))
        self.assertEqual(tree.finish_reason, kd.FinishReason.LENGTH)
        self.assertEqual(tree.stats["tokens"], 20)
        stats = self.engine.stats()
        self.assertEqual((stats["finished"], stats["tokens"], stats["slots_used"]), (2, 40, 0))

    def test_settings_arrive(self):
        cold = self.generate(max_tokens=8)
        hot = self.generate(max_tokens=8, temperature=2.0, seed=3)
        self.assertNotEqual(cold.ids, hot.ids)
        banned = self.generate(max_tokens=8, logit_bias={cold.ids[0]: float("-inf")})
        self.assertNotIn(cold.ids[0], banned.ids)
        scored = self.generate(max_tokens=2, top_logprobs=3, top_prompt_logprobs=1)
        self.assertEqual([len(each.top) for each in scored.logprobs], [3, 3])
        self.assertEqual(scored.logprobs[0].top[0][0], scored.ids[0])
        self.assertEqual(len(scored.prompt_logprobs), 4)

    def test_masks(self):
        answers = []

        def even(answer, allowed):
            answers.append(answer)
            for i in range(len(allowed)):
                allowed[i] &= 0x55555555

        self.assertTrue(all(token % 2 == 0
                            for token in self.generate(max_tokens=6, logit_mask=even).ids))
        self.assertIn([], answers)
        self.assertEqual(kd._masks, {})

        def broken(answer, allowed):
            raise ValueError

        with self.assertRaisesRegex(kd.EngineError, "logit mask returned 1"):
            self.generate(max_tokens=2, logit_mask=broken)
        with self.assertRaises(kd.EngineError):
            self.generate(max_tokens=-1, logit_mask=even)
        self.assertEqual(kd._masks, {})

    def test_text(self):
        ids = self.engine.tokenize("hello<|im_end|>", parse_special=True)
        self.assertEqual(ids[-1], self.engine.info()["eos_token"])
        self.assertEqual(self.engine.detokenize(ids), "hello")
        self.assertEqual(self.engine.detokenize(ids, with_special=True), "hello<|im_end|>")
        self.assertEqual(self.engine.tokenize("a\0b"), self.engine.tokenize("a")
                         + self.engine.tokenize("\0b"))
        ids, text = self.engine.apply_chat_template([{"role": "user", "content": "hé"}])
        self.assertIn("hé", text)
        self.assertEqual(self.engine.tokenize(text, parse_special=True), ids)

    def test_many_requests_in_the_background(self):
        self.engine.start()
        results = {}

        def ask(seed):
            results[seed] = self.generate(max_tokens=10, temperature=1.0, seed=seed).ids

        threads = [threading.Thread(target=ask, args=(seed,)) for seed in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.engine.stop()
        for seed, ids in results.items():
            self.assertEqual(self.generate(max_tokens=10, temperature=1.0, seed=seed).ids, ids)
        self.assertEqual(len(results), 6)

    def test_cancel_wait_and_drop(self):
        request = self.engine.submit([1, 2, 3], max_tokens=100)
        self.assertEqual(self.engine.wait(0), [])
        self.engine.step()
        self.engine.cancel(request)
        self.engine.step()
        self.assertEqual(self.engine.wait(), [request])
        self.assertEqual(self.engine.poll(request).finish_reason, kd.FinishReason.ABORT)
        with self.assertRaises(kd.EngineError) as caught:
            self.engine.poll(request)
        self.assertEqual(caught.exception.status, kd.Status.NOT_FOUND)
        for _ in self.engine.stream([1, 2, 3], max_tokens=100):
            break
        self.assertEqual(self.engine.stats()["dropped"], 1)

    def test_errors(self):
        with self.assertRaises(kd.EngineError) as caught:
            kd.Engine("no-such-model")
        self.assertEqual(caught.exception.status, kd.Status.NOT_FOUND)
        with self.assertRaisesRegex(kd.EngineError, "the prompt is empty"):
            self.engine.generate([])
        for prompt, settings in (([2**32 + 1], {}), ([1], {"max_tokens": 2**32 + 1}),
                                 ([1], {"seed": -1}), ([1], {"top_k": 2**40})):
            with self.assertRaises(OverflowError):
                self.engine.generate(prompt, **settings)
        self.engine.close()
        self.engine.close()
        with self.assertRaisesRegex(kd.EngineError, "closed"):
            self.engine.stats()

    def test_example(self):
        result = subprocess.run(
            [sys.executable, "-B", ROOT / "examples" / "generate_from_python.py", MODEL, "hello"],
            env={**os.environ, "PYTHONPATH": str(ROOT / "python")},
            capture_output=True, text=True, errors="replace", check=False,
        )
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertIn(" tokens in ", result.stdout)


if __name__ == "__main__":
    unittest.main()
