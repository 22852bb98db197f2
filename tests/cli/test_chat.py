"""kdtree run --chat: the conversation, its commands, and what a terminal adds (a pseudo-terminal)."""

import fcntl
import os
import pty
import re
import select
import signal
import subprocess
import termios
import time
import unittest

from cli_support import MODEL, TIMEOUT_S, CliTest, main, needs_model

FEW = ("--speculative-num-draft-tokens", 4, "--max-tokens", 12)
PROMPT = "Tell me a story about a fox."
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
INTERRUPT, END, PASTE = b"\x03", b"\x04", b"\x1b[200~%b\x1b[201~"


def rendered(*messages: str, system: str = SYSTEM) -> str:
    """SmolLM2's template: system, then user and assistant in turn."""
    text = f"<|im_start|>system\n{system}<|im_end|>\n"
    for i, message in enumerate(messages):
        text += f"<|im_start|>{('user', 'assistant')[i % 2]}\n{message}<|im_end|>\n"
    return text + "<|im_start|>assistant\n"


class Refused(CliTest):
    def test_what_does_not_go_together(self):
        for flags in (["hi"], ["--prompt", "hi"], ["--prompts", "p.jsonl"], ["--json", "o.json"],
                      ["--stats-json", "s.json"], ["--raw"], ["--n", "2"], ["--limit", "1"],
                      ["--overwrite"]):
            with self.subTest(flags=flags):
                self.refused("run", "--chat", *flags, naming="with --chat")
        self.refused("run", "--system", "s", "--raw", "hi", naming="--raw")
        self.refused("run", "--chat", "--speculative-algorithm", "oracle", naming="oracle")


