"""Nothing that a worker says is lost: slow readers, closed descriptors, full disks, whole logs."""
import os
import shutil
import signal
import stat
import time
import unittest

import regroup_e2e as e2e

BLOCK = "x" * 99 + "\\n"
# 20 MB of numbered lines from a shell, as fast as it goes.
LINES = "seq -f %0.f" + "x" * 80 + " 1 {count}"


class Output(e2e.TestCase):
    def shell(self, script, **more):
        return self.fx.start("sh", "-c", script, **more)

    def read(self, *path):
        with open(self.fx.path(*path), "rb") as f:
            return f.read()

    def lines(self, count):
        return "".join(f"{i}{'x' * 80}\n" for i in range(1, count + 1)).encode()


class Closed(Output):
    """A program may be started without stdin, stdout or stderr."""

    def test_run_works_without_its_descriptors(self):
        for number, closed in enumerate(["<&-", ">&-", "2>&-", "<&- >&- 2>&-"]):
            seen = self.fx.path("work", f"seen{number}")
            worker = f"readlink /proc/$$/fd/0 > {seen}; echo out; echo err >&2; head -c 300000 /dev/zero"
            run = self.shell(f"exec regroup run --no-python sh -c '{worker}' {closed}")
            self.assertEqual(run.wait(), 0, (closed, run))
            self.assertEqual(self.read(seen), b"/dev/null\n", closed)
            if closed == "<&-":
                self.assertEqual(run.stdout.count("out\n"), 1, run)
                self.assertIn("err\n", run.stderr)

    def test_every_program_has_them_on_dev_null(self):
        state = self.fx.path("work", "state")
        coordinator = ["regroup", "coordinator", "--state-dir", state, "--listen", f"127.0.0.1:{e2e.free_port()}"]
        agent = ["regroup-agent", "--state-dir", state]
        for argv in (coordinator, agent):
            service = self.fx.service("sh", "-c", f"exec {' '.join(argv)} <&- >&- 2>&-")

            def opened(pid=service.pid):
                try:
                    return {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in range(3)} == {"/dev/null"}
                except OSError:
                    return False
            e2e.wait_for(opened, 10, f"descriptors of {argv[1]}")
        for program in ("regroup-shim", "regroup-worker"):
            self.assertEqual(self.shell(f"exec {program} no-such-word <&- >&- 2>&-").wait(), 2)


class RefusingDisk(Output):
    def test_everything_is_shown_that_cannot_be_kept(self):
        """A log that cannot go on, though the disk has room: its folder is another thing now."""
        logs = self.fx.path("work", "logs")
        shown = self.fx.path("work", "shown")
        worker = (f"echo first; until [ -e {shown} ]; do sleep 0.02; done; d=$(echo {logs}/*/1/0); "
                  "mv $d $d.away; echo >$d; " + LINES.format(count=50_000))
        run = self.shell(f"exec regroup run --log-dir {logs} --log-keep 1M --no-python sh -c '{worker}'")
        run.expect("first", 30, "stdout")  # So its file is open: one that moved before would be out of reach.
        open(shown, "w").close()
        self.assertEqual(run.wait(), 0, run)
        self.assertEqual(run.stdout.encode(), b"first\n" + self.lines(50_000))
        self.assertIn("output of workers is not kept: ", run.stderr)
        self.assertIn("Not a directory", run.stderr)


class Follow(Output):
    def test_who_cannot_print_ends(self):
        """Not at the end of the job, which may be a week away."""
        run = self.shell("exec regroup run --no-python sh -c 'while sleep 0.1; do echo line; done'")
        run.expect("line", 30, "stdout")
        reader = self.shell("exec regroup logs -f last >/dev/full")
        self.assertEqual(reader.wait(20), 1, reader)
        self.assertIn("cannot write to standard output: No space left on device", reader.stderr)
        run.send(signal.SIGINT)
        run.wait()


