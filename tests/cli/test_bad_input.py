"""What should not have been asked: one clear line that names the value, exit code 1."""

import os
import unittest

from cli_support import MODEL, PROGRAM, CliTest, main, needs_model


class Arguments(CliTest):
    def test_commands(self):
        self.refused(naming="no command")
        self.refused("frob", naming='"frob"')
        self.refused("--frob", naming='"--frob"')
        self.refused("run", "--frob", "hi", naming="--frob")
        self.refused("run", "hi", "there", naming="there")
        self.refused("bench", naming="--prompts")

    def test_values(self):
        for flag, value in [
            ("--speculative-num-draft-tokens", "0"), ("--speculative-num-draft-tokens", "129"),
            ("--speculative-num-draft-tokens", "many"), ("--speculative-algorithm", "frob"),
            ("--kernels", "frob"), ("--kernels", "1"), ("--max-tokens", "0"),
            ("--max-tokens", "-3"), ("--context-length", "0"), ("--threads", "0"),
            ("--threads", "2000"), ("--temperature", "warm"), ("--top-k", "99999999999"),
            ("--seed", "-1"), ("--seed", "99999999999999999999"), ("--seed", "1.5"),
            ("--page-size", "8"), ("--page-size", "two"), ("--kv-extent", "-1"), ("--kv-headroom", "x"),
            ("--kv-evict-batch", "1.5"), ("--kv-relocate", "-5"),
        ]:
            with self.subTest(flag=flag, value=value):
                self.refused("run", flag, value, "hi", naming=value)
                self.refused("run", flag, value, "hi", naming=flag)

    def test_prompt_sources(self):
        empty = self.write("empty.txt", "")
        for arguments in (["--prompt", ""], [""], ["--prompt-file", empty], []):
            with self.subTest(arguments=arguments):
                # Without the model its absence is told first.
                naming = "empty" if MODEL.is_file() else "smollm2"
                self.refused("run", *arguments, naming=naming)
        self.refused("run", "--prompt", "a", "b", naming="more than one")
        self.refused("run", "--prompt", "", "--prompt-file", empty, naming="more than one")
        self.refused("run", "--prompt-file", "/no/such/file", naming="/no/such/file")
        for path in ("-", "one.json"):
            self.refused("run", "--json", path, "--stats-json", path, "hi", naming="--stats-json")
        self.refused("run", "--prompt-file", self.folder, naming=str(self.folder))

    @needs_model
    def test_an_empty_prompt_is_not_replaced_by_standard_input(self):
        self.refused("run", "--prompt", "", stdin=b"hello", naming="empty")

    def test_closed_standard_input(self):
        self.refused("run", naming="standard input", preexec_fn=lambda: os.close(0))

    def test_model_paths(self):
        fifo = self.folder / "fifo.gguf"
        os.mkfifo(fifo)
        loop = self.folder / "loop"
        loop.symlink_to(loop)
        for path in [self.folder, "/no/such.gguf", "no-such-name", "", "a" * 5000,
                     "a" * 5000 + ".gguf", self.write("empty.gguf", ""),
                     self.write("short.gguf", "GGU"), self.write("text.gguf", "hello " * 100),
                     fifo, loop, "/dev/zero"]:
            with self.subTest(path=str(path)[:80]):
                self.refused("run", "--model", path, "hi", naming=str(path))

    def test_message_stays_one_line(self):
        self.refused("run", "--model", "a\nb", "hi", naming="a\\x0ab")

    def test_missing_model_says_what_to_do(self):
        environment = self.environment(KDTREE_CACHE="/no/such/cache")
        self.refused("run", "hi", env=environment, naming="kdtree fetch smollm2")

    def test_oracle_without_profile(self):
        self.refused("run", "--speculative-algorithm", "oracle", "hi", naming="profile")


