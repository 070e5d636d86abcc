"""Reading and changing commands against a real coordinator with one agent: exit codes, JSON, logs, idempotency."""
import json
import os
import pwd
import signal
import subprocess
import sys
import time

import regroup_e2e as e2e
import worker_variables

# What a worker gets of its agent's environment is this, by `common/config/env.h`, and LC_*.
ALLOWED = {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TERM", "TMPDIR", "TEMP", "TMP", "HTTP_PROXY", "HTTPS_PROXY",
           "NO_PROXY", "http_proxy", "https_proxy", "no_proxy", "LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "VIRTUAL_ENV", "CONDA_PREFIX",
           "PYTHONPATH", "PYTHON_EXEC", "SSL_CERT_FILE", "SSL_CERT_DIR"}
OF_THE_AGENT = {**worker_variables.SECRETS, "AWS_SECRET_ACCESS_KEY": "the agent's", "LC_TIME": "C", "no_proxy": "192.0.2.1"}


class Cluster(e2e.TestCase):
    def setUp(self):
        super().setUp()
        self.port = e2e.free_port()
        self.fx.env["REGROUP_STATE_DIR"] = self.fx.path("state", "here")
        self.coordinator = self.start_coordinator()
        self.fx.service(e2e.binary("regroup"), "agent", "--coordinator", f"127.0.0.1:{self.port}", "--node-name", "node0",
                        "--slots", "2", env=OF_THE_AGENT)
        e2e.wait_for(lambda: "ready" in self.fx.run("nodes").stdout, 20, "the node", self.fx.describe, every=0.1)
        self.addCleanup(self.end_jobs)

    def end_jobs(self):
        """Before the services are ended: an agent that is told to detach leaves its workers running."""
        if not self._has_failed():
            for job in self.json("ps")["jobs"]:
                self.fx.run("cancel", job["job"], "--now")
            e2e.wait_for(lambda: not self.fx.processes("regroup-shim"), 20, "groups and stores to end", self.fx.describe)

    def start_coordinator(self):
        return self.fx.service(e2e.binary("regroup"), "coordinator", "--listen", f"127.0.0.1:{self.port}")

    def submit(self, script, *options):
        done = self.fx.run("submit", *options, "--name", "job", "--", "sh", "-c", script)
        self.assertEqual(done.code, 0, done)
        return done.stdout.strip()

    def json(self, *arguments):
        done = self.fx.run(*arguments, "--json")
        self.assertEqual(done.code, 0, done)
        return json.loads(done.stdout)

    def state(self, job):
        return self.json("ps", job)["jobs"][0]["state"]

    def until(self, job, state):
        e2e.wait_for(lambda: self.state(job) == state, 20, f"{job} to be {state}", self.fx.describe, every=0.1)

    @staticmethod
    def heeds(pid, number):
        with open(f"/proc/{pid}/status", encoding="ascii") as f:
            masks = dict(line.split(":\t") for line in f if line.startswith(("SigCgt", "SigBlk")))
        return any(int(mask, 16) >> (number - 1) & 1 for mask in masks.values())


class SeveralNames(Cluster):
    def test_the_first_that_answers_is_asked(self):
        """As an agent does; those before it are not mentioned, unless nobody answers."""
        silent = f"127.0.0.1:{e2e.free_port()}"
        names = {"REGROUP_COORDINATOR": f"{silent},127.0.0.1:{self.port},127.0.0.1:{self.port}"}
        done = self.fx.run("submit", "--wait", "--name", "job", "--", "sh", "-c", "echo it ran", env=names)
        self.assertEqual(done.code, 0, done)
        ps = self.fx.run("ps", "-a", env=names)
        self.assertEqual((ps.code, ps.stderr, ps.stdout.count("job-1")), (0, "", 1), ps)
        self.assertEqual(self.fx.run("logs", "job", "--raw", env=names).stdout, "it ran\n")
        self.assertIn("no-such-job", self.fx.run("explain", "no-such-job", env=names).stderr)
        nobody = self.fx.run("ps", "--coordinator", f"{silent},{silent}")
        self.assertEqual(nobody.code, 125, nobody)
        self.assertIn(f"the coordinator at {silent} cannot be reached", nobody.stderr)
        many = self.fx.run("ps", "--coordinator", ",".join([silent] * 9))
        self.assertEqual(many.code, 2, many)
        self.assertIn("--coordinator: 9 addresses", many.stderr)


