"""What a machine with a GPU shows in half an hour; `./dev gpu` bundles it with the programs that it starts.

    run [kernels] [nccl] [train] [race]      all of them, in that order; --out DIR, results

It needs a driver and python3, for `nccl` an NCCL and for `race` a PyTorch with CUDA. Prints one JSON object a line, and writes them to a
file with the commit and the machine in its first line. Exit 1: a row says "ok": false.
"""
import argparse
import json
import os
import pathlib
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
BIN = HERE / "bin"
SUITES = ("kernels", "nccl", "train", "race")
# Layers, width, heads, context, vocabulary.
TINY = (2, 64, 2, 64, 256)
GPT2 = (12, 768, 12, 1024, 50304)
PEAKS = {"bf16": 989e12, "f32": 67e12}  # H100 and H200: dense bf16 of tensor cores, f32 without them.


def environment():
    env = dict(os.environ)
    env["LD_LIBRARY_PATH"] = ":".join([str(HERE / "lib")] + [p for p in [env.get("LD_LIBRARY_PATH")] if p])
    env["REGROUP_GOLDEN_DIR"] = str(HERE / "golden")
    if sys.prefix != sys.base_prefix:
        env.setdefault("VIRTUAL_ENV", sys.prefix)  # Where a PyTorch of this interpreter has its NCCL.
    return env


def run(*words, limit=600, **more):
    """Exit code, what it said, and seconds; `more` is added to the environment."""
    began = time.monotonic()
    try:
        done = subprocess.run([str(w) for w in words], env=environment() | more, timeout=limit, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT)
        return done.returncode, done.stdout, time.monotonic() - began
    except subprocess.TimeoutExpired as late:
        said = late.stdout or b""
        return 124, said.decode(errors="replace") if isinstance(said, bytes) else said, limit


def output(*words):
    try:
        return subprocess.run(words, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=60).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def tail(said, lines=12):
    return said.splitlines()[-lines:]


