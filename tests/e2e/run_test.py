"""`regroup run` on one node: exit codes, output, environment, restarts; CLI.md line by line."""
import os
import re
import signal
import sys

import regroup_e2e as e2e
import worker_variables


class OneNode(e2e.TestCase):
    def sh(self, script, *options, **more):
        return self.fx.regroup("run", *options, "--no-python", "sh", "-c", script, **more)

    def python(self, code, *options, **more):
        path = self.fx.path("work", "program.py")
        with open(path, "w") as f:
            f.write(code)
        return self.fx.regroup("run", *options, path, env={"PYTHON_EXEC": sys.executable}, **more)


class ExitCodes(OneNode):
    """One test per row of CLI.md's table."""

    def code(self, script, *options):
        run = self.sh(script, *options)
        run.wait()
        return run

    def test_0_job_succeeded_and_the_coordinator_leaves_by_itself(self):
        self.fx.hurries_coordinators = False
        self.assertEqual(self.code("exit 0").code, 0)

    def test_workers_own_code(self):
        self.assertEqual(self.code("exit 1").code, 1)
        self.assertEqual(self.code("exit 119").code, 119)

    def test_workers_code_of_120_and_above_is_said(self):
        run = self.code("exit 200")
        self.assertEqual(run.code, 200)
        self.assertEqual(run.stderr.splitlines()[-1], "regroup: worker exit 200")

    def test_signal_n_is_128_plus_n(self):
        run = self.code("kill -SEGV $$")
        self.assertEqual(run.code, 128 + signal.SIGSEGV)
        self.assertIn("SIGSEGV", run.stderr)

    def test_sigkill_is_137_and_explained(self):
        run = self.code("kill -KILL $$")
        self.assertEqual(run.code, 137)
        self.assertRegex(run.stderr, r"SIGKILL, not by us")

    def test_124_join_timeout(self):
        port = e2e.free_port()
        run = self.sh("exit 0", "--nnodes", "2", "--rdzv-endpoint", f"127.0.0.1:{port}", "--join-timeout", "1s")
        self.assertEqual(run.wait(), 124)

    def test_125_bad_flag(self):
        self.assertEqual(self.fx.run("run", "--no-such-flag", "x").code, 125)

    def test_126_not_executable(self):
        path = self.fx.path("work", "program")
        open(path, "w").close()
        run = self.fx.run("run", "--no-python", path)
        self.assertEqual(run.code, 126)
        self.assertIn(path, run.stderr)

    def test_127_not_found(self):
        run = self.fx.run("run", "--no-python", "/does/not/exist")
        self.assertEqual(run.code, 127)
        self.assertIn("/does/not/exist", run.stderr)

    def test_exec_failure_is_not_exit_127(self):
        self.assertEqual(self.code("exit 127").code, 127)
        path = self.fx.path("work", "program")
        with open(path, "w") as f:
            f.write("#!/no/such/interpreter\n")
        os.chmod(path, 0o755)
        run = self.fx.run("run", "--max-restarts", "5", "--no-python", path)
        self.assertIn(run.code, (126, 127), run)
        self.assertNotIn("restart 1 of 5", run.stderr)


class Supervisor(OneNode):
    def test_one_that_hangs_is_killed_with_its_workers(self):
        run = self.sh("echo up; exec sleep 1000", "--grace", "1s")
        run.expect("up", 20, "stdout")
        for shim in self.fx.processes("regroup-shim"):
            os.kill(shim.pid, signal.SIGSTOP)
        run.send(signal.SIGINT)
        self.assertEqual(run.wait(20), 130, run)


class Output(OneNode):
    def test_one_worker_is_byte_exact_and_ours_goes_to_stderr(self):
        run = self.python("import sys, os\nos.write(1, bytes(range(256)) * 300)\nos.write(2, b'err\\r50%\\r100%\\n')\n")
        self.assertEqual(run.wait(), 0, run)
        with open(run.stdout_path, "rb") as f:
            self.assertEqual(f.read(), bytes(range(256)) * 300)
        with open(run.stderr_path, "rb") as f:
            lines = f.read()
        self.assertIn(b"err\r50%\r100%\n", lines)
        rest = lines.replace(b"err\r50%\r100%\n", b"")
        self.assertTrue(all(line.startswith(b"regroup:") for line in rest.splitlines()), rest)

    def test_several_workers_are_prefixed_by_line(self):
        run = self.sh('echo "hello from $RANK"; printf "no newline $RANK"', "--nproc-per-node", "2", "--node-name", "n")
        self.assertEqual(run.wait(), 0, run)
        lines = sorted(run.stdout.splitlines())
        self.assertEqual(lines, ["[n:0] hello from 0", "[n:0] no newline 0", "[n:1] hello from 1", "[n:1] no newline 1"])

    def test_healthy_run_prints_three_lines_and_quiet_none(self):
        run = self.sh("exit 0")
        run.wait()
        self.assertLessEqual(len(run.stderr.splitlines()), 3, run)
        self.assertGreaterEqual(len(run.stderr.splitlines()), 2, run)
        run = self.sh("exit 0", "-q")
        run.wait()
        self.assertEqual(run.stderr, "")

    def test_much_output_is_whole(self):
        run = self.sh("seq 1 200000")
        self.assertEqual(run.wait(60), 0, run)
        self.assertEqual(run.stdout, "".join(f"{i}\n" for i in range(1, 200001)))

    def test_stdin_reaches_local_rank_0(self):
        with open(self.fx.path("work", "in"), "w") as f:
            f.write("some words\n")
        with open(self.fx.path("work", "in")) as stdin:
            run = self.sh("cat", stdin=stdin)
            self.assertEqual(run.wait(), 0, run)
        self.assertEqual(run.stdout, "some words\n")

    def test_python_is_unbuffered(self):
        run = self.python("import time\nprint('early')\ntime.sleep(30)\n")
        run.expect("early", stream="stdout", timeout=10)
        run.send(signal.SIGINT)
        self.assertEqual(run.wait(), 130)