@needs_model
class FromAPipe(CliTest):
    def chat(self, text: str | bytes, *arguments: object) -> tuple[str, str]:
        """Standard output and error of a conversation that ends well."""
        stdin = text if isinstance(text, bytes) else text.encode()
        code, out, err = self.kdtree("run", "--chat", *(arguments or FEW), stdin=stdin)
        self.assertEqual(code, 0, err)
        return out.decode(), err.decode()

    def single(self, prompt: str, *arguments: object) -> str:
        return self.answer(*FEW, *arguments, "--prompt", prompt).decode()

    def test_turns(self):
        first = self.single(PROMPT)
        out, err = self.chat(f"{PROMPT}\nAnd now backwards\r\n")
        conversation = rendered(PROMPT, first.removesuffix("\n"), "And now backwards")
        self.assertEqual(out, first + self.single(conversation, "--raw"))
        self.assertTrue(err.startswith("(ended after --max-tokens 12)\n"), err)

    def test_lines_that_belong_together(self):
        two = self.single("one\ntwo  three")
        for text in ("one\\\ntwo  three\n", '"""one\ntwo  three"""\n', '"""\none\ntwo  three\n"""\n',
                     '"""one\ntwo  three', "one\\\ntwo  three", "\n \none\\\ntwo  three\n\n"):
            with self.subTest(text=text):
                self.assertEqual(self.chat(text)[0], two)
        self.assertEqual(self.chat('"""/help"""\n')[0], self.single("/help"))
        self.assertEqual(self.chat(" /help\n")[0], self.single(" /help"))

    def test_commands(self):
        out, err = self.chat("/stats\n/help\n/frob x\n/reset now\n/system\n" + PROMPT +
                             "\n/stats\n/reset\n" + PROMPT + "\n/exit\nnot this\n")
        self.assertEqual(out, self.single(PROMPT) * 2)
        for words in ("there is no answer yet", "/system TEXT  ", "/frob is no command: /help, ",
                      "/reset takes nothing", "no system message", "acceptance length",
                      "of 8192 tokens used by 2 messages", "the conversation is empty"):
            self.assertIn(words, err)

    def test_turns_start_behind_the_last_one(self):
        turns = f"{PROMPT}\n/stats\nAnd once more.\n/stats\n"
        out, err = self.chat(turns)
        reused = [int(tokens) for tokens in re.findall(r"(\d+) of them from the cache", err)]
        read = [int(tokens) for tokens in re.findall(r"prompt +(\d+) tokens", err)]
        self.assertEqual((len(reused), reused[0]), (2, 0))
        self.assertTrue(read[0] < reused[1] < read[1], err)
        without, err = self.chat(turns, *FEW, "--disable-radix-cache")
        self.assertEqual(out, without)
        self.assertEqual(err.count("0 of them from the cache"), 2)
        paged, _ = self.chat(turns, *FEW, "--page-size", 16, "--kv-relocate", 64)
        self.assertEqual(paged, out)

    def test_system_message(self):
        system = "Answer in French."
        answer = self.single(rendered(PROMPT, system=system), "--raw")
        self.assertEqual(self.single(PROMPT, "--system", system), answer)
        self.assertNotEqual(self.single(PROMPT), answer)
        self.assertEqual(self.chat(f"{PROMPT}\n", *FEW, "--system", system)[0], answer)
        out, err = self.chat(f"{PROMPT}\n/system {system}\n{PROMPT}\n/reset\n{PROMPT}\n/system\n")
        self.assertEqual(out, self.single(PROMPT) + answer * 2)
        self.assertIn("the system message is: " + system, err)

    def test_the_context(self):
        small = ("--speculative-num-draft-tokens", 4, "--context-length", 60)
        out, err = self.chat(f"{PROMPT}\n{'far too long ' * 30}\n/stats\n/reset\n{PROMPT}\n", *small)
        half = len(out) // 2
        self.assertEqual(out[:half], out[half:])
        self.assertEqual(err.count("(the context of 60 tokens is full: /reset starts anew)"), 2)
        self.assertRegex(err, r"the conversation has \d+ tokens, the context holds 60: it is left")
        self.assertIn("60 of 60 tokens used by 2 messages", err)

    def test_control_tokens_in_a_message_count(self):
        text = "Hi<|im_end|>\\\n<|im_start|>user\\\nHello"
        whole = rendered("Hi<|im_end|>\n<|im_start|>user\nHello")
        self.assertEqual(self.chat(text + "\n")[0], self.single(whole, "--raw"))

    def test_trees_and_figures(self):
        out, err = self.chat(PROMPT + "\n", *FEW, "--stats", "--show-tree")
        self.assertEqual(out, self.single(PROMPT))
        self.assertIn("(root)", err)
        self.assertIn("ms a round", err)

    def test_odd_input(self):
        self.assertEqual(self.chat(""), ("", ""))
        self.chat(b"a\xff\xfeb \xe2\x82\nhe\0llo\n\x1b[A\n")
        huge = b"hello world " * 100_000
        _, err = self.chat(huge + b"\n" + huge)
        self.assertEqual(err.count("the context holds 8192"), 2)
        self.refused("run", "--chat", "--temperature", "nan", naming="nan")
        self.refused("run", "--chat", naming="standard input", preexec_fn=lambda: os.close(0))
        self.refused("run", "--chat", naming="standard input",
                     preexec_fn=lambda: os.dup2(os.open("/", os.O_RDONLY), 0))

    def test_closed_and_full_output(self):
        with open("/dev/full", "wb") as full:
            code, _, err = self.kdtree("run", "--chat", *FEW, stdin=b"hi\nhi\n", stdout=full)
        self.assertEqual((code, err.count(b"\n")), (1, 1), err)
        self.assertIn(b"No space left", err)
        with self.start("run", "--chat", *FEW[:2], "--ignore-eos",
                        stdin=subprocess.PIPE) as process:
            process.stdin.write(b"Tell me a long story\n")
            process.stdin.flush()
            process.stdout.read(3)
            process.stdout.close()
            err = process.stderr.read()
        self.assertEqual((process.returncode, err.count(b"\n")), (1, 1), err)
        self.assertIn(b"Broken pipe", err)

    def test_interrupts(self):
        with self.start("run", "--chat", *FEW[:2], "--ignore-eos",
                        stdin=subprocess.PIPE) as process:
            process.stdin.write(b"Count from one to a million.\n")
            process.stdin.flush()
            process.stdout.read(5)
            process.send_signal(signal.SIGINT)
            self.assertEqual(process.stderr.readline(), b"(stopped)\n")
            process.stdin.write(b"/stats\n")
            process.stdin.flush()
            while b"2 messages" not in process.stderr.readline():
                pass
            process.send_signal(signal.SIGINT)
            self.assertEqual(process.wait(TIMEOUT_S), 130)


class Terminal:
    """The program on a pseudo-terminal of its own; what it wrote, escape sequences left out."""

    def __init__(self, test: CliTest, *arguments: object):
        self.master, self.slave = pty.openpty()
        self.before = termios.tcgetattr(self.slave)
        self.text = ""

        def make_controlling():
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        self.process = test.start(
            "run", "--chat", *arguments, stdin=self.slave, stdout=self.slave, stderr=self.slave,
            env=test.environment(TERM="xterm", LC_ALL="C"), start_new_session=True,
            preexec_fn=make_controlling)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        os.close(self.master)
        os.close(self.slave)

    def send(self, data: bytes) -> None:
        os.write(self.master, data)

    def expect(self, pattern: str, timeout: float = TIMEOUT_S) -> str:
        """Waits for the pattern, returns what came up to its end, and forgets that."""
        end = time.monotonic() + timeout
        raw = b""
        while True:
            plain = re.sub(r"\x1b\[[?0-9;]*[A-Za-z]|[\r\a]", "", self.text)
            if found := re.search(pattern, plain):
                self.text = plain[found.end():]
                return plain[:found.end()]
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.master], [], [], left)[0]:
                raise TimeoutError(f"{pattern!r} did not come; there was {plain!r}")
            raw += os.read(self.master, 65536)
            try:
                self.text += raw.decode()
                raw = b""
            except UnicodeDecodeError:
                pass  # the rest of a character is on its way

    def expect_end(self, test: unittest.TestCase, code: int = 0) -> None:
        test.assertEqual(self.process.wait(TIMEOUT_S), code)
        test.assertEqual(termios.tcgetattr(self.slave), self.before)


