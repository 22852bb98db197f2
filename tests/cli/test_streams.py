"""Every command under the same attacks: odd input, closed and full streams, unwritable and
unreadable files, signals at every stage. One clear line or a clean end, the right exit code,
nothing half-written.

On the tiny model, whose file KDTREE_TINY_MODEL names (set by CTest); SmolLM2 is not needed.
"""

import dataclasses
import fcntl
import json
import os
import resource
import signal
import time
from pathlib import Path

from cli_support import TIMEOUT_S, CliTest, main
from test_interrupt import catches, wait_until

MODEL = ("--model", os.environ["KDTREE_TINY_MODEL"])
FEW = ("--speculative-num-draft-tokens", "4", "--max-tokens", "4")
PROMPTS = b'{"id": "a", "turns": ["hi"]}\n{"id": "b", "turns": ["ab", "cd"]}\n'
TEXTS = b'{"text": "the tree grows"}\n{"text": "a b"}\n'
IDS = b'{"ids": [5, 6, 7]}\n'
CHATS = b'{"messages": [{"role": "user", "content": "hi"}]}\n'
MIB = 1 << 20


@dataclasses.dataclass(frozen=True)
class Command:
    """{in} stands for the input's file, {out} for the output's."""

    arguments: tuple[str, ...]
    input: bytes = b""  # a good one
    lines: bool = False  # the output is JSON lines, written one by one

    @property
    def name(self) -> str:
        return " ".join(word for word in self.arguments if word not in (*MODEL, *FEW))

    @property
    def reads_stdin(self) -> bool:
        return bool(self.input) and "{in}" not in self.arguments

    @property
    def reads_file(self) -> bool:
        return "{in}" in self.arguments

    @property
    def writes_file(self) -> bool:
        return "{out}" in self.arguments

    @property
    def loads_model(self) -> bool:
        return MODEL[1] in self.arguments


COMMANDS = [
    Command(("run", *MODEL, *FEW), b"the tree"),
    Command(("run", *MODEL, *FEW, "--prompt-file", "{in}", "--json", "{out}"), b"the tree"),
    Command(("run", *MODEL, *FEW, "--prompt-file", "{in}", "--stats-json", "{out}"), b"the tree"),
    Command(("run", "--chat", *MODEL, *FEW), b"hi\nthe tree\n"),
    Command(("run", "--prompts", "-", "--json", "-", *MODEL, *FEW), PROMPTS, lines=True),
    Command(("run", "--prompts", "{in}", "--json", "{out}", *MODEL, *FEW), PROMPTS, lines=True),
    Command(("score", "--top", "2", *MODEL), TEXTS, lines=True),
    Command(("score", *MODEL, "{in}", "--json", "{out}"), TEXTS, lines=True),
    Command(("tokenize", *MODEL), TEXTS, lines=True),
    Command(("tokenize", "--decode", *MODEL), IDS, lines=True),
    Command(("tokenize", "--chat", *MODEL), CHATS, lines=True),
    Command(("tokenize", *MODEL, "{in}", "--json", "{out}"), TEXTS, lines=True),
    Command(("bench", *MODEL, *FEW, "--repeat", "1", "--prompts", "{in}"), PROMPTS),
    Command(("bench", *MODEL, *FEW, "--repeat", "1", "--prompts", "{in}", "--json", "{out}"),
            PROMPTS),
    Command(("inspect", "--tensors", MODEL[1])),
    Command(("inspect", MODEL[1], "--json", "{out}")),
    Command(("inspect", MODEL[1], "--json", "-")),
    Command(("doctor", *MODEL)),
    Command(("doctor", *MODEL, "--json", "{out}")),
    Command(("completion", "bash")),
    Command(("help",)),
    Command(("help", "run")),
    Command(("--help",)),
    Command(("score", "--help")),
    Command(("--version",)),
]
FAULTS = ("check failed", "terminate", "Traceback", "Sanitizer", "unexpected:", "Segmentation")


