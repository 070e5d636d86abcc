"""Several launch commands of one job: joining, losing nodes, leaving, preemption, ids. PROTOCOL §5 end to end."""
import os
import re
import signal
import socket
import threading
import time

import regroup_e2e as e2e
from fixture import processes

# Announces itself by appending a line to a file, then runs until it is told to stop.
STAY = ('echo "$REGROUP_GENERATION $RANK $WORLD_SIZE $GROUP_RANK $$ $NODE" >> "$MARKS"; trap "exit 0" TERM; '
        'while [ ! -e "$MARKS.finish" ]; do sleep 0.02; done')


def greet(listener):
    """Greets every client as an SSH server would, until the listener is closed."""
    try:
        while True:
            client, _ = listener.accept()
            with client:
                client.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
    except OSError:
        return


class Nodes(e2e.TestCase):
    def setUp(self):
        super().setUp()
        self.port = e2e.free_port()
        self.marks = self.fx.path("work", "marks")
        open(self.marks, "w").close()

    def node(self, i, *options, nnodes="2:3", script=STAY, rdzv_id="job"):
        return self.fx.regroup("run", "--nnodes", nnodes, "--max-restarts", "3", "--rdzv-endpoint", f"127.0.0.1:{self.port}",
                               "--rdzv-id", rdzv_id, "--node-name", f"node{i}", *options,
                               "--no-python", "sh", "-c", script, env={"MARKS": self.marks, "NODE": str(i)})

    def running(self, world, above=0, timeout=20):
        """The newest generation above `above` in which `world` ranks announced themselves: (number, {rank: pid})."""
        def look():
            with open(self.marks) as f:
                rows = [list(map(int, line.split())) for line in f if line.count(" ") == 5]
            newest = max((row[0] for row in rows), default=0)
            ranks = {row[1]: row[4] for row in rows if row[0] == newest}
            return (newest, ranks) if newest > above and len(ranks) == world and rows[-1][2] == world else None
        return e2e.wait_for(look, timeout, f"world {world} above generation {above}", self.fx.describe)

    def finish(self):
        open(self.marks + ".finish", "w").close()

    def kill_node(self, launcher):
        """SIGKILLs agent, shims, store and workers; not the coordinator, which is a process of its own."""
        self.fx.expects_run_directories = True
        e2e.kill_tree(launcher.pid, sparing="coordinator")
        launcher.kill()


