"""The shell of the program: help, suggestions, --config, --verbose, completion, progress."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
import unittest

from cli_support import MODEL, PROGRAM, TIMEOUT_S, CliTest, main, needs_model

ERASE = b"\r\x1b[K"
SECTIONS = ("SYNOPSIS", "GENERAL OPTIONS", "ENVIRONMENT", "EXIT CODES")


class Terminal:
    """A program whose chosen streams are a pseudo-terminal; what it writes there is kept."""

    def __init__(self, test: CliTest, *arguments: object, columns: int = 80,
                 streams: tuple[str, ...] = ("stderr",), **options):
        self.main, other = pty.openpty()
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("4H", 24, columns, 0, 0))
        environment = {**options.pop("env", test.environment()),
                       "TERM": options.pop("term", "xterm")}
        self.process = test.start(*arguments, **dict.fromkeys(streams, other), env=environment, **options)
        os.close(other)
        self.text = b""

    def read_until(self, pattern: bytes) -> None:
        end = time.monotonic() + TIMEOUT_S
        while not re.search(pattern, self.text):
            if not select.select([self.main], [], [], max(end - time.monotonic(), 0))[0]:
                raise TimeoutError(f"no {pattern!r} in {self.text!r}")
            self.text += os.read(self.main, 4096)

    def finish(self) -> int:
        try:
            while piece := os.read(self.main, 4096):
                self.text += piece
        except OSError:  # nobody has the other end open any more
            pass
        os.close(self.main)
        code = self.process.wait(TIMEOUT_S)
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
        return code


def screen(text: bytes) -> bytes:
    """What is left on a terminal of lines that were erased and drawn again."""
    lines = text.replace(b"\r\n", b"\n").split(b"\n")
    return b"\n".join(line.split(ERASE)[-1] for line in lines)


class Help(CliTest):
    def text(self, *arguments):
        code, out, err = self.kdtree(*arguments)
        self.assertEqual((code, err), (0, b""))
        return out.decode()

    def commands(self) -> list[str]:
        script = self.text("completion", "bash")
        return re.search(r"_kdtree_arguments.*?\*\) echo '(.*?)'", script, re.DOTALL)[1].split()

    def test_every_command(self):
        overview = self.text("--help")
        self.assertEqual(self.text("help"), overview)
        self.assertEqual(self.text("-h"), overview)
        for command in self.commands():
            with self.subTest(command=command):
                self.assertRegex(overview, rf"\n  {command} +\S")
                page = self.text(command, "--help")
                self.assertEqual(self.text("help", command), page)
                self.assertTrue(page.startswith(f"kdtree {command} - "), page)
                headings = re.findall(r"^[A-Z][A-Z ]+$", page, re.MULTILINE)
                self.assertEqual([each for each in SECTIONS if each not in headings], [])
                self.assertIn("KDTREE_CACHE", page)
                self.assertIn("--config FILE", page)
                self.assertIn(f"kdtree {command}", page[page.index("EXAMPLE"):])

    def test_width(self):
        for page in (["--help"], *([each, "--help"] for each in self.commands())):
            for columns in (60, 80, 132):
                terminal = Terminal(self, *page, columns=columns, streams=("stdout",))
                self.assertEqual(terminal.finish(), 0)
                lines = terminal.text.decode().replace("\r\n", "\n").split("\nEXAMPLE")[0]
                widest = max(map(len, lines.split("\n")))
                self.assertLessEqual(widest, columns, page)
                if columns < 100:
                    self.assertGreater(widest, columns - 20, page)
            text = self.text(*page)
            self.assertLessEqual(max(map(len, text.split("\n"))), 80, page)

    def test_equal_options_have_equal_text(self):
        seen = {}
        for command in self.commands():
            page = self.text(command, "--help")
            options = re.findall(r"^  (--[a-z-]+)((?:.*)(?:\n {4,}\S.*)*)", page, re.MULTILINE)
            for flag, text in options:
                if flag not in ("--config", "--verbose", "--version"):
                    words = re.sub(r"[(;] ?default: [^)]*|\s+", " ", text).split()
                    # What holds for one command alone stands behind a semicolon.
                    seen.setdefault(flag, {})[command] = " ".join(words).split(";")[0].strip("() ")
        for flag in ("--model", "--threads", "--context-length", "--kernels", "--temperature",
                     "--top-k", "--top-p", "--min-p", "--seed", "--speculative-algorithm"):
            texts = seen.get(flag, {})
            self.assertLessEqual(len(set(texts.values())), 1, (flag, texts))

    def test_suggestions(self):
        self.refused("rnu", naming="did you mean run?")
        self.refused("help", "bnech", naming="did you mean bench?")
        self.refused("run", "--temprature", 1, "hi", naming="did you mean --temperature?")
        self.refused("run", "--max_tokens=3", "hi", naming="did you mean --max-tokens?")
        self.refused("run", "--speculative-num", "hi",
                     naming="did you mean --speculative-num-draft-tokens?")
        self.refused("--verbsoe", "run", naming="did you mean --verbose?")
        code, _, err = self.kdtree("run", "--xyzzy", "hi")
        self.assertEqual((code, b"did you mean" in err), (1, False), err)
        self.refused("run", "--" + "x" * 100_000, naming="xxx")
        self.refused("completion", "fish", naming='"fish"')

    def test_closed_output(self):
        with open("/dev/full", "wb") as full:
            for arguments in (["--help"], ["--version"], ["run", "--help"], ["completion", "bash"]):
                code, _, err = self.kdtree(*arguments, stdout=full)
                self.assertEqual((code, err.count(b"\n")), (1, 1), err)


class ConfigFile(CliTest):
    """Models that do not exist: the message shows what was taken from where."""

    def model(self, content, *arguments, command="run"):
        path = self.write("options.toml", content)
        words = {"run": ["hi"], "bench": ["--prompts", self.write("p.jsonl", '{"turns":["a"]}\n')]}
        code, out, err = self.kdtree(command, "--config", path, *arguments, *words[command])
        self.assertEqual((code, out), (1, b""), err)
        return re.search(r'"(.*?)" is neither a known name', err.decode())[1]

    def bad(self, content, *parts, arguments=("run", "hi")):
        path = self.write("bad.toml", content)
        for part in parts:
            self.refused("--config", path, *arguments, naming=part)
        self.refused("--config", path, *arguments, naming=str(path))

    def test_who_wins(self):
        self.assertEqual(self.model('model = "above"\n'), "above")
        self.assertEqual(self.model('model = "above"\n[run]\nmodel = "own"'), "own")
        self.assertEqual(self.model('model = "above"\n[bench]\nmodel = "own"'), "above")
        self.assertEqual(self.model('model = "above"\n[bench]\nmodel = "own"', command="bench"),
                         "own")
        for flag in (["--model", "line"], ["--model=line"]):
            self.assertEqual(self.model('model = "above"\n[run]\nmodel = "own"', *flag), "line")
        # A value that the command line overrules is checked all the same.
        self.bad("threads = 0\n", "threads", arguments=("run", "--threads", 1, "hi"))

    def test_values(self):
        for value, model in (('"a b"', "a b"), ("'a\\b'", "a\\b"), (r'"\u00e4\U0001F600"', "ä😀"),
                             ('"--model"', "--model"), ('"[x,y]"', "[x,y]"), ('"a=b" # c', "a=b"),
                             ('"#"', "#")):
            self.assertEqual(self.model(f"model = {value}"), model)
        self.assertEqual(self.model(r'model = "a\tb\"\\"'), r'a\x09b"\\'[:-1])
        # Both spellings of a key, switches, numbers, Windows ends of lines, a byte-order mark.
        self.assertEqual(self.model(
            "\ufeff# comment\r\nmax_tokens = 3\r\ntemperature=0.5 \r\n\r\nraw = true\r\nseed = 7\r\n"
            'speculative-algorithm = "none"\r\nmodel = "x"\r\nstats = false\r\n'), "x")
        # For other commands only, and nothing at all.
        self.assertEqual(self.model('[run]\nmodel = "x"\n[bench]\nrepeat = 2\n'), "x")
        self.assertEqual(self.model("", "--model", "x"), "x")
        # What a command requires may come from the file, arrays over several lines.
        prompts = self.write("one.jsonl", '{"turns": ["a"]}\n')
        path = self.write("bench.toml", f'model = "x"\n[bench]\nprompts = [\n "{prompts}", # c\n]'
                          '\nmodes = ["plain", "tree"]\n')
        self.refused("bench", "--config", path, naming='"x"')

    def test_wrong_values(self):
        self.bad("\nthreads = 0\n", ":2: threads: ", "0 not in range")
        self.bad('threads = "four"', ":1: threads: takes a number", '"four"')
        self.bad("threads = 1.5", ":1: threads: ", "1.5")
        self.bad("threads = [1, 2]", ":1: threads: takes one value")
        self.bad("threads = true", ":1: threads: is no switch")
        self.bad("model = 5", ":1: model: takes text")
        self.bad("raw = 1", ":1: raw: is a switch")
        self.bad('raw = "true"', ":1: raw: is a switch")
        self.bad("seed = -1", ":1: seed: ", "-1")
        self.bad("seed = 99999999999999999999", ":1: seed: ")
        self.bad('kernels = "frob"', ":1: kernels: ", "frob")

    def test_unknown_and_double_keys(self):
        self.bad("# c\nmodle = 1", ":2: modle: no option of any command, did you mean model?")
        self.bad("[run]\nrepeat = 1", ":2: repeat: no option of run")
        for rest in ("", "repeat = 1"):
            self.bad(f"[bnech]\n{rest}", ":1: section [bnech] is no command",
                     "did you mean [bench]?")
        # Of another command's section too.
        self.bad("[bench]\nfrob = 1", ":2: frob: no option of bench")
        self.bad("threads = 1\n\nthreads = 2", ":3: threads: stands at line 1 already")
        self.bad("max-tokens = 1\nmax_tokens = 2", ":2: max-tokens: stands at line 1 already")
        self.bad("[run]\n[bench]\n[run]\n", ":3: section [run] stands at line 1 already")
        for key in ("config", "help", "version"):
            self.bad(f'{key} = "x"', f":1: {key}: stands on the command line only")

    def test_syntax(self):
        for text, part in (
                ("model", "neither key = value"), ("= 3", "neither key"), ("model =", "no value"),
                ("model = smollm2", 'text stands in quotes: "smollm2"'),
                ('model = "a', "no end on its line"), ("model = 'a", "no end on its line"),
                ('model = "a" "b"', "too much"), ('model = "\\q"', "no escape"),
                ('model = "\\ud800"', "no character"), ('model = "\\uzz"', "no escape"),
                ('model = "\\', "no escape"), ('model = """a"""', "several lines"),
                ("prompts = [", "no value"), ('prompts = ["a"', "no , or ]"),
                ("prompts = [[1]]", "arrays in arrays"), ("a.b = 1", "neither key"),
                ("model = {a = 1}", "tables"), ("[run", "a section is"), ("[[run]]", "a section is"),
                ("[]", "a section is"), ('"model" = "x"', "neither key"),
                ("threads = 1 2", "too much"), ("threads = 0x10", "no value"),
                ("threads = 1_000", "no value"), ("threads = nan", "no value")):
            with self.subTest(text=text):
                self.bad(f"\n{text}", ":2: ", part)

    def test_files(self):
        self.refused("run", "--config", "/no/such.toml", "hi", naming="/no/such.toml")
        self.refused("run", "--config", self.folder, "hi", naming=str(self.folder))
        self.refused("run", "--config", "/dev/zero", "hi", naming="larger than 1048576 bytes")
        self.refused("run", "--config", self.write("big.toml", "#" * 2_000_000), "hi",
                     naming="big.toml")
        self.bad(b"model = \"x\"\n\0\0", ":2: byte 0x00")
        self.bad(bytes(range(256)), ":1: byte 0x00")
        with open(PROGRAM, "rb") as program:
            self.bad(program.read(1000), ":1: byte 0x")
        self.refused("run", "hi", "--config", naming="--config")
        if os.geteuid() != 0:
            secret = self.write("secret.toml", "")
            secret.chmod(0)
            self.refused("run", "--config", secret, "hi", naming="secret.toml")
        # Close to the limit, and all of it read.
        self.assertEqual(self.model("# comment\n" * 100_000 + 'model = "end"'), "end")
        values = ", ".join(['"plain"'] * 100_000)
        self.bad(f"[bench]\nmodes = [{values}]\nfrob = 1", ":3: frob")
        begin = time.monotonic()
        self.bad("".join(f"k{i} = 1\n" for i in range(90_000)), ":1: k0: no option")
        self.assertLess(time.monotonic() - begin, 5)


@needs_model
class Settings(CliTest):
    def test_verbose_prints_each_setting_once(self):
        config = self.write("run.toml", 'threads = 1\nkernels = "fast"\nmax-tokens = 2\n'
                            'speculative-num-draft-tokens = 4\ntemperature = 0\nraw = true\n'
                            'page-size = 16\ndisable-radix-cache = true\nkv-evict-batch = 0.25\n')
        code, out, err = self.kdtree("run", "--config", config, "--verbose", "--context-length", 64,
                                     "--min-p", 0.1, "--logit-bias", "9=-inf", "Once upon")
        self.assertEqual(code, 0, err)
        lines = [line.split(" = ") for line in err.decode().splitlines() if " = " in line]
        settings = dict(lines)
        self.assertEqual(len(settings), len(lines), err)
        self.assertEqual(settings["threads"], "1")
        self.assertEqual(settings["context_length"], "64")
        self.assertEqual(settings["max_total_tokens"], "64")
        self.assertEqual((settings["max_tokens"], settings["temperature"]), ("2", "0"))
        self.assertEqual((settings["min_p"], settings["logit_bias"]), ("0.1", '["9=-inf"]'))
        self.assertEqual(settings["kernels"], '"fast"')
        self.assertEqual((settings["page_size"], settings["disable_radix_cache"]), ("16", "true"))
        self.assertEqual((settings["kv_extent"], settings["kv_headroom"],
                          settings["kv_evict_batch"], settings["kv_relocate"]),
                         ("64", "1024", "0.25", "0"))
        self.assertEqual(settings["speculative_algorithm"], '"ngram"')
        self.assertTrue(settings["model"].endswith(f'{MODEL.name}"'), settings)
        self.assertEqual(out, self.answer("--max-tokens", 2, "--raw", "--logit-bias", "9=-inf",
                                          "Once upon"))
        self.assertEqual(self.kdtree("run", "--config", config, "Once upon")[2], b"")

    def test_file_and_flags_give_the_same_answer(self):
        config = self.write("sampled.toml", "temperature = 0.8\nseed = 5\n[run]\nmax-tokens = 12\n"
                            'stop = ["no such text", "[END]"]\nprompt = "Tell me a story"\n')
        same = self.answer("--temperature", 0.8, "--seed", 5, "--max-tokens", 12, "Tell me a story")
        self.assertEqual(self.answer("--config", config), same)
        self.assertNotEqual(self.answer("--config", config, "--seed", 6), same)

    def test_bench_json_on_standard_output(self):
        prompts = self.write("one.jsonl", '{"turns": ["hi"]}\n')
        code, out, err = self.kdtree("bench", "--prompts", prompts, "--modes", "plain,tree",
                                     "--max-tokens", 2, "--repeat", 1, "--json", "-")
        self.assertEqual((code, err), (0, b""))
        self.assertEqual([run["mode"] for run in json.loads(out)["runs"]], ["plain", "tree"])

    def test_bench_table_fits(self):
        prompts = self.write("a-rather-long-name-of-a-set-of-prompts.jsonl", '{"turns": ["hi"]}\n')
        code, out, err = self.kdtree("bench", "--prompts", prompts, "--max-tokens", 2,
                                     "--repeat", 1)
        self.assertEqual(code, 0, err)
        lines = out.decode().splitlines()
        self.assertEqual(len(lines), 5)
        self.assertEqual({len(line) for line in lines}, {len(lines[0])})
        self.assertLessEqual(len(lines[0]), 80)


class Completion(CliTest):
    def complete(self, *words: str) -> list[str]:
        """What bash offers for the last word, by the function that `complete -p` names."""
        source = f'''
            source <("$KDTREE_PROGRAM" completion bash) || exit 1
            [[ $(complete -p kdtree) == "complete -F _kdtree kdtree" ]] || exit 1
            COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
            _kdtree kdtree "${{COMP_WORDS[COMP_CWORD]}}" "${{COMP_WORDS[COMP_CWORD-1]}}" || exit 1
            printf '%s\\n' "${{COMPREPLY[@]}}"'''
        result = subprocess.run(["bash", "-c", source, "bash", "kdtree", *words], cwd=self.folder,
                                capture_output=True, text=True, timeout=TIMEOUT_S)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        return result.stdout.split()

    def test_commands(self):
        commands = self.complete("")
        self.assertEqual(commands, self.complete("help", ""))
        for command in commands:
            code, out, _ = self.kdtree(command, "--help")
            self.assertEqual(code, 0)
            # Exactly the flags of the help page, which is another walk through the parser.
            flags = re.findall(r"^  (?:-h, )?(--[a-z0-9-]+)", out.decode(), re.MULTILINE)
            self.assertEqual(sorted(self.complete(command, "--")), sorted({*flags, "--version"}))
        overview = self.kdtree("--help")[1].decode()
        listed = re.findall(r"^  ([a-z]+) {2,}\S", overview, re.MULTILINE)
        self.assertEqual(sorted(listed), sorted(commands))
        self.assertEqual(self.complete("be"), ["bench"])
        self.assertEqual(self.complete("completion", ""), ["bash"])
        self.assertEqual(self.complete("fetch", ""), ["smollm2"])
        self.assertEqual(sorted(self.complete("--ver")), ["--verbose", "--version"])

    def test_values(self):
        self.assertEqual(self.complete("run", "--kernels", ""), ["fast", "ref"])
        self.assertEqual(self.complete("run", "--kernels", "r"), ["ref"])
        self.assertEqual(self.complete("run", "--kernels", "=", "r"), ["ref"])
        self.assertEqual(self.complete("run", "--kernels", "="), ["fast", "ref"])
        self.assertEqual(self.complete("run", "--speculative-algorithm", "n"), ["none", "ngram"])
        self.assertEqual(self.complete("run", "--threads", ""), [])
        self.assertEqual(self.complete("run", "--raw", "--max-tok"), ["--max-tokens"])
        # The command is found behind options and their values.
        self.assertEqual(self.complete("--verbose", "run", "--ra"), ["--raw"])
        self.assertEqual(self.complete("--config", "bench", "run", "--ra"), ["--raw"])
        self.assertEqual(self.complete("--config", "=", "bench", "run", "--ra"), ["--raw"])

    def test_files(self):
        self.write("some prompts.jsonl", "")
        self.write("some.toml", "")
        for words in (["run", "--config"], ["--config"], ["bench", "--json"], ["run", "--model"],
                      ["inspect"], ["score"], ["tokenize"], ["tokenize", "--chat-template"]):
            self.assertEqual(self.complete(*words, "some."), ["some.toml"], words)
        self.assertEqual(self.complete("bench", "--prompts", "some p"), ["some", "prompts.jsonl"])
        self.assertEqual(self.complete("run", "--threads", "some"), [])


@needs_model
class ProgressLine(CliTest):
    def bench(self, **options) -> Terminal:
        self.prompts = self.write("story.jsonl", '{"turns": ["Tell me a story"]}\n')
        return Terminal(self, "bench", "--prompts", self.prompts, "--modes", "plain", "--repeat",
                        1000, "--max-tokens", 8, **options)

    def test_shown_and_erased(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            terminal = self.bench(columns=70)
            terminal.read_until(rb"left.*left.*left")
            terminal.process.send_signal(number)
            self.assertEqual(terminal.finish(), 130)
            lines = terminal.text.split(ERASE)
            self.assertEqual(lines[-1], b"")
            self.assertEqual(screen(terminal.text), b"")
            for line in lines[1:-1]:
                self.assertRegex(line, rb"^story, repetition \d+ of 1000: \d+ of 1000 answers, "
                                       rb"\d+%, [\d.]+ answers/s, [\d:]+( s)? left$|\.\.\.")
                self.assertLess(len(line), 70)

    def test_narrow_dumb_and_no_terminal(self):
        terminal = self.bench(columns=20)
        terminal.read_until(rb"answe")
        terminal.process.send_signal(signal.SIGINT)
        self.assertEqual(terminal.finish(), 130)
        self.assertLess(max(map(len, terminal.text.split(ERASE))), 20)
        terminal = self.bench(term="dumb")
        time.sleep(2)
        terminal.process.send_signal(signal.SIGINT)
        self.assertEqual(terminal.finish(), 130)
        self.assertEqual(terminal.text, b"")
        with self.start("bench", "--prompts", self.prompts, "--modes", "plain", "--repeat", 1000,
                        "--max-tokens", 8) as process:
            time.sleep(2)
            process.send_signal(signal.SIGINT)
            self.assertEqual(process.wait(TIMEOUT_S), 130)
            self.assertEqual(process.stdout.read() + process.stderr.read(), b"")

    def test_reading_a_long_prompt(self):
        story = self.write("long.txt", "The quick brown fox. " * 1500)
        terminal = Terminal(self, "run", "--max-tokens", 2, "--speculative-algorithm", "none",
                            "--prompt-file", story)
        terminal.read_until(rb"reading the prompt: \d+ of \d+ tokens, \d+%")
        terminal.process.send_signal(signal.SIGINT)
        self.assertEqual(terminal.finish(), 130)
        self.assertEqual(screen(terminal.text), b"")

    def test_measuring_beside_logs(self):
        cache = self.folder / "fresh"
        terminal = Terminal(self, "run", "--model", MODEL, "--verbose", "--max-tokens", 2, "hi",
                            env=self.environment(KDTREE_CACHE=str(cache)))
        terminal.read_until(rb"measuring the cost of verification: \d+%")
        answer = terminal.process.stdout.read()
        self.assertEqual(terminal.finish(), 0)
        lines = screen(terminal.text).split(b"\n")
        self.assertTrue(answer.endswith(b"\n"))
        self.assertEqual(lines[-1], b"")
        for line in lines[:-1]:
            self.assertRegex(line, rb"^(kdtree: measuring .*|[a-z_]+ = \S.*)$")
        self.assertEqual(list(cache.glob("*.tmp")), [])


if __name__ == "__main__":
    main()
