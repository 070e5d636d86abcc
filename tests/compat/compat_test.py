"""Scripts that know nothing of Regroup, started as tutorials start them, and disturbed. See matrix.py.

    compat_test.py                the tutorials, with PyTorch alone
    compat_test.py --pairwise     few cells, with several disturbances each, in which every two of its values meet; without
                                  scripts whose package is not there
    compat_test.py --torture      output that is hard to pass on, without comparing it to torchrun's
    compat_test.py --all          the whole matrix, the tutorials, such output, compared, every flag of torchrun's, and its own
                                  tests (`./dev compat`)
      --list prints the cells instead · -R WORD only those whose line has WORD in it (a regular expression)
"""
import argparse
import collections
import concurrent.futures
import os
import re
import signal
import sys
import threading
import time
import unittest
import zlib

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
import regroup_e2e as e2e  # noqa: E402 (the path has to come first)
import matrix  # noqa: E402
import parity  # noqa: E402
import torture  # noqa: E402
import tutorials  # noqa: E402
from jobs import Job, importable, with_children  # noqa: E402

PAUSE_S, DISTURBED_STEPS, CALM_STEPS = 0.05, 40, 5  # Each disturbance has two seconds to come.
IMPORT_STEPS = 300  # Of others, while a node that comes to a warm job imports PyTorch.
LANES = 3  # Cells at once: while the steps of one pass, others have the processors to import PyTorch.


def has_ipv6():
    try:
        return bool(e2e.free_port("::1"))
    except OSError:
        return False


def later_of(cell):
    """What happens to a cell's job while it runs, in order."""
    return [name for name in cell.disturbance.split("+") if name not in matrix.FROM_THE_START]


def steps_of(cell):
    """How many steps a cell's jobs take, so that all of it can happen to them; 0 where nothing does."""
    happens, later = cell.disturbance.split("+"), later_of(cell)
    steps = DISTURBED_STEPS * len(later)
    if cell.launch == "elastic" and "warm" in happens:
        steps += IMPORT_STEPS * (2 if "added" in later else 1)  # Its second node may come late too.
    elif later and "warm" in happens and "two" in happens:
        steps += 2 * DISTURBED_STEPS  # The first job goes on while the second is waited for.
    return steps


class Matrix(unittest.TestCase):
    """A test for each cell. They share one place, as the jobs of one user on one host do, and run side by side there."""

    fx = None  # Set while they run.

    def one(self, cell):
        happens, later, steps = cell.disturbance.split("+"), later_of(cell), steps_of(cell)
        arguments = ["--steps", steps, "--pause", PAUSE_S] if steps else ["--steps", CALM_STEPS]
        host = "::1" if "ipv6" in happens else "127.0.0.1"
        if host == "::1" and not has_ipv6():
            self.skipTest("this machine has no IPv6")
        jobs = [Job(self.fx, cell.script, cell.launch, "-".join((*cell, str(number))), arguments, host, "warm" in happens)
                for number in range(2 if "two" in happens else 1)]
        if cell.launch == "elastic":
            jobs[-1].port = jobs[0].port  # One endpoint serves them all, by their ids.
        try:
            self.go(jobs, cell, later)
        finally:
            for job in jobs:
                job.end()

    def go(self, jobs, cell, later):
        """What happens later happens to the first job."""
        worlds = [job.start_nodes(1 if "added" in later and job is jobs[0] else None) for job in jobs]
        for job in jobs if "warm" in cell.disturbance else ():
            job.running(worlds[jobs.index(job)])
            self.assertTrue(self.fx.processes("regroup-nursery", job.path), job.describe())
        if "ipv6" in cell.disturbance:
            _, ranks = jobs[0].running(worlds[0])
            self.assertEqual({e2e.environment(info.pid)["MASTER_ADDR"] for info in ranks.values()}, {"::1"})
        for name in later:
            worlds[0] = self.disturb(jobs[0], name, worlds[0], choice=zlib.crc32("/".join(cell).encode()))
        for job, world in zip(jobs, worlds):
            for program in job.programs:
                if program.code != -signal.SIGKILL:
                    self.assertEqual(program.wait(120), 0, job.describe())
            self.assertEqual(job.finished(), [(rank, world) for rank in range(world)], job.describe())
            self.assertNotIn("start cold", job.describe())

    def disturb(self, job, name, world, choice):
        """Does that to a running job; returns the size of the world that it comes back with. `choice`: neither always rank 0
        nor never."""
        generation, ranks = job.running(world)
        job.await_another(r"\bstep \d")
        resumed = job.count(r"resumes at [1-9]")
        before = with_children(ranks.values())
        if name == "rank":
            os.kill(ranks[choice % world].pid, signal.SIGKILL)
        elif name == "added":
            world += 1
            job.start(len(job.programs))
        else:
            world = self.lose_node(job, choice, world)
        job.running(world, above=generation)
        self.assertEqual([pid for pid in before if e2e.alive(pid)], [], "processes of the generation before")
        if job.script.resumes:
            job.await_true(lambda: job.count(r"resumes at [1-9]") > resumed, "what was saved to be loaded")
        return world

    def lose_node(self, job, choice, world):
        """SIGKILLs a node's agent, shims, store and workers. A job of a fixed size goes on when its command is given again."""
        living = [node for node, program in enumerate(job.programs) if program.code is None]
        victim = living[choice % len(living)]
        e2e.kill_tree(job.programs[victim].pid, sparing="coordinator")
        job.programs[victim].kill()
        if job.launch.kind == "elastic":
            return world - 1
        job.start(victim)
        return world


