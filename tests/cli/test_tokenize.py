"""kdtree tokenize: the ids of `tokenizers` and the prompts of jinja2, and lines that are no such lines."""

import gzip
import json
import signal
import subprocess
import unittest
from pathlib import Path

from cli_support import MODEL, CliTest, main, needs_model

DATA = Path(__file__).parent.parent / "data" / "cli"
MAX_LINE_BYTES = 64 << 20


def jsonl(lines: list) -> bytes:
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


class TokenizeTest(CliTest):
    def answers(self, *arguments: object, stdin: bytes, code: int = 0) -> list:
        got, out, err = self.kdtree("tokenize", *arguments, stdin=stdin)
        self.assertEqual(got, code, err)
        self.assertEqual(err.count(b"\n"), code)
        return [json.loads(line) for line in out.decode().splitlines()]

    def ids(self, text: str, special: bool = False) -> list[int]:
        return self.answers(stdin=jsonl([{"text": text, "special": special}]))[0]["ids"]


@needs_model
class AgreementTest(TokenizeTest):
    def setUp(self):
        with gzip.open(DATA / "tokenize_smollm.jsonl.gz", "rt", encoding="utf-8") as file:
            self.cases = [json.loads(line) for line in file][1:]
        self.assertGreaterEqual(len(self.cases), 4000)

    def test_ids_and_texts(self):
        lines = [{"text": case["t"], "special": "s" in case} for case in self.cases]
        file = self.write("texts.jsonl", jsonl(lines))
        encoded = self.answers(file, stdin=b"")
        self.assertEqual(encoded, [{"ids": case["i"]} for case in self.cases])
        lines = [{"ids": case["i"], "special": True} for case in self.cases]
        decoded = self.answers("--decode", stdin=jsonl(lines))
        texts = [{"text": case.get("d", case["t"])} for case in self.cases]
        self.assertEqual(decoded, texts)
        self.assertGreater(sum("d" not in case for case in self.cases), 3500)

    def test_conversations(self):
        document = json.loads((DATA / "conversations.json").read_text())
        cases = document["cases"]
        self.assertGreaterEqual(sum("text" in case for case in cases), 20)
        for template in ("SmolLM2", *document["templates"]):
            chosen = [case for case in cases if case["template"] == template]
            arguments = ["--chat"]
            if template != "SmolLM2":
                source = document["templates"][template]
                arguments += ["--chat-template", self.write("template.jinja", source)]
            code = int(any("error" in case for case in chosen))
            answers = self.answers(*arguments, stdin=jsonl([c["line"] for c in chosen]), code=code)
            self.assertEqual(len(answers), len(chosen))
            for case, answer in zip(chosen, answers):
                if "error" in case:
                    self.assertIn(case["names"], answer["error"])
                else:
                    self.assertEqual(answer, {"text": case["text"], "ids": case["ids"]})


