"""tools/check_ptxas.py and the compiler launcher that keeps ptxas's reports."""

import io
import json
import subprocess
import sys
import tempfile
import unittest
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

TOOLS = Path(__file__).resolve().parents[2] / "tools"
sys.path.insert(0, str(TOOLS))
sys.dont_write_bytecode = True
import check_ptxas  # noqa: E402

# As nvcc 13.0 prints it.
CLEAN = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z5cleanv' for 'sm_90a'
ptxas info    : Function properties for _Z5cleanv
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 32 registers, used 0 barriers
ptxas info    : Compile time = 16.952 ms
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z5cleanv' for 'sm_120a'
ptxas info    : Function properties for _Z5cleanv
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 38 registers, used 1 barriers, 4096 bytes smem, 16 bytes cmem[0]
ptxas info    : Compile time = 16.339 ms
"""
SPILLS = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z6spillyPKfPf' for 'sm_90a'
ptxas info    : Function properties for _Z6spillyPKfPf
    1832 bytes stack frame, 2200 bytes spill stores, 3984 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers, 1832 bytes cumulative stack size, 4096 bytes smem
ptxas info    : Compile time = 177.520 ms
ptxas info    : Function properties for _Z3bigPKfi
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z6spillyPKfPf' for 'sm_120a'
ptxas info    : Function properties for _Z6spillyPKfPf
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 64 registers, used 1 barriers, 4096 bytes smem
ptxas info    : Function properties for _Z3bigPKfi
    8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
"""


class ParseTest(unittest.TestCase):
    def test_clean(self):
        first, second = check_ptxas.parse_report(CLEAN)
        self.assertEqual((first.name, first.arch, first.registers), ("_Z5cleanv", "sm_90a", 32))
        self.assertEqual((second.arch, second.registers, second.shared_bytes), ("sm_120a", 38, 4096))
        self.assertEqual(check_ptxas.faults_of([first, second]), [])

    def test_spills_of_kernels_and_of_device_functions(self):
        functions = check_ptxas.parse_report(SPILLS)
        self.assertEqual([f.is_kernel for f in functions], [True, False, True, False])
        faults = check_ptxas.faults_of(functions)
        self.assertEqual(len(faults), 2)
        self.assertIn("_Z6spillyPKfPf (sm_90a) spills registers: 2200 bytes stored", faults[0])
        self.assertIn("_Z3bigPKfi (sm_120a) spills registers: 4 bytes stored", faults[1])

    def test_shared_memory_limit_is_that_of_the_architecture(self):
        for smem, faults in ((101_376, 0), (101_377, 1)):
            text = CLEAN.replace("4096 bytes smem", f"{smem} bytes smem")
            found = check_ptxas.faults_of(check_ptxas.parse_report(text))
            self.assertEqual(len(found), faults, found)
        text = CLEAN.replace("0 barriers", "0 barriers, 101377 bytes smem")  # sm_90a has more
        self.assertEqual(check_ptxas.faults_of(check_ptxas.parse_report(text)), [])

    def test_missing_and_unknown_architecture(self):
        only_90a = CLEAN[: CLEAN.index("ptxas info    : 0 bytes gmem", 10)]
        faults = check_ptxas.faults_of(check_ptxas.parse_report(only_90a))
        self.assertEqual(faults, ["_Z5cleanv was not compiled for sm_120a"])
        faults = check_ptxas.faults_of(check_ptxas.parse_report(CLEAN.replace("sm_90a", "sm_80")))
        self.assertIn("_Z5cleanv: no shared-memory limit is known for sm_80", faults)


class BuildFolderTest(unittest.TestCase):
    def check(self, sources):
        """sources: {path of a source: its report, or None}"""
        with tempfile.TemporaryDirectory() as folder:
            build = Path(folder)
            commands = [{"directory": folder, "file": "/r/src/a.cpp", "command": "g++ -o a.o"}]
            for index, (source, report) in enumerate(sources.items()):
                commands.append(
                    {
                        "directory": folder,
                        "file": source,
                        "command": f"nvcc -c {source} -o {index}.o",
                    }
                )
                if report is not None:
                    (build / f"{index}.o.ptxas").write_text(report)
            (build / "compile_commands.json").write_text(json.dumps(commands))
            out = io.StringIO()
            with redirect_stdout(out), redirect_stderr(out):
                status = check_ptxas.main([folder])
        return status, out.getvalue()

    def test_no_kernels_is_said(self):
        status, out = self.check({})
        self.assertEqual(status, 0)
        self.assertIn("0 kernels in src, 0 in tests", out)

    def test_counts(self):
        status, out = self.check({"/r/src/kernels/x.cu": CLEAN, "/r/tests/cuda/y.cu": CLEAN})
        self.assertEqual(status, 0)
        self.assertIn("2 kernels in src, 2 in tests", out)
        self.assertIn("no spills", out)

    def test_faults_name_the_source(self):
        status, out = self.check({"/r/src/kernels/x.cu": SPILLS})
        self.assertEqual(status, 1)
        self.assertIn("x.cu: _Z6spillyPKfPf (sm_90a) spills", out)

    def test_a_missing_report_is_a_fault(self):
        status, out = self.check({"/r/src/kernels/x.cu": None})
        self.assertEqual(status, 1)
        self.assertIn("x.cu: no ptxas report", out)

    def test_no_build_folder(self):
        with redirect_stderr(io.StringIO()) as err:
            self.assertEqual(check_ptxas.main(["/nonexistent"]), 1)
        self.assertIn("error: cannot read the CUDA build /nonexistent", err.getvalue())


class LauncherTest(unittest.TestCase):
    def launch(self, folder, stderr, status):
        """Runs a stand-in for nvcc behind the launcher."""
        program = "import sys; sys.stderr.write(sys.argv[1]); sys.exit(int(sys.argv[2]))"
        command = [sys.executable, str(TOOLS / "nvcc_with_report.py"), sys.executable, "-c"]
        command += [program, stderr, str(status), "-o", str(Path(folder) / "x.o")]
        return subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)

    def test_report_is_kept_and_the_rest_passed_on(self):
        with tempfile.TemporaryDirectory() as folder:
            result = self.launch(folder, "x.cu(3): warning: unused\n" + CLEAN, 0)
            self.assertEqual(result.returncode, 0)
            self.assertEqual(result.stderr, "x.cu(3): warning: unused\n")
            self.assertEqual((Path(folder) / "x.o.ptxas").read_text(), CLEAN)

    def test_failure_leaves_no_report(self):
        with tempfile.TemporaryDirectory() as folder:
            result = self.launch(folder, "x.cu(3): error: no\n", 2)
            self.assertEqual((result.returncode, result.stderr), (2, "x.cu(3): error: no\n"))
            self.assertEqual(list(Path(folder).iterdir()), [])


if __name__ == "__main__":
    unittest.main()
