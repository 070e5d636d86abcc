"""Warm ranks: they are forked from a process that has imported already, and are otherwise as any other.

No PyTorch: what takes its time to import is a module of this test's own, that remembers which process imported it.
"""
import json
import os
import re
import signal
import sys
import textwrap
import time

import regroup_e2e as e2e
from fixture import processes
from python_test import PACKAGE

STACK = """
    import os
    PID = os.getpid()
    """
# Says how it was started, then what $PLAN says of this generation and rank: exit CODE, or wait until it is killed.
SCRIPT = """
    import json, os, signal, sys, time
    import stack

    def name(pid):
        with open(f"/proc/{pid}/comm") as f:
            return f.read().strip()

    generation, rank = os.environ["REGROUP_GENERATION"], os.environ["RANK"]
    said = {"kind": "cold" if stack.PID == os.getpid() else "warm", "parent": name(os.getppid()), "pid": os.getpid(),
            "leads": os.getsid(0) == os.getpid(), "mark": os.environ["REGROUP_GROUP"], "argv": sys.argv[1:],
            "cgroup": open("/proc/self/cgroup").read().rsplit("/", 1)[1].startswith("regroup-")}
    path = os.path.join(os.environ["MARKS"], f"{generation}.{rank}")
    with open(path + ".new", "w") as f:
        json.dump(said, f)
    print(f"generation {generation} is here", flush=True)
    os.rename(path + ".new", path)
    while not os.path.exists(path + ".do"):
        time.sleep(0.01)
    with open(path + ".do") as f:
        exec(f.read())
    """
RANKS = 2
# Of each generation one rank is killed once it got further, but in those that are looked at.
KILLS = 200
LOOKED_AT = (20, KILLS + 1)
KILLED = """
    import stack
    import regroup
    generation, rank = int(os.environ["REGROUP_GENERATION"]), int(os.environ["RANK"])
    regroup.progress(step=generation)
    regroup.flush(10)
    if generation not in LOOKED_AT:
        if rank == generation % 2:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)
    """


class Ranks(e2e.TestCase):
    def setUp(self):
        super().setUp()
        self.marks, self.site = self.fx.path("work", "marks"), self.fx.path("work", "site")
        os.mkdir(self.marks)
        os.mkdir(self.site)
        self.write(os.path.join(self.site, "stack.py"), STACK)
        self.write(self.fx.path("work", "train.py"), SCRIPT)

    @staticmethod
    def write(path, text):
        with open(path + ".new", "w", encoding="utf-8") as f:
            f.write(textwrap.dedent(text))
        os.rename(path + ".new", path)

    def said(self, generation, timeout=20):
        """What each rank of it has said of itself."""
        def look():
            paths = [os.path.join(self.marks, f"{generation}.{rank}") for rank in range(RANKS)]
            found = []
            for path in paths:
                with open(path, encoding="utf-8") as f:
                    found.append(json.load(f))
            return found
        return e2e.wait_for(look, timeout, f"generation {generation}", self.fx.describe)

    def tell(self, generation, rank, what):
        self.write(os.path.join(self.marks, f"{generation}.{rank}.do"), what)

    def nursery(self):
        """The one that is ready: it ignores SIGCHLD just before it says so."""
        def look():
            for info in self.fx.processes("regroup-nursery"):
                with open(f"/proc/{info.pid}/status", encoding="ascii") as f:
                    status = dict(line.split(":\t", 1) for line in f.read().splitlines() if ":\t" in line)
                ignored = int(status["SigIgn"], 16) & 1 << (signal.SIGCHLD - 1)
                if ignored and status["State"].startswith("S") and status["PPid"] == str(self.agent_pid()):
                    return info.pid
            return None
        return e2e.wait_for(look, 20, "a nursery that is ready", self.fx.describe)

    def kinds(self, generation):
        return [rank["kind"] for rank in self.said(generation)]


