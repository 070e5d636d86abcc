"""The cases of the race. Each function measures some of them for some launchers; cases that take long share their time."""
import contextlib
import dataclasses
import itertools
import os
import signal
import sys
import time
import types

import race_world as rw
import world as w

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "e2e"))
import hosts  # noqa: E402 (the path has to come first)

BEST_CONF = "last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3"
FLAPS, FLAP_EVERY = 24, 5.0
APART = 2.0
TRIES = 3  # A start that fails says nothing of the recovery that is to be measured.


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    unit: str
    ship: float
    aim: float = None
    higher_is_better: bool = False


START = {n: Case(f"start, {n} node{'s' * (n > 1)}", "s", ship, aim) for n, ship, aim in ((1, 0.1, 0.04), (8, 0.3, 0.12), (16, 0.6, 0.3))}
ELASTIC = Case("elastic start, 8 nodes of 7:9", "s", 1.0, 0.7)
WORKER = {1: Case("worker killed, 1 node", "s", 0.025, 0.01), 8: Case("worker killed, 8 nodes", "s", 0.06, 0.025)}
KILLED = Case("node killed", "s", 0.5, 0.2)
STOPPED = Case("node silent, SIGSTOP", "s", 6.0, 5.5)
CUT = Case("node silent, packets dropped", "s", 6.0, 5.5)
RANK_0 = Case("node of group rank 0 killed", "s", 0.5, 0.2)
ADDED = Case("node added", "s", 1.0, 0.5)
ARRIVING = Case("re-forms, 8 nodes 2 s apart", "", 2)
FLAPPING = Case("re-forms, node flaps for 2 min", "", 5)
ADVANCES = Case("whole while a node flaps", "%", 90, higher_is_better=True)
MEMORY = Case("memory of a node", "MB", 25, 15)
WITH_COORDINATOR = Case("memory, with the coordinator", "MB", 45, 30)
CPU = Case("CPU, start and recovery, 8 nodes", "s", 1.5, 0.6)
CASES = [*START.values(), ELASTIC, *WORKER.values(), KILLED, STOPPED, CUT, RANK_0, ADDED, ARRIVING, FLAPPING, ADVANCES, MEMORY, WITH_COORDINATOR, CPU]


class Bench:
    """What the measuring functions share: where the programs are, which cases are wanted, where results go."""

    def __init__(self, bin_dir, cases, results, fast):
        self.bin_dir, self.cases, self.results, self.fast = bin_dir, cases, results, fast
        self.regroup = rw.Regroup("Regroup", (os.path.join(bin_dir, "regroup"),))
        python, ft = os.environ.get("REGROUP_TEST_PYTHON"), os.environ.get("REGROUP_FT_LAUNCHER")
        program = (python, "-m", "torch.distributed.run") if python else None
        self.defaults = rw.Launcher("torchrun defaults", program)
        self.best = rw.Launcher("torchrun best", program, BEST_CONF)
        self.fixed = rw.Launcher("torchrun fixed", program)
        self.ft = rw.Launcher("ft_launcher", (ft,) if ft else None, BEST_CONF)

    def wants(self, *cases):
        return [case for case in cases if case in self.cases]

    def times(self, n):
        return 1 if self.fast else n

    def able(self, launchers, nodes, *cases):
        """Those of `launchers` that are installed and have the memory for that many nodes each; says so of the others."""
        able, free = [], rw.free_memory_mb() - 1000
        for launcher in launchers:
            needs = nodes * (30 if launcher is self.regroup else 500 if launcher is self.ft else 400)
            why = "not installed" if launcher.program is None else f"needs {needs} MB of memory" if needs > free else None
            if why is None:
                free -= needs
                able.append(launcher)
            for case in cases if why else []:
                self.results.skip(case, launcher, why)
        return able

    def add(self, case, launcher, samples, setup):
        if case in self.cases and samples:
            self.results.add(case, launcher, samples, setup)