class Environment(OneNode):
    def test_workers_have_what_the_shell_had_but_secrets_and_what_is_documented(self):
        """Each variable, and no other; what a shell around it was told of another launcher's rank is not believed."""
        before = self.fx.path("work", "before")
        run = self.fx.start("sh", "-c", f"env -0 > {before}; exec {e2e.binary('regroup')} run --no-python env -0", env={
            **worker_variables.SECRETS, "MINE": "a b\nc", "EMPTY": "", "AWS_SECRET_ACCESS_KEY": "the user's", "REGROUP_GRACE": "9s",
            "RANK": "77", "MASTER_ADDR": "192.0.2.1"})
        self.assertEqual(run.wait(), 0, run)
        with open(before, encoding="utf-8") as f:
            shell = worker_variables.parse(f.read())
        for name, value in worker_variables.SECRETS.items():
            self.assertEqual(shell.pop(name), value)
        job = re.search(r"^regroup: (\S+) · ", run.stderr, re.M)[1]
        worker_variables.check(self, worker_variables.parse(run.stdout), shell, job)

    def test_a_python_program_is_told_not_to_buffer(self):
        run = self.python("print(open('/proc/self/environ').read())")
        self.assertEqual(run.wait(), 0, run)
        job = re.search(r"^regroup: (\S+) · ", run.stderr, re.M)[1]
        worker_variables.check(self, worker_variables.parse(run.stdout), {**self.fx.env, "PYTHON_EXEC": sys.executable}, job,
                               {"PYTHONUNBUFFERED": "1"})

    def test_omp_num_threads_is_torchruns_rule(self):
        run = self.sh('echo "$OMP_NUM_THREADS"', "--nproc-per-node", "2", "--node-name", "n")
        run.wait()
        self.assertEqual(sorted(run.stdout.splitlines()), ["[n:0] 1", "[n:1] 1"])

    def test_directory_and_umask(self):
        folder = self.fx.path("work", "here")
        os.mkdir(folder)
        run = self.fx.start("sh", "-c", f"umask 027; exec {e2e.binary('regroup')} run --no-python sh -c 'pwd; umask'", cwd=folder)
        self.assertEqual(run.wait(), 0, run)
        self.assertEqual(run.stdout.split(), [folder, "0027"])


class Restarts(OneNode):
    def test_a_killed_worker_comes_back(self):
        run = self.sh('if [ "$TORCHELASTIC_RESTART_COUNT" = 0 ]; then kill -9 $$; fi; echo "again $REGROUP_GENERATION"',
                      "--max-restarts", "1")
        self.assertEqual(run.wait(), 0, run)
        self.assertEqual(run.stdout, "again 2\n")
        self.assertRegex(run.stderr, r"SIGKILL, not by us.*restart 1 of 1")
        self.assertRegex(run.stderr, r"generation 2 · world 1 · down \S+ m?s")

    def test_the_budget_ends(self):
        run = self.sh("echo broken >&2; exit 3", "--max-restarts", "2", "--nproc-per-node", "2")
        self.assertEqual(run.wait(60), 3, run)
        self.assertRegex(run.stderr, r"FAILED, exit 3 · 2 of 2 restarts used")
        self.assertIn("root cause", run.stderr)
        self.assertIn("| broken", run.stderr)

    def test_the_report_has_the_whole_traceback(self):
        run = self.python("def deep(n):\n    if n == 0:\n        raise ValueError('the reason')\n    deep(n - 1)\ndeep(30)\n")
        self.assertEqual(run.wait(), 1, run)
        self.assertIn("Traceback (most recent call last):", run.stderr.split("root cause")[-1])
        self.assertIn("ValueError: the reason", run.stderr.split("root cause")[-1])


class TheMorningAfter(OneNode):
    def test_ended_runs_are_read_without_a_daemon(self):
        run = self.sh("echo to the log; exit 4")
        self.assertEqual(run.wait(), 4)
        e2e.wait_for(lambda: not self.fx.processes("coordinator"), 10, "the coordinator to end", self.fx.describe)
        shown = self.fx.run("ps", "-a")
        self.assertEqual(shown.code, 0, shown)
        self.assertIn("failed", shown.stdout)
        shown = self.fx.run("explain")
        self.assertEqual(shown.code, 0, shown)
        self.assertIn("exit 4", shown.stdout)
        shown = self.fx.run("logs", "last")
        self.assertEqual(shown.code, 0, shown)
        self.assertIn("to the log", shown.stdout)


if __name__ == "__main__":
    e2e.main()
