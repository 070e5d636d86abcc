"""Warm ranks: they are forked from a process that has imported already, and are otherwise as any other.

No PyTorch: what takes its time to import is a module of this test's own, that remembers which process imported it.
"""
import json
import os
import re
import signal
import sys
import textwrap

import regroup_e2e as e2e
from fixture import processes

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
        run = self.launch(warm=(), REGROUP_WARM="stack,missing")
        self.said(1)
        run.expect(r"ranks of \S+ start cold: import missing: ModuleNotFoundError: No module named 'missing'$")
        self.finish(run, 1)
        self.assertEqual(json.loads(self.fx.run("ps", "-a", "--json").stdout)["jobs"][0]["warm"], ["stack", "missing"])

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
