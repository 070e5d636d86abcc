"""Rows of output: what a launch command shows of 2 × 1 GB, to readers of several speeds, beside torchrun; and `logs`."""
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time

from row import Row, Unavailable

LINE = 100
BLOCK_LINES = 10_000
WRITER = ("import os, sys\n"
          "rank, count = os.environ['RANK'], int(sys.argv[1])\n"
          f"for first in range(0, count, {BLOCK_LINES}):\n"
          f"    lines = [f'{{rank}} {{i:010d}} '.encode().ljust({LINE} - 1, b'x') for i in range(first, min(count, first + {BLOCK_LINES}))]\n"
          "    data = b'\\n'.join(lines) + b'\\n'\n"
          "    while data:\n"
          "        data = data[os.write(1, data):]\n")


def total_rss_mb(group):
    """Memory of a process group's launcher processes, in MB."""
    kb = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as f:
                if group not in f.read():
                    continue
            with open(f"/proc/{pid}/cmdline", "rb") as f:
                words = f.read()
            if b"writer.py" in words and b"regroup" not in words and b"torch" not in words:
                continue  # A worker.
            with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as f:
                kb += next(int(line.split()[1]) for line in f if line.startswith("Pss:"))
        except (OSError, StopIteration):
            continue
    return kb / 1024


def show(command, env, folder, count, ranks, delay, rate):
    """Runs it with a reader that starts after `delay` s and reads at `rate` bytes/s; returns lost bytes and the costs in words."""
    env = dict(env, OUTPUT_ROW=folder)
    begun, before = time.monotonic(), os.times()
    run = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=folder)
    peak, over = [0.0], threading.Event()

    def watch():
        while not over.wait(0.5):
            peak[0] = max(peak[0], total_rss_mb(f"OUTPUT_ROW={folder}\0".encode()))
    watcher = threading.Thread(target=watch)
    watcher.start()
    time.sleep(delay)
    lines, got, reading = 0, 0, time.monotonic()
    while chunk := os.read(run.stdout.fileno(), 1 << 20):
        lines += chunk.count(b"\n")
        got += len(chunk)
        if rate:
            time.sleep(max(0.0, reading + got / rate - time.monotonic()))
    code = run.wait()
    over.set()
    watcher.join()
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    if code != 0:
        raise RuntimeError(f"{command[0]} ended with {code}")
    return (ranks * count - lines) * LINE, f"{time.monotonic() - begun:.1f} s, CPU {cpu:.1f} s with its workers, {peak[0]:.0f} MB"


def lost(megabytes, delay, rate, what):
    def measure(bin_dir):
        with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
            writer = os.path.join(folder, "writer.py")
            with open(writer, "w", encoding="ascii") as f:
                f.write(WRITER)
            count = megabytes * 1_000_000 // LINE
            env = {**os.environ, "XDG_STATE_HOME": folder, "PYTHON_EXEC": sys.executable}
            words = ["--standalone", "--nproc-per-node=2", writer, str(count)]
            gone, ours = show([os.path.join(bin_dir, "regroup-torchrun"), *words], env, folder, count, 2, delay, rate)
            theirs = "no PyTorch here"
            if python := os.environ.get("REGROUP_TEST_PYTHON"):
                theirs = show([python, "-m", "torch.distributed.run", *words], env, folder, count, 2, delay, rate)[1]
            return [gone], f"2 ranks × {megabytes} MB of lines to a pipe that is read {what}: {ours}; torchrun: {theirs}"
    return measure


def logs_of(ranks, megabytes, options=()):
    def measure(bin_dir):
        with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
            if shutil.disk_usage(folder).free * 0.8 < ranks * megabytes * 1_000_000:
                raise Unavailable(f"{ranks * megabytes} MB of free disk are needed")
            writer = os.path.join(folder, "writer.py")
            with open(writer, "w", encoding="ascii") as f:
                f.write(WRITER)
            count = megabytes * 1_000_000 // LINE
            env = {**os.environ, "XDG_STATE_HOME": folder, "PYTHON_EXEC": sys.executable}
            regroup = os.path.join(bin_dir, "regroup")
            with open(os.path.join(folder, "shown"), "wb") as shown:
                subprocess.run([regroup, "run", *options, "--ppn", str(ranks), writer, str(count)], env=env, stdout=shown,
                               stderr=subprocess.DEVNULL, cwd=folder, check=True)
            os.unlink(os.path.join(folder, "shown"))
            begun = time.monotonic()
            with subprocess.Popen([regroup, "logs", "last", "--raw"], env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as logs:
                lines = 0
                while chunk := os.read(logs.stdout.fileno(), 1 << 20):
                    lines += chunk.count(b"\n")
                _, _, usage = os.wait4(logs.pid, 0)
                logs.returncode = 0
            if lines != ranks * count:
                raise RuntimeError(f"{lines} of {ranks * count} lines")
            return [time.monotonic() - begun], (f"`regroup logs last --raw` of {ranks} ranks × {megabytes} MB, every line counted; "
                                                f"{usage.ru_maxrss >> 10} MB of memory")
    return measure


ROWS = [
    Row("output lost, 2 x 1 GB, read at once", "bytes", 0, 0, lost(1000, 0, None, "at once"), "max"),
    Row("output lost, 2 x 1 GB, read at 20 MB/s", "bytes", 0, 0, lost(1000, 0, 20_000_000, "at 20 MB/s"), "max"),
    Row("output lost, 2 x 1 GB, read after 20 s", "bytes", 0, 0, lost(1000, 20, None, "after 20 s"), "max"),
    Row("logs of 64 ranks", "s", 5, 2, logs_of(64, 1)),
    Row("logs over 10 GB", "s", 300, 120, logs_of(1, 10_000, ("--log-keep", "all"))),
]
