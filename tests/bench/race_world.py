"""Jobs of any launcher on this machine: the same no-op worker, the same question "do all ranks run?", exact times.

A job is whole when the live workers are ranks 0 … W-1 of one world of W, all started after what happened to it. A
launcher that takes longer than BOUND is said to be never done.
"""
import dataclasses
import math
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import world as w
import cluster as cl  # world knows where it is

BOUND = 60.0
NEVER = math.inf


@dataclasses.dataclass(frozen=True)
class Launcher:
    """How one launcher, with one choice of settings, is told to run `world`'s node i."""
    name: str
    program: tuple
    conf: str = ""

    def command(self, world, i, worker):
        nodes = ["--nnodes", world.nnodes, "--nproc-per-node", "1", "--max-restarts", "100000"]
        if world.nnodes == "1":
            return [*self.program, *nodes, "--no-python", *worker]
        conf = self.conf
        if world.store or world.hosts:  # Where a host's own name does not resolve it can't find out by itself.
            conf = ",".join(filter(None, [conf, f"is_host={'true' if i == 0 and not world.store else 'false'}"]))
        return [*self.program, *nodes, "--rdzv-backend", "c10d", "--rdzv-endpoint", f"{world.address}:{world.port}", "--rdzv-id", "race",
                "--local-addr", world.address_of(i), *(["--rdzv-conf", conf] if conf else []), "--no-python", *worker]

    def endpoint(self, world):
        """A rendezvous store on no node of the job."""
        code = ("import sys, time; from torch.distributed import TCPStore\n"
                "store = TCPStore('127.0.0.1', int(sys.argv[1]), is_master=True, wait_for_workers=False)\n"
                "time.sleep(100000)")
        return [os.environ["REGROUP_TEST_PYTHON"], "-c", code, str(world.port)]


@dataclasses.dataclass(frozen=True)
class Regroup(Launcher):
    def command(self, world, i, worker):
        command = [*self.program, "run", "-q", "--nproc-per-node", "1", "--max-restarts", "100000",
                   "--state-dir", os.path.join(world.folder, f"n{i}"), *world.extra]
        if world.nnodes != "1":
            command += ["--nnodes", world.nnodes, "--rdzv-endpoint", f"{world.address}:{world.port}", "--rdzv-id", "race",
                        "--node-name", f"n{i}"]
        return [*command, "--no-python", *worker]

    def endpoint(self, world):
        return [*self.program, "coordinator", "--listen", f"127.0.0.1:{world.port}", "--state-dir", os.path.join(world.folder, "c")]


class Race:
    """The worlds of one measurement, open at once. Leaves no process and no file."""

    def __init__(self, bin_dir):
        self.bin_dir, self.worlds = bin_dir, []

    def world(self, launcher, nodes, **options):
        self.worlds.append(World(self.bin_dir, launcher, nodes, **options))
        return self.worlds[-1]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        ours = [p for world in self.worlds if isinstance(world.launcher, Regroup) for p in world.launchers.values()]
        for launcher in ours:
            if launcher.poll() is None:
                launcher.send_signal(signal.SIGINT)
        deadline = time.monotonic() + 3
        while time.monotonic() < deadline and any(p.poll() is None for p in ours):
            time.sleep(0.01)
        cl.kill_descendants()
        for world in self.worlds:
            cl.remove_run_directories(world.folder)
            shutil.rmtree(world.folder, ignore_errors=True)


