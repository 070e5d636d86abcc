"""A plain PyTorch script under Regroup: processes and nodes are killed at random moments, nothing is lost.

    pytorch_test.py                  two seeds under `regroup run`, two submitted to daemon agents
    pytorch_test.py --seeds 0:20     the seeds 0 to 19 in both ways
"""
import collections
import glob
import os
import random
import re
import signal
import subprocess
import sys
import time
import unittest

import regroup_e2e as e2e

EPOCHS = 8
MOMENTS = ("init", "step", "save")
FEW = {"run": (8, 9), "submit": (3, 13)}
SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "ddp_train.py")
PROBE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "store_probe.py")


# Who is killed, and when. `reached`: at init so many ranks that wait for each other, else an epoch; `delay_s`: after a step.
Kill = collections.namedtuple("Kill", "moment reached delay_s victim which")


def kill_of(way, seed):
    rng = random.Random(f"{way} {seed}")
    moment, victim = rng.choice(MOMENTS), rng.choice(["worker", "node"])
    reached = rng.randrange(1, 5) if moment == "init" else rng.randrange(1, EPOCHS - 2)
    return Kill(moment, reached, 0.1 * rng.random(), victim, rng.randrange(4 if victim == "worker" else 2))


def worker_logs(folder):
    """[(earlier starts, rank, pid, text)] of every worker that has logged, in order of starts and rank."""
    found = []
    for path in glob.glob(os.path.join(folder, "*.log")):
        count, rank, pid, _ = os.path.basename(path).split(".")
        with open(path) as f:
            found.append((int(count), int(rank), int(pid), f.read()))
    return sorted(found)


def epochs_of(logs, restarts):
    return [int(e) for count, _, _, text in logs if count == restarts for e in re.findall(r"^epoch=(\d+)", text, re.M)]


def places(logs, restarts):
    """{rank: (its node's agent, local rank)} of the ranks that started then, and how many there were to be."""
    found, world = {}, 0
    for count, rank, _, text in logs:
        if count == restarts:
            agent, local, world = map(int, re.match(r"start .* agent=(\d+) local=(\d+) world=(\d+)$", text, re.M).groups())
            found[rank] = agent, local
    return found, world


def parameters(logs):
    """What rank 0 of the last start ended with."""
    text = [text for _, rank, _, text in logs if rank == 0][-1]
    return [float(x) for x in re.search(r"^parameters (.*)", text, re.M).group(1).split()]


