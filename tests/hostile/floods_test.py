"""Floods from one connection that has shown nothing: memory is bounded meanwhile and afterwards, and readers are answered.

  floods_test.py            a few seconds each, in ./dev test
  floods_test.py --full     a minute each, and the minute after: ./dev test -R hostile.floods_full
"""
import os
import select
import socket
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
import regroup_e2e as e2e  # noqa: E402

FULL = "--full" in sys.argv
if FULL:
    sys.argv.remove("--full")
SECONDS = 60 if FULL else 2
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DURING_MB, AFTER_MB = 32, 10  # Of resident memory: above the beginning, and what it still grows in the time after.


def frame(kind, stream=0, payload=b"", flags=0):
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def headers(stream, path=b"/nothing", flags=4):
    return frame(1, stream, b"\x83\x86\x44" + bytes([len(path)]) + path + b"\x41\x01a", flags)


def reset(stream):
    return frame(3, stream, b"\0\0\0\x08")


SESSION = b"/regroup.v1.Coordinator/Session"


def streams(make, start=1):
    """Endlessly what `make` gives for stream 1, 3, 5 …, in pieces of some hundred."""
    while True:
        yield b"".join(make(2 * i + 1) for i in range(start // 2, start // 2 + 200))
        start += 400
        if start > 0x7FFFF000:
            return


def same(data):
    while True:
        yield data


# name -> what a connection sends after preface and settings, again and again.
FLOODS = {
    "rapid_reset": lambda: streams(lambda s: headers(s) + reset(s)),
    "rapid_reset_session": lambda: streams(lambda s: headers(s, SESSION) + reset(s)),
    "made_to_reset": lambda: streams(lambda s: headers(s, SESSION) + frame(8, s, b"\0\0\0\0")),
    "headers_only": lambda: streams(lambda s: headers(s, flags=5)),
    "settings": lambda: same(frame(4) * 500),
    "pings": lambda: same(frame(6, 0, b"12345678") * 500),
    "window_updates": lambda: same(frame(8, 0, b"\0\0\0\1") * 500),
    "priorities": lambda: same(frame(2, 1, b"\0\0\0\0\1") * 500),
    "empty_data": lambda: same(headers(1, SESSION) + frame(0, 1) * 500),
    "continuations": lambda: same(frame(1, 1, b"\x83", 0) + frame(9, 1, b"") * 500),
}


class Floods(e2e.TestCase):
    def setUp(self):
        super().setUp()
        self.port = e2e.free_port()
        self.fx.env["REGROUP_STATE_DIR"] = self.fx.path("state", "here")
        # Who has no token gets no further than a few bytes: here everybody gets as far as gRPC.
        self.coordinator = self.fx.service(e2e.binary("regroup"), "coordinator", "--listen", f"127.0.0.1:{self.port}", "--insecure")
        self.coordinator.expect("the coordinator serves")

    def resident_mb(self):
        with open(f"/proc/{self.coordinator.process.pid}/statm", encoding="ascii") as f:
            return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6

    def flood(self, make, until):
        """One connection at a time, opened anew whenever it was cut; how many that took."""
        cuts = 0
        while time.monotonic() < until:
            with socket.create_connection(("127.0.0.1", self.port)) as s:
                s.setblocking(False)
                data = memoryview(PREFACE + frame(4))
                source = make()
                while time.monotonic() < until:
                    readable, writable, _ = select.select([s], [s], [], 0.2)
                    try:
                        if readable and not s.recv(1 << 16):
                            break
                        if writable:
                            data = data[s.send(data):] or memoryview(next(source))
                    except BlockingIOError:
                        continue
                    except (OSError, StopIteration):
                        break
            cuts += 1
        return cuts

    def attacked(self, name):
        make = FLOODS[name]
        before, begun = self.resident_mb(), time.monotonic()
        until, peak, slowest, cuts = begun + SECONDS, before, 0.0, []
        attacker = threading.Thread(target=lambda: cuts.append(self.flood(make, until)))
        attacker.start()
        while attacker.is_alive():
            asked = time.monotonic()
            self.assertEqual(self.fx.run("ps").code, 0, name)
            slowest = max(slowest, time.monotonic() - asked)
            peak = max(peak, self.resident_mb())
            time.sleep(0.05)
        attacker.join()
        ended, after = self.resident_mb(), 0.0
        until = time.monotonic() + (60 if FULL else 1)
        while time.monotonic() < until:
            after = max(after, self.resident_mb() - ended)
            time.sleep(0.05)
        line = (f"{name}: {before:.1f} MB before, {peak:.1f} at most, {ended:.1f} at its end, {self.resident_mb():.1f} after; "
                f"{cuts[0]} connections; slowest read {slowest:.2f} s")
        print(line, flush=True)
        self.assertLess(peak - before, DURING_MB, line)
        self.assertLess(after, AFTER_MB, line)
        self.assertIsNone(self.coordinator.code, line)


def add(name):
    setattr(Floods, f"test_{name}", lambda self: self.attacked(name))


for flood in FLOODS:
    add(flood)

if __name__ == "__main__":
    e2e.main()
