"""End-to-end tests: start Regroup's programs for real, and leave nothing behind.

    import regroup_e2e as e2e

    class Run(e2e.TestCase):
        def test_exit_code(self):
            run = self.fx.regroup("run", "--no-python", "sh", "-c", "exit 7")
            self.assertEqual(run.wait(), 7, run)

    if __name__ == "__main__":
        e2e.main()

Each test gets a Fixture `self.fx`: a private folder with a short path (state, runtime, home and temporary directories
in it), programs started in it, and at the end a comparison of processes, listening sockets, /dev/shm, /tmp, run
directories, control groups, network namespaces and modes of terminals (the test's own, and each that a program was given)
with those before. What is left fails the test. A guard process does the same when the test itself is killed. Register a
file with regroup_e2e_test() in CMake.

By hand: python3 tests/e2e/x_test.py [Class.test]. REGROUP_BIN_DIR names another folder of programs than the release
build's; REGROUP_E2E_KEEP=1 keeps folders.
"""
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from fixture import leftovers, processes, root as _root_process  # noqa: E402 (the path has to come first)
from fixture.processes import alive, descendants, environment, kill_tree, wait_exit  # noqa: E402,F401 (for tests)
from fixture.terminal import Terminal  # noqa: E402

_root = None  # Set by main(), before any test runs.
_SKIPPED = 77
_DEFAULT_BIN_DIR = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "build", "release", "bin")


def binary(name):
    """Path of one of Regroup's programs."""
    return os.path.join(os.path.abspath(os.environ.get("REGROUP_BIN_DIR", _DEFAULT_BIN_DIR)), name)


def torch_python():
    """An interpreter that can import PyTorch; skips the test where there is none."""
    python = os.environ.get("REGROUP_TEST_PYTHON")
    if not python:
        raise unittest.SkipTest("no PyTorch: REGROUP_TEST_PYTHON is not set (./dev test sets it)")
    return python


