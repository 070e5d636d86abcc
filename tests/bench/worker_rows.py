"""Rows of the native worker: the training step against PyTorch, collectives against Gloo, aborts."""
import json
import os
import subprocess

from row import Row, Unavailable

HERE = os.path.dirname(os.path.abspath(__file__))
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


ROWS = [
    Row("train step against PyTorch", "x", 1.8, 2.3, train_step(), higher_is_better=True),
    Row("all-reduce 64 MiB, 2 ranks", "s", 0.015, 0.007, collective("allreduce_64MiB", "--only", "allreduce_64MiB")),
    Row("all-reduce 1 KiB, 2 ranks", "s", 20e-6, 5e-6, collective("allreduce_1KiB", "--only", "allreduce_1KiB")),
    Row("all-reduce 64 MiB between 2 hosts against Gloo", "x", 1.0, 0.7, against_gloo("hosts_64MiB")),
    Row("abort to every rank back, 3 ranks", "s", 0.02, 0.005, collective("abort", "--only", "abort")),
    Row("peer killed to every survivor back, 3 ranks", "s", 0.05, 0.025, collective("peer_killed", "--only", "peer_killed")),
]