class Launched(Ranks):
    def launch(self, *options, warm=("--warm",), program=("train.py",), **environment):
        return self.fx.regroup("run", "--nproc-per-node", RANKS, "--max-restarts", 9, *warm, *options, *program, "--flag", "a b",
                               env={"PYTHONPATH": self.site, "MARKS": self.marks} | environment)

    def finish(self, run, generation, code=0):
        for rank in range(RANKS):
            self.tell(generation, rank, f"sys.exit({code})")
        self.assertEqual(run.wait(), code, run)

    def agent_pid(self):
        return self.fx.programs[0].pid

    def test_every_generation(self):
        run = self.launch()
        cgroup = self.said(1)[0]["cgroup"]
        nursery = self.nursery()
        for generation in (1, 2, 3):
            if generation > 1:
                self.tell(generation - 1, generation % RANKS, "os.kill(os.getpid(), signal.SIGKILL)")
            for rank in self.said(generation):
                pid, mark = rank.pop("pid"), rank.pop("mark")
                self.assertEqual(rank, {"kind": "warm", "parent": "regroup-shim", "leads": True, "argv": ["--flag", "a b"],
                                        "cgroup": cgroup})
                with open(f"/proc/{pid}/environ", "rb") as f:
                    self.assertIn(f"REGROUP_GROUP={mark}".encode(), f.read().split(b"\0"))
                with open(f"/proc/{pid}/cmdline", encoding="utf-8") as f:
                    self.assertIn("train.py\0--flag\0a b", f.read())
        self.assertEqual(self.nursery(), nursery)
        self.finish(run, 3)
        self.assertEqual(run.stdout.count("generation 3 is here"), RANKS, run)

    def test_two_hundred_kills_leave_nothing(self):
        script = textwrap.dedent(SCRIPT).replace("import stack\n", textwrap.dedent(KILLED).replace("LOOKED_AT", str(LOOKED_AT)), 1)
        self.write(self.fx.path("work", "train.py"), script)
        run = self.launch("--max-restarts", 2 * KILLS, PYTHONPATH=self.site + ":" + PACKAGE)
        seen = []
        for generation in LOOKED_AT:
            self.assertEqual({rank["kind"] for rank in self.said(generation, 150)}, {"warm"})
            # What the generation before has left to its witness and to the disk is over by now.
            seen.append(e2e.wait_for(self.at_rest, 30, "a moment without a coming or going process", self.fx.describe))
            for rank in range(RANKS):
                self.tell(generation, rank, "sys.exit(3)" if generation < KILLS else "sys.exit(0)")
        self.assertEqual(run.wait(), 0, run)
        (names, fds, memory), (names_then, fds_then, memory_then) = seen
        self.assertEqual(names_then, names)
        self.assertEqual(fds_then, fds)
        for name, kib in memory_then.items():
            self.assertLess(kib - memory[name], 4096, (name, memory, memory_then))

    def at_rest(self):
        """(processes, descriptors and memory of what serves all generations), once two looks find the same processes."""
        found = []
        for _ in range(2):
            found.append(sorted((os.path.basename(info.argv[0]), info.pid) for info in self.fx.processes()))
            time.sleep(0.3)
        if found[0] != found[1]:
            return None
        fds, memory = {}, {}
        for name, pid in found[0]:
            if name in ("regroup-agent", "regroup-nursery"):
                fds[name] = len(os.listdir(f"/proc/{pid}/fd"))
                with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as f:  # Whoever else runs this program shares its files.
                    memory[name] = sum(int(line.split()[1]) for line in f if line.startswith("Anonymous:"))
        return [name for name, _ in found[0]], fds, memory

    def test_exit_codes_and_tracebacks(self):
        run = self.launch("--max-restarts", 1)
        self.assertEqual(self.kinds(1), ["warm"] * RANKS)
        self.tell(1, 0, "sys.exit(3)")
        self.assertEqual(self.kinds(2), ["warm"] * RANKS)
        self.tell(2, 1, "raise ValueError('of a warm rank')")
        self.assertEqual(run.wait(), 1, run)
        self.assertIn("ValueError: of a warm rank", run.stdout + run.stderr)
        self.assertNotIn("/proc/self/fd", run.stdout + run.stderr)

    def test_a_signal_to_the_launch_command(self):
        run = self.launch()
        self.said(1)
        self.nursery()
        self.tell(1, 0, "sys.exit(3)")
        self.assertEqual(self.kinds(2), ["warm"] * RANKS)
        run.send(signal.SIGTERM)
        self.assertEqual(run.wait(), 143, run)

    def test_a_signal_while_it_imports(self):
        started = self.fx.path("work", "started")
        self.write(os.path.join(self.site, "stack.py"), f"""
    import time
    open({started!r}, "w").close()
    time.sleep(60)
    """)
        run = self.launch()
        e2e.wait_for(lambda: os.path.exists(started), 20, "the imports", self.fx.describe)
        run.send(signal.SIGTERM)
        self.assertEqual(run.wait(), 143, run)
        self.assertEqual(os.listdir(self.marks), [])

    def test_warm_ranks_die_with_their_shim(self):
        run = self.launch()
        self.said(1)
        self.nursery()
        self.tell(1, 0, "sys.exit(3)")
        ranks = self.said(2)
        with open(f"/proc/{ranks[0]['pid']}/status", encoding="ascii") as f:
            shim = int(re.search(r"PPid:\t(\d+)", f.read()).group(1))
        os.kill(shim, signal.SIGKILL)
        self.assertEqual(self.kinds(3), ["warm"] * RANKS)
        for rank in ranks:
            self.assertFalse(processes.alive(rank["pid"]), self.fx.describe)
        self.finish(run, 3)

    def test_without_its_nursery_a_job_goes_on(self):
        run = self.launch()
        self.said(1)
        first = self.nursery()
        os.kill(first, signal.SIGKILL)
        run.expect(r"ranks of \S+ start cold: its nursery has ended by SIGKILL$")
        self.tell(1, 0, "sys.exit(3)")
        self.assertEqual(self.kinds(2), ["warm"] * RANKS)
        self.assertNotEqual(self.nursery(), first)
        self.finish(run, 2)

    def test_a_nursery_that_hangs(self):
        run = self.launch()
        self.said(1)
        os.kill(self.nursery(), signal.SIGSTOP)
        self.tell(1, 0, "sys.exit(3)")
        self.assertEqual(self.kinds(2), ["cold"] * RANKS)
        self.assertRegex(run.stderr, r"(?m)ranks of \S+ start cold: its nursery does not answer$")
        self.finish(run, 2)

    def test_what_was_imported_has_changed(self):
        run = self.launch()
        self.said(1)
        self.nursery()
        self.write(os.path.join(self.site, "stack.py"), STACK + "\n    VERSION = 2\n")
        self.tell(1, 0, "sys.exit(3)")
        self.assertEqual(self.kinds(2), ["cold"] * RANKS)
        self.assertRegex(run.stderr, r"(?m)ranks of \S+ start cold: \S+/stack\.py has changed since it was imported$")
        self.nursery()
        self.tell(2, 0, "sys.exit(3)")
        self.assertEqual(self.kinds(3), ["warm"] * RANKS)
        self.finish(run, 3)

    def test_what_cannot_be_forked(self):
        self.write(os.path.join(self.site, "stack.py"), STACK + """
    import threading, time
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    """)
        run = self.launch()
        self.assertEqual(self.kinds(1), ["cold"] * RANKS)
        run.expect(r"ranks of \S+ start cold: import stack starts 1 threads$")
        self.tell(1, 0, "sys.exit(3)")
        self.assertEqual(self.kinds(2), ["cold"] * RANKS)
        self.finish(run, 2)
        self.assertEqual(run.stderr.count("start cold"), 1, run)

    def test_the_nursery_ends_with_the_launch_command(self):
        self.fx.expects_run_directories = True
        run = self.launch()
        ranks = self.said(1)
        nursery = self.nursery()
        run.kill()
        self.assertTrue(processes.wait_exit(nursery, 10), self.fx.describe)
        for rank in ranks:
            self.assertTrue(processes.wait_exit(rank["pid"], 40), self.fx.describe)

    def test_without_the_flag_there_is_none(self):
        run = self.launch(warm=())
        self.said(1)
        self.tell(1, 0, "sys.exit(3)")
        self.assertEqual(self.kinds(2), ["cold"] * RANKS)
        self.assertEqual(self.fx.processes("regroup-nursery"), [])
        self.finish(run, 2)

    def test_modules_that_are_named(self):
        run = self.launch(warm=("--warm=json",))
        self.said(1)
        self.nursery()
        self.tell(1, 0, "sys.exit(3)")
        for rank in self.said(2):  # What is not named each rank imports itself.
            self.assertEqual((rank["kind"], rank["parent"]), ("cold", "regroup-shim"))
        self.assertNotIn("start cold", run.stderr)
        self.tell(2, 0, "sys.exit(3)")
        self.finish(run, 3)

    def test_the_variable(self):
        self.write(os.path.join(self.site, "late.py"), "raise OSError('no device')")
        run = self.launch(warm=(), REGROUP_WARM="stack,late")
        self.said(1)
        run.expect(r"ranks of \S+ start cold: import late: OSError: no device$")
        self.finish(run, 1)
        self.assertEqual(json.loads(self.fx.run("ps", "-a", "--json").stdout)["jobs"][0]["warm"], ["stack", "late"])

    def test_modules_that_are_not_there(self):
        run = self.launch(warm=("--warm=stack,mising,json.absent,os.path",))
        self.assertEqual(run.wait(), 125, run)
        self.assertRegex(run.stderr, r"error: --warm: \S*python\S* cannot import mising, json\.absent\n"
                                     r"because: mising: ModuleNotFoundError: No module named 'mising'; json\.absent: ModuleNotFoundError: ")
        self.assertEqual(os.listdir(self.marks), [])

    def test_with_a_node_check(self):
        """It may leave processes, which are ended; without a cgroup they are not told from what forks ranks for certain."""
        left = self.fx.path("work", "left")
        check = f"sleep 60 & echo $! >> {left}; setsid -f sleep 61"
        run = self.launch("--node-check", check)
        for generation in (1, 2):
            kind = "warm" if self.said(generation)[0]["cgroup"] else "cold"
            self.assertEqual(self.kinds(generation), [kind] * RANKS, run)
            if generation == 1:
                self.tell(1, 0, "sys.exit(3)")
        with open(left, encoding="ascii") as f:
            pids = [int(line) for line in f]
        self.assertEqual([pid for pid in pids if processes.alive(pid)], [])
        self.assertEqual(self.fx.processes("sleep", "61"), [])
        self.finish(run, 2)

    def test_a_node_check_that_fails(self):
        run = self.launch("--node-check", "exit 3", "--join-timeout", "3s")
        self.assertNotEqual(run.wait(), 0, run)
        self.assertIn("node check", run.stdout + run.stderr)
        self.assertEqual(os.listdir(self.marks), [])

    def test_a_module_as_the_program(self):
        run = self.launch(program=("-m", "train"))
        self.assertEqual(self.kinds(1), ["warm"] * RANKS)
        self.tell(1, 1, "os.kill(os.getpid(), signal.SIGKILL)")
        for rank in self.said(2):
            self.assertEqual((rank["kind"], rank["argv"]), ("warm", ["--flag", "a b"]))
        self.finish(run, 2)

    def test_a_name_that_is_none(self):
        run = self.launch(warm=("--warm=torch numpy",))
        self.assertEqual(run.wait(), 125, run)
        self.assertIn("--warm: 'torch numpy' is no name of a module", run.stderr)

    def test_a_nursery_that_closes_everything(self):
        self.write(os.path.join(self.site, "stack.py"), STACK + """
    import time
    if os.environ.get("RANK") is None:
        os.closerange(3, 100)
        time.sleep(60)
    """)
        run = self.launch()
        self.said(1)
        run.expect(r"ranks of \S+ start cold: its nursery has closed its connection$")
        self.finish(run, 1)


