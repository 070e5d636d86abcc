#!/usr/bin/env python3
"""Regroup beside PyTorch's torchrun and NVIDIA's ft_launcher: same no-op worker, same machine, same run.

  ./dev bench torchrun            every case, about 11 minutes: one JSON line per case and launcher, then a table
  ./dev bench torchrun --fast     each once
  ./dev bench torchrun start      cases whose name contains one of the words
  ./dev bench torchrun --check    exit 1 where Regroup misses a *ship* target

A launcher that does not get there within 60 s is shown as "never in 60 s".
"""
import argparse
import json
import os
import platform
import signal
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import race_cases  # noqa: E402
import race_table  # noqa: E402
import race_world as rw  # noqa: E402
import cluster as cl  # noqa: E402 (race_world knows where it is)
from row import cpu_model  # noqa: E402


class Results:
    """What was measured, printed as it comes: (case, launcher) → samples or the reason why there are none."""

    def __init__(self):
        self.samples, self.reasons = {}, {}
        self.machine = f"{os.cpu_count()} cores, {cpu_model()}, Linux {platform.release()}"

    def add(self, case, launcher, samples, setup):
        self.samples[case.name, launcher.name] = samples
        line = {"case": case.name, "launcher": launcher.name, "unit": case.unit, "n": len(samples),
                "p50": race_table.finite(race_table.median(samples)), "max": race_table.finite(max(samples))}
        if rw.NEVER in samples:
            line["never_within_s"] = rw.BOUND
        print(json.dumps({**line, "setup": f"{setup}; {self.machine}"}), flush=True)

    def skip(self, case, launcher, reason):
        self.reasons[case.name, launcher.name] = reason
        print(json.dumps({"case": case.name, "launcher": launcher.name, "skipped": reason}), flush=True)


def interrupted(*_):
    raise KeyboardInterrupt


def main():
    parser = argparse.ArgumentParser(prog="./dev bench torchrun", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="only cases whose name contains one of these")
    parser.add_argument("--fast", action="store_true", help="measure everything once")
    parser.add_argument("--check", action="store_true", help="exit 1 when Regroup misses a ship target")
    parser.add_argument("--bin-dir", default=os.environ.get("REGROUP_BIN_DIR", "build/release/bin"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    cases = [case for case in race_cases.CASES if not options.words or any(word in case.name for word in options.words)]
    if not cases:
        parser.error(f"no case has {' or '.join(options.words)} in its name; they are: {', '.join(c.name for c in race_cases.CASES)}")
    signal.signal(signal.SIGTERM, interrupted)
    cl.become_subreaper()
    results = Results()
    failed = False
    try:
        failed = race_cases.measure(os.path.abspath(options.bin_dir), cases, results, options.fast)
    except KeyboardInterrupt:
        rw.say("interrupted")
        failed = True
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        cl.kill_descendants()
    print(race_table.render(cases, results))
    missed = race_table.missed(cases, results)
    if missed:
        rw.say(f"Regroup missed: {', '.join(missed)}")
    return 1 if failed or options.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