class Suite:
    def __init__(self, out, work):
        self.out, self.work, self.bad = out, work, 0

    def row(self, suite, name, ok, **more):
        self.bad += not ok
        line = json.dumps({"suite": suite, "row": name, "ok": ok} | more)
        print(line, flush=True)
        with open(self.out, "a") as file:
            file.write(line + "\n")

    def text(self):
        """A megabyte whose next letter can be learnt, the same everywhere."""
        path = self.work / "text"
        if not path.exists():
            rng = random.Random(1)
            words = ["".join(rng.choices("etaoinshrdlu", k=rng.randint(2, 8))) for _ in range(500)]
            path.write_text(" ".join(rng.choices(words, k=160_000)))
        return path

    def train(self, sizes, *flags, ranks=1, limit=300):
        layers, width, heads, context, vocabulary = sizes
        words = [BIN / "regroup-worker", "train", "--data", self.text(), "--layers", layers, "--width", width, "--heads", heads,
                 "--context", context, "--vocabulary", vocabulary, *flags]
        if ranks > 1:
            words = [BIN / "regroup", "run", "--nproc-per-node", ranks, *words]
        return run(*words, limit=limit)

    def kernels(self):
        self.kernels_with("twins, goldens and models on the GPU", "cuBLASLt")
        self.kernels_with("their products by own kernels", "own kernels", "--gtest_filter=*Linear*:*InputGradients*:*Gpt*", GPU_PRODUCTS="own")

    def tests_of(self, program, *flags, **more):
        """Its exit code, what it said, for how long; how many tests ran, and what failed."""
        report = self.work / "tests.json"
        report.unlink(missing_ok=True)
        code, said, seconds = run(BIN / program, "--gtest_brief=1", f"--gtest_output=json:{report}", *flags, limit=570, **more)
        failed, tests = [], 0
        if report.exists():
            for suite in json.loads(report.read_text())["testsuites"]:
                for test in suite["testsuite"]:
                    tests += test["status"] == "RUN" and test.get("result") != "SKIPPED"
                    if test.get("failures"):
                        failed.append({"test": f"{suite['name']}.{test['name']}",
                                       "says": test["failures"][0]["failure"].splitlines()[:6]})
        return code, said, seconds, tests, failed

    def kernels_with(self, name, by, *flags, **more):
        code, said, seconds, tests, failed = self.tests_of("gpu-kernels-test", *flags, **more)
        products = (re.findall(r"(?m)^products by (.*)", said) or [""])[0]
        self.row("kernels", name, code == 0 and tests > 0 and products.startswith(by), tests=tests, failed=failed,
                 seconds=round(seconds, 1), products=products, **({} if code == 0 else {"exit": code, "says": tail(said)}))

    def losses(self, said):
        return [float(x) for x in re.findall(r"(?m)step \d+  loss (\S+)", said)]

    def near(self, suite, name, expected, flags, near, ranks=1):
        code, said, seconds = self.train(TINY, "--steps", 20, "--batch", 8, *flags, ranks=ranks)
        losses = self.losses(said)
        apart = max((abs(a - b) / b for a, b in zip(losses, expected)), default=1.0)
        ok = code == 0 and len(losses) == len(expected) > 0 and apart <= near
        self.row(suite, name, ok, apart=apart, allowed=near, seconds=round(seconds, 1),
                 **({} if ok else {"exit": code, "says": tail(said)}))

    def nccl(self):
        code, said, seconds, tests, failed = self.tests_of("gpu-nccl-test")
        self.row("nccl", "the contract of collectives, over what this machine has", code == 0 and tests > 0, tests=tests, failed=failed,
                 seconds=round(seconds, 1), **({} if code == 0 else {"exit": code, "says": tail(said)}))
        code, said, _ = self.train(TINY, "--steps", 20, "--batch", 8, "--device", "cpu")
        expected = self.losses(said)
        self.row("nccl", "the CPU, which the others are compared with", code == 0, losses=expected[-1:])
        self.near("nccl", "a world of one", expected, ("--device", "cuda", "--transport", "nccl"), 1e-3)
        for ranks in (2, 4):
            for strategy in ("ddp", "zero-1", "zero-2", "zero-3"):
                self.near("nccl", f"{ranks} ranks on one GPU through the host, {strategy}", expected,
                          ("--device", "cuda", "--transport", "host", "--strategy", strategy), 1e-3, ranks)

    def train_rows(self):
        batch = 4
        for precision, graphs in (("bf16", "on"), ("bf16", "off"), ("f32", "on")):
            code, said, seconds = self.train(GPT2, "--device", "cuda", "--precision", precision, "--batch", batch, "--micro-batch",
                                             batch, "--steps", 8, "--cuda-graphs", graphs, limit=400)
            rates = [float(x.replace(",", "")) for x in re.findall(r"loss \S+  (\S+) tok/s", said)][2:]
            rate = statistics.median(rates) if rates else 0
            layers, width, _, context, vocabulary = GPT2
            parameters = 12 * layers * width * width + (vocabulary + context) * width
            flops = 6 * parameters + 6 * layers * width * context
            self.row("train", f"GPT-2 124M, {precision}, {batch} x {context} tokens, graphs {graphs}", code == 0 and rate > 0,
                     tokens_per_second=rate, mfu=round(rate * flops / PEAKS[precision], 5), loss=self.losses(said)[-1:],
                     seconds=round(seconds, 1), **({} if code == 0 else {"exit": code, "says": tail(said)}))

    def race(self):
        """The same step in PyTorch: scaled_dot_product_attention, fused AdamW, bf16 by autocast, not compiled."""
        code, said, seconds = run(sys.executable, HERE / "torch_race.py", *GPT2, 4, limit=400)
        try:
            more = json.loads(said.splitlines()[-1])
        except (ValueError, IndexError):
            more = {"says": tail(said)}
        self.row("race", "GPT-2 124M in PyTorch, bf16, 4 x 1024 tokens", code == 0, seconds=round(seconds, 1), **more)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="*", metavar="SUITE")
    parser.add_argument("--out", default=str(HERE / "results"))
    options = parser.parse_args()
    unknown = set(options.suites) - set(SUITES)
    if unknown:
        parser.error(f"there is no suite {' '.join(sorted(unknown))}; there are {', '.join(SUITES)}")
    gpu = output("nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader")
    if not gpu:
        sys.exit("error: there is no GPU here\nbecause: nvidia-smi names none\ntry: this folder on a machine with a driver")
    commit = (HERE / "commit").read_text().strip()
    os.makedirs(options.out, exist_ok=True)
    out = pathlib.Path(options.out) / f"gpu-{commit[:12]}-{time.strftime('%Y%m%dT%H%M%S')}.jsonl"
    code, said, _ = run(BIN / "regroup-worker", "check-gpu", limit=60)
    setup = {"setup": {"commit": commit, "gpu": gpu.splitlines(), "cpus": os.cpu_count(), "check": said.strip(), "python": sys.version.split()[0]}}
    print(json.dumps(setup), flush=True)
    out.write_text(json.dumps(setup) + "\n")
    with tempfile.TemporaryDirectory() as work:
        suite = Suite(out, pathlib.Path(work))
        suite.row("check", "regroup-worker check-gpu", code == 0)
        for name in SUITES:
            if not options.suites or name in options.suites:
                getattr(suite, "train_rows" if name == "train" else name)()
    print(f"written to {out}", file=sys.stderr)
    sys.exit(1 if suite.bad else 0)


if __name__ == "__main__":
    main()
