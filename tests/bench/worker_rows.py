"""Rows of the native worker: the training step against PyTorch, collectives against Gloo, aborts."""
import array
import contextlib
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

from row import Row, Unavailable, cpu_facts

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "e2e"))
import hosts  # noqa: E402 (the path has to come first)

TUNED = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "100000000000"}
SMALL = ("6 layers, 384 wide (10.7 M weights), B 8, T 256", {"batch": 8, "context": 256})
GPT2 = ("12 layers, 768 wide, vocabulary 50257 (124 M weights), B 4, T 64",
        {"batch": 4, "context": 64, "layers": 12, "width": 768, "heads": 12, "vocabulary": 50257})


def flags_of(shape, **more):
    return [word for name, value in {**shape, **more}.items() for word in ("--" + name, str(value))]


def trainer_flags(shape):
    return [*flags_of(shape), "--micro-batch", str(shape["batch"])]


def json_lines(command, environment=None, timeout=600):
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment)
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]}: exit {done.returncode}: {done.stderr[-400:]}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def peers_kernels_are_held_back():
    """PyTorch multiplies floats by MKL, which takes its path for AVX2 on CPUs of AMD, also on those with AVX-512.

    On a Zen with AVX-512 MKL made 150 GFLOP/s of 474 where oneDNN made 395 (PyTorch 2.15, MKL 2024.2); elsewhere both are as good as the CPU.
    """
    facts = cpu_facts()
    return facts.get("vendor_id") == "AuthenticAMD" and "avx512f" in facts.get("flags", "").split()


def train_step(model, rounds=3):
    """Ratio of PyTorch's best step to ours, one ratio per interleaved round; the loss curves must agree."""
    words, shape = model
    flags = flags_of({name: value for name, value in shape.items() if name != "context"}, time=shape["context"], steps=12, threads=2)
    def measure(bin_dir):
        python = os.environ.get("REGROUP_TEST_PYTHON")
        if not python:
            raise Unavailable("REGROUP_TEST_PYTHON names no PyTorch (./dev bench sets it)")
        ours = [os.path.join(bin_dir, "bench_train_step"), "--warmup", "3", *flags]
        theirs = [python, os.path.join(HERE, "torch_step.py"), *flags]
        plain = {k: v for k, v in os.environ.items() if k not in TUNED}
        peers = [("eager", [], {}), ("eager, glibc tuned", ["--tuned"], TUNED), ("compiled", ["--compile"], {}),
                 ("compiled, glibc tuned", ["--compile", "--tuned"], TUNED)]
        ratios, best_name = [], ""
        for _ in range(rounds):
            (mine,) = json_lines(ours, plain)
            best, best_name = min((json_lines(theirs + more, dict(plain, **extra))[-1]["p50"], name) for name, more, extra in peers)
            ratios.append(best / mine["p50"])
        (peer,) = json_lines(theirs, plain)
        apart = max(abs(a - b) for a, b in zip(mine["losses"], peer["losses"]))
        if not mine["losses"] or apart > 1e-3:
            raise RuntimeError(f"the loss curves differ by {apart}")
        return ratios, (f"{words}, fp32 AdamW, 2 threads; p50 of 12 steps, best of eager and compiled, each plain and glibc tuned ({best_name}), "
                        f"interleaved; ours {mine['p50']:.0f} ms; loss curves within {apart:.1e}")
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


def among(cases, case, of, rounds=5):
    """Ratio of the median of one of these cases of bench_comm to that of another, one ratio per round."""
    def measure(bin_dir):
        path = os.path.join(bin_dir, "bench_comm")
        if not os.path.exists(path):
            raise Unavailable("bench_comm was not built")
        taken = {}
        for _ in range(rounds):
            for line in json_lines([path, "--only", cases]):
                taken.setdefault(line["name"].removeprefix(cases + ": "), []).append(line)
        ms = ", ".join(f"{name.split('_')[0]} {statistics.median(line['p50'] for line in lines) * 1e3:.1f}" for name, lines in taken.items())
        return ([mine["p50"] / other["p50"] for mine, other in zip(taken[case], taken[of])],
                f"{taken[case][0]['setup']}; medians of {rounds} rounds; ms: {ms}")
    return measure


