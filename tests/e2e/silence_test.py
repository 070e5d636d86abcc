"""The coordinator's host is cut off from its nodes: no packet passes, and nobody's link or route tells so."""
import glob
import json
import shutil
import signal
import time

import hosts
import regroup_e2e as e2e
from fixture import processes


class CutOff(hosts.TwoHostsTestCase):
    def service(self, host, role, name, *options):
        return self.fx.service(*host.command(e2e.binary("regroup"), role, *options, "--insecure", "--state-dir",
                                             self.fx.path("state", name)))

    def job(self):
        return next(iter(json.loads(self.fx.run("ps", "--json").stdout or "{}").get("jobs", [])), {})

    def workers(self):
        return sorted(info.pid for info in self.fx.processes("sleep", "987"))

    def nodes_ready(self):
        return self.fx.run("nodes").stdout.count("ready") == 2

    def test_its_jobs_go_on(self):
        self.service(self.hosts[0], "coordinator", "coordinator", "--listen", self.hosts[0].ipv4)
        for name in ("n1", "n2"):
            self.service(self.hosts[1], "agent", name, "--coordinator", self.hosts[0].ipv4, "--slots", "1", "--node-name", name)
        self.fx.env["REGROUP_COORDINATOR"] = "unix:" + self.fx.path("state", "coordinator", "coordinator-29400", "coordinator.sock")
        e2e.wait_for(self.nodes_ready, 20, "two nodes", self.fx.describe, every=0.1)
        done = self.fx.run("submit", "--nnodes", "2", "--nproc-per-node", "1", "--name", "train", "--", "sleep", "987")
        self.assertEqual(done.code, 0, done)
        e2e.wait_for(lambda: self.job().get("state") == "running" and len(self.workers()) == 2, 20, "the job", self.fx.describe)
        before = self.workers()
        self.assertEqual(len(self.run_directories()), 3, "two groups and a store")
        for seconds in (6, 20):
            self.pair.cut(self.hosts[1])
            # Both are silent for so long, as the coordinator counts; no packet of them arrives.
            e2e.wait_for(lambda: self.silent_for() >= seconds, seconds + 20, "silence", self.fx.describe, every=0.2)
            self.assertEqual(self.job()["why"]["kind"], "unreachable_hold", self.job())
            self.pair.heal(self.hosts[1])
            e2e.wait_for(self.nodes_ready, 60, "both back", self.fx.describe, every=0.2)
            e2e.wait_for(lambda: not self.job().get("why"), 10, "no reason to wait", self.fx.describe, every=0.2)
            job = self.job()
            self.assertEqual((job["state"], job["generation"], job["regroups"]), ("running", 1, 0), job)
            self.assertEqual(self.workers(), before)
        self.assertEqual(self.fx.run("cancel", "train", "--now").code, 0)
        e2e.wait_for(lambda: not self.workers(), 20, "their end", self.fx.describe)
        # An agent that ends before the coordinator has its last report leaves that to its next life.
        e2e.wait_for(lambda: not self.run_directories(), 20, "nothing to report", self.fx.describe)

    def run_directories(self):
        """Of these two nodes: a test beside this one may have a train-1 too."""
        found = []
        for path in glob.glob(self.fx.path("state", "n?", "node-*", "node.json")):
            with open(path, encoding="utf-8") as f:
                node = json.load(f)["node"]
            found += glob.glob(f"/dev/shm/regroup-*/{node}/train-*") + glob.glob(f"/run/regroup/{node}/train-*")
        return found

    def silent_for(self):
        nodes = json.loads(self.fx.run("nodes", "--json").stdout)["nodes"]
        return min(node["seen_s"] for node in nodes)


class LaunchCommands(hosts.TwoHostsTestCase):
    def launch(self, host):
        return self.fx.start(*host.command(
            e2e.binary("regroup"), "run", "--nnodes", "2", "--nproc-per-node", "1", "--insecure", "--rdzv-endpoint", self.hosts[0].ipv4,
            "--rdzv-id", "train", "--grace", "1s", "--state-dir", self.fx.path("state", host.name), "sleep", "986"))

    def workers(self):
        return [info.pid for info in self.fx.processes("sleep", "986") if info.argv[0] == "sleep"]

    def test_one_that_is_cut_off_hears_of_its_jobs_end(self):
        near, far = self.launch(self.hosts[0]), self.launch(self.hosts[1])
        e2e.wait_for(lambda: len(self.workers()) == 2, 20, "both workers", self.fx.describe)
        self.pair.cut(self.hosts[1])
        near.send(signal.SIGINT)
        self.assertEqual(near.wait(20), 130, near)
        time.sleep(4)  # Twice as long as a coordinator stays that nobody needs.
        self.assertEqual((far.code, len(self.workers())), (None, 1), far)
        self.pair.heal(self.hosts[1])
        self.assertEqual(far.wait(20), 130, far)
        self.assertEqual(self.workers(), [])

    def test_one_whose_coordinator_has_lost_its_journal_ends_after_its_ranks(self):
        """The journal alone could say how the job goes on."""
        near, far = self.launch(self.hosts[0]), self.launch(self.hosts[1])
        e2e.wait_for(lambda: len(self.workers()) == 2, 20, "both workers", self.fx.describe)
        far.expect("generation 1", 20)
        processes.send([info.pid for info in self.fx.processes("--ad-hoc")], signal.SIGKILL)
        e2e.kill_tree(near.pid)
        near.kill()
        e2e.wait_for(lambda: len(self.workers()) == 1, 20, "the other worker", self.fx.describe)
        shutil.rmtree(self.fx.path("state", self.hosts[0].name, "coordinator-29400"))
        anew = self.launch(self.hosts[0])
        anew.expect("1 of 2 nodes", 20)
        time.sleep(2)
        self.assertEqual((far.code, len(self.workers())), (None, 1), far)
        processes.send(self.workers(), signal.SIGKILL)
        self.assertEqual(far.wait(60), 125, far)
        self.assertIn("this coordinator serves another cluster", far.stderr)
        far = self.launch(self.hosts[1])
        e2e.wait_for(lambda: len(self.workers()) == 2, 20, "both anew", self.fx.describe)
        far.send(signal.SIGINT)
        self.assertEqual((far.wait(20), anew.wait(20)), (130, 130))


if __name__ == "__main__":
    e2e.main()
