"""kdtree score: numbers against transformers and llama.cpp, format, refused lines, endings."""

import json
import math
import os
import re
import resource
import signal
import struct
import subprocess
import sys
import time
import unittest
from pathlib import Path

from cli_support import TIMEOUT_S, CliTest, main, needs_model

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
import compare_perplexity  # noqa: E402

TEXTS = [json.loads(line) for line in
         (compare_perplexity.DATA / "texts.jsonl").read_text(encoding="utf-8").splitlines()]
EXPECTED = compare_perplexity.expected_texts()
VOCABULARY = 49152
LONG_RUN = json.dumps({"ids": [i % 1000 + 500 for i in range(3000)]}) + "\n"


def lines_of(values) -> bytes:
    return "".join(json.dumps(value, ensure_ascii=False) + "\n" for value in values).encode()


class ScoreTest(CliTest):
    def score(self, *arguments, stdin: bytes = b"", code: int = 0, **options):
        """The output's lines, parsed, and standard error."""
        got, out, err = self.kdtree("score", *arguments, stdin=stdin, **options)
        self.assertEqual(got, code, err)
        self.assertTrue(out == b"" or out.endswith(b"\n"))
        return [json.loads(line) for line in out.splitlines()], err.decode()


@needs_model
class Numbers(ScoreTest):
    def check_perplexity(self, err: str, figures: dict) -> None:
        said = float(re.search(r"^perplexity (\S+) over", err).group(1))
        self.assertAlmostEqual(said / figures["perplexity"]["ours"], 1, delta=1e-5)

    def test_references_equal_transformers(self):
        # Float rounding alone is left: measured 0.00002 at most, half a unit of the fixture's last
        # digit included; a wrong epsilon moves 0.008. The first tokens of each text: the references
        # are slow, and a position depends on what stands before it only.
        texts = compare_perplexity.expected_texts(12)
        lines, err = self.score("--kernels", "ref",
                                stdin=lines_of({"ids": text["ids"]} for text in texts))
        figures = compare_perplexity.compare(texts, lines)
        self.check_perplexity(err, figures)
        self.assertLess(abs(figures["ours_against_float32"]["perplexity_ratio"] - 1), 2e-5, figures)
        self.assertLess(figures["ours_against_float32"]["max"], 1e-4, figures)

    def test_fast_kernels_within_int8_noise(self):
        # int8 activations move a log-probability by 0.1 (RMS). Over 999 positions that is a
        # standard error of 0.3 % of the perplexity, on top of a bias: noise makes the right token
        # less likely on average, by 1.07 % for llama.cpp and 0.77 % for us when this was written.
        lines, err = self.score("--top", 5, stdin=lines_of(TEXTS))
        self.assertEqual([len(line["positions"]) for line in lines],
                         [len(text["ids"]) - 1 for text in EXPECTED])
        figures = compare_perplexity.compare(EXPECTED, lines)
        self.check_perplexity(err, figures)
        noise = figures["llama_cpp_against_float32"]
        for peer in ("float32", "llama_cpp"):
            ours = figures[f"ours_against_{peer}"]
            self.assertLess(abs(ours["perplexity_ratio"] - 1), 0.02, figures)
            self.assertLess(ours["rms"], 1.5 * noise["rms"], figures)
            self.assertLess(ours["max"], 2 * noise["max"], figures)
        self.assertGreater(figures["ours_against_float32"]["rms"], 0.005, "no int8 activations?")

    def test_top_equals_transformers(self):
        text = next(text for text in EXPECTED if "float32_top" in text)
        top = text["float32_top"]
        ids, positions = text["ids"][:10], range(9)
        lines, _ = self.score("--kernels", "ref", "--top", len(top["ids"][0]),
                              stdin=lines_of([{"ids": ids}]))
        for i in positions:
            ours = lines[0]["positions"][i]["top"]
            self.assertEqual([each["id"] for each in ours], top["ids"][i])
            for each, expected in zip(ours, top["log_probs"][i], strict=True):
                self.assertAlmostEqual(each["logprob"], expected, delta=1e-4)


