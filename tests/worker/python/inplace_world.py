"""Ranks that live through their generations, and an agent and a coordinator for them, played by a test.

The test program runs under an interpreter with PyTorch (reexec()), and forks its ranks from a process that has imported it.
"""
import importlib
import json
import os
import runpy
import select
import shutil
import signal
import socket
import sys
import tempfile
import time

from fake_agent import PACKAGE, FakeAgent

HERE = os.path.dirname(os.path.abspath(__file__))


def reexec():
    """Goes on under an interpreter that has PyTorch."""
    python = os.environ.get("REGROUP_TEST_PYTHON")
    if not python:
        print("SKIPPED: REGROUP_TEST_PYTHON names no Python with PyTorch")
        sys.exit(77)
    if not os.environ.get("REGROUP_INPLACE_TEST"):
        os.environ.update(REGROUP_INPLACE_TEST="1", OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1",
                          PYTHONDONTWRITEBYTECODE="1")
        os.execv(python, [python, *sys.argv])


class Zygote:
    """A process that has imported PyTorch, and `more`, and forks ranks."""

    def __init__(self, *more):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.pid = os.fork()
        if self.pid == 0:
            ours.close()
            try:
                self._serve(theirs, more)
            finally:
                os._exit(0)
        theirs.close()
        self.socket = ours

    @staticmethod
    def _serve(peer, more):
        import torch  # noqa: F401
        import torch._dynamo  # noqa: F401 (the first optimizer imports it)
        import torch.distributed  # noqa: F401
        import torch.nn.parallel  # noqa: F401
        for name in more:
            importlib.import_module(name)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # They need not be waited for.
        while data := peer.recv(1 << 16):
            order = json.loads(data)
            pid = os.fork()
            if pid == 0:
                peer.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                _become(order)
            peer.send(str(pid).encode())

    def start(self, environment, output, argv):
        self.socket.send(json.dumps({"environment": environment, "output": output, "argv": argv}).encode())
        return int(self.socket.recv(64))

    def close(self):
        self.socket.close()
        os.waitpid(self.pid, 0)