class Result(unittest.TextTestResult):
    """A line for each cell, and nothing else while all is well. Any thread."""

    total = None

    def __init__(self, *arguments, **more):
        super().__init__(*arguments, **more)
        self.lock, self.began, self.told = threading.RLock(), {}, set()
        self.counts, self.started = collections.Counter(), time.monotonic()

    def startTest(self, test):
        with self.lock:
            unittest.TestResult.startTest(self, test)
            self.began[test] = time.monotonic()

    def say(self, test, outcome):
        if test in self.told:
            return  # What it left behind is an error of its own.
        self.told.add(test)
        self.counts[outcome] += 1
        total = len(str(Result.total))
        print(f"[{len(self.told):>{total}}/{Result.total}] {line_of(test._testMethodName)} {outcome:<7}"
              f"{time.monotonic() - self.began[test]:6.1f} s", flush=True)

    def addSuccess(self, test):
        with self.lock:
            self.say(test, "ok")

    def addFailure(self, test, err):
        with self.lock:
            unittest.TestResult.addFailure(self, test, err)
            self.say(test, "FAILED")

    def addError(self, test, err):
        with self.lock:
            unittest.TestResult.addError(self, test, err)
            self.say(test, "FAILED")

    def addSkip(self, test, reason):
        with self.lock:
            unittest.TestResult.addSkip(self, test, reason)
            self.say(test, "skipped")

    def stopTestRun(self):
        counts = ", ".join(f"{self.counts[outcome]} {outcome}" for outcome in ("ok", "FAILED", "skipped"))
        print(f"{counts} in {time.monotonic() - self.started:.0f} s", flush=True)


class Runner(unittest.TextTestRunner):
    """First the cells, some at once, then the tutorials, one by one: those have ports of their own."""

    resultclass = Result

    def run(self, suite):
        result = self._makeResult()
        tests = [test for case in suite for test in case]
        cells = sorted((test for test in tests if isinstance(test, Matrix)),
                       key=lambda test: -steps_of(LINES[test._testMethodName]))  # So that no long one is left at the end.
        result.startTestRun()
        for kills_nodes in (True, False):
            self.run_cells([cell for cell in cells if ("node" in LINES[cell._testMethodName][2]) == kills_nodes], result, kills_nodes)
        for test in tests:
            if test not in cells:
                test(result)
        result.printErrors()
        result.stopTestRun()
        return result

    @staticmethod
    def run_cells(cells, result, kills_nodes):
        if not cells:
            return
        Matrix.fx = e2e.Fixture()
        Matrix.fx.expects_run_directories = kills_nodes  # Which leave theirs behind.
        lanes = concurrent.futures.ThreadPoolExecutor(LANES)
        try:
            for done in [lanes.submit(cell, result) for cell in cells]:
                done.result()
        finally:
            lanes.shutdown(cancel_futures=True)  # After Ctrl-C; otherwise there are none.
            try:
                Matrix.fx.close()
            except AssertionError:
                print("FAILED: something is left of these cells", flush=True)
                result.addFailure(cells[-1], sys.exc_info())