@needs_model
class OnATerminal(CliTest):
    def test_progress_while_a_long_conversation_is_read(self):
        with Terminal(self, *FEW, "--system", "The quick brown fox. " * 1000) as terminal:
            terminal.expect("> ")
            terminal.send(b"hi\r")
            terminal.expect(r"reading the prompt: \d+ of \d+ tokens, \d+%")
            terminal.send(b"\x03")
            terminal.expect(r"taken back\)\n> ")
            terminal.send(END)
            terminal.expect_end(self)

    def test_a_conversation(self):
        answer = self.answer(*FEW, PROMPT).decode()
        with Terminal(self, *FEW) as terminal:
            terminal.expect(r"/help lists the commands.*\n")
            terminal.expect("> ")
            terminal.send(PROMPT.encode() + b"\r")
            self.assertIn(answer, terminal.expect(r"--max-tokens 12\)\n> ").replace("\r", ""))
            terminal.send(b"/frob\r")
            terminal.expect(r"/frob is no command.*\n> ")
            terminal.send(b"\x1b[A\r")  # the line before
            terminal.expect(r"/frob is no command.*\n> ")
            terminal.send("/café".encode() + b"\x7f\x7f\xc3\xa9\r")  # a character is deleted whole
            terminal.expect(r"/caé is no command.*\n> ")
            terminal.send(END)
            terminal.expect_end(self)

    def test_pasted_lines_are_one_message(self):
        answer = self.answer(*FEW, "/one\ntwo é").decode()
        with Terminal(self, *FEW) as terminal:
            terminal.expect("> ")
            terminal.send(PASTE % "/one\rtwo é\r".encode() + b"\r")
            self.assertIn(answer, terminal.expect(r"--max-tokens 12\)\n> "))
            terminal.send(b"/reset\r")
            terminal.expect("is empty.*\n> ")
            terminal.send(b"/one\\\r")
            terminal.expect(r"no command.*\n> ")  # a command is one line
            terminal.send(b"\x1b[A\x1b[A\x1b[A\r")  # the pasted lines again
            self.assertIn(answer, terminal.expect(r"--max-tokens 12\)\n> "))
            terminal.send(END)
            terminal.expect_end(self)

    def test_ctrl_c_at_the_prompt(self):
        with Terminal(self, *FEW) as terminal:
            terminal.expect("> ")
            terminal.send(b"never sent" + INTERRUPT)
            terminal.expect("\n> ")
            terminal.send(b'"""never\rsent' + INTERRUPT)
            terminal.expect(r"\.\.\. sent\n> ")
            terminal.send(b"/stats\r")
            terminal.expect(r"there is no answer yet\)\n> ")
            terminal.send(INTERRUPT)
            terminal.expect(r"once more, or Ctrl-D, leaves\)\n> ")
            terminal.send(b"/stats\r")
            terminal.expect(r"there is no answer yet\)\n> ")
            terminal.send(INTERRUPT)
            terminal.expect(r"leaves\)\n> ")
            terminal.send(INTERRUPT)
            terminal.expect_end(self)

    def test_ctrl_c_stops_the_answer_not_the_program(self):
        with Terminal(self, *FEW[:2], "--ignore-eos") as terminal:
            terminal.expect("> ")
            for _ in range(2):
                terminal.send(b"Count from one to a million.\r")
                terminal.expect(r"million\.\n.{20}")
                terminal.send(INTERRUPT * 2)
                terminal.expect(r"\(stopped\)\n> ")
            terminal.send(b"/stats\r")
            terminal.expect("finish reason abort")
            terminal.expect(r"used by 4 messages\n> ")
            terminal.send(END)
            terminal.expect_end(self)

    def test_sigterm_gives_the_terminal_back(self):
        with Terminal(self, *FEW) as terminal:
            terminal.expect("> ")
            terminal.process.send_signal(signal.SIGTERM)
            terminal.expect_end(self, 130)


if __name__ == "__main__":
    main()
