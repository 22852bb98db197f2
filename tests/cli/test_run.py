"""kdtree run: every way to give a prompt, the same text from every drafter, figures and trees."""

import json
import re
import unittest

from cli_support import MODEL, CliTest, main, needs_model

PROMPT = "Repeat after me: one two three one two three"
PROFILE = {"hit": [[0.6, 0.2], [0.5, 0.1], [0.4]]}
FEW = ("--speculative-num-draft-tokens", 6, "--max-tokens", 24)


@needs_model
class RunTest(CliTest):
    def test_prompt_sources_agree(self):
        file = self.write("prompt.txt", PROMPT)
        texts = [
            self.answer(*FEW, "--prompt", PROMPT),
            self.answer(*FEW, PROMPT),
            self.answer(*FEW, "--prompt-file", file),
            self.answer(*FEW, "--prompt-file", "-", stdin=PROMPT.encode()),
            self.answer(*FEW, stdin=PROMPT.encode()),
            self.answer(*FEW, "--model", MODEL, PROMPT),
        ]
        self.assertGreater(len(texts[0]), 20)
        self.assertEqual(texts, [texts[0]] * len(texts))

    def test_drafters_agree(self):
        profile = self.write("profile.json", json.dumps(PROFILE))
        oracle = ("--speculative-algorithm", "oracle", "--speculative-draft-model-path", profile)
        for sampling in ((), ("--temperature", "0.8", "--seed", "7")):
            with self.subTest(sampling=sampling):
                plain = self.answer(*FEW, *sampling, "--speculative-algorithm", "none", PROMPT)
                ngram = self.answer(*FEW, *sampling, "--speculative-algorithm", "ngram", PROMPT)
                policy = self.answer("--max-tokens", 24, *sampling, PROMPT)
                replay = self.answer(*FEW, *sampling, *oracle, PROMPT)
                self.assertEqual([ngram, policy, replay], [plain] * 3)
        greedy = self.answer(*FEW, PROMPT)
        self.assertNotEqual(greedy, plain)

    def test_raw_leaves_the_template_out(self):
        self.assertNotEqual(self.answer(*FEW, "--raw", PROMPT), self.answer(*FEW, PROMPT))
        template = ("<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by "
                    "Hugging Face<|im_end|>\n<|im_start|>user\n" + PROMPT +
                    "<|im_end|>\n<|im_start|>assistant\n")
        self.assertEqual(self.answer(*FEW, "--raw", template), self.answer(*FEW, PROMPT))

    def test_stop_takes_one_string(self):
        whole = self.answer(*FEW, PROMPT).decode()
        words = whole.split()
        # The prompt behind --stop stays the prompt, and brackets are no list.
        text = self.answer(*FEW, "--stop", words[2], PROMPT).decode()
        self.assertEqual(text, whole[:whole.index(words[2])] + "\n")
        text = self.answer(*FEW, "--stop", "no such text", "--stop", words[1], PROMPT).decode()
        self.assertEqual(text, whole[:whole.index(words[1])] + "\n")
        text = self.answer(*FEW, "--stop", f"[{words[1]},{words[2]}]", PROMPT).decode()
        self.assertEqual(text, whole)

    def test_figures(self):
        code, _, err = self.kdtree("run", *FEW, "--stats", "--stats-json", "stats.json", PROMPT)
        self.assertEqual(code, 0, err)
        stats = json.loads((self.folder / "stats.json").read_text())
        kinds = {"prompt_tokens": int, "reused_tokens": int, "prefill_s": float, "tokens": int,
                 "seconds": float, "tokens_per_s": float, "rounds": int,
                 "acceptance_length": float, "mean_nodes": float, "kv_pool": dict,
                 "finish_reason": str}
        self.assertEqual({key: type(value) for key, value in stats.items()}, kinds)
        self.assertEqual(stats["reused_tokens"], 0)
        # One session in a pool of its own lies in one piece.
        pool = stats["kv_pool"]
        self.assertEqual((pool["runs_per_session"], pool["contiguous_tiles"], pool["free_runs"]),
                         (1, 1, 1))
        self.assertGreater(pool["mean_run"], 20)
        self.assertLessEqual(stats["tokens"], 24)
        self.assertAlmostEqual(stats["acceptance_length"], stats["tokens"] / stats["rounds"])
        self.assertTrue(1 <= stats["mean_nodes"] <= 6)
        text = err.decode()
        for word in ("0 of them from the cache", "answer", "rounds", "acceptance length",
                     "ms a round", "1.0 runs a session", "100 % contiguous tiles"):
            self.assertIn(word, text)
        self.answer("--max-tokens", 3, *FEW[:2], "--stats-json", "stats.json", PROMPT)
        stats = json.loads((self.folder / "stats.json").read_text())
        self.assertEqual((stats["tokens"], stats["finish_reason"]), (3, "length"))
        self.assertEqual([path.name for path in self.folder.glob("*.tmp")], [])

    def test_trees(self):
        code, out, err = self.kdtree("run", *FEW, "--show-tree", "--raw", "café " * 6)
        self.assertEqual(code, 0, err)
        text = err.decode()
        self.assertIn("é", text)
        self.assertNotIn("\\xc3\\xa9", text)
        rounds = re.split(r"\nround (\d+): context (\d+), (\d+) nodes, (\d+) tokens\n", text)
        self.assertEqual(rounds[0], "")
        bonus, context, tokens = None, None, 0
        for i in range(1, len(rounds), 5):
            number, at, nodes, emitted = map(int, rounds[i:i + 4])
            lines = rounds[i + 4].splitlines()
            self.assertEqual(number, i // 5 + 1)
            self.assertTrue(lines[0].endswith(" (root)") and lines[-1].startswith("+ "), lines)
            drawn = lines[1:-1]
            self.assertEqual(len(drawn), nodes - 1)
            marked = [line for line in drawn if line.endswith(" *")]
            self.assertEqual(len(marked), emitted - 1)
            # The accepted nodes are a path from the root: one a depth.
            depths = [re.search("[├└]", line).start() // 3 for line in marked]
            self.assertEqual(depths, list(range(len(marked))))
            if bonus is not None:
                self.assertEqual((lines[0].removesuffix(" (root)"), at), (bonus, context))
            bonus, context = lines[-1].removeprefix("+ "), at + emitted
            tokens += emitted
        self.assertGreaterEqual(tokens, 24)
        self.assertEqual(out, self.answer(*FEW, "--raw", "café " * 6))

    def test_reference_kernels_are_not_timed(self):
        cache = self.folder / "reference-cache"
        cache.mkdir()
        fast = self.answer("--raw", "--max-tokens", 2, *FEW[:2], "Hello")
        reference = self.answer("--model", MODEL, "--kernels", "ref", "--raw", "--max-tokens", 2,
                                "Hello", env=self.environment(KDTREE_CACHE=str(cache)))
        self.assertEqual(list(cache.iterdir()), [])
        self.assertEqual(reference, fast)

    def test_cost_tables_of_other_contexts_are_kept_apart(self):
        cache = self.folder / "cost-cache"
        environment = self.environment(KDTREE_CACHE=str(cache))
        for context, files in ((32, 1), (48, 2), (48, 2)):
            self.answer("--model", MODEL, "--context-length", context, "--raw", "--max-tokens", 2,
                        "Hello", env=environment)
            names = sorted(path.name for path in cache.iterdir())
            self.assertEqual(len(names), files, names)
            self.assertTrue(all(re.fullmatch(r"cost-\w+\.json", name) for name in names), names)


if __name__ == "__main__":
    main()