def shortest(value: float) -> str:
    """The fewest digits that read back to the same float32."""
    as_float = struct.pack("f", value)
    for digits in range(1, 10):
        text = f"{value:.{digits}g}"
        if struct.pack("f", float(text)) == as_float:
            return text
    raise AssertionError(value)


@needs_model
class Format(ScoreTest):
    def test_text_is_its_ids(self):
        texts, err = self.score(stdin=lines_of(TEXTS))
        ids, err_of_ids = self.score(
            stdin=lines_of({"ids": text["ids"], "other": "key"} for text in EXPECTED))
        self.assertEqual(texts, ids)
        self.assertEqual(err, err_of_ids)
        positions = sum(len(line["positions"]) for line in texts)
        self.assertRegex(
            err, rf"^perplexity \S+ over {positions} positions of {len(TEXTS)} texts\n$")
        for position in (position for line in texts for position in line["positions"]):
            self.assertEqual(list(position), ["logprob"])

    def test_batches_change_nothing(self):
        stdin = lines_of(TEXTS)
        outputs = [self.kdtree("score", "--top", 3, *options, stdin=stdin)[1]
                   for options in ((), ("--max-running-requests", 1), ("--threads", 1),
                                   ("--max-running-requests", 3, "--context-length", 400))]
        self.assertEqual(len(outputs[0].splitlines()), len(TEXTS))
        self.assertEqual(outputs, [outputs[0]] * len(outputs))

    def test_order_is_that_of_the_input(self):
        # The first line needs several rounds; what is known before it has to wait.
        texts = [TEXTS[0], {"text": ""}, TEXTS[3], {"ids": [9]}]
        lines, _ = self.score(code=1, stdin=lines_of(texts))
        self.assertEqual([len(line.get("positions", "?")) for line in lines],
                         [len(EXPECTED[0]["ids"]) - 1, 1, len(EXPECTED[3]["ids"]) - 1, 0])
        self.assertEqual([i for i, line in enumerate(lines) if "error" in line], [1])

    def test_top(self):
        _, out, _ = self.kdtree("score", "--top", 4, stdin=lines_of(TEXTS[1:3]))
        for line, text in zip(out.decode().splitlines(), EXPECTED[1:3], strict=True):
            for position, token in zip(json.loads(line)["positions"], text["ids"][1:], strict=True):
                top = [(-each["logprob"], each["id"]) for each in position["top"]]
                self.assertEqual(len(top), 4)
                self.assertEqual(top, sorted(top))
                self.assertLessEqual(sum(math.exp(-each) for each, _ in top), 1 + 1e-5)
                listed = {number: -each for each, number in top}
                if token in listed:
                    self.assertEqual(position["logprob"], listed[token])
                else:
                    self.assertLessEqual(position["logprob"], -top[-1][0])
            numbers = re.findall(r'"logprob": ([^,}]+)', line)
            for number in numbers:
                self.assertEqual(float(number), float(shortest(float(number))), number)
                self.assertIsInstance(json.loads(number), float)
            # Most float32 values between 1 and 16 need eight digits.
            digits = [len(number.lstrip("-0.").replace(".", "")) for number in numbers]
            self.assertGreater(sum(digits) / len(digits), 7.2)
        first, _ = self.score("--top", 0, stdin=lines_of(TEXTS[1:2]))
        second, _ = self.score("--top", 128, stdin=lines_of(TEXTS[1:2]))
        for one, other in zip(first[0]["positions"], second[0]["positions"], strict=True):
            self.assertEqual(one["logprob"], other["logprob"])
            self.assertEqual(len({each["id"] for each in other["top"]}), 128)

    def test_run_lists_the_same_logprobs(self):
        # Of the tokens it emitted, whatever trees verified them: the same floats.
        def as_floats(position):
            return (struct.pack("f", position["logprob"]),
                    [(each["id"], struct.pack("f", each["logprob"])) for each in position["top"]])

        prompts = self.write("prompts.jsonl", lines_of({"id": text["name"], "turns": [text["text"]]}
                                                       for text in TEXTS[1:4]))
        for sampling in ((), ("--temperature", 0.8, "--seed", 3)):
            code, out, err = self.kdtree(
                "run", "--prompts", prompts, "--raw", "--json", "-", "--logprobs", 3,
                "--max-tokens", 12, "--speculative-num-draft-tokens", 6, *sampling)
            self.assertEqual(code, 0, err)
            answers = [json.loads(line) for line in out.splitlines()]
            lines, _ = self.score("--top", 3, stdin=lines_of(
                {"ids": text["ids"] + answer["ids"]}
                for text, answer in zip(EXPECTED[1:4], answers, strict=True)))
            for line, answer in zip(lines, answers, strict=True):
                self.assertGreater(len(answer["ids"]), 3)
                scored = line["positions"][-len(answer["ids"]):]
                self.assertEqual(list(map(as_floats, answer["logprobs"])),
                                 list(map(as_floats, scored)))

    def test_control_tokens_are_text_unless_special(self):
        chat = "<|im_start|>user\nHi<|im_end|>"
        plain, special, both = self.score(stdin=lines_of(
            [{"text": chat}, {"text": chat, "special": True}, {"text": chat, "special": False}]))[0]
        self.assertLess(len(special["positions"]), 6)
        self.assertGreater(len(plain["positions"]), 10)
        self.assertEqual(plain, both)

    def test_one_token_has_no_position(self):
        lines, err = self.score(stdin=lines_of([{"ids": [5]}]))
        self.assertEqual(lines, [{"positions": []}])
        self.assertEqual(err, "0 positions of 1 text\n")

    def test_input_files_and_line_ends(self):
        expected, _ = self.score(stdin=lines_of(TEXTS[1:2]))
        for number, content in enumerate((lines_of(TEXTS[1:2]), lines_of(TEXTS[1:2]).rstrip(),
                                          b"\n \r\n" + lines_of(TEXTS[1:2])[:-1] + b"\r\n\n")):
            file = self.write(f"in{number}.jsonl", content)
            self.assertEqual(self.score(file)[0], expected)
            self.assertEqual(self.score("-", stdin=content)[0], expected)
        for empty in (b"", b"\n\n"):
            self.assertEqual(self.score(stdin=empty), ([], "0 positions of 0 texts\n"))

    def test_json_file(self):
        _, out, _ = self.kdtree("score", stdin=lines_of(TEXTS[1:4]))
        file = self.write("out.jsonl", "old " * 10_000)
        code, rest, err = self.kdtree("score", "--json", file, stdin=lines_of(TEXTS[1:4]))
        self.assertEqual((code, rest), (0, b""), err)
        self.assertEqual(file.read_bytes(), out)

    def test_answers_come_before_the_next_line(self):
        with self.start("score", stdin=subprocess.PIPE) as process:
            for text, ids in ((TEXTS[1], EXPECTED[1]["ids"]), ({"text": ""}, []),
                              (TEXTS[3], EXPECTED[3]["ids"])):
                process.stdin.write(lines_of([text]))
                process.stdin.flush()
                answer = json.loads(process.stdout.readline())
                self.assertEqual(len(answer.get("positions", [])), max(len(ids) - 1, 0))
            process.stdin.close()
            self.assertEqual(process.stdout.read(), b"")
            self.assertEqual(process.wait(TIMEOUT_S), 1)


