#!/usr/bin/env python3
"""A real cluster on loopback trains a real model while its processes are killed, and proves that nothing was lost.

One coordinator and three agents; a submitted job (elastic 2:3) trains a GPT on text. Six acts. Every number shown
comes from the journal (`regroup explain --json`) or from the ranks' own logs; only the moments of the kills come from
this script, chosen by --seed.
"""
import argparse
import fcntl
import os
import random
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import cluster as cl  # noqa: E402
import proof  # noqa: E402
import screen as sc  # noqa: E402
import view  # noqa: E402

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
NODES = ["node-a", "node-b", "node-c"]
ACTS = view.ACTS


class Failed(Exception):
    """A check of the demo did not hold; the text says which, with numbers."""


class Plan:
    """Sizes and the steps at which the acts begin, all from the seed."""

    def __init__(self, fast, seed):
        rng = random.Random(seed)
        self.steps = 240 if fast else 600
        self.batch, self.context = (24, 32) if fast else (24, 64)
        self.every = 8
        gap = self.steps // 8
        self.at = {act: act * gap - gap // 2 + rng.randrange(gap // 3) for act in range(1, 6)}
        self.victim = rng.choice(NODES)
        self.pause = 0.2 + 0.6 * rng.random()

    def train_flags(self, data, checkpoints, samples):
        return ["train", "--data", data, "--layers", "6", "--width", "128", "--heads", "4", "--context", str(self.context),
                "--batch", str(self.batch), "--steps", str(self.steps), "--learning-rate", "1e-3", "--warmup", "20",
                "--seed", "1337", "--checkpoint-dir", checkpoints, "--checkpoint-every", str(self.every),
                "--sample-log", samples]


def lock_folder():
    """build/demo, or build/demo-2, … while another demo runs. The lock lives as long as we do."""
    base = os.path.join(REPOSITORY, "build")
    if not os.access(base if os.path.isdir(base) else REPOSITORY, os.W_OK):
        base = os.path.join(os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache")), "regroup")
    os.makedirs(base, exist_ok=True)
    for k in range(1, 100):
        folder = os.path.join(base, "demo" if k == 1 else f"demo-{k}")
        lock = open(folder + ".lock", "a")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            continue
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder, mode=0o700)
        return folder, lock
    raise Failed(f"99 demos are running: remove {base}/demo-*.lock")


def gather_text(path, target):
    """The demo's text: one file, or the licence texts that every Debian machine has."""
    data = b""
    if path:
        with open(path, "rb") as f:
            data = f.read()
    else:
        folder = "/usr/share/common-licenses"
        for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
            full = os.path.join(folder, name)
            if os.path.isfile(full) and not os.path.islink(full):
                with open(full, "rb") as f:
                    data += f.read()
    if len(data) < 20000:
        raise Failed(f"the text has {len(data)} bytes, at least 20000 are needed: name one with --data FILE")
    with open(target, "wb") as f:
        f.write(data)
    return data


class Demo:
    def __init__(self, options, screen):
        self.options, self.screen = options, screen
        self.seed = options.seed if options.seed is not None else random.SystemRandom().randrange(10000)
        self.plan = Plan(options.fast, self.seed)
        self.started = time.monotonic()
        self.folder, self.lock = lock_folder()
        self.samples = os.path.join(self.folder, "samples")
        self.checkpoints = os.path.join(self.folder, "checkpoints")
        os.makedirs(self.samples)
        self.cluster = cl.Cluster(options.bin_dir, self.folder)
        self.act = 0
        self.marks = {}      # act -> what its line says once it is over
        self.detail = ""     # of the running act
        self.coordinator = ""  # what the summary says of it
        self.view = None     # last explain --json
        self.viewed = 0.0

    # ---- looking -------------------------------------------------------------------------------

    def job(self, fresh=False):
        """The job as `explain --json` shows it; at most five times a second unless `fresh`."""
        if fresh or time.monotonic() - self.viewed > 0.2:
            shown = self.cluster.read("explain", "demo")
            self.viewed = time.monotonic()
            if shown is not None:
                self.view = shown
        return self.view

    def lines(self):
        return proof.read_sample_logs(self.samples)

    def step(self):
        lines = self.lines()
        if not lines:
            return 0
        newest = max(line.generation for line in lines)
        return max(line.step for line in lines if line.generation == newest)

    def wait(self, what, condition, seconds=60):
        """Until condition() is true; its value. Draws meanwhile."""
        deadline = time.monotonic() + seconds
        while True:
            value = condition()
            if value:
                return value
            job = self.view
            if job and job["state"] in ("failed", "cancelled"):
                raise Failed(f"the job {job['state']} while waiting for: {what}\n{self.cluster.call('explain', 'demo').stdout}")
            if time.monotonic() > deadline:
                raise Failed(f"waited {seconds} s for: {what}\n{self.cluster.call('explain', 'demo').stdout}")
            self.draw()
            cl.reap()
            time.sleep(0.03)

    def generation(self):
        """Number of the running generation, or 0."""
        job = self.job(fresh=True)
        if not job or job["state"] != "running":
            return 0
        return job["generation"]

    def running_after(self, generation, world):
        def check():
            now = self.generation()
            if now > generation:
                current = self.job()["generations"][-1]
                if current["generation"] == now and current["world"] == world and any(
                        line.generation == now for line in self.lines()):
                    return current
            return None
        return self.wait(f"a generation after {generation} with world {world}", check)

    def repeated(self, before, now):
        steps = max(line.step for line in self.lines() if line.generation == before) - now["restored_step"]
        return f"{steps} step{'' if steps == 1 else 's'} repeated"

    # ---- showing -------------------------------------------------------------------------------

    def clock(self):
        return view.clock(time.monotonic() - self.started)

    def draw(self, force=False):
        if not self.screen.live:
            return
        coordinator = self.cluster.coordinator
        up = coordinator is not None and coordinator.poll() is None
        alive = {name: self.cluster.agents.get(name) is not None and self.cluster.agents[name].poll() is None for name in NODES}
        self.screen.draw(view.live(
            self.act, self.marks, self.detail, time.monotonic() - self.started, "0:30" if self.options.fast else "1:30",
            self.job(), cl.age_of(coordinator.pid) if up else None, alive, self.lines(), time.time(), self.screen.columns()), force)

    def begin(self, act, detail=""):
        self.act, self.detail = act, detail
        if not self.screen.live:
            self.screen.say(f"[{self.clock()}] act {act}/6: {ACTS[act - 1]} {detail}".rstrip())
        self.draw(force=True)

    def over(self, text):
        self.marks[self.act], self.detail = text, ""
        if not self.screen.live:
            self.screen.say(f"[{self.clock()}]   {text}")
        self.draw(force=True)

    # ---- the acts ------------------------------------------------------------------------------

    def submit(self, data):
        worker = os.path.join(self.options.bin_dir, "regroup-worker")
        job = os.path.join(self.folder, "job.yaml")
        run = ", ".join(f'"{word}"' for word in [worker, *self.plan.train_flags(data, self.checkpoints, self.samples)])
        mutation = os.environ.get("REGROUP_TEST_MUTATION")
        with open(job, "w") as f:
            f.write(f"name: demo\nnnodes: 2:3\nnproc_per_node: 1\nrun: [{run}]\nworkdir: {self.folder}\ngrace: 10s\n"
                    "retry: {max: 5}\n" + (f"env: {{REGROUP_TEST_MUTATION: {mutation}}}\n" if mutation else ""))
        done = self.wait("the coordinator to take the job", lambda: self._submitted(job), 20)
        return done

    def _submitted(self, job):
        done = self.cluster.call("submit", job)
        if done.returncode == 125:
            return None
        if done.returncode != 0:
            raise Failed(f"submit was refused: {done.stderr}")
        return done.stdout.strip() or "demo"

    def until_step(self, act):
        target = self.plan.at[act]
        self.wait(f"step {target}", lambda: self.step() >= target, 240)
        time.sleep(self.plan.pause / 4)

    def act_train(self, data):
        self.begin(1)
        self.cluster.start_coordinator()
        for name in NODES:
            self.cluster.start_agent(name)
        self.submit(data)
        formed = self.running_after(0, 3)
        took = next(e["took_s"] for e in self.job()["events"] if e["type"] == "generation_formed"
                    and e["generation"] == formed["generation"])
        self.over(f"world 3 formed in {took:.2f} s")

    def act_worker(self):
        before = self.generation()
        _, _, workers = self.cluster.node_processes(self.plan.victim)
        self.begin(2, f"{self.plan.victim}, pid {workers[0]}")
        cl.kill(workers[0])
        now = self.running_after(before, 3)
        self.over(f"running again after {now['restart']['down_s']:.2f} s, {self.repeated(before, now)}")

    def act_node(self):
        before = self.generation()
        agent, shims, workers = self.cluster.node_processes("node-c")
        self.begin(3, f"agent {agent}, shims {shims}, worker {workers[0]}")
        for pid in [agent, *shims, *workers]:
            cl.kill(pid)
        now = self.running_after(before, 2)
        self.cluster.agents["node-c"].wait()
        self.over(f"2 nodes go on after {now['restart']['down_s']:.2f} s, {self.repeated(before, now)}")

    def act_coordinator(self):
        before = self.generation()
        workers = [self.cluster.node_processes(n)[2] for n in NODES[:2]]
        self.begin(4, f"pid {self.cluster.coordinator.pid}")
        served, at = len(self.cluster.served_at()), self.clock()
        killed = cl.kill(self.cluster.coordinator.pid)
        self.cluster.coordinator.wait()
        self.cluster.start_coordinator()
        serving = self.wait("the coordinator to serve", lambda: self.cluster.served_at()[served:], 20)[0] - killed
        self.wait("the coordinator to answer", lambda: self.cluster.read("ps") is not None, 20)
        step = self.step()
        self.wait("steps after the coordinator came back", lambda: self.step() >= step + 3, 30)
        self.wait("the job to be shown as running", lambda: self.generation() == before, 20)
        after = [self.cluster.node_processes(n)[2] for n in NODES[:2]]
        touched = sum(now != then for now, then in zip(after, workers))
        if touched:
            raise Failed(f"workers {workers} became {after} when the coordinator was killed")
        self.over(f"serving after {serving:.2f} s, {touched} workers touched")
        self.coordinator = f"SIGKILLed at {at}, {self.marks[4]}"

    def act_return(self):
        before = self.generation()
        self.begin(5)
        self.cluster.start_agent("node-c")
        now = self.running_after(before, 3)
        self.over(f"world 3 again after {now['restart']['down_s']:.2f} s, {self.repeated(before, now)}")

    def act_preempt(self):
        before = self.generation()
        self.begin(6, f"agent {self.cluster.agents['node-b'].pid}")
        cl.kill(self.cluster.agents["node-b"].pid, signal.SIGTERM)
        now = self.running_after(before, 2)
        last = max(line.step for line in self.lines() if line.generation == before)
        if now["restored_step"] != last:
            raise Failed(f"preemption: generation {before} reached step {last}, the next resumed from {now['restored_step']}")
        self.over(f"saved step {now['restored_step']} and left, {self.repeated(before, now)}")

    def run(self):
        data_path = os.path.join(self.folder, "data.txt")
        data = gather_text(self.options.data, data_path)
        self.act_train(data_path)
        for act, play in enumerate([self.act_worker, self.act_node, self.act_coordinator, self.act_return, self.act_preempt], 1):
            self.until_step(act)
            play()
        self.detail = "training to the end"
        self.wait("the job to end", lambda: (self.job(fresh=True) or {}).get("state") == "succeeded", 240)
        return Verdict(self, data, data_path)


class Verdict:
    """Everything that must hold at the end, and the summary."""

    def __init__(self, demo, data, data_path):
        self.demo, self.plan = demo, demo.plan
        self.view = demo.job(fresh=True)
        self.lines = demo.lines()
        self.generations = [g for g in self.view["generations"] if g["state"] != "voided"]
        self.resumed = {g["generation"]: g.get("restored_step", 0) for g in self.generations}
        self.entropy = proof.unigram_entropy(data)
        self.reference = self._undisturbed(data_path)
        self.problems = []
        self._check()

    def _undisturbed(self, data_path):
        """The same seed with nothing killed, as one process."""
        folder = os.path.join(self.demo.folder, "undisturbed")
        os.makedirs(os.path.join(folder, "samples"))
        self.demo.detail = "the same training undisturbed, to compare with"
        if not self.demo.screen.live:
            self.demo.screen.say(f"[{self.demo.clock()}] the same training undisturbed, to compare with")
        environment = {k: v for k, v in os.environ.items() if not k.startswith("REGROUP_")}
        environment.update(OMP_NUM_THREADS="2", GOMP_SPINCOUNT="100000")  # As an agent would set them.
        log = os.path.join(folder, "output")
        with open(log, "w") as f:
            process = subprocess.Popen(
                [os.path.join(self.demo.options.bin_dir, "regroup-worker"),
                 *self.plan.train_flags(data_path, os.path.join(folder, "checkpoints"), os.path.join(folder, "samples"))],
                env=environment, stdin=subprocess.DEVNULL, stdout=f, stderr=f, start_new_session=True)
        deadline = time.monotonic() + 600
        while process.poll() is None:
            if time.monotonic() > deadline:
                raise Failed(f"the undisturbed run took more than 600 s; it says {log}")
            self.demo.draw()
            time.sleep(0.05)
        if process.returncode != 0:
            with open(log, errors="replace") as f:
                raise Failed(f"the undisturbed run failed with exit {process.returncode}:\n{f.read()[-2000:]}")
        return proof.read_sample_logs(os.path.join(folder, "samples"))

    def _check(self):
        plan, problems = self.plan, self.problems
        found, self.repeated = proof.check_exactly_once(self.lines, self.resumed, plan.steps, plan.batch)
        problems += found
        self.counts = proof.count_samples(self.lines, self.resumed, plan.steps, plan.batch)
        mine, theirs = proof.step_hashes(self.lines, self.resumed), proof.step_hashes(self.reference, {})
        differ = [s for s in theirs if mine.get(s) != theirs[s]]
        if differ:
            problems.append(f"other samples than the undisturbed run in {len(differ)} steps, first {differ[:3]}")
        curve, reference = proof.losses(self.lines, self.resumed), proof.losses(self.reference, {})
        self.first, self.last, self.wanted = curve.get(1), curve.get(plan.steps), reference.get(plan.steps)
        if self.last is None or self.wanted is None or abs(self.last - self.wanted) > 1e-3:
            problems.append(f"final loss {self.last} differs from the undisturbed {self.wanted} by more than 1e-3")
        if self.last is not None and self.last >= self.entropy:
            problems.append(f"final loss {self.last} is not under the text's unigram entropy {self.entropy:.3f}")
        if not any(step > 0 for step in self.resumed.values()):
            problems.append("no generation resumed from a step above 0")
        if len(self.generations) < 5:
            problems.append(f"{len(self.generations)} generations, expected at least 5")
        self._check_resumes()

    def _check_resumes(self):
        """Each generation must resume from the newest commit that the journal accepted before it formed."""
        newest = 0
        wanted = {}
        for event in self.view["events"]:
            if event["type"] == "commit_accepted":
                newest = max(newest, event["step"])
            elif event["type"] == "generation_formed":
                wanted[event["generation"]] = newest
        for generation in self.generations:
            number = generation["generation"]
            if self.resumed[number] != wanted.get(number):
                self.problems.append(f"generation {number} resumed from step {self.resumed[number]}, the newest commit "
                                     f"was {wanted.get(number)}")

    def sample_text(self):
        command = [os.path.join(self.demo.options.bin_dir, "regroup-worker"), "generate", "--checkpoint", self.demo.checkpoints,
                   "--tokens", "60", "--seed", "1"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=60)
        except subprocess.TimeoutExpired:
            self.problems.append("generate took more than 60 s")
            return ""
        if done.returncode != 0:
            self.problems.append(f"generate failed with exit {done.returncode}: {done.stderr.strip()}")
        return " ".join(done.stdout.split())

    def summary(self):
        plan, options = self.plan, self.demo.options
        text = self.sample_text()
        again = "./dev demo" + (" --fast" if options.fast else "") + f" --seed {self.demo.seed}"
        rows = ["", f" Regroup demo: {'FAILED' if self.problems else 'PASSED'} in {self.demo.clock()}   (seed {self.demo.seed}; repeat: {again})",
                *view.generations_table(self.generations, self.lines)]
        speed = self.counts.consumed * plan.context / max(self.view["ran_for_s"], 1e-9)
        rows += [f" coordinator  {self.demo.coordinator}",
                 view.loss_row(self.first, self.last, self.entropy, self.wanted),
                 view.samples_row(self.counts, plan.steps * plan.batch, self.repeated),
                 f" speed        {speed:,.0f} tokens/s   goodput {100 * self._goodput():.1f} %",
                 f' it writes    "…{text[:56]}…"',
                 f" look         regroup explain demo-1 --state-dir {os.path.relpath(self.demo.folder)} · ./dev demo --play"]
        rows += [f" FAILED: {problem}" for problem in self.problems]
        return rows

    def _goodput(self):
        account = self.view["time"]
        return account["productive_s"] / max(sum(account.values()), 1e-9)


def play(demo):
    """Leaves the cluster up, with commands to try."""
    say = demo.screen.say
    say(f"\n The cluster stays up; in another terminal:\n   export REGROUP_COORDINATOR={demo.cluster.environment['REGROUP_COORDINATOR']}")
    binary = os.path.join(os.path.relpath(demo.options.bin_dir), "regroup")
    for command in ("ps -a", "nodes", "explain demo-1", "logs demo-1 --tail 5", f"submit {os.path.relpath(demo.folder)}/job.yaml"):
        say(f"   {binary} {command}")
    for name, process in demo.cluster.agents.items():
        if process.poll() is None:
            say(f"   kill -9 {process.pid}    # the agent of {name}: its workers run on")
    say(f"   kill -9 {demo.cluster.coordinator.pid}    # the coordinator\n Ctrl-C here ends everything.")
    while True:
        cl.reap()
        time.sleep(0.2)
        if demo.cluster.coordinator.poll() is not None:
            demo.cluster.start_coordinator()
        for name in [n for n, p in demo.cluster.agents.items() if p.poll() is not None]:
            demo.cluster.start_agent(name)


def main():
    parser = argparse.ArgumentParser(prog="./dev demo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fast", action="store_true", help="under a minute, for CI")
    parser.add_argument("--play", action="store_true", help="leave the cluster up afterwards and print commands to try")
    parser.add_argument("--data", metavar="FILE", help="text to train on (default: the licence texts of this machine)")
    parser.add_argument("--seed", type=int, help="chooses the moments of the kills (default: random, printed)")
    parser.add_argument("--bin-dir", default=os.environ.get("REGROUP_BIN_DIR", os.path.join(REPOSITORY, "build/release/bin")),
                        help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.data and not os.access(options.data, os.R_OK):
        parser.error(f"cannot read --data {options.data}")
    options.bin_dir = os.path.abspath(options.bin_dir)

    def interrupted(number, _):
        raise KeyboardInterrupt(number)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupted)
    cl.become_subreaper()
    screen = sc.Screen()
    demo = None
    status = 1
    try:
        demo = Demo(options, screen)
        verdict = demo.run()
        for row in verdict.summary():
            screen.say(row)
        status = 1 if verdict.problems else 0
        if options.play:
            play(demo)
    except KeyboardInterrupt as reason:
        number = reason.args[0] if reason.args else signal.SIGINT
        screen.say(" stopped; nothing is left running")
        status = 128 + number
    except Failed as reason:
        screen.say(f" FAILED: {reason}\n seed {demo.seed if demo else '-'}; logs in {demo.folder if demo else '-'}")
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        if demo is not None:
            demo.cluster.close()
        screen.close()
    return status


if __name__ == "__main__":
    sys.exit(main())