class Codes(Cluster):
    def test_wait_exits_with_the_jobs_code(self):
        self.assertEqual(self.fx.run("wait", self.submit("exit 0")).code, 0)
        job = self.submit("echo why >&2; exit 7", "--max-restarts", "0")
        waited = self.fx.run("wait", job)
        self.assertEqual(waited.code, 7, waited)
        self.assertRegex(waited.stderr, rf"regroup: {job} FAILED, exit 7")
        self.assertIn("| why", waited.stderr)
        self.assertEqual(self.fx.run("wait", job).code, 7, "also when it has long been over")
        self.assertEqual(self.fx.run("wait", "last", "--json").code, 7)

    def test_submit_wait_and_a_code_that_collides(self):
        done = self.fx.run("submit", "--wait", "--max-restarts", "0", "--", "sh", "-c", "exit 130")
        self.assertEqual(done.code, 130, done)
        self.assertEqual(done.stderr.splitlines()[-1], "regroup: worker exit 130")
        done = self.fx.run("submit", "--wait", "--max-restarts", "0", "--", "sh", "-c", "kill -9 $$")
        self.assertEqual(done.code, 137, done)
        self.assertIn("SIGKILL, not by us", done.stderr)

    def test_missing_program(self):
        done = self.fx.run("submit", "--wait", "--", "/no/such/program")
        self.assertIn(done.code, (125, 126, 127), done)
        self.assertIn("/no/such/program", done.stderr)

    def test_cancel_is_143_and_timeout_124(self):
        job = self.submit("sleep 60")
        self.until(job, "running")
        timed_out = self.fx.run("wait", job, "--timeout", "300ms")
        self.assertEqual(timed_out.code, 124, timed_out)
        self.assertEqual(self.fx.run("cancel", job).code, 0)
        waited = self.fx.run("wait", job)
        self.assertEqual(waited.code, 143, waited)
        self.assertRegex(waited.stderr, f"cancelled by {pwd.getpwuid(os.geteuid()).pw_name} on ")
        again = self.fx.run("cancel", job)
        self.assertEqual(again.code, 1, again)

    def test_ctrl_c_ends_the_waiting_not_the_job(self):
        waiting = self.fx.regroup("submit", "--wait", "--name", "job", "--", "sleep", "60")
        waiting.expect(r"job-\d+", stream="stdout")
        job = waiting.stdout.strip()
        self.until(job, "running")
        waiting.send(signal.SIGINT)
        self.assertEqual(waiting.wait(), 130, waiting)
        self.assertIn(f"{job} goes on", waiting.stderr)
        self.assertEqual(self.state(job), "running")
        for command in (["wait", job], ["logs", job, "-f"]):
            reader = self.fx.regroup(*command)
            e2e.wait_for(lambda pid=reader.pid: self.heeds(pid, signal.SIGINT), 20, "it to heed Ctrl-C", reader)
            reader.send(signal.SIGINT)
            self.assertEqual(reader.wait(), 130 if command[0] == "wait" else 0, reader)
            if command[0] == "wait":
                self.assertIn("regroup: stopped waiting; the job goes on\n", reader.stderr)
        self.fx.run("cancel", job, "--now")
        self.assertEqual(self.fx.run("wait", job).code, 143)

    def test_not_found_and_did_you_mean(self):
        job = self.submit("exit 0")
        wrong = self.fx.run("explain", job.replace("job", "jbo"))
        self.assertEqual(wrong.code, 1, wrong)
        self.assertIn(f"did you mean {job}?", wrong.stderr)
        wrong = self.fx.run("nodes", "node1")
        self.assertEqual(wrong.code, 1, wrong)
        self.assertIn("did you mean node0?", wrong.stderr)
        self.assertEqual(self.fx.run("nodes", "forget", "nodeX").code, 1)
        self.assertEqual(self.fx.run("explain", job, "--generation", "99").code, 1)

    def test_a_name_is_its_job_that_is_not_over_and_a_cancel_takes_no_beginnings(self):
        first = self.submit("exit 0")
        self.assertEqual(self.fx.run("wait", first).code, 0)
        second, third = self.submit("sleep 60"), self.submit("sleep 60")
        both = self.fx.run("explain", "job")
        self.assertEqual(both.code, 1, both)
        self.assertEqual(both.stderr, f"error: job means more than one job\nbecause: it could be {second}, {third}\n"
                                      f"try: the whole id, as in {second}\n")
        self.assertEqual(self.fx.run("cancel", "job").code, 1)
        self.fx.run("cancel", second, "--now")
        self.assertEqual(self.fx.run("wait", second).code, 143)
        for command in (["ps", "jo"], ["ps", third[:-1]], ["ps", "job"]):
            self.assertIn(third if command[1] == "job" else "means more than one", "".join(self.both(*command)))
        self.until(third, "running")
        for word in ("jo", "j", third[:-1]):
            wrong = self.fx.run("cancel", word)
            self.assertEqual(wrong.code, 1, wrong)
            self.assertIn(f"error: no job {word}\nbecause: did you mean {third}?\n", wrong.stderr)
        self.assertEqual(self.state(third), "running")
        cancelled = self.fx.run("cancel", "job", "--now")
        self.assertEqual((cancelled.code, cancelled.stdout), (0, f"{third} is being cancelled\n"))
        self.assertEqual(self.fx.run("wait", third).code, 143)
        self.assertIn(third, self.fx.run("explain", "job").stdout, "all are over: the youngest")

    def both(self, *command):
        done = self.fx.run(*command)
        return done.stdout, done.stderr

    RAW = r"(?i)deadline.exceeded|socket closed|failed to connect|statuscode|unavailable|rst_stream|ipv[46]:|grpc|endpoint read|transport"

    def test_a_coordinator_that_does_not_answer_is_read_from_its_journal(self):
        done = self.submit("echo kept")
        self.assertEqual(self.fx.run("wait", done).code, 0)
        running = self.submit("echo first; exec sleep 60")
        self.until(running, "running")
        e2e.wait_for(lambda: "first" in self.fx.run("logs", running).stdout, 20, "output", self.fx.describe)
        note = r"regroup: the coordinator at \S+ does not answer; this is what its journal says\n"
        self.coordinator.send(signal.SIGSTOP)
        try:
            for command, code, shown in ((["ps"], 0, running), (["ps", "-a"], 0, done), (["explain", done], 0, "succeeded"),
                                         (["logs", done], 0, "kept"), (["logs", running], 0, "first"),
                                         (["prune", "--dry-run", "--keep", "0"], 0, f"{done}  "),
                                         (["cancel", running], 125, "its coordinator does not answer"),
                                         (["wait", running, "--timeout", "1s"], 124, f"{running} is not over after 1")):
                begun = time.monotonic()
                result = self.fx.run(*command)
                took = time.monotonic() - begun
                self.assertEqual(result.code, code, result)
                self.assertIn(shown, result.stdout + result.stderr)
                self.assertNotRegex(result.stdout + result.stderr, self.RAW)
                if command[0] in ("ps", "explain", "logs"):
                    self.assertRegex(result.stderr, note)
                if command[0] == "prune":
                    self.assertNotIn(running, result.stdout, "it is not over")
                self.assertLess(took, 8, command)
        finally:
            self.coordinator.send(signal.SIGCONT)
        e2e.wait_for(lambda: self.fx.run("ps").stderr == "", 20, "the coordinator again", self.fx.describe)
        self.fx.run("cancel", running, "--now")
        self.assertEqual(self.fx.run("wait", running).code, 143)

    def test_no_path_shows_what_grpc_says(self):
        job = self.submit("exec sleep 60")
        self.until(job, "running")
        followers = [self.fx.regroup(*command) for command in (["logs", "-f", job], ["wait", job])]
        time.sleep(0.5)
        self.coordinator.kill()
        self.coordinator.wait()
        at = ["--coordinator", f"127.0.0.1:{self.port}"]
        for command in (["ps", *at], ["nodes", *at], ["explain", *at], ["logs", *at, job], ["wait", *at, job], ["cancel", *at, job],
                        ["submit", *at, "--", "true"], ["nodes", *at, "forget", "node0"], ["ps"], ["nodes"], ["explain"], ["cancel", job]):
            done = self.fx.run(*command)
            self.assertNotRegex(done.stdout + done.stderr, self.RAW, command)
        self.start_coordinator()
        e2e.wait_for(lambda: "ready" in self.fx.run("nodes").stdout, 20, "the node again", self.fx.describe, every=0.1)
        self.fx.run("cancel", job, "--now")
        for follower in followers:
            follower.wait(30)
            self.assertNotRegex(follower.stdout + follower.stderr, self.RAW)

    def test_unreachable_is_125(self):
        self.coordinator.kill()
        self.coordinator.wait()
        for command in (["submit", "--", "true"], ["nodes", "forget", "node0"]):
            done = self.fx.run(*command)
            self.assertEqual(done.code, 125, done)
        self.start_coordinator()
        e2e.wait_for(lambda: "ready" in self.fx.run("nodes").stdout, 20, "the node again", self.fx.describe, every=0.1)

    def test_a_run_on_this_host_takes_no_submits(self):
        run = self.fx.regroup("run", "--rdzv-id", "mine", "sleep", "60")
        run.expect("generation 1", stream="stderr")
        job = self.submit("exit 0")
        self.assertEqual(self.fx.run("wait", job).code, 0)
        self.assertEqual(self.json("ps", job)["jobs"][0]["launched"], False)
        self.assertEqual({row["name"] for row in self.json("ps", "-a")["jobs"]}, {"job", "mine"})
        run.send(signal.SIGINT)
        self.assertEqual(run.wait(), 130, run)

    def test_one_key_is_one_job(self):
        submit = ["submit", "--key", "my-key", "--name", "job", "--", "true"]
        first = self.fx.run(*submit)
        self.assertEqual(first.stdout, self.fx.run(*submit).stdout)
        self.assertEqual(len(self.json("ps", "-a")["jobs"]), 1)