def many(command: Command) -> bytes:
    """Its first line so often that nobody is through with it soon."""
    line = command.input.splitlines()[0]
    return b"".join(line.replace(b'"id": "a"', b'"id": "%d"' % i) + b"\n" for i in range(20_000))


class Streams(CliTest):
    maxDiff = None

    def setUp(self):
        for path in self.folder.iterdir():
            if path != self.cache:
                path.unlink()

    def fill(self, command: Command, content: bytes) -> list[str]:
        """The arguments, with the input's file written."""
        source, out = self.folder / "in", self.folder / "out"
        if command.reads_file:
            source.write_bytes(content)
        return [str(source) if word == "{in}" else str(out) if word == "{out}" else word
                for word in command.arguments]

    def attack(self, command: Command, content: bytes | None = None, **options):
        """Runs it on `content` (default: a good input); exit code, output, error."""
        content = command.input if content is None else content
        arguments = self.fill(command, content)
        if not command.reads_stdin:
            content = b""
        return self.kdtree(*arguments, stdin=content, **options)

    def check(self, command: Command, result, codes: tuple[int, ...], saying: str = "") -> None:
        with self.subTest(command.name):
            self.check_end(command, result, codes, saying)

    def check_end(self, command: Command, result, codes: tuple[int, ...], saying: str) -> None:
        code, out, err = result
        text = err.decode(errors="replace")
        self.assertIn(code, codes, text)
        for fault in FAULTS:
            self.assertNotIn(fault, text)
        if code == 1:
            own = [line for line in text.splitlines() if line.startswith("kdtree: ")]
            # Of a refused line the output says why; then score's last words are its summary.
            self.assertLessEqual(len(own), 1, text)
            self.assertTrue(own or (command.lines and "refused" in text), text)
        if code == 1 and saying:
            self.assertIn(saying, text)
        self.assertEqual(list(self.folder.glob("*.tmp")), [])
        self.check_output(command, out or b"")

    def check_output(self, command: Command, out: bytes) -> None:
        """Complete lines; a file that is JSON as a whole, or none."""
        path = self.folder / "out"
        if command.writes_file and path.is_file():
            written = path.read_bytes()
            if not command.lines:
                json.loads(written)
                return
        elif command.lines:
            written = out
        else:
            return
        self.assertTrue(written == b"" or written.endswith(b"\n"), written[-200:])
        for line in written.splitlines():
            json.loads(line)

    def for_each(self, wanted=lambda command: True):
        """Each of the commands in an empty folder."""
        for command in filter(wanted, COMMANDS):
            self.setUp()
            yield command


