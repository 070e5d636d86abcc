"""Agents as services, for real: killed and back, detached, given notice, met by another coordinator."""
import contextlib
import ctypes
import json
import os
import random
import signal
import subprocess
import time

import regroup_e2e as e2e

WORKER = 'echo "$REGROUP_GENERATION $RANK $$" >> "$MARKS"; echo "hello from $RANK"; exec sleep 600'


PTRACE_DETACH, PTRACE_SEIZE, PTRACE_INTERRUPT, WALL = 17, 0x4206, 0x4207, 0x40000000


@contextlib.contextmanager
def standing_still(threads):
    """Those threads of another process, and no others of it: no signal can do that."""
    libc = ctypes.CDLL(None, use_errno=True)

    def trace(request, thread):
        if libc.ptrace(request, thread, None, None) != 0:
            raise OSError(ctypes.get_errno(), f"ptrace of {thread}")
    for thread in threads:
        trace(PTRACE_SEIZE, thread)
        trace(PTRACE_INTERRUPT, thread)
        os.waitpid(thread, WALL)
    try:
        yield
    finally:
        for thread in threads:
            with contextlib.suppress(ProcessLookupError):  # Its process has ended without it.
                trace(PTRACE_DETACH, thread)


class Fleet(e2e.TestCase):
    def setUp(self):
        super().setUp()
        self.port = e2e.free_port()
        self.marks = self.fx.path("work", "marks")
        self.coordinator = self.start_coordinator("coordinator")
        self.agents, self.before_agent = {}, []

    def start_coordinator(self, folder):
        state = self.fx.path("state", folder)
        program = self.fx.service(e2e.binary("regroup"), "coordinator", "--listen", f"127.0.0.1:{self.port}",
                                  "--state-dir", state)
        self.socket = os.path.join(state, f"coordinator-{self.port}", "socket")
        e2e.wait_for(lambda: os.path.exists(self.socket), 10, "the coordinator", self.fx.describe)
        return program

    def agent(self, name, *more, slots=1):
        self.agents[name] = self.fx.service(
            *self.before_agent, e2e.binary("regroup-agent"), "--coordinator", f"127.0.0.1:{self.port}", "--slots", str(slots),
            "--node-name", name, "--state-dir", self.fx.path("state", name), *more)
        return self.agents[name]

    def follows(self, name):
        self.agents[name].expect(r"following the coordinator", timeout=20)

    def kill(self, name):
        self.agents[name].send(signal.SIGKILL)
        self.agents[name].wait()

    def regroup(self, *words, **more):
        return self.fx.run(*words[:1], "--coordinator", self.socket, *words[1:], **more)

    def submit(self, nodes, script=WORKER, *more):
        done = self.regroup("submit", "-N", str(nodes), "--name", "job", "--env", f"MARKS={self.marks}", *more, "--", "sh", "-c", script)
        self.assertEqual(done.code, 0, done)
        return done.stdout.strip()

    def started(self):
        """[(generation, rank, pid)] as the workers themselves wrote it."""
        if not os.path.exists(self.marks):
            return []
        with open(self.marks) as f:
            return [tuple(int(word) for word in line.split()) for line in f]

    def wait_for_world(self, generation, world, timeout=30):
        def look():
            found = [mark for mark in self.started() if mark[0] >= generation]
            newest = max((mark[0] for mark in found), default=0)
            ranks = [mark for mark in found if mark[0] == newest]
            return ranks if len(ranks) == world else None
        return e2e.wait_for(look, timeout, f"world {world} of generation {generation}", self.fx.describe)

    def cancel(self, job):
        self.assertEqual(self.regroup("cancel", "--now", job).code, 0)
        e2e.wait_for(lambda: not any(e2e.alive(pid) for _, _, pid in self.started()), 20, "the workers to end", self.fx.describe)
        e2e.wait_for(lambda: "cancelled" in self.regroup("ps", "-a").stdout, 20, "the job to end", self.fx.describe)

    def roll(self, jobs):
        """Agents are replaced one after the other, again and again, while short jobs end on them."""
        names = ("a", "b", "c")
        for name in names:
            self.agent(name, slots=8)
        for i in range(jobs):
            done = self.regroup("submit", "--name", f"j{i}", "--max-restarts", "3", "--", "sh", "-c", f"echo {i} >> {self.marks}; sleep 0.{i % 7}")
            self.assertEqual(done.code, 0, done)
            if i % 4 == 0:
                name = names[i // 4 % 3]
                self.agents[name].send(signal.SIGTERM)
                self.agents[name].wait()
                self.agent(name, slots=8)
        e2e.wait_for(lambda: self.regroup("ps", "-a").stdout.count("succeeded") == jobs, 120, "all jobs", self.fx.describe, every=0.5)
        with open(self.marks) as f:
            ran = sorted(map(int, f.read().split()))
        self.assertEqual(ran, list(range(jobs)), "each runs once")


class Agents(Fleet):
    def test_a_killed_agent_adopts_its_workers(self):
        for name in ("a", "b"):
            self.agent(name)
        job = self.submit(2)
        before = self.wait_for_world(1, 2)
        self.kill("a")
        time.sleep(0.3)
        self.agent("a")
        self.follows("a")
        self.assertEqual(self.started(), before, "a worker was started again")
        self.assertTrue(all(e2e.alive(pid) for _, _, pid in before))
        e2e.wait_for(lambda: "running" in self.regroup("ps").stdout, 10, "the job to run", self.fx.describe)
        self.cancel(job)

    def test_what_lives_of_an_unreadable_run_directory_is_ended_before_anything_new_starts(self):
        self.agent("a")
        job = self.submit(1, f"setsid sleep 600 & echo $! > {self.marks}.child; " + WORKER)
        (_, _, pid), = self.wait_for_world(1, 1)
        with open(self.marks + ".child") as f:
            child = int(f.read())
        shim, = [info for info in self.fx.processes("regroup-shim") if f"{job}.1" in info.argv]
        self.kill("a")
        with open(os.path.join(os.readlink(f"/proc/{shim.pid}/fd/3"), "state"), "w") as f:
            f.write("of a newer program")
        self.agent("a")
        self.wait_for_world(2, 1)
        self.assertFalse(any(e2e.alive(p) for p in (pid, child, shim.pid)), "two generations at once")
        self.cancel(job)

    def test_what_ended_while_its_agent_was_away_does_not_run_again(self):
        self.agent("a")
        go = self.fx.path("work", "go")
        job = self.submit(1, f'echo "$REGROUP_GENERATION $RANK $$" >> "$MARKS"; until [ -e {go} ]; do sleep 0.02; done')
        (_, _, pid), = self.wait_for_world(1, 1)
        e2e.wait_for(lambda: "running" in self.regroup("ps").stdout, 20, "the job to run", self.fx.describe)
        self.kill("a")
        open(go, "w").close()
        e2e.wait_for(lambda: not e2e.alive(pid), 20, "the worker to end", self.fx.describe)
        time.sleep(1)  # Ten probes of its witness: refused would be the proof of a loss.
        self.assertIn("running", self.regroup("ps").stdout)
        self.agent("a")
        self.assertEqual(self.regroup("wait", job).code, 0)
        self.assertEqual(self.started(), [(1, 0, pid)], "it ran twice")

    def test_rolling_restarts_while_short_jobs_end(self):
        self.roll(24)

    def test_the_last_line_of_an_error_is_told_beside_the_exit_code(self):
        script = "echo 'Traceback (most recent call last):' >&2; printf 'ValueError: \\033[1mboom\\n\\n' >&2; exit 1"
        said = r"exit 1: ValueError: \\x1b\[1mboom"
        self.agent("a")
        job = self.submit(1, script, "--max-restarts", "0")
        self.assertEqual(self.regroup("wait", job).code, 1)
        self.assertRegex(self.regroup("ps", "-a").stdout, rf" {said} \(a rank 0\)\n")
        self.assertRegex(" ".join(self.regroup("explain", job).stdout.split()),
                         r"Rank 0 on a \(pid \d+\) exited with code 1: ValueError: \\x1b\[1mboom\.")
        run = self.fx.run("run", "--max-restarts", "1", "--state-dir", self.fx.path("state", "run"), "sh", "-c", script)
        self.assertRegex(run.stderr, rf"rank 0: {said} · restart 1 of 1")

    def test_killed_at_any_moment_no_rank_starts_twice(self):
        seed = int(os.environ.get("REGROUP_SEED", "7"))
        rng = random.Random(seed)
        self.agent("a")
        job = self.submit(1)
        for _ in range(8):
            time.sleep(rng.uniform(0, 0.15))
            self.kill("a")
            self.agent("a")
        self.follows("a")
        (_, _, pid), = self.wait_for_world(1, 1)
        self.assertTrue(e2e.alive(pid), f"REGROUP_SEED={seed}")
        generations = [generation for generation, _, _ in self.started()]
        self.assertEqual(len(generations), len(set(generations)), f"a generation ran twice: {generations}, REGROUP_SEED={seed}")
        self.cancel(job)

    def test_a_check_goes_on_without_its_agent_and_not_without_its_shim(self):
        go, pids = self.fx.path("work", "go"), self.fx.path("work", "pids")
        self.agent("a")
        job = self.submit(1, WORKER, "--node-check", f"setsid sleep 600 & echo $! $$ >> {pids}; while [ ! -e {go} ]; do sleep 0.02; done")

        def checks():
            if not os.path.exists(pids):
                return []
            with open(pids) as f:
                return [[int(pid) for pid in line.split()] for line in f]
        e2e.wait_for(lambda: len(checks()) == 1, 20, "the check", self.fx.describe)
        self.kill("a")
        self.agent("a")
        self.follows("a")
        self.assertTrue(all(e2e.alive(pid) for pid in checks()[0]))
        shims = [info.pid for info in self.fx.processes("regroup-shim") if "--store" not in info.argv]
        os.kill(shims[0], signal.SIGKILL)
        e2e.wait_for(lambda: len(checks()) == 2, 20, "another check", self.fx.describe)
        self.assertFalse(any(e2e.alive(pid) for pid in checks()[0]), "what the first check had started")
        open(go, "w").close()
        [(generation, _, pid)] = self.wait_for_world(1, 1)
        self.assertEqual((len(checks()), generation), (2, 2))
        self.assertFalse(any(e2e.alive(pid) for pid in checks()[1]), "what a check leaves does not run beside ranks")
        self.assertTrue(e2e.alive(pid))
        self.cancel(job)

    def test_a_failing_check_is_told_by_nodes_and_ps(self):
        self.agent("a")
        job = self.submit(1, WORKER, "--node-check", "printf 'bad \\033[31mlink'; exit 4")
        e2e.wait_for(lambda: "exited with 4" in self.regroup("ps", job).stdout, 20, "the reason", self.fx.describe)
        self.assertRegex(self.regroup("nodes").stdout, rf"(?s)not in {job} for \S+ s: its node check exited with 4: bad \\x1b\[31mlink")
        self.assertEqual(self.started(), [])
        self.cancel(job)

    def test_sigterm_detaches(self):
        self.agent("a")
        job = self.submit(1)
        before = self.wait_for_world(1, 1)
        self.agents["a"].send(signal.SIGTERM)
        self.assertEqual(self.agents["a"].wait(), 0)
        self.assertTrue(e2e.alive(before[0][2]), "a detached worker runs on")
        self.agent("a")
        self.follows("a")
        self.assertEqual(self.started(), before)
        self.cancel(job)

    def test_sigterm_as_a_notice_moves_the_job(self):
        self.agent("a", "--sigterm-is-notice", "--grace", "10s")
        job = self.submit(1, 'trap "echo saved >> $MARKS.saved; exit 0" TERM; ' + WORKER.replace("exec sleep 600", "while :; do sleep 0.05; done"))
        (generation, _, _), = self.wait_for_world(1, 1)
        self.agent("b")
        self.follows("b")
        self.agents["a"].send(signal.SIGTERM)
        self.assertEqual(self.agents["a"].wait(20), 0)
        self.assertTrue(os.path.exists(self.marks + ".saved"), "its worker had the time to save")
        self.wait_for_world(generation + 1, 1)
        self.cancel(job)

    def test_a_killed_shim_costs_no_restart(self):
        self.agent("a")
        job = self.submit(1, WORKER, "--max-restarts", "0")
        (generation, _, pid), = self.wait_for_world(1, 1)
        shim, = [p for p in self.fx.processes("regroup-shim") if f"{job}.{generation}" in p.argv]
        os.kill(shim.pid, signal.SIGKILL)
        self.wait_for_world(generation + 1, 1)
        self.assertFalse(e2e.alive(pid), "what a dead shim left is killed before anything new starts")
        self.cancel(job)

    def test_another_coordinator_stops_nothing(self):
        self.agent("a")
        self.submit(1)
        (_, _, pid), = self.wait_for_world(1, 1)
        first = self.socket
        self.coordinator.send(signal.SIGKILL)
        self.coordinator.wait()
        other = self.start_coordinator("another")
        self.agents["a"].expect(r"cluster [0-9a-f]+.*cluster [0-9a-f]+", timeout=20)
        self.assertTrue(e2e.alive(pid))
        other.send(signal.SIGKILL)
        other.wait()
        self.start_coordinator("coordinator")
        self.assertEqual(self.socket, first)
        e2e.wait_for(lambda: "running" in self.regroup("ps").stdout, 20, "the job to be found again", self.fx.describe)
        self.assertEqual(len(self.started()), 1)
        self.assertTrue(e2e.alive(pid))
        self.cancel("job-1")

    def test_a_node_without_a_cgroup_is_marked(self):
        if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode != 0:
            self.skipTest("a mount namespace of its own needs root")
        self.agent("a")
        self.before_agent = ["unshare", "-m", "sh", "-c", 'umount -a -l -t cgroup2; exec "$@"', "sh"]
        self.agent("b")
        self.follows("b")
        job = self.submit(2, 'grep -q regroup-job /proc/self/cgroup && touch "$MARKS.$RANK"; ' + WORKER)
        self.wait_for_world(1, 2)
        nodes = {node["node"]: node.get("note", "") for node in json.loads(self.regroup("nodes", "--json").stdout)["nodes"]}
        self.assertEqual("no cgroup" in nodes["a"], not os.path.exists(self.marks + ".0"), nodes)
        self.assertIn("no cgroup: no cgroup v2 hierarchy is mounted", nodes["b"])
        self.assertFalse(os.path.exists(self.marks + ".1"))
        self.assertRegex(self.regroup("nodes").stdout, r"(?m)^b .*no cgroup v2")
        self.cancel(job)

    def test_a_place_that_is_full_costs_a_group_its_cgroup_and_not_its_life(self):
        with open("/proc/self/mounts", encoding="utf-8") as f:
            mounts = [line.split()[1] for line in f if line.split()[2] == "cgroup2"]
        place = os.path.join((mounts or ["/"])[0], f"full-{os.getpid()}")
        try:
            os.mkdir(place)
        except OSError as error:
            self.skipTest(f"no cgroup can be made: {error}")
        self.before_agent = ["sh", "-c", f'echo 0 >{place}/cgroup.max.descendants; echo $$ >{place}/cgroup.procs; exec "$@"', "sh"]
        self.agent("a").expect(r"following the coordinator", timeout=20)
        job = self.submit(1)
        [(_, _, pid)] = self.wait_for_world(1, 1)
        self.agents["a"].expect(r"no cgroup for job-1: make cgroup \S+: Resource temporarily unavailable", timeout=20)
        self.cancel(job)
        self.assertFalse(e2e.alive(pid))
        self.agents["a"].send(signal.SIGTERM)
        self.agents["a"].wait()

        def removed():
            try:
                os.rmdir(place)
            except OSError:
                return False
            return True
        e2e.wait_for(removed, 20, "its last process to leave", self.fx.describe)

    def test_logs_are_followed_to_the_end(self):
        self.agent("a", slots=2)
        self.submit(1, "for i in 1 2 3; do echo line $i of $RANK; sleep 0.2; done; echo last words >&2", "--nproc-per-node", "2")
        follower = self.fx.regroup("logs", "--coordinator", self.socket, "-f", "job-1")
        self.assertEqual(follower.wait(20), 0, follower)
        for rank in (0, 1):
            for i in (1, 2, 3):
                self.assertIn(f"line {i} of {rank}", follower.stdout)
        self.assertEqual(follower.stdout.count("last words"), 2)

    def job_whose_logs_stand_still(self):
        """As on a slow disk: what writes logs stands still while the rank, its group and the job end."""
        self.agent("a")
        go = self.fx.path("work", "go")
        job = self.submit(1, f'echo "$REGROUP_GENERATION $RANK $$" >> "$MARKS"; until [ -e {go} ]; do sleep 0.02; done; echo it ran')
        self.wait_for_world(1, 1)
        shim, = [info for info in self.fx.processes("regroup-shim") if f"{job}.1" in info.argv]
        return job, go, [int(name) for name in os.listdir(f"/proc/{shim.pid}/task") if int(name) != shim.pid]

    def test_logs_of_a_job_that_is_over_wait_for_what_its_shim_still_writes(self):
        job, go, writers = self.job_whose_logs_stand_still()
        with standing_still(writers):
            open(go, "w").close()
            self.assertEqual(self.regroup("wait", job).code, 0)
            logs = self.fx.regroup("logs", "--coordinator", self.socket, "--raw", job)
            time.sleep(0.5)
        self.assertEqual(logs.wait(20), 0, logs)
        self.assertEqual(logs.stdout, "it ran\n")

    def test_logs_that_are_not_written_in_time_are_said_to_be_missing(self):
        """To who comes after the end and to who has followed; those of another job do not wait for that. They come late."""
        job, go, writers = self.job_whose_logs_stand_still()
        streams = self.streams()
        follower = self.fx.regroup("logs", "--coordinator", self.socket, "-f", "--raw", job)
        e2e.wait_for(lambda: self.streams() > streams, 20, "the follower to be served", self.fx.describe)
        with standing_still(writers):
            open(go, "w").close()
            self.assertEqual(self.regroup("wait", job).code, 0)
            late = self.fx.regroup("logs", "--coordinator", self.socket, "--raw", job)
            other = self.submit(1, "echo two")
            self.assertEqual(self.regroup("wait", other).code, 0)
            self.assertEqual(self.regroup("logs", "--raw", other).stdout, "two\n")
            self.assertIsNone(late.process.poll(), "the other job's logs waited")
            for reader in (follower, late):
                reader.wait(20)
                self.assertEqual(reader.stdout, "", reader)
                self.assertRegex(reader.stderr, "a.*what its ranks wrote last is not in its log files yet: its disk may hang")
            time.sleep(7)  # Its shim has let go of its agent.
            much_later = self.regroup("logs", "--raw", job)
            self.assertRegex(much_later.stderr, "a.*what its ranks wrote last is not in its log files yet: its disk may hang")
        e2e.wait_for(lambda: self.regroup("logs", "--raw", job).stdout == "it ran\n", 20, "what the disk has taken late")

    def test_an_agent_that_ends_waits_for_what_a_shim_still_writes(self):
        job, go, writers = self.job_whose_logs_stand_still()
        with standing_still(writers):
            open(go, "w").close()
            self.assertEqual(self.regroup("wait", job).code, 0)
            self.agents["a"].send(signal.SIGTERM)
            self.assertEqual(self.agents["a"].wait(20), 0)
        self.agent("a")
        e2e.wait_for(lambda: self.regroup("logs", "--raw", job).stdout == "it ran\n", 20, "what the disk has taken late")

    def test_a_follower_loses_no_line_over_restarts_of_its_agent_and_its_coordinator(self):
        self.agent("a", slots=2)
        stop = self.fx.path("work", "stop")
        # Two ranks; one line is still being written when its agent is killed.
        script = f"i=0; until [ -e {stop} ]; do i=$((i+1)); printf 'line %s' $i; sleep 0.05; echo \" of $RANK\"; done; echo end"
        self.submit(1, script, "--nproc-per-node", "2")
        follower = self.fx.regroup("logs", "--coordinator", self.socket, "-f", "--raw", "--tail", "3", "job-1")
        follower.expect("line .* of 1", timeout=20, stream="stdout")
        self.kill("a")
        follower.expect("regroup: waiting for the logs of a: its agent", timeout=20)
        self.agent("a", slots=2)
        follower.expect("regroup: the logs of a go on", timeout=20)
        self.coordinator.send(signal.SIGKILL)
        self.coordinator.wait()
        follower.expect("regroup: the coordinator does not answer; waiting for it, no line is lost", timeout=20)
        self.coordinator = self.start_coordinator("coordinator")
        follower.expect("regroup: the coordinator answers again", timeout=20)
        seen = len(follower.stdout)
        e2e.wait_for(lambda: len(follower.stdout) > seen, 20, "lines again", self.fx.describe)
        self.kill("a")  # And it is away when the job ends.
        open(stop, "w").close()
        self.agent("a", slots=2)
        self.assertEqual(follower.wait(30), 0, follower)
        self.assertEqual(follower.stdout.count("end\n"), 2)
        for rank in "01":
            lines = [int(line.split()[1]) for line in follower.stdout.splitlines() if line.endswith(f" of {rank}")]
            self.assertEqual(lines, list(range(lines[0], lines[-1] + 1)), "lines are missing, or came twice")
            self.assertGreater(len(lines), 20)

    def test_a_node_serves_more_readers_than_64_and_each_gets_every_line(self):
        self.agent("a")
        go = self.fx.path("work", "go")
        self.submit(1, f"until [ -e {go} ]; do sleep 0.1; done; echo one; echo two")
        readers = [self.fx.regroup("logs", "--coordinator", self.socket, "-f", "--raw", "job-1") for _ in range(70)]
        e2e.wait_for(lambda: self.streams() >= len(readers), 60, "all to be served", self.fx.describe, every=0.2)
        open(go, "w").close()
        for reader in readers:
            self.assertEqual(reader.wait(60), 0, reader)
            self.assertEqual(reader.stdout, "one\ntwo\n")

    def streams(self):
        """Threads of the agent: each stream of logs is fed by one."""
        return len(os.listdir(f"/proc/{self.agents['a'].process.pid}/task"))


class Many(Fleet):
    """The same with as many jobs as a fleet ends in a minute."""

    def test_rolling_restarts_while_short_jobs_end(self):
        self.roll(200)


if __name__ == "__main__":
    e2e.main()
