#!/usr/bin/env python3
"""A cluster under load and SIGKILLs for minutes: what grows, what is left, and whether each job ran as often as its exits say.

  ./dev bench soak --minutes N [--seed N]

One coordinator and three agents with two slots each on loopback, two jobs a second, every 7 to 13 s a SIGKILL of a worker, a shim,
an agent or the coordinator. In the second half coordinator and third agent are spared, so that their growth shows. The table is
taken after 12 s, in the middle, and at the end once all jobs are over; exit code 1 when a row is judged bad.
"""
import argparse
import collections
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "demo"))
import cluster as cl  # noqa: E402

NODES = ("n1", "n2", "n3")
JOBS_A_SECOND = 2
# Bounds of the second half: memory that a finished job may cost (its rows are kept), what else may drift.
KB_A_JOB, COORDINATOR_MB, AGENT_MB, FDS, THREADS, JOURNAL_KB_A_JOB = 12, 8, 4, 4, 2, 8
# What a job does: it says that it began, works a while, sometimes fails once, and says that it ended well.
WORKER = ('echo "start $TORCHELASTIC_RESTART_COUNT $$" >> "$0"; sleep "$1"; '
          '[ "$2" = 0 ] || [ "$(grep -c start "$0")" -gt 1 ] || { echo "fail" >> "$0"; exit 3; }; echo "done" >> "$0"')


def word(pid, name, index=1):
    with open(f"/proc/{pid}/{name}", encoding="ascii", errors="replace") as f:
        return f.read().split()[index]


def status(pid, key):
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as f:
        return next((int(line.split()[1]) for line in f if line.startswith(key)), 0)


def reap_orphans():
    """Those of killed agents are ours. What subprocess has started is left to it: it wants to know how that ended."""
    for pid in cl.children_of(os.getpid()):
        try:
            name, state = word(pid, "comm", 0), word(pid, "stat", 2)
            if state == "Z" and name != "regroup" and not name.startswith("regroup-agent"):
                os.waitpid(pid, os.WNOHANG)
        except (OSError, IndexError):
            continue


class Soak:
    def __init__(self, bin_dir, folder, seed):
        self.cluster = cl.Cluster(bin_dir, folder)
        self.folder, self.jobs_dir = folder, os.path.join(folder, "jobs")
        os.mkdir(self.jobs_dir)
        self.rng = random.Random(seed)
        self.agents, self.kills, self.submitted, self.retried = {}, collections.Counter(), [], 0
        self.stop = threading.Event()

    def start(self):
        self.cluster.start_coordinator()
        for name in NODES:
            self.start_agent(name)

    def start_agent(self, name):
        self.agents[name] = self.cluster._spawn(name, [  # pylint: disable=protected-access
            "agent", "--coordinator", f"127.0.0.1:{self.cluster.port}", "--node-name", name, "--slots", "2",
            "--state-dir", os.path.join(self.folder, name)])

    def submit_for_ever(self):
        number = 0
        while not self.stop.wait(1 / JOBS_A_SECOND):
            number += 1
            mark = os.path.join(self.jobs_dir, str(number))
            call = ["submit", "--name", f"soak{number}", "--max-restarts", "100", "--", "sh", "-c", WORKER, mark,
                    f"{self.rng.uniform(0.1, 2.5):.2f}", str(int(number % 10 == 0))]
            for _ in range(50):  # Over a coordinator that is dead.
                done = self.cluster.call(*call, timeout=30)
                if done.returncode == 0 and done.stdout.strip():
                    self.submitted.append((done.stdout.strip(), mark))
                    break
                self.retried += 1
                time.sleep(0.2)

    def kill_one(self, spare):
        kinds = ["worker", "worker", "shim", "shim", "agent", "agent"] + ([] if spare else ["coordinator"])
        kind = self.rng.choice(kinds)
        names = NODES[:-1] if spare else NODES
        if kind == "coordinator":
            self.cluster.coordinator.kill()
            self.cluster.coordinator.wait()
            self.cluster.start_coordinator()
        elif kind == "agent":
            name = self.rng.choice(names)
            self.agents[name].kill()
            self.agents[name].wait()
            self.start_agent(name)
        else:
            found = [pid for pid in cl.descendants(os.getpid())
                     if ("regroup-shim" in cl.command_of(pid)) == (kind == "shim") and
                     (kind == "shim" or self.jobs_dir in cl.command_of(pid))]
            if not found:
                return
            cl.kill(self.rng.choice(found))
        self.kills[kind] += 1

    def shims(self):
        return [pid for pid in cl.descendants(os.getpid()) if "regroup-shim" in cl.command_of(pid)]

    def row(self):
        coordinator, agent = self.cluster.coordinator.pid, self.agents["n3"].pid
        database = next((os.path.join(base, "journal.db") for base, _, names in os.walk(self.folder) if "journal.db" in names), "")
        size = lambda path: os.path.getsize(path) / 1024 if os.path.exists(path) else 0  # noqa: E731
        return {
            "jobs": len(self.submitted),
            "coordinator MB": status(coordinator, "VmRSS") / 1024, "coordinator fd": len(os.listdir(f"/proc/{coordinator}/fd")),
            "coordinator threads": status(coordinator, "Threads"),
            "n3 MB": status(agent, "VmRSS") / 1024, "n3 fd": len(os.listdir(f"/proc/{agent}/fd")),
            "n3 threads": status(agent, "Threads"),
            "journal KB": size(database), "log of it KB": size(database + "-wal"),
            "run directories": sum(len(os.listdir(os.path.join(base, node))) for base in self.run_bases() for node in os.listdir(base)),
            "cgroups": self.cgroups(),
            "zombies": len(self.zombies()),
            "shims": len(self.shims()),
        }

    def zombies(self):
        """Those that nobody waits for, and whose they are: a process that has just ended is one for a moment."""
        def now():
            reap_orphans()
            found = {}
            for pid in cl.descendants(os.getpid()):
                try:
                    if word(pid, "stat", 2) == "Z":
                        parent = word(pid, "stat", 3)
                        found[pid] = f"{word(pid, 'comm', 0)} {pid} of {word(parent, 'comm', 0)} {parent}"
                except (OSError, IndexError):
                    continue
            return found
        first = now()
        time.sleep(1)
        return {pid: whose for pid, whose in now().items() if pid in first}

    def run_bases(self):
        bases = ("/run/regroup", os.path.join(os.environ.get("XDG_RUNTIME_DIR") or "/run", "regroup"), f"/dev/shm/regroup-{os.geteuid()}")
        return [base for base in dict.fromkeys(bases) if os.path.isdir(base)]

    def cgroups(self):
        ours = word("self", "cgroup", -1).split(":")[-1]
        found = 0
        for root in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified"):
            for base, folders, _ in os.walk(root + ours):
                found += sum(name.startswith("regroup") for name in folders)
        return found

    def drained(self, seconds):
        limit = time.monotonic() + seconds
        while time.monotonic() < limit:
            listing = self.cluster.read("ps", "-a")
            if listing and all(job["state"] in ("succeeded", "failed", "cancelled") for job in listing["jobs"]) and not self.shims():
                return listing["jobs"]
            time.sleep(0.5)
        return None

    def check_jobs(self, jobs):
        """What is wrong with how often each ran. A generation starts once; nothing starts after it ended well."""
        wrong, states = [], {job["job"]: job["state"] for job in jobs}
        for job, mark in self.submitted:
            if states.get(job) != "succeeded":
                wrong.append(f"{job} is {states.get(job, 'gone')}")
                continue
            with open(mark, encoding="ascii") as f:
                lines = f.read().split("\n")[:-1]
            if lines.count("done") != 1:
                wrong.append(f"{job} ended well {lines.count('done')} times: {lines}")
            starts = [line for line in lines if line.startswith("start")]
            if len(set(starts)) != len(starts):
                wrong.append(f"{job} started a generation twice: {lines}")
        if len({job for job, _ in self.submitted}) != len(self.submitted):
            wrong.append("an id was given twice")
        return wrong


