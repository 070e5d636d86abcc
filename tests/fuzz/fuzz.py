"""Runs the fuzz targets, one on each core, and prints a table. Called by ./dev fuzz.

    fuzz.py [--minutes N | --runs N] PROGRAM TARGET…

N minutes are shared by all targets; N runs are those of each. What a target learnt lies in corpus/TARGET beside the program's
folder and is where its next run begins; an input that breaks it in found/. Exit code 1 when there is one.
"""
import argparse
import concurrent.futures
import os
import re
import subprocess
import sys
import time

TREE = os.path.dirname(os.path.abspath(__file__))
# An input has at most 4 KiB: who takes ten seconds for it hangs, and who asks for 64 MiB at once was told to by it.
# Without -entropic=0 two thirds of the time go into choosing what to change next.
LIMITS = ["-max_len=4096", "-entropic=0", "-timeout=10", "-malloc_limit_mb=64", "-rss_limit_mb=2048"]


def fuzz(program, name, limit):
    """Runs one target; returns its line of the table, and whether it is clean."""
    work = os.path.dirname(os.path.dirname(program))
    corpus, found, log = (os.path.join(work, kind, name) for kind in ("corpus", "found", "log"))
    for folder in (corpus, os.path.dirname(found), os.path.dirname(log)):
        os.makedirs(folder, exist_ok=True)
    command = ["nice", "-n", "10", program, *LIMITS, limit, "-print_final_stats=1", f"-artifact_prefix={found}-", corpus,
               os.path.join(TREE, "corpus", name)]
    environment = {"ASAN_OPTIONS": "malloc_context_size=8:quarantine_size_mb=16", **os.environ, "REGROUP_FUZZ_TARGET": name}
    started = time.monotonic()
    with open(log + ".log", "w+", encoding="utf-8", errors="replace") as output:
        code = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL,
                              stdout=output, stderr=subprocess.STDOUT, check=False).returncode
        seconds = time.monotonic() - started
        output.seek(0)
        said = output.read()
    runs = [int(n) for n in re.findall(r"stat::number_of_executed_units: +(\d+)", said)]
    # Where it broke libFuzzer may not come to its statistics: the last line that it wrote says how far it was.
    steps = runs or [int(n) for n in re.findall(r"^#(\d+)\t", said, re.MULTILINE)] or [0]
    result = "clean" if code == 0 else f"BROKEN: {reason(said, code)}; {log}.log"
    return f"{name:<16}{steps[-1]:>12,}{seconds:>9.0f}  {result}", code == 0


def reason(said, code):
    for pattern in (r"CHECK failed: .*", r"runtime error: .*", r"ERROR: \w+: (.*)"):
        if match := re.search(pattern, said):
            return match.group(0)[:100]
    return f"exit code {code}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=int, default=10)
    parser.add_argument("--runs", type=int)
    parser.add_argument("program")
    parser.add_argument("targets", nargs="+")
    args = parser.parse_args()
    cores = min(os.cpu_count(), len(args.targets))
    limit = f"-runs={args.runs}" if args.runs else f"-max_total_time={max(1, 60 * args.minutes * cores // len(args.targets))}"
    print(f"{'TARGET':<16}{'EXECUTIONS':>12}{'SECONDS':>9}  RESULT", flush=True)
    clean = True
    with concurrent.futures.ThreadPoolExecutor(cores) as pool:
        for done in concurrent.futures.as_completed([pool.submit(fuzz, args.program, name, limit) for name in args.targets]):
            line, good = done.result()
            clean = clean and good
            print(line, flush=True)
    if not clean:
        print(f"the inputs: {os.path.join(os.path.dirname(os.path.dirname(args.program)), 'found')}. Mend it, and keep the input in tests/fuzz/corpus/TARGET/", file=sys.stderr)
    return 0 if clean else 1


if __name__ == "__main__":
    sys.exit(main())