def plans(case):
    def measure(bin_dir):
        path = os.path.join(bin_dir, "bench_plan")
        if not os.path.exists(path):
            raise Unavailable("bench_plan was not built")
        (line,) = (line for line in json_lines([path]) if line["name"] == case)
        return line["samples"], line["setup"]
    return measure


def step_deaths(every=7):
    """From the kill of a rank before any piece of work of a step until each of the others is back with whole weights."""
    def measure(bin_dir):
        path = os.path.join(bin_dir, "bench_step_deaths")
        if not os.path.exists(path):
            raise Unavailable("bench_step_deaths was not built")
        kinds = json_lines([path, "--every", str(every)])
        slowest = max(kinds, key=lambda kind: kind["p99"])
        return sum((kind["samples"] for kind in kinds), []), (
            f"{len(kinds)} kinds of plan on 1 to 3 hosts, every {every}th piece of a step of each rank, {sum(kind['killed'] for kind in kinds)} "
            f"killed; 2 layers, 24 wide; slowest kind {slowest['name']}, p99 {slowest['p99'] * 1e3:.1f} ms")
    return measure


@contextlib.contextmanager
def training(bin_dir, ranks, threads, flags, steps):
    """A training of one node that goes on, and the file that it says its steps in."""
    with tempfile.TemporaryDirectory() as folder:
        said, tokens = os.path.join(folder, "said"), os.path.join(folder, "tokens.bin")
        array.array("H", random.Random(1).choices(range(50257), k=1 << 16)).tofile(open(tokens, "wb"))
        data = tokens if "--vocabulary" in flags else "/usr/share/common-licenses"
        with open(said, "w") as out:
            job = subprocess.Popen(
                [os.path.join(bin_dir, "regroup"), "run", "--standalone", "--insecure", "--nproc-per-node", str(ranks), "--state-dir",
                 os.path.join(folder, "state"), os.path.join(bin_dir, "regroup-worker"), "train", "--data", data, "--steps",
                 str(steps), *flags], stdout=out, stderr=subprocess.STDOUT, env=dict(os.environ, OMP_NUM_THREADS=str(threads)))
        try:
            yield job, said
        finally:
            if job.poll() is None:
                job.terminate()
                job.wait(60)


def tokens_per_second(bin_dir, ranks, threads, flags, steps):
    """The median over its steps but the first two."""
    with training(bin_dir, ranks, threads, flags, steps) as (job, said):
        code = job.wait(600)
        with open(said) as out:
            text = out.read()
    rates = [float(rate.replace(",", "")) for rate in re.findall(r"([0-9,.]+) tok/s", text)][2:]
    if code or not rates:
        raise RuntimeError(f"exit {code}: {text[-400:]}")
    return statistics.median(rates)


def ranks_against_threads(model, strategy, rounds=3, steps=10):
    """Ratio of the speed of two ranks of one thread to that of one rank of two."""
    words, flags = model[0], trainer_flags(model[1])
    def measure(bin_dir):
        ratios = []
        for _ in range(rounds):
            one = tokens_per_second(bin_dir, 1, 2, flags, steps)
            two = tokens_per_second(bin_dir, 2, 1, [*flags, "--strategy", strategy], steps)
            ratios.append(two / one)
        return ratios, f"{words}, f32 AdamW, {strategy}; medians of {steps - 2} steps, interleaved; the last {two:.0f} and {one:.0f} tokens/s"
    return measure