def judge(start, middle, end):
    """The growth from middle to end: the finished jobs' own share is allowed."""
    jobs = end["jobs"] - middle["jobs"]
    bounds = {"coordinator MB": COORDINATOR_MB + jobs * KB_A_JOB / 1024, "coordinator fd": FDS, "coordinator threads": THREADS,
              "n3 MB": AGENT_MB, "n3 fd": FDS, "n3 threads": THREADS, "journal KB": 4096 + jobs * JOURNAL_KB_A_JOB, "log of it KB": 8192}
    wrong = [f"{name} grew by {end[name] - middle[name]:.1f}, at most {bound:.1f} may come" for name, bound in bounds.items()
             if end[name] - middle[name] > bound]
    wrong += [f"{end[name]} {name} are left" for name in ("zombies", "shims", "cgroups") if end[name] > 0]
    if end["run directories"] > start["run directories"]:
        wrong.append(f"{end['run directories']} entries in run directories, {start['run directories']} at the start")
    return wrong


def main():
    parser = argparse.ArgumentParser(prog="./dev bench soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=15)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--bin-dir", default="build/release/bin", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if not 1 <= options.minutes <= 10_000:
        parser.error(f"--minutes {options.minutes} is not in [1, 10000]")
    cl.become_subreaper()
    folder = tempfile.mkdtemp(prefix="rg-soak-")
    soak = Soak(os.path.abspath(options.bin_dir), folder, options.seed)
    print(f"soak of {options.minutes:g} min, seed {options.seed}; logs in {folder}", flush=True)
    try:
        return run(soak, 60 * options.minutes)
    finally:
        soak.stop.set()
        soak.cluster.close()


def run(soak, seconds):
    soak.start()
    while not (soak.cluster.read("nodes") or {"nodes": []})["nodes"]:
        time.sleep(0.2)
    submitter = threading.Thread(target=soak.submit_for_ever)
    begun = time.monotonic()
    submitter.start()
    rows, next_kill = [], begun + 12
    while time.monotonic() < begun + seconds:
        time.sleep(0.2)
        reap_orphans()
        past = time.monotonic() - begun
        if not rows and past >= 12 or len(rows) == 1 and past >= seconds / 2:
            rows.append(soak.row())
        if time.monotonic() >= next_kill:
            soak.kill_one(spare=past >= seconds / 2 - 5)
            next_kill += soak.rng.uniform(7, 13)
    soak.stop.set()
    submitter.join()
    jobs = soak.drained(180)
    rows.append(soak.row())
    print(f"{'':<20}{'start':>10}{'middle':>10}{'end':>10}")
    for name in rows[0]:
        print(f"{name:<20}" + "".join(f"{row[name]:>10.1f}" if isinstance(row[name], float) else f"{row[name]:>10}" for row in rows))
    for whose in soak.zombies().values():
        print(f"zombie: {whose}")
    print(f"kills: {dict(soak.kills)}; submits tried again: {soak.retried}")
    wrong = judge(*rows)
    wrong += soak.check_jobs(jobs) if jobs is not None else ["jobs did not end within 3 min of the last submit"]
    print(json.dumps({"row": "soak", "jobs": len(soak.submitted), "kills": sum(soak.kills.values()), "ok": not wrong}), flush=True)
    for line in wrong[:50]:
        print(f"wrong: {line}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
