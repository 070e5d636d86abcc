"""Times the training step of train_step_bench.cc in PyTorch: same model, weights, data and schedule.

Prints one JSON line. --compile uses torch.compile; --tuned restarts with glibc told to keep its memory.
"""
import argparse
import json
import math
import os
import pathlib
import resource
import sys
import time

GLIBC = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "100000000000"}


def parse():
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in (("layers", 6), ("width", 384), ("heads", 6), ("vocabulary", 256),
                        ("time", 256), ("batch", 8), ("steps", 30), ("warmup", 3), ("threads", 0),
                        ("seed", 1)):
        parser.add_argument("--" + name, type=int, default=value)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--tuned", action="store_true")
    return parser.parse_args()


def learning_rate(step, lr=1e-3, low=1e-4, warmup=10, total=1000):
    if step < warmup:
        return lr * (step + 1) / warmup
    if step >= total:
        return low
    return low + 0.5 * (1 + math.cos(math.pi * (step - warmup) / (total - warmup))) * (lr - low)


def batch(options, first_sequence):
    import counter_rng
    import numpy as np
    V, T = options.vocabulary, options.time
    rows = np.zeros((options.batch, T + 1), dtype=np.int64)
    for b in range(options.batch):
        key = counter_rng.seed_key(options.seed).fold("bench").fold(first_sequence + b)
        bits = key.bits(T + 1)
        rows[b, 0] = int(bits[0]) % V
        choices = (bits % np.uint64(4)).astype(np.int64)
        for t in range(T):
            rows[b, t + 1] = (rows[b, t] * 5 + choices[t + 1]) % V
    return rows[:, :-1].copy(), rows[:, 1:].copy()


def measure(options):
    import torch
    import torch_gpt
    if options.threads:
        torch.set_num_threads(options.threads)
    model = torch_gpt.Gpt(options.layers, options.width, options.heads, options.vocabulary,
                          options.time)
    model.initialize(options.seed)
    optimizer = model.optimizer(1e-3, fused=True)
    loss_of = torch.compile(model) if options.compile else model
    losses, milliseconds, faults = [], [], 0
    for step in range(options.warmup + options.steps):
        tokens, targets = (torch.from_numpy(part) for part in batch(options, step * options.batch))
        if step == options.warmup:
            faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        start = time.perf_counter()
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step)
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(tokens, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        if step >= options.warmup:
            milliseconds.append((time.perf_counter() - start) * 1e3)
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
    return losses, sorted(milliseconds), faults


def main():
    options = parse()
    if options.tuned and any(os.environ.get(k) != v for k, v in GLIBC.items()):
        os.execve(sys.executable, [sys.executable] + sys.argv, os.environ | GLIBC)
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "worker" / "golden"))
    import torch
    losses, milliseconds, faults = measure(options)
    n = len(milliseconds)
    median = milliseconds[n // 2]
    print(json.dumps({
        "name": "train step", "unit": "ms", "n": n, "p50": median,
        "p99": milliseconds[min(n - 1, n * 99 // 100)], "max": milliseconds[-1],
        "min": milliseconds[0], "tokens_per_s": options.batch * options.time / median * 1e3,
        "page_faults_per_step": faults / n,
        "setup": {"engine": f"torch {torch.__version__}",
                  "mode": ("compiled" if options.compile else "eager") +
                          (", glibc tuned" if options.tuned else ""),
                  "threads": torch.get_num_threads(), "layers": options.layers,
                  "width": options.width, "heads": options.heads,
                  "vocabulary": options.vocabulary, "batch": options.batch, "time": options.time,
                  "dtype": "f32", "optimizer": "adamw fused, clip 1"},
        "losses": losses}))


if __name__ == "__main__":
    main()
