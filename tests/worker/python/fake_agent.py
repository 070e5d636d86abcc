"""An agent's end of the worker socket, for tests: a real Unix socket, JSON lines, no protobuf."""
import json
import os
import shutil
import socket
import sys
import tempfile
import threading
import time
import unittest

PACKAGE = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "worker", "python"))
sys.path.insert(0, PACKAGE)

VARIABLES = {"REGROUP_JOB": "gpt-3", "REGROUP_GENERATION": "5", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1",
             "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "TORCHELASTIC_RESTART_COUNT": "4",
             "TORCHELASTIC_MAX_RESTARTS": "9", "REGROUP_RESUME_STEP": "96"}


def accept(question):
    return {"commit": {"attempt": str(question["attempt"]), "step": str(question["step"]), "accepted": True}}


def refuse(question):
    return {"commit": {"attempt": str(question["attempt"]), "step": str(question["step"]), "whyNot": "no reason"}}


class FakeAgent:
    """Serves a Unix socket: says welcome to each hello, keeps what it hears, answers commits by `judge`.

    `said`: [(number of the connection, {kind: body})]. `strict`: a second hello is garbage, as to older agents.
    """

    def __init__(self, path):
        self.path, self.judge, self.strict, self.welcomes = path, accept, False, True
        self.said, self.connections, self.live = [], 0, {}
        self.changed = threading.Condition()
        self.listener = None
        self.open()

    def open(self):
        self.listener = socket.socket(socket.AF_UNIX)
        folder, name = os.path.split(self.path)
        fd = os.open(folder, os.O_PATH)
        self.listener.bind(f"/proc/self/fd/{fd}/{name}")
        os.close(fd)
        self.listener.listen(8)
        threading.Thread(target=self._accept, args=(self.listener,), daemon=True).start()

    def close(self):
        """As if it had been killed."""
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        os.unlink(self.path)
        with self.changed:
            live, self.live = self.live, {}
        for peer in live.values():
            _hang_up(peer)

    def _accept(self, listener):
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            with self.changed:
                self.connections += 1
                number = self.connections
                self.live[number] = peer
            threading.Thread(target=self._serve, args=(number, peer), daemon=True).start()

    def _serve(self, number, peer):
        greeted = False
        with peer, peer.makefile("rb") as lines:
            try:
                for line in lines:
                    body = json.loads(line)
                    if "hello" in body and greeted and self.strict:
                        break
                    greeted = True
                    with self.changed:
                        self.said.append((number, body))
                        self.changed.notify_all()
                    self._answer(peer, body)
            except OSError:
                pass
        with self.changed:
            self.live.pop(number, None)
            self.changed.notify_all()

    def _answer(self, peer, body):
        if "hello" in body and self.welcomes:
            self._send(peer, {"welcome": {"version": 1}})
        answer = self.judge(body["commit"]) if "commit" in body else None
        if answer is not None:
            self._send(peer, answer)

    @staticmethod
    def _send(peer, body):
        try:
            peer.sendall(json.dumps(body).encode() + b"\n")
        except OSError:
            pass  # Gone already; what it said before is still to be read.

    def tell(self, data):
        """Sends an object, or bytes as they are, on every connection."""
        with self.changed:
            for peer in self.live.values():
                peer.sendall(data if isinstance(data, bytes) else json.dumps(data).encode() + b"\n")

    def await_(self, done, timeout=10.0):
        """Waits until done(said) holds; returns what was said, without the numbers of connections."""
        with self.changed:
            if not self.changed.wait_for(lambda: done([body for _, body in self.said]), timeout):
                raise AssertionError(f"not within {timeout} s; said: {self.said}")
            return [body for _, body in self.said]

    def await_step(self, step):
        return self.await_(lambda said: any(b.get("progress", {}).get("step") == step for b in said))

    def await_hello(self, takes_notice=False):
        return self.await_(lambda said: any(b.get("hello", {}).get("takes_notice") == takes_notice for b in said))

    def kinds(self):
        with self.changed:
            return [next(iter(body)) for _, body in self.said]


def _hang_up(peer):
    try:
        peer.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass


def wait_for(predicate, timeout=10.0):
    deadline = time.monotonic() + timeout
    while not predicate():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout} s: {predicate}")
        time.sleep(0.002)


class WorkerTest(unittest.TestCase):
    """A process that is a worker of a fake agent; the package is as freshly imported."""

    maxDiff = None
    variables = {}

    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        before = dict(os.environ)
        self.addCleanup(lambda: (os.environ.clear(), os.environ.update(before)))
        for name in [*VARIABLES, "REGROUP_SOCKET", "REGROUP_LOCAL_RANK", "TORCHELASTIC_ERROR_FILE"]:
            os.environ.pop(name, None)
        self.agent = None

    def path(self, *parts):
        return os.path.join(self.folder, *parts)

    def become_worker(self, agent=True, **more):
        """Sets what an agent sets; starts one unless told not to."""
        os.environ.update({**VARIABLES, "REGROUP_SOCKET": self.path("agent.sock"), **more})
        if agent:
            self.agent = FakeAgent(os.environ["REGROUP_SOCKET"])
            self.addCleanup(self._close_agent)
        self.addCleanup(forget_client)

    def _close_agent(self):
        if os.path.exists(self.agent.path):
            self.agent.close()


def forget_client():
    """Back to the state after the import."""
    from regroup import _agree, _worker
    if _worker._client is not None:
        _worker._client.close()
    _worker._client, _worker._silent, _worker._seen = None, False, False
    _worker._saved, _worker._saved_for_notice = None, False
    _agree._ballot, _agree._broken, _agree._decided = None, False, False


def environment(path, **more):
    """For a child process that is a worker of the agent at `path`."""
    return {**os.environ, **VARIABLES, "REGROUP_SOCKET": path, "PYTHONPATH": PACKAGE, "PYTHONDONTWRITEBYTECODE": "1", **more}