def starts(bench, launcher, nodes, rounds, kills, elastic=False):
    """Rounds of: start, one worker killed after another, everything killed; with what it cost."""
    start = ELASTIC if elastic else START[nodes]
    wanted = bench.wants(start, *([WORKER[nodes]] if nodes in WORKER else []), *([CPU] if nodes == 8 else []), *([MEMORY, WITH_COORDINATOR] if nodes == 1 else []))
    if not wanted or not bench.able([launcher], nodes, *wanted):
        return
    nnodes = f"{nodes - 1}:{nodes + 1}" if elastic else str(nodes)
    started, recovered, cpu, memory, whole_memory = [], [], [], [], []
    for _ in range(bench.times(rounds)):
        with rw.Race(bench.bin_dir) as race:
            world = race.world(launcher, nodes, nnodes=nnodes)
            before = rw.cpu_seconds_of_children()
            begun = world.launch()
            ranks = world.began(nodes)
            started.append(max(s for *_, s in ranks.values()) - begun)
            time.sleep(0.5)  # What was told of the start has arrived: training between two failures.
            if nodes == 1:
                memory.append(rw.pss_mb([p for p in world.node_processes(0) if p not in world.workers]))
                whole_memory.append(rw.pss_mb([p for p in rw.cl.descendants(os.getpid()) if p not in world.workers]))
            for i in range(kills):
                time.sleep(0.05)
                died = w.exit_time(ranks[i % nodes][0])
                ranks = world.await_whole(nodes, after=died)
                recovered.append(max(s for *_, s in ranks.values()) - died if ranks else rw.NEVER)
                if not ranks:
                    break
            rw.cl.kill_descendants()
            cpu.append(rw.cpu_seconds_of_children() - before)
    how = f"--nnodes {nnodes}{settings(launcher) if nodes > 1 else ''}, one launcher a node, all on one host"
    bench.add(start, launcher, started, f"exec of the first launcher to the last worker's first instruction, {how}")
    if nodes in WORKER:
        bench.add(WORKER[nodes], launcher, recovered, f"kernel's exit event of a SIGKILLed worker to the last new worker's first instruction, {how}")
    if nodes == 8 and not elastic:
        bench.add(CPU, launcher, cpu, f"user and system time of all processes, the no-op workers' too, until one worker was killed and all run again, {how}")
    what = "PSS of all processes of a job on one node, less its worker"
    bench.add(MEMORY, launcher, memory, f"{what} and, for Regroup, less the coordinator")
    bench.add(WITH_COORDINATOR, launcher, whole_memory, what)


@dataclasses.dataclass(frozen=True)
class Disturbance:
    """What is done to a running job of `nodes` nodes, and how many ranks have to run afterwards."""
    case: Case
    nodes: int
    after: int
    strike: object  # world, ranks, pair of hosts → the moment
    setup: str
    store: bool = False
    two_hosts: bool = False
    extra: tuple = ()


def kill_last(world, _ranks, _pair):
    return world.strike(world.nodes - 1, signal.SIGKILL)


def stop_last(world, _ranks, _pair):
    return world.strike(world.nodes - 1, signal.SIGSTOP)


def kill_rank_0(world, ranks, _pair):
    return world.strike(int(ranks[0][1]), signal.SIGKILL)


def add_node(world, _ranks, _pair):
    return world.launch_one(world.nodes)


def cut_last(world, _ranks, pair):
    begun = time.monotonic()
    pair.cut(world.hosts[-1])
    return begun


OTHERS = "to the last of the other two's new workers' first instruction, 3 nodes of 2:3"
DISTURBANCES = [
    Disturbance(KILLED, 3, 2, kill_last, f"all processes of a node that is not the endpoint's SIGKILLed {OTHERS}"),
    Disturbance(STOPPED, 3, 2, stop_last, f"all processes of a node that is not the endpoint's SIGSTOPped {OTHERS}"),
    Disturbance(RANK_0, 3, 2, kill_rank_0, f"all processes of group rank 0's node SIGKILLed {OTHERS}; the endpoint is a process on no node of the job",
                store=True),
    Disturbance(ADDED, 2, 3, add_node, "exec of a third launcher to the last of three new workers' first instruction, 2:3; Regroup with --scale-up now",
                extra=("--scale-up", "now")),
    Disturbance(CUT, 2, 1, cut_last, "what a host and the other one send each other vanishes, to the first instruction of the other's new worker; two network namespaces, 1:2",
                two_hosts=True, extra=("--insecure",)),
]


