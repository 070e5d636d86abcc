#!/usr/bin/env python3
"""Makes each mistake of table.py in a copy of the tree, builds what it is in, and prints which test noticed it. A mistake that nothing
notices is a missing test, or code that nobody needs.

  mutants.py --source DIR [WORD]    all, or those whose file or text has WORD in it; 90 min on two cores

Random lives come first: of mistakes in the two cores they alone have to notice 80 of 100; of all, 95 have to be noticed.
"""
import argparse
import concurrent.futures
import os
import pathlib
import queue
import shutil
import subprocess
import sys
import time

import table

LIVES = ("coordinator_core_test", "*Random*-*EveryTimer")  # Of a whole cluster.
AGENT_LIVES = ("agent_core_test", "*Random*")  # Of one node.
TESTS = {  # Programs and filters, in the order in which they are asked.
    table.CORE: [LIVES, ("scenario", "*"), ("coordinator_core_test", "-*Random*:PlantedBugs*:Memory*")],
    table.AGENT: [AGENT_LIVES, LIVES, ("agent_core_test", "-*Random*"), ("scenario", "*")],
    table.SHIM: [("agent_shim_test", "*"), ("agent_shell_test", "GroupHost*")],
    table.STORE: [("agent_store_test", "*")],
}
# Than a test run has time for.
MORE = {"REGROUP_LIVES": "3000", "REGROUP_LONG_LIVES": "20", "REGROUP_AGENT_LIVES": "5000"}
LIMIT = 600  # Seconds for one program: a mistake may be a wait without an end.
WHOLE, BY_LIVES = 0.95, 0.80


def run(*words, **options):
    return subprocess.run([str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)


def area(file):
    return next(area for area in TESTS if file.startswith(area))


class Copy:
    """Of the tree, where it may be changed."""

    def __init__(self, source, folder):
        self.tree, self.build = folder / "source", folder / "source" / "build"
        tracked = run("git", "-C", source, "ls-files", "--cached", "--others", "--exclude-standard").stdout.splitlines()
        for name in tracked:
            here, there = source / name, self.tree / name
            if not here.is_file():
                there.unlink(missing_ok=True)
            elif not there.is_file() or here.read_bytes() != there.read_bytes():
                there.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(here, there)  # A file that is put right is newer than what was built of it.
        options = ("-DCMAKE_BUILD_TYPE=Release", "-DREGROUP_WERROR=OFF", "-DCMAKE_GTEST_DISCOVER_TESTS_DISCOVERY_MODE=PRE_TEST")
        done = run("cmake", "-G", "Ninja", "-S", self.tree, "-B", self.build, *options)
        if done.returncode:
            sys.exit(done.stdout)

    def made(self, programs, jobs=1):
        return run("ninja", "-j", jobs, "-C", self.build, *sorted(set(programs)))

    def fails(self, program, tests):
        """Why, in few words; nothing: they pass."""
        command = (self.build / "test-bin" / program, f"--gtest_filter={tests}", "--gtest_brief=1", "--gtest_fail_fast")
        try:
            done = run(*command, timeout=LIMIT, env=os.environ | MORE | {"REGROUP_BIN_DIR": str(self.build / "bin")})
        except subprocess.TimeoutExpired:
            return f"{program}: not over in {LIMIT} s"
        if done.returncode == 0:
            return None
        named = [line.split("]", 1)[1].split(" (")[0].strip() for line in done.stdout.splitlines() if line.startswith("[  FAILED  ]")]
        return named[0] if named else f"{program}: ended with {done.returncode}"


def judge(copy, mutant):
    """(what noticed it, whether random lives did); (None, …): nothing."""
    file, right, wrong = mutant
    path = copy.tree / file
    text = path.read_text()
    path.write_text(text.replace(right, wrong))
    try:
        tests = TESTS[area(file)]
        built = copy.made(program for program, _ in tests)
        if built.returncode:
            return "the compiler", False
        return next(((why, test in (LIVES, AGENT_LIVES)) for test in tests if (why := copy.fails(*test))), (None, False))
    finally:
        path.write_text(text)


def judged(chosen, copies):
    """Each mistake with what judge() says and the seconds that took, as soon as that is known."""
    free = queue.SimpleQueue()
    for copy in copies:
        free.put(copy)

    def one(mutant):
        copy, begun = free.get(), time.monotonic()
        try:
            return mutant, *judge(copy, mutant), time.monotonic() - begun
        finally:
            free.put(copy)

    with concurrent.futures.ThreadPoolExecutor(len(copies)) as pool:
        for done in concurrent.futures.as_completed([pool.submit(one, mutant) for mutant in chosen]):
            yield done.result()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--source", type=pathlib.Path, required=True)
    parser.add_argument("--folder", type=pathlib.Path)
    parser.add_argument("word", nargs="?", default="")
    options = parser.parse_args()
    source = options.source.resolve()
    chosen = [mutant for mutant in table.MUTANTS if any(options.word in text for text in mutant)]
    folder = options.folder or source / "build" / "mutants"
    copies = [Copy(source, folder / str(i)) for i in range(min(4, os.cpu_count() or 1))]
    areas = {area(file) for file, _, _ in chosen}
    tests = sorted({test for each in areas for test in TESTS[each]})
    for copy in copies:  # One after the other: the compiler's cache has for the second what the first one needed.
        built = copy.made((program for program, _ in tests), jobs=len(copies))
        if built.returncode:
            sys.exit(built.stdout)
    with concurrent.futures.ThreadPoolExecutor(len(copies)) as pool:
        # In all copies at once, as they will run.
        for whys in pool.map(lambda copy: [copy.fails(*test) for test in tests], copies):
            if any(whys):
                sys.exit(f"without any mistake {next(filter(None, whys))} fails")
    alive, by_lives, in_cores = [], 0, 0
    for mutant, why, lives, seconds in judged(chosen, copies):
        file, right, wrong = mutant
        if file.startswith((table.CORE, table.AGENT)) and why != "the compiler":
            in_cores += 1
            by_lives += lives
        if why is None:
            alive.append(mutant)
        print(f"{'ALIVE' if why is None else 'found'}  {seconds:5.0f} s  {file}: {right.strip()[:60]} -> {wrong[:40] or '(nothing)'}"
              f"\n         {why or 'no test noticed it'}", flush=True)
    found = 1 - len(alive) / len(chosen) if chosen else 0
    lives = by_lives / in_cores if in_cores else 1
    print(f"{len(chosen) - len(alive)} of {len(chosen)} found ({found:.0%}, at least {WHOLE:.0%}); "
          f"in the cores {by_lives} of {in_cores} by random lives ({lives:.0%}, at least {BY_LIVES:.0%})")
    return 0 if found >= WHOLE and lives >= BY_LIVES else 1


if __name__ == "__main__":
    sys.exit(main())
