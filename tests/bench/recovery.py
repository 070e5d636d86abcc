#!/usr/bin/env python3
"""A PyTorch DDP script under torchrun, NVIDIA's ft_launcher and Regroup: from a SIGKILL to its next step, start, memory.

  ./dev bench recovery            every case, ten times, about half an hour: a JSON line per case and launcher, then a table
  ./dev bench recovery --fast     each once
  ./dev bench recovery killed     cases whose name contains one of the words
  ./dev bench recovery --check    exit 1 where Regroup misses a *ship* target

A recovery is timed from the kernel's exit event of one rank, killed at a random moment, until every rank has completed an
optimizer step. One that takes longer than 30 s is called never; ratios are over those of torchrun that came back.
"""
import argparse
import dataclasses
import json
import math
import os
import platform
import random
import signal
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import race_table  # noqa: E402
import race_world as rw  # noqa: E402
import world as w  # noqa: E402
import cluster as cl  # noqa: E402 (race_world knows where it is)
from race_cases import BEST_CONF  # noqa: E402
from row import cpu_model  # noqa: E402

SCRIPT = os.path.join(HERE, "ddp_steps.py")
IN_PLACE_SCRIPT = os.path.join(HERE, "inplace_steps.py")
PHASES = ("begun", "imported", "met", "step")
BOUND = 30.0


@dataclasses.dataclass(frozen=True)
class Case:
    """Of `ours`: at most `ship` times what `over` takes, and at most `ship_s` seconds. `fewer`: a whole node is killed."""
    name: str
    unit: str
    nodes: int
    per_node: int
    rounds: int
    over: str
    ship: float
    aim: float
    ship_s: float = math.inf
    ours: str = "Regroup --warm"
    fewer: bool = False

    @property
    def shape(self):
        """What cases of one start have in common."""
        return self.nodes, self.per_node, self.fewer, self.ours == IN_PLACE


IN_PLACE = "Regroup in place"
KILLED = [Case("rank killed, 2 ranks on 1 node", "s", 1, 2, 10, "torchrun", 0.15, 0.06, 0.5),
          Case("rank killed, 2 nodes of 1 rank", "s", 2, 1, 10, "torchrun", 0.15, 0.06, 0.5),
          Case("rank killed, 8 ranks on 1 node", "s", 1, 8, 10, "torchrun", 0.15, 0.06, 0.5)]
KEPT = [Case("node killed, 3 nodes of 1 rank, world one smaller", "s", 3, 1, 10, "torchrun", 0.05, 0.05, 0.15, IN_PLACE, True),
        Case("rank killed, 3 ranks on 1 node, replaced", "s", 1, 3, 10, "torchrun", 0.12, 0.06, 0.5, IN_PLACE),
        Case("rank killed, 8 ranks on 1 node, replaced", "s", 1, 8, 10, "torchrun", 0.12, 0.06, 0.5, IN_PLACE)]
STARTED = Case("start, 8 ranks on 1 node", "s", 1, 8, 10, "torchrun", 0.5, 0.3)
MEMORY = Case("memory of 8 ranks", "MB", 1, 8, 10, "Regroup", 0.7, 0.5)
CASES = [STARTED, MEMORY, *KILLED, *KEPT]  # Of one shape, a kill is the last.


class Others(rw.Launcher):
    def command(self, world, i, worker):
        command = [*self.program, "--nnodes", world.nnodes, "--nproc-per-node", str(world.per_node), "--max-restarts", "100"]
        if world.nodes == 1:
            return [*command, "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", *worker]
        return [*command, "--rdzv-backend", "c10d", "--rdzv-endpoint", f"{world.address}:{world.port}", "--rdzv-id", "recovery",
                "--local-addr", world.address, "--rdzv-conf", f"{self.conf},is_host={'true' if i == 0 else 'false'}", *worker]


class Ours(rw.Regroup):
    def command(self, world, i, worker):
        command = [*self.program, "run", "-q", "--nproc-per-node", str(world.per_node), "--max-restarts", "100",
                   "--state-dir", os.path.join(world.folder, f"n{i}"), *self.conf.split()]
        if world.nodes > 1:
            command += ["--nnodes", world.nnodes, "--rdzv-endpoint", f"{world.address}:{world.port}", "--rdzv-id", "recovery",
                        "--node-name", f"n{i}"]
        return [*command, *worker]


class OursInPlace(Ours):
    """Survivors keep their processes."""