def trainer_against_step(rounds=7, steps=24):
    """Ratio of a step of the trainer, alone, to the step without data, vote, log and control."""
    def measure(bin_dir):
        ratios = []
        bare = [os.path.join(bin_dir, "bench_train_step"), "--steps", str(steps), "--warmup", "3", "--threads", "2"]
        for _ in range(rounds):
            whole = 8 * 256 * 1e3 / tokens_per_second(bin_dir, 1, 2, trainer_flags(SMALL[1]), steps)
            (line,) = json_lines(bare)
            ratios.append(whole / line["p50"])
        return ratios, f"{SMALL[0]}, f32, 2 threads; medians of {steps} steps, interleaved; the last {whole:.0f} and {line['p50']:.0f} ms"
    return measure


def faults_of_a_step():
    def measure(bin_dir):
        command = [os.path.join(bin_dir, "bench_train_step"), "--steps", "12", "--warmup", "3", "--threads", "2"]
        return ([int(json_lines(command)[0]["page_faults_per_step"]) for _ in range(3)],
                f"{SMALL[0]}, f32, 2 threads; whole faults of each of 12 steps; the least of 3 runs, as a kernel may take idle pages away")
    return measure


def memory_against_plan(strategy, ranks=4):
    """Ratio of what the ranks of a host have in memory together, shared pages once, to what `regroup plan` says of them."""
    words, flags = GPT2[0], trainer_flags(GPT2[1])
    def measure(bin_dir):
        planned = json_lines_of_plan(bin_dir, [*flags, "--world", str(ranks), "--strategy", strategy])
        def resident(pid):
            with open(f"/proc/{pid}/smaps_rollup") as rollup:
                return 1024 * int(re.search(r"^Pss: +(\d+) kB", rollup.read(), re.M)[1])
        with training(bin_dir, ranks, 1, [*flags, "--strategy", strategy], 1000) as (job, said):
            most, end = 0, time.monotonic() + 120
            while time.monotonic() < end and job.poll() is None:
                with open(said) as out:
                    if len(re.findall("tok/s", out.read())) >= 3:
                        break
                time.sleep(0.2)
            listed = subprocess.run(["pgrep", "-f", "regroup-worker train .*--steps 1000"], capture_output=True, text=True).stdout.split()
            workers = [int(pid) for pid in listed if os.readlink(f"/proc/{pid}/exe").endswith("regroup-worker")]
            if len(workers) != ranks:
                raise RuntimeError(f"{len(workers)} ranks")
            for _ in range(10):
                most = max(most, sum(resident(pid) for pid in workers))
                time.sleep(0.2)
        return [most / (ranks * planned)], (f"{words}, f32, {strategy}, {ranks} ranks of one host: {most / 2**20:.0f} MiB, each page once, planned "
                                            f"{ranks * planned / 2**20:.0f}")
    return measure


def json_lines_of_plan(bin_dir, flags):
    done = subprocess.run([os.path.join(bin_dir, "regroup-worker"), "plan", "--json", *flags], capture_output=True, text=True, check=True)
    plan = json.loads(done.stdout)
    return next(s["rank_bytes"] for s in plan["strategies"] if s["strategy"] == plan["strategy"])


def bytes_sent(host):
    said = subprocess.run(host.command("cat", "/proc/net/dev"), check=True, capture_output=True, text=True).stdout
    return sum(int(line.split(":")[1].split()[8]) for line in said.splitlines() if line.strip().startswith("veth0:"))