def disturbed(bench, launchers, wanted):
    """All these launchers through all these disturbances: worlds side by side, each struck when all are up and quiet."""
    launchers = bench.able(launchers, sum(d.nodes + (d.case is ADDED) for d in wanted), *[d.case for d in wanted])
    with contextlib.ExitStack() as stack:
        race = stack.enter_context(rw.Race(bench.bin_dir))
        worlds = []
        for launcher, disturbance in itertools.product(launchers, wanted):
            pair = stack.enter_context(Pair()) if disturbance.two_hosts else None
            worlds.append(types.SimpleNamespace(launcher=launcher, disturbance=disturbance, pair=pair, world=None, took=None))
        patient = [one for one in worlds if one.launcher is bench.defaults]
        for one in patient:  # They wait for a last call of 30 s in any case, so all of them at once.
            begin(race, one)
        for one in worlds:
            if one not in patient:
                up(race, one, rw.BOUND / 2)
        for one in patient:
            up(race, one, rw.BOUND)
        for one in worlds:
            one.ranks = one.world and one.world.whole(one.disturbance.nodes)
            if one.ranks is None:
                bench.results.skip(one.disturbance.case, one.launcher, f"{one.disturbance.case.name}: did not even start, {TRIES} times")
        worlds = [one for one in worlds if one.ranks]
        time.sleep(0.5)
        for one in worlds:
            one.begun = one.disturbance.strike(one.world, one.ranks, one.pair)
        await_recovery(worlds)
        return [(one.disturbance, one.launcher, one.took) for one in worlds]


class Pair(hosts.TwoHosts):
    """Two hosts that are made when they are entered, as themselves."""

    def __enter__(self):
        super().__enter__()
        return self


def begin(race, one):
    """Starts the launchers of a new world of this one's; True when they are there."""
    disturbance, pair = one.disturbance, one.pair
    one.world = race.world(one.launcher, disturbance.nodes, nnodes="1:2" if pair else "2:3", store=disturbance.store,
                           extra=disturbance.extra, hosts=pair.hosts if pair else None)
    # Of 1:2 the first alone would be a world already; which host has the endpoint is known there.
    return launched(one.world, host_first=not pair)


def up(race, one, bound):
    """Until all ranks of its world run, or it was tried often enough."""
    for _ in range(TRIES):
        if (one.world or begin(race, one)) and one.world.await_whole(one.disturbance.nodes, bound=bound):
            return
        for i in one.world.launchers:
            one.world.strike(i, signal.SIGKILL)
        one.world = None


def launched(world, host_first=True):
    try:
        world.launch(host_first)
    except RuntimeError as reason:
        rw.say(str(reason))
        return False
    return True


def await_recovery(worlds):
    while any(one.took is None for one in worlds):
        for one in worlds:
            if one.took is None:
                ranks = one.world.whole(one.disturbance.after, after=one.begun)
                if ranks:
                    one.took = max(s for *_, s in ranks.values()) - one.begun
                elif time.monotonic() > one.begun + rw.BOUND:
                    one.took = rw.NEVER
        rw.cl.reap()
        time.sleep(0.003 * len(worlds))


def disturbances(bench):
    wanted = [d for d in DISTURBANCES if d.case in bench.cases]
    why = hosts.available()
    if why:
        for case in bench.wants(CUT):
            for launcher in (bench.defaults, bench.best, bench.ft, bench.regroup):
                bench.results.skip(case, launcher, why)
        wanted = [d for d in wanted if not d.two_hosts]
    if not wanted:
        return
    for disturbance, launcher, took in disturbed(bench, [bench.defaults, bench.best, bench.ft], wanted):
        bench.add(disturbance.case, launcher, [took], f"{disturbance.setup}; with the other such jobs side by side{settings(launcher)}")
    for disturbance in wanted:
        rounds = 2 if disturbance.case in (STOPPED, CUT) else 5
        samples = [took for _ in range(bench.times(rounds)) for *_, took in disturbed(bench, [bench.regroup], [disturbance])]
        bench.add(disturbance.case, bench.regroup, samples, disturbance.setup)


def settings(launcher):
    return f"; --rdzv-conf {launcher.conf}" if launcher.conf else ""


