"""Lines of any length, prefixes, progress bars, and what happens when output cannot be written."""
import collections
import json
import os
import re
import sys
import time

import regroup_e2e as e2e
from fixture.screen import Screen

GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "golden")

# A progress bar as tqdm draws one, up to some percentage.
BAR = """
import os, sys, time
rank = int(os.environ["RANK"])
def bar(first, last, pause=0.002):
    for i in range(first, last + 1):
        sys.stderr.write(f"\\r{i:3d}%|{'#' * (i // 10):<10}|")
        sys.stderr.flush()
        time.sleep(pause)
def until(name):
    while not os.path.exists(name):
        time.sleep(0.01)
"""


def mega(letter):
    return letter * 10_000_000


class Case(e2e.TestCase):
    def setUp(self):
        super().setUp()
        self.fx.env["PYTHON_EXEC"] = sys.executable

    def script(self, text):
        path = self.fx.path("work", "program.py")
        with open(path, "w") as f:
            f.write(text)
        return path

    def ended(self, run, code=0):
        self.assertEqual(run.wait(60), code, run)
        return run

    def launch(self, *words):
        return self.ended(self.fx.regroup("run", "-q", "--node-name", "n", *words))

    def torchrun(self, *words):
        return self.ended(self.fx.start(e2e.binary("regroup-torchrun"), "-q", "--standalone", *words))


# Rank 1 begins when rank 0 has said the first piece of its line, however long the one started after the other.
SECOND_WAITS = """import os, time
mark = __file__ + ".said"
def said(piece):
    print(piece, end="", flush=True)
    open(mark, "w").close()
while os.environ["RANK"] == "1" and not os.path.exists(mark):
    time.sleep(0.01)
"""


class Lines(Case):
    def test_ten_megabytes_without_newline_from_two_ranks_are_two_lines(self):
        path = self.script("import os, sys\nsys.stdout.write('ab'[int(os.environ['RANK'])] * 10_000_000)\n")
        run = self.torchrun("--nproc-per-node", "2", path)
        self.assertEqual(collections.Counter(run.stdout.rstrip("\n").split("\n")), {mega("a"): 1, mega("b"): 1})
        run = self.launch("--nproc-per-node", "2", path)
        self.assertEqual(collections.Counter(run.stdout.rstrip("\n").split("\n")), {"[n:0] " + mega("a"): 1, "[n:1] " + mega("b"): 1})

    def test_others_wait_while_a_line_grows(self):
        path = self.script(SECOND_WAITS + "if os.environ['RANK'] == '1':\n    time.sleep(0.3)\n    print('a line')\n    time.sleep(2)\n"
                           "else:\n    for i in range(8):\n        said(i)\n        time.sleep(0.2)\n    print()\n")
        self.assertEqual(self.launch("--nproc-per-node", "2", path).stdout, "[n:0] 01234567\n[n:1] a line\n")

    def test_a_line_that_stops_growing_is_broken(self):
        path = self.script(SECOND_WAITS + "if os.environ['RANK'] == '1':\n    time.sleep(0.3)\n    print('a line')\n    time.sleep(3)\n"
                           "else:\n    said('Loading')\n    time.sleep(3)\n    print(' done')\n")
        self.assertEqual(self.launch("--nproc-per-node", "2", path).stdout, "[n:0] Loading\n[n:1] a line\n[n:0]  done\n")


class Prefixes(Case):
    def setUp(self):
        super().setUp()
        self.path = self.script("import os\nprint('loss', os.environ['RANK'])\n")

    def test_plain_under_torchruns_command_line(self):
        two = ("--nproc-per-node", "2")
        self.assertEqual(sorted(self.torchrun(*two, self.path).stdout.splitlines()), ["loss 0", "loss 1"])
        self.assertEqual(sorted(self.torchrun(*two, "-t", "1", self.path).stdout.splitlines()),
                         ["[default0]:loss 0", "[default1]:loss 1"])
        self.assertEqual(sorted(self.torchrun(*two, "--log-line-prefix-template", "x", self.path).stdout.splitlines()),
                         ["loss 0", "loss 1"])

    def test_run_has_its_own_and_no_prefix(self):
        two = ("--nproc-per-node", "2")
        self.assertEqual(sorted(self.launch(*two, self.path).stdout.splitlines()), ["[n:0] loss 0", "[n:1] loss 1"])
        self.assertEqual(sorted(self.launch(*two, "--no-prefix", self.path).stdout.splitlines()), ["loss 0", "loss 1"])

    def test_filtered_lines_bear_the_rank(self):
        logs = self.fx.path("work", "logs")
        self.torchrun("--nproc-per-node", "2", "--log-dir", logs, "--duplicate-stdout-filters", "loss", self.path)
        found = [os.path.join(folder, name) for folder, _, names in os.walk(logs) for name in names if name == "filtered_stdout.log"]
        self.assertEqual(len(found), 1, found)
        with open(found[0]) as f:
            self.assertEqual(sorted(f.read().splitlines()), ["[default0]:loss 0", "[default1]:loss 1"])