class Input(Streams):
    def test_good_input(self):
        for command in self.for_each():
            self.check(command, self.attack(command), (0,))
            self.assertEqual(command.writes_file, (self.folder / "out").is_file())

    def test_empty_input(self):
        for command in self.for_each(lambda command: command.input):
            for content in (b"", b"\n", b"  \r\n\n"):
                self.check(command, self.attack(command, content), (0, 1))

    def test_huge_line(self):
        for command in self.for_each(lambda command: command.input):
            self.check(command, self.attack(command, b"a" * (10 * MIB)), (0, 1))
            before = command.input.splitlines()[0]
            huge = before.replace(b"hi", b"h" * (10 * MIB)).replace(b"tree", b"t" * (10 * MIB))
            self.check(command, self.attack(command, huge + b"\n" + before + b"\n"), (0, 1))

    def test_endless_input(self):
        for command in self.for_each(lambda command: command.reads_stdin):
            with open("/dev/zero", "rb") as zero, \
                    self.start(*self.fill(command, b""), stdin=zero) as process:
                out, err = process.communicate(timeout=TIMEOUT_S)
            self.check(command, (process.returncode, out, err), (1,))

    def test_odd_bytes(self):
        for command in self.for_each(lambda command: command.input):
            for content in (b"\0\xff\xfe\n" * 3, bytes(range(256)), b"[" * 100_000, b'{"text": "\xff"}',
                            b'{"text": "\\ud800"}\n', b'{"ids": [-1, 1e300, 99999999999999999999]}',
                            b'{"turns": [""], "text": 1, "ids": 1, "messages": 1}\n', b"null\n" * 5):
                self.check(command, self.attack(command, content), (0, 1))

    def test_input_files(self):
        folder = self.folder / "folder"
        folder.mkdir()
        self.addCleanup(folder.rmdir)
        for command in COMMANDS:
            if not command.reads_file:
                continue
            for name in ("/no/such/file", str(folder), "", "/proc/self/mem"):
                with self.subTest(command.name, input=name):
                    (self.folder / "out").unlink(missing_ok=True)
                    arguments = [name if word == str(self.folder / "in") else word
                                 for word in self.fill(command, b"")]
                    self.check(command, self.kdtree(*arguments), (1,), name)

    def test_unreadable_files(self):
        if os.geteuid() == 0:
            return  # root reads everything
        for command in self.for_each(lambda command: command.reads_file):
            arguments = self.fill(command, command.input)
            (self.folder / "in").chmod(0)
            self.check(command, self.kdtree(*arguments), (1,), "Permission denied")

    def test_input_from_a_pipe_with_a_name(self):
        for command in self.for_each(lambda command: command.reads_file):
            arguments = self.fill(command, b"")
            (self.folder / "in").unlink()
            os.mkfifo(self.folder / "in")
            with self.start(*arguments) as process:
                (self.folder / "in").write_bytes(command.input)
                out, err = process.communicate(timeout=TIMEOUT_S)
            self.check(command, (process.returncode, out, err), (0,))

    def test_models_that_are_none(self):
        folder = self.folder / "folder.gguf"
        folder.mkdir()
        self.addCleanup(folder.rmdir)
        fifo = Path(MODEL[1]).with_name(f"{os.getpid()}.gguf")
        os.mkfifo(fifo)
        self.addCleanup(fifo.unlink)
        for command in COMMANDS:
            if not command.loads_model:
                continue
            for name in ("/no/such.gguf", str(folder), str(fifo), "/dev/null"):
                with self.subTest(command.name, model=name):
                    (self.folder / "out").unlink(missing_ok=True)
                    arguments = [name if word == MODEL[1] else word
                                 for word in self.fill(command, command.input)]
                    stdin = command.input if command.reads_stdin else b""
                    result = self.kdtree(*arguments, stdin=stdin)
                    # The doctor's report is where it says so.
                    if command.arguments[0] == "doctor":
                        self.assertEqual(result[0], 1)
                    else:
                        self.check(command, result, (1,), name)


