"""SIGTERM to a launch command whose worker is the native one: a commit at once, nobody charged, no step lost or repeated.

The regular interval of checkpoints is never reached, so each commit before the last step was made for a notice.
"""
import json
import os
import re
import signal
import sys

import regroup_e2e as e2e

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "demo"))
import proof  # noqa: E402 (the path has to come first)

TEXT = "/usr/share/common-licenses/GPL-3"
STEPS, BATCH, NEVER = 300, 16, 1_000_000  # Some seconds: nobody shall be done before who leaves has left.


class Training(e2e.TestCase):
    def setUp(self):
        super().setUp()
        self.port = e2e.free_port()
        self.checkpoints, self.samples = self.fx.path("work", "ckpt"), self.fx.path("work", "samples")

    def node(self, i, nnodes):
        return self.fx.regroup("run", "--nnodes", nnodes, "--max-restarts", 3, "--rdzv-endpoint", f"127.0.0.1:{self.port}",
                               "--rdzv-id", "train", "--node-name", f"node{i}", e2e.binary("regroup-worker"), "train",
                               "--data", TEXT, "--steps", STEPS, "--layers", 2, "--width", 64, "--heads", 2, "--context", 64,
                               "--batch", BATCH, "--checkpoint-every", NEVER, "--keep", 9, "--checkpoint-dir", self.checkpoints,
                               "--sample-log", self.samples)

    def consumed(self):
        return proof.read_sample_logs(self.samples)

    def training(self, world, above=0):
        """Waits until a generation above `above` of `world` ranks is some steps on; returns (its number, its last step)."""
        def look():
            lines = self.consumed()
            newest = max(line.generation for line in lines)
            steps = [line.step for line in lines if line.generation == newest and line.world == world]
            return (newest, max(steps)) if newest > above and max(steps) - min(steps) >= 5 else None
        return e2e.wait_for(look, 20, f"world {world} above generation {above} to train", self.fx.describe)

    def commits(self):
        return sorted(int(name[5:]) for name in os.listdir(os.path.join(self.checkpoints, "commits")) if re.fullmatch(r"step-\d+", name))

    def saved_for_notice(self, generation, nodes, at_least):
        """The step that `generation` saved and went no further than, `at_least` the one it had seen when the notice came."""
        step = max(line.step for line in self.consumed() if line.generation == generation)
        self.assertIn(step, self.commits(), self.fx.describe())
        self.assertGreaterEqual(step, at_least)
        self.assertLess(step, STEPS, "it was not asked to leave, it was done")
        said = "".join(node.stdout for node in nodes)
        self.assertIn(f"notice of preemption: saving step {step} and leaving\n", said)
        self.assertRegex(said, rf"(?m)^saved step {step} in \S+ s, for the notice$")
        return step

    def check_whole(self, resumed):
        """Each sample once and no step twice, where generation g went on from resumed[g]."""
        self.assertEqual(proof.check_exactly_once(self.consumed(), resumed, STEPS, BATCH), ([], 0))
        self.assertEqual(self.commits()[-1], STEPS)
        done = self.fx.run("ps", "-a", "train", "--json")
        self.assertEqual([(job["state"], job["restarts"]) for job in json.loads(done.stdout)["jobs"]], [("succeeded", 0)], done)
        done = self.fx.run("explain", "train", "--json")
        generations = json.loads(done.stdout)["generations"]
        self.assertFalse([g for g in generations if g["charged"]], done)
        return {g["generation"]: g["ended"]["kind"] for g in generations}


