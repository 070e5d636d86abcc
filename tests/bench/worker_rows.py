"""Rows of the native worker: the training step against PyTorch, collectives against Gloo, aborts."""
import json
import os
import re
import statistics
import shutil
import subprocess
import sys
import tempfile

from row import Row, Unavailable

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "e2e"))
import hosts  # noqa: E402 (the path has to come first)

TUNED = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "100000000000"}


def json_lines(command, environment=None, timeout=600):
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment)
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]}: exit {done.returncode}: {done.stderr[-400:]}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def train_step(rounds=3):
    """Ratio of PyTorch's best step to ours, one ratio per interleaved round; the loss curves must agree."""
    def measure(bin_dir):
        python = os.environ.get("REGROUP_TEST_PYTHON")
        if not python:
            raise Unavailable("REGROUP_TEST_PYTHON names no PyTorch (./dev bench sets it)")
        ours = [os.path.join(bin_dir, "bench_train_step"), "--steps", "12", "--warmup", "3", "--threads", "2"]
        theirs = [python, os.path.join(HERE, "torch_step.py"), "--steps", "12", "--threads", "2"]
        plain = {k: v for k, v in os.environ.items() if k not in TUNED}
        peers = [("eager", [], {}), ("eager, glibc tuned", ["--tuned"], TUNED), ("compiled", ["--compile"], {}),
                 ("compiled, glibc tuned", ["--compile", "--tuned"], TUNED)]
        ratios, best_name = [], ""
        for _ in range(rounds):
            (mine,) = json_lines(ours, plain)
            best, best_name = min((json_lines(theirs + flags, dict(plain, **extra))[-1]["p50"], name) for name, flags, extra in peers)
            ratios.append(best / mine["p50"])
        (peer,) = json_lines(theirs, plain)
        apart = max(abs(a - b) for a, b in zip(mine["losses"], peer["losses"]))
        if not mine["losses"] or apart > 1e-3:
            raise RuntimeError(f"the loss curves differ by {apart}")
        return ratios, (f"6 layers, 384 wide, 6 heads, vocabulary 256, B 8, T 256, fp32 AdamW, 2 threads; p50 of 12 steps, best of "
                        f"eager and compiled, each plain and glibc tuned ({best_name}), interleaved; ours {mine['p50']:.0f} ms; loss curves "
                        f"within {apart:.1e}")
    return measure


def collective(case, *arguments):
    """One line of bench_comm; the same line of Gloo in the same run goes into the set-up where libgloo is there."""
    def measure(bin_dir):
        path = os.path.join(bin_dir, "bench_comm")
        if not os.path.exists(path):
            raise Unavailable("bench_comm was not built")
        lines = {line["name"]: line for line in json_lines([path, *arguments])}
        line = lines[case]
        peer = lines.get(case + " gloo")
        return line["samples"], line["setup"] + (f"; Gloo p50 {peer['p50']:.6f}" if peer else "; no Gloo here")
    return measure


def against_gloo(case, rounds=5):
    """Ratio of our median to Gloo's, one ratio per round."""
    def measure(bin_dir):
        path = os.path.join(bin_dir, "bench_comm")
        if not os.path.exists(path):
            raise Unavailable("bench_comm was not built")
        ratios, ours, theirs, quietest = [], [], [], []
        for _ in range(rounds):
            lines = {line["name"]: line for line in json_lines([path, "--only", case])}
            if case + " gloo" not in lines:
                raise Unavailable("bench_comm was built without Gloo (libgloo-dev)")
            ours.append(lines[case]["p50"])
            theirs.append(lines[case + " gloo"]["p50"])
            ratios.append(ours[-1] / theirs[-1])
            quietest.append(min(lines[case]["samples"]) / min(lines[case + " gloo"]["samples"]))
        return ratios, (f"{lines[case]['setup']}; medians of {rounds} rounds: ours {min(ours) * 1e3:.1f} to {max(ours) * 1e3:.1f} ms, "
                        f"Gloo {min(theirs) * 1e3:.1f} to {max(theirs) * 1e3:.1f} ms; shortest calls of each {min(quietest):.2f} to {max(quietest):.2f} x")
    return measure