class ClosedAndFull(Streams):
    def writes_stdout(self, command: Command) -> bool:
        # Beside a JSON file the answer or the table still goes there.
        return not (command.writes_file and command.lines)

    def test_closed_input(self):
        for command in self.for_each():
            result = self.attack(command, preexec_fn=lambda: os.close(0))
            # bench and doctor ask nobody.
            self.check(command, result, (1,) if command.reads_stdin else (0,), "standard input")

    def test_closed_output(self):
        for command in self.for_each():
            result = self.attack(command, preexec_fn=lambda: os.close(1))
            codes = (1,) if self.writes_stdout(command) else (0,)
            self.check(command, result, codes, "standard output")

    def test_closed_error(self):
        for command in self.for_each():
            code, out, _ = self.attack(command, preexec_fn=lambda: os.close(2))
            self.check(command, (code, out, b""), (0,))

    def test_several_closed(self):
        # No file of ours may take their place and get what was meant for them.
        for closed in ((0, 1), (0, 2), (1, 2), (0, 1, 2)):
            for command in self.for_each():
                code, out, _ = self.attack(
                    command, preexec_fn=lambda: [os.close(number) for number in closed])
                needed = (0 in closed and command.reads_stdin
                          or 1 in closed and self.writes_stdout(command))
                self.check(command, (code, out, b"kdtree: "), (1,) if needed else (0,))

    def test_reader_that_is_gone(self):
        for command in self.for_each(self.writes_stdout):
            reader, writer = os.pipe()
            os.close(reader)
            result = self.attack(command, stdout=writer)
            os.close(writer)
            self.check(command, result, (1,), "Broken pipe")

    def test_reader_that_leaves(self):
        for command in self.for_each(lambda command: command.lines and command.reads_stdin):
            with open(self.write("stdin", many(command)), "rb") as stdin, \
                    self.start(*self.fill(command, b""), stdin=stdin) as process:
                fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, 4096)
                self.assertTrue(process.stdout.read(10))
                process.stdout.close()
                err = process.stderr.read()
                process.wait(TIMEOUT_S)
            self.check(command, (process.returncode, b"", err), (1,), "Broken pipe")

    def test_full_disk(self):
        for command in self.for_each():
            with open("/dev/full", "wb") as full:
                result = self.attack(command, stdout=full)
            codes = (1,) if self.writes_stdout(command) else (0,)
            self.check(command, result, codes, "No space left")

    def test_full_disk_under_the_file(self):
        for command in self.for_each(lambda command: command.writes_file):
            (self.folder / "out").symlink_to("/dev/full")
            self.check(command, self.attack(command), (1,), "No space left")
            self.assertTrue((self.folder / "out").is_symlink())

    def test_unwritable_files(self):
        for command in self.for_each(lambda command: command.writes_file):
            for name in ("/no/such/folder/out", str(self.folder)):
                arguments = [name if word == str(self.folder / "out") else word
                             for word in self.fill(command, command.input)]
                self.check(command, self.kdtree(*arguments), (1,), name)

    def test_file_that_grows_too_large(self):
        # As a disk that fills up in the middle: what is written before stays whole.
        limit = 200
        for command in self.for_each(lambda command: command.writes_file):
            result = self.attack(
                command, command.input * (20 if command.lines else 1), env=self.environment(),
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
            # A model's cost table cannot be kept either: that is a warning.
            self.check(command, result, (0, 1), "File too large")


class Signals(Streams):
    NUMBERS = (signal.SIGINT, signal.SIGTERM)

    def interrupted(self, command: Command, process, number: int) -> None:
        process.send_signal(number)
        out, err = process.communicate(timeout=TIMEOUT_S)
        self.check(command, (process.returncode, out, err), (130,))
        self.assertEqual(err, b"")

    def test_while_it_waits_for_input_or_loads(self):
        for command in self.for_each(lambda command: command.reads_stdin):
            for number in self.NUMBERS:
                for delay in (0, 0.05, 0.3):
                    if "--chat" in command.arguments and number == signal.SIGINT and delay > 0:
                        continue  # stops an answer, not the program
                    with self.start(*self.fill(command, b""), stdin=-1) as process:
                        wait_until(lambda: catches(process, number))
                        time.sleep(delay)
                        self.interrupted(command, process, number)

    def test_while_a_named_pipe_is_awaited(self):
        for command in self.for_each(lambda command: command.reads_file):
            arguments = self.fill(command, b"")
            (self.folder / "in").unlink()
            os.mkfifo(self.folder / "in")
            for number in self.NUMBERS:
                with self.start(*arguments) as process:
                    wait_until(lambda: catches(process, number))
                    time.sleep(0.05)
                    self.interrupted(command, process, number)

    def test_at_work(self):
        for command in self.for_each(lambda command: command.lines):
            arguments = self.fill(command, many(command))
            for number in self.NUMBERS:
                with open(self.write("stdin", many(command)), "rb") as stdin, \
                        self.start(*arguments, stdin=stdin) as process:
                    if command.writes_file:
                        wait_until(lambda: (self.folder / "out").exists()
                                   and (self.folder / "out").stat().st_size > 0)
                    else:
                        # Nobody reads on: it stops in the middle of writing.
                        fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, 4096)
                        first = process.stdout.read1(1)
                    process.send_signal(number)
                    time.sleep(0.05)
                    out, err = process.communicate(timeout=TIMEOUT_S)
                    if not command.writes_file:
                        out = first + out
                self.check(command, (process.returncode, out, err), (130,))
                self.assertEqual(err, b"")
                (self.folder / "out").unlink(missing_ok=True)


if __name__ == "__main__":
    main()