def steps_on_two_hosts(bin_dir, pair, name, steps, flags=(), after=lambda step: None):
    """Seconds of each step from the fourth on, and bytes that a host sent for it: one rank of one thread on each host. `after` each step."""
    with tempfile.TemporaryDirectory() as folder:
        before, nodes, rates, said = bytes_sent(pair[0]), [], [], ""
        for host in pair:
            with open(os.path.join(folder, host.name), "w") as out:
                nodes.append(subprocess.Popen(host.command(
                    os.path.join(bin_dir, "regroup"), "run", "--nnodes", "2", "--insecure", "--rdzv-endpoint", pair[0].ipv4, "--rdzv-id", name,
                    "--state-dir", os.path.join(folder, "state-" + host.name), os.path.join(bin_dir, "regroup-worker"), "train", "--data",
                    "/usr/share/common-licenses", "--steps", str(steps), "--batch", "8", "--micro-batch", "4", *flags),
                    stdout=subprocess.PIPE if host is pair[0] else out, stderr=subprocess.STDOUT, text=True,
                    env=dict(os.environ, OMP_NUM_THREADS="1")))

        def end():
            for node in nodes:
                node.kill()
        deadline = threading.Timer(60 + 10 * steps, end)
        deadline.start()
        try:
            for line in nodes[0].stdout:
                said += line
                if rate := re.search(r"([0-9,.]+) tok/s", line):
                    rates.append(float(rate[1].replace(",", "")))
                    after(len(rates))
            codes = [node.wait() for node in nodes]
        finally:
            deadline.cancel()
            end()
        if any(codes) or len(rates) != steps:
            with open(os.path.join(folder, pair[1].name)) as out:
                raise RuntimeError(f"exit {codes}, {len(rates)} of {steps} steps: {said[-400:]} | {out.read()[-400:]}")
        return [8 * 256 / rate for rate in rates[3:]], (bytes_sent(pair[0]) - before) / steps


def shape(pair, what, rate="1gbit"):
    """The link between two hosts: "add" a token bucket each way, or "del" it."""
    for host in pair:
        subprocess.run(["ip", "netns", "exec", host.namespace, "tc", "qdisc", what, "dev", "veth0", "root", "tbf", "rate", rate, "burst", "256kb",
                        "latency", "50ms"], check=True, capture_output=True)


@contextlib.contextmanager
def two_hosts():
    """Two network namespaces whose link can be shaped."""
    if why := hosts.available() or (None if shutil.which("tc") else "needs the command 'tc'"):
        raise Unavailable(why)
    with hosts.TwoHosts() as pair:
        yield pair


def short_exchange(rounds=2, steps=8):
    """The step over a link of 100 Mbit/s whose ranks exchange gradients in bf16 against that of f32."""
    def measure(bin_dir):
        ratios, words = [], ""
        with two_hosts() as pair:
            shape(pair, "add", "100mbit")
            for i in range(rounds):
                wide, more = steps_on_two_hosts(bin_dir, pair, f"wide-{i}", steps)
                short, less = steps_on_two_hosts(bin_dir, pair, f"short-{i}", steps, ["--reduce-type", "bf16"])
                ratios.append(statistics.median(short) / statistics.median(wide))
                words = f"{statistics.median(short):.2f} s of {less / 1e6:.0f} MB, {statistics.median(wide):.2f} s of {more / 1e6:.0f} MB"
        return ratios, (f"10.7 M weights, B 8, T 256, DDP; 2 network namespaces, 1 rank of 1 thread each, token bucket of 100 Mbit/s; medians of {steps - 3} "
                        f"steps, {rounds} rounds, the last: {words}")
    return measure