class Preempted(Training):
    def test_elastic_survivor_goes_on_from_the_commit_of_the_notice(self):
        nodes = [self.node(i, "1:2") for i in range(2)]
        generation, seen = self.training(2)
        nodes[1].send(signal.SIGTERM)
        self.assertEqual(nodes[1].wait(), 143, nodes[1])
        step = self.saved_for_notice(generation, nodes, seen)
        nodes[0].expect(r"regroup: node1 preempted \(saved\)$")
        self.assertEqual(nodes[0].wait(), 0, nodes[0])
        self.assertRegex(nodes[0].stdout, rf"(?m)^resumed from step {step}, {step} of {STEPS} steps, world 1,")
        self.assertRegex(nodes[1].stderr, r"regroup: SIGTERM · this node leaves(?s:.*)regroup: this node has left train-1 ")
        resumed = {generation: min(line.step for line in self.consumed() if line.generation == generation) - 1, generation + 1: step}
        self.assertEqual(self.check_whole(resumed)[generation], "preempted")
        self.assertNotRegex(nodes[0].stderr + nodes[1].stderr, r"restart \d of")

    def test_fixed_waits_and_is_preempted_with_its_last_node(self):
        """One of two leaves, and comes back; then both leave, and the same commands finish the job."""
        host, other = self.node(0, "2"), self.node(1, "2")
        first, seen = self.training(2)
        host.send(signal.SIGTERM)
        self.assertEqual(host.wait(), 143, host)
        resumed = {first + 1: self.saved_for_notice(first, [host, other], seen)}
        other.expect(r"regroup: 1 of 2 nodes\. On this host again")
        shown = self.fx.run("ps")
        self.assertRegex(shown.stdout, r"(?m)^train-1 +regrouping .* 0/3 .* 1 of 2 nodes$", shown)
        self.assertIsNone(other.code, other)
        host = self.node(0, "2")
        second, seen = self.training(2, above=first)
        host.send(signal.SIGTERM)
        other.send(signal.SIGTERM)
        self.assertEqual([host.wait(), other.wait()], [143, 143], self.fx.describe())
        resumed[second + 1] = self.saved_for_notice(second, [host, other], seen)
        self.assertRegex(host.stderr + other.stderr, rf"(?m)^regroup: train-1 preempted · 2 generations · the same command goes on "
                                                     rf"from step {resumed[second + 1]}$")
        shown = self.fx.run("ps", "-a")
        self.assertRegex(shown.stdout, r"(?m)^train-1 +preempted ", shown)
        again = [self.node(i, "2") for i in range(2)]
        self.assertEqual([node.wait() for node in again], [0, 0], self.fx.describe())
        said = again[0].stdout + again[1].stdout
        self.assertRegex(said, rf"(?m)^resumed from step {resumed[second + 1]}, ")
        ends = self.check_whole(resumed)
        self.assertEqual(ends, {first: "preempted", second: "preempted", second + 1: "finished"})


class Limited(e2e.TestCase):
    def test_a_notice_too_many_ends_the_job_with_143(self):
        port = e2e.free_port()
        nodes = [self.fx.regroup("run", "--nnodes", "1:2", "--max-preemptions", 0, "--rdzv-endpoint", f"127.0.0.1:{port}",
                                 "--rdzv-id", "train", "--node-name", f"node{i}", "sh", "-c", "echo up; exec sleep 60")
                 for i in range(2)]
        for node in nodes:
            node.expect(r"up", stream="stdout")
        nodes[1].send(signal.SIGTERM)
        self.assertEqual([node.wait() for node in nodes], [143, 143], self.fx.describe())
        self.assertIn("FAILED, exit 143 · no preemption allowed (--max-preemptions 0)", nodes[0].stderr)
        shown = self.fx.run("ps", "-a", "train", "--json")
        job = json.loads(shown.stdout)["jobs"][0]
        self.assertEqual((job["state"], job["exit_code"], job["failed"]["kind"], job["max_preemptions"]),
                         ("failed", 143, "preemptions_spent", 0), shown)


class LastSave(e2e.TestCase):
    """The coordinator is stopped, so both snapshots wait for its answer when the last step is done."""
    def worker(self, rank):
        for info in self.fx.processes("regroup-worker", "train"):
            with open(f"/proc/{info.pid}/environ", "rb") as f:
                if info.argv[0].endswith("regroup-worker") and f"RANK={rank}".encode() in f.read().split(b"\0"):
                    return info.pid
        return None

    def test_it_waits_for_no_rank_that_died(self):
        samples, checkpoints = self.fx.path("work", "samples"), self.fx.path("work", "ckpt")
        run = self.fx.regroup("run", "--nnodes", "1:2", "--nproc-per-node", 2, "--max-restarts", 3,
                              "--rdzv-endpoint", f"127.0.0.1:{e2e.free_port()}",
                              "--rdzv-id", "train", e2e.binary("regroup-worker"), "train", "--data", TEXT, "--steps", STEPS,
                              "--layers", 2, "--width", 64, "--heads", 2, "--context", 64, "--batch", BATCH,
                              "--checkpoint-every", 5, "--checkpoint-dir", checkpoints, "--sample-log", samples)
        run.expect("saved step", stream="stdout")
        (coordinator,) = self.fx.processes("coordinator", "--ad-hoc")
        os.kill(coordinator.pid, signal.SIGSTOP)
        try:
            e2e.wait_for(lambda: max((line.step for line in proof.read_sample_logs(samples)), default=0) == STEPS, 60,
                         "the last step", self.fx.describe)
            first = self.worker(0)
            os.kill(self.worker(1), signal.SIGKILL)
            e2e.wait_for(lambda: not e2e.alive(first), 5, "rank 0 to give up", self.fx.describe)
        finally:
            os.kill(coordinator.pid, signal.SIGCONT)
        self.assertEqual(run.wait(60), 0, self.fx.describe())
        self.assertIn(f"step-{STEPS}", os.listdir(os.path.join(checkpoints, "commits")))

if __name__ == "__main__":
    e2e.main()