@needs_model
class LinesTest(TokenizeTest):
    def test_flags_and_defaults(self):
        line = {"text": "<|im_end|>"}
        plain, special, other = self.answers(stdin=jsonl(
            [line, line | {"special": True}, line | {"special": False, "id": [1]}]))
        self.assertEqual(special, {"ids": [2]})
        self.assertEqual(plain, other)
        self.assertGreater(len(plain["ids"]), 1)
        ids = {"ids": [1, 81, 2]}
        left_out, written, empty = self.answers("--decode", stdin=jsonl(
            [ids, ids | {"special": True}, {"ids": []}]))
        self.assertEqual(left_out, {"text": "a"})
        self.assertEqual(written, {"text": "<|im_start|>a<|im_end|>"})
        self.assertEqual(empty, {"text": ""})
        # One byte of a character alone.
        half = self.ids("\U0001F600")[:1]
        self.assertEqual(self.answers("--decode", stdin=jsonl([{"ids": half}])),
                         [{"text": "\ufffd"}])

    def test_line_ends_and_blank_lines(self):
        self.assertEqual(self.answers(stdin=b""), [])
        self.assertEqual(self.answers(stdin=b"\n\r\n  \t\n"), [])
        expected = self.answers(stdin=b'{"text": "a"}\n') * 3
        self.assertEqual(
            self.answers(stdin=b'\xef\xbb\xbf{"text": "a"}\r\n\n{"text": "a"}\n \n{"text": "a"}'),
            expected)

    def test_output_file(self):
        expected = self.kdtree("tokenize", stdin=jsonl([{"text": "a"}, {"text": "b"}]))[1]
        source = self.write("in.jsonl", jsonl([{"text": "a"}, {"text": "b"}]))
        code, out, err = self.kdtree("tokenize", source, "--json", "out.jsonl")
        self.assertEqual((code, out, err), (0, b"", b""))
        self.assertEqual((self.folder / "out.jsonl").read_bytes(), expected)
        self.assertEqual(self.kdtree("tokenize", source, "--json", "-")[1], expected)
        self.assertEqual(self.kdtree("tokenize", "-", stdin=source.read_bytes())[1], expected)
        self.refused("tokenize", source, "--json", source, naming="in.jsonl")
        self.assertEqual(len(source.read_bytes()), len(jsonl([{"text": "a"}, {"text": "b"}])))

    def test_line_breaks_of_unicode_stay_inside_a_line(self):
        text = "a\u0085b\u2028c\u2029d\x0b\x0c\x1c\x1e\u00e9\u201c"
        ids = self.ids(text)
        code, out, _ = self.kdtree("tokenize", "--decode", stdin=jsonl([{"ids": ids}]))
        self.assertEqual(code, 0)
        self.assertEqual(len(out.decode().splitlines()), 1)
        # U+001D and a few more have no token in this vocabulary; these have.
        self.assertEqual(json.loads(out)["text"], text)
        self.assertIn("é\u201c".encode(), out)

    def test_answers_at_once(self):
        with self.start("tokenize", stdin=subprocess.PIPE) as process:
            for text in ("a", "b c", "", "d"):
                process.stdin.write(jsonl([{"text": text}]))
                process.stdin.flush()
                self.assertEqual(json.loads(process.stdout.readline()), {"ids": self.ids(text)})
            process.stdin.close()
            self.assertEqual(process.wait(), 0)

    def test_interrupt(self):
        with self.start("tokenize", stdin=subprocess.PIPE) as process:
            process.stdin.write(jsonl([{"text": "a"}]))
            process.stdin.flush()
            first = process.stdout.readline()
            process.send_signal(signal.SIGINT)
            self.assertEqual(process.wait(), 130)
            self.assertEqual(json.loads(first), {"ids": self.ids("a")})
            self.assertEqual((process.stdout.read(), process.stderr.read()), (b"", b""))

    def test_broken_pipe(self):
        with self.start("tokenize", stdin=subprocess.PIPE) as process:
            process.stdout.close()
            process.stdin.write(jsonl([{"text": "a"}] * 3))
            process.stdin.close()
            self.assertEqual(process.wait(), 1)
            err = process.stderr.read()
            self.assertEqual(err.count(b"\n"), 1)
            self.assertIn(b"standard output", err)

    def test_files(self):
        self.refused("tokenize", "nowhere.jsonl", naming="nowhere.jsonl")
        self.refused("tokenize", self.folder, naming="directory")
        self.refused("tokenize", "--model", "nowhere.gguf", naming="nowhere.gguf")
        self.refused("tokenize", "--decode", "--chat", naming="--decode")
        self.refused("tokenize", "--chat-template", "x.jinja", naming="--chat")
        self.refused("tokenize", "--chat", "--chat-template", "x.jinja", naming="x.jinja")
        bad = self.write("bad.jinja", "{% if %}")
        self.refused("tokenize", "--chat", "--chat-template", bad, naming="bad.jinja")
        self.refused("tokenize", "--json", "nowhere/out", naming="nowhere/out")

    def test_reads_no_weights(self):
        # All behind the tensors' list replaced by a hole: nothing of it is looked at.
        hollow = self.folder / "hollow.gguf"
        with open(MODEL, "rb") as source, open(hollow, "wb") as copy:
            copy.write(source.read(4 << 20))
            copy.truncate(MODEL.stat().st_size)
        expected = self.answers(stdin=b'{"text": "Hello"}')
        self.assertEqual(self.answers("--model", hollow, stdin=b'{"text": "Hello"}'), expected)
        cut = self.write("cut.gguf", hollow.read_bytes()[:4 << 20])
        self.refused("tokenize", "--model", cut, naming="exceed the file's")


