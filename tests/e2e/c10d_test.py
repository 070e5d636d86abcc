"""Real torchrun agents meet at a coordinator's port, and do not notice when the coordinator is killed."""
import collections
import os
import signal
import socket

import regroup_e2e as e2e

Worker = collections.namedtuple("Worker", "rank pid agent world master_port")

# Tells all of that by a file's name, and waits for the test.
WORKER = """
import os, sys, time
said = [os.environ["RANK"], os.getpid(), os.getppid(), os.environ["WORLD_SIZE"], os.environ["MASTER_PORT"]]
open(os.path.join(sys.argv[1], ".".join(map(str, said))), "w").close()
while not os.path.exists(sys.argv[1] + ".finish"):
    time.sleep(0.05)
"""

OLD_CLIENT = b"\x03" + (5).to_bytes(8, "little") + b"init/" + (1).to_bytes(8, "little")  # PyTorch 2.0: no handshake.


class Torchrun(e2e.TestCase):
    NODES = 3

    def setUp(self):
        super().setUp()
        self.python, self.port = e2e.torch_python(), e2e.free_port()
        self.coordinator = self.serve()
        self.script = self.fx.path("work", "worker.py")
        with open(self.script, "w") as f:
            f.write(WORKER)

    def serve(self):
        coordinator = self.fx.service(e2e.binary("regroup"), "coordinator", "--listen", f"127.0.0.1:{self.port}",
                                      "--state-dir", self.fx.path("state", "c"))
        coordinator.expect("serves", 10)
        return coordinator

    def folder(self):
        return self.fx.path("state", "c", f"coordinator-{self.port}")

    def launch(self, marks, nnodes=NODES, conf="", **env):
        os.mkdir(marks)
        return [self.fx.start(self.python, "-m", "torch.distributed.run", "--nnodes", nnodes, "--nproc-per-node", "1",
                              "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{self.port}", "--rdzv-id", "job",
                              "--rdzv-conf", conf, "--max-restarts", "2", "--local-addr", "127.0.0.1", self.script, marks,
                              env={"PYTHONUNBUFFERED": "1", **env}) for _ in range(self.NODES)]

    def running(self, marks, but=None, world=NODES):
        """rank -> Worker, once every rank of the world lives in a process that is none of the workers `but`. Restarts are
        counted by each torchrun for itself."""
        old = {worker.pid for worker in (but or {}).values()}
        def look():
            marked = [Worker(*map(int, name.split("."))) for name in os.listdir(marks)]
            ranks = {w.rank: w for w in marked if w.world == world and w.pid not in old and e2e.alive(w.pid)}
            return ranks if sorted(ranks) == list(range(world)) else None
        return e2e.wait_for(look, 60, f"{world} ranks, none of {old}", self.fx.describe, every=0.05)

    def finish(self, marks, agents):
        open(marks + ".finish", "w").close()
        self.assertEqual([agent.wait(60) for agent in agents], [0] * len(agents), self.fx.describe())

    def test_a_killed_coordinator_then_the_same_id_and_the_node_of_rank_0_killed(self):
        self.both_protocols_garbage_and_a_killed_coordinator(self.fx.path("work", "first"))
        self.the_node_of_rank_0_is_killed(self.fx.path("work", "second"))

    def both_protocols_garbage_and_a_killed_coordinator(self, marks):
        agents = self.launch(marks)
        before = self.running(marks)
        self.send_garbage()
        run = self.fx.regroup("run", "--rdzv-endpoint", f"127.0.0.1:{self.port}", "--no-python", "true")
        self.assertEqual(run.wait(20), 0, run)
        self.coordinator.kill()
        self.serve()
        self.assertEqual(self.running(marks), before, "workers were touched")
        os.kill(before[1].pid, signal.SIGKILL)
        self.running(marks, but=before)
        self.finish(marks, agents)
        self.assertEqual(self.fx.run("nodes", "--coordinator", f"unix:{self.folder()}/coordinator.sock").code, 0)

    def send_garbage(self):
        """gRPC goes on beside torchrun's store; what is neither is closed, and only that."""
        for garbage in (b"\x00\x00\x00\x00\x00\x00", b"\x04" + b"\xff" * 64, OLD_CLIENT, b"GET / HTTP/1.1\r\n\r\n", os.urandom(4096)):
            with socket.create_connection(("127.0.0.1", self.port), 5) as s:
                s.settimeout(15)
                s.sendall(garbage)
                try:
                    while s.recv(4096):
                        pass
                except ConnectionResetError:
                    pass
        with open(os.path.join(self.folder(), "c10d.log")) as f:
            self.assertIn("PyTorch 2.0 or older", f.read())

    def the_node_of_rank_0_is_killed(self, marks):
        """torchrun takes for dead who missed keep-alives, by default for 15 s; and without the variable its other agents
        would send their workers to the store that the dead one had."""
        agents = self.launch(marks, f"2:{self.NODES}", "keep_alive_interval=1,last_call_timeout=1",
                             TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
        before = self.running(marks)
        dead = before[0].agent
        e2e.kill_tree(dead)
        os.kill(before[1].pid, signal.SIGKILL)  # As a rank ends that has lost a peer.
        after = self.running(marks, but=before, world=self.NODES - 1)
        self.assertEqual({worker.agent for worker in after.values()}, {agent.pid for agent in agents} - {dead})
        (store,) = {worker.master_port for worker in after.values()}
        self.assertNotEqual(store, before[0].master_port)
        self.finish(marks, [agent for agent in agents if agent.pid != dead])


if __name__ == "__main__":
    e2e.main()