LINES = {}  # By the name of a test's method.


def line_of(method):
    return " ".join(f"{word:<{width}}" for word, width in zip(LINES[method], (12, 12, 24)))


def add(case, name, line, body):
    LINES[name] = line
    setattr(case, name, body)


def keep(case, known, names, word):
    """Of the tests of a case, those of `names` whose line has `word` in it."""
    for name in [name for name in dir(case) if name.startswith("test_")]:
        if name in names and re.search(word, " ".join(known[name])):
            LINES[name] = known[name]
        else:
            setattr(case, name, None)


def add_tests(cells, habits, outputs, flags, word):
    """Makes a test of each cell, and of each of those habits of tutorials, outputs and flags, whose line has `word` in it."""
    for cell in cells:
        if re.search(word, " ".join(cell)):
            add(Matrix, "test_" + "_".join(cell).replace("+", "_"), cell, lambda self, cell=cell: self.one(cell))
    keep(tutorials.Tutorials, tutorials.LINES, habits, word)
    keep(torture.Torture, torture.LINES, outputs, word)
    keep(parity.Parity, parity.LINES, flags, word)
    Result.total = len(LINES)


def there():
    """The scripts and the disturbances that can be had here."""
    known = matrix.SCRIPTS.items()
    try:
        missing = {needs for needs in {script.needs for _, script in known} - {None} if not importable(e2e.torch_python(), needs)}
    except unittest.SkipTest:
        missing = set()  # Each cell says so.
    if missing:
        print(f"without the scripts that need {' and '.join(sorted(missing))}: not in {e2e.torch_python()}", flush=True)
    if not has_ipv6():
        print("without ipv6: this machine has none", flush=True)
    return ([name for name, script in known if script.needs not in missing and name not in matrix.HABITS],
            [name for name in matrix.DISTURBANCES if name != "ipv6" or has_ipv6()])


def main():
    parser = argparse.ArgumentParser(prog="./dev compat", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairwise", action="store_true", help="only so many cells that every two values meet, no tutorials")
    parser.add_argument("--torture", action="store_true", help="only output that is hard to pass on, without torchrun")
    parser.add_argument("--all", action="store_true", help="the whole matrix, the tutorials, and such output under torchrun too")
    parser.add_argument("--list", action="store_true", help="print the cells instead")
    parser.add_argument("-R", dest="word", default="", help="only cells whose line has this in it")
    options = parser.parse_args()
    cells = matrix.pairwise(*there()) if options.pairwise else matrix.cells() if options.all else []
    habits = [] if options.pairwise or options.torture else tutorials.LINES if options.all else tutorials.plain()
    outputs = torture.SMALL if options.torture else torture.LINES if options.all else []
    torture.Torture.compared = not options.torture
    parity.add_flags()
    add_tests(cells, habits, outputs, parity.LINES if options.all else [], options.word)
    if options.list:
        print("\n".join(line_of(name).rstrip() for name in LINES))
        return
    if not LINES:
        sys.exit(f"error: no cell has {options.word!r} in its line\n  try: ./dev compat --list")
    del sys.argv[1:]
    e2e.main(Runner())


if __name__ == "__main__":
    Tutorials, Torture, Parity = tutorials.Tutorials, torture.Torture, parity.Parity
    main()