class SlowReader(Output):
    def test_everything_arrives_in_order(self):
        """More than is kept, to a reader that is late: what is shown first is not removed first."""
        count = 200_000  # 17 MB
        worker = LINES.format(count=count)
        run = self.shell(f"regroup run --log-keep 1M --no-python {worker} | (sleep 2; cat)")
        self.assertEqual(run.wait(60), 0, run)
        self.assertEqual(self.read(run.stdout_path), self.lines(count))
        kept = sum(os.path.getsize(os.path.join(root, name)) for root, _, names in os.walk(self.fx.state_dir)
                   for name in names if name.startswith("stdout.") and not os.path.islink(os.path.join(root, name)))
        self.assertLess(kept, 2 << 20, "once it is shown, the limit counts again")

        logs = self.fx.run("logs", "last", "--raw")
        self.assertEqual(logs.code, 0, logs)
        self.assertRegex(logs.stderr, r"regroup: the first 1\d\.\d MiB of rank 0 are no longer kept; --log-keep")
        self.assertTrue(self.lines(count).endswith(self.read(logs.stdout_path)), logs)

    def test_nobody_waits_for_it_but_the_end_and_a_second_ctrl_c_drops_the_rest(self):
        fifo, done = self.fx.path("work", "fifo"), self.fx.path("work", "done")
        os.mkfifo(fifo)
        run = self.shell(f"exec 3<>{fifo}; exec regroup run --no-python sh -c 'head -c 900000 /dev/zero; touch {done}' > {fifo}")
        e2e.wait_for(lambda: os.path.exists(done), 20, "the worker's end")
        e2e.wait_for(lambda: '"succeeded"' in self.fx.run("ps", "-a", "--json").stdout, 20, "the job's end")
        run.send(signal.SIGINT)
        run.expect("Ctrl-C again drops it")
        self.assertIsNone(run.code)
        run.send(signal.SIGINT)
        self.assertEqual(run.wait(10), 0, run)


class LogDirectory(Output):
    def test_it_holds_whole_files_of_every_rank(self):
        count = 150_000  # 13 MB: more than a segment.
        logs, script = self.fx.path("work", "logs"), self.fx.path("work", "two.sh")
        with open(script, "w") as f:
            f.write("#!/bin/sh\n[ $RANK = 1 ] || { " + LINES.format(count=count) + f"; touch {logs}.said; exec sleep 60; }}\n"
                    f"until [ -e {logs}.said ]; do sleep 0.02; done\n"
                    "echo '{\"message\": \"no\"}' > $TORCHELASTIC_ERROR_FILE; exit 3\n")
        os.chmod(script, 0o755)
        run = self.fx.start(e2e.binary("regroup-torchrun"), "--standalone", "--nproc-per-node=2", "--no-python", "--log-dir", logs,
                            "--redirects", "3", script)
        self.assertEqual(run.wait(60), 3, run)
        folder, = [name for name in os.listdir(logs) if "_" in name]
        attempt = os.path.join(logs, folder, "attempt_0")
        whole = os.path.join(attempt, "0", "stdout.log")
        self.assertFalse(os.path.islink(whole))
        self.assertTrue(self.lines(count).startswith(self.read(whole)[:1000]))
        self.assertGreater(os.path.getsize(whole), 0)
        for rank, name in (("0", "stderr.log"), ("1", "stdout.log"), ("1", "stderr.log")):
            self.assertEqual(os.path.getsize(os.path.join(attempt, rank, name)), 0, (rank, name))
        mode = stat.S_IMODE(os.stat(os.path.join(attempt, "1", "error.json")).st_mode)
        umask = os.umask(0)
        os.umask(umask)
        self.assertEqual(mode, 0o644 & ~umask)

    def test_all_of_a_long_output_is_in_one_file(self):
        count, logs = 150_000, self.fx.path("work", "logs")
        run = self.shell(f"regroup run --log-dir {logs} --no-python {LINES.format(count=count)} > shown")
        self.assertEqual(run.wait(60), 0, run)
        found = [os.path.join(root, name) for root, _, names in os.walk(logs) for name in names if name == "stdout.log"]
        self.assertEqual(len(found), 1, found)
        self.assertEqual(self.read(found[0]), self.lines(count))
        self.assertEqual(self.read("work", "shown"), self.lines(count))

    def test_one_that_can_not_be_written_is_refused(self):
        file = self.fx.path("work", "file")
        open(file, "w").close()
        run = self.fx.run("run", "--log-dir", os.path.join(file, "logs"), "--no-python", "true")
        self.assertEqual(run.code, 125, run)
        self.assertRegex(run.stderr, r"error: --log-dir: .*/file/logs cannot be written\n")
        self.assertIn("try:", run.stderr)