class Submitted(Ranks):
    """To agents that run as services."""

    def start(self):
        state, port = self.fx.path("state", "coordinator"), e2e.free_port()
        self.socket = os.path.join(state, f"coordinator-{port}", "socket")
        self.fx.service(e2e.binary("regroup"), "coordinator", "--listen", f"127.0.0.1:{port}", "--state-dir", state)
        e2e.wait_for(lambda: os.path.exists(self.socket), 10, "the coordinator", self.fx.describe)
        self.serve = [e2e.binary("regroup-agent"), "--coordinator", f"127.0.0.1:{port}", "--slots", str(RANKS),
                      "--node-name", "a", "--state-dir", self.fx.path("state", "a")]
        self.agent = self.fx.service(*self.serve)

    def agent_pid(self):
        return self.agent.pid

    def regroup(self, command, *words):
        done = self.fx.run(command, "--coordinator", self.socket, *words)
        self.assertEqual(done.code, 0, done)
        return done.stdout

    def test_another_agent_has_a_nursery_of_its_own(self):
        self.start()
        environment = [f"PYTHONPATH={self.site}", f"MARKS={self.marks}", f"PYTHON_EXEC={sys.executable}"]
        job = self.regroup("submit", "--name", "job", "--nproc-per-node", RANKS, "--max-restarts", 9, "--warm",
                           *(word for item in environment for word in ("--env", item)), "--", "train.py", "--flag", "a b").strip()
        first = self.nursery()
        ranks = self.said(1)
        self.assertEqual([rank["kind"] for rank in ranks], ["warm"] * RANKS)
        e2e.wait_for(lambda: json.loads(self.regroup("nodes", "--json"))["nodes"][0]["warm_bytes"] > 1 << 20, 10, "its memory in `nodes`",
                     self.fx.describe)
        self.agent.kill()
        self.assertTrue(processes.wait_exit(first, 10), self.fx.describe)
        self.agent = self.fx.service(*self.serve)
        self.assertNotEqual(self.nursery(), first)
        for rank in ranks:
            self.assertTrue(processes.alive(rank["pid"]), self.fx.describe)
        self.tell(1, 1, "os.kill(os.getpid(), signal.SIGKILL)")
        self.assertEqual(self.kinds(2), ["warm"] * RANKS)
        for rank in range(RANKS):
            self.tell(2, rank, "sys.exit(0)")
        e2e.wait_for(lambda: "finished" in self.regroup("explain", job) or "succeeded" in self.regroup("explain", job), 20,
                     "the end of the job", self.fx.describe)


if __name__ == "__main__":
    e2e.main()
