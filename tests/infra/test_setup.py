"""tools/setup.sh and the scripts on it, with stand-ins for dpkg-query, apt-get, sudo and nvcc."""

import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NOBODY = 65534
SCRIPTS = ["quickstart", "check", ".ci/run", "tools/setup.sh", "tools/sglang_env.sh"]


class ScriptTest(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        self.folder.chmod(0o777)
        self.log = self.folder / "log"
        self.log.touch()
        self.log.chmod(0o666)
        self.bin = self.folder / "bin"
        self.bin.mkdir()
        # A copy, so that a user without rights can read it wherever the checkout is.
        self.setup = self.folder / "tools" / "setup.sh"
        self.setup.parent.mkdir()
        shutil.copy(ROOT / "tools" / "setup.sh", self.setup)

    def stand_in(self, name, script):
        path = self.bin / name
        path.write_text(f'#!/bin/bash\necho "{name} $*" >>"{self.log}"\n{script}\n')
        path.chmod(0o755)

    def bash(self, script, as_nobody=False, path=None):
        options = {"user": NOBODY} if as_nobody and os.geteuid() == 0 else {}
        return subprocess.run(
            ["bash", "-c", f'set -euo pipefail; source "{self.setup}"; {script}'],
            env={"PATH": path or f"{self.bin}:/usr/bin:/bin", "TMPDIR": str(self.folder)},
            capture_output=True,
            text=True,
            check=False,
            **options,
        )

    def fake_dpkg(self, installed):
        self.stand_in("dpkg-query", f'[[ " {installed} " != *" ${{!#}} "* ]] || echo -n installed')

    def logged(self, name):
        return [line for line in self.log.read_text().splitlines() if line.startswith(name + " ")]

    def test_scripts_parse(self):
        for script in SCRIPTS:
            subprocess.run(["bash", "-n", ROOT / script], check=True)

    def test_nothing_missing_touches_nothing(self):
        self.fake_dpkg("aa bb")
        self.stand_in("apt-get", "exit 1")
        result = self.bash("kd_ensure_packages aa bb")
        self.assertEqual((result.returncode, result.stdout, result.stderr), (0, "", ""))
        self.assertEqual(self.logged("apt-get"), [])

    def test_without_rights_one_command_is_printed(self):
        self.fake_dpkg("aa")
        self.stand_in("sudo", "exit 1")  # wants a password
        self.stand_in("apt-get", "exit 1")
        result = self.bash("kd_ensure_packages aa bb cc", as_nobody=True)
        self.assertEqual(result.returncode, 1)
        install = "apt-get update && apt-get install -y --no-install-recommends bb cc"
        expected = f"missing packages: bb cc\nerror: install them with: sudo sh -c '{install}'\n"
        self.assertEqual(result.stderr, expected)
        self.assertEqual(self.logged("apt-get"), [])

    def test_without_sudo_su_is_named(self):
        self.fake_dpkg("")
        for tool in ("bash", "dirname"):
            (self.bin / tool).symlink_to(shutil.which(tool))
        result = self.bash("kd_ensure_packages bb", as_nobody=True, path=str(self.bin))
        self.assertEqual(result.returncode, 1)
        self.assertIn("install them with: su -c 'apt-get update && ", result.stderr)

    def test_passwordless_sudo_is_used(self):
        self.fake_dpkg("")
        self.stand_in("sudo", '[[ $1 == -n ]] && shift && exec "$@"')
        self.stand_in("apt-cache", "echo 'Candidate: 1.0'")
        self.stand_in("apt-get", "exit 0")
        result = self.bash("kd_ensure_packages bb", as_nobody=True)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(self.logged("apt-get")[0], r"install .*--no-install-recommends .* bb$")

    @unittest.skipUnless(os.geteuid() == 0, "for root; the other users are above")
    def test_lists_are_updated_only_when_needed(self):
        self.fake_dpkg("")
        self.stand_in("apt-get", "exit 0")
        for candidate, commands in (("1.0", ["install"]), ("(none)", ["update", "install"])):
            self.log.write_text("")
            self.stand_in("apt-cache", f"echo 'Candidate: {candidate}'")
            result = self.bash("kd_ensure_packages bb")
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual([line.split()[1] for line in self.logged("apt-get")], commands)

    @unittest.skipUnless(os.geteuid() == 0, "for root; the other users are above")
    def test_failed_install_is_tried_again_after_an_update_and_then_reported(self):
        self.fake_dpkg("")
        self.stand_in("apt-cache", "echo 'Candidate: 1.0'")
        self.stand_in("apt-get", "[[ $1 == update ]] || { echo E: 404 Not Found; exit 100; }")
        result = self.bash("kd_ensure_packages bb")
        self.assertEqual(result.returncode, 1)
        commands = [line.split()[1] for line in self.logged("apt-get")]
        self.assertEqual(commands, ["install", "update", "install"])
        self.assertIn("E: 404 Not Found", result.stderr)
        self.assertIn("error: apt-get could not install: bb", result.stderr)
        self.assertEqual(list(self.folder.glob("tmp.*")), [])

    def test_nvcc_is_found_by_version(self):
        for release, status in (("13.0", 0), ("14.2", 0), ("12.9", 1), ("9.1", 1)):
            self.stand_in("nvcc", f"echo 'Cuda compilation tools, release {release}, V{release}'")
            result = self.bash("kd_find_nvcc")
            self.assertEqual(result.returncode, status, result.stderr)
            self.assertEqual(result.stdout, f"{self.bin}/nvcc\n" if status == 0 else "")
            if status:
                self.assertIn(f"is version {release}, 13.0 or newer is needed", result.stderr)

    def test_check_long_ends_where_memcheck_or_sglang_fails(self):
        for script in ("check", "tools/sglang_env.sh"):
            shutil.copy(ROOT / script, self.folder / script)
        work = ("kd_ensure_packages", "kd_configure", "kd_build", "kd_fetch_model")
        with self.setup.open("a") as setup:
            setup.writelines(f"{name}() {{ :; }}\n" for name in work)
            setup.write("kd_find_nvcc() { false; }\n")
        self.stand_in("fuzz", "")
        self.stand_in("ctest", "")
        self.stand_in("memcheck", 'exit "$MEMCHECK"')
        for tool in ("fuzz", "memcheck"):
            (self.setup.parent / f"{tool}.sh").symlink_to(self.bin / tool)
        with (self.setup.parent / "sglang_env.sh").open("a") as setup:
            setup.write(f'kd_sglang_tests() {{ echo "sglang " >>"{self.log}"; '
                        '[[ $SGLANG == 0 ]] || kd_die sglang; }\n')
        for memcheck, sglang, code, reached in (
                (1, 0, 1, []), (0, 1, 1, ["sglang"]), (0, 0, 0, ["sglang", "ctest"])):
            self.log.write_text("")
            result = subprocess.run(
                ["bash", self.folder / "check", "--long"], capture_output=True, text=True,
                check=False, env={"PATH": f"{self.bin}:/usr/bin:/bin", "MEMCHECK": str(memcheck),
                                  "SGLANG": str(sglang)})
            self.assertEqual(result.returncode, code, result.stderr)
            self.assertEqual([line.split()[0] for line in self.log.read_text().splitlines()],
                             ["fuzz", "memcheck", *reached])

    def sglang(self, script):
        shutil.copy(ROOT / "tools" / "sglang_env.sh", self.setup.parent)
        shutil.copy(ROOT / "tools" / "sglang_requirements.txt", self.setup.parent)
        return self.bash(f'export KDTREE_CACHE="{self.folder}"; '
                         f'source "{self.setup.parent}/sglang_env.sh"; {script}')

    def sglang_python(self, script):
        """A stand-in for the environment's interpreter, which looks complete."""
        python = Path(self.sglang("kd_sglang_python").stdout.strip())
        python.parent.mkdir(parents=True, exist_ok=True)
        (python.parent.parent / ".complete").touch()
        python.write_text(f"#!/bin/bash\n{script}\n")
        python.chmod(0o755)

    def test_downloads_for_sglang_are_tried_three_times(self):
        self.stand_in("sleep", "")
        for failures, code, message in (
            (2, 0, ""), (9, 1, f"no route\nerror: pip could not install torch (network? disk: "
                               f"{self.folder}/sglang)\n")):
            self.sglang_python(f'echo "pip $*" >>"{self.log}"; echo no route\n'
                               f'(($(grep -c "^pip" "{self.log}") > {failures}))')
            self.log.write_text("")
            result = self.sglang("kd_pip torch install torch==2")
            self.assertEqual(result.returncode, code, result.stderr)
            self.assertEqual(result.stderr, "SGLang environment: torch ...\n" + message)
            self.assertEqual(len(self.logged("pip")), 3)

    def test_sglang_is_unpacked_once_or_not_at_all(self):
        """Two at once, and one whose disk is full."""
        unpack = 'mkdir -p "$5/sglang"; touch "$5/sglang/version.py"'
        self.sglang_python(f'echo "$2 $3" >>"{self.log}"; [[ $2 != zipfile ]] || {{ {unpack}; }}')
        result = self.sglang("kd_sglang_environment 0.5.14 & kd_sglang_environment 0.5.14; wait $!")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(len(self.logged("zipfile")), 1)
        cache = self.folder / "sglang"
        self.assertEqual([each.name for each in (cache / "0.5.14").iterdir()], ["sglang"])
        self.sglang_python(f'[[ $2 != zipfile ]] || {{ {unpack}; exit 1; }}')
        result = self.sglang("kd_sglang_environment 0.5.15.post1; echo survived")
        self.assertEqual((result.returncode, result.stdout), (1, ""))
        self.assertIn("0.5.15.post1 could not be unpacked", result.stderr)
        self.assertFalse((cache / "0.5.15.post1").exists())

    def test_what_is_not_tested_with_sglang_is_a_failure(self):
        (self.folder / "tests" / "sglang").mkdir(parents=True)
        for name in ("one", "two"):
            (self.folder / "tests" / "sglang" / f"test_{name}.py").touch()
        self.sglang_python('echo "$KDTREE_SGLANG_REQUIRED ${1##*/}"; [[ $1 != *two* ]] || sleep 9')
        result = self.sglang("kd_sglang_test 0.5.16")
        self.assertEqual(result.returncode, 1)
        self.assertIn("error: SGLang 0.5.16 is not in ", result.stderr)
        package = self.folder / "sglang" / "0.5.16" / "sglang"
        package.mkdir(parents=True)
        (package / "version.py").touch()
        result = self.sglang("SCRIPT_SECONDS=1; kd_sglang_test 0.5.16")
        self.assertEqual(result.returncode, 1)
        self.assertIn("0.5.16 test_one.py\n", result.stdout)
        self.assertEqual(result.stderr.splitlines(), [
            "SGLang 0.5.16: test_one.py", "SGLang 0.5.16: test_two.py",
            "error: failed with SGLang 0.5.16: test_two.py (stopped after 1 s)"])

    def test_help_and_unknown_options_do_no_work(self):
        environment = {**os.environ, "PATH": f"{self.bin}:/usr/bin:/bin"}
        self.stand_in("dpkg-query", "exit 1")
        for script in ("quickstart", "check"):
            result = subprocess.run(
                [ROOT / script, "--help"],
                cwd="/",
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            self.assertEqual((result.returncode, result.stderr), (0, ""))
            self.assertTrue(result.stdout.startswith(f"usage: ./{script} "))
        result = subprocess.run(
            [ROOT / "quickstart", "--frobnicate"],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        self.assertEqual(result.returncode, 1)
        self.assertEqual(
            result.stderr, "error: unknown option --frobnicate (see ./quickstart --help)\n"
        )
        self.assertEqual(self.logged("dpkg-query"), [])


if __name__ == "__main__":
    unittest.main()