REFUSED = [  # line, words of the message
    (b"x", "not JSON: column 1"),
    (b'{"text": "a"', "not JSON"),
    (b'{"text": "a"} x', "not JSON"),
    (b'{"text": "a"}\0{', "NUL"),
    (b'{"text": "a\0"}', "NUL"),
    (b'{"text": "\xff"}', "UTF-8"),
    (b'{"text": "\xed\xa0\x80"}', "UTF-8"),
    (rb'{"text": "\ud800"}', "surrogate"),
    (rb'{"text": "\udc00 x"}', "surrogate"),
    (b'{"text": "a\tb"}', "control character"),
    (b'{"text": "a", "text": "b"}', '"text" occurs twice'),
    (b'{"text": "a", "n": {"x": 1, "x": 2}}', '"x" occurs twice'),
    (b'{"text": "a", "n": 1e400}', "number overflow"),
    (b'{"text": "a", "n": 18446744073709551616}', "beyond 64 bits"),
    (b'{"text": "a", "n": ' + b"9" * 100_000 + b"}", "9..."),
    (b"[" * 100_000, "nested deeper than 128"),
    (b'{"text": "a", "n": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested deeper"),
    (b'{"a":' * 100_000, "nested deeper"),
    (b"null", "no object but null"),
    (b'["text"]', "no object but array"),
    (b"{}", '"text" is missing'),
    (b'{"text": null}', '"text" is no string but null'),
    (b'{"text": ["a"]}', '"text" is no string but array'),
    (b'{"text": "a", "special": 1}', '"special" is no boolean but number'),
    (b'{"text": "a", "special": null}', '"special" is no boolean but null'),
]
REFUSED_IDS = [
    (b"{}", '"ids" is missing'),
    (b'{"ids": 1}', '"ids" is no array but number'),
    (b'{"ids": [1, 49152]}', '"ids"[1]: 49152 is not in the vocabulary of 49152'),
    (b'{"ids": [-1]}', '"ids"[0]: -1'),
    (b'{"ids": [4294967297]}', '"ids"[0]: 4294967297'),
    (b'{"ids": [18446744073709551615]}', '"ids"[0]: 18446744073709551615'),
    (b'{"ids": [1.0]}', '"ids"[0] is no integer but number'),
    (b'{"ids": [true]}', '"ids"[0] is no integer but boolean'),
    (b'{"ids": ["1"]}', '"ids"[0] is no integer but string'),
    (b'{"ids": [1], "special": "no"}', '"special" is no boolean but string'),
]
REFUSED_CHATS = [
    (b"{}", '"messages" is missing'),
    (b'{"messages": "a"}', '"messages" is no array but string'),
    (b'{"messages": ["a"]}', "message['role']"),
    (b'{"messages": [{"role": "user"}]}', "message['content']"),
    (b'{"messages": [{"role": "user", "content": ' + b"[" * 126 + b"]" * 126 + b"}]}", "nested"),
]


@needs_model
class RefusedLinesTest(TokenizeTest):
    def check(self, arguments: list, cases: list, good: bytes):
        """Every bad line between two good ones: an error in its place, the rest as ever."""
        stdin = b"".join(line + b"\n" + good + b"\n" for line, _ in cases)
        answers = self.answers(*arguments, stdin=stdin, code=1)
        self.assertEqual(len(answers), 2 * len(cases))
        expected = self.answers(*arguments, stdin=good)[0]
        for i, (line, words) in enumerate(cases):
            with self.subTest(line=line[:80]):
                self.assertEqual(list(answers[2 * i]), ["error"])
                message = answers[2 * i]["error"]
                self.assertIn(words, message)
                self.assertLess(len(message), 300)
                self.assertTrue(message.isprintable(), message)
                self.assertEqual(answers[2 * i + 1], expected)

    def test_texts(self):
        self.check([], REFUSED, b'{"text": "a"}')

    def test_ids(self):
        self.check(["--decode"], REFUSED_IDS, b'{"ids": [81]}')

    def test_conversations(self):
        good = b'{"messages": [{"role": "user", "content": "a"}]}'
        self.check(["--chat"], REFUSED_CHATS, good)
        template = self.write("raise.jinja", "{{ raise_exception('a\\nb' ~ messages[0].content) }}")
        line = jsonl([{"messages": [{"content": "x" * 5000}]}])
        answer = self.answers("--chat", "--chat-template", template, stdin=line, code=1)[0]
        self.assertIn("a\\nbxxx", answer["error"])
        self.assertEqual(len(answer["error"]), 1003)

    def test_exit_code_counts(self):
        code, out, err = self.kdtree("tokenize", stdin=b'x\n{"text": "a"}\ny\n')
        self.assertEqual((code, err), (1, b"kdtree: 2 of 3 lines refused\n"))
        self.assertEqual(out.count(b"\n"), 3)


@needs_model
class HugeInputTest(TokenizeTest):
    def test_long_lines(self):
        text = "Hello, world! " * (10 << 20 >> 4)
        ids = self.ids(text)
        self.assertEqual(self.answers("--decode", stdin=jsonl([{"ids": ids}])), [{"text": text}])

    def test_long_runs(self):
        units = ["a", " ", "\U0001F600", "ab", "7", "\n", "\u0301", "<|im_end|>", "<"]
        texts = [unit * (500_000 // len(unit.encode())) for unit in units]
        lines = self.answers(stdin=jsonl([{"text": text, "special": True} for text in texts]))
        back = self.answers("--decode", stdin=jsonl([line | {"special": True} for line in lines]))
        self.assertEqual(back, [{"text": text} for text in texts])

    def test_many_keys_and_values(self):
        """Linear in them: a quadratic reader needs minutes and trips the time limit."""
        keys = {str(key): 0 for key in range(300_000)}
        nested = {"text": "a", "more": [{}] * 500_000}
        self.assertEqual(self.answers(stdin=jsonl([{"text": "a"} | keys, nested, {"text": "a"}])),
                         [{"ids": [81]}] * 3)
        chat = {"messages": [{"role": "user", "content": "a"}]}
        plain, full = self.answers("--chat", stdin=jsonl([chat, chat | keys]))
        self.assertEqual(plain, full)

    def test_line_beyond_the_limit(self):
        good = b'{"text": "a"}\n'
        stdin = good + b'{"text": "' + b"a" * (MAX_LINE_BYTES + (1 << 20)) + b'"}\n' + good
        answers = self.answers(stdin=stdin, code=1)
        self.assertEqual(answers[0], {"ids": [81]})
        self.assertIn("longer than", answers[1]["error"])
        self.assertEqual(len(answers), 2)


if __name__ == "__main__":
    main()
