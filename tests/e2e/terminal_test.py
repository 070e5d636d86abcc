"""Ctrl-C, closed terminals and their relatives: `regroup run` on a real terminal ends as a shell user expects."""
import os
import re
import signal
import sys
import time

import regroup_e2e as e2e

# A worker that says when it started and when it was told to stop.
WORKER = 'trap "echo stopping; exit 0" TERM; echo working; while :; do sleep 0.05; done'


class CtrlC(e2e.TestCase):
    def run_command(self):
        return [e2e.binary("regroup"), "run", "--no-python", "sh", "-c", WORKER]

    def test_direct(self):
        terminal = self.fx.terminal(*self.run_command())
        terminal.expect("working")
        terminal.send("\x03")
        self.assertEqual(terminal.wait(20), 130, terminal)
        self.assertIn("stopping", terminal.text)

    def test_under_timeout(self):
        """One Ctrl-C arrives twice within a millisecond: the second is not the impatient one."""
        terminal = self.fx.terminal("timeout", "--foreground", "60", *self.run_command())
        terminal.expect("working")
        terminal.send("\x03")
        self.assertEqual(terminal.wait(20), 130, terminal)  # timeout's code is its program's.
        self.assertIn("stopping", terminal.text, "the worker was not given its grace")

    def test_under_make(self):
        makefile = self.fx.path("work", "Makefile")
        with open(makefile, "w") as f:
            f.write(f"go:\n\t@{self.run_command()[0]} run --no-python sh -c '{WORKER}'\n")
        terminal = self.fx.terminal("make", "-f", makefile, "go")
        terminal.expect("working")
        terminal.send("\x03")
        self.assertEqual(terminal.wait(20), -signal.SIGINT, terminal)  # make waits, tells, and ends as it was told to.
        self.assertIn("stopping", terminal.text)
        self.assertRegex(terminal.text, r"make: \*\*\* \[.*: go\] Error 130")

    def test_under_subprocess_run(self):
        """Python SIGKILLs its child a quarter of a second after Ctrl-C: the lifeline ends the workers with their grace."""
        saved = self.fx.path("work", "saved")
        worker = f'trap "sleep 1; echo all > {saved}; exit 0" TERM; echo working $$; while :; do sleep 0.05; done'
        command = [e2e.binary("regroup"), "run", "--no-python", "sh", "-c", worker]
        terminal = self.fx.terminal(sys.executable, "-c", f"import subprocess; subprocess.run({command!r})")
        terminal.expect("working")
        pid = int(re.search(r"working (\d+)", terminal.text)[1])
        self.fx.expects_run_directories = True
        terminal.send("\x03")
        self.assertEqual(terminal.wait(20), -signal.SIGINT, terminal)
        self.assertFalse(os.path.exists(saved), "the launch command was not killed: its worker had already ended")
        self.assertTrue(e2e.wait_exit(pid, 20), self.fx.describe())
        with open(saved, encoding="ascii") as f:
            self.assertEqual(f.read(), "all\n", "the worker was not given its grace")

    def test_terminal_closed(self):
        terminal = self.fx.terminal(*self.run_command())
        terminal.expect("working")
        terminal.hang_up()
        e2e.wait_for(lambda: terminal.poll() is not None, 20, "the launch command to end", self.fx.describe)
        self.assertEqual(terminal.code, 129)

    def test_nohup_outlives_the_terminal(self):
        mark = self.fx.path("work", "mark")
        terminal = self.fx.terminal("nohup", e2e.binary("regroup"), "run", "--no-python", "sh", "-c",
                                    f"echo up > {mark}; sleep 1.5; echo after > {mark}; exit 0")
        e2e.wait_for(lambda: os.path.exists(mark), 20, "the worker", self.fx.describe)
        terminal.hang_up()

        def went_on():
            with open(mark) as f:
                return f.read() == "after\n"
        e2e.wait_for(went_on, 20, "the worker to go on", self.fx.describe)
        self.assertEqual(terminal.wait(20), 0)

    def test_second_ctrl_c_does_not_wait_for_the_grace(self):
        terminal = self.fx.terminal(e2e.binary("regroup"), "run", "--grace", "60s", "--no-python", "sh", "-c",
                                    'trap "" TERM; echo working; while :; do sleep 0.05; done')
        terminal.expect("working")
        begun = time.monotonic()
        terminal.send("\x03")
        time.sleep(0.8)  # A person's second Ctrl-C: later than half a second.
        terminal.send("\x03")
        self.assertEqual(terminal.wait(20), 130, terminal)
        self.assertLess(time.monotonic() - begun, 10)


class Signals(e2e.TestCase):
    def end(self, number):
        run = self.fx.regroup("run", "--no-python", "sh", "-c", WORKER)
        run.expect("working", stream="stdout")
        run.send(number)
        return run.wait(20)

    def test_exit_codes(self):
        self.assertEqual(self.end(signal.SIGINT), 130)
        self.assertEqual(self.end(signal.SIGTERM), 143)
        self.assertEqual(self.end(signal.SIGHUP), 129)

    def test_sigkill_leaves_no_orphan(self):
        run = self.fx.regroup("run", "--grace", "1s", "--no-python", "sh", "-c", WORKER)
        run.expect("working", stream="stdout")
        self.fx.expects_run_directories = True
        run.kill()
        e2e.wait_for(lambda: not self.fx.processes("sh", WORKER), 20, "the worker to end", self.fx.describe)


if __name__ == "__main__":
    e2e.main()
