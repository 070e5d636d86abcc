"""Strangers at the gate of a coordinator that asks for its token: whatever they say before they have proved anything, byte by byte."""
import hmac
import os
import resource
import signal
import socket
import time

import attacked
from attacked import e2e
from http2 import PREFACE, SETTINGS, frame, read_request

MAGIC = b"REGROUP\x01"


class Gate(attacked.TestCase):
    def setUp(self):
        super().setUp()
        self.start()
        folder = self.fx.path("state", "here", f"coordinator-{self.port}")
        with open(os.path.join(folder, "token"), "rb") as f:
            self.token = f.read().strip()

    def dial(self):
        s = socket.create_connection(("127.0.0.1", self.port), 5)
        self.addCleanup(s.close)
        return s

    def hear(self, s, size):
        """Up to `size` bytes; what came before the end if there is less."""
        data = b""
        while len(data) < size:
            try:
                got = s.recv(size - len(data))
            except ConnectionError:
                break
            if not got:
                break
            data += got
        return data

    def greet(self, nonce):
        s = self.dial()
        s.sendall(MAGIC + nonce)
        answer = self.hear(s, 33)
        self.assertEqual(answer[:1], b"T")
        return s, answer[1:]

    def proof(self, token, end, ours, theirs):
        return hmac.digest(token, end + b"\0" + ours + theirs, "sha256")

    def refused(self, s, words):
        s.sendall(words)
        self.assertEqual(self.hear(s, 33), b"N")

    def test_no_proof_but_the_right_one_of_this_connection_is_taken(self):
        nonce = os.urandom(32)
        first, asked = self.greet(nonce)
        right = self.proof(self.token, b"caller", nonce, asked)
        self.refused(self.greet(nonce)[0], right)  # Replayed.
        self.refused(self.greet(nonce)[0], asked)  # Reflected.
        other, theirs = self.greet(nonce)
        self.refused(other, self.proof(self.token[:-1], b"caller", nonce, theirs))
        other, theirs = self.greet(nonce)
        self.refused(other, self.proof(self.token + b"\0", b"caller", nonce, theirs))
        other, theirs = self.greet(nonce)
        self.refused(other, self.proof(b"", b"caller", nonce, theirs))
        other, theirs = self.greet(nonce)
        self.refused(other, self.proof(self.token, b"coordinator", nonce, theirs))
        cut, theirs = self.greet(nonce)  # Truncated.
        cut.sendall(self.proof(self.token, b"caller", nonce, theirs)[:31])
        cut.shutdown(socket.SHUT_WR)
        self.assertEqual(self.hear(cut, 33), b"")
        for byte in right:  # And in as many packets as there are bytes.
            first.sendall(bytes([byte]))
        self.assertEqual(self.hear(first, 33), b"Y" + self.proof(self.token, b"coordinator", nonce, asked))
        for byte in PREFACE + frame(SETTINGS):
            first.sendall(bytes([byte]))
        self.assertEqual(self.hear(first, 9)[3], SETTINGS)

    def test_a_byte_a_second_is_not_waited_for(self):
        slow, begun = self.dial(), time.monotonic()
        slow.settimeout(1)
        for byte in MAGIC + b"x" * 32:
            try:
                slow.sendall(bytes([byte]))
                if slow.recv(1) == b"":
                    break
            except TimeoutError:
                continue
            except ConnectionError:
                break
        self.assertLess(time.monotonic() - begun, 15)  # It has ten seconds.

    def is_heard(self):
        with self.dial() as s:
            try:
                s.sendall(MAGIC + os.urandom(32))
            except ConnectionError:
                return False
            return self.hear(s, 33)[:1] == b"T"

    def is_shut_out(self, leave):
        """Who leaves again and again; a debt at its limit is below it 10 ms later, and then he is heard until he leaves again."""
        def not_heard():
            leave()
            return not self.is_heard()

        e2e.wait_for(not_heard, 30)
        self.coordinator.expect("an address is not heard for up to a minute.*address=127.0.0.1")

    def test_who_dials_and_says_nothing_is_not_heard_for_a_while(self):
        self.assertTrue(self.is_heard())
        self.is_shut_out(lambda: [self.dial().close() for _ in range(100)])
        self.assertEqual(self.fx.run("ps").code, 0)  # By the Unix socket.
        e2e.wait_for(self.is_heard, 20)

    def test_who_greets_and_leaves_is_not_heard_for_a_while(self):
        def leave():  # Who leave together leave no time to pay in.
            for s in [self.greet(os.urandom(32))[0] for _ in range(100)]:
                s.close()

        self.is_shut_out(leave)

    def test_who_greeted_and_gave_up_while_it_was_stopped_owes_nothing(self):
        self.coordinator.send(signal.SIGSTOP)
        for _ in range(700):
            with self.dial() as s:
                s.sendall(MAGIC + os.urandom(32))
        self.coordinator.send(signal.SIGCONT)
        for _ in range(20):
            self.assertTrue(self.is_heard())

    def test_who_proved_and_gave_up_while_it_was_stopped_owes_nothing(self):
        nonces = [os.urandom(32) for _ in range(60)]
        greeted = [(nonce, *self.greet(nonce)) for nonce in nonces]
        self.coordinator.send(signal.SIGSTOP)
        for ours, s, theirs in greeted:
            s.sendall(self.proof(self.token, b"caller", ours, theirs))
            s.shutdown(socket.SHUT_WR)  # As of one that is far away: what refuses our answer comes later.
        self.coordinator.send(signal.SIGCONT)
        for _ in range(20):
            self.assertTrue(self.is_heard())

    def test_descriptors_are_left_for_others(self):
        pid = self.coordinator.process.pid
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (200, 200))
        for _ in range(400):
            self.dial().sendall(MAGIC)
        for _ in range(5):
            self.assertEqual(self.fx.run("ps").code, 0)
        self.assertLess(len(os.listdir(f"/proc/{pid}/fd")), 150)


