"""Runs the tests of several build trees, in order, and sums up. Called by ./dev test.

    run.py [-R WORD] [--repeat N] [--passed NAME]… [--failed NAME]… BUILD_DIR…

Without WORD every test but those labelled `slow`; with it those whose name or label it matches. --passed and --failed
bring in checks that the caller made itself. In CI (CI=true) a skipped test is a failure. The last line is
`N passed, N failed`, with `, N skipped` if there were any.
"""
import argparse
import glob
import json
import os
import re
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as xml

_TSAN_KNOWN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tsan.supp")
_SKIP_LINE = re.compile(r"^SKIPPED (\S+): (.*)$", re.MULTILINE)
_GTEST_SKIP = re.compile(r": Skipped\n(.*)$", re.MULTILINE)


class Suite:
    """The selected tests of one build tree. `numbers` are ctest's own."""

    def __init__(self, folder, word):
        self.folder, self.numbers, self.torch = folder, [], False
        shown = subprocess.run(["ctest", "--test-dir", folder, "--show-only=json-v1"], check=True,
                               stdout=subprocess.PIPE).stdout
        for number, test in enumerate(json.loads(shown)["tests"], 1):
            labels = next((p["value"] for p in test.get("properties", []) if p["name"] == "LABELS"), [])
            if self._wanted(test["name"], labels, word):
                self.numbers.append(number)
                self.torch = self.torch or "torch" in labels

    @staticmethod
    def _wanted(name, labels, word):
        if word:
            return bool(re.search(word, name)) or any(re.fullmatch(word, label) for label in labels)
        return "slow" not in labels

    def run(self, repeat):
        """Runs the tests; returns [(name, outcome, output)] with outcome passed, failed or skipped."""
        report = os.path.abspath(os.path.join(self.folder, "tests.xml"))
        if os.path.exists(report):
            os.unlink(report)
        command = ["ctest", "--test-dir", self.folder, "-I", "0,0,0," + ",".join(map(str, self.numbers)),
                   "-j", str(os.cpu_count()), "--output-on-failure", "--output-junit", report,
                   "--test-output-size-passed", "100000", "--test-output-size-failed", "1000000"]
        if repeat > 1:
            command += ["--repeat", f"until-fail:{repeat}"]
        environment = {"UBSAN_OPTIONS": "print_stacktrace=1", "TSAN_OPTIONS": f"suppressions={_TSAN_KNOWN}", **os.environ}
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, errors="replace") as ctest:
            _show(ctest.stdout, len(self.numbers))
        return _outcomes(report) if os.path.exists(report) else [(f"ctest in {self.folder}", "failed", "")]


def _show(lines, total):
    """Passes on what ctest says, but of the passed tests only how many and the slow ones."""
    passed, terminal = 0, sys.stdout.isatty()
    for line in lines:
        match = re.search(r"Test +#\d+: (\S+) .*Passed +([\d.]+) sec", line)
        if match:
            passed += 1
            if float(match.group(2)) > 5 or passed % 100 == 0:
                print(f"{passed}/{total} passed; {match.group(1)} took {match.group(2)} s", flush=True)
            elif terminal:
                print(f"\r{passed}/{total} passed: {match.group(1)[:60]}\033[K", end="\r", flush=True)
        elif not re.match(r"\s*$|\s*Start +\d+:|Test project|Internal ctest|\d+% tests passed|Label Time|\S+ += +[\d.]+ "
                          r"sec|Total Test time|Errors while running|Output from these tests|Use \"--rerun", line):
            print(line, end="", flush=True)


def _outcomes(report):
    found = []
    for case in xml.parse(report).getroot().iter("testcase"):
        output = case.findtext("system-out") or ""
        if case.get("status") == "run":
            found.append((case.get("name"), "passed", output))
            # A test file runs many tests; those that it skipped count for themselves.
            found += [(name, "skipped", reason) for name, reason in _SKIP_LINE.findall(output)]
        elif case.find("skipped") is not None and case.get("status") == "notrun" and _skip_reason(output):
            found.append((case.get("name"), "skipped", _skip_reason(output)))
        else:
            found.append((case.get("name"), "failed", output))
    return found


def _skip_reason(output):
    reasons = [reason for _, reason in _SKIP_LINE.findall(output)] + _GTEST_SKIP.findall(output)
    return "; ".join(dict.fromkeys(reasons))


def _sum_up(outcomes, reports, seconds):
    """Prints the summary; returns the exit code."""
    count = {outcome: [o for o in outcomes if o[1] == outcome] for outcome in ("passed", "failed", "skipped")}
    for path in reports:
        with open(path, encoding="utf-8") as f:
            print(f.read(), end="")
    for name, _, reason in count["skipped"]:
        print(f"skipped: {name}: {reason}")
    strict = bool(os.environ.get("CI")) and bool(count["skipped"])
    if strict:
        print("in CI a skipped test is a failure")
        count["failed"] += count.pop("skipped")
    for name, _, _ in count["failed"]:
        print(f"FAILED: {name}")
    print(f"tests took {seconds:.0f} s")
    skipped = f", {len(count['skipped'])} skipped" if count.get("skipped") else ""
    print(f"{len(count['passed'])} passed, {len(count['failed'])} failed{skipped}", flush=True)
    return 1 if count["failed"] or not count["passed"] else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-R", dest="word", default="")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--passed", action="append", default=[])
    parser.add_argument("--failed", action="append", default=[])
    parser.add_argument("--needs-torch", action="store_true", help="exit 0 if a selected test needs PyTorch, else 1")
    parser.add_argument("folders", nargs="*")
    options = parser.parse_args()
    suites = [Suite(folder, options.word) for folder in options.folders]
    if options.needs_torch:
        return 0 if any(suite.torch for suite in suites) else 1

    reports = os.path.abspath("build/e2e-reports")
    shutil.rmtree(reports, ignore_errors=True)
    os.environ["REGROUP_E2E_REPORTS"] = reports
    outcomes = [(name, "passed", "") for name in options.passed] + [(name, "failed", "") for name in options.failed]
    started = time.monotonic()
    for suite in suites:
        if suite.numbers:
            print(f"{suite.folder}: {len(suite.numbers)} tests", flush=True)
            outcomes += suite.run(options.repeat)
    return _sum_up(outcomes, sorted(glob.glob(os.path.join(reports, "*.txt"))), time.monotonic() - started)


if __name__ == "__main__":
    sys.exit(main())
