"""Every class of attacks.py against a coordinator that takes everybody: its memory is bounded meanwhile and afterwards, and agents
that are there already are answered as fast as without.

  floods_test.py                 a moment each, in ./dev test
  floods_test.py --full          a minute each, and the minute after: ./dev test -R hostile
"""
import json
import multiprocessing
import os
import sys
import time

import attacked
from attacked import e2e
from attacks import ATTACKS
from http2 import DATA, Connection, field, hello, read_request

FULL = "--full" in sys.argv
if FULL:
    sys.argv.remove("--full")
BEFORE, SECONDS, AFTER = (15, 60, 60) if FULL else (0, 0.4, 0.1)
MAX_SLOWER = 1.2  # 99 of 100 heartbeats, against the time without an attack.
AGENTS, BEAT_EVERY = 100 if FULL else 10, 1.8  # One heartbeat in a third of the lease is answered.


def probe(port, results):
    """Agents on connections of their own, whose heartbeats are answered one after another, until told to stop; when and how long each
    took."""
    agents = []
    for i in range(AGENTS):
        agent = Connection(("127.0.0.1", port))
        agent.session = agent.start("Session", hello(f"agent-{i}"), deadline="", end=False)
        agents.append(agent)
    took, turn = [], 0
    while not results.poll(BEAT_EVERY / AGENTS):
        agent = agents[turn % AGENTS]
        turn += 1
        begun = time.monotonic()
        agent.post(agent.session, field(3, field(1, 0)), end=False)
        while True:
            got = agent.frame()
            assert got is not None, "an agent's session was cut"
            if got[0] == DATA and got[3].endswith(field(10, b"")):  # A HeartbeatAnswer.
                break
        took.append((begun, time.monotonic() - begun))
    results.send(took)
    for agent in agents:
        agent.socket.close()


def attack(name, port, until):
    os.nice(19)  # Its host is another one: what it takes of this one's processors is not the coordinator's.
    ATTACKS[name](port, until)


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

    def attacked(self, name):
        if name == "slow_readers":
            self.fill(90)
            with self.connect() as client:
                client.call("Read", read_request(ended=True))
        ours, theirs = multiprocessing.Pipe()
        prober = multiprocessing.Process(target=probe, args=(self.port, theirs))
        prober.start()
        self.watch(BEFORE)
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
