"""The demo passes, detects each planted fault, and leaves nothing behind when it is interrupted."""
import json
import os
import re
import signal
import sys

import regroup_e2e as e2e

DEMO = os.path.join(os.path.dirname(os.path.abspath(__file__)), "demo.py")


class Demo(e2e.TestCase):
    def demo(self, *arguments, env=None):
        return self.fx.start(sys.executable, DEMO, "--fast", *arguments, env=env)

    def mutated(self, mutation, words):
        run = self.demo("--seed", "11", env={"REGROUP_TEST_MUTATION": mutation})
        self.assertEqual(run.wait(120), 1, run)
        self.assertRegex(run.stdout, words)

    def test_passes(self):
        run = self.demo("--seed", "7")
        self.assertEqual(run.wait(120), 0, run)
        self.assertIn("PASSED", run.stdout)

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
        runs = [self.fx.start(*user, sys.executable, DEMO, "--fast", "--seed", str(seed), env=environment, cwd="/")
                for seed in (7, 8)]
        for run in runs:
            self.assertEqual(run.wait(240), 0, run)
            self.assertIn("PASSED", run.stdout)

    def test_unreadable_data_is_named(self):
        run = self.demo("--data", "/does/not/exist")
        self.assertEqual(run.wait(20), 2)
        self.assertIn("/does/not/exist", run.stderr)


if __name__ == "__main__":
    e2e.main()
