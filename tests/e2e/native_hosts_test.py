"""The native trainer on two hosts (network and UTS namespaces): the bits of one host, and what becomes of a rank or a host that dies."""
import os
import shutil
import signal
import subprocess
import sys

import hosts
import regroup_e2e as e2e

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "demo"))
import proof  # noqa: E402 (the path has to come first)

TEXT = "/usr/share/common-licenses/GPL-3"
READER = os.path.join(HERE, "..", "worker", "checkpoint", "read_checkpoint.py")
BATCH = 8


class Native(hosts.TwoHostsTestCase):
    def launch(self, name, host, nnodes, ranks, steps, *options):
        """A node of the training `name` on a host; all hosts see one folder of checkpoints, as on a network file system."""
        return self.launch_alone(name, host, nnodes, ranks, steps, "--checkpoint-every", "10", "--checkpoint-dir", self.folder("ckpt", name), *options)

    def launch_alone(self, name, host, nnodes, ranks, steps, *options):
        """The same without checkpoints."""
        return self.fx.start(*host.command(
            e2e.binary("regroup"), "run", "--nnodes", nnodes, "--nproc-per-node", str(ranks), "--max-restarts", "3", "--insecure",
            "--rdzv-endpoint", self.hosts[0].ipv4, "--rdzv-id", "train", "--state-dir", self.fx.path("state", name, host.name),
            e2e.binary("regroup-worker"), "train", "--data", TEXT, "--steps", str(steps), "--layers", "2", "--width", "64",
            "--heads", "2", "--context", "32", "--batch", str(BATCH), "--sample-log", self.folder("samples", name), *options))

    def folder(self, kind, name):
        return self.fx.path("work", f"{kind}-{name}")

    def finish(self, launchers):
        for launcher in launchers:
            self.assertEqual(launcher.wait(90), 0, self.fx.describe())

    def on_one(self, name, steps, *options):
        self.finish([self.launch(name, self.hosts[0], "1", 4, steps, *options)])

    def on_two(self, name, steps, *options):
        self.finish([self.launch(name, host, "2", 2, steps, *options) for host in self.hosts])

    def losses(self, name):
        """Of each step and rank, what the newest generation that made it says."""
        return {(line.step, line.rank): (line.hash, line.loss) for line in proof.read_sample_logs(self.folder("samples", name))}

    def state(self, name):
        """Weights and moments of the newest checkpoint, by a reader that shares no code with the writer."""
        out = self.fx.path("work", f"state-{name}")
        subprocess.run([sys.executable, READER, self.folder("ckpt", name), out], check=True, capture_output=True)
        with open(out, "rb") as f:
            return f.read()

    def same(self, name, other):
        self.assertEqual(self.losses(name), self.losses(other))
        self.assertTrue(self.state(name) == self.state(other), f"{name} and {other} end with other weights or moments")

    def await_step(self, name, step):
        return e2e.wait_for(lambda: max((line.step for line in proof.read_sample_logs(self.folder("samples", name))), default=0) >= step,
                            60, f"step {step}", self.fx.describe)

    def worker(self, rank):
        for info in self.fx.processes("regroup-worker"):
            if not info.argv[0].endswith("regroup-worker"):
                continue
            with open(f"/proc/{info.pid}/environ", "rb") as f:
                if f"RANK={rank}".encode() in f.read().split(b"\0"):
                    return info.pid
        raise AssertionError(f"no rank {rank}: {self.fx.describe()}")

    def test_every_strategy_has_the_bits_of_one_host(self):
        for strategy in ("ddp", "zero-1", "zero-2", "zero-3"):
            self.on_two(f"two-{strategy}", 24, "--strategy", strategy)
            if strategy in ("ddp", "zero-3"):
                self.on_one(f"one-{strategy}", 24, "--strategy", strategy)
                self.same(f"two-{strategy}", f"one-{strategy}")
            self.same(f"two-{strategy}", "one-ddp")
        self.on_one("one-bf16", 24, "--precision", "bf16")
        for strategy in ("zero-1", "zero-3"):  # What is gathered is rounded.
            self.on_two(f"two-bf16-{strategy}", 24, "--precision", "bf16", "--strategy", strategy)
            self.same(f"two-bf16-{strategy}", "one-bf16")

    def test_what_is_exchanged_short_has_the_bits_of_one_host(self):
        self.on_one("floats", 24)
        self.on_one("one", 24, "--reduce-type", "bf16")
        with self.assertRaises(AssertionError):
            self.same("one", "floats")
        for strategy in ("ddp", "zero-2", "zero-3"):
            self.on_two(f"two-{strategy}", 24, "--reduce-type", "bf16", "--strategy", strategy)
            self.same(f"two-{strategy}", "one")

    def test_groups_have_the_bits_of_one_host(self):
        """A copy on each host; and groups that lie across both of them."""
        self.on_one("one", 24)
        sent = {}
        for name, *flags in (("hybrid", "--strategy", "hybrid-shard"), ("zero-2", "--strategy", "zero-2", "--shard-group", "2"),
                             ("whole", "--strategy", "zero-3", "--shard-group", "4"), ("ddp", "--strategy", "ddp")):
            before = self.sent()
            self.on_two(name, 24, *flags)
            sent[name] = self.sent() - before
            self.same(name, "one")
        # Sums cross the network, gathers do so only where a group does.
        self.assertLess(sent["hybrid"], 1.1 * sent["ddp"])
        self.assertLess(sent["zero-2"], 1.1 * sent["ddp"])
        self.assertGreater(sent["whole"], 1.3 * sent["ddp"])

    def test_no_host_leaves_before_the_others_are_done(self):
        """Where gathers stay on a host, the vote is the last call that all of them make."""
        launchers = [self.launch_alone("last", host, "2", 2, 1, "--strategy", "zero-2", "--shard-group", "2", "--width", "1024", "--heads", "16")
                     for host in self.hosts]
        os.setpriority(os.PRIO_PROCESS, launchers[1].pid, 19)  # What it starts is as slow.
        self.finish(launchers)
        lines = proof.read_sample_logs(self.folder("samples", "last"))
        self.assertEqual({line.generation for line in lines}, {1}, "a rank that was done was missed")

    def sent(self):
        """Bytes that the hosts have sent to each other."""
        said = [subprocess.run(host.command("cat", "/proc/net/dev"), check=True, capture_output=True, text=True).stdout
                for host in self.hosts]
        lines = [line.split(":") for text in said for line in text.splitlines() if ":" in line]
        return sum(int(counts.split()[8]) for name, counts in lines if name.strip() != "lo")

    def cut_back(self, name, step, to):
        """A copy of the checkpoints of the training `name`, as they were after that step."""
        shutil.copytree(self.folder("ckpt", name), self.folder("ckpt", to))
        commits = self.fx.path(self.folder("ckpt", to), "commits")
        for commit in os.listdir(commits):
            if int(commit.removeprefix("step-")) > step:
                os.unlink(os.path.join(commits, commit))

    def test_resumed_on_one_host_and_on_two(self):
        """A checkpoint of two hosts is gone on from on one, and the other way round."""
        self.on_two("two", 40, "--keep", "9")
        self.cut_back("two", 20, to="then-one")
        self.on_one("then-one", 40, "--keep", "9", "--strategy", "zero-3")
        self.cut_back("then-one", 30, to="then-two")
        self.on_two("then-two", 40, "--strategy", "zero-1")
        whole = self.losses("two")
        for name, resumed in (("then-one", 20), ("then-two", 30)):
            self.assertEqual(self.losses(name), {key: value for key, value in whole.items() if key[0] > resumed})
            self.assertTrue(self.state(name) == self.state("two"), name)

    def test_a_rank_that_is_killed_on_either_host(self):
        self.on_one("whole", 400)
        launchers = [self.launch("train", host, "2", 2, 400) for host in self.hosts]
        for rank, step in ((3, 60), (0, 160)):
            self.await_step("train", step)
            os.kill(self.worker(rank), signal.SIGKILL)
        self.finish(launchers)
        self.assertGreaterEqual(max(line.generation for line in proof.read_sample_logs(self.folder("samples", "train"))), 3)
        self.same("train", "whole")

    def test_a_host_that_dies_is_left_behind(self):
        self.fx.expects_run_directories = True
        keeper, lost = [self.launch("train", host, "1:2", 2, 400) for host in self.hosts]
        e2e.wait_for(lambda: any(line.world == 4 and line.step >= 30 for line in proof.read_sample_logs(self.folder("samples", "train"))),
                     60, "four ranks", self.fx.describe)
        e2e.kill_tree(lost.pid)
        lost.kill()
        self.finish([keeper])
        lines = proof.read_sample_logs(self.folder("samples", "train"))
        self.assertEqual({line.world for line in lines if line.step == 400}, {2})
        self.assertTrue(self.state("train"))


if __name__ == "__main__":
    e2e.main()