def _become(order):
    code = 1
    try:
        out = os.open(order["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(out, 1)
        os.dup2(out, 2)
        os.environ.update(order["environment"])
        sys.argv = order["argv"]
        sys.path[:0] = [PACKAGE, HERE]
        runpy.run_path(order["argv"][0], run_name="__main__")
        code = 0
    except SystemExit as leaving:
        code = leaving.code or 0
    except BaseException:
        import traceback
        traceback.print_exc()
    finally:
        import atexit
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)


class Agent(FakeAgent):
    """Knows its ranks by their hellos."""

    def __init__(self, path):
        self.hellos = {}  # {number of the connection: newest hello}
        super().__init__(path)

    def _answer(self, peer, body):
        if "hello" in body:
            with self.changed:
                number = next(n for n, p in self.live.items() if p is peer)
                self.hellos[number] = body["hello"]
                self.changed.notify_all()
        super()._answer(peer, body)

    def await_hello_of(self, generation, local_rank, in_place=True, timeout=60.0):
        def said(_):
            return any(h["generation"] == generation and h["local_rank"] == local_rank and bool(h.get("in_place")) == in_place
                       and n in self.live for n, h in self.hellos.items())
        self.await_(said, timeout)

    def tell_rank(self, local_rank, body):
        with self.changed:
            for number, peer in self.live.items():
                if self.hellos.get(number, {}).get("local_rank") == local_rank:
                    self._send(peer, body)

    def await_retired(self, generation, local_rank, timeout=20.0):
        with self.changed:
            numbers = [n for n, h in self.hellos.items() if h["local_rank"] == local_rank]
            if not self.changed.wait_for(lambda: any(
                    n in numbers and b.get("retired", {}).get("generation") == generation for n, b in self.said), timeout):
                raise AssertionError(f"local rank {local_rank} has not retired from {generation}; said: {self.said[-9:]}")


class World:
    """A job on one node. `ranks`: [local rank] in the order of global ranks, of the generation that runs."""

    def __init__(self, zygote, **options):
        self.zygote, self.options = zygote, options
        self.folder = tempfile.mkdtemp()
        self.agent = Agent(os.path.join(self.folder, "agent.sock"))
        self.generation, self.ranks, self.pids = 0, [], {}
        self.stores = {}
        self._read, self._lines = {}, {}  # {file: bytes read of it}, {kind: what they say}

    def close(self):
        for pid in self.pids.values():
            kill(pid)
        for pid in self.pids.values():
            await_exit(pid)
        self.agent.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def environment(self, local_rank):
        rank = self.ranks.index(local_rank)
        return {
            "REGROUP_JOB": "job-1", "REGROUP_GENERATION": str(self.generation), "REGROUP_SOCKET": self.agent.path,
            "RANK": str(rank), "WORLD_SIZE": str(len(self.ranks)), "LOCAL_RANK": str(rank), "GROUP_RANK": "0",
            "GROUP_WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": str(len(self.ranks)), "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self.stores[self.generation].port), "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_RUN_ID": "job-1", "TORCHELASTIC_RESTART_COUNT": str(self.generation - 1),
            "REGROUP_LOCAL_RANK": str(local_rank), "REGROUP_WORKER_TOKEN": f"{self.generation}.{local_rank}"}

    def run(self, ranks, kept=()):
        """The next generation: `ranks` in this order, of whom `kept` live already. Returns once new ones are started."""
        import datetime

        import torch.distributed as dist
        self.generation, self.ranks = self.generation + 1, list(ranks)
        self.stores[self.generation] = dist.TCPStore("127.0.0.1", 0, None, True, datetime.timedelta(seconds=60), False)
        for local_rank in kept:
            self.agent.tell_rank(local_rank, {"newGeneration": {"generation": str(self.generation),
                                                                "environment": self.environment(local_rank)}})
        for local_rank in self.ranks:
            if local_rank not in kept:
                options = {"LOGS": self.folder, "OPTIONS": json.dumps(self.options), **self.options.get("environment", {})}
                self.pids[local_rank] = self.zygote.start({**self.environment(local_rank), **options},
                                                          os.path.join(self.folder, "output"), [os.path.join(HERE, self.options.get("script", "inplace_train.py"))])

    def begin(self, count):
        self.run(range(count))
        for local_rank in self.ranks:
            self.agent.await_hello_of(1, local_rank)

    def end_generation(self, kept, left_s=20.0):
        """Stop{in_place}: those ranks retire; the store of this generation is closed."""
        over = self.generation
        for local_rank in kept:
            self.agent.tell_rank(local_rank, {"retire": {"generation": str(over), "leftS": left_s}})
        for local_rank in kept:
            try:
                self.agent.await_retired(over, local_rank, left_s)
            except AssertionError as error:
                raise AssertionError(f"{error}\n{self.stacks()}") from None
        self.stores.pop(over, None)

    def end_as_an_agent(self, kept, left_s):
        """The same; who has not retired by then is killed. Returns who has."""
        try:
            self.end_generation(kept, left_s)
            return list(kept)
        except AssertionError:
            with self.agent.changed:
                retired = {self.agent.hellos[n]["local_rank"] for n, body in self.agent.said if n in self.agent.hellos
                           and body.get("retired", {}).get("generation") == self.generation}
            for local_rank in set(kept) - retired:
                kill(self.pids[local_rank])
                await_exit(self.pids[local_rank])
            self.stores.pop(self.generation, None)
            return [local_rank for local_rank in kept if local_rank in retired]

    def go_on(self, kept, new=()):
        """The next generation of those and `new` ones."""
        self.end_generation(kept)
        self.run([*kept, *new] if not isinstance(new, dict) else merged(kept, new), kept)

    def lines(self, kind=None):
        """What ranks have written, in order of time."""
        for name in os.listdir(self.folder):
            if name.endswith(".log"):
                with open(os.path.join(self.folder, name), "rb") as f:
                    f.seek(self._read.get(name, 0))
                    whole = f.read().rpartition(b"\n")[0]
                self._read[name] = self._read.get(name, 0) + (len(whole) + 1 if whole else 0)
                for line in map(json.loads, whole.splitlines()):
                    self._lines.setdefault(line["kind"], []).append(line)
        some = self._lines.values() if kind is None else [self._lines.get(kind, [])]
        return sorted((line for lines in some for line in lines), key=lambda line: line["at"])

    def await_lines(self, kind, done, timeout=60.0):
        deadline = time.monotonic() + timeout
        while True:
            lines = self.lines(kind)
            if done(lines):
                return lines
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {timeout} s; {kind}: {lines[-6:]}\n{self.stacks()}")
            time.sleep(0.01)

    def await_steps(self, generation=None, step=1, timeout=60.0):
        """Each rank has done that step, or one after it, in this generation."""
        generation = generation or self.generation
        need = set(self.ranks)
        return self.await_lines("step", lambda lines: need <= {
            line["local"] for line in lines if line["generation"] == generation and line["step"] >= step}, timeout)

    def stacks(self):
        for pid in self.pids.values():
            kill(pid, signal.SIGUSR1)
        time.sleep(0.5)
        return self.output()

    def output(self):
        try:
            with open(os.path.join(self.folder, "output"), encoding="utf-8", errors="replace") as f:
                return f.read()[-6000:]
        except OSError:
            return ""


def merged(kept, new):
    """Kept ones in their order, and {place: new one}."""
    ranks = list(kept)
    for place, local_rank in sorted(new.items()):
        ranks.insert(place, local_rank)
    return ranks


def kill(pid, number=signal.SIGKILL):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def await_exit(pid, timeout=60.0):
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if not select.select([fd], [], [], timeout)[0]:
            raise AssertionError(f"process {pid} has not ended within {timeout} s")
    finally:
        os.close(fd)
