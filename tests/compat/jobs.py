"""One job of the matrix: a script, started by the same command on each of its nodes, watched from outside."""
import os
import re
import signal
import subprocess
import threading
import unittest

import regroup_e2e as e2e
from fixture import processes
from matrix import LAUNCHES, SCRIPTS

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "scripts")
_STARTING = threading.Lock()  # Cells run side by side in one place.
_FINISHED = re.compile(r"finished rank=(\d+) world=(\d+)")


def python_for(script):
    """The interpreter for a script; skips the test where it lacks a package that the script needs."""
    python = e2e.torch_python()
    if script.needs and not importable(python, script.needs):
        raise unittest.SkipTest(f"no {script.needs} in {python} (./dev compat installs it into a PyTorch of its own)")
    return python


def importable(python, package):
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({package!r}) is None)"
    return subprocess.run([python, "-c", code], check=False).returncode == 0


class Job:
    """`lines` of its launch are given `arguments` for the script. Programs run in a folder of the job's own, called `name`."""

    def __init__(self, fx, script, launch, name, arguments=(), host="127.0.0.1", warm=False):
        self.fx, self.script, self.launch = fx, SCRIPTS[script], LAUNCHES[launch]
        self.arguments, self.host, self.warm = list(map(str, arguments)), host, warm
        self.python = python_for(self.script)
        self.path = os.path.join(FOLDER, self.script.file)
        self.port, self.name = e2e.free_port(host), name
        self.folder = fx.path("work", self.name)
        os.mkdir(self.folder)
        self.programs = []

    def start(self, node):
        endpoint = f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
        line = self.launch.lines.format(node=node, host=self.host, port=self.port, endpoint=endpoint, id=self.name)
        if self.warm:
            line = line.replace(" --", " --warm --", 1)
        with _STARTING:
            program = start_line(self.fx, line, [self.path, *self.arguments], self.python, self.folder)
        self.programs.append(program)
        return program

    def end(self):
        """Whatever of it still runs."""
        for program in self.programs:
            if program.code is None:
                e2e.kill_tree(program.pid)
                program.kill()

    def describe(self):
        return "\n".join(map(str, self.programs))

    @property
    def stdout(self):
        return "".join(program.stdout for program in self.programs)

    def start_nodes(self, nodes=None):
        """Starts the first `nodes` of them, or all; returns the size of their world."""
        nodes = nodes or self.launch.nodes
        for node in range(nodes):
            self.start(node)
        return nodes * self.launch.per_node

    def count(self, pattern):
        return len(re.findall(pattern, self.stdout))

    def await_another(self, pattern):
        said = self.count(pattern)
        self.await_true(lambda: self.count(pattern) > said, pattern)

    def await_true(self, look, what):
        def looked():
            for program in self.programs:
                if program.code not in (0, None, -signal.SIGKILL):  # Which is ours.
                    raise RuntimeError(f"failed while waiting for {what}: {program}")
            return look()
        return e2e.wait_for(looked, 120, what, self.describe, every=0.1)

    def ranks(self):
        """(generation, {rank: process}, world size) of the newest generation; (0, {}, 0) when none runs."""
        found = []
        for info in self.fx.processes(self.path):
            parent = processes.read(info.ppid)
            try:
                if parent and parent.argv[0].endswith("regroup-shim") and os.readlink(f"/proc/{info.pid}/cwd") == self.folder:
                    environment = e2e.environment(info.pid)
                    found.append((int(environment["REGROUP_GENERATION"]), int(environment["RANK"]), environment, info))
            except (OSError, LookupError):
                continue  # It has just gone, or has not quite come.
        newest = max((generation for generation, *_ in found), default=0)
        ranks = {rank: info for generation, rank, _, info in found if generation == newest}
        world = max((int(environment["WORLD_SIZE"]) for generation, _, environment, _ in found if generation == newest), default=0)
        return newest, ranks, world

    def running(self, world, above=0):
        """(generation, {rank: process}) once all `world` ranks of a generation above `above` run."""
        def look():
            generation, ranks, size = self.ranks()
            return (generation, ranks) if generation > above and size == world == len(ranks) else None
        return self.await_true(look, f"{world} ranks of a generation above {above}")

    def finished(self):
        """[(rank, world size)] of the ranks that came to their end, in order."""
        return sorted((int(rank), int(world)) for rank, world in _FINISHED.findall(self.stdout))


def start_line(fx, line, words, python, folder):
    """Starts a command line as a tutorial has it, with `words` behind it."""
    return fx.start(*line.split(), *words, cwd=folder, env={"PYTHON_EXEC": python, "HF_HUB_OFFLINE": "1"})


def with_children(infos):
    """Pids of these processes and all below them."""
    return [pid for info in infos for pid in (info.pid, *(child.pid for child in e2e.descendants(info.pid)))]
