"""The demo passes, detects each planted fault, and leaves nothing behind when it is interrupted."""
import json
import os
import re
import resource
import signal
import sys
import time
import types
from unittest import mock

import regroup_e2e as e2e

_HERE = os.path.dirname(os.path.abspath(__file__))
DEMO = os.path.join(_HERE, "demo.py")
sys.path.insert(0, _HERE)
import demo  # noqa: E402
import proof  # noqa: E402


class Others:
    """How busy this machine was since then with what this process and its ended descendants did not do, and with what the
    host took away: as a part of all cores' time."""

    def __init__(self):
        self._began, self._busy, self._mine = time.monotonic(), self._all(), self._ours()

    @staticmethod
    def _all():
        with open("/proc/stat", encoding="utf-8") as f:
            user, nice, system, _, _, irq, softirq, steal = map(int, f.readline().split()[1:9])
        return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")

    @staticmethod
    def _ours():
        both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(one.ru_utime + one.ru_stime for one in both)

    def part(self):
        spent = (self._all() - self._busy) - (self._ours() - self._mine)
        return max(spent, 0) / ((time.monotonic() - self._began) * os.cpu_count())


class Demo(e2e.TestCase):
    def demo(self, *arguments, env=None):
        return self.fx.start(sys.executable, DEMO, "--fast", *arguments, env=env)

    def passes_within(self, limit, program, kill_after):
        """By the demo's own account; a limit for a machine that does nothing else."""
        others = Others()
        run = self.fx.start(*program)
        self.assertEqual(run.wait(kill_after), 0, run)
        minutes, seconds = re.search(r"Regroup demo: PASSED in (\d+):(\d\d) ", run.stdout).groups()
        took, busy = 60 * int(minutes) + int(seconds), others.part()
        print(f"the demo took {took} s of {limit} s; others took {100 * busy:.0f} % of the machine", flush=True)
        if busy < 0.2:
            self.assertLessEqual(took, limit, run.stdout)

    def mutated(self, mutation, words):
        run = self.demo("--seed", "11", env={"REGROUP_TEST_MUTATION": mutation})
        self.assertEqual(run.wait(120), 1, run)
        self.assertRegex(run.stdout, words)

    def test_passes(self):
        self.passes_within(60, [sys.executable, DEMO, "--fast", "--seed", "7"], kill_after=120)

    def test_passes_in_full_size(self):
        self.passes_within(240, [sys.executable, DEMO, "--seed", "7"], kill_after=480)

    def test_a_skipped_batch_fails_it(self):
        self.mutated("skip_batch", "FAILED: .*(positions|samples)")

    def test_a_repeated_batch_fails_it(self):
        self.mutated("repeat_batch", "FAILED: .*(positions|samples)")

    def test_resuming_from_zero_fails_it(self):
        self.mutated("resume_from_zero", "FAILED: .*resumed")

    def test_a_wrong_gradient_scale_fails_it(self):
        self.mutated("gradient_scale", "FAILED: .*final loss")

    def interrupted_at(self, words):
        """Ctrl-C once `words` are on the terminal: the terminal is as before, and (the fixture looks) nothing is left."""
        terminal = self.fx.terminal(sys.executable, DEMO, "--fast", "--seed", "7", rows=24, columns=60)
        terminal.expect(words, 120)
        terminal.send("\x03")
        self.assertEqual(terminal.wait(20), 128 + signal.SIGINT, terminal.text[-2000:])
        self.assertIn("\x1b[?25h", terminal.text, "the cursor stays hidden")
        self.assertTrue(terminal.modes_kept())

    def test_ctrl_c_leaves_nothing(self):
        self.interrupted_at("generation 1")

    def test_ctrl_c_while_a_node_is_down_leaves_nothing(self):
        self.interrupted_at("act 4/6")

    def test_ctrl_c_in_the_undisturbed_run_leaves_nothing(self):
        self.interrupted_at("the same training undisturbed")

    def test_play_leaves_a_cluster_that_comes_back_by_itself(self):
        terminal = self.fx.terminal(sys.executable, DEMO, "--fast", "--seed", "7", "--play", rows=24, columns=60)
        shown = terminal.expect("Ctrl-C here ends everything", 120)
        self.assertIn("PASSED", shown)
        endpoint = re.search(r"REGROUP_COORDINATOR=(\S+)", shown)[1]
        pids = [int(pid) for pid in re.findall(r"kill -9 (\d+)", shown)]
        self.assertGreaterEqual(len(pids), 3, "two agents and the coordinator")
        self.assertEqual(self.states(endpoint), ["succeeded"])
        os.kill(pids[-1], signal.SIGKILL)
        e2e.wait_for(lambda: self.states(endpoint) == ["succeeded"], 20, "the coordinator answers again")
        terminal.send("\x03")
        self.assertEqual(terminal.wait(20), 128 + signal.SIGINT)

    def states(self, endpoint):
        """Of all jobs; empty while nobody answers."""
        run = self.fx.run("ps", "-a", "--json", env={"REGROUP_COORDINATOR": endpoint})
        return [job["state"] for job in json.loads(run.stdout)["jobs"]] if run.code == 0 else []

    def test_two_at_once_as_another_user(self):
        os.chmod(self.fx.root, 0o711)
        home = self.fx.path("other")
        os.mkdir(home)
        os.chmod(home, 0o777)
        user = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"] if os.geteuid() == 0 else []
        environment = {name: home for name in ("HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR", "TMPDIR")}
        text = self.fx.path("other", "text")
        with open(DEMO, encoding="utf-8") as code, open(text, "w", encoding="utf-8") as f:
            f.write(code.read() * 10)
        runs = [self.fx.start(*user, sys.executable, DEMO, "--fast", "--seed", *options, env=environment, cwd="/")
                for options in (["7"], ["8", "--data", text])]
        for run in runs:
            self.assertEqual(run.wait(240), 0, run)
            self.assertIn("PASSED", run.stdout)
        one, other = (re.search(r"unigram entropy (\S+)", run.stdout).group(1) for run in runs)
        self.assertNotEqual(one, other, "each trains on its own text")

    def test_unreadable_data_is_named(self):
        run = self.demo("--data", "/does/not/exist")
        self.assertEqual(run.wait(20), 2)
        self.assertIn("/does/not/exist", run.stderr)