class Job(rw.World):
    """The script under one launcher."""

    def __init__(self, bin_dir, launcher, case):
        super().__init__(bin_dir, launcher, case.nodes, f"{case.nodes - 1}:{case.nodes}" if case.fewer else None)
        self.per_node, self.size = case.per_node, case.nodes * case.per_node
        self.in_place = isinstance(launcher, OursInPlace)
        self.worker = [IN_PLACE_SCRIPT if self.in_place else SCRIPT, self.marks]

    def notes(self, after):
        """{rank: (pid, {phase: when it was first come to})} of processes that began after that moment and still live."""
        found = {}
        for name in os.listdir(self.marks):
            rank, pid = map(int, name.split("."))
            with open(os.path.join(self.marks, name), encoding="ascii") as f:
                lines = [line.split() for line in f if line.endswith("\n")]
            phases = {}
            for phase, nanoseconds in lines:
                phases.setdefault(phase, int(nanoseconds) / 1e9)
            if phases.get("begun", 0) > after and cl.alive(pid):
                found[rank] = (pid, phases)
        return found

    def newest_generation(self):
        """Its number, and {process: its first step in it} of those that live."""
        found = {}
        for name in os.listdir(self.marks):
            pid = int(name.split(".")[1])
            if not cl.alive(pid):
                continue
            with open(os.path.join(self.marks, name), encoding="ascii") as f:
                for phase, nanoseconds in (line.split() for line in f if line.endswith("\n")):
                    if phase.startswith("step."):
                        found.setdefault(int(phase[5:]), {}).setdefault(pid, int(nanoseconds) / 1e9)
        return max(found.items(), default=(0, {}))

    def await_generation(self, newer_than):
        """The steps of all ranks in a generation above that; None when they have not come within BOUND seconds."""
        deadline = time.monotonic() + BOUND
        while time.monotonic() < deadline:
            generation, steps = self.newest_generation()
            if generation > newer_than and len(steps) == self.size:
                return steps
            cl.reap()
            time.sleep(0.005)
        return None

    def await_steps(self, after):
        """The same, once every rank has completed a step; None when it has not within BOUND seconds."""
        deadline = time.monotonic() + BOUND
        while time.monotonic() < deadline:
            found = self.notes(after)
            if len(found) == self.size and all("step" in phases for _, phases in found.values()):
                return found
            cl.reap()
            time.sleep(0.005)
        return None


def ends_of_phases(found):
    """When the slowest rank came to each phase."""
    return [max(phases[phase] for _, phases in found.values()) for phase in PHASES]


def since(moment, ends):
    """{phase: seconds} one after the other."""
    return {phase: end - begin for phase, begin, end in zip(PHASES, [moment, *ends], ends)}


