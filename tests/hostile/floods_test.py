"""Every class of attacks.py against a coordinator that takes everybody: its memory is bounded meanwhile and afterwards, and an agent
that is there already is answered as fast as without.

  floods_test.py                 a moment each, in ./dev test
  floods_test.py --full          a minute each, and the minute after: ./dev test -R hostile
"""
import json
import multiprocessing
import sys
import time

import attacked
from attacked import e2e
from attacks import ATTACKS
from http2 import Connection, read_request

FULL = "--full" in sys.argv
if FULL:
    sys.argv.remove("--full")
BEFORE, SECONDS, AFTER = (15, 60, 60) if FULL else (0, 0.4, 0.1)
MAX_SLOWER = 1.2  # 99 of 100 calls, against the time without an attack.
NODES = read_request(jobs=False)


def probe(port, results):
    """Calls as an agent's host makes them, fifty a second on one connection, until told to stop; when and how long each took."""
    took = []
    with Connection(("127.0.0.1", port)) as client:
        while not results.poll(0.02):
            begun = time.monotonic()
            assert client.call("Read", NODES) is not None
            took.append((begun, time.monotonic() - begun))
    results.send(took)


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
        attacker = multiprocessing.Process(target=ATTACKS[name], args=(self.port, begun + SECONDS))
        attacker.start()
        peak = self.watch(SECONDS)
        attacker.join(20)
        over = time.monotonic()
        self.watch(AFTER)
        after = self.resident_mb()
        ours.send(None)
        took = ours.recv()
        prober.join(10)
        quiet = [t for t in took if t[0] < begun or t[0] > over + AFTER / 2]
        calm, busy = p99(quiet, 0, time.monotonic()), p99(took, begun, begun + SECONDS)
        row = {"attack": name, "before_mb": round(before, 1), "peak_mb": round(peak - before, 1), "after_mb": round(after - before, 1),
               "p99_ms": round(1e3 * calm, 2), "p99_attacked_ms": round(1e3 * busy, 2), "calls": len(took)}
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


for attack in ATTACKS:
    if FULL or attack != "slow_readers":  # readers_test.py has those.
        add(attack)

if __name__ == "__main__":
    e2e.main()