@needs_model
class WithModel(CliTest):
    def test_truncated_model(self):
        whole = MODEL.read_bytes()
        for name, count in (("header.gguf", 1000), ("data.gguf", len(whole) // 2)):
            self.refused("run", "--model", self.write(name, whole[:count]), "hi", naming=name)

    def test_sampling(self):
        for flag, value in [("--temperature", "nan"), ("--temperature", "inf"),
                            ("--temperature", "-1"), ("--top-p", "0"), ("--top-p", "nan"),
                            ("--top-p", "1.5"), ("--min-p", "-1"), ("--min-p", "2"),
                            ("--top-k", "-1")]:
            with self.subTest(flag=flag, value=value):
                self.refused("run", flag, value, "hi", naming=value)
        self.refused("run", "--stop", "", "hi", naming="stop")

    def test_context(self):
        self.refused("run", "--context-length", "9000", "hi", naming="9000")
        self.refused("run", "--context-length", "10", "hello", naming="31 tokens")
        huge = self.write("huge.txt", "hello world, this is text. " * 400_000)
        self.refused("run", "--prompt-file", huge, naming="8192")

    def test_oracle_profiles(self):
        for name, content in [("garbage.json", "garbage"), ("number.json", '{"hit": 3}'),
                              ("sums.json", '{"hit": [[0.9, 0.9]]}'),
                              ("deep.json", "[" * 1_000_000),
                              ("long.json", '{"hit": [%s]}' % ",".join(["[0.5]"] * 100_000))]:
            with self.subTest(name=name):
                self.refused("run", "--speculative-algorithm", "oracle",
                             "--speculative-draft-model-path", self.write(name, content), "hi",
                             naming=name)

    def test_odd_prompts_are_answered(self):
        for content in (b"a\xff\xfeb \xe2\x82", b"he\0llo", bytes(range(256))):
            with self.subTest(content=content[:16]):
                self.answer("--speculative-num-draft-tokens", 4, "--max-tokens", 3,
                            "--prompt-file", self.write("odd.txt", content))

    def test_unwritable_outputs_are_found_before_anything_runs(self):
        prompts = self.write("one.jsonl", '{"turns": ["hi"]}\n')
        for path in ("/no/such/folder/out.json", self.folder):
            self.refused("run", "--stats-json", path, "hi", naming=str(path))
            self.refused("bench", "--prompts", prompts, "--json", path, naming=str(path))
        self.assertEqual(list(self.folder.glob("*.tmp")), [])

    def test_what_is_no_regular_file_is_written_in_place(self):
        fifo = self.folder / "stats.fifo"
        os.mkfifo(fifo)
        link = self.folder / "link.json"
        link.symlink_to(self.folder / "target.json")
        reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
        self.answer("--speculative-num-draft-tokens", 4, "--max-tokens", 2, "--stats-json", fifo,
                    "hi")
        self.assertIn(b"finish_reason", os.read(reader, 4096))
        os.close(reader)
        self.assertTrue(fifo.is_fifo())
        self.answer("--speculative-num-draft-tokens", 4, "--max-tokens", 2, "--stats-json", link,
                    "hi")
        self.assertTrue(link.is_symlink() and (self.folder / "target.json").is_file())

    def test_closed_and_full_streams(self):
        few = ("--speculative-num-draft-tokens", 4, "--max-tokens", 60, "Tell me a story")
        with self.start("run", *few) as process:
            process.stdout.read(3)
            process.stdout.close()
            err = process.stderr.read().decode()
        self.assertEqual((process.returncode, err.count("\n")), (1, 1), err)
        self.assertIn("Broken pipe", err)
        prompts = self.write("one.jsonl", '{"turns": ["hi"]}\n')
        bench = ("bench", "--prompts", prompts, "--modes", "plain", "--max-tokens", 2)
        with open("/dev/full", "wb") as full:
            for command in (("run", *few), bench):
                code, _, err = self.kdtree(*command, stdout=full)
                self.assertEqual((code, err.count(b"\n")), (1, 1), err)
                self.assertIn(b"No space left", err)
            # Nobody hears the figures; the answer is still whole.
            code, out, _ = self.kdtree("run", "--stats", "--show-tree", *few[:2], "--max-tokens", 4,
                                       "hi", stderr=full)
            self.assertEqual(code, 0)
            self.assertTrue(out.endswith(b"\n"))

    def test_cache_that_cannot_be_written(self):
        blocked = self.write("blocked", "")
        code, out, err = self.kdtree("run", "--model", MODEL, "--context-length", 64, "--raw",
                                     "--max-tokens", 3, "Hi",
                                     env=self.environment(KDTREE_CACHE=str(blocked)))
        self.assertEqual(code, 0, err)
        self.assertEqual(err.count(b"\n"), 1, err)
        self.assertIn(b"cannot keep the cost table", err)


@needs_model
class BenchInput(CliTest):
    def test_prompt_files(self):
        good = '{"id": "a", "turns": ["hi"]}\n'
        for name, content, naming in [
            ("none.jsonl", "", "none.jsonl"), ("garbage.jsonl", "garbage\n", "line 1"),
            ("empty-turn.jsonl", good + '{"turns": [""]}\n', "line 2"),
            ("late.jsonl", good * 2 + '{"turns": [3]}\n', "line 3"),
            ("binary.jsonl", b"\x7fELF\0\xff\n", "line 1"),
            ("deep.jsonl", "[" * 1_000_000, "line 1"),
            ("long.jsonl", '{"id": "h", "turns": ["%s"]}\n' % ("hello " * 500_000), "prompt h"),
        ]:
            with self.subTest(name=name):
                path = self.write(name, content)
                self.refused("bench", "--prompts", path, naming=name)
                self.refused("bench", "--prompts", path, naming=naming)
        self.refused("bench", "--prompts", "/no/such.jsonl", naming="/no/such.jsonl")
        # A later file is looked at before the first one runs.
        first = self.write("first.jsonl", good)
        self.refused("bench", "--prompts", first, "/no/such.jsonl", naming="/no/such.jsonl")

    def test_modes(self):
        prompts = self.write("one.jsonl", '{"turns": ["hi"]}\n')
        self.refused("bench", "--prompts", prompts, "--modes", "nonsense", naming="nonsense")
        self.refused("bench", "--prompts", prompts, "--temperature", "nan", naming="nan")

    def test_file_name_that_is_no_utf8(self):
        name = os.fsencode(self.folder) + b"/bad\xff.jsonl"
        with open(name, "wb") as file:
            file.write(b'{"turns": ["hi"]}\n')
        code, _, err = self.kdtree("bench", "--prompts", name, "--modes", "plain", "--max-tokens",
                                   2, "--repeat", 1, "--json", "out.json")
        self.assertEqual(code, 0, err)
        self.assertTrue((self.folder / "out.json").is_file())


class Help(CliTest):
    def test_help_and_version(self):
        for arguments, words in [
            (["--help"], ["SYNOPSIS\n  kdtree ", "run", "bench"]),
            (["run", "--help"], ["none|ngram|dflash|oracle", "fast|ref", "--stop", "EXAMPLE", "130"]),
            (["bench", "--help"], ["--modes", "8; policy: the", "EXAMPLE"]),
            (["--version"], ["kdtree 0."]),
        ]:
            code, out, err = self.kdtree(*arguments)
            self.assertEqual((code, err), (0, b""))
            text = out.decode("ascii")
            self.assertTrue(text.replace("\n", " ").isprintable(), text)
            for word in words:
                self.assertIn(word, text)
            self.assertNotIn(PROGRAM, text)


if __name__ == "__main__":
    main()
