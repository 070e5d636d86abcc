"""Every class of attacks.py against a coordinator that takes everybody: its memory is bounded meanwhile and afterwards, and agents
that are there already are answered as fast as without.

  floods_test.py                 a moment each, in ./dev test
  floods_test.py --full          a minute each, and the minute after: ./dev test -R hostile
"""
import json
import multiprocessing
import os
import socket
import sys
import time

import attacked
from attacked import e2e
from attacks import ATTACKS
from heartbeats import p99, probe
from http2 import read_request

FULL = "--full" in sys.argv
if FULL:
    sys.argv.remove("--full")
BEFORE, SECONDS, AFTER = (60, 60, 60) if FULL else (0, 0.4, 0.1)
STAYS = ("submits",)  # 10,000 jobs at most are queued, and they are.
MAX_SLOWER = 1.2  # 99 of 100 heartbeats, against the time in which a decoy is attacked.
AGENTS = 100 if FULL else 10


def attack(name, port, until):
    """Its host would be another one: what it takes of this one's processors, and its kernel, is not the coordinator's."""
    os.nice(19)
    ATTACKS[name](port, until)


def decoy(listener):
    """Takes every connection and ends it."""
    os.nice(19)
    while True:
        listener.accept()[0].close()


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
        prober = multiprocessing.Process(target=probe, args=(self.port, AGENTS, theirs))
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
        self.assertLess(after - before, attacked.AFTER_MB if FULL and name not in STAYS else attacked.DURING_MB, row)
        if FULL:
            self.assertLess(busy, MAX_SLOWER * calm, row)


def add(name):
    setattr(Floods, f"test_{name}", lambda self: self.attacked(name))


for each in ATTACKS:
    if FULL or each != "slow_readers":  # readers_test.py has those.
        add(each)

if __name__ == "__main__":
    e2e.main()