class FullDisk(Output):
    def small(self, script):
        """`script` with $S, a state directory on a disk of 80 MiB."""
        if self.shell("unshare -m mount -t tmpfs -o size=1m x /mnt").wait() != 0:
            raise unittest.SkipTest("needs the right to mount a small tmpfs")
        place = self.fx.path("work", "small")
        os.mkdir(place)
        return self.shell(f"exec unshare -m sh -c 'mount -t tmpfs -o size=80m,mode=700 small {place}; S={place}; {script}'")

    def test_a_run_shows_all_ends_and_can_be_asked_about(self):
        count = 600_000  # 52 MB; 16 MiB of the disk are for output.
        run = self.small(f"regroup run --state-dir $S --no-python {LINES.format(count=count)} > shown || exit 9; "
                         "regroup ps -a --state-dir $S; regroup explain --state-dir $S; df -k --output=avail $S")
        self.assertEqual(run.wait(90), 0, run)
        self.assertEqual(self.read("work", "shown"), self.lines(count))
        self.assertRegex(run.stderr, r"the disk of .*/small/.* is full: output is not kept, workers run on · free some: regroup prune")
        self.assertIn("succeeded", run.stdout)
        self.assertGreater(int(run.stdout.split()[-1]), 56 << 10, "the journal's share")


class NoThreads(Output):
    """A worker has taken all processes that its user may have, as many loaders of data do."""
    USER = 61_184 + os.getpid() % 4_000  # Nobody else's: the limit is a user's. Root is held by none.
    HOG = """import os, sys, time
children = []
def fill():
    while len(children) < 500:
        try:
            children.append(os.fork())
        except BlockingIOError:
            return
        if children[-1] == 0:
            time.sleep(60)
            os._exit(0)
fill()
print("full", flush=True)
while not os.path.exists(sys.argv[1]):
    fill()
    time.sleep(0.05)
for child in children:
    os.kill(child, 9)
    os.waitpid(child, 0)
print("done", flush=True)
"""

    def setUp(self):
        super().setUp()
        if os.geteuid() != 0:
            self.skipTest("needs root, to be a user without other processes")
        shutil.copytree(os.path.dirname(e2e.binary("regroup")), self.fx.path("bin"), symlinks=True)
        for root, folders, files in os.walk(self.fx.root):
            for name in [root] + [os.path.join(root, each) for each in files]:
                os.chown(name, self.USER, self.USER, follow_symlinks=False)

    def limited(self, threads, *argv):
        """As a user that may have so many threads."""
        return self.fx.start("setpriv", f"--reuid={self.USER}", f"--regid={self.USER}", "--clear-groups", "prlimit", f"--nproc={threads}",
                             self.fx.path("bin", "regroup"), *argv)

    def test_who_reads_the_logs_then_ends_no_run(self):
        hog, go = self.fx.path("work", "hog.py"), self.fx.path("work", "go")
        with open(hog, "w") as f:
            f.write(self.HOG)
        run = self.limited(72 + 8 * os.cpu_count(), "run", "--no-python", "python3", hog, go)
        run.expect("full", 30, "stdout")
        logs = self.fx.run("logs", "last", "--raw")
        self.assertIn("its agent did not send its logs", logs.stderr, logs)
        self.assertIsNone(run.code, run)
        follower = self.fx.regroup("logs", "last", "-f", "--raw")
        time.sleep(0.5)
        open(go, "w").close()
        self.assertEqual(run.wait(), 0, run)
        self.assertEqual(run.stdout, "full\ndone\n")
        self.assertEqual(follower.wait(), 0, follower)
        self.assertEqual(follower.stdout, "full\ndone\n")

    def test_what_cannot_start_says_why(self):
        for threads in (3, 5, 12):
            run = self.limited(threads, "run", "--no-python", "true")
            self.assertEqual(run.wait(), 125, run)
            self.assertRegex(run.stderr, "no thread can be made|Resource temporarily unavailable")
            self.assertNotIn("terminate called", run.stderr)


if __name__ == "__main__":
    e2e.main()