def arriving(bench):
    """Eight nodes come one after another, two seconds apart, to a job of 7:9."""
    if not bench.wants(ARRIVING):
        return
    setup = f"8 launchers started {APART:g} s apart, --nnodes 7:9; worlds formed before the one of 8 ranks that runs"
    for launchers in ((bench.best, bench.defaults, bench.ft), (bench.regroup,)):
        launchers = bench.able(launchers, 8, ARRIVING)
        with rw.Race(bench.bin_dir) as race:
            worlds = [race.world(launcher, 8, nnodes="7:9") for launcher in launchers]
            begun = time.monotonic()
            due = sorted((begun + APART * (8 * k + i), k, i) for k in range(len(worlds)) for i in range(8))
            formed = {}
            while len(formed) < len(worlds):
                if due and time.monotonic() >= due[0][0]:
                    _, k, i = due.pop(0)
                    worlds[k].launch_one(i)
                for k, world in enumerate(worlds):
                    late = time.monotonic() > begun + APART * (8 * k + 7) + rw.BOUND
                    if k not in formed and (late or world.whole(8)):
                        formed[k] = world.formed() - 1 if world.whole(8) else rw.NEVER
                time.sleep(0.01)
        for k, launcher in enumerate(launchers):
            bench.add(ARRIVING, launcher, [formed[k]], setup + settings(launcher))


def flapping(bench):
    """A node of three is SIGKILLed every five seconds, and its launcher started again at once."""
    if not bench.wants(FLAPPING, ADVANCES):
        return
    launchers = bench.able([bench.defaults, bench.best, bench.ft, bench.regroup], 3, *bench.wants(FLAPPING, ADVANCES))
    with rw.Race(bench.bin_dir) as race:
        up_and_down = [(launcher, race.world(launcher, 3, nnodes="2:3")) for launcher in launchers]
        up_and_down = [(launcher, world) for launcher, world in up_and_down if launched(world) and world.await_whole(3)]
        launchers, worlds = [launcher for launcher, _ in up_and_down], [world for _, world in up_and_down]
        begun = last = time.monotonic()
        flaps, whole = 0, [0.0] * len(worlds)
        while last < begun + FLAPS * FLAP_EVERY:
            if last >= begun + flaps * FLAP_EVERY:
                flaps += 1
                for world in worlds:
                    world.strike(2, signal.SIGKILL)
                    world.launch_one(2)
            rw.cl.reap()
            time.sleep(0.02)
            now = time.monotonic()
            for k, world in enumerate(worlds):
                whole[k] += (now - last) * (world.whole() is not None)
            last = now
        formed = [world.formed() - 1 for world in worlds]
    setup = (f"one of 3 nodes of 2:3 SIGKILLed and started again at once, every {FLAP_EVERY:g} s, {FLAPS} times; all launchers side by side")
    for k, launcher in enumerate(launchers):
        bench.add(FLAPPING, launcher, [formed[k]], setup + settings(launcher))
        bench.add(ADVANCES, launcher, [100 * whole[k] / (last - begun)], f"share of that time in which all ranks of one world ran; {setup}")


def measure(bin_dir, cases, results, fast):
    """Everything, a part after another; True when a part broke."""
    bench = Bench(bin_dir, cases, results, fast)
    parts = [("starts of Regroup", lambda: [starts(bench, bench.regroup, n, rounds, kills) for n, rounds, kills in ((1, 20, 2), (8, 10, 1), (16, 5, 0))]),
             ("elastic starts of Regroup", lambda: starts(bench, bench.regroup, 8, 5, 0, elastic=True))]
    for launcher in (bench.fixed, bench.ft):
        parts.append((f"starts of {launcher.name}", lambda it=launcher: [
            starts(bench, it, n, rounds, kills) for n, rounds, kills in ((1, 3, 1), (8, 1, 1), (16, 1, 0))]))
    parts += [(f"elastic starts of {launcher.name}", lambda it=launcher, kills=kills: starts(bench, it, 8, 1, kills, elastic=True))
              for launcher, kills in ((bench.best, 1), (bench.defaults, 1), (bench.ft, 0))]
    parts += [("nodes killed, silent, added", lambda: disturbances(bench)), ("nodes arriving", lambda: arriving(bench)),
              ("a flapping node", lambda: flapping(bench))]
    broken = False
    for title, part in parts:
        begun = time.monotonic()
        try:
            part()
        except (RuntimeError, OSError) as reason:  # A part that breaks must not hide the others.
            rw.say(f"{title}: {type(reason).__name__}: {reason}")
            rw.cl.kill_descendants()
            broken = True
        if (took := time.monotonic() - begun) > 0.5:
            rw.say(f"{title}: {took:.0f} s")
    return broken
