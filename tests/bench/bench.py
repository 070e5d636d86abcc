#!/usr/bin/env python3
"""Every performance claim of Regroup, measured: one JSON line per row with n, p50, p99, max and its set-up.

  ./dev bench              every row
  ./dev bench start kill   rows whose name contains one of the words
  ./dev bench --check      exit 1 when a row misses its *ship* target, or can't be measured here
"""
import argparse
import json
import os
import platform
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import cluster_rows  # noqa: E402
import control_rows  # noqa: E402
import output_rows  # noqa: E402
import worker_rows  # noqa: E402
from row import Unavailable, cpu_model  # noqa: E402


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))]


def summarize(row, samples):
    def shown(value):
        return float(f"{value:.4g}")
    return {"row": row.name, "unit": row.unit, "n": len(samples), "p50": shown(percentile(samples, 0.5)),
            "p99": shown(percentile(samples, 0.99)), "max": shown(max(samples)), "min": shown(min(samples))}


def measure(rows, bin_dir):
    """Prints a line for each row; returns the names of those that did not reach their ship target, whyever."""
    missed = []
    machine = f"{os.cpu_count()} cores, {cpu_model()}, Linux {platform.release()}"
    for row in rows:
        try:
            samples, setup = row.measure(bin_dir)
        except Unavailable as reason:  # A target that nobody looked at was not reached. A peer without one is no row.
            print(json.dumps({"row": row.name, "skipped": str(reason)}), flush=True)
            missed.append(row.name)
            continue
        except Exception as reason:  # A row that breaks must not hide the others; it counts as missed.
            print(json.dumps({"row": row.name, "error": f"{type(reason).__name__}: {reason}"}), flush=True)
            missed.append(row.name)
            continue
        line = summarize(row, samples)
        value = line[row.judged]
        good = value >= row.ship if row.higher_is_better else value <= row.ship
        line.update(ship=row.ship, aim=row.aim, judged=row.judged, ok=good, setup=f"{setup}; {machine}")
        print(json.dumps(line), flush=True)
        if not good:
            missed.append(row.name)
    return missed


def main(arguments=None, every_row=None):
    parser = argparse.ArgumentParser(prog="./dev bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="only rows whose name contains one of these")
    parser.add_argument("--check", action="store_true", help="exit 1 when a row misses its ship target or can't be measured")
    parser.add_argument("--list", action="store_true", help="print the rows' names and targets")
    parser.add_argument("--bin-dir", default=os.environ.get("REGROUP_BIN_DIR", "build/release/bin"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    rows = [r for r in every_row or control_rows.ROWS + cluster_rows.ROWS + output_rows.ROWS + worker_rows.ROWS
            if not options.words or any(word in r.name for word in options.words)]
    if options.list:
        for row in rows:
            print(f"{row.name:<44} {row.judged:<4} ship {row.ship} aim {row.aim} {row.unit}")
        return 0
    missed = measure(rows, os.path.abspath(options.bin_dir))
    if missed:
        print(f"missed: {', '.join(missed)}", file=sys.stderr)
    return 1 if options.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
