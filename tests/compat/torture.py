"""Output that is hard to pass on. What is expected is what torchrun does; where Regroup differs on purpose, the test says so."""
import hashlib
import os
import random
import sys

import regroup_e2e as e2e

# What `./dev compat` shows of each test: what is printed, by which launchers, and how.
LINES = {
    "test_binary": ("output", "one worker", "binary"),
    "test_binary_of_one_rank": ("output", "two workers", "binary"),
    "test_huge_lines": ("output", "two workers", "huge lines"),
    "test_closed_descriptors": ("output", "one worker", "closed descriptors"),
    "test_full_disk": ("output", "one worker", "full disk"),
    "test_a_reader_that_goes": ("output", "one worker", "reader gone"),
    "test_slow_reader": ("output", "one worker", "slow reader"),
    "test_a_gigabyte": ("output", "two workers", "1 GB"),
}
# ./dev test has these, without torchrun.
SMALL = ["test_binary", "test_binary_of_one_rank", "test_huge_lines", "test_full_disk"]

_BINARY = "import os, random, sys\nif os.environ['RANK'] == '0':\n    sys.stdout.buffer.write(random.Random(1).randbytes(4_000_000))\n"
# Lines of several ranks, each with its number; what reads them tells whether all came, in order.
_LINES = ("import os, sys\nrank, count = os.environ['RANK'], int(sys.argv[1])\nfiller = '.' * int(sys.argv[2])\n"
          "for at in range(0, count, 1000):\n"
          "    sys.stdout.write(''.join(f'{rank} {i} {filler}\\n' for i in range(at, min(count, at + 1000))))\n")
_READER = ("import collections, sys, time\ntime.sleep(float(sys.argv[1]))\nnext_of, other = collections.Counter(), 0\n"
           "for line in sys.stdin:\n    words = line.split()\n"
           "    if len(words) == 3 and words[0] in ('0', '1') and int(words[1]) == next_of[words[0]]:\n        next_of[words[0]] += 1\n"
           "    else:\n        other += 1\nprint(sorted(next_of.items()), other)\n")


def _bytes(path):
    with open(path, "rb") as f:
        return f.read()


class Torture(e2e.TestCase):
    compared = True  # With torchrun itself.

    def launchers(self):
        yield "regroup-torchrun", [e2e.binary("regroup-torchrun")]
        if self.compared:
            yield "torchrun", [e2e.torch_python(), "-m", "torch.distributed.run"]

    def script(self, text, name="program.py"):
        path = self.fx.path("work", name)
        with open(path, "w", encoding="ascii") as f:
            f.write(text)
        return path

    def start(self, launcher, text, *arguments, workers=1, line='exec "$@"', options=()):
        """`line` is a shell's, with the launcher's command as "$@"."""
        return self.fx.start("sh", "-c", line, "sh", *launcher, "--standalone", f"--nproc-per-node={workers}", *options,
                             self.script(text), *map(str, arguments), env={"PYTHON_EXEC": sys.executable})

    def each(self, text, *arguments, **more):
        """(name, program) of the same command under each launcher, ended."""
        for name, launcher in self.launchers():
            run = self.start(launcher, text, *arguments, **more)
            run.wait(500)
            yield name, run

    def binary(self, workers):
        wanted = hashlib.sha256(random.Random(1).randbytes(4_000_000)).hexdigest()
        for _, run in self.each(_BINARY, workers=workers):
            self.assertEqual(run.code, 0, run.stderr)
            self.assertEqual(hashlib.sha256(_bytes(run.stdout_path)).hexdigest(), wanted)

    def test_binary(self):
        self.binary(1)

    def test_binary_of_one_rank(self):
        self.binary(2)

    def test_huge_lines(self):
        """All bytes come; under torchrun the two lines are mixed."""
        text = "import os, sys\nsys.stdout.write('ab'[int(os.environ['RANK'])] * 10_000_000)\n"
        for name, run in self.each(text, workers=2):
            self.assertEqual(run.code, 0, run.stderr)
            printed = _bytes(run.stdout_path)
            self.assertEqual((printed.count(b"a"), printed.count(b"b")), (10_000_000, 10_000_000))
            if name != "torchrun":
                self.assertEqual(sorted(printed.split()), [b"a" * 10_000_000, b"b" * 10_000_000])

    def test_closed_descriptors(self):
        text = ("import sys\nsaid = sys.stdin.read() if sys.stdin else ''\nprint('out', repr(said))\n"
                "print('err', file=sys.stderr)\n")
        for closed in ("<&-", ">&-", "2>&-", "<&- >&- 2>&-"):
            for name, run in self.each(text, line=f'exec "$@" {closed}'):
                self.assertEqual(run.code, 0, (name, closed, run))
                # Under torchrun a closed stderr becomes its stdout.
                more = "err\n" if name == "torchrun" and closed == "2>&-" else ""
                self.assertEqual(run.stdout, "" if ">&-" in closed.split() else f"out ''\n{more}", (name, closed))
                self.assertEqual("err\n" in run.stderr, "2>&-" not in closed, (name, closed, run))

    def test_full_disk(self):
        """Under torchrun the worker meets the error itself. Here the job goes on, and says so; --stdout-errors fail is its way."""
        text = "import time\nfor i in range(20):\n    print(i, flush=True)\n    time.sleep(0.05)\n"
        for name, run in self.each(text, line='exec "$@" >/dev/full'):
            self.assertEqual(run.code, 1 if name == "torchrun" else 0, run)
            self.assertIn("No space left on device", run.stderr)
        _, launcher = next(self.launchers())
        run = self.start(launcher, text, line='exec "$@" >/dev/full', options=["--stdout-errors", "fail"])
        self.assertEqual(run.wait(60), 1, run)

    def test_a_reader_that_goes(self):
        """The same, for a pipe: what was read is the same; torchrun's worker fails, ours goes on."""
        text = "import time\nfor i in range(20):\n    print(i, flush=True)\n    time.sleep(0.05)\n"
        for _, run in self.each(text, line='"$@" | head -n 2'):
            self.assertEqual((run.code, run.stdout), (0, "0\n1\n"), run)
            self.assertIn("Broken pipe", run.stderr)

    def read_by(self, delay, count, filler, workers):
        reader = self.script(_READER, "reader.py")
        for _, run in self.each(_LINES, count, filler, workers=workers, line=f'"$@" | {sys.executable} {reader} {delay}'):
            self.assertEqual(run.stdout, f"{[(str(rank), count) for rank in range(workers)]} 0\n", run)

    def test_slow_reader(self):
        self.read_by(delay=15, count=2_000_000, filler=100, workers=1)

    def test_a_gigabyte(self):
        """Several ranks at once: under torchrun lines that one write does not hold whole are mixed."""
        count, filler = 5_000_000, 90
        reader = self.script(_READER, "reader.py")
        for name, run in self.each(_LINES, count, filler, workers=2, line=f'"$@" | {sys.executable} {reader} 0'):
            if name != "torchrun":
                self.assertEqual(run.stdout, f"[('0', {count}), ('1', {count})] 0\n", run)
            self.assertTrue(os.path.getsize(run.stdout_path) > 0, run)