def exposed(rounds=3, turns=16, turn=5):
    """What a link of 1 Gbit/s adds to a step, as a share of the time that the step's bytes take on it. `turns` is even."""
    def measure(bin_dir):
        shares, words = [], ""
        with two_hosts() as pair:
            for i in range(rounds):
                # In turns, in one training: a machine is not equally fast from one training to the next.
                def change(step):
                    if step % turn == 0 and step < turns * turn:
                        shape(pair, "add" if step // turn % 2 else "del")
                steps, sent = steps_on_two_hosts(bin_dir, pair, f"turns-{i}", turns * turn, after=change)
                shape(pair, "del")
                # Not the first turn, nor the step in which the link changed, nor the one that it held up.
                free, slow = [], []
                for number, seconds in enumerate(steps, start=4):
                    if number > turn and (number - 1) % turn >= 2:
                        (slow if (number - 1) // turn % 2 else free).append(seconds)
                on_link = sent * 8 / 1e9
                shares.append((statistics.median(slow) - statistics.median(free)) / on_link)
                words = f"{statistics.median(slow):.2f} s with it, {statistics.median(free):.2f} s without, {on_link:.2f} s for {sent / 1e6:.0f} MB"
        return shares, (f"6 layers, 384 wide (10.7 M weights), B 8, T 256, f32, DDP; 2 network namespaces, 1 rank of 1 thread each, token bucket of "
                        f"1 Gbit/s with 256 KiB, on and off each {turn} steps; medians of {len(slow)} and {len(free)} steps, {rounds} rounds, the last: {words}")
    return measure


ROWS = [
    # Where PyTorch's products are as good as the CPU, what is left to win is the rest of the step.
    Row("train step of 124 M against PyTorch", "x", *((2.0, 2.3) if peers_kernels_are_held_back() else (1.1, 1.2)), train_step(GPT2),
        higher_is_better=True),
    Row("train step of 11 M against PyTorch", "x", *((1.8, 2.3) if peers_kernels_are_held_back() else (1.1, 1.2)), train_step(SMALL),
        higher_is_better=True),
    Row("all-reduce 64 MiB, 2 ranks", "s", 0.015, 0.007, collective("allreduce_64MiB", "--only", "allreduce_64MiB")),
    Row("all-reduce 64 MiB, 2 ranks, against Gloo", "x", 0.25, 0.15, against_gloo("allreduce_64MiB")),
    Row("all-gather 64 MiB against all-reduce", "x", 0.6, 0.55, among("halves", "allgather_64MiB", "allreduce_64MiB")),
    # In shared memory a sum for all reads no more than a sum for one, so an all-reduce is no measure of a reduce-scatter.
    Row("reduce-scatter 64 MiB against reading what it adds", "x", 1.3, 1.1, among("halves", "reducescatter_64MiB", "read_64MiB")),
    Row("all-reduce of 16 Mi numbers in bf16 against f32", "x", 0.8, 0.55, among("types", "bf16", "f32")),
    Row("all-reduce of 16 Mi numbers in f16 against f32", "x", 2.5, 1.2, among("types", "f16", "f32")),
    Row("all-reduce 1 KiB, 2 ranks", "s", 20e-6, 5e-6, collective("allreduce_1KiB", "--only", "allreduce_1KiB")),
    Row("all-reduce 64 MiB between 2 hosts against Gloo", "x", 1.0, 0.7, against_gloo("hosts_64MiB")),
    Row("DDP of 11 M, 2 ranks against 2 threads", "x", 0.93, 0.97, ranks_against_threads(SMALL, "ddp"), higher_is_better=True),
    Row("DDP of 124 M, 2 ranks against 2 threads", "x", 0.8, 0.85, ranks_against_threads(GPT2, "ddp"), higher_is_better=True),
    Row("ZeRO-1 of 124 M, 2 ranks against 2 threads", "x", 0.85, 0.9, ranks_against_threads(GPT2, "zero-1"), higher_is_better=True),
    Row("a step of the trainer against the bare one", "x", 1.01, 1.0, trainer_against_step()),
    Row("page faults of a training step", "", 0, 0, faults_of_a_step(), judged="min"),
    Row("memory of 4 ranks under ZeRO-3 against their plan", "x", 1.03, 1.0, memory_against_plan("zero-3")),
    Row("plans of 1024 ranks with 128 micro-batches, made and checked", "s", 1.0, 0.5, plans("plans")),
    Row("memory of these plans", "MiB", 200.0, 100.0, plans("memory")),
    Row("exposed communication of a DDP step between 2 hosts at 1 Gbit/s", "of it", 0.25, 0.1, exposed()),
    Row("step between 2 hosts at 100 Mbit/s, exchanged in bf16 against f32", "x", 0.7, 0.55, short_exchange()),
    Row("abort to every rank back, 3 ranks", "s", 0.02, 0.005, collective("abort", "--only", "abort")),
    Row("rank killed anywhere in a step to every survivor back", "s", 0.025, 0.015, step_deaths(), judged="p99"),
    Row("peer killed to every survivor back, 3 ranks", "s", 0.05, 0.025, collective("peer_killed", "--only", "peer_killed")),
]