class Life(Nodes):
    def test_waiting_teaches_and_arrivals_are_told(self):
        first = self.node(0, nnodes="2")
        first.expect(r"1 of 2 nodes\. On this host again")
        text = " ".join(first.stderr.replace("\\\n", " ").split())
        self.assertRegex(text, rf"regroup run .*--nnodes 2 .*--rdzv-endpoint 127\.0\.0\.1:{self.port} .*--rdzv-id job")
        second = self.node(1, nnodes="2")
        first.expect(r"node1 joined · generation 1 · 2 nodes, world 2 · formed in ")
        self.running(2)
        self.finish()
        self.assertEqual((first.wait(), second.wait()), (0, 0), self.fx.describe())

    def test_natural_order_of_names(self):
        nodes = [self.node(i, nnodes="3") for i in (10, 9, 2)]
        self.running(3)
        with open(self.marks) as f:
            self.assertEqual({int(line.split()[3]): int(line.split()[5]) for line in f}, {0: 2, 1: 9, 2: 10})
        self.finish()
        for node in nodes:
            self.assertEqual(node.wait(), 0, node)

    def test_killed_worker_restarts_the_world(self):
        nodes = [self.node(i, nnodes="2") for i in range(2)]
        generation, ranks = self.running(2)
        os.kill(ranks[1], signal.SIGKILL)
        again, new = self.running(2, above=generation)
        self.assertFalse(set(new.values()) & set(ranks.values()))
        nodes[0].expect(r"rank 1: SIGKILL, not by us.*restart 1 of 3")
        nodes[0].expect(rf"generation {again} · world 2 · down \S+ m?s")
        self.finish()
        self.assertEqual([n.wait() for n in nodes], [0, 0])

    def test_lost_node_shrinks_and_comes_back(self):
        nodes = [self.node(i) for i in range(3)]
        generation, _ = self.running(3)
        begun = time.monotonic()
        self.kill_node(nodes[2])
        generation, _ = self.running(2, above=generation)
        self.assertLess(time.monotonic() - begun, 5, "a host that answers must not wait for the lease")
        nodes[0].expect(r"node2 .*(lost|refused)")
        back = self.node(2)
        self.running(3, above=generation)
        self.finish()
        self.assertEqual([n.wait() for n in (nodes[0], nodes[1], back)], [0, 0, 0], self.fx.describe())

    def test_a_spare_takes_the_place_of_a_lost_node(self):
        """One too many is normal: it waits, says so, touches nobody, and is in the next group without any wait."""
        nodes = [self.node(0, nnodes="2")]
        nodes[0].expect("1 of 2 nodes")  # Its command starts the coordinator.
        nodes.append(self.node(1, nnodes="2"))
        before = self.running(2)
        nodes.append(self.node(2, "--join-timeout", "1s", nnodes="2"))  # Enough have joined: it does not count.
        nodes[2].expect("regroup: this node waits as a spare · 3 of 2 nodes")
        nodes[0].expect("regroup: node2 joined as a spare · 3 of 2 nodes")
        self.assertEqual(self.running(2), before, "workers were touched")
        begun = time.monotonic()
        self.kill_node(nodes[1])
        generation, _ = self.running(2, above=before[0])
        self.assertLess(time.monotonic() - begun, 2)
        with open(self.marks) as f:
            rows = [list(map(int, line.split())) for line in f]
        self.assertEqual({row[5]: row[3] for row in rows if row[0] == generation}, {0: 0, 2: 1}, "the lost node's rank")
        self.finish()
        self.assertEqual([nodes[0].wait(), nodes[2].wait()], [0, 0], self.fx.describe())

    def test_a_node_that_fails_its_check_waits_outside(self):
        """Before the first group, and when it breaks later: who fails is left out by name and reason, and taken back when it passes."""
        check = f'if [ -e {self.marks}.bad$NODE ]; then echo looking; echo "GPU $NODE is gone" >&2; exit 3; fi'
        open(self.marks + ".bad2", "w").close()
        nodes = [self.node(i, "--node-check", check, "--scale-up", "now") for i in range(3)]
        generation, before = self.running(2)
        for node in nodes:
            node.expect(r"node2 cannot prepare: its node check exited with 3: GPU 2 is gone")
        os.unlink(self.marks + ".bad2")
        generation, ranks = self.running(3, above=generation)
        open(self.marks + ".bad1", "w").close()
        os.kill(ranks[1], signal.SIGKILL)
        generation, _ = self.running(2, above=generation)
        nodes[0].expect(r"node1 cannot prepare: its node check exited with 3: GPU 1 is gone")
        self.finish()
        self.assertEqual([node.wait() for node in nodes], [0, 0, 0], self.fx.describe())
        self.assertIn("1 restart", nodes[0].stderr)

    def test_silent_node_is_lost_by_the_lease(self):
        nodes = [self.node(i) for i in range(3)]
        generation, _ = self.running(3)
        self.fx.expects_run_directories = True
        stopped = [info.pid for info in e2e.descendants(nodes[2].pid) if "coordinator" not in info.argv] + [nodes[2].pid]
        processes.send(stopped, signal.SIGSTOP)  # A worker's `sleep` may have gone by itself.
        begun = time.monotonic()
        self.running(2, above=generation)
        self.assertGreater(time.monotonic() - begun, 4, "silence is not death before the lease is over")
        e2e.kill_tree(nodes[2].pid, sparing="coordinator")
        self.finish()
        self.assertEqual([n.wait() for n in nodes[:2]], [0, 0])

    def test_coordinator_killed_nobody_notices(self):
        self.coordinator_is_killed([self.node(i, nnodes="2") for i in range(2)])

    def test_coordinator_killed_with_a_state_directory_for_each_node(self):
        """Only the command that has its journal can start it again."""
        self.coordinator_is_killed([self.node(i, "--state-dir", self.fx.path("state", f"n{i}"), nnodes="2") for i in range(2)])

    def test_host_of_the_coordinator_dies_the_others_wait_for_its_command(self):
        """Two survivors would be enough: what they lack is who decides, and the journal on that host's disk."""
        def start(i):
            return self.node(i, "--state-dir", self.fx.path("state", f"n{i}"))
        nodes = [start(0)]
        nodes[0].expect("1 of 2 nodes")  # So it is this one whose command starts the coordinator.
        nodes += [start(1), start(2)]
        generation, ranks = self.running(3)
        self.fx.expects_run_directories = True
        killed = e2e.kill_tree(nodes[0].pid)
        nodes[0].kill()
        self.assertTrue({info.pid for info in self.fx.processes("coordinator")} <= set(killed), self.fx.describe())
        os.kill(ranks[1], signal.SIGKILL)  # It has lost a peer.
        for node in nodes[1:]:
            node.expect(rf"regroup: the coordinator 127\.0\.0\.1:{self.port} has not answered for 2.*; waiting for it, workers are left alone")
        self.assertTrue(e2e.alive(ranks[2]))
        nodes[0] = start(0)
        _, new = self.running(3, above=generation)
        self.assertFalse(set(new.values()) & set(ranks.values()))
        for node in nodes[1:]:
            node.expect("regroup: the coordinator answers again after ")
            node.expect("regroup: node0 lost ")
        self.finish()
        self.assertEqual([n.wait() for n in nodes], [0, 0, 0], self.fx.describe())
        self.assertNotRegex(nodes[1].stderr, "restart 1 of 3", "losing a node is free, and so is what follows from it")

    def coordinator_is_killed(self, nodes):
        _, ranks = self.running(2)
        # Each of the commands may have started one: all but the first go at once.
        (coordinator,) = e2e.wait_for(lambda: len(found := self.fx.processes("coordinator")) == 1 and found, 10)
        os.kill(coordinator.pid, signal.SIGKILL)
        e2e.wait_for(lambda: any(p.pid != coordinator.pid for p in self.fx.processes("coordinator")), 10,
                     "an agent to start the coordinator again", self.fx.describe)
        time.sleep(0.5)
        for pid in ranks.values():
            self.assertTrue(e2e.alive(pid))
        for node in nodes:
            self.assertNotIn("another cluster", node.stderr)
        self.finish()
        self.assertEqual([n.wait() for n in nodes], [0, 0], self.fx.describe())