class Training(e2e.TestCase):
    RANKS = 2  # Of each of the two nodes.
    _undisturbed = None

    def setUp(self):
        super().setUp()
        self.python = e2e.torch_python()
        self.logs, self.checkpoint = self.fx.path("work", "logs"), self.fx.path("work", "model.pt")
        os.mkdir(self.logs)

    def arguments(self):
        return [SCRIPT, "--epochs", EPOCHS, "--checkpoint", self.checkpoint, "--log-dir", self.logs, "--hold", self.logs + ".go"]

    def let_end(self):
        open(self.logs + ".go", "w").close()

    def undisturbed(self):
        """Parameters that the same script reaches without Regroup, as one process: for all tests the same, so once."""
        if Training._undisturbed is None:
            Training._undisturbed = self._train_undisturbed()
        return Training._undisturbed

    def _train_undisturbed(self):
        folder = self.fx.path("work", "plain")
        os.mkdir(folder)
        environment = dict(self.fx.env, RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", GROUP_RANK="0", MASTER_ADDR="127.0.0.1",
                           MASTER_PORT=str(e2e.free_port()))
        subprocess.run([self.python, SCRIPT, "--epochs", str(EPOCHS), "--checkpoint", os.path.join(folder, "model.pt"),
                        "--log-dir", folder, "--step-seconds", "0"], env=environment, check=True, timeout=120)
        return parameters(worker_logs(folder))

    def workers(self, above=-1):
        """Workers' pids of the newest start above `above`, once all that have started logged it."""
        logs = worker_logs(self.logs)
        newest = max((count for count, _, _, _ in logs), default=-1)
        return [pid for count, _, pid, _ in logs if count == newest and newest > above]

    def await_moment(self, kill):
        """Ranks that make their process group, a step, or a save in its middle."""
        e2e.wait_for(lambda: len(self.workers()) == 4, 60, "four workers", self.fx.describe)
        if kill.moment == "init":
            e2e.wait_for(lambda: sum("joins" in text for _, _, _, text in worker_logs(self.logs)) >= kill.reached, 60,
                         f"{kill.reached} ranks that join", self.fx.describe)
            return
        e2e.wait_for(lambda: max(epochs_of(worker_logs(self.logs), 0), default=-1) >= kill.reached, 60, f"epoch {kill.reached}",
                     self.fx.describe)
        if kill.moment == "save":
            e2e.wait_for(lambda: glob.glob(self.checkpoint + ".*.tmp"), 20, "a save in progress", self.fx.describe, every=0)
        else:
            time.sleep(kill.delay_s)

    def kill_worker(self, which):
        os.kill(self.workers()[which], signal.SIGKILL)

    def judge(self, lost_node):
        """What must hold after the job succeeded."""
        logs = worker_logs(self.logs)
        last = max(count for count, _, _, _ in logs)
        self.assertGreaterEqual(last, 1, "nothing was restarted")
        highest = -1
        for restarts in range(last + 1):
            epochs = epochs_of(logs, restarts)
            if epochs:
                self.assertGreaterEqual(min(epochs), highest - 1, f"restart {restarts} fell back too far")
                self.assertLessEqual(min(epochs), highest + 1, f"restart {restarts} skipped epochs")
                highest = max(highest, max(epochs))
        self.assertEqual(highest, EPOCHS - 1)
        for count, rank, pid, text in logs:
            self.assertIn("start old=[]", text, f"rank {rank} (pid {pid}) of restart {count} met processes of the one before")
        self.judge_ranks(logs)
        size = self.RANKS if lost_node else 2 * self.RANKS
        self.assertEqual([rank for count, rank, _, text in logs if count == last and "done" in text], list(range(size)))
        for mine, wanted in zip(parameters(logs), self.undisturbed(), strict=True):
            self.assertAlmostEqual(mine, wanted, delta=1e-3)

    def judge_ranks(self, logs):
        """Where a rank's node survived, and the next world still has that rank, it is the same process slot there."""
        starts = sorted({count for count, _, _, _ in logs})
        first, last = ({agent for agent, _ in places(logs, count)[0].values()} for count in (starts[0], starts[-1]))
        self.assertTrue(first & last, "no node survived")
        for before, after in zip(starts, starts[1:]):
            (old, _), (new, world) = places(logs, before), places(logs, after)
            survivors = {agent for agent, _ in new.values()}
            stay = {rank: place for rank, place in old.items() if rank < world and place[0] in survivors}
            self.assertEqual({rank: new.get(rank) for rank in stay}, stay, f"ranks of restart {before} moved in restart {after}")


class Launched(Training):
    def launch(self, name, port):
        return self.fx.regroup("run", "--nnodes", "1:2", "--nproc-per-node", "2", "--max-restarts", "3", "--rdzv-endpoint",
                               f"127.0.0.1:{port}", "--node-name", name, *self.arguments(),
                               env={"PYTHON_EXEC": self.python})

    def one_seed(self, seed):
        kill = kill_of("run", seed)
        port = e2e.free_port()
        launchers = [self.launch(name, port) for name in ("node0", "node1")]
        self.await_moment(kill)
        if kill.victim == "node":
            self.fx.expects_run_directories = True
            launcher = launchers.pop(kill.which)
            e2e.kill_tree(launcher.pid, sparing="coordinator")
            launcher.kill()
        else:
            self.kill_worker(kill.which)
        self.let_end()
        for launcher in launchers:
            self.assertEqual(launcher.wait(120), 0, f"seed {seed}, {kill}: {launcher}")
        self.judge(kill.victim == "node")


