"""Every process that outlives its parent ends by itself: each subset of them is killed, and nothing is left."""
import contextlib
import itertools
import os
import signal
import time

import regroup_e2e as e2e

PARTS = ("agent", "shim", "store", "worker", "coordinator")
AWAY_S = 2
WORKER = 'echo "$1 $$" >> "$MARKS"; until [ -e "$END" ]; do sleep 0.2; done'


class Ends(e2e.TestCase):
    def cluster(self, name):
        """A coordinator, a node with a job for each subset of the others, and their processes."""
        port, state = e2e.free_port(), self.fx.path("state", name)
        marks = self.fx.path("work", name)
        program = self.fx.service(e2e.binary("regroup"), "coordinator", "--listen", f"127.0.0.1:{port}", "--state-dir", state,
                                  "--agent-restart", f"{AWAY_S}s")
        socket = os.path.join(state, f"coordinator-{port}", "socket")
        e2e.wait_for(lambda: os.path.exists(socket), 20, "the coordinator", self.fx.describe)
        subsets = [subset for size in range(len(PARTS)) for subset in itertools.combinations(PARTS[:-1], size)]
        for i, _ in enumerate(subsets):
            self.fx.service(e2e.binary("regroup-agent"), "--coordinator", f"127.0.0.1:{port}", "--slots", "1", "--node-name", f"{name}{i}",
                            "--state-dir", os.path.join(state, str(i)))
            done = self.fx.run("submit", "--coordinator", socket, "--name", f"{name}{i}", "--env", f"MARKS={marks}", "--env",
                               f"END={self.end}", "--", "sh", "-c", WORKER, "sh", str(i))
            self.assertEqual(done.code, 0, done)

        def started():
            if not os.path.exists(marks):
                return None
            with open(marks) as f:
                found = dict(map(int, line.split()) for line in f)
            return found if len(found) == len(subsets) else None
        workers = e2e.wait_for(started, 60, "all workers", self.fx.describe)
        processes = {info.pid: info for info in self.fx.processes()}
        nodes = []
        for i, subset in enumerate(subsets):
            shim = processes[processes[workers[i]].ppid]
            store, = [info for info in processes.values() if "--store" in info.argv and info.ppid == shim.ppid]
            nodes.append((subset, {"agent": shim.ppid, "shim": shim.pid, "store": store.pid, "worker": workers[i]}))
        return program, nodes

    def test_nothing_is_left_whichever_of_them_are_killed(self):
        self.fx.expects_run_directories = True
        self.end = self.fx.path("work", "end")
        clusters = [self.cluster("kept"), self.cluster("killed")]
        for pid in [node[part] for _, nodes in clusters for subset, node in nodes for part in subset]:
            with contextlib.suppress(ProcessLookupError):  # It ended with one that was killed before it.
                os.kill(pid, signal.SIGKILL)
        clusters[1][0].send(signal.SIGKILL)
        open(self.end, "w").close()  # Workers run on without their agent as long as they like: it is their own end.
        time.sleep(1)
        for program in self.fx.programs:  # The services that were spared end when they are told to.
            if program.code is None:
                program.send(signal.SIGTERM)
        e2e.wait_for(lambda: not self.fx.processes("regroup-shim") and not self.fx.processes("sleep"), AWAY_S + 20,
                     "everything to end", self.fx.describe, every=0.2)


if __name__ == "__main__":
    e2e.main()
