"""Readers that do not take what they asked for: they share one reply, no more than a few are on their way, others get theirs."""
import re
import signal
import time

import attacked
from attacked import e2e
from http2 import DATA, read_request

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


if __name__ == "__main__":
    e2e.main()