def free_port(host="127.0.0.1"):
    """A port that nothing listens on right now."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as s:
        s.bind((host, 0))
        return s.getsockname()[1]


def wait_for(predicate, timeout=10.0, what=None, show=None, every=0.01):
    """Calls predicate() until it returns something true, and returns that.

    An AssertionError or OSError inside it counts as "not yet". On time-out fails with `what`, the last value or error,
    and str(show) or show().
    """
    deadline, last = time.monotonic() + timeout, None
    while True:
        try:
            last = predicate()
            if last:
                return last
        except (AssertionError, OSError, LookupError, ValueError) as error:
            last = error
        if time.monotonic() > deadline:
            shown = "" if show is None else f"\n{show() if callable(show) else show}"
            raise AssertionError(f"not within {timeout} s: {what or predicate}; last: {last!r}{shown}")
        time.sleep(every)


class Program:
    """A program that a fixture started; its output goes to files, whole and in order.

    str() of it tells what a failing test needs: command, pid, exit code, the end of both outputs.
    """

    def __init__(self, argv, stem, env, cwd, stdin, new_session):
        self.argv = argv
        self.stdout_path, self.stderr_path = stem + ".stdout", stem + ".stderr"
        with open(self.stdout_path, "wb") as out, open(self.stderr_path, "wb") as err:
            self.process = subprocess.Popen(argv, env=env, cwd=cwd, stdin=stdin, stdout=out, stderr=err,
                                            start_new_session=new_session)
        self.pid = self.process.pid

    @property
    def stdout(self):
        return _read(self.stdout_path)

    @property
    def stderr(self):
        return _read(self.stderr_path)

    @property
    def code(self):
        """Exit code, negative for a signal, None while it runs."""
        return self.process.poll()

    def wait(self, timeout=30.0):
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {timeout} s: {self}\n{_tree(self.pid)}") from None

    def expect(self, pattern, timeout=10.0, stream="stderr"):
        """Waits for a regular expression in stderr (or stdout); returns the match. Fails when the program ends first."""
        def look():
            ended = self.code is not None
            match = re.search(pattern, getattr(self, stream), re.MULTILINE)
            if match is None and ended:
                raise RuntimeError(f"ended before {pattern!r} on {stream}: {self}")
            return match
        return wait_for(look, timeout, f"{pattern!r} on {stream}", show=lambda: str(self))

    def send(self, signum):
        self.process.send_signal(signum)

    def kill(self):
        """SIGKILLs this process alone, and waits for it."""
        self.process.kill()
        return self.process.wait(10)

    def __str__(self):
        return (f"{' '.join(self.argv)}\n  pid {self.pid}, exit code {self.code}\n"
                f"  stdout: {_tail(self.stdout)}\n  stderr: {_tail(self.stderr)}")


class Fixture:
    """A private place on this machine, and the programs started in it. `settle_s`: how long leftovers may take to go.

    `expects_run_directories`: the test kills agents for good, whose run directories then stay, as they must.
    `hurries_coordinators`: those that launch commands started are told to end when these have, not two seconds later.
    """

    def __init__(self, settle_s=10.0):
        if _root is None:
            raise RuntimeError("end-to-end tests are started by regroup_e2e.main()")
        self.root = tempfile.mkdtemp(prefix="rg", dir="/tmp")
        _root.tell(made=self.root)
        self.settle_s, self.expects_run_directories, self.hurries_coordinators = settle_s, False, True
        self.programs, self._services, self._terminals = [], [], []
        for name in ("home", "state", "run", "tmp", "out", "work"):
            os.mkdir(os.path.join(self.root, name), 0o700)
        self.work = self.path("work")
        self.env = self._environment()
        self._before = leftovers.Before(self.root, _root.pid, strict=bool(os.environ.get("CI")))

    def path(self, *parts):
        return os.path.join(self.root, *parts)

    @property
    def state_dir(self):
        """Where Regroup keeps its state by default here."""
        return self.path("state", "regroup", socket.gethostname())

    def _environment(self):
        """This process's environment, less what would lead out of the fixture."""
        keep = {k: v for k, v in os.environ.items() if not k.startswith(("REGROUP_", "TORCHELASTIC_")) and k != "PYTHONPATH"}
        mark, value = _root.mark.split("=")
        keep.update({
            "PATH": os.path.dirname(binary("x")) + ":" + os.environ.get("PATH", "/usr/bin:/bin"),
            "HOME": self.path("home"), "XDG_STATE_HOME": self.path("state"), "XDG_RUNTIME_DIR": self.path("run"),
            "XDG_CONFIG_HOME": self.path("home"), "XDG_CACHE_HOME": self.path("home"), "TMPDIR": self.path("tmp"),
            "LANG": "C.UTF-8", mark: value})
        return keep

    def start(self, *argv, env=None, cwd=None, stdin=subprocess.DEVNULL, new_session=False):
        """Starts a program; the test sees to its end. `env` is added to the fixture's."""
        argv = [str(word) for word in argv]
        stem = self.path("out", f"{len(self.programs)}-{os.path.basename(argv[0])}")
        program = Program(argv, stem, {**self.env, **(env or {})}, cwd or self.work, stdin, new_session)
        self.programs.append(program)
        return program

    def regroup(self, *argv, **options):
        """Starts the command line program with these arguments."""
        return self.start(binary("regroup"), *argv, **options)

    def service(self, *argv, **options):
        """Starts a program that runs until the fixture ends, which sends it SIGTERM."""
        program = self.start(*argv, **options)
        self._services.append(program)
        return program

    def run(self, *argv, timeout=30.0, **options):
        """Runs `regroup` with these arguments to its end."""
        program = self.regroup(*argv, **options)
        program.wait(timeout)
        return program

    def terminal(self, *argv, env=None, cwd=None, rows=24, columns=80):
        """Starts a program on a terminal of its own."""
        terminal = Terminal([str(word) for word in argv], {**self.env, "TERM": "xterm", **(env or {})},
                            cwd or self.work, rows, columns)
        self._terminals.append(terminal)
        return terminal

    def processes(self, *words):
        """Everything alive that this test started, directly or not, whose command line has all of `words`."""
        found = self._before.found_processes()
        return [info for info in found if all(any(w in part for part in info.argv) for w in words)]

    def describe(self):
        """What a person wants to see of a failed test."""
        programs = "\n".join(str(program) for program in self.programs)
        return f"processes:\n{_tree(_root.pid)}programs:\n{programs}"

    def close(self, failed=False):
        """Ends the services, waits for everything to go, compares. Raises AssertionError naming what is left."""
        shown = self.describe() if failed else ""
        if not failed:
            self.let_groups_end()
        for program in self._services:
            if program.code is None:
                program.send(signal.SIGTERM)
        for terminal in self._terminals:
            terminal.close()
        deadline = time.monotonic() + (0 if failed else self.settle_s)
        while (left := self._left()) and time.monotonic() < deadline:
            self._poll()
            self._hurry_coordinators()
            time.sleep(0.02)
        left += [f"terminal of {' '.join(t.argv)}: its modes are not what they were" for t in self._terminals if t.spoilt]
        if left or failed:
            print(shown or self.describe(), file=sys.stderr)
        self._clean()
        if left and not failed:
            raise AssertionError("left behind:\n  " + "\n  ".join(left))

    def let_groups_end(self):
        """A job is over for who waited for it a moment before its store and supervisors are gone; an agent that is stopped
        in between leaves them to the next one, which no test starts."""
        deadline = time.monotonic() + 3
        while self.processes("regroup-shim") and time.monotonic() < deadline:
            time.sleep(0.02)

    def _hurry_coordinators(self):
        living = self.processes()
        if self.hurries_coordinators and all("--ad-hoc" in info.argv for info in living):
            self.hurries_coordinators = not living
            processes.send([info.pid for info in living], signal.SIGTERM)

    def _poll(self):
        return [program.code for program in self.programs]

    def _left(self):
        left = self._before.found()
        if self.expects_run_directories:
            left = [line for line in left if not re.match(r"(file /(run/regroup|dev/shm/regroup-\d+)\b|control group .*/regroup-)", line)]
        return left

    def _clean(self):
        self._before.clean()
        self._poll()
        if os.environ.get("REGROUP_E2E_KEEP"):
            print(f"kept {self.root}", file=sys.stderr)
        else:
            shutil.rmtree(self.root, ignore_errors=True)
        _root.tell(removed=self.root)


