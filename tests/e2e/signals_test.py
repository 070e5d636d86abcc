"""Every signal in every phase of a launch command: which exit code, what is said, and that nothing is left. PROTOCOL §5.

A phase is entered once for each signal, all side by side: the table below is about 30 runs in a quarter of a minute.
The fixture itself fails a test that leaves a process, a socket or a file.
"""
import os
import shutil
import signal
import sys
import time

import regroup_e2e as e2e
from fixture import processes

# Says where it is, and ends on SIGTERM; $MARKS gets a line for each start and each SIGUSR1 or SIGUSR2.
WORKER = ('echo start >> "$MARKS"; trap "exit 0" TERM; trap "echo usr1 >> \\"$MARKS\\"" USR1; trap "echo usr2 >> \\"$MARKS\\"" USR2; '
          'echo working; while [ ! -e "$MARKS.finish" ]; do sleep 0.05; done')
# Does not let itself be told to end.
STUBBORN = 'trap "" TERM USR1; echo start >> "$MARKS"; echo working; while :; do sleep 0.05; done'
FAILING = 'echo start >> "$MARKS"; exit 3'

ENDS = {signal.SIGINT: 130, signal.SIGQUIT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}
PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)


def name_of(number):
    return signal.Signals(number).name


class Phase(e2e.TestCase):
    def setUp(self):
        super().setUp()
        self.runs = {}  # What distinguishes it → launch command.

    def launch(self, key, script, *options, env=None, program=None):
        run = self.fx.start(program or e2e.binary("regroup"), "run", *options, "--no-python", "sh", "-c", script,
                            env={"MARKS": self.marks(key), **(env or {})})
        self.runs[key] = run
        return run

    def marks(self, key):
        return self.fx.path("work", f"marks-{key}")

    def lines(self, key):
        if not os.path.exists(self.marks(key)):
            return []
        with open(self.marks(key), encoding="ascii") as f:
            return f.read().split()

    def finish(self, key):
        open(self.marks(key) + ".finish", "w", encoding="ascii").close()

    def send_all(self):
        """Each run gets the signal that it is called after."""
        for number, run in self.runs.items():
            run.send(number)

    def judge(self, said=None, seconds=15):
        """Those that a signal ends have ended with its code, and said so."""
        for number, run in self.runs.items():
            if number in ENDS:
                with self.subTest(name_of(number)):
                    self.assertEqual(run.wait(seconds), ENDS[number], run)
                    if said:
                        self.assertRegex(run.stderr, said)

    def killed(self):
        """SIGKILL of the launcher alone: the lifeline ends the rest."""
        self.fx.expects_run_directories = True
        run = self.runs[signal.SIGKILL]
        self.assertEqual(run.wait(5), -signal.SIGKILL)


class Waiting(Phase):
    """The job has one of two nodes."""

    def test_signals(self):
        for number in (*ENDS, *PASSED_ON, signal.SIGKILL):
            self.launch(number, WORKER, "--nnodes", "2", "--rdzv-endpoint", f"127.0.0.1:{e2e.free_port()}")
        for run in self.runs.values():
            run.expect(r"1 of 2 nodes")
        self.send_all()
        self.judge()
        self.killed()
        for number in PASSED_ON:  # Still waiting, until it is told otherwise.
            time.sleep(0.2)
            self.assertIsNone(self.runs[number].code, self.runs[number])
            self.runs[number].send(signal.SIGINT)
            self.assertEqual(self.runs[number].wait(10), 130)
        self.assertFalse([key for key in self.runs if self.lines(key)], "a worker was started while a node was missing")


