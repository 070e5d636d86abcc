"""Rows of the coordinator as a service: killed and back, a fleet of logical agents, durable submits."""
import json
import multiprocessing
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time

import world as w
import cluster as cl  # world knows where it is

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "hostile"))
import heartbeats  # noqa: E402
import http2  # noqa: E402
from row import Row, Unavailable


def daemon_cluster(bin_dir, agents):
    folder = tempfile.mkdtemp(prefix="rg-bench-")
    cluster = cl.Cluster(bin_dir, folder)
    os.mkdir(os.path.join(folder, "marks"))
    cluster.start_coordinator()
    for i in range(agents):
        cluster.start_agent(f"n{i}")
    return cluster


def ready_nodes(cluster):
    shown = cluster.read("nodes")
    return 0 if shown is None else sum(node["state"] == "ready" for node in shown["nodes"])


def coordinator_killed(reattach, n=20, agents=8):
    """Time to the first answered `ps`, or until every node is attached again and `ps` shows the job running."""
    def measure(bin_dir):
        cluster = daemon_cluster(bin_dir, agents)
        samples = []
        try:
            w.wait_for("all agents to attach", lambda: ready_nodes(cluster) == agents, 20, 0.02)
            done = cluster.call("submit", "--nnodes", str(agents), "--name", "bench", "--",
                                os.path.join(bin_dir, "noop_worker"), os.path.join(cluster.folder, "marks"))
            if done.returncode != 0:
                raise RuntimeError(done.stderr)
            running = lambda: (cluster.read("ps") or {"jobs": [{}]})["jobs"][0].get("state") == "running"  # noqa: E731
            w.wait_for("the job to run", running, 20, 0.02)
            pids = {r: p for (g, r), (p, _) in w.times(os.path.join(cluster.folder, "marks"), ".start").items()}
            for _ in range(n):
                cluster.coordinator.kill()
                cluster.coordinator.wait()
                killed = time.monotonic()
                cluster.start_coordinator()
                w.wait_for("an answer", lambda: cluster.read("ps") is not None, 20)
                if reattach:
                    w.wait_for("every agent", lambda: ready_nodes(cluster) == agents and running(), 20)
                samples.append(time.monotonic() - killed)
                time.sleep(0.3)
            if {r: p for (g, r), (p, _) in w.times(os.path.join(cluster.folder, "marks"), ".start").items()} != pids:
                raise RuntimeError("workers were restarted by the coordinator's death")
        finally:
            cluster.close()
            shutil.rmtree(cluster.folder, ignore_errors=True)
        what = f"all of {agents} agents ready and `ps` shows the job running" if reattach else "the first `ps` answered"
        return samples, f"coordinator SIGKILLed and started again at once, until {what}; polls included; workers' pids unchanged"
    return measure


def program(name, *arguments):
    """A benchmark written in C++ that prints one JSON line: {"samples": […], "setup": "…"}."""
    def measure(bin_dir):
        path = os.path.join(bin_dir, name)
        if not os.path.exists(path):
            raise Unavailable(f"{name} was not built")
        with tempfile.TemporaryDirectory(prefix="rg-bench-") as folder:
            done = subprocess.run([path, *[a.format(folder=folder, bin=bin_dir) for a in arguments]], capture_output=True, text=True, timeout=600)
        if done.returncode != 0:
            raise RuntimeError(f"exit {done.returncode}: {done.stderr[-500:]}")
        line = json.loads(done.stdout.strip().splitlines()[-1])
        return line["samples"], line["setup"]
    return measure


MANY = ("4096,4096,1808",)  # Over TCP, with a proof.


def fleet(jobs, *arguments):
    return program("bench_fleet", "--bin-dir", "{bin}", "--folder", "{folder}", "--jobs", jobs, *arguments)


def store_clients(bin_dir):
    python = os.environ.get("REGROUP_TEST_PYTHON")
    if not python:
        raise Unavailable("REGROUP_TEST_PYTHON names no PyTorch (./dev bench sets it)")
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "store_clients.py")
    return program("bench_store", "--bin-dir", "{bin}", "--folder", "{folder}", "--python", python, "--script", script)(bin_dir)


