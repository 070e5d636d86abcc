"""Rows of the launch path: start, worker killed, node killed, memory. No-op workers, real processes."""
import os
import signal
import time

import world as w
import cluster as cl  # world knows where it is
from row import Row, Unavailable  # noqa: F401

cl.become_subreaper()


def start(nodes, n):
    def measure(bin_dir):
        samples = []
        for _ in range(n):
            with w.World(bin_dir, nodes) as world:
                begun = world.launch()
                _, ranks = world.running(0, nodes)
                samples.append(max(s for _, s in ranks.values()) - begun)
        return samples, f"exec of the first of {nodes} `regroup run` to the last worker's first instruction, fresh state"
    return measure


def worker_killed(nodes, n):
    def measure(bin_dir):
        samples = []
        with w.World(bin_dir, nodes) as world:
            world.launch()
            generation, ranks = world.running(0, nodes)
            for i in range(n):
                time.sleep(0.05)  # The reported step reaches the coordinator: training between two failures.
                died = w.exit_time(ranks[i % nodes][0])
                generation, ranks = world.running(generation, nodes)
                samples.append(max(s for _, s in ranks.values()) - died)
                world.forget_marks(generation)
        return samples, f"kernel's exit event of a SIGKILLed worker to the last of {nodes} new workers' first instruction"
    return measure


def survivors_told(nodes, n):
    def measure(bin_dir):
        samples = []
        with w.World(bin_dir, nodes) as world:
            world.launch()
            generation, ranks = world.running(0, nodes)
            for i in range(n):
                time.sleep(0.02)
                before = generation
                victim = i % nodes
                died = w.exit_time(ranks[victim][0])
                generation, ranks = world.running(before, nodes)
                stops = {r: s for (g, r), (_, s) in w.times(world.marks, ".stop").items() if g == before}
                if len(stops) != nodes - 1:
                    raise RuntimeError(f"{len(stops)} of {nodes - 1} survivors saw SIGTERM in generation {before}")
                samples.append(max(stops.values()) - died)
                world.forget_marks(generation)
        return samples, (f"kernel's exit event to SIGTERM in the last survivor's worker (later than its agent being told), {nodes} nodes")
    return measure


def node_killed(silent, n):
    def measure(bin_dir):
        samples = []
        for _ in range(n):
            with w.World(bin_dir, 3, minimum=2) as world:
                world.launch()
                generation, _ = world.running(0, 3)
                time.sleep(0.3)
                agent, shims, workers = world.processes_of(2)
                victims = [agent, *shims, *workers]
                for pid in victims:
                    os.kill(pid, signal.SIGSTOP if silent else signal.SIGKILL)
                died = time.monotonic()
                _, ranks = world.running(generation, 2)
                samples.append(max(s for _, s in ranks.values()) - died)
                for pid in victims:
                    cl.kill(pid)
        how = "SIGSTOPped (ports complete handshakes, nothing is read)" if silent else "SIGKILLed"
        return samples, f"agent, shim and worker of one of 3 nodes {how} to the last of 2 new workers' first instruction, nnodes 2:3"
    return measure


def pss_mb(pid):
    with open(f"/proc/{pid}/smaps_rollup") as f:
        for line in f:
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1024
    raise RuntimeError(f"no Pss of {pid}")


def memory(with_coordinator):
    def measure(bin_dir):
        with w.World(bin_dir, 2) as world:
            world.launch()
            world.running(0, 2)
            time.sleep(2)
            agent, shims, _ = world.processes_of(0)
            total = pss_mb(agent) + sum(pss_mb(s) for s in shims)
            if with_coordinator:
                total += pss_mb(world.coordinator())
        what = "agent, shim, store" + (", coordinator" if with_coordinator else "")
        return [total], f"PSS of {what} of the store's node while a 2-node job runs"
    return measure


ROWS = [
    Row("start 1 node", "s", 0.1, 0.04, start(1, 20)),
    Row("start 8 nodes", "s", 0.3, 0.12, start(8, 10)),
    Row("start 16 nodes", "s", 0.6, 0.3, start(16, 5)),
    Row("worker killed 1 node", "s", 0.025, 0.01, worker_killed(1, 40)),
    Row("worker killed 8 nodes", "s", 0.06, 0.025, worker_killed(8, 40)),
    Row("survivors told 8 nodes", "s", 0.03, 0.02, survivors_told(8, 200), judged="p99"),
    Row("node killed, host answers", "s", 0.5, 0.2, node_killed(False, 10)),
    Row("node killed, host silent", "s", 6.0, 5.5, node_killed(True, 3)),
    Row("memory of a node", "MB", 25, 15, memory(False)),
    Row("memory of a node with the coordinator", "MB", 45, 30, memory(True)),
]
