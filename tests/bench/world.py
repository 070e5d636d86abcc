"""Nodes on loopback for the benchmarks: launch commands or daemon agents, a no-op worker, exact times."""
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "demo"))
import cluster as cl  # noqa: E402


def exit_time(pid, number=signal.SIGKILL):
    """Sends the signal; CLOCK_MONOTONIC seconds at which the kernel announced the exit (pidfd readable)."""
    fd = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(fd, number)
        if not select.select([fd], [], [], 10)[0]:
            raise RuntimeError(f"pid {pid} did not exit within 10 s of signal {number}")
        return time.monotonic()
    finally:
        os.close(fd)


def times(folder, suffix):
    """(generation, rank) -> (pid, seconds) from the no-op workers' files."""
    found = {}
    for name in os.listdir(folder):
        if name.endswith(suffix):
            generation, rank, pid = name[:-len(suffix)].split(".")[:3]
            try:
                with open(os.path.join(folder, name)) as f:
                    found[int(generation), int(rank)] = (int(pid), int(f.read()) / 1e9)
            except (OSError, ValueError):
                continue
    return found


def wait_for(what, condition, seconds=30, pause=0.001):
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise RuntimeError(f"waited {seconds} s for {what}")
        cl.reap()
        time.sleep(pause)


class World:
    """n launch commands of one job, each a node of its own on 127.0.0.1. Leaves no process and no file."""

    def __init__(self, bin_dir, nodes, minimum=None, extra=()):
        self.bin_dir, self.nodes = bin_dir, nodes
        self.minimum = nodes if minimum is None else minimum
        self.extra = list(extra)
        self.folder = tempfile.mkdtemp(prefix="rg-bench-")
        self.marks = os.path.join(self.folder, "marks")
        os.mkdir(self.marks)
        self.port = cl.free_port()
        self.launchers = []

    def launch(self):
        """Starts every launch command; CLOCK_MONOTONIC seconds just before the first exec."""
        started = time.monotonic()
        for i in range(self.nodes):
            self.launchers.append(self.launch_one(i))
        return started

    def launch_one(self, i):
        command = [os.path.join(self.bin_dir, "regroup"), "run", "-q", "--nproc-per-node", "1",
                   "--state-dir", os.path.join(self.folder, f"n{i}"), "--max-restarts", "100000", *self.extra]
        if self.nodes > 1:
            command += ["--nnodes", f"{self.minimum}:{self.nodes}" if self.minimum != self.nodes else str(self.nodes),
                        "--rdzv-endpoint", f"127.0.0.1:{self.port}", "--rdzv-id", "bench", "--node-name", f"n{i}"]
        command += [os.path.join(self.bin_dir, "noop_worker"), self.marks]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("REGROUP_")}
        out = open(os.path.join(self.folder, f"n{i}.log"), "ab")
        return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)

    def running(self, generation_after, world, seconds=30):
        """Waits until one generation above `generation_after` has all its ranks started: (generation, {rank: (pid, s)})."""
        def check():
            starts = times(self.marks, ".start")
            newest = max((g for g, _ in starts), default=0)
            ranks = {r: v for (g, r), v in starts.items() if g == newest}
            return (newest, ranks) if newest > generation_after and len(ranks) == world else None
        try:
            return wait_for(f"{world} ranks of a generation above {generation_after}", check, seconds)
        except RuntimeError as reason:
            raise RuntimeError(f"{reason}\n{self.logs()}") from None

    def logs(self):
        text = ""
        for i in range(self.nodes):
            with open(os.path.join(self.folder, f"n{i}.log"), errors="replace") as f:
                text += f"--- n{i}\n" + f.read()[-1500:]
        return text

    def forget_marks(self, before):
        for name in os.listdir(self.marks):
            if int(name.split(".")[0]) < before:
                os.unlink(os.path.join(self.marks, name))

    def processes_of(self, i):
        """(agent, shims and stores, workers) of launch command i."""
        agent = self.launchers[i].pid
        shims = [c for c in cl.children_of(agent) if "regroup-shim" in cl.command_of(c)]
        return agent, shims, [w for s in shims for w in cl.children_of(s)]

    def coordinator(self):
        for pid in cl.descendants(os.getpid()):
            if " coordinator " in cl.command_of(pid) + " " and pid not in [p.pid for p in self.launchers]:
                return pid
        return None

    def close(self):
        for launcher in self.launchers:
            if launcher.poll() is None:
                launcher.send_signal(signal.SIGINT)
        deadline = time.monotonic() + 3
        while time.monotonic() < deadline and any(p.poll() is None for p in self.launchers):
            time.sleep(0.01)
        cl.kill_descendants()
        cl.remove_run_directories(self.folder)
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