class Bench:
    def __init__(self, bin_dir, cases, fast):
        self.bin_dir, self.cases, self.fast = bin_dir, cases, fast
        self.samples, self.phases, self.absent = {}, {}, {}
        self.machine = f"{os.cpu_count()} cores, {cpu_model()}, Linux {platform.release()}"
        python, ft = os.environ.get("REGROUP_TEST_PYTHON"), os.environ.get("REGROUP_FT_LAUNCHER")
        regroup = (os.path.join(bin_dir, "regroup"),)
        self.launchers = [Others("torchrun", (python, "-m", "torch.distributed.run"), BEST_CONF),
                          *([Others("ft_launcher", (ft,), BEST_CONF)] if ft else []),
                          Ours("Regroup", regroup), Ours("Regroup --warm", regroup, "--warm"),
                          OursInPlace(IN_PLACE, regroup, "--warm --in-place")]

    def launchers_of(self, case):
        """In place is measured beside whom it is compared with; other cases are not of it."""
        of_it = (case.ours, case.over) if case in KEPT else [each.name for each in self.launchers if each.name != IN_PLACE]
        return [launcher for launcher in self.launchers if launcher.name in of_it]

    def add(self, case, launcher, sample, phases=None):
        self.samples.setdefault((case.name, launcher.name), []).append(sample)
        if phases:
            self.phases.setdefault((case.name, launcher.name), []).append(phases)

    def round(self, cases, launcher):
        """One start, and what these cases, of one shape, want to know of it."""
        with rw.Race(self.bin_dir) as race:
            job = Job(self.bin_dir, launcher, cases[0])
            race.worlds.append(job)
            begun = job.launch()
            found = job.await_steps(after=0)
            if found is None:
                raise RuntimeError(f"{launcher.name}: {job.size} ranks did not come to a step within {BOUND:.0f} s\n{job.logs()}")
            for case in cases:
                if case is STARTED:
                    ends = ends_of_phases(found)
                    self.add(case, launcher, ends[-1] - begun, since(begun, ends))
                elif case is MEMORY:
                    self.add(case, launcher, rw.pss_mb(self.own(job, found)))
                else:
                    self.kill(case, launcher, job, found)

    @staticmethod
    def own(job, found):
        """The ranks, and what they are forked from."""
        nurseries = [pid for pid in cl.descendants(job.launchers[0].pid) if cl.command_of(pid).startswith("regroup-nursery")]
        return [pid for pid, _ in found.values()] + nurseries

    def kill(self, case, launcher, job, found):
        time.sleep(random.uniform(0.2, 1.2))
        generation = job.newest_generation()[0]
        if case.fewer:  # Not the first, where torchrun's rendezvous is.
            job.size -= 1
            died = job.strike(random.randrange(1, case.nodes), signal.SIGKILL)
        else:
            died = w.exit_time(found[random.randrange(job.size)][0])
        if job.in_place:
            steps = job.await_generation(newer_than=generation)
            return self.add(case, launcher, math.inf if steps is None else max(steps.values()) - died)
        again = job.await_steps(after=died)
        if again is None:
            return self.add(case, launcher, math.inf)
        ends = ends_of_phases(again)
        return self.add(case, launcher, ends[-1] - died, since(died, ends))

    def tell(self, case, launcher):
        samples = self.samples[case.name, launcher.name]
        back = [s for s in samples if not math.isinf(s)]
        line = {"case": case.name, "launcher": launcher.name, "unit": case.unit, "n": len(samples), "came_back": len(back)}
        if back:
            line.update(p50=race_table.finite(race_table.median(back)), max=race_table.finite(max(back)))
        phases = self.phases.get((case.name, launcher.name))
        if phases:
            line["phases_p50"] = {phase: round(race_table.median([p[phase] for p in phases]), 3) for phase in PHASES}
        print(json.dumps({**line, "setup": self.machine}), flush=True)

    def measure(self):
        """Launchers in turn, so that whatever else this machine does meets them all."""
        for shape in dict.fromkeys(case.shape for case in self.cases):
            cases = [case for case in self.cases if case.shape == shape]
            for number in range(1 if self.fast else cases[0].rounds):
                for launcher in self.launchers_of(cases[0]):
                    rw.say(f"{', '.join(case.name for case in cases)}: {launcher.name}, {number + 1}")
                    self.round(cases, launcher)
            for case in cases:
                for launcher in self.launchers_of(case):
                    self.tell(case, launcher)

    def median(self, case, name):
        back = [s for s in self.samples.get((case.name, name), []) if not math.isinf(s)]
        return race_table.median(back) if back else math.inf

    def missed(self, case):
        ours, other = self.median(case, case.ours), self.median(case, case.over)
        never = any(math.isinf(s) for s in self.samples.get((case.name, case.ours), [math.inf]))
        return never or ours > case.ship_s or ours > case.ship * other

    def table(self):
        names = [launcher.name for launcher in self.launchers]
        rows = [["case", *names, "ours over", "ship", "aim"]]
        for case in self.cases:
            cells = [self.cell(case, name) for name in names]
            other = self.median(case, case.over)
            ratio = "-" if math.isinf(other) else f"{self.median(case, case.ours) / other:.2f} x {case.over}"
            limit = f"{case.ship:g} x" + ("" if math.isinf(case.ship_s) else f", {case.ship_s:g} {case.unit}")
            rows.append([case.name, *cells, ratio, limit + (" MISSED" if self.missed(case) else ""), f"{case.aim:g} x"])
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        lines = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths)) + " |" for row in rows]
        lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
        return "\n".join(lines)

    def cell(self, case, name):
        samples = self.samples.get((case.name, name))
        if samples is None:
            return "-"
        never = sum(map(math.isinf, samples))
        if never == len(samples):
            return f"never in {BOUND:.0f} s"
        shown = race_table.shown(self.median(case, name), case.unit)
        return shown + (f" ({never} of {len(samples)} never)" if never else "")


def interrupted(*_):
    raise KeyboardInterrupt


def main():
    parser = argparse.ArgumentParser(prog="./dev bench recovery", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="only cases whose name contains one of these")
    parser.add_argument("--fast", action="store_true", help="measure everything once")
    parser.add_argument("--check", action="store_true", help="exit 1 when Regroup misses a ship target")
    parser.add_argument("--bin-dir", default=os.environ.get("REGROUP_BIN_DIR", "build/release/bin"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    cases = [case for case in CASES if not options.words or any(word in case.name for word in options.words)]
    if not cases:
        parser.error(f"no case has {' or '.join(options.words)} in its name; they are: {', '.join(c.name for c in CASES)}")
    if not os.environ.get("REGROUP_TEST_PYTHON"):
        sys.exit("error: REGROUP_TEST_PYTHON names no PyTorch\n  try: ./dev bench recovery, which installs it")
    os.environ["PYTHON_EXEC"] = os.environ["REGROUP_TEST_PYTHON"]
    os.environ["PYTHONPATH"] = os.path.join(HERE, "..", "..", "worker", "python")
    signal.signal(signal.SIGTERM, interrupted)
    cl.become_subreaper()
    bench = Bench(os.path.abspath(options.bin_dir), cases, options.fast)
    try:
        bench.measure()
    except KeyboardInterrupt:
        sys.exit("interrupted")
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        cl.kill_descendants()
    print(bench.table())
    missed = [case.name for case in cases if bench.missed(case)]
    if missed:
        rw.say(f"Regroup missed: {', '.join(missed)}")
    return 1 if options.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
