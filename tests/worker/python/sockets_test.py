"""The connections of a process group: which they are, whether their bytes move, and how they are broken off."""
import os
import socket
import threading
import time
import unittest

import fake_agent  # noqa: F401 (it finds the package)

from regroup import _sockets


class Sockets(unittest.TestCase):
    def setUp(self):
        before = set(_sockets.connected())
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.one = socket.create_connection(listener.getsockname())
            self.other, _ = listener.accept()
        self.addCleanup(self.one.close)
        self.addCleanup(self.other.close)
        found = {fd: what for fd, what in _sockets.connected().items() if fd not in before}
        self.assertEqual(set(found), {self.one.fileno(), self.other.fileno()})
        self.group = {self.one.fileno(): found[self.one.fileno()]}

    def test_bytes_of_both_directions_count(self):
        begun = _sockets.moved(self.group)
        self.one.sendall(b"x" * 1000)
        self.other.recv(1000)
        sent = _sockets.moved(self.group)
        self.assertEqual(sent, begun + 1000)
        self.other.sendall(b"y" * 70)
        self.one.recv(70)
        self.assertEqual(_sockets.moved(self.group), sent + 70)

    def test_quiet_is_awaited_and_for_so_long_at_most(self):
        begun = time.monotonic()
        _sockets.await_quiet([self.group, {}], 0.1, 5.0)
        self.assertGreaterEqual(time.monotonic() - begun, 0.1)
        over = threading.Event()

        def talk():
            while not over.wait(0.01):
                self.other.sendall(b"x")
        talker = threading.Thread(target=talk)
        talker.start()
        begun = time.monotonic()
        _sockets.await_quiet([self.group], 0.2, 0.6)
        took = time.monotonic() - begun
        over.set()
        talker.join()
        self.assertGreaterEqual(took, 0.6)

    def test_closed_connections_move_nothing(self):
        self.one.close()
        self.assertEqual(_sockets.moved(self.group), 0)
        _sockets.shut_down(self.group)
        _sockets.await_quiet([self.group], 0.01, 1.0)

    def test_what_waits_on_one_fails_once_it_is_shut_down(self):
        threading.Timer(0.05, _sockets.shut_down, [self.group]).start()
        self.assertEqual(self.one.recv(1), b"")

    def test_a_default_timeout_of_the_script_changes_no_connection(self):
        self.addCleanup(socket.setdefaulttimeout, None)
        socket.setdefaulttimeout(5)
        self.assertTrue(os.get_blocking(self.one.fileno()))
        _sockets.connected()
        _sockets.moved(self.group)
        self.assertTrue(os.get_blocking(self.one.fileno()))


if __name__ == "__main__":
    unittest.main()
