"""Every class of attacks.py against a coordinator that takes everybody: its memory is bounded meanwhile and afterwards, and agents
that are there already are answered as fast as without.

  floods_test.py                 a moment each, in ./dev test
  floods_test.py --full          a minute each, and the minute after, and beside heartbeats: ./dev test -R hostile
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
SECONDS, AFTER = (60, 60) if FULL else (0.4, 0.1)
STAYS = ("submits",)  # 10,000 jobs at most are queued, and they are.
MAX_SLOWER = 1.2  # 99 of 100 heartbeats, against the time in which a decoy is attacked.
TURN = 5  # Seconds: the decoy's and the coordinator's turns alternate, so that what else this machine does slows both.
AGENTS = 10
BEATING = 300  # Agents beside which attacks are measured: 165 heartbeats a second.


def attack(name, ports, untils):
    """One port after the other. Its host would be another one: what it takes of this one's processors, and its kernel, is not the
    coordinator's."""
    os.nice(19)
    for port, until in zip(ports, untils):
        ATTACKS[name](port, until)


def decoy(listener):
    """Takes every connection and ends it, as soon as the coordinator's thread that does so would."""
    os.nice(5)
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

    def begin(self, name, agents=AGENTS):
        """A coordinator with what this attack needs, and agents; their prober, and the end that it listens to."""
        if name == "slow_readers":
            self.fill(90)
            with self.connect() as client:
                client.call("Read", read_request(ended=True))
        ours, theirs = multiprocessing.Pipe()
        prober = multiprocessing.Process(target=probe, args=(self.port, agents, theirs))
        prober.start()
        theirs.close()  # The end of a prober that failed is heard.
        return prober, ours

    def ends(self, prober, ours, row):
        """Of a coordinator that has lost nobody; what was not yet asked for."""
        ours.send("the end")
        took = ours.recv()
        prober.join(10)
        self.assertIsNone(self.coordinator.code, row)
        self.assertNotIn('node=real how=', self.coordinator.stderr)  # Nor is it lost.
        self.assertEqual(self.fx.run("ps").code, 0, row)
        return took

    def attacked(self, name):
        prober, ours = self.begin(name)
        before, begun = self.resident_mb(), time.monotonic()
        attacker = multiprocessing.Process(target=attack, args=(name, [self.port], [begun + SECONDS]))
        attacker.start()
        peak = self.watch(SECONDS)
        attacker.join(20)
        self.watch(AFTER)
        after = self.resident_mb()
        row = {"attack": name, "before_mb": round(before, 1), "peak_mb": round(peak - before, 1), "after_mb": round(after - before, 1)}
        print(json.dumps(row), flush=True)
        self.assertFalse(attacker.is_alive(), row)
        self.assertTrue(self.ends(prober, ours, row), row)
        self.assertLess(peak - before, attacked.DURING_MB, row)
        self.assertLess(after - before, attacked.AFTER_MB if FULL and name not in STAYS else attacked.DURING_MB, row)

    def beats(self, name, ours):
        """Those beside an attacked decoy, and those beside the attacked coordinator, a minute each."""
        turns = int(SECONDS / TURN)
        with socket.create_server(("127.0.0.1", 0), backlog=4096) as listener:
            taker = multiprocessing.Process(target=decoy, args=(listener,))
            taker.start()
            begun = time.monotonic() + TURN
            ports = [listener.getsockname()[1], self.port] * turns
            attacker = multiprocessing.Process(target=attack, args=(name, ports, [begun + i * TURN for i in range(2 * turns)]))
            attacker.start()
            attacker.join((2 * turns + 4) * TURN)
            taker.kill()
            taker.join()
        self.assertFalse(attacker.is_alive(), name)
        ours.send("so far")
        took = ours.recv()

        def turn(at):
            return int((at - begun) // TURN)  # -1: the decoy's first.

        return ([each for each in took if -1 <= turn(each[0]) < 2 * turns - 1 and turn(each[0]) % 2 == which] for which in (1, 0))

    def answered(self, name):
        prober, ours = self.begin(name, BEATING)
        calm, busy = self.beats(name, ours)
        row = {"attack": name, "p99_ms": round(1e3 * p99(calm), 2), "p99_attacked_ms": round(1e3 * p99(busy), 2),
               "heartbeats": [len(calm), len(busy)]}
        print(json.dumps(row), flush=True)
        self.ends(prober, ours, row)
        self.assertGreater(min(len(calm), len(busy)), SECONDS * BEATING / 3, row)
        self.assertLess(p99(busy), MAX_SLOWER * p99(calm), row)


def add(name):
    if FULL or name != "slow_readers":  # readers_test.py has those.
        setattr(Floods, f"test_{name}", lambda self: self.attacked(name))
    if FULL:
        setattr(Floods, f"test_heartbeats_beside_{name}", lambda self: self.answered(name))


for each in ATTACKS:
    add(each)

if __name__ == "__main__":
    e2e.main()
