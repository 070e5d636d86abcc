"""Scripts that know nothing of Regroup, started as tutorials start them, and disturbed. See matrix.py.

    compat_test.py                a part of the matrix that has each script, launch and disturbance, and the tutorials, with
                                  PyTorch alone
    compat_test.py --pairwise     a part of the matrix that has every two of them together
    compat_test.py --all          the whole matrix, and the tutorials (`./dev compat`)
      --list prints the cells instead · -R WORD only those whose line has WORD in it (a regular expression)
"""
import argparse
import collections
import os
import re
import signal
import sys
import time
import unittest
import zlib

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
import regroup_e2e as e2e  # noqa: E402 (the path has to come first)
import matrix  # noqa: E402
import tutorials  # noqa: E402
from jobs import Job, with_children  # noqa: E402

PAUSE_S, DISTURBED_STEPS, CALM_STEPS = 0.05, 40, 5  # A disturbance has two seconds to come.


def has_ipv6():
    try:
        return bool(e2e.free_port("::1"))
    except OSError:
        return False


class Matrix(e2e.TestCase):
    def one(self, cell):
        kind, _ = matrix.DISTURBANCES[cell.disturbance]
        arguments = ["--steps", CALM_STEPS] if kind == "calm" else ["--steps", DISTURBED_STEPS, "--pause", PAUSE_S]
        host = "::1" if cell.disturbance == "ipv6" else "127.0.0.1"
        if host == "::1" and not has_ipv6():
            self.skipTest("this machine has no IPv6")
        jobs = [Job(self.fx, cell.script, cell.launch, arguments, host, number)
                for number in range(2 if cell.disturbance == "two" else 1)]
        if cell.launch == "elastic":
            jobs[-1].port = jobs[0].port  # One endpoint serves them all, by their ids.
        nodes = 1 if cell.disturbance == "added" else jobs[0].launch.nodes
        for job in jobs:
            for node in range(nodes):
                job.start(node)
        world = nodes * jobs[0].launch.per_node
        if kind != "calm":
            world = self.disturb(jobs[0], cell, world)
        elif cell.disturbance == "ipv6":
            _, ranks = jobs[0].running(world)
            self.assertEqual({e2e.environment(info.pid)["MASTER_ADDR"] for info in ranks.values()}, {"::1"})
        for job in jobs:
            for program in job.programs:
                if program.code != -signal.SIGKILL:
                    self.assertEqual(program.wait(120), 0, self.fx.describe())
            self.assertEqual(job.finished(), [(rank, world) for rank in range(world)], self.fx.describe())

    def disturb(self, job, cell, world):
        """Does to a running job what the cell says; returns the size of the world that it comes back with."""
        generation, ranks = job.running(world)
        job.await_step()
        before = with_children(ranks.values())
        choice = zlib.crc32("/".join(cell).encode())  # Neither always rank 0 nor never.
        if cell.disturbance == "rank":
            os.kill(ranks[choice % world].pid, signal.SIGKILL)
        elif cell.disturbance == "added":
            world += 1
            job.start(len(job.programs))
        else:
            world = self.lose_node(job, choice % len(job.programs), world)
        job.running(world, above=generation)
        self.assertEqual([pid for pid in before if e2e.alive(pid)], [], "processes of the generation before")
        if job.script.resumes:
            job.await_true(lambda: re.search(r"resumes at [1-9]", job.stdout), "what was saved to be loaded")
        return world

    def lose_node(self, job, victim, world):
        """SIGKILLs a node's agent, shims, store and workers. A job of a fixed size goes on when its command is given again."""
        self.fx.expects_run_directories = True
        e2e.kill_tree(job.programs[victim].pid, sparing="coordinator")
        job.programs[victim].kill()
        if job.launch.kind == "elastic":
            return world - 1
        job.start(victim)
        return world


class Result(unittest.TextTestResult):
    """A line for each cell, and nothing else while all is well."""

    total, told = 0, None

    def __init__(self, *arguments, **more):
        super().__init__(*arguments, **more)
        self.counts, self.started = collections.Counter(), time.monotonic()

    def startTest(self, test):
        unittest.TestResult.startTest(self, test)
        self.began = time.monotonic()

    def say(self, test, outcome):
        if test is self.told:
            return  # What it left behind is an error of its own.
        self.told = test
        self.counts[outcome] += 1
        total = len(str(Result.total))
        print(f"[{self.testsRun:>{total}}/{Result.total}] {line_of(test._testMethodName)} {outcome:<7}"
              f"{time.monotonic() - self.began:6.1f} s", flush=True)

    def addSuccess(self, test):
        self.say(test, "ok")

    def addFailure(self, test, err):
        unittest.TestResult.addFailure(self, test, err)
        self.say(test, "FAILED")

    def addError(self, test, err):
        unittest.TestResult.addError(self, test, err)
        self.say(test, "FAILED")

    def addSkip(self, test, reason):
        unittest.TestResult.addSkip(self, test, reason)
        self.say(test, "skipped")

    def stopTestRun(self):
        counts = ", ".join(f"{self.counts[outcome]} {outcome}" for outcome in ("ok", "FAILED", "skipped"))
        print(f"{counts} in {time.monotonic() - self.started:.0f} s", flush=True)


LINES = {}  # By the name of a test's method.


def line_of(method):
    return " ".join(f"{word:<{width}}" for word, width in zip(LINES[method], (12, 12, 8)))


def add(case, name, line, body):
    LINES[name] = line
    setattr(case, name, body)


def add_tests(cells, habits, word):
    """Makes a test of each cell, and of each of those habits of tutorials, whose line has `word` in it."""
    for cell in cells:
        if re.search(word, " ".join(cell)):
            add(Matrix, "test_" + "_".join(cell), cell, lambda self, cell=cell: self.one(cell))
    for name in [name for name in dir(tutorials.Tutorials) if name.startswith("test_")]:
        words = tutorials.LINES[name]
        if name in habits and re.search(word, " ".join(words)):
            LINES[name] = words
        else:
            setattr(tutorials.Tutorials, name, None)
    Result.total = len(LINES)


def main():
    parser = argparse.ArgumentParser(prog="./dev compat", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairwise", action="store_true", help="only so many cells that every two values meet")
    parser.add_argument("--all", action="store_true", help="the whole matrix, and the tutorials")
    parser.add_argument("--list", action="store_true", help="print the cells instead")
    parser.add_argument("-R", dest="word", default="", help="only cells whose line has this in it")
    options = parser.parse_args()
    cells = matrix.pairwise() if options.pairwise else matrix.cells() if options.all else matrix.quick()
    habits = [] if options.pairwise else tutorials.LINES if options.all else tutorials.quick()
    add_tests(cells, habits, options.word)
    if options.list:
        print("\n".join(line_of(name).rstrip() for name in LINES))
        return
    if not LINES:
        sys.exit(f"error: no cell has {options.word!r} in its line\n  try: ./dev compat --list")
    del sys.argv[1:]
    e2e.main(unittest.TextTestRunner(resultclass=Result))


if __name__ == "__main__":
    Tutorials = tutorials.Tutorials
    main()
