"""Two hosts (network and UTS namespaces): own addresses, host names that nothing resolves, or only to 127.0.1.1."""
import itertools
import os
import re
import signal
import unittest

import hosts
import regroup_e2e as e2e
import pytorch_test


class TwoHosts(pytorch_test.Training):
    RESOLVES = False

    def setUp(self):
        why = hosts.available()
        if why:
            raise unittest.SkipTest(why)
        super().setUp()
        self.pair = hosts.TwoHosts(self.RESOLVES)
        self.hosts = self.pair.__enter__()

    def tearDown(self):
        self.pair.__exit__()

    def launch(self, host, endpoint, *options):
        return self.fx.start(*host.command(
            e2e.binary("regroup"), "run", "--nnodes", "1:2", "--nproc-per-node", self.RANKS, "--max-restarts", "3", "--insecure",
            "--rdzv-endpoint", endpoint, "--rdzv-id", "train", "--state-dir", self.fx.path("state", host.name), *options,
            *map(str, self.arguments())), env={"PYTHON_EXEC": self.python})

    def train(self, endpoints):
        """Starts a node on each host and waits until their training goes on."""
        launchers = [self.launch(host, endpoint) for host, endpoint in zip(self.hosts, endpoints)]
        self.await_epoch_1()
        return launchers

    def await_epoch_1(self):
        e2e.wait_for(lambda: len(self.workers()) == 2 * self.RANKS, 60, "all workers", self.fx.describe)
        e2e.wait_for(lambda: max(pytorch_test.epochs_of(pytorch_test.worker_logs(self.logs), 0), default=-1) >= 1, 60, "epoch 1",
                     self.fx.describe)

    def finish(self, launchers, *meet_at):
        """The job goes on to its end, its ranks meeting at these addresses one after the other."""
        self.let_end()
        for launcher in launchers:
            self.assertEqual(launcher.wait(120), 0, self.fx.describe())
        masters = [address for _, _, _, text in pytorch_test.worker_logs(self.logs)
                   for address in re.findall(r"^init .* master=(\S+)", text, re.M)]
        self.assertEqual([address for address, _ in itertools.groupby(masters)], list(meet_at))

    def kill_a_worker_at(self, endpoints):
        self.RANKS = 1  # Quicker; the other tests have two.
        launchers = self.train(endpoints)
        os.kill(self.workers()[-1], signal.SIGKILL)
        self.finish(launchers, self.hosts[0].ipv4)
        self.judge(lost_node=False)

    def test_ipv4(self):
        self.kill_a_worker_at([self.hosts[0].ipv4] * 2)

    def test_ipv6_and_host_goes_silent(self):
        """No packet leaves it any more: the lease decides, the survivor trains on."""
        self.fx.expects_run_directories = True
        keeper, lost = self.train([f"[{self.hosts[0].ipv6}]"] * 2)
        self.pair.cut(self.hosts[1])
        self.undisturbed()  # It trains while the lease runs out.
        self.finish([keeper], self.hosts[0].ipv6)
        e2e.kill_tree(lost.pid)
        lost.kill()

    def service(self, host, role, *options):
        return self.fx.service(*host.command(e2e.binary("regroup"), role, *options, "--insecure", "--state-dir",
                                             self.fx.path("state", f"{role}-{host.name}")))

    def test_submitted_and_node_of_group_rank_0_killed(self):
        """Its host refuses the witness at once; the survivor goes on at an address of its own."""
        self.fx.expects_run_directories = True
        first, second = self.hosts
        self.service(first, "coordinator", "--listen", first.ipv4)
        agents = [self.service(host, "agent", "--coordinator", first.ipv4, "--slots", "2") for host in self.hosts]
        self.fx.env["REGROUP_COORDINATOR"] = "unix:" + self.fx.path("state", f"coordinator-{first.name}", "coordinator-29400",
                                                                    "coordinator.sock")
        e2e.wait_for(lambda: self.fx.run("nodes").stdout.count("ready") == 2, 20, "two nodes", self.fx.describe, every=0.1)
        done = self.fx.run("submit", "--nnodes", "1:2", "--nproc-per-node", "2", "--name", "train", "--", self.python, "-u",
                           *self.arguments())
        self.assertEqual(done.code, 0, done)
        self.await_epoch_1()
        e2e.kill_tree(agents[0].pid)
        agents[0].kill()
        e2e.wait_for(lambda: len(self.workers(above=0)) == 2, 4, "the survivor's ranks before the lease is over", self.fx.describe)
        self.finish([self.fx.regroup("wait", "train")], first.ipv4, second.ipv4)
        self.judge(lost_node=True)


class NamesResolveToLoopback(TwoHosts):
    RESOLVES = True
    # Literal addresses: no name is asked for.
    test_ipv4 = test_ipv6_and_host_goes_silent = test_submitted_and_node_of_group_rank_0_killed = None

    def test_endpoint_by_name(self):
        """The host dials its own name, 127.0.1.1 as on a stock Debian; the other one dials its address."""
        self.kill_a_worker_at(["alpha", self.hosts[0].ipv4])


class OwnName(hosts.TwoHostsTestCase):
    """gloo asks what the host's own name resolves to, unless it is told an interface."""

    def launch(self, **variables):
        """Two nodes on one host, at addresses that no interface is known to own."""
        self.go = self.fx.path("work", "go")
        return [self.fx.start(*self.hosts[0].command(
            e2e.binary("regroup"), "run", "--nnodes", "2", "--insecure", "--rdzv-endpoint", "127.0.0.1:29400",
            "--local-addr", f"127.0.0.{n + 2}", "--node-name", f"n{n}", "--state-dir", self.fx.path("state", str(n)),
            "sh", "-c", f"until [ -e {self.go} ]; do sleep 0.05; done"), env=variables) for n in range(2)]

    def end(self, launchers):
        open(self.go, "w").close()
        for launcher in launchers:
            self.assertEqual(launcher.wait(60), 0, launcher)

    def test_a_name_that_does_not_resolve_is_told_with_what_to_set(self):
        launchers = self.launch()
        for launcher in launchers:
            launcher.expect(r"regroup: warning: this host's own name alpha has no address \(.+\), and gloo asks for it; "
                            r"export GLOO_SOCKET_IFNAME=INTERFACE", 60)
        self.end(launchers)

    def test_who_names_an_interface_is_told_nothing(self):
        launchers = self.launch(GLOO_SOCKET_IFNAME="lo")
        launchers[0].expect("generation 1", 60)
        self.end(launchers)
        for launcher in launchers:
            self.assertNotIn("own name", launcher.stderr)


def load_tests(_loader, tests, _pattern):
    """First what waits for a lease: meanwhile it does the training that all are compared with."""
    return unittest.TestSuite(sorted((test for case in tests for test in case), key=lambda test: "silent" not in test.id()))


if __name__ == "__main__":
    e2e.main()
