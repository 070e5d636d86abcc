"""What workers leave behind when they have ended well, and ranks that never meet."""
import os
import signal
import sys
import time

import regroup_e2e as e2e

# Starts a process in a session of its own, which nobody waits for.
DAEMON = ("import os, subprocess, sys, time\n"
          "if os.environ['RANK'] in sys.argv[1]:\n"
          "    child = subprocess.Popen(['./uploader', '60'], start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)\n"
          "    print(child.pid, flush=True)\n"
          "sys.exit(int(sys.argv[2]))\n")
# As the example of a parameter server over RPC has it.
OWN_PORT = "import os, time\nos.environ['MASTER_PORT'] = '29577'\nopen('started' + os.environ['RANK'], 'w').close()\ntime.sleep(60)\n"


class LeftBehind(e2e.TestCase):
    def go(self, *options, ranks="0", code=0):
        """(launch command that has ended, pids left behind)"""
        for name, text in (("daemon.py", DAEMON), ("own_port.py", OWN_PORT)):
            with open(self.fx.path("work", name), "w", encoding="ascii") as f:
                f.write(text)
        if not os.path.exists(self.fx.path("work", "uploader")):
            os.symlink("/bin/sleep", self.fx.path("work", "uploader"))
        run = self.fx.regroup("run", *options, "daemon.py", ranks, code, env={"PYTHON_EXEC": sys.executable})
        self.assertEqual(run.wait(20), code, run)
        return run, [int(line.split()[-1]) for line in run.stdout.splitlines()]

    def test_is_ended_and_named(self):
        run, (pid,) = self.go()
        self.assertIn(f"1 process left behind by rank 0 was ended: uploader ({pid})\n", run.stderr)
        self.assertFalse(e2e.alive(pid))
        run, pids = self.go("--nproc-per-node", "3", ranks="02")
        self.assertRegex(run.stderr, r"2 processes left behind by ranks 0 2 were ended: uploader \(\d+\), uploader \(\d+\)\n")
        self.assertFalse(any(map(e2e.alive, pids)))

    def test_is_kept_when_asked(self):
        run, (pid,) = self.go("--leave-children")
        self.assertIn(f"1 process left behind by rank 0 runs on: uploader ({pid})\n", run.stderr)
        self.assertTrue(e2e.alive(pid))
        with open(f"/proc/{pid}/cgroup", encoding="ascii") as f:
            self.assertNotIn("regroup-", f.read())
        os.kill(pid, signal.SIGKILL)

    def test_never_of_a_job_that_failed(self):
        run, (pid,) = self.go("--leave-children", code=3)
        self.assertNotIn("left behind", run.stderr)
        self.assertFalse(e2e.alive(pid))

    def test_nothing_is_said_where_nothing_is_left(self):
        run, pids = self.go(ranks="9")
        self.assertEqual(pids, [])
        self.assertNotIn("left behind", run.stderr)

    def test_ranks_that_wait_at_a_port_of_their_own(self):
        self.go(ranks="9")
        run = self.fx.regroup("run", "--nproc-per-node", "3", "own_port.py", env={"PYTHON_EXEC": sys.executable})
        e2e.wait_for(lambda: all(os.path.exists(self.fx.path("work", f"started{rank}")) for rank in range(3)), 20, "three ranks", run)
        started = time.monotonic()
        run.expect("no rank here has come to the job's store: the program sets MASTER_PORT itself", 20)
        self.assertGreater(time.monotonic() - started, 8)
        run.send(signal.SIGINT)
        self.assertEqual(run.wait(), 130, run)


if __name__ == "__main__":
    e2e.main()
