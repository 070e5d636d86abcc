"""tests/run.py counts what happened, selects what was asked for, and takes a skip in CI for a failure."""
import os
import subprocess
import sys
import tempfile
import unittest

_RUN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "run.py")
_TESTS = {
    "good": ("true", "unit"),
    "bad": ("sh -c 'echo it broke; exit 1'", "unit"),
    "absent": ("no-such-program", "unit"),
    "left_out": ("sh -c 'echo SKIPPED a.b: no GPU here; exit 77'", "e2e"),
    "partly": ("sh -c 'echo SKIPPED a.c: no root; exit 0'", "e2e;torch"),
    "silent": ("sh -c 'exit 77'", "e2e"),
    "long": ("true", "slow"),
}


class Run(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="rgrun")
        self.addCleanup(self.folder.cleanup)
        with open(os.path.join(self.folder.name, "CTestTestfile.cmake"), "w", encoding="utf-8") as f:
            for name, (command, labels) in _TESTS.items():
                words = command.split(" ", 2)
                quoted = " ".join(f'"{word.strip(chr(39))}"' for word in words)
                f.write(f'add_test({name} {quoted})\nset_tests_properties({name} PROPERTIES LABELS "{labels}"'
                        " SKIP_RETURN_CODE 77)\n")

    def run_py(self, *arguments, ci=False):
        env = {**os.environ, "CI": "true" if ci else ""}
        result = subprocess.run([sys.executable, _RUN, *arguments, self.folder.name], env=env, text=True,
                                cwd=self.folder.name, capture_output=True, check=False, timeout=60)
        return result.returncode, result.stdout

    def test_counts(self):
        code, out = self.run_py()
        self.assertEqual(code, 1, out)
        self.assertEqual(out.splitlines()[-1], "2 passed, 3 failed, 2 skipped")
        for line in ("FAILED: bad", "FAILED: absent", "FAILED: silent", "skipped: left_out: no GPU here",
                     "skipped: a.c: no root", "it broke"):
            self.assertIn(line, out)

    def test_success(self):
        code, out = self.run_py("-R", "good")
        self.assertEqual((code, out.splitlines()[-1]), (0, "1 passed, 0 failed"), out)

    def test_a_skip_passes_here_and_fails_in_ci(self):
        self.assertEqual(self.run_py("-R", "partly")[0], 0)
        code, out = self.run_py("-R", "partly", ci=True)
        self.assertEqual((code, out.splitlines()[-1]), (1, "1 passed, 1 failed"), out)

    def test_no_test_is_no_success(self):
        self.assertEqual(self.run_py("-R", "nothing_like_it")[0], 1)

    def test_slow_only_when_asked_for(self):
        self.assertNotIn("long", self.run_py()[1])
        self.assertEqual(self.run_py("-R", "slow")[1].splitlines()[-1], "1 passed, 0 failed")

    def test_checks_of_the_caller_count(self):
        code, out = self.run_py("-R", "good", "--passed", "build.clang", "--failed", "build.dev")
        self.assertEqual((code, out.splitlines()[-1]), (1, "2 passed, 1 failed"), out)

    def test_torch(self):
        self.assertEqual(self.run_py("--needs-torch")[0], 0)
        self.assertEqual(self.run_py("--needs-torch", "-R", "good")[0], 1)


if __name__ == "__main__":
    unittest.main(verbosity=2)