@needs_model
class Refused(ScoreTest):
    def test_lines_that_cannot_be_scored(self):
        good = lines_of([{"ids": [1, 2, 3]}]).decode()
        bad = [
            ("garbage", "not JSON"), ('{"text": "a"', "not JSON"), ("[1, 2]", "object"),
            ("3", "object"), ("{}", '"text" or "ids"'), ('{"text": "a", "ids": [1]}', "either"),
            ('{"txt": "a"}', '"text"'), ('{"text": 3}', "no string"),
            ('{"text": null}', "no string"),
            ('{"text": ""}', "empty"), ('{"ids": []}', "empty"), ('{"ids": "5"}', "no array"),
            ('{"ids": [1, 2.0]}', '"ids"[1]'), ('{"ids": [true]}', '"ids"[0]'),
            ('{"ids": [1, 2, -1]}', '"ids"[2]: -1'),
            ('{"ids": [%d]}' % VOCABULARY,
             f"{VOCABULARY} is not in the vocabulary of {VOCABULARY}"),
            ('{"ids": [18446744073709551615]}', "18446744073709551615"),
            ('{"ids": [4294967297]}', "4294967297"), ('{"ids": [1e400]}', "JSON"),
            ('{"text": "a", "special": 1}', "special"), ('{"text": "\\ud800"}', "JSON"),
            ("[" * 100_000, "nested"), ("[" * 100_000 + "]" * 100_000, "nested"),
            ('{"ids": %s}' % ("[" * 100_000 + "]" * 100_000), "nested"),
            ('{"ids": [[[]]]}', '"ids"[0]'), ('{"text": "a", "text": "b"}', "twice"),
            ('{"ids": [%s]}' % ",".join(["7"] * 9000), "9000 tokens, the context holds 8192"),
            ('{"text": "%s"}' % ("hello world, " * 100_000), "the context holds 8192"),
        ]
        stdin = good + "".join(line + "\n" + good for line, _ in bad)
        lines, err = self.score(stdin=stdin.encode(), code=1)
        self.assertEqual(len(lines), 2 * len(bad) + 1)
        self.assertTrue(all(line == lines[0] and len(line["positions"]) == 2
                            for line in lines[::2]))
        for line, (text, naming) in zip(lines[1::2], bad, strict=True):
            self.assertEqual(list(line), ["error"], text[:60])
            self.assertIn(naming, line["error"], text[:60])
            self.assertNotIn("\n", line["error"])
            self.assertLess(len(line["error"]), 200)
        self.assertRegex(err, rf"^perplexity \S+ over .* of {len(bad) + 1} texts, "
                              rf"{len(bad)} lines refused\n$")

    def test_bytes_that_are_no_text(self):
        content = (b'\x7fELF\0\xff\n{"text": "\xff\xfe"}\n\xef\xbb\xbf\n'
                   b'{"text": "a\\u0000b\xc3\xa9"}\n')
        lines, _ = self.score(stdin=content, code=1)
        self.assertEqual([list(line) for line in lines[:3]], [["error"]] * 3)
        self.assertGreater(len(lines[3]["positions"]), 1)

    def test_the_context_is_used_to_its_end(self):
        lines, _ = self.score("--context-length", 16, code=1,
                              stdin=lines_of({"ids": [7] * tokens} for tokens in (16, 17)))
        self.assertEqual(len(lines[0]["positions"]), 15)
        self.assertIn("17 tokens, the context holds 16", lines[1]["error"])

    def test_a_line_without_end(self):
        code, out, _ = self.kdtree("score", stdin=b'{"ids": [1, 2]}\n' + b"x" * (65 << 20))
        lines = [json.loads(line) for line in out.splitlines()]
        self.assertEqual((code, len(lines)), (1, 2))
        self.assertIn("longer than", lines[1]["error"])