class Late(Phase):
    def programs(self, late):
        """Copies of the programs, of which `late` takes a second to begin; the path of `regroup` among them."""
        folder = self.fx.path("bin")
        os.mkdir(folder)
        for name in {"regroup", "regroup-agent", "regroup-shim"} - {late}:
            shutil.copy(e2e.binary(name), folder)
        with open(os.path.join(folder, late), "w", encoding="ascii") as f:
            # Not by a shell: some clear the signal mask that they inherit.
            f.write(f"#!{sys.executable}\nimport os, sys, time\ntime.sleep(1)\n"
                    "os.execv(sys.argv[0] + '.late', sys.argv)\n")
        os.chmod(f.name, 0o755)
        shutil.copy(e2e.binary(late), f.name + ".late")
        return os.path.join(folder, "regroup")


class Beginning(Late):
    """The launch command has begun, and the agent that it becomes has not."""

    def test_forwarded_signals_wait(self):
        program = self.programs("regroup-agent")
        for number in PASSED_ON:
            self.launch(number, WORKER, program=program)
        e2e.wait_for(lambda: len(self.fx.processes("regroup-agent")) == len(self.runs), 10, "every agent", self.fx.describe)
        self.send_all()
        for number, run in self.runs.items():
            run.expect("working", stream="stdout")
            self.finish(number)
            self.assertEqual(run.wait(10), 0, run)


class Preparing(Late):
    """The group is asked for and not there yet: its shim takes a second to begin."""

    def test_signals(self):
        program = self.programs("regroup-shim")
        for number in (*ENDS, signal.SIGUSR1, signal.SIGKILL):
            self.launch(number, WORKER, "--grace", "2s", program=program)
        e2e.wait_for(lambda: len(self.fx.processes("regroup-shim", "--group")) >= len(self.runs), 10, "every shim", self.fx.describe)
        self.send_all()
        self.judge()
        self.killed()
        run = self.runs[signal.SIGUSR1]
        run.expect("working", stream="stdout")
        self.finish(signal.SIGUSR1)
        self.assertEqual(run.wait(10), 0, run)
        self.assertEqual(sum(len(self.lines(key)) for key in self.runs if key != signal.SIGUSR1), 0, "a worker was started after the signal")


class Running(Phase):
    def test_signals(self):
        for number in (*ENDS, *PASSED_ON, signal.SIGKILL):
            self.launch(number, WORKER)
        for run in self.runs.values():
            run.expect("working", stream="stdout")
        self.send_all()
        self.judge(r"regroup: .*(SIG|Ctrl-C)")
        self.killed()
        for number in PASSED_ON:
            e2e.wait_for(lambda number=number: name_of(number)[3:].lower() in self.lines(number), 5, name_of(number), self.runs[number])
            self.finish(number)
            self.assertEqual(self.runs[number].wait(10), 0, self.runs[number])
            self.assertEqual(self.lines(number).count("start"), 1)

    def test_ignored_from_birth(self):
        """nohup and a script's `&` have said that a signal is none of ours."""
        run = self.fx.start("sh", "-c", f'trap "" HUP INT; exec {e2e.binary("regroup")} run --no-python sh -c "$0"', WORKER,
                            env={"MARKS": self.marks("a")})
        run.expect("working", stream="stdout")
        run.send(signal.SIGHUP)
        run.send(signal.SIGINT)
        time.sleep(0.3)
        self.assertIsNone(run.code, run)
        run.send(signal.SIGTERM)
        self.assertEqual(run.wait(10), 143, run)

    def everything_gets(self, number, run):
        """As Slurm does it: the signal goes to every process of the step, also to those of sessions of their own."""
        everything = self.fx.processes()
        self.assertTrue(any("coordinator" in info.argv for info in everything))
        self.assertTrue(any("--group" in info.argv for info in everything))
        processes.send([info.pid for info in everything if info.pid != run.pid], number)
        run.send(number)

    def test_slurm_signals_the_step(self):
        """`--signal=USR1@60`: nothing ends, workers hear it, and the job goes on to its own end."""
        run = self.launch("a", WORKER)
        run.expect("working", stream="stdout")
        before = {info.pid for info in self.fx.processes("regroup")}
        for number in PASSED_ON:
            # `sleep` between two looks has no handler of its own, and ends: the shell goes on.
            self.everything_gets(number, run)
            e2e.wait_for(lambda number=number: name_of(number)[3:].lower() in self.lines("a"), 5, name_of(number), run)
        time.sleep(0.2)
        self.assertEqual({info.pid for info in self.fx.processes("regroup")}, before)
        self.finish("a")
        self.assertEqual(run.wait(10), 0, run)
        self.assertEqual(self.lines("a").count("start"), 1)

    def test_slurm_cancels_the_step(self):
        """`scancel`, or `--signal=TERM@60`: SIGTERM to every process of the step, the coordinator and the shims too."""
        run = self.launch("a", WORKER)
        run.expect("working", stream="stdout")
        self.everything_gets(signal.SIGTERM, run)
        self.assertEqual(run.wait(15), 143, run)

    def test_slurm_signals_the_batch_shell_only(self):
        """`--signal=B:USR1@60`: the script passes it on, as its manual has it."""
        script = (f'{e2e.binary("regroup")} run --no-python sh -c "$0" & child=$!; trap "kill -USR1 $child" USR1; '
                  'while wait $child; code=$?; [ $code = 138 ]; do :; done; exit $code')  # 138: the trap ended the wait.
        shell = self.fx.start("sh", "-c", script, WORKER, env={"MARKS": self.marks("a")})
        shell.expect("working", stream="stdout")
        shell.send(signal.SIGUSR1)
        e2e.wait_for(lambda: "usr1" in self.lines("a"), 5, "SIGUSR1", shell)
        self.finish("a")
        self.assertEqual(shell.wait(10), 0, shell)


