"""kdtree run --prompts: a batch says what single runs say, in order, and goes on where it ended.
And run --json for one prompt."""

import json
import os
import random
import resource
import signal
import time
from pathlib import Path

from cli_support import TIMEOUT_S, CliTest, main, needs_model
from test_chat import rendered

FEW = ("--speculative-num-draft-tokens", 4, "--max-tokens", 8)
TEXTS = ["Count to three.", "Why is the sky blue?", "Say hi", "1 + 1 =", "Tell me a story"]


def lines_of(path: Path) -> list[dict]:
    text = path.read_text()
    assert text == "" or text.endswith("\n"), text
    return [json.loads(line) for line in text.splitlines()]


class PromptsTest(CliTest):
    def prompts(self, *conversations: dict, name: str = "prompts.jsonl") -> Path:
        return self.write(name, "".join(json.dumps(each) + "\n" for each in conversations))

    def many(self, count: int) -> Path:
        return self.prompts(*({"id": f"p{i}", "turns": [TEXTS[i % len(TEXTS)] + " " * (i // 5)]}
                              for i in range(count)))

    def batch(self, prompts: Path, *arguments: object, code: int = 0, name: str = "out.jsonl",
              **options) -> list[dict]:
        """The lines of a fresh file."""
        out = self.folder / name
        for path in (out, Path(f"{out}.settings.json")):
            path.unlink(missing_ok=True)
        got, text, err = self.kdtree("run", "--prompts", prompts, "--json", out,
                                     *(arguments or FEW), **options)
        self.assertEqual((got, text), (code, b""), err)
        return lines_of(out)

    def single(self, prompt: str, *arguments: object) -> dict:
        """What run says of one prompt."""
        line = json.loads(self.answer(*(arguments or FEW), "--json", "-", "--prompt", prompt))
        del line["stats"]
        return line


class Refused(PromptsTest):
    def test_what_does_not_go_together(self):
        prompts = self.many(1)
        self.refused("run", "--prompts", prompts, naming="--json")
        for flags in (["hi"], ["--prompt-file", "p"], ["--show-tree"]):
            self.refused("run", "--prompts", prompts, "--json", "o.jsonl", *flags,
                         naming="with --prompts")
        for flags in (["--n", "2"], ["--limit", "1"], ["--overwrite"]):
            self.refused("run", "hi", *flags, naming="without --prompts")
        self.refused("run", "--logprobs", "2", "hi", naming="--json")
        self.refused("run", "--prompts", prompts, "--json", "o.jsonl", "--speculative-algorithm",
                     "oracle", naming="oracle")
        before = prompts.read_bytes()
        self.refused("run", "--prompts", prompts, "--json", prompts, "--overwrite",
                     naming="is the input")
        self.assertEqual(prompts.read_bytes(), before)
        for flag, value in (("--n", "0"), ("--n", "1025"), ("--logprobs", "-1"),
                            ("--logprobs", "129"), ("--limit", "0"),
                            ("--max-running-requests", "0")):
            self.refused("run", "--prompts", prompts, "--json", "o", flag, value, naming=flag)

    @needs_model
    def test_input_of_another_shape(self):
        good = '{"id": "a", "turns": ["hi"]}\n'
        for name, content, naming in [
            ("none.jsonl", "", "no prompt"), ("garbage.jsonl", good + "garbage\n", "line 2"),
            ("number.jsonl", '{"id": 1, "turns": [3]}\n', "line 1"),
            ("string.jsonl", good * 2 + '{"turns": "hi"}\n', "line 3"),
            ("id.jsonl", '{"id": [1], "turns": ["hi"]}\n', "line 1"),
            ("torn.jsonl", good + good[:12], "line 2"), ("binary.jsonl", b"\x7fELF\0\xff", "line 1"),
            ("deep.jsonl", "[" * 1_000_000, "line 1"),
        ]:
            with self.subTest(name=name):
                path = self.write(name, content)
                self.refused("run", "--prompts", path, "--json", "o.jsonl", naming=naming)
        self.refused("run", "--prompts", "/no/such", "--json", "o.jsonl", naming="/no/such")
        self.refused("run", "--prompts", self.folder, "--json", "o.jsonl", naming="directory")
        self.refused("run", "--prompts", "-", "--json", "o.jsonl", naming="standard input",
                     preexec_fn=lambda: os.close(0))
        prompts = self.many(1)
        for out in ("/no/such/folder/o.jsonl", self.folder):
            self.refused("run", "--prompts", prompts, "--json", out, naming=str(out))
        self.refused("run", "--prompts", prompts, "--json", "o.jsonl", "--temperature", "nan",
                     "--model", "/no/such.gguf", naming="/no/such.gguf")
        self.assertFalse((self.folder / "o.jsonl").exists())


@needs_model
class Answers(PromptsTest):
    def test_a_batch_says_what_single_runs_say(self):
        prompts = self.prompts(*({"id": i, "turns": [text], "other": None}
                                 for i, text in enumerate(TEXTS)))
        for sampling in ((), ("--temperature", "0.8", "--seed", "7")):
            with self.subTest(sampling=sampling):
                alone = [{"id": i, **self.single(text, *FEW, *sampling)}
                         for i, text in enumerate(TEXTS)]
                self.assertGreater(len({len(line["text"]) for line in alone}), 1)
                for running in (1, 3, 8):
                    self.assertEqual(self.batch(prompts, *FEW, *sampling, "--max-running-requests",
                                                running), alone)
        self.assertEqual(list(alone[0]), ["id", "ids", "text", "finish_reason"])
        self.assertEqual({line["finish_reason"] for line in alone} - {"stop", "length"}, set())

    def test_order_and_ids(self):
        # The first is the longest: the others wait for it.
        prompts = self.write("mixed.jsonl", "\n".join([
            '{"id": "long", "turns": ["%s"]}' % ("word " * 300), '{"turns": ["hi"]}', "  ",
            '{"id": 0.5, "turns": ["hi"]}', '{"id": "é \\n", "turns": ["hi"]}',
            '{"id": "é \\n", "turns": ["hi"]}']))
        ids = [line["id"] for line in self.batch(prompts)]
        self.assertEqual(ids, ["long", 2, 0.5, "é \n", "é \n"])
        out = self.answer("--prompts", "-", "--json", "-", "--limit", 2, *FEW,
                          stdin=prompts.read_bytes())
        self.assertEqual([json.loads(line)["id"] for line in out.splitlines()], ids[:2])

    def test_turns(self):
        turns = ["Count to three.", "And backwards?", "Thanks"]
        line, = self.batch(self.prompts({"id": "c", "turns": turns}))
        said = []
        for turn, answer in zip(turns, line["turns"], strict=True):
            said.append(turn)
            self.assertEqual(answer, self.single(rendered(*said), *FEW, "--raw"))
            said.append(answer["text"])
        self.assertEqual({**line["turns"][-1], "id": "c", "turns": line["turns"]}, line)
        raw, = self.batch(self.prompts({"id": "c", "turns": turns[:2]}), *FEW, "--raw")
        joined = turns[0] + raw["turns"][0]["text"] + turns[1]
        self.assertEqual(raw["turns"][1], self.single(joined, *FEW, "--raw"))
        system, = self.batch(self.prompts({"id": 1, "turns": ["hi"]}), *FEW, "--system", "Be rude")
        self.assertEqual(system, {"id": 1, **self.single("hi", *FEW, "--system", "Be rude")})

    def test_samples(self):
        sampling = (*FEW, "--temperature", "1.2")
        prompts = self.prompts({"id": "a", "turns": ["Say hi", "Why?"]}, {"turns": ["Say hi"]})
        two, one = self.batch(prompts, *sampling, "--seed", 5, "--n", 3)
        self.assertEqual(list(one), ["id", "choices"])
        for i in range(3):
            seed = (*sampling, "--seed", 5 + i)
            self.assertEqual(one["choices"][i], self.single("Say hi", *seed))
            self.assertEqual(two["choices"][i]["turns"][0], one["choices"][i])
            self.assertEqual(two["choices"][i]["turns"][1], self.single(
                rendered("Say hi", one["choices"][i]["text"], "Why?"), *seed, "--raw"))
        self.assertGreater(len({choice["text"] for choice in one["choices"]}), 1)

    def test_logprobs(self):
        line, = self.batch(self.prompts({"id": "a", "turns": ["Say hi"]}), *FEW, "--logprobs", 3)
        alone = self.single("Say hi", *FEW, "--logprobs", 3)
        self.assertEqual(line, {"id": "a", **alone})
        self.assertEqual(len(line["logprobs"]), len(line["ids"]))
        for token, position in zip(line["ids"], line["logprobs"]):
            self.assertEqual(len(position["top"]), 3)
            # Greedy: the first of the list stands there.
            self.assertEqual(position["top"][0], {"id": token, "logprob": position["logprob"]})
        line, = self.batch(self.prompts({"turns": ["Say hi"]}), *FEW, "--logprobs", 0)
        self.assertEqual([position["top"] for position in line["logprobs"]], [[]] * 8)

    def test_what_cannot_be_served(self):
        prompts = self.prompts({"id": 1, "turns": ["hi"]}, {"id": 2, "turns": [""]},
                               {"id": 3, "turns": []}, {"id": 4, "turns": ["word " * 9000]},
                               {"id": 5, "turns": ["hi", "word " * 9000]}, {"id": 6, "turns": ["hi"]})
        lines = self.batch(prompts, code=1)
        self.assertEqual([line["id"] for line in lines], [1, 2, 3, 4, 5, 6])
        self.assertEqual(["error" in line for line in lines],
                         [False, True, True, True, True, False])
        for line, word in zip(lines[1:5], ("turn 1", "no turn", "8192", "8192")):
            self.assertEqual(list(line), ["id", "error"])
            self.assertIn(word, line["error"])
        # Nothing is left to do, and the errors are still there.
        code, _, err = self.kdtree("run", "--prompts", prompts, "--json", "out.jsonl", *FEW)
        self.assertEqual((code, err.count(b"\n")), (1, 1))
        self.assertIn(b"4 of 6 prompts could not be answered", err)

    def test_figures(self):
        out = self.folder / "figures.jsonl"
        code, _, err = self.kdtree("run", "--prompts", self.many(3), "--json", out, *FEW, "--stats",
                                   "--stats-json", "stats.json")
        self.assertEqual(code, 0)
        stats = json.loads((self.folder / "stats.json").read_text())
        self.assertEqual((stats["prompts"], stats["tokens"]),
                         (3, sum(len(line["ids"]) for line in lines_of(out))))
        self.assertAlmostEqual(stats["tokens_per_s"], stats["tokens"] / stats["seconds"])
        self.assertRegex(err.decode(), r"3 answered(.|\n)*tokens/s(.|\n)*acceptance length [1-4]\.")

    def test_one_prompt_as_json(self):
        code, text, err = self.kdtree("run", *FEW, "--json", "one.json", "Say hi")
        self.assertEqual((code, err), (0, b""))
        line, = lines_of(self.folder / "one.json")
        self.assertEqual(list(line), ["ids", "text", "finish_reason", "stats"])
        self.assertEqual((line["text"] + "\n").encode(), text)
        self.assertEqual(line["stats"]["tokens"], len(line["ids"]))
        for path in ("/no/such/one.json", self.folder):
            self.refused("run", "--json", path, "hi", naming=str(path))


@needs_model
class Resuming(PromptsTest):
    LONGER = ("--speculative-num-draft-tokens", 4, "--max-tokens", 24)

    def setUp(self):
        self.input = self.many(12)
        self.out = self.folder / "resumed.jsonl"
        self.settings = Path(f"{self.out}.settings.json")
        self.out.unlink(missing_ok=True)
        self.settings.unlink(missing_ok=True)
        self.command = ("run", "--prompts", self.input, "--json", self.out)

    def finish(self, *arguments: object, code: int = 0) -> bytes:
        got, _, err = self.kdtree(*self.command, *(arguments or FEW))
        self.assertEqual(got, code, err)
        return self.out.read_bytes()

    def test_killed_at_any_moment(self):
        begin = time.monotonic()
        whole = self.finish(*self.LONGER)
        lasts = time.monotonic() - begin
        self.out.unlink()
        draw = random.Random(1)
        partial = 0
        for _ in range(4):
            with self.start(*self.command, *self.LONGER, "--overwrite") as process:
                time.sleep(draw.uniform(0.2, 1) * lasts)
                process.kill()
            kept = self.out.read_bytes() if self.out.exists() else b""
            self.assertTrue(whole.startswith(kept), kept)
            partial += 0 < len(kept) < len(whole)
            # Other ways to draft and to batch say the same.
            self.assertEqual(self.finish("--speculative-algorithm", "none", "--max-tokens", 24,
                                         "--max-running-requests", 3), whole)
        print(f"killed with some lines written: {partial} of 4 times")

    def test_interrupted(self):
        whole = self.finish(*self.LONGER)
        self.out.unlink()
        with self.start(*self.command, *self.LONGER, "--max-running-requests", 1) as process:
            while not (self.out.exists() and self.out.stat().st_size):
                time.sleep(0.01)
            process.send_signal(signal.SIGINT)
            self.assertEqual(process.wait(TIMEOUT_S), 130)
            self.assertEqual(process.stdout.read() + process.stderr.read(), b"")
        kept = self.out.read_bytes()
        self.assertTrue(kept.endswith(b"\n") and whole.startswith(kept) and kept != whole)
        self.assertEqual(self.finish(*self.LONGER), whole)

    def test_kept_lines_are_not_computed_again(self):
        whole = self.finish()
        lines = whole.splitlines(keepends=True)
        marked = lines[0].replace(b'"text":"', b'"text":"kept ')
        self.out.write_bytes(marked + lines[1] + lines[2][:20])
        self.assertEqual(self.finish(), marked + b"".join(lines[1:]))
        self.out.write_bytes(lines[0][:5])
        self.assertEqual(self.finish(), whole)
        # More of the input; then all of it is there and no model is needed.
        self.out.unlink()
        self.assertEqual(self.finish(*FEW, "--limit", 2), b"".join(lines[:2]))
        self.assertEqual(self.finish(*FEW, "--limit", 3), b"".join(lines[:3]))
        before = self.out.stat().st_mtime_ns
        self.assertEqual(self.finish(*FEW, "--limit", 3), b"".join(lines[:3]))
        self.assertEqual(self.out.stat().st_mtime_ns, before)
        self.refused(*self.command, *FEW, "--limit", 2, naming="3 lines for 2 prompts")

    def test_nothing_is_mixed(self):
        whole = self.finish(*FEW, "--limit", 2)
        for flag, value, key in (("--max-tokens", 9, "max_tokens"), ("--seed", 1, "seed"),
                                 ("--temperature", 1, "temperature"), ("--n", 1, "n"),
                                 ("--logprobs", 0, "logprobs"), ("--stop", "x", "stop"),
                                 ("--system", "x", "system"), ("--kernels", "ref", "kernels"),
                                 ("--context-length", 99, "context_length")):
            with self.subTest(flag=flag):
                arguments = (*FEW[:2], *(() if flag == "--max-tokens" else FEW[2:]), flag, value)
                self.refused(*self.command, *arguments, naming=f"begun with {key} = ")
                self.assertEqual(self.out.read_bytes(), whole)
        lines = whole.splitlines(keepends=True)
        for content, naming in ((lines[1] + lines[0], 'the answer to "p1"'),
                                (lines[0] + b"garbage\n", "line 2 is no answer"),
                                (lines[0] + b"\n", "line 2 is no answer"),
                                (b"\x7fELF\n", "line 1 is no answer")):
            self.out.write_bytes(content)
            self.refused(*self.command, *FEW, naming=naming)
            self.assertEqual(self.out.read_bytes(), content)
        self.out.write_bytes(whole)
        self.settings.write_text("[")
        self.refused(*self.command, *FEW, naming="no JSON object")
        self.settings.unlink()
        self.refused(*self.command, *FEW, naming="--overwrite")
        self.assertEqual(self.finish(*FEW, "--limit", 2, "--overwrite"), whole)

    def test_a_forbidden_token_is_a_setting(self):
        first = self.single(TEXTS[0])["ids"][0]
        forbidden = (*FEW, "--limit", 2, "--logit-bias", f"{first}=-inf")
        whole = self.finish(*forbidden)
        self.assertNotIn(first, lines_of(self.out)[0]["ids"])
        self.out.write_bytes(whole.splitlines(keepends=True)[0])
        self.assertEqual(self.finish(*forbidden), whole)
        self.refused(*self.command, *FEW, "--limit", 2, naming="logit_bias")

    def test_two_at_once(self):
        with self.start(*self.command, *self.LONGER, "--max-running-requests", 1) as process:
            while not (self.out.exists() and self.out.stat().st_size):
                time.sleep(0.01)
            self.refused(*self.command, *self.LONGER, naming="another process")
            process.kill()

    def test_full_disk_and_closed_pipe(self):
        whole = self.finish(*FEW, "--limit", 8)
        size = len(whole) - 10
        self.out.unlink()

        def limit_files():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

        self.assertGreater(size, len(self.settings.read_bytes()))
        self.refused(*self.command, *FEW, "--limit", 8, naming="File too large",
                     preexec_fn=limit_files)
        kept = self.out.read_bytes()
        self.assertEqual(kept, b"".join(whole.splitlines(keepends=True)[:7]))
        self.assertEqual(self.finish(*FEW, "--limit", 8), whole)
        self.refused("run", "--prompts", self.input, "--json", "/dev/full", *FEW,
                     naming="No space left")
        self.assertFalse(Path("/dev/full.settings.json").exists())
        with open("/dev/full", "wb") as full:
            code, _, err = self.kdtree("run", "--prompts", self.input, "--json", "-", *FEW,
                                       stdout=full)
        self.assertEqual((code, err.count(b"\n")), (1, 1), err)
        with open(self.write("stdout.jsonl", ""), "wb") as stdout:
            code, _, err = self.kdtree("run", "--prompts", self.input, "--json", "-", *FEW,
                                       "--limit", 8, stdout=stdout, preexec_fn=limit_files)
        self.assertEqual((code, err.count(b"\n")), (1, 1), err)
        self.assertEqual((self.folder / "stdout.jsonl").read_bytes(), kept)
        with self.start("run", "--prompts", self.input, "--json", "-", *FEW,
                        "--max-running-requests", 1) as process:
            process.stdout.readline()
            process.stdout.close()
            err = process.stderr.read()
        self.assertEqual((process.returncode, err.count(b"\n")), (1, 1), err)
        self.assertIn(b"Broken pipe", err)


if __name__ == "__main__":
    main()
