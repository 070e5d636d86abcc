"""The demo passes, detects each planted fault, and leaves nothing behind when it is interrupted."""
import os
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

    def test_ctrl_c_leaves_nothing(self):
        terminal = self.fx.terminal(sys.executable, DEMO, "--fast", rows=24, columns=60)
        terminal.expect("generation 1", 30)
        terminal.send("\x03")
        self.assertEqual(terminal.wait(20), 128 + signal.SIGINT)
        self.assertIn("\x1b[?25h", terminal.text, "the cursor stays hidden")

    def test_unreadable_data_is_named(self):
        run = self.demo("--data", "/does/not/exist")
        self.assertEqual(run.wait(20), 2)
        self.assertIn("/does/not/exist", run.stderr)


if __name__ == "__main__":
    e2e.main()