class Bars(Case):
    def golden(self, name, terminal):
        """Waits until the terminal shows what the file holds."""
        with open(os.path.join(GOLDEN, name)) as f:
            wanted = f.read().splitlines()

        def look():
            terminal.read(0.02)
            shown = Screen().feed(terminal.text).lines()
            self.assertEqual(shown, wanted)
            return True
        e2e.wait_for(look, 20, name, lambda: "\n".join(Screen().feed(terminal.text).lines()))

    def terminal(self, ranks, text):
        return self.fx.terminal(e2e.binary("regroup"), "run", "-q", "--node-name", "n", "--nproc-per-node", str(ranks),
                                self.script(BAR + text), env={"TERM": "xterm"}, cwd=self.fx.work)

    def go(self, name):
        with open(self.fx.path("work", name), "w"):
            pass

    def test_rows_stay_under_the_output_and_end_above_it(self):
        terminal = self.terminal(2, "bar(0, 50)\nif rank == 0:\n    print('saved')\nuntil('go%d' % rank)\nbar(51, 100)\n"
                                    "sys.stderr.write('\\n')\nuntil('end')\n")
        self.golden("bars_two_ranks.txt", terminal)
        self.go("go0")
        self.golden("bars_one_ended.txt", terminal)
        self.go("go1")
        self.golden("bars_ended.txt", terminal)
        self.go("end")
        self.assertEqual(terminal.wait(20), 0, terminal)
        self.golden("bars_ended.txt", terminal)

    def test_four_rows_and_a_summary_drawn_five_times_a_second(self):
        begun = time.monotonic()
        terminal = self.terminal(6, "bar(0, 50, 0.02)\nuntil('go0')\n")
        self.golden("bars_six_ranks.txt", terminal)
        draws = terminal.text.count("\x1b[K\x1b[J")
        self.assertGreater(draws, 2)
        self.assertLessEqual(draws, 5 * (time.monotonic() - begun) + 5)
        self.go("go0")
        self.assertEqual(terminal.wait(20), 0, terminal)
        self.golden("bars_six_ended.txt", terminal)

    def test_a_bar_that_a_failure_cuts_short_stays_where_it_was(self):
        terminal = self.terminal(2, "bar(0, 30 + rank)\nuntil('go0')\nsys.exit(rank)\n")
        self.golden("bars_before_failure.txt", terminal)
        self.go("go0")
        self.assertEqual(terminal.wait(20), 1, terminal)
        shown = Screen().feed(terminal.text).lines()
        self.assertEqual(sorted(line for line in shown if line.startswith("[n:")), ["[n:0]  30%|###       |", "[n:1]  31%|###       |"], shown)

    def test_without_a_terminal_a_line_a_second(self):
        begun = time.monotonic()
        run = self.launch("--nproc-per-node", "2", self.script(BAR + "bar(0, 100, 0.02)\nsys.stderr.write('\\n')\n"))
        seconds = time.monotonic() - begun
        for rank in (0, 1):
            lines = [line for line in run.stderr.splitlines() if line.startswith(f"[n:{rank}] ")]
            self.assertEqual(lines[-1], f"[n:{rank}] 100%|##########|")
            self.assertGreater(len(lines), 1, "states in between")
            self.assertLessEqual(len(lines), seconds + 1)
        self.assertNotIn("\r", run.stderr)


class WriteErrors(Case):
    def shell(self, line, *words):
        """`line` with the launch command as $0 and its words as "$@"."""
        return self.fx.start("sh", "-c", line, e2e.binary("regroup"), "run", *words)

    def explained(self, what):
        self.assertIn(what, " ".join(self.fx.run("explain").stdout.split()))
        notes = json.loads(self.fx.run("explain", "--json").stdout)["output_not_shown"]
        self.assertEqual(len(notes), 1, notes)

    def test_a_full_disk_is_told_once_and_the_job_goes_on(self):
        mark = self.fx.path("work", "mark")
        run = self.ended(self.shell('exec "$0" "$@" >/dev/full', "--no-python", "sh", "-c",
                                    f"for i in 1 2 3; do echo $i; sleep 0.2; done; echo end > {mark}"))
        self.assertEqual(run.stderr.count("stdout cannot be written: No space left on device"), 1, run)
        self.assertTrue(os.path.exists(mark))
        self.assertIn("succeeded", run.stderr)
        self.explained("stdout of the launch command could not be written from")

    def test_stderr_is_told_of_on_stdout(self):
        run = self.ended(self.shell('exec "$0" "$@" 2>/dev/full', "--no-python", "sh", "-c", "echo out; echo err >&2"))
        self.assertEqual(len(re.findall("stderr cannot be written: No space left on device", run.stdout)), 1, run)
        self.assertIn("out\n", run.stdout)

    def test_a_reader_that_goes(self):
        run = self.ended(self.shell('"$0" "$@" | head -n 1', "--no-python", "sh", "-c",
                                    "for i in 1 2 3 4 5 6; do echo $i; sleep 0.2; done"))
        self.assertEqual(run.stdout, "1\n")
        self.assertEqual(run.stderr.count("stdout cannot be written: Broken pipe"), 1, run)
        self.explained("Broken pipe")

    def test_both_streams_on_a_full_disk(self):
        self.ended(self.shell('exec "$0" "$@" >/dev/full 2>&1', "--no-python", "sh", "-c", "echo out; echo err >&2"))
        self.explained("No space left on device")

    def test_who_wants_it_fails(self):
        begun = time.monotonic()
        run = self.ended(self.shell('exec "$0" "$@" >/dev/full', "--stdout-errors", "fail", "--no-python", "sh", "-c",
                                    "echo out; sleep 60"), 1)
        self.assertLess(time.monotonic() - begun, 30)
        self.assertIn("this node leaves the job (--stdout-errors fail)", run.stderr)
        self.assertEqual(self.ended(self.shell('exec "$0" "$@" >/dev/full', "--stdout-errors", "fail", "--no-python", "sh", "-c",
                                               "echo out"), 1).code, 1)


if __name__ == "__main__":
    e2e.main()