class World:
    """One job of up to `nodes` nodes, each a launch command in a session of its own."""

    def __init__(self, bin_dir, launcher, nodes, nnodes=None, extra=(), store=False, hosts=None):
        self.launcher, self.nodes, self.nnodes, self.extra = launcher, nodes, nnodes or str(nodes), list(extra)
        self.store, self.hosts = store, hosts
        self.address = hosts[0].ipv4 if hosts else "127.0.0.1"
        self.folder = tempfile.mkdtemp(prefix="rg-race-")
        self.marks = os.path.join(self.folder, "marks")
        os.mkdir(self.marks)
        self.worker = [os.path.join(bin_dir, "noop_worker"), self.marks]
        self.port = cl.free_port()
        self.launchers, self.workers, self.gone = {}, {}, set()  # workers: pid → (rank, world size, node, started)
        if store:
            self._spawn("store", launcher.endpoint(self))
            self.await_port()

    def address_of(self, i):
        return self.hosts[i].ipv4 if self.hosts else "127.0.0.1"

    def _spawn(self, name, command):
        drop = ("REGROUP_", "TORCHELASTIC_", "PET_", "MASTER_")
        environment = {k: v for k, v in os.environ.items() if not k.startswith(drop)}
        environment.update(TMPDIR=self.folder, RACE_NODE=name, PYTHONWARNINGS="ignore")
        with open(os.path.join(self.folder, f"{name}.log"), "ab") as out:
            return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
                                    cwd=self.folder)

    def await_port(self):
        """Until somebody listens at the endpoint: its host is then decided."""
        wanted = f"{self.port:04X}"

        def listening():
            pid = next((p.pid for p in self.launchers.values()), os.getpid())
            if not cl.alive(pid):
                raise RuntimeError(f"{self.launcher.name} ended:\n{self.logs()}")
            with open(f"/proc/{pid}/net/tcp", encoding="ascii") as tcp, open(f"/proc/{pid}/net/tcp6", encoding="ascii") as tcp6:
                return any(line.split()[1].endswith(":" + wanted) and line.split()[3] == "0A" for line in [*tcp, *tcp6])
        w.wait_for(f"somebody to listen on port {self.port}", listening, BOUND, 0.01)

    def launch_one(self, i):
        """CLOCK_MONOTONIC seconds just before the launch command is started."""
        begun = time.monotonic()
        command = self.launcher.command(self, i, self.worker)
        self.launchers[i] = self._spawn(str(i), self.hosts[i].command(*command) if self.hosts else command)
        return begun

    def launch(self, host_first=False):
        begun = self.launch_one(0)
        if host_first and not self.store:
            self.await_port()
        for i in range(1, self.nodes):
            self.launch_one(i)
        return begun

    def look(self):
        """Reads what new workers have written: pid → (rank, world size, node, started)."""
        for name in os.listdir(self.marks):
            pid = int(name.split(".")[2])
            if name.endswith(".start") and pid not in self.workers:
                environment = environment_of(pid)
                with open(os.path.join(self.marks, name), encoding="ascii") as f:
                    self.workers[pid] = (int(name.split(".")[1]), int(environment.get("WORLD_SIZE", 0)), environment.get("RACE_NODE"),
                                         int(f.read()) / 1e9)
        return self.workers

    def live(self):
        found = {pid: worker for pid, worker in self.look().items() if pid not in self.gone and cl.alive(pid)}
        self.gone.update(self.workers.keys() - found.keys())
        return found

    def formed(self):
        """How often a world was formed: every one starts a rank 0."""
        return sum(rank == 0 for rank, *_ in self.look().values())

    def whole(self, size=None, after=0.0):
        """{rank: (pid, node, started)} when all ranks of one world run, all since `after`; else None."""
        found = [(rank, pid, world, node, started) for pid, (rank, world, node, started) in self.live().items() if started > after]
        worlds = {world for _, _, world, _, _ in found}
        if len(worlds) != 1 or sorted(r for r, *_ in found) != list(range(len(found))) or len(found) != min(worlds):
            return None
        return {rank: (pid, node, started) for rank, pid, _, node, started in found} if size in (None, len(found)) else None

    def await_whole(self, size, after=0.0, bound=BOUND, pause=0.003):
        """The same, or None when that did not happen within `bound` seconds."""
        deadline = time.monotonic() + bound
        while time.monotonic() < deadline:
            ranks = self.whole(size, after)
            if ranks:
                return ranks
            cl.reap()
            time.sleep(pause)
        return None

    def began(self, size, bound=2 * BOUND):
        """All `size` ranks run, or this measurement makes no sense."""
        ranks = self.await_whole(size, bound=bound)
        if ranks is None:
            raise RuntimeError(f"{self.launcher.name}: {size} ranks did not start within {bound:.0f} s\n{self.logs()}")
        return ranks

    def node_processes(self, i):
        """Launcher and all it started on node i, except a coordinator, which would be elsewhere."""
        pid = self.launchers[i].pid
        return [p for p in [pid, *cl.descendants(pid)] if " coordinator " not in cl.command_of(p)]

    def strike(self, i, number):
        """Every process of a node gets that signal; the moment just after the last."""
        for pid in self.node_processes(i):
            cl.kill(pid, number)
        return time.monotonic()

    def logs(self):
        text = ""
        for name in sorted(os.listdir(self.folder)):
            if name.endswith(".log"):
                with open(os.path.join(self.folder, name), errors="replace", encoding="utf-8") as f:
                    text += f"--- {name}\n" + f.read()[-1500:]
        return text


def environment_of(pid):
    try:
        with open(f"/proc/{pid}/environ", "rb") as f:
            return dict(item.split("=", 1) for item in f.read().decode(errors="replace").split("\0") if "=" in item)
    except OSError:
        return {}


def cpu_seconds_of_children():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def pss_mb(pids):
    total = 0.0
    for pid in pids:
        with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as f:
            total += next(int(line.split()[1]) / 1024 for line in f if line.startswith("Pss:"))
    return total


def free_memory_mb():
    with open("/proc/meminfo", encoding="ascii") as f:
        return next(int(line.split()[1]) // 1024 for line in f if line.startswith("MemAvailable:"))


def say(text):
    print(text, file=sys.stderr, flush=True)
