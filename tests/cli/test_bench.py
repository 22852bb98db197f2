"""kdtree bench: the JSON object of docs/bench.md."""

import json
import unittest

from cli_support import CliTest, main, needs_model

PROMPTS = [{"id": "a", "turns": ["Repeat after me: one two three one two three"]},
           {"id": "b", "turns": ["Why is the sky blue?", "And at night?"]}]
SPREAD = ("seconds", "prefill_s", "tokens_per_s", "acceptance_length", "mean_nodes", "ms_per_round")
KV_POOL = {"runs_per_session", "mean_run", "contiguous_tiles", "free_runs"}
PHASES = {"draft", "tree", "verify", "accept", "commit", "other"}


@needs_model
class BenchTest(CliTest):
    def bench(self, *arguments):
        lines = "".join(json.dumps(prompt) + "\n" for prompt in PROMPTS)
        code, out, err = self.kdtree("bench", "--prompts", self.write("set.jsonl", lines),
                                     "--json", "out.json", *arguments)
        self.assertEqual(code, 0, err)
        return json.loads((self.folder / "out.json").read_text()), out.decode()

    def test_contract(self):
        result, table = self.bench("--max-tokens", 8, "--repeat", 2,
                                   "--speculative-num-draft-tokens", 4)
        self.assertEqual(list(result), ["schema", "commit", "device", "threads", "model",
                                        "drafter", "temperature", "runs"])
        self.assertEqual((result["schema"], result["drafter"], result["temperature"]),
                         (1, "ngram", 0))
        self.assertEqual(result["model"], "SmolLM2-135M-Instruct.Q4_1.gguf")
        self.assertGreaterEqual(result["threads"], 1)
        for key in ("commit", "device"):
            self.assertIsInstance(result[key], str)
        runs = result["runs"]
        self.assertEqual([(run["mode"], run["nodes"]) for run in runs],
                         [("plain", 1), ("chain", 4), ("tree", 4), ("policy", 0)])
        for run in runs:
            self.assertEqual((run["prompt_set"], run["prompts"]), ("set", 2))
            self.assertEqual(run["tokens"], runs[0]["tokens"])
            for key in SPREAD:
                self.assertIsInstance(run[key], float)
                self.assertTrue(0 < run[key + "_min"] <= run[key] <= run[key + "_max"], run)
            self.assertIsInstance(run["rounds"], int)
            self.assertEqual(set(run["phases_ms"]), PHASES)
            self.assertTrue(all(isinstance(ms, float) for ms in run["phases_ms"].values()))
            self.assertEqual(set(run["kv_pool"]), KV_POOL)
            self.assertEqual(run["kv_pool"]["runs_per_session"], 1)
            self.assertIn(run["mode"], table)
        self.assertTrue(8 < runs[0]["tokens"] <= 16)
        self.assertEqual((runs[0]["rounds"], runs[0]["identical_to_plain"]),
                         (runs[0]["tokens"], None))
        self.assertEqual([run["identical_to_plain"] for run in runs[1:]], [True] * 3)

    def test_without_plain_nothing_is_compared(self):
        result, _ = self.bench("--max-tokens", 4, "--repeat", 1, "--modes", "tree",
                               "--limit", 1)
        (run,) = result["runs"]
        self.assertEqual((run["mode"], run["prompts"], run["identical_to_plain"]),
                         ("tree", 1, None))

    def test_oracle_sampled(self):
        profile = self.write("profile.json", json.dumps({"hit": [[0.9], [0.8], [0.7]]}))
        result, _ = self.bench("--max-tokens", 8, "--repeat", 1, "--modes", "tree,plain",
                               "--temperature", 0.8, "--seed", 7, "--speculative-algorithm",
                               "oracle", "--speculative-draft-model-path", profile)
        plain, tree = result["runs"]
        self.assertEqual((plain["mode"], tree["mode"]), ("plain", "tree"))
        self.assertTrue(tree["identical_to_plain"])
        self.assertGreater(tree["acceptance_length"], 1.3)


if __name__ == "__main__":
    main()
