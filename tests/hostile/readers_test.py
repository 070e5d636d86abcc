"""Readers that do not take what they asked for: they share one reply, no more than a few are on their way, others get theirs."""
import glob
import hmac
import re
import secrets
import signal
import socket
import struct
import time

import attacked
from attacked import e2e
from http2 import DATA, PREFACE, SETTINGS, WINDOW, Connection, frame, read_request, submit_request

LIST = read_request(ended=True)
ONE_NODE = read_request(jobs=False, selector="nobody")
READERS_PER_CONNECTION = 100


class SlowReaders(attacked.TestCase):
    def setUp(self):
        super().setUp()
        self.start("--insecure")
        self.fill(90)
        with self.connect() as client:
            self.bytes = len(client.call("Read", LIST)[0])
        self.assertGreater(self.bytes, 5_000_000)

    def slow(self, connections, request=LIST):
        """Readers that take 64 KiB together."""
        clients = [self.connect() for _ in range(connections)]
        for client in clients:
            self.addCleanup(client.socket.close)
        for client in clients:
            for _ in range(READERS_PER_CONNECTION):
                client.start("Read", request)
        return clients

    def heard(self):
        try:
            with self.connect(timeout=2) as client:
                return client.call("Read", ONE_NODE) is not None
        except OSError:
            return False

    def leave(self, after):
        """Asks for a list a hundred times, and goes when a first reply has been on its way for so long."""
        try:
            reader, = self.slow(1)
            while (reader.frame() or [DATA])[0] != DATA:
                pass
        except OSError:
            return  # It is not heard any more.
        time.sleep(after)
        reader.socket.close()

    def test_share_one_reply(self):
        before = self.resident_mb()
        readers = self.slow(5)
        for _ in range(10):
            self.assertEqual(self.fx.run("ps", "-a").code, 0)
        peak = self.resident_mb()
        print(f"{before:.1f} MB before, {peak:.1f} with {len(readers) * READERS_PER_CONNECTION} readers of 5 MB", flush=True)
        self.assertLess(peak - before, attacked.DURING_MB)

    def test_who_leave_without_their_reply_are_not_heard_for_a_while(self):
        for _ in range(8):  # In each some have shared one reply; the others were told to come later.
            self.leave(after=0.6)
        e2e.wait_for(lambda: not self.heard(), 2)
        self.coordinator.expect("an address is not heard for up to a minute.*address=127.0.0.1")
        self.assertEqual(self.fx.run("ps").code, 0)  # By the Unix socket.

    def test_who_leave_at_once_owe_nothing(self):
        for _ in range(8):
            self.leave(after=0)
        self.assertTrue(self.heard())

    def test_are_refused_when_too_much_is_on_its_way_and_cut_in_the_end(self):
        before = self.resident_mb()
        for i in range(3):  # Each submit makes another list; the third is one too many.
            self.slow(1)
            with self.connect() as client:
                self.assertIsNotNone(client.call("Read", ONE_NODE))  # Those before are being answered.
            self.fill(1, first=100 + i)
        with self.connect() as client:
            status = client.call("Read", LIST)[1]
            self.assertIn(b"too many answers are on their way", status)
        self.assertLess(self.resident_mb() - before, attacked.DURING_MB)
        begun = time.monotonic()
        self.assertEqual(self.fx.run("ps", "-a").code, 0)  # It tries again until one was cut.
        self.assertLess(time.monotonic() - begun, 8)
        # As many as had asked before the first was answered: the others were told to come again. A reply is on its way until the
        # last of them has gone, so that `ps` is answered shows that all were cut.
        cut = sum(map(int, re.findall(r"a reader has to wait.* cut=(\d+) ", self.coordinator.stderr)))
        self.assertGreater(cut, 0)
        if cut > 10:  # Who was cut owes a second, as one who left; five are too many.
            e2e.wait_for(lambda: not self.heard(), 5)
        self.assertIsNone(self.coordinator.code)
        self.coordinator.send(signal.SIGTERM)
        begun = time.monotonic()
        self.assertEqual(self.coordinator.wait(20), 0, self.coordinator)
        self.assertLess(time.monotonic() - begun, 5)  # Not the 10 s of gRPC's poller.


class Stuck(Connection):
    """One that may be sent a gigabyte, and reads nothing of it."""

    def __init__(self, address, token=None):  # pylint: disable=super-init-not-called
        self.socket = socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.settimeout(20)
        self.socket.connect(address)
        if token:
            nonce = secrets.token_bytes(32)
            self.send(b"REGROUP\x01" + nonce)
            asked = self.socket.recv(33, socket.MSG_WAITALL)
            self.send(hmac.digest(token, b"caller\0" + nonce + asked[1:], "sha256"))
            assert self.socket.recv(33, socket.MSG_WAITALL)[:1] == b"Y"
        self.stream, self.buffer = -1, b""
        self.initial, self.room = 65535, {0: 65535}
        self.send(PREFACE + frame(SETTINGS, 0, struct.pack(">HI", 4, 1 << 30)) + frame(WINDOW, 0, (1 << 30).to_bytes(4, "big")))


class StuckReaders(attacked.TestCase):
    """On whose connections gRPC has something under way for good."""

    def begin(self, way):
        self.start(*(["--insecure"] if way == "gate" else []))
        (folder,) = glob.glob(self.fx.path("state", "here", "coordinator-*"))
        with Connection(folder + "/socket") as client:
            for i in range(90):
                self.assertTrue(client.call("Submit", submit_request(f"key-{i}", f"job-{i}", ["x" * 60_000], nodes=2))[0])
        self.others = [Connection(folder + "/socket"), Connection(("127.0.0.1", self.port) if way == "gate" else folder + "/socket")]
        for other in self.others:
            self.addCleanup(other.socket.close)
            self.assertIsNotNone(other.call("Read", ONE_NODE))
        token = None
        if way == "proof":
            with open(folder + "/token", encoding="ascii") as text:
                token = text.read().strip().encode()
        reader = Stuck(folder + "/socket" if way == "unix" else ("127.0.0.1", self.port), token)
        self.addCleanup(reader.socket.close)
        for _ in range(20):
            reader.start("Read", LIST)
        def full():
            with Connection(folder + "/socket") as other:
                return b"too many answers are on their way" in other.call("Read", ONE_NODE)[1]
        e2e.wait_for(full, 10)
        time.sleep(1)

    def ends(self):
        self.coordinator.send(signal.SIGTERM)
        begun = time.monotonic()
        self.assertEqual(self.coordinator.wait(20), 0, self.coordinator)
        self.assertLess(time.monotonic() - begun, 8)

    def test_keep_nobody_from_reading_and_no_coordinator_from_ending(self):
        for way in ("unix", "gate", "proof"):
            with self.subTest(way):
                self.begin(way)
                self.assertEqual(self.fx.run("ps", "-a", timeout=40).code, 0)
                time.sleep(1)
                for other in self.others:  # Who reads is left alone.
                    self.assertIsNotNone(other.call("Read", ONE_NODE))
                self.ends()

    def test_keep_no_coordinator_from_ending(self):
        for way in ("unix", "proof"):
            with self.subTest(way):
                self.begin(way)
                self.ends()


if __name__ == "__main__":
    e2e.main()
