"""Every class of attacks.py against a coordinator that takes everybody: its memory is bounded meanwhile and afterwards, and agents
that are there already are answered as fast as without.

  floods_test.py                 a moment each, in ./dev test
  floods_test.py --full          a minute each, and the minute after: ./dev test -R hostile
"""
import collections
import json
import multiprocessing
import os
import socket
import sys
import time

import attacked
from attacked import e2e
from attacks import ATTACKS
from http2 import DATA, Connection, field, hello, read_request

FULL = "--full" in sys.argv
if FULL:
    sys.argv.remove("--full")
BEFORE, SECONDS, AFTER = (60, 60, 60) if FULL else (0, 0.4, 0.1)
MAX_SLOWER = 1.2  # 99 of 100 heartbeats, against the time in which a decoy is attacked.
AGENTS, BEAT_EVERY = 100 if FULL else 10, 1.8  # One heartbeat in a third of the lease is answered.


def probe(port, results):
    """Agents on connections of their own, whose heartbeats are answered one after another, until told to stop; when and how long each
    took."""
    def answered(agent, last=b""):
        while True:
            got = agent.frame()
            assert got is not None, "an agent's session was cut"
            if got[0] == DATA and got[3] and got[3].endswith(last):
                return time.monotonic()

    agents = collections.deque()
    for i in range(AGENTS):
        agent = Connection(("127.0.0.1", port))
        agent.session = agent.start("Session", hello(f"agent-{i}"), deadline="", end=False)
        agents.append(agent)
    for i, agent in enumerate(agents):
        agent.due = answered(agent) + BEAT_EVERY * i / AGENTS  # One by one, not all at once.
    took = []
    while not results.poll(max(0, agents[0].due - time.monotonic())):
        agent = agents[0]
        begun = time.monotonic()
        agent.post(agent.session, field(3, field(1, 0)), end=False)
        end = answered(agent, field(10, b""))  # A HeartbeatAnswer.
        took.append((begun, end - begun))
        agent.due = end + BEAT_EVERY  # Sooner it would not be answered.
        agents.rotate(-1)
    results.send(took)
    for agent in agents:
        agent.socket.close()


def attack(name, port, until):
    """Its host would be another one: what it takes of this one's processors, and its kernel, is not the coordinator's."""
    os.nice(19)
    ATTACKS[name](port, until)


def decoy(listener):
    """Takes every connection and ends it."""
    os.nice(19)
    while True:
        listener.accept()[0].close()


def p99(took, begin, end):
    times = sorted(seconds for at, seconds in took if begin <= at < end)
    return times[len(times) * 99 // 100] if times else 0.0


class Floods(attacked.TestCase):
    def setUp(self):
        super().setUp()
        self.start("--insecure")  # Who has no token gets no further than a few bytes: here everybody gets as far as gRPC.
        self.agent = self.fx.service(e2e.binary("regroup-agent"), "--coordinator", f"127.0.0.1:{self.port}", "--node-name", "real")
        self.coordinator.expect("node attached")

    def watch(self, seconds):
        peak, until = 0.0, time.monotonic() + seconds
        while time.monotonic() < until:
            peak = max(peak, self.resident_mb())
            time.sleep(0.05)
        return max(peak, self.resident_mb())

    def attack_decoy(self, name):
        with socket.create_server(("127.0.0.1", 0), backlog=4096) as listener:
            taker = multiprocessing.Process(target=decoy, args=(listener,))
            taker.start()
            attacker = multiprocessing.Process(target=attack, args=(name, listener.getsockname()[1], time.monotonic() + BEFORE))
            attacker.start()
            self.watch(BEFORE)
            attacker.join(20)
            taker.kill()
            taker.join()

    def attacked(self, name):
        if name == "slow_readers":
            self.fill(90)
            with self.connect() as client:
                client.call("Read", read_request(ended=True))
        ours, theirs = multiprocessing.Pipe()
        prober = multiprocessing.Process(target=probe, args=(self.port, theirs))
        prober.start()
        theirs.close()  # The end of a prober that failed is heard.
        if FULL:
            self.attack_decoy(name)
        before, begun = self.resident_mb(), time.monotonic()
        attacker = multiprocessing.Process(target=attack, args=(name, self.port, begun + SECONDS))
        attacker.start()
        peak = self.watch(SECONDS)
        attacker.join(20)
        self.watch(AFTER)
        after = self.resident_mb()
        ours.send(None)
        took = ours.recv()
        prober.join(10)
        calm, busy = p99(took, 0, begun), p99(took, begun, begun + SECONDS)
        row = {"attack": name, "before_mb": round(before, 1), "peak_mb": round(peak - before, 1), "after_mb": round(after - before, 1),
               "p99_ms": round(1e3 * calm, 2), "p99_attacked_ms": round(1e3 * busy, 2), "heartbeats": len(took)}
        print(json.dumps(row), flush=True)
        self.assertGreater(len(took), 0)
        self.assertIsNone(self.coordinator.code, row)
        self.assertFalse(attacker.is_alive(), row)
        self.assertNotIn('node=real how=', self.coordinator.stderr)  # Nor is it lost.
        self.assertEqual(self.fx.run("ps").code, 0, row)
        self.assertLess(peak - before, attacked.DURING_MB, row)
        self.assertLess(after - before, attacked.AFTER_MB if FULL else attacked.DURING_MB, row)
        if FULL:
            self.assertLess(busy, MAX_SLOWER * calm, row)


def add(name):
    setattr(Floods, f"test_{name}", lambda self: self.attacked(name))


for each in ATTACKS:
    if FULL or each != "slow_readers":  # readers_test.py has those.
        add(each)

if __name__ == "__main__":
    e2e.main()