class Descriptors(attacked.TestCase):
    def fds(self):
        return len(os.listdir(f"/proc/{self.coordinator.process.pid}/fd"))

    def processor_seconds(self):
        with open(f"/proc/{self.coordinator.process.pid}/stat", encoding="ascii") as f:
            return sum(map(int, f.read().rpartition(")")[2].split()[11:13])) / os.sysconf("SC_CLK_TCK")

    def test_without_any_connections_wait_and_are_taken_later(self):
        self.start("--insecure")
        limit = self.fds() + 20
        resource.prlimit(self.coordinator.process.pid, resource.RLIMIT_NOFILE, (limit, limit))
        held = [self.connect() for _ in range(30)]  # Each takes three.
        self.coordinator.expect("connections cannot be accepted.*Too many open files")
        begun = self.processor_seconds()
        time.sleep(1.5)
        self.assertLess(self.processor_seconds() - begun, 0.5)  # It does not look again and again.
        self.assertEqual(self.coordinator.stderr.count("connections cannot be accepted"), 1)
        for c in held:
            c.socket.close()

        def answered():
            with self.connect() as late:
                return late.call("Read", read_request()) is not None
        e2e.wait_for(answered, 10)

    def test_who_gave_up_while_it_was_stopped_owes_nothing(self):
        self.start("--insecure")
        self.coordinator.send(signal.SIGSTOP)
        for _ in range(200):
            self.connect().socket.close()
        self.coordinator.send(signal.SIGCONT)
        with self.connect() as patient:
            self.assertIsNotNone(patient.call("Read", read_request()))
        for _ in range(20):
            with self.connect() as late:
                self.assertIsNotNone(late.call("Read", read_request()))

    def test_as_many_are_taken_as_there_may_be(self):
        self.coordinator = self.fx.service("sh", "-c", 'ulimit -S -n 64; exec "$0" coordinator --listen "$1"', e2e.binary("regroup"),
                                           f"127.0.0.1:{self.port}")
        self.coordinator.expect("the coordinator serves")
        soft, hard = resource.prlimit(self.coordinator.process.pid, resource.RLIMIT_NOFILE)
        self.assertEqual(soft, hard)


if __name__ == "__main__":
    e2e.main()