class Submitted(Training):
    def agent(self, name):
        return self.fx.service(e2e.binary("regroup"), "agent", "--coordinator", f"127.0.0.1:{self.port}", "--node-name", name,
                               "--slots", "2", "--state-dir", self.fx.path("state", name))

    def setUp(self):
        super().setUp()
        self.port = e2e.free_port()
        state = self.fx.path("state", "c")
        self.coordinator = self.fx.service(e2e.binary("regroup"), "coordinator", "--listen", f"127.0.0.1:{self.port}",
                                           "--state-dir", state)
        self.fx.env["REGROUP_COORDINATOR"] = f"unix:{state}/coordinator-{self.port}/coordinator.sock"
        self.agents = {name: self.agent(name) for name in ("node0", "node1")}
        e2e.wait_for(lambda: self.fx.run("nodes").stdout.count("ready") == 2, 20, "two nodes", self.fx.describe, every=0.1)

    def submit(self, *extra):
        done = self.fx.run("submit", "--nnodes", "1:2", "--nproc-per-node", "2", "--max-restarts", "3", "--name", "train", *extra, "--",
                           self.python, "-u", *self.arguments())
        self.assertEqual(done.code, 0, done)

    def one_seed(self, seed):
        kill = kill_of("submit", seed)
        self.submit()
        self.await_moment(kill)
        if kill.victim == "node":
            self.fx.expects_run_directories = True
            victim = self.agents[f"node{kill.which}"]
            e2e.kill_tree(victim.pid)
            victim.kill()
        else:
            self.kill_worker(kill.which)
        self.let_end()
        waited = self.fx.run("wait", "train", timeout=120)
        self.assertEqual(waited.code, 0, f"seed {seed}, {kill}: {waited}")
        self.judge(kill.victim == "node")


class AgentRestart(Submitted):
    def test_agent_of_group_rank_0_is_killed_and_comes_back(self):
        """Same pids go on; a new process group and the store work afterwards: the store outlived the agent."""
        go = self.fx.path("work", "go")
        done = self.fx.run("submit", "--nnodes", "2", "--nproc-per-node", "2", "--name", "probe", "--", self.python, "-u", PROBE,
                           "--log-dir", self.logs, "--go", go)
        self.assertEqual(done.code, 0, done)
        said = lambda word: sum(word in text for _, _, _, text in worker_logs(self.logs))  # noqa: E731
        e2e.wait_for(lambda: said("ready") == 4, 60, "four ranks ready", self.fx.describe)
        before = sorted(self.workers())
        host = "node0"  # Group rank 0 of a first formation: natural order of names.
        self.agents[host].kill()
        time.sleep(1)
        self.agents[host] = self.agent(host)
        e2e.wait_for(lambda: self.fx.run("nodes").stdout.count("ready") == 2, 20, "both nodes again", self.fx.describe, every=0.1)
        open(go, "w").close()
        waited = self.fx.run("wait", "probe", timeout=60)
        self.assertEqual(waited.code, 0, waited)
        self.assertEqual(said("done"), 4)
        self.assertEqual(sorted(self.workers()), before, "workers were restarted")


class Seeds(unittest.TestCase):
    def test_few_seeds_kill_everything_at_every_moment(self):
        """Both victims in both ways; all moments; node and rank 0, which saves, where a survivor keeps its ranks."""
        kills = {way: [kill_of(way, seed) for seed in seeds] for way, seeds in FEW.items()}
        for way, chosen in kills.items():
            self.assertEqual({kill.victim for kill in chosen}, {"worker", "node"}, way)
        chosen = kills["run"] + kills["submit"]
        self.assertEqual({kill.moment for kill in chosen}, set(MOMENTS))
        self.assertIn(("save", "worker", 0), {(kill.moment, kill.victim, kill.which) for kill in chosen})
        self.assertEqual({kill.which for kill in chosen if kill.victim == "node"}, {0, 1})


def add_seeds(seeds):
    for way, case in (("run", Launched), ("submit", Submitted)):
        for seed in seeds[way]:
            setattr(case, f"test_seed_{seed:02d}", lambda self, seed=seed: self.one_seed(seed))


if __name__ == "__main__":
    chosen = FEW
    if "--seeds" in sys.argv:
        at = sys.argv.index("--seeds")
        chosen = dict.fromkeys(FEW, range(*map(int, sys.argv[at + 1].split(":"))))
        del sys.argv[at:at + 2]
    add_seeds(chosen)
    # The seeded tests belong to the two classes they were made for, not to what derives from them.
    for name in [n for n in dir(AgentRestart) if n.startswith("test_seed_")]:
        setattr(AgentRestart, name, None)
    e2e.main()