class TestCase(unittest.TestCase):
    """A test with a fixture of its own, `self.fx`."""

    maxDiff = None

    def setUp(self):
        self.fx = Fixture()
        self.addCleanup(lambda: self.fx.close(failed=self._has_failed()))

    def _has_failed(self):
        result = self._outcome.result
        return any(test is self for test, _ in result.failures + result.errors)


def main(runner=None):
    """Runs the tests of the calling file, under a root process and a guard. Exit code 77: all were skipped."""
    def tests(root):
        global _root  # pylint: disable=global-statement
        _root = root
        program = unittest.main(module="__main__", exit=False, verbosity=2, testRunner=runner)
        for test, reason in program.result.skipped:
            print(f"SKIPPED {test.id()}: {reason}", flush=True)
        if not program.result.wasSuccessful():
            return 1
        return _SKIPPED if 0 < program.result.testsRun == len(program.result.skipped) else 0

    sys.exit(_root_process.run(tests))


def _read(path):
    with open(path, encoding="utf-8", errors="replace") as f:
        return f.read()


def _tail(text, lines=30):
    kept = text.splitlines()[-lines:]
    return "(empty)" if not kept else "".join(f"\n    | {line}" for line in kept)


def _tree(pid):
    return "".join(f"    {info}\n" for info in processes.descendants(pid)) or "    (none)\n"