def steps_on_two_hosts(bin_dir, pair, name, steps):
    """Seconds of each step but the first three, and bytes that a host sent for it: one rank of one thread on each host."""
    def sent():
        said = subprocess.run(pair[0].command("cat", "/proc/net/dev"), check=True, capture_output=True, text=True).stdout
        return sum(int(line.split(":")[1].split()[8]) for line in said.splitlines() if line.strip().startswith("veth0:"))
    with tempfile.TemporaryDirectory() as folder:
        before, nodes = sent(), []
        for host in pair:
            with open(os.path.join(folder, host.name), "w") as out:
                nodes.append(subprocess.Popen(host.command(
                    os.path.join(bin_dir, "regroup"), "run", "--nnodes", "2", "--insecure", "--rdzv-endpoint", pair[0].ipv4, "--rdzv-id", name,
                    "--state-dir", os.path.join(folder, "state-" + host.name), os.path.join(bin_dir, "regroup-worker"), "train", "--data",
                    "/usr/share/common-licenses", "--steps", str(steps), "--batch", "8", "--micro-batch", "4"),
                    stdout=out, stderr=subprocess.STDOUT, env=dict(os.environ, OMP_NUM_THREADS="1")))
        codes = [node.wait(300) for node in nodes]
        with open(os.path.join(folder, pair[0].name)) as out:
            said = out.read()
        if any(codes):
            raise RuntimeError(f"exit {codes}: {said[-400:]}")
        rates = [float(rate.replace(",", "")) for rate in re.findall(r"([0-9,.]+) tok/s", said)]
        return [8 * 256 / rate for rate in rates[3:]], (sent() - before) / steps


def exposed(rounds=3, steps=15):
    """What a link of 1 Gbit/s adds to a step, as a share of the time that the step's bytes take on it."""
    def measure(bin_dir):
        why = hosts.available() or (None if shutil.which("tc") else "needs the command 'tc'")
        if why:
            raise Unavailable(why)
        shares, words = [], ""
        with hosts.TwoHosts() as pair:
            def shape(what):
                for host in pair:
                    subprocess.run(["ip", "netns", "exec", host.namespace, "tc", "qdisc", what, "dev", "veth0", "root", "tbf", "rate", "1gbit",
                                    "burst", "256kb", "latency", "50ms"], check=True, capture_output=True)
            for i in range(rounds):
                free, _ = steps_on_two_hosts(bin_dir, pair, f"free-{i}", steps)
                shape("add")
                slow, sent = steps_on_two_hosts(bin_dir, pair, f"slow-{i}", steps)
                shape("del")
                on_link = sent * 8 / 1e9
                shares.append((statistics.median(slow) - statistics.median(free)) / on_link)
                words = f"{statistics.median(slow):.2f} s with it, {statistics.median(free):.2f} s without, {on_link:.2f} s for {sent / 1e6:.0f} MB"
        return shares, (f"6 layers, 384 wide (10.7 M weights), B 8, T 256, f32, DDP; 2 network namespaces, 1 rank of 1 thread each, token bucket of "
                        f"1 Gbit/s with 256 KiB; medians of {steps - 3} steps, {rounds} rounds, the last: {words}")
    return measure


ROWS = [
    Row("train step against PyTorch", "x", 1.8, 2.3, train_step(), higher_is_better=True),
    Row("all-reduce 64 MiB, 2 ranks", "s", 0.015, 0.007, collective("allreduce_64MiB", "--only", "allreduce_64MiB")),
    Row("all-reduce 1 KiB, 2 ranks", "s", 20e-6, 5e-6, collective("allreduce_1KiB", "--only", "allreduce_1KiB")),
    Row("all-reduce 64 MiB between 2 hosts against Gloo", "x", 1.0, 0.7, against_gloo("hosts_64MiB")),
    Row("exposed communication of a DDP step between 2 hosts at 1 Gbit/s", "of it", 0.25, 0.1, exposed()),
    Row("abort to every rank back, 3 ranks", "s", 0.02, 0.005, collective("abort", "--only", "abort")),
    Row("peer killed to every survivor back, 3 ranks", "s", 0.05, 0.025, collective("peer_killed", "--only", "peer_killed")),
]