class SmallPlan(demo.Plan):
    """Of the demo's, with less to compute."""

    def __init__(self):
        super().__init__(fast=True, seed=7)
        self.steps = 160

    def train_flags(self, data, checkpoints, samples):
        return [*super().train_flags(data, checkpoints, samples), "--layers", "2", "--width", "64"]


class Faults(e2e.TestCase):
    """The demo's verdict over real ranks and a real journal, of a small run of two workers, one of which is killed."""

    def verdict(self, mutation, killed):
        folder = self.fx.path("work", mutation or "right")
        places = types.SimpleNamespace(folder=folder, checkpoints=folder + "/checkpoints", samples=folder + "/samples")
        os.makedirs(places.samples)
        run = self.fx.regroup("run", "--nproc-per-node", 2, "--max-restarts", 1, e2e.binary("regroup-worker"),
                              *self.plan.train_flags(self.data, places.checkpoints, places.samples),
                              env={"REGROUP_TEST_MUTATION": mutation})
        if killed:
            e2e.wait_for(lambda: any(line.step >= 40 for line in proof.read_sample_logs(places.samples)), 20, "step 40")
            os.kill(next(info.pid for info in self.fx.processes(places.samples) if info.argv[0].endswith("worker")), signal.SIGKILL)
        self.assertEqual(run.wait(60), 0, run)
        job = json.loads(self.fx.run("explain", "last", "--json").stdout)
        fake = types.SimpleNamespace(
            plan=self.plan, folder=folder, job=lambda fresh: job, lines=lambda: proof.read_sample_logs(places.samples),
            options=types.SimpleNamespace(bin_dir=os.path.dirname(e2e.binary("x"))), draw=lambda: None,
            screen=types.SimpleNamespace(live=True))
        with mock.patch.object(demo.Verdict, "_undisturbed", self.undisturbed):
            return demo.Verdict(fake, self.text, self.data)

    def setUp(self):
        super().setUp()
        self.plan, self.data = SmallPlan(), self.fx.path("work", "data.txt")
        self.text = demo.gather_text(None, self.data)
        compute, known = demo.Verdict._undisturbed, []

        def once(verdict, data):
            if not known:
                known.append(compute(verdict, data))
            return known[0]
        self.undisturbed = once

    def test_each_fault_of_real_ranks_is_found(self):
        right = self.verdict("", killed=True)
        self.assertEqual(right.problems, ["2 generations, expected at least 5"])
        self.assertEqual((right.counts.once, right.counts.lost, right.counts.more), (3840, 0, 0))
        for mutation, killed, words in (("skip_batch", False, "positions start at"), ("repeat_batch", False, "positions start at"),
                                        ("resume_from_zero", True, "generation 2 resumed from step 0, the newest commit was"),
                                        ("gradient_scale", False, "final loss .* differs from the undisturbed")):
            self.assertRegex("\n".join(self.verdict(mutation, killed).problems), words)


if __name__ == "__main__":
    e2e.main()