def heartbeats_beside_lists(bin_dir, jobs=10_000, agents=100, seconds=40):
    """`ps -a`, again and again, while agents are answered."""
    folder = tempfile.mkdtemp(prefix="rg-bench-")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    coordinator = subprocess.Popen([os.path.join(bin_dir, "regroup"), "coordinator", "--insecure", "--state-dir", folder,
                                    "--listen", f"127.0.0.1:{port}"], stderr=subprocess.DEVNULL)
    ours, theirs = multiprocessing.Pipe()
    prober = multiprocessing.Process(target=heartbeats.probe, args=(port, agents, theirs))
    try:
        w.wait_for("the coordinator to listen", lambda: socket.socket().connect_ex(("127.0.0.1", port)) == 0, 10)
        with http2.Connection(("127.0.0.1", port), window=1 << 30) as client:
            client.send(http2.frame(http2.WINDOW, 0, (1 << 30).to_bytes(4, "big")))
            for i in range(jobs):
                answer = client.call("Submit", http2.submit_request(f"key-{i}", f"job-{i}", ["true"], nodes=1000))
                if not answer or not answer[0]:
                    raise RuntimeError(f"job {i} was not taken: {answer}")
            prober.start()
            theirs.close()
            time.sleep(5)
            begun, lists = time.monotonic(), 0
            while time.monotonic() < begun + seconds:
                answer = client.call("Read", http2.read_request(ended=True))
                if not answer or len(answer[0]) < 100 * jobs:
                    raise RuntimeError("a list was not answered")
                lists += 1
            took = time.monotonic() - begun
        ours.send("the end")
        beats = ours.recv()
        prober.join()
        windows = [heartbeats.p99([beat for beat in beats if i * took / 5 <= beat[0] - begun < (i + 1) * took / 5]) for i in range(5)]
        return windows, (f"99 of 100 heartbeats of {agents} agents, in each of 5 windows of {took / 5:.0f} s, from its first byte to its answer, "
                         f"while one reader asks for all {jobs} jobs without a pause: {lists} lists of {len(answer[0]) / 1e6:.1f} MB")
    finally:
        coordinator.kill()
        coordinator.wait()
        if prober.is_alive():
            prober.kill()
            prober.join()
        shutil.rmtree(folder, ignore_errors=True)


ROWS = [
    Row("coordinator killed, answering", "s", 0.3, 0.1, coordinator_killed(False)),
    Row("coordinator killed, all re-attached", "s", 1.0, 0.3, coordinator_killed(True)),
    Row("1000 agents joined to formed", "s", 2.0, 1.0, fleet("1000")),
    Row("10000 agents in three jobs, joined to formed", "s", 10.0, 5.0, fleet(*MANY)),
    Row("heartbeats of 10000 agents at 1 Hz", "cores", 0.30, 0.25, fleet(*MANY, "--what", "cpu", "--repeats", "1")),
    Row("heartbeats of 10000 agents, over what gRPC alone takes", "x", 1.3, 1.1, fleet(*MANY, "--what", "floor", "--repeats", "1")),
    Row("memory of a coordinator for each of 10000 agents", "KiB", 140.0, 100.0,
        fleet(*MANY, "--what", "kib", "--repeats", "1")),
    *[Row(f"core: {what}", "s", ship, aim, program("bench_core", "--case", case)) for what, case, ship, aim in (
        ("a gang of 1000 over 10000 free nodes", "gang", 0.02, 0.01),
        ("1000 elastic jobs are admitted", "admission", 0.3, 0.1),
        ("400 of 4000 nodes are lost together", "lost", 0.3, 0.1),
        ("a job of 4 ends beside 400 that could grow", "elastic", 0.05, 0.01),
        ("1000 of 10000 nodes become free for a queued job", "queued", 0.2, 0.05))],
    *[Row(f"core: a job of 4096 is {case}", "s", 0.3, 0.1, program("bench_core", "--case", case))
      for case in ("launched", "voided", "restarted", "returned", "recovered", "grown", "reclaimed", "finished", "failed", "cancelled")],
    *[Row(f"core: longest step, {case}", "s", 0.02, 0.005, program("bench_core", "--case", case, "--longest"))
      for case in ("gang", "admission", "lost", "elastic", "queued")],
    Row("4000 clients of a store and 64 of PyTorch", "s", 2.0, 0.5, store_clients, judged="max"),
    Row("a heartbeat beside lists of 10000 jobs, p99", "s", 0.02, 0.005, heartbeats_beside_lists),
    Row("a coordinator's start over 10000 ended jobs and 1000 running", "s", 1.0, 0.3,
        program("bench_recovery", "--bin-dir", "{bin}", "--folder", "{folder}")),
    Row("durable submits", "1/s", 1000, 2000, program("bench_submits", "--bin-dir", "{bin}", "--folder", "{folder}", "--clients", "32"),
        higher_is_better=True),
]