class Reading(Cluster):
    def test_queue_has_a_reason(self):
        done = self.fx.run("submit", "-N", "2", "--name", "job", "--", "true")
        self.assertEqual(done.code, 0, done)
        job = done.stdout.strip()
        self.assertIn(f"regroup: {job} waits: it needs 2 nodes, this cluster has 1", done.stderr)
        self.until(job, "queued")
        self.assertRegex(self.fx.run("ps").stdout, rf"{job} +queued .* needs 2 nodes, this cluster has 1")
        self.assertEqual(self.json("ps")["jobs"][0]["why"]["kind"], "cannot_fit")
        self.assertEqual(self.fx.run("wait", self.submit("exit 0")).code, 0, "it is passed over")
        refused = self.fx.run("submit", "--now-or-never", "--ppn", "16", "--name", "job", "--", "true")
        self.assertEqual(refused.code, 1, refused)
        self.assertIn("it needs 16 slots on a node; the largest (node0) has 2", refused.stderr)
        self.assertIn("Why it waits", self.fx.run("explain", job).stdout)
        self.fx.run("cancel", job)
        self.assertEqual(self.fx.run("wait", job).code, 143)

    def test_logs(self):
        job = self.submit("echo to out $RANK; echo to err >&2; printf 'no newline'", "--ppn", "2")
        self.assertEqual(self.fx.run("wait", job).code, 0)
        text = self.fx.run("logs", job)
        self.assertEqual(text.code, 0, text)
        self.assertRegex(text.stdout, r"(?m)^\d\d:\d\d:\d\d\.\d\d\d node0:1  to out 1$")
        self.assertEqual(sorted(self.fx.run("logs", job, "--raw", "--rank", "0").stdout.splitlines()),
                         ["no newline", "to err", "to out 0"])
        self.assertEqual(self.fx.run("logs", job, "--raw", "--stderr").stdout, "to err\nto err\n")
        self.assertEqual(sorted(self.fx.run("logs", job, "--raw", "--stdout", "--rank", "0").stdout.splitlines()), ["no newline", "to out 0"])
        self.assertEqual(len(self.fx.run("logs", job, "--raw", "--stdout", "--stderr").stdout.splitlines()), 6)
        self.assertEqual(self.fx.run("logs", job, "--raw", "--grep", "out [1-9]").stdout, "to out 1\n")
        self.assertEqual(self.fx.run("logs", job, "--raw", "--rank", "1", "--tail", "1", "--stderr").stdout, "to err\n")
        for wrong, what in ((["--generation", "7"], f"no generation 7 of {job}\nbecause: it has only 1\ntry: regroup logs {job}"),
                            (["--node", "nosuch"], f"{job} has not run on nosuch\nbecause: it has run on node0\n"
                                                   f"try: regroup logs {job} --node node0"),
                            (["--rank", "2"], f"no rank 2 of {job}\nbecause: it has ranks 0 to 1\ntry: regroup logs {job} --rank 1")):
            done = self.fx.run("logs", job, *wrong)
            self.assertEqual((done.code, done.stdout, done.stderr), (1, "", f"error: {what}\n"))
        done = self.fx.run("logs")
        self.assertEqual(done.code, 2)
        self.assertIn("error: regroup logs needs a job\n", done.stderr)
        self.assertIn("because: usage: regroup logs JOB [-f] [--rank R,R]", done.stderr)
        self.assertNotIn("\\x0a", done.stderr)
        self.assertTrue(done.stderr.endswith("try: regroup logs last\n"), done.stderr)
        queued = self.submit("true", "-N", "2")
        done = self.fx.run("logs", queued)
        self.assertEqual(done.code, 1, done)
        self.assertEqual(done.stderr, f"error: {queued} has no output\nbecause: it is queued: needs 2 nodes, this cluster has 1\n"
                                      f"try: regroup logs {queued} -f, which waits for it\n")
        self.fx.run("cancel", queued)
        self.assertEqual(self.fx.run("logs", job, "-f", "--raw", "--grep", "err").stdout, "to err\nto err\n")
        rows = [json.loads(line) for line in self.fx.run("logs", job, "--json").stdout.splitlines()]
        self.assertTrue(any(row.get("text") == "to out 0" and row["stream"] == "stdout" for row in rows), rows)

    def test_follow_shows_lines_as_they_come_and_ends_with_the_job(self):
        go = self.fx.path("work", "go")
        job = self.submit(f"echo first; until [ -e {go} ]; do sleep 0.05; done; echo second")
        reader = self.fx.regroup("logs", job, "-f")
        reader.expect("first", stream="stdout")
        self.assertNotIn("second", reader.stdout)
        open(go, "w", encoding="utf-8").close()
        self.assertEqual(reader.wait(), 0, reader)
        self.assertIn("second", reader.stdout)

    def test_logs_of_bytes_that_are_no_text(self):
        """Piped they are the worker's; a terminal is shown the last state of a bar, colours, and no other control."""
        with open(self.fx.path("work", "bytes"), "wb") as f:
            f.write(b" 10%|#\r100%|####\n" b"\x1b[31mred\x1b[0m\n" b"\x1b]0;title\x07\x1b[2J\x00\xff\n" +
                    b"x" * 200_000 + b"\nno newline")
        job = self.submit(f"cat {self.fx.path('work', 'bytes')}")
        self.assertEqual(self.fx.run("wait", job).code, 0)
        with open(self.fx.path("work", "bytes"), "rb") as f:
            written = f.read()
        raw = subprocess.run([e2e.binary("regroup"), "logs", job, "--raw"], env=self.fx.env, capture_output=True, timeout=30)
        self.assertEqual(raw.stdout, written + b"\n")
        rows = [json.loads(line) for line in self.fx.run("logs", job, "--json").stdout.splitlines()]
        self.assertIn("\x1b[31mred\x1b[0m", [row.get("text") for row in rows])
        terminal = self.fx.terminal(e2e.binary("regroup"), "logs", job, columns=200)
        self.assertEqual(terminal.wait(20), 0, terminal)
        shown = terminal.text
        self.assertRegex(shown, r"  100%\|####\r?\n")
        self.assertNotIn(" 10%|#", shown)
        self.assertIn("\x1b[31mred\x1b[0m", shown)
        self.assertIn(r"\x1b]0;title\x07\x1b[2J\x00\xff", shown)
        for control in ("\x1b]", "\x1b[2J", "\x07", "\x00"):
            self.assertNotIn(control, shown)
        self.assertIn("  no newline", shown)

    def test_logs_since_and_tail_over_generations(self):
        job = self.submit('echo a$REGROUP_GENERATION-$RANK; echo b$REGROUP_GENERATION-$RANK; '
                          'if [ $REGROUP_GENERATION = 1 ]; then sleep 3; exit 1; fi', "--ppn", "2")
        self.assertEqual(self.fx.run("wait", job).code, 0)

        def lines(*options):
            return sorted(self.fx.run("logs", job, "--raw", *options).stdout.split())
        self.assertEqual(lines("--tail", "1"), ["b2-0", "b2-1"])
        self.assertEqual(lines("--tail", "1", "--generation", "1"), ["b1-0", "b1-1"])
        self.assertEqual(lines("--since", "2s"), ["a2-0", "a2-1", "b2-0", "b2-1"])
        self.assertEqual(len(lines("--since", "10m")), 8)
        self.coordinator.send(signal.SIGTERM)  # From disk it is the same.
        self.assertEqual(self.coordinator.wait(), 0)
        self.assertEqual(lines("--tail", "1"), ["b2-0", "b2-1"])
        self.assertEqual(len(lines("--since", "10m")), 8)
        self.start_coordinator()
        e2e.wait_for(lambda: "ready" in self.fx.run("nodes").stdout, 20, "the node again", self.fx.describe, every=0.1)

    def test_logs_of_two_nodes_one_of_which_can_not_be_reached(self):
        other = self.fx.service(e2e.binary("regroup"), "agent", "--coordinator", f"127.0.0.1:{self.port}", "--node-name", "node1",
                                "--slots", "2")
        e2e.wait_for(lambda: len(self.json("nodes")["nodes"]) == 2, 20, "two nodes", self.fx.describe, every=0.1)
        go = self.fx.path("work", "go")
        job = self.submit(f"echo first $RANK; echo last $RANK; until [ -e {go} ]; do sleep 0.05; done", "-N", "2")
        e2e.wait_for(lambda: self.fx.run("logs", job, "--raw").stdout.count("last") == 2, 20, "output", self.fx.describe)
        self.assertEqual(sorted(self.fx.run("logs", job, "--raw", "--tail", "1").stdout.splitlines()), ["last 0", "last 1"])
        self.assertEqual(self.fx.run("logs", job, "--raw", "--node", "node1", "--grep", "^f").stdout, "first 1\n")
        other.send(signal.SIGTERM)  # It detaches; its worker runs on.
        other.wait()
        logs = self.fx.run("logs", job, "--raw")
        self.assertEqual(logs.code, 1, logs)
        self.assertIn("first 0", logs.stdout)
        self.assertRegex(logs.stderr, r"regroup: no logs from node1: \S+")
        self.fx.service(e2e.binary("regroup"), "agent", "--coordinator", f"127.0.0.1:{self.port}", "--node-name", "node1",
                        "--slots", "2")
        open(go, "w", encoding="utf-8").close()
        self.assertEqual(self.fx.run("wait", job).code, 0)

    def test_follow_crosses_generations_and_ctrl_c_ends_it_with_0(self):
        job = self.submit('echo in $REGROUP_GENERATION; [ $REGROUP_GENERATION = 2 ] || { sleep 0.5; exit 1; }; sleep 60')
        reader = self.fx.regroup("logs", job, "-f")
        reader.expect(r"-- generation 1 ended .* -- generation 2, world 1 --", 20, stream="stdout")
        reader.expect("in 2", stream="stdout")
        reader.send(signal.SIGINT)
        self.assertEqual(reader.wait(), 0, reader)
        text = reader.stdout
        self.assertLess(text.index("in 1"), text.index("-- generation 1 ended"))
        self.assertLess(text.index("-- generation 1 ended"), text.index("in 2"))
        self.fx.run("cancel", job, "--now")
        self.assertEqual(self.fx.run("wait", job).code, 143)

    def submit_file(self, text):
        path = self.fx.path("work", "job.yaml")
        with open(path, "w", encoding="utf-8") as f:
            f.write(f"name: job\nworkdir: /\n{text}")
        done = self.fx.run("submit", path)
        self.assertEqual(done.code, 0, done)
        return done.stdout.strip()

    def test_a_worker_has_the_list_of_its_agents_environment_the_jobs_and_what_is_documented(self):
        job = self.submit_file("run: [env, '-0']\nenv: {MINE: a b, TMPDIR: /elsewhere}\n")
        self.assertEqual(self.fx.run("wait", job).code, 0)
        agent = {**self.fx.env, **OF_THE_AGENT}
        inherited = {k: v for k, v in agent.items() if k in ALLOWED or k.startswith("LC_")}
        self.assertGreaterEqual(set(inherited), {"PATH", "HOME", "LANG", "LC_TIME", "no_proxy"})
        worker_variables.check(self, worker_variables.parse(self.fx.run("logs", job, "--raw").stdout), inherited, job,
                               {"MINE": "a b", "TMPDIR": "/elsewhere"})

    def test_cost_is_told_where_there_is_a_price(self):
        job = self.submit_file("run: sleep 1\nprice_per_node_hour: 3600\n")
        self.assertEqual(self.fx.run("wait", job).code, 0)
        cost = self.json("ps", "-a", job)["jobs"][0]["cost"]
        self.assertGreater(cost["total"], 0.9)
        self.assertLess(cost["total"], 20)
        self.assertEqual((cost["price_per_node_hour"], cost["lost_to_failures"]), (3600, 0))
        self.assertNotIn("per_million_tokens", cost)
        self.assertEqual(self.json("explain", job)["cost"], cost)
        text = self.fx.run("explain", job).stdout
        self.assertRegex(text, r"(?m)^Cost \d+\.\d\d = 0\.00 node hours at 3600\.00, lost to failures 0\.00 \(0\.0 %\)$")
        self.assertIn("  per million tokens or samples: not reported by the worker\n", text)
        self.assertNotIn("cost", self.json("ps", "-a", self.submit("true"))["jobs"][0])

    def test_a_job_file_has_torchruns_options_of_workers(self):
        job = self.submit_file("nproc_per_node: 2\nrole: trainer\nvirtual_local_rank: true\nnuma_binding: node\n"
                               "run: echo $ROLE_NAME $LOCAL_RANK $CUDA_VISIBLE_DEVICES $RANK $ROLE_RANK $ROLE_WORLD_SIZE\n")
        self.assertEqual(self.fx.run("wait", job).code, 0)
        self.assertEqual(sorted(self.fx.run("logs", job, "--raw").stdout.splitlines()),
                         ["trainer 0 0 0 0 2", "trainer 0 1 1 1 2"])

    def test_a_lone_rank_that_says_where_it_meets_serves_its_own_store(self):
        for name, text in (("meet.py", "import os\nos.environ['MASTER_PORT'] = '12355'\n"), ("calm.py", ""),
                           ("train.py", "import os, sys\nprint(os.environ['TORCHELASTIC_USE_AGENT_STORE'])\nimport meet\n")):
            with open(self.fx.path("work", name), "w") as f:
                f.write(text)
        for words, store in ((["train.py"], "False"), ([sys.executable, "train.py"], "False"),
                             ([sys.executable, "-c", "import train, calm"], "True")):
            done = self.fx.run("submit", "--name", "job", "--workdir", self.fx.work, "--", *words)
            self.assertEqual(("MASTER_PORT, so its one rank serves its own store" in done.stderr, done.code), (store == "False", 0), done)
            job = done.stdout.strip()
            self.assertEqual(self.fx.run("wait", job).code, 0)
            self.assertEqual(self.fx.run("logs", job, "--raw").stdout, store + "\n")

    def test_daemons_log_json_when_asked(self):
        state, port = self.fx.path("state", "json"), e2e.free_port()
        coordinator = self.fx.service("regroup", "coordinator", "--log-json", "--listen", f"127.0.0.1:{port}", "--state-dir", state)
        coordinator.expect("the coordinator serves")
        agent = self.fx.service("regroup", "agent", "--log-json", "--coordinator", f"127.0.0.1:{port}", "--state-dir", state)
        agent.expect("following the coordinator")
        for program, said in ((coordinator, {"what": "the coordinator serves", "listen": f"127.0.0.1:{port}"}),
                              (agent, {"what": "following the coordinator",
                                       "target": os.path.join(state, f"coordinator-{port}", "socket")})):
            lines = [json.loads(line) for line in program.stderr.splitlines()]
            self.assertTrue(any(said.items() <= line.items() for line in lines), lines)
            for line in lines:
                self.assertLessEqual({"time", "level", "what"}, set(line))

    def test_explain_and_nodes_speak_json(self):
        job = self.submit('[ "$REGROUP_GENERATION" = 2 ] || kill -9 $$')
        self.assertEqual(self.fx.run("wait", job).code, 0)
        explained = self.json("explain", job)
        self.assertEqual(explained["schema"], "regroup.explain/1")
        self.assertEqual(explained["generations"][0]["ended"]["kind"], "worker_failed")
        down = explained["generations"][1]["restart"]
        parts = sum(down[k] for k in ("detect_s", "decide_s", "stop_s", "form_s", "spawn_s") if k in down)
        self.assertAlmostEqual(parts, down["down_s"], delta=0.005)
        text = self.fx.run("explain", job).stdout
        self.assertRegex(text, r"killed by signal 9\. Regroup did not send it")
        self.assertIn("Charged 1 of 3", " ".join(text.split()))
        shown = self.json("nodes")
        (node,) = shown["nodes"]
        self.assertEqual((node["node"], node["state"], node["slots"]), ("node0", "ready", 2))
        (coordinator,) = shown["coordinators"]
        self.assertEqual((coordinator["memory_limit_bytes"], coordinator["refused_connections"]), (2**30, 0))
        self.assertGreater(coordinator["memory_bytes"], 1_000_000)

    def test_the_journal_is_read_when_nobody_serves_it(self):
        job = self.submit("echo kept; exit 3", "--max-restarts", "0")
        self.assertEqual(self.fx.run("wait", job).code, 3)
        self.coordinator.send(signal.SIGTERM)
        self.assertEqual(self.coordinator.wait(), 0)
        self.assertIn("failed", self.fx.run("ps", "-a").stdout)
        self.assertIn("exit 3", self.fx.run("explain", job).stdout)
        self.assertIn("kept", self.fx.run("logs", job).stdout)
        self.start_coordinator()
        e2e.wait_for(lambda: "ready" in self.fx.run("nodes").stdout, 20, "the node again", self.fx.describe, every=0.1)

    def ended_one_after_another(self, script, *flags):
        """Three jobs of which each wrote after the one before it: youngest is who wrote last, and jobs may run side by side."""
        jobs = []
        for _ in range(3):
            jobs.append(self.submit(script, *flags))
            self.assertEqual(self.fx.run("wait", jobs[-1]).code, 0)
        return jobs

    def test_prune_keeps_the_youngest(self):
        jobs = self.ended_one_after_another("echo x")
        shown = self.json("prune", "--keep", "1", "--dry-run")
        self.assertEqual(len(shown["removed"]), 2, shown)
        self.assertEqual(self.fx.run("prune", "--keep", "1").code, 0)
        self.assertEqual(self.json("prune", "--keep", "1")["removed"], [])
        self.assertTrue(os.path.isdir(shown["removed"][0]["path"].replace(shown["removed"][0]["job"], jobs[-1])))

    def test_prune_counts_jobs_not_what_each_node_kept_of_them(self):
        self.fx.service(e2e.binary("regroup"), "agent", "--coordinator", f"127.0.0.1:{self.port}", "--node-name", "node1", "--slots", "2")
        e2e.wait_for(lambda: len(self.json("nodes")["nodes"]) == 2, 20, "two nodes", self.fx.describe, every=0.1)
        jobs = self.ended_one_after_another("echo x", "-N", "2")
        removed = self.json("prune", "--keep", "2", "--dry-run")["removed"]
        self.assertEqual([logs["job"] for logs in removed], [jobs[0]] * 2)
        asked, done = (self.fx.run("prune", "--keep", "2", *how).stdout.splitlines() for how in (["--dry-run"], []))
        self.assertEqual(asked[:-1], done[:-1])
        self.assertEqual(len(asked), 3)
        self.assertRegex(asked[-1], "^1 job would be removed, ")
        self.assertRegex(done[-1], "^1 job removed, ")
        for job in jobs[1:]:
            self.assertEqual(self.fx.run("logs", job, "--raw").stdout, "x\nx\n")

    def test_completion_knows_live_names(self):
        job = self.submit("sleep 60")
        self.assertIn(job, self.fx.run("__complete", "jobs").stdout.split())
        self.assertEqual(self.fx.run("__complete", "nodes").stdout, "node0\n")
        self.fx.run("cancel", job, "--now")
        self.fx.run("wait", job)


if __name__ == "__main__":
    e2e.main()