class Leaving(Nodes):
    def test_launchers_leave(self):
        """Host's launcher SIGKILLed: goes on. Ctrl-C of the next: goes on or waits. The last cancels."""
        nodes = [self.node(i, nnodes="1:3") for i in range(3)]
        generation, _ = self.running(3)
        self.fx.expects_run_directories = True
        nodes[0].kill()
        generation, _ = self.running(2, above=generation)
        nodes[1].send(signal.SIGINT)
        self.assertEqual(nodes[1].wait(), 130, nodes[1])
        self.running(1, above=generation)
        nodes[2].send(signal.SIGINT)
        self.assertEqual(nodes[2].wait(), 130, nodes[2])

    def test_ctrl_c_on_a_fixed_job_cancels_it_everywhere(self):
        nodes = [self.node(i, nnodes="2") for i in range(2)]
        self.running(2)
        nodes[1].send(signal.SIGINT)
        self.assertEqual([n.wait() for n in nodes], [130, 130], self.fx.describe())

    def test_sigterm_of_all_preempts_and_the_same_commands_go_on(self):
        nodes = [self.node(i, nnodes="2") for i in range(2)]
        generation, _ = self.running(2)
        for node in nodes:
            node.send(signal.SIGTERM)
        self.assertEqual([n.wait() for n in nodes], [143, 143], self.fx.describe())
        nodes = [self.node(i, nnodes="2") for i in range(2)]
        self.running(2, above=generation)
        self.finish()
        self.assertEqual([n.wait() for n in nodes], [0, 0], self.fx.describe())

    def test_sigterm_of_one_leaves_uncharged(self):
        nodes = [self.node(i) for i in range(3)]
        generation, _ = self.running(3)
        nodes[2].send(signal.SIGTERM)
        self.assertEqual(nodes[2].wait(), 143, nodes[2])
        self.running(2, above=generation)
        self.finish()
        self.assertEqual([n.wait() for n in nodes[:2]], [0, 0])
        self.assertNotRegex(nodes[0].stderr, r"restart 1 of 3")


class Ids(Nodes):
    def test_each_command_runs_what_it_was_given_itself(self):
        """Program, arguments, directory and environment of a node are its own command's, whatever the job's first one said."""
        for name in ("here", "there"):
            os.mkdir(self.fx.path("work", name))
        runs = [self.fx.start(e2e.binary("regroup"), "run", "--nnodes", "2", "--rdzv-endpoint", f"127.0.0.1:{self.port}",
                              "--rdzv-id", "job", "--node-name", f"node{i}", "--no-python", "sh", "-c",
                              f'echo "{word} $NODE $RANK $1 $(basename "$PWD")" >> "$MARKS"', "sh", word * 2,
                              env={"MARKS": self.marks, "NODE": str(i)}, cwd=self.fx.path("work", word))
                for i, word in enumerate(("here", "there"))]
        for run in runs:
            self.assertEqual(run.wait(20), 0, run)
        with open(self.marks, encoding="ascii") as f:
            self.assertEqual(sorted(f.read().splitlines()), ["here 0 0 herehere here", "there 1 1 therethere there"])

    def test_other_bounds_are_refused_naming_both(self):
        first = self.node(0, nnodes="2")
        first.expect("1 of 2 nodes")
        other = self.node(1, nnodes="3")
        self.assertEqual(other.wait(), 125, other)
        self.assertRegex(other.stderr, r"(?s)error: .*because: .*(2.*3|3.*2)")
        first.send(signal.SIGINT)
        self.assertEqual(first.wait(), 130)

    def test_two_nodes_with_one_explicit_name(self):
        first = self.node(0, nnodes="3")
        first.expect("1 of 3 nodes")
        second = self.fx.regroup("run", "--nnodes", "3", "--max-restarts", "3", "--rdzv-endpoint", f"127.0.0.1:{self.port}", "--rdzv-id", "job",
                                 "--node-name", "node0", "--state-dir", self.fx.path("state", "other"), "--no-python", "true")
        self.assertEqual(second.wait(), 125, second)
        self.assertIn("node0", second.stderr)
        first.send(signal.SIGINT)
        first.wait()

    def test_port_taken_by_something_else_is_named(self):
        """What listens there speaks, and it is no Regroup."""
        with socket.socket() as s:
            s.bind(("127.0.0.1", self.port))
            s.listen()
            threading.Thread(target=greet, args=(s,), daemon=True).start()
            run = self.node(0, nnodes="2")
            self.assertEqual(run.wait(), 125, run)
        self.assertRegex(run.stderr, rf"error: .*127\.0\.0\.1:{self.port}")
        self.assertTrue(re.search(r"^try: ", run.stderr, re.M), run.stderr)


if __name__ == "__main__":
    e2e.main()