class BackingOff(Phase):
    """A worker that fails again and again is started ever later."""

    def test_signals(self):
        for number in (*ENDS, signal.SIGUSR1, signal.SIGKILL):
            self.launch(number, FAILING, "--max-restarts", "50")
        # The third restart comes after one to two seconds.
        e2e.wait_for(lambda: all(len(self.lines(number)) >= 3 for number in self.runs), 15, "three starts each", self.fx.describe)
        starts = {number: len(self.lines(number)) for number in self.runs}
        self.send_all()
        self.judge(seconds=5)
        self.killed()
        again = self.runs[signal.SIGUSR1]
        e2e.wait_for(lambda: len(self.lines(signal.SIGUSR1)) > starts[signal.SIGUSR1], 10, "another restart", again)
        again.send(signal.SIGTERM)
        self.assertEqual(again.wait(5), 143, again)
        for number in ENDS:
            self.assertLessEqual(len(self.lines(number)), starts[number] + 1, name_of(number))


class Leaving(Phase):
    """It was told to end, and waits for a worker that does not: what a second signal does."""

    def test_signals(self):
        seconds = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGKILL)
        for number in seconds:
            self.launch(number, STUBBORN, "--grace", "3s" if number in (signal.SIGUSR1, signal.SIGKILL) else "60s")
        for run in self.runs.values():
            run.expect("working", stream="stdout")
        begun = time.monotonic()
        for run in self.runs.values():
            run.send(signal.SIGINT)
        for run in self.runs.values():
            run.expect(r"regroup: ")
        for run in self.runs.values():
            run.send(signal.SIGINT)  # As `timeout` doubles it: at once, and so the same one.
        time.sleep(0.7)
        for run in self.runs.values():
            self.assertIsNone(run.code, run)
        self.send_all()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            with self.subTest(name_of(number)):
                self.assertEqual(self.runs[number].wait(8), 130, self.runs[number])
        self.assertLess(time.monotonic() - begun, 10, "the second signal did not hurry")
        self.killed()
        with self.subTest("SIGUSR1 hurries nothing"):
            self.assertEqual(self.runs[signal.SIGUSR1].wait(10), 130, self.runs[signal.SIGUSR1])
            self.assertGreater(time.monotonic() - begun, 2.9)


if __name__ == "__main__":
    e2e.main()