class Arguments(ScoreTest):
    def test_arguments_and_files(self):
        self.refused("score", "/no/such.jsonl", naming="/no/such.jsonl")
        self.refused("score", self.folder, naming=str(self.folder))
        self.refused("score", "--top", 129, naming="129")
        self.refused("score", "--top", -1, naming="-1")
        self.refused("score", "--max-running-requests", 0, naming="--max-running-requests")
        self.refused("score", "a.jsonl", "b.jsonl", naming="b.jsonl")
        self.refused("score", preexec_fn=lambda: os.close(0), naming="standard input")
        for path in ("/no/such/folder/out.jsonl", self.folder):
            self.refused("score", "--json", path, stdin=b"", naming=str(path))
        same = self.write("same.jsonl", '{"text": "hello there"}\n')
        (self.folder / "link.jsonl").symlink_to(same)
        for output in (same, self.folder / "link.jsonl"):
            self.refused("score", same, "--json", output, naming=str(output))
        self.assertEqual(same.read_text(), '{"text": "hello there"}\n')
        self.refused("score", "--model", "/no/such.gguf", same, "--json", "kept.jsonl",
                     naming="/no/such.gguf")
        self.assertFalse((self.folder / "kept.jsonl").exists())


@needs_model
class Endings(ScoreTest):
    def expect_one_line(self, code: int, err: bytes, naming: bytes) -> None:
        self.assertEqual((code, err.count(b"\n")), (1, 1), err)
        self.assertIn(naming, err)

    def test_closed_and_full_outputs(self):
        many = lines_of(TEXTS) * 20
        with self.start("score", "--top", 20, self.write("many.jsonl", many)) as process:
            process.stdout.read(3)
            process.stdout.close()
            err = process.stderr.read()
        self.expect_one_line(process.returncode, err, b"Broken pipe")
        with open("/dev/full", "wb") as full:
            code, _, err = self.kdtree("score", stdin=lines_of(TEXTS[1:2]), stdout=full)
            self.expect_one_line(code, err, b"No space left")
            code, out, _ = self.kdtree("score", stdin=lines_of(TEXTS[1:2]), stderr=full)
            self.assertEqual((code, out.count(b"\n")), (0, 1))
        code, _, err = self.kdtree("score", "--json", "/dev/full", stdin=lines_of(TEXTS[1:2]))
        self.expect_one_line(code, err, b"No space left")

    def test_only_whole_lines_stay_on_a_full_disk(self):
        _, whole, _ = self.kdtree("score", stdin=lines_of(TEXTS[1:4]))
        room = whole.index(b"\n") + 1 + 50

        def limit() -> None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))

        code, _, err = self.kdtree("score", "--json", "out.jsonl", stdin=lines_of(TEXTS[1:4]),
                                   preexec_fn=limit)
        self.expect_one_line(code, err, b"File too large")
        self.assertEqual((self.folder / "out.jsonl").read_bytes(), whole[:room - 50])

    def test_interrupts_keep_complete_lines(self):
        stdin = lines_of(TEXTS[1:2]) + LONG_RUN.encode() * 50
        _, first, _ = self.kdtree("score", stdin=lines_of(TEXTS[1:2]))
        for number in (signal.SIGINT, signal.SIGTERM):
            with self.start("score", self.write("long.jsonl", stdin)) as process:
                line = process.stdout.readline()
                process.send_signal(number)
                self.assertEqual(process.wait(TIMEOUT_S), 130)
                rest, err = process.stdout.read(), process.stderr.read()
            self.assertEqual((line, err), (first, b""))
            self.assertTrue(rest == b"" or rest.endswith(b"\n"))

    def test_interrupts_while_the_input_is_awaited(self):
        for delay in (0, 0.5):
            with self.start("score", stdin=subprocess.PIPE) as process:
                process.stdin.write(lines_of(TEXTS[1:2]))
                process.stdin.flush()
                process.stdout.readline()
                time.sleep(delay)
                process.send_signal(signal.SIGINT)
                self.assertEqual(process.wait(TIMEOUT_S), 130)
                self.assertEqual(process.stdout.read() + process.stderr.read(), b"")


if __name__ == "__main__":
    main()
