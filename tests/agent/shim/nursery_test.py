"""A warm rank is a cold one that has imported already: nursery.py with this file in place of the shim.

    python3 tests/agent/shim/nursery_test.py            REGROUP_BIN_DIR: where regroup-shim lies

Each script here runs twice, as `python script` started by this file as regroup-shim starts ranks, and forked from a
nursery. What both print has to be the same, and so has how they end.
"""
import array
import ctypes
import fcntl
import json
import os
import re
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import textwrap
import unittest

SHIM = os.path.join(os.environ.get("REGROUP_BIN_DIR", "build/release/bin"), "regroup-shim")
PACKAGE = os.path.join(os.path.abspath(__file__).rsplit("/tests/", 1)[0], "worker", "python")
LIMIT_S = 60
LIMITS = [(resource.RLIMIT_NOFILE, 200, 300), (resource.RLIMIT_CORE, 0, 0)]
LIBC = ctypes.CDLL(None)

# Everything that a script can ask of its process, but for what the README's table names.
FIELDS = '''
    """Of the script."""
    import json
    import os, sys, signal, resource, threading, inspect, multiprocessing, atexit
    atexit.register(lambda: print("atexit", flush=True))
    with open("/proc/self/status") as f:
        status = dict(line.strip().split(":", 1) for line in f)
    def dispositions():
        return [repr(signal.getsignal(n)) for n in sorted(signal.valid_signals())]
    main = sys.modules["__main__"]
    print(json.dumps({
        "argv": sys.argv, "orig_argv": getattr(sys, "orig_argv", None), "path": sys.path, "flags": str(sys.flags),
        "executable": sys.executable, "prefix": sys.prefix, "warnoptions": sys.warnoptions,
        "xoptions": sorted(sys._xoptions), "name": __name__, "file": __file__, "doc": __doc__,
        "package": repr(__package__), "cached": repr(__cached__),
        "spec": __spec__ and [__spec__.name, __spec__.origin, __spec__.parent, __spec__.cached, __spec__.has_location],
        "loader": type(__loader__).__name__, "loader_path": __loader__.path, "builtins": repr(__builtins__),
        "annotations": repr(__annotations__), "globals": sorted(globals()), "is_main": main.__dict__ is globals(),
        "environ": dict(os.environ), "libc": sorted(repr(os.popen("env -0").buffer.read()).split("\\\\x00")), "cwd": os.getcwd(),
        "umask": (lambda mask: (os.umask(mask), mask)[1])(os.umask(0)),
        "affinity": sorted(os.sched_getaffinity(0)), "nice": os.nice(0), "oom": open("/proc/self/oom_score_adj").read(),
        "limits": [resource.getrlimit(n) for n in range(16)],
        "leads": [os.getpgrp() == os.getpid(), os.getsid(0) == os.getpid()],
        "masks": [status[k] for k in ("SigBlk", "SigIgn", "SigCgt", "SigPnd", "ShdPnd")],
        "dispositions": dispositions(), "threads": threading.active_count(),
        "main_thread": threading.current_thread() is threading.main_thread(), "comm": open("/proc/self/comm").read(),
        "words": open("/proc/self/cmdline", errors="replace").read().rstrip("\\0"),
        "marks": [e for e in open("/proc/self/environ", errors="replace").read().split("\\0") if e.startswith("REGROUP_GROUP")],
        "fds": [[os.readlink("/proc/self/fd/%d" % fd).split(":")[0]] for fd in range(20)
                if os.path.exists("/proc/self/fd/%d" % fd)],
        "stdio": [[s.mode, s.encoding, s.errors, s.line_buffering, s.name] for s in (sys.stdout, sys.stderr, sys.stdin)],
        "through": [sys.stdout.write_through, sys.stderr.write_through], "input": sys.stdin.read(),
        "source": inspect.getsource(dispositions), "start": multiprocessing.get_start_method(),
        "parent": multiprocessing.parent_process() is None, "children": multiprocessing.active_children(),
    }, sort_keys=True))
    print("to stderr", file=sys.stderr)
'''


def command(script, *words):
    return [sys.executable, "-u", "-X", "utf8", script, *words]


def module_command(name, *words):
    return [*command("-m")[:-1], "-m", name, *words]


def environment(rank):
    return {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "RANK": str(rank), "REGROUP_GROUP": "nonce%d" % rank,
            "ODD": "a=b\udcff c", "EMPTY": ""}


class Fakes:
    """This file as the program that the nursery executes in place of regroup-shim."""

    def __init__(self, warm_fd, child, orders):
        self.warm, self.child, self.orders = socket.socket(fileno=warm_fd), child, orders

    def plan(self, order):
        items = ["d" + order["directory"], "u%d" % 0o27, "o100", "p%d" % os.getpid()]
        items += ["l%d:%d:%d" % limit for limit in LIMITS] + ["c%d" % cpu for cpu in order["cpus"]]
        items += ["a" + word for word in order["command"]]
        items += ["e%s=%s" % item for item in sorted(order["environment"].items())]
        return b"".join(os.fsencode(item) + b"\0" for item in items)

    def fork(self, order, stdin):
        memory = os.memfd_create("plan")
        os.write(memory, self.plan(order))
        out, err, status, go = os.pipe(), os.pipe(), os.pipe(), os.pipe()
        fds = [memory, stdin, out[1], err[1], status[1], go[0]]
        self.warm.sendmsg([b"rank"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])
        for fd in fds[2:]:
            os.close(fd)
        pid, in_cgroup = struct.unpack("ii", self.warm.recv(8))
        return {"pid": pid, "out": out[0], "err": err[0], "status": status[0], "go": go[1]}

    def spare(self):
        """As WarmStart::AskForSpare; the socket and the pid of what takes the child's place."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.warm.sendmsg([b"spare"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [theirs.fileno()]))])
        theirs.close()
        return ours, struct.unpack("ii", self.warm.recv(8))[0]

    def run(self):
        if not self.orders.get("generations"):
            return self.generation()
        ranks = []
        for _ in range(self.orders["generations"]):
            spare = self.spare()
            ranks.append(self.generation())
            self.warm.close()
            self.warm, self.child = spare
        with open("/proc/%d/stat" % self.child) as f:  # The last one is this process's child, too, and ends by itself.
            parent = f.read().rpartition(")")[2].split()[1]
        self.warm.close()
        ended = os.waitpid(self.child, 0)[1]
        return [{"generations": ranks, "is_child": int(parent) == os.getpid(), "code": ended}]

    def generation(self):
        mode = os.O_WRONLY if self.orders.get("die") else os.O_RDONLY
        ranks = [self.fork(order, os.open(order["stdin"], mode)) for order in self.orders["ranks"]]
        os.kill(self.child, signal.SIGKILL)
        os.waitpid(self.child, 0)
        for rank in ranks:
            if self.orders.get("go", True):
                os.write(rank["go"], b"g")
            os.close(rank["go"])
        if self.orders.get("die"):
            os._exit(0)
        return [finish(rank) for rank in ranks]


def finish(rank):
    """What a rank wrote, and how it ended."""
    got = {"status": b"", "out": b"", "err": b""}
    open_fds = {rank[key]: key for key in got}
    while open_fds:
        for fd in select.select(list(open_fds), [], [])[0]:
            data = os.read(fd, 65536)
            got[open_fds[fd]] += data
            if not data:
                open_fds.pop(fd)
    _, code = os.waitpid(rank["pid"], 0)
    return {key: text.decode("latin-1") for key, text in got.items()} | {"code": code}


def fake_shim():
    LIBC.prctl(36, 1, 0, 0, 0)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    with open(sys.argv[2]) as f:
        orders = json.load(f)
    names = os.listdir("/proc/self/fd")
    state = {"fds": sorted(int(name) for name in names if os.path.exists("/proc/self/fd/" + name)), "leads": os.getsid(0) == os.getpid(),
             "environment": sorted(set(os.environ) - {"LC_CTYPE"})}
    fakes = Fakes(9, int(sys.argv[sys.argv.index("--warm") + 1]), orders)
    result = {"ranks": fakes.run(), "state": state}
    os.write(3, json.dumps(result).encode())


class Nursery:
    def __init__(self, words, directory, extra=(), modules=""):
        self.ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.ours.settimeout(LIMIT_S)
        entries = dict(environment(-1), REGROUP_WARM_ROOM=" " * 32768)
        entries.update(extra)
        given = fcntl.fcntl(theirs, fcntl.F_DUPFD, 64)
        theirs.close()
        before = words.index(next(word for word in words if word == "-m" or word.endswith(".py")))
        self.process = subprocess.Popen(
            ["bash", "-c", f'exec 3<&{given} {given}<&-; exec "$@"', "bash", SHIM, "--nursery", directory, str(before),
             modules, words[0], *words], env=entries, pass_fds=[given], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True)
        os.close(given)
        self.said = self.ours.recv(8192).decode()

    def ask(self, orders, directory):
        path = os.path.join(directory, "orders")
        with open(path, "w") as f:
            json.dump(orders, f)
        answer, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        answer.settimeout(LIMIT_S)
        result = os.memfd_create("result")
        null = os.open("/dev/null", os.O_RDWR)
        words = [sys.executable, os.path.abspath(__file__), "--fake-shim", path]
        targets = [0, 1, 2, 3, 4]
        message = b"\0".join([b"shim", b",".join(b"%d" % t for t in targets)] + [os.fsencode(w) for w in words]) + b"\0"
        fds = [null, null, 2, result, null, theirs.fileno()]
        self.ours.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])
        theirs.close()
        pid = answer.recv(16)
        if not pid:
            answer.close()
            os.close(null)
            os.close(result)
            return None
        with open("/proc/%s/stat" % pid.decode()) as f:
            start = f.read().rpartition(")")[2].split()[19]
        handle = os.pidfd_open(int(pid))
        answer.send(b"go")
        select.select([handle], [], [], LIMIT_S)
        answer.close()
        os.close(handle)
        os.close(null)
        text = os.pread(result, 1 << 22, 0)
        os.close(result)
        return json.loads(text) if text else {"shim": int(pid), "start": start}

    def close(self):
        self.ours.close()
        return self.process.wait(LIMIT_S)


class WarmRank(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = os.path.realpath(folder.name)
        self.cwd = os.path.join(self.folder, "cwd")
        os.mkdir(self.cwd)

    def write(self, name, text):
        path = os.path.join(self.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as f:
            f.write(textwrap.dedent(text))
        return path

    def order(self, words, rank=0, **more):
        stdin = self.write("stdin%d" % rank, "input of %d\n" % rank)
        return {"directory": self.cwd, "cpus": sorted(os.sched_getaffinity(0))[:1], "command": words,
                "environment": environment(rank), "stdin": stdin} | more

    def nursery(self, words, extra=(), modules=""):
        nursery = Nursery(words, self.cwd, extra, modules)
        self.addCleanup(nursery.close)
        return nursery

    def warm(self, words, count=1, **orders):
        nursery = self.nursery(words)
        self.assertEqual(nursery.said, "ready")
        return nursery.ask({"ranks": [self.order(words, rank) for rank in range(count)]} | orders, self.folder)

    def cold(self, words, rank=0):
        """As SpawnRank does it."""
        order = self.order(words, rank)
        out, err, status = os.pipe(), os.pipe(), os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.setsid()
                for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
                    signal.signal(number, signal.SIG_DFL)
                with open("/proc/self/oom_score_adj", "w") as f:
                    f.write("100")
                for number, soft, hard in LIMITS:
                    resource.setrlimit(number, (soft, hard))
                os.sched_setaffinity(0, order["cpus"])
                os.umask(0o27)
                os.chdir(order["directory"])
                for fd, target in ((os.open(order["stdin"], os.O_RDONLY), 0), (out[1], 1), (err[1], 2)):
                    os.dup2(fd, target)
                os.closerange(3, 200)
                os.execve(words[0], words, order["environment"])
            finally:
                os._exit(127)
        for fd in (out[1], err[1], status[1]):
            os.close(fd)
        ended = finish({"pid": pid, "out": out[0], "err": err[0], "status": status[0]})
        for fd in (out[0], err[0], status[0]):
            os.close(fd)
        return ended

    def same(self, text, name="train.py", *words):
        self.write(name, text)
        return self.same_of(command(os.path.join("..", name), *words))

    def same_of(self, given):
        result = self.warm(given)
        cold, warm = self.cold(given), result["ranks"][0]
        self.assertEqual(warm, cold)
        return warm

    def test_every_field(self):
        self.write("local.py", "import decimal\n")
        self.write("train.py", FIELDS)
        self.every_field(command("../train.py", "--flag", "two words", ""))

    def test_every_field_of_a_module(self):
        self.write("cwd/pkg/__init__.py", "import decimal\n")
        self.write("cwd/pkg/train.py", FIELDS)
        self.every_field(module_command("pkg.train", "--flag", "two words", ""))

    def every_field(self, given):
        result = self.warm(given, count=3)
        self.assertEqual(result["state"], {"fds": [0, 1, 2, 3, 4, 9], "leads": True, "environment": []})
        for rank in range(3):
            cold, warm = self.cold(given, rank), result["ranks"][rank]
            self.assertEqual(cold["code"], 0, cold)
            cold_fields, _, cold_rest = cold["out"].partition("\n")
            warm_fields, _, warm_rest = warm["out"].partition("\n")
            self.assertEqual(json.loads(warm_fields), json.loads(cold_fields))
            self.assertEqual(json.loads(warm_fields)["environ"]["RANK"], str(rank))
            self.assertEqual(json.loads(warm_fields)["input"], "input of %d\n" % rank)
            self.assertEqual((warm_rest, warm["err"], warm["code"]), (cold_rest, cold["err"], cold["code"]))
            self.assertIn("atexit", warm_rest)

    def test_ends(self):
        for name, body in {
                "code": "import sys\nsys.exit(7)\n", "text": "import sys\nsys.exit('a reason')\n",
                "error": "import json\ndef f():\n    raise ValueError('x')\nf()\n",
                "cause": "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise KeyError(2) from e\n",
                "syntax": "import os\nif True\n", "interrupt": "raise KeyboardInterrupt\n",
                "signal": "import os\nos.kill(os.getpid(), 9)\n", "at_once": "import os\nos._exit(3)\n",
                "hook": "import sys\nsys.excepthook = lambda t, v, tb: print(t, v, tb.tb_frame.f_code.co_name)\n1/0\n",
                "last": "import atexit, sys\natexit.register(lambda: print(sys.last_type))\n1/0\n"}.items():
            with self.subTest(name):
                name = "ends_" + name
                if name == "ends_syntax":  # Such a script gets no nursery; it may become one while a nursery waits.
                    self.write(name + ".py", "import os\n")
                    nursery = self.nursery(command(f"../{name}.py"))
                    self.write(name + ".py", body)
                    orders = {"ranks": [self.order(command(f"../{name}.py"))]}
                    warm = nursery.ask(orders, self.folder)["ranks"][0]
                    self.assertEqual(warm, self.cold(command(f"../{name}.py")))
                else:
                    self.same(body, name + ".py")

    def test_modules_as_programs(self):
        """Local and installed ones, packages, what ends early, what is not there."""
        said = "import os, sys\nprint(__name__, __package__, __spec__.name, sys.argv, sys.path[:1])\n"
        self.write("cwd/plain.py", said)
        self.write("cwd/whole/__init__.py", "")
        self.write("cwd/whole/__main__.py", "from . import part\n" + said)
        self.write("cwd/whole/part.py", "print('part')\n")
        self.write("cwd/bare/program.py", said)  # A namespace package.
        self.write("cwd/raises.py", "def f():\n    raise ValueError('x')\nf()\n")
        self.write("cwd/ends.py", "import sys\nsys.exit(7)\n")
        for name in ("plain", "whole", "whole.part", "bare.program", "raises", "ends", "whole.missing", "json.tool", "this"):
            with self.subTest(name):
                self.same_of(module_command(name, "--help"))
        self.assertEqual(self.nursery(module_command("missing")).said, "cold there is no module missing that can be executed")
        self.assertEqual(self.nursery(module_command("sqlite3")).said,
                         "cold there is no module sqlite3 that can be executed")
        self.assertIn("missing", self.nursery(module_command("missing.part")).said)

    def test_what_a_module_imports_is_found(self):
        """In its package, in those above it, by relative imports, in modules that a from names, and in what is told."""
        for name in "abcdefg":
            self.write("site/%s.py" % name, "print('%s')\n" % name)
        self.write("cwd/pkg/__init__.py", "import a\n")
        self.write("cwd/pkg/near.py", "import b\n")
        self.write("cwd/pkg/deep/__init__.py", "import c\n")
        self.write("cwd/pkg/deep/train.py", """
            from __future__ import annotations
            from . import other
            from .other import nothing
            import regroup
            regroup.torch_imports("e", "f", 7)
            def late():
                import g
            print("began")
            """)
        self.write("cwd/pkg/deep/other.py", "from .. import near\nimport d\nnothing = 0\n")
        given = module_command("pkg.deep.train")
        nursery = self.nursery(given, {"PYTHONPATH": os.path.join(self.folder, "site") + ":" + PACKAGE})
        self.assertEqual(nursery.said, "ready")
        rank = nursery.ask({"ranks": [self.order(given)]}, self.folder)["ranks"][0]
        self.assertEqual(rank["out"], "a\nc\nb\nd\ne\nf\nbegan\n", rank)

    def test_an_installed_module(self):
        """The packages above it are imported once, itself is executed."""
        self.write("site/stack/__init__.py", "print('stack')\n")
        self.write("site/stack/run/__init__.py", "print('run')\n")
        self.write("site/stack/run/__main__.py", "from . import part\nfrom .. import run\nimport json\nprint(__name__)\n")
        self.write("site/stack/run/part.py", "print('part')\n")
        given = module_command("stack.run")
        nursery = self.nursery(given, {"PYTHONPATH": os.path.join(self.folder, "site")})
        self.assertEqual(nursery.said, "ready")
        rank = nursery.ask({"ranks": [self.order(given)]}, self.folder)["ranks"][0]
        self.assertEqual((rank["out"], rank["err"]), ("stack\nrun\npart\n__main__\n", ""))

    def test_processes_of_its_own(self):
        self.same("""
            import multiprocessing, threading
            def double(x):
                return x * 2
            if __name__ == "__main__":
                for how in ("spawn", "fork", "forkserver"):
                    with multiprocessing.get_context(how).Pool(2) as pool:
                        print(how, pool.map(double, [1, 2, 3]))
                thread = threading.Thread(target=print, args=("thread",))
                thread.start()
                thread.join()
            """)

    def test_a_crash_is_dumped(self):
        """By faulthandler, with the frames that the README's table names."""
        self.write("train.py", "import faulthandler\ndef f():\n    faulthandler._sigsegv()\nf()\n")
        given = [sys.executable, "-u", "-X", "faulthandler", "../train.py"]
        warm, cold = self.warm(given)["ranks"][0], self.cold(given)
        self.assertEqual((warm["code"] & 127, warm["out"]), (cold["code"] & 127, cold["out"]))
        for line in cold["err"].splitlines():
            if not line.startswith("Extension modules"):
                self.assertIn(re.sub("0x[0-9a-f]+", "", line), re.sub("0x[0-9a-f]+", "", warm["err"]))
        self.assertEqual(warm["err"].count("File "), cold["err"].count("File ") + 2)

    def test_frames_below(self):
        said = "import inspect\nprint([frame.function for frame in inspect.stack()])\n"
        self.write("train.py", said)
        self.write("cwd/module.py", said)
        for given in (command("../train.py"), module_command("module")):
            warm, cold = self.warm(given)["ranks"][0]["out"], self.cold(given)["out"]
            self.assertEqual(eval(warm), eval(cold) + ["run", "<module>"])

    def test_a_stack_is_printed_whatever_its_descriptors_are(self):
        """torch.manual_seed() keeps one, and would wait for a pipe that has the number of the nursery's own text."""
        self.write("train.py", "import os, traceback\nr, w = os.pipe()\n[os.dup2(r, fd) for fd in range(3, 9) if fd != w]\n"
                               "print('train.py' in ''.join(traceback.format_stack()))\n")
        self.assertEqual(self.warm(command("../train.py"))["ranks"][0]["out"], "True\n")

    def test_hashes_are_those_of_the_node(self):
        self.write("train.py", "print(hash('name'))\n")
        ranks = self.warm(command("../train.py"), count=3)["ranks"]
        self.assertEqual(len({rank["out"] for rank in ranks}), 1)

    def test_what_imports_print_is_in_every_log(self):
        self.write("site/loud.py", "import sys\nprint('hello')\nprint('trouble', file=sys.stderr)\n")
        self.write("train.py", "import loud\nprint('begin')\n")
        path = os.path.join(self.folder, "site")
        given = command("../train.py")
        nursery = self.nursery(given, {"PYTHONPATH": path})
        orders = {"ranks": [self.order(given, rank) for rank in range(2)]}
        for rank in nursery.ask(orders, self.folder)["ranks"]:
            self.assertEqual((rank["out"], rank["err"]), ("hello\nbegin\n", "trouble\n"))

    def test_a_local_module_is_read_again(self):
        self.write("local.py", "import json\nVALUE = 1\n")
        self.write("train.py", "import local\nprint(local.VALUE)\n")
        given = command("../train.py")
        nursery = self.nursery(given)
        orders = {"ranks": [self.order(given)]}
        self.assertEqual(nursery.ask(orders, self.folder)["ranks"][0]["out"], "1\n")
        self.write("local.py", "import json\nVALUE = 'another'\n")
        self.assertEqual(nursery.ask(orders, self.folder)["ranks"][0]["out"], "another\n")

    def test_a_module_that_has_changed(self):
        path = self.write("site/library.py", "VALUE = 1\n")
        self.write("train.py", "import library\nprint(library.VALUE)\n")
        given = command("../train.py")
        nursery = self.nursery(given, {"PYTHONPATH": os.path.dirname(path)})
        self.assertEqual(nursery.said, "ready")
        self.write("site/library.py", "VALUE = 'another'\n")
        self.assertIsNone(nursery.ask({"ranks": [self.order(given)]}, self.folder))
        self.assertEqual(nursery.ours.recv(8192).decode(), "cold %s has changed since it was imported" % path)

    def test_cold_with_the_module_to_blame(self):
        site = os.path.join(self.folder, "site")
        self.write("site/threads.py", "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), "
                                      "daemon=True).start()\n")
        self.write("site/listens.py", "import socket\nS = socket.create_server(('127.0.0.1', 0))\n")
        self.write("site/locks.py", "import logging\nlogging._lock.acquire()\n")
        self.write("site/imports.py", "import _imp\n_imp.acquire_lock()\n")
        # Of one 64 MiB, as resident as 65 of them.
        self.write("site/fat.py", "import mmap, os\nfd = os.memfd_create('fat')\nos.ftruncate(fd, 64 << 20)\n"
                                  "HELD = [mmap.mmap(fd, 64 << 20, flags=mmap.MAP_SHARED | 0x8000) for _ in range(65)]  # Populated.\n"
                                  "os.close(fd)\n")
        self.write("site/fails.py", "raise RuntimeError('no device')\n")
        self.write("json5.py", "")
        self.write("site/json5.py", "")
        self.write("site/hidden.py", "import json5\n")
        for text, why in {
                "import json\nimport threads\n": "cold import threads starts 1 threads",
                "import listens\n": "cold import listens opens a socket",
                "import locks\n": "cold import locks holds the lock of logging",
                "import imports\n": "cold import imports holds the lock of imports",
                "import fat\n": "cold import fat takes 4.1 GiB, more than 4",
                "import fails\n": "cold import fails: RuntimeError: no device",
                "import hidden\n": "cold json5 of the script's folder hides the module that was imported",
                "import (\n": "cold SyntaxError: "}.items():
            with self.subTest(why):
                self.write("train.py", text)
                self.assertIn(why, self.nursery(command("../train.py"), {"PYTHONPATH": site}).said)

    def test_modules_that_are_named(self):
        self.write("site/stack/__init__.py", "print('stack')\n")
        self.write("site/stack/deep.py", "print('deep')\n")
        self.write("site/never.py", "raise RuntimeError('never')\n")
        self.write("train.py", "print('began')\nimport stack.deep\n")
        given, path = command("../train.py"), {"PYTHONPATH": os.path.join(self.folder, "site")}
        nursery = self.nursery(given, path, "stack.deep,json")
        self.assertEqual(nursery.ask({"ranks": [self.order(given)]}, self.folder)["ranks"][0]["out"], "stack\ndeep\nbegan\n")
        self.write("train.py", "import never\n")
        self.assertEqual(self.nursery(given, path, "json").said, "ready")
        self.assertEqual(self.nursery(given, path, "json,missing").said,
                         "cold import missing: ModuleNotFoundError: No module named 'missing'")

    def test_what_the_first_step_of_torch_imports(self):
        self.write("site/torch/__init__.py", "print('torch')\n")
        self.write("train.py", "import torch\nprint('began', 'torch._dynamo' in __import__('sys').modules)\n")
        given, path = command("../train.py"), {"PYTHONPATH": os.path.join(self.folder, "site")}
        threads = "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
        for text, said, out in ((None, "ready", "torch\nbegan False\n"), ("print('dynamo')\n", "ready", "torch\ndynamo\nbegan True\n"),
                                ("1 / 0\n", "ready", "torch\nbegan False\n"),
                                (threads, "cold import torch._dynamo starts 1 threads", None)):
            if text is not None:
                self.write("site/torch/_dynamo.py", text)
            nursery = self.nursery(given, path)
            self.assertEqual(nursery.said, said)
            if out is not None:
                self.assertEqual(nursery.ask({"ranks": [self.order(given)]}, self.folder)["ranks"][0]["out"], out)

    def test_threads_of_libraries(self):
        """They read their number when they are loaded, and are told it again in the rank."""
        path = os.path.join(self.folder, "site")
        for library, function in (("libgomp-0", "omp_set_num_threads"), ("libscipy_openblas64_-0", "scipy_openblas_set_num_threads64_")):
            source = self.write(function + ".c", "int got = -1;\nvoid %s(int n) { got = n; }\n" % function)
            subprocess.run(["cc", "-shared", "-fPIC", "-o", os.path.join(self.folder, library + ".so"), source], check=True)
            self.write("site/" + function + ".py", """
                import ctypes, os
                AT_IMPORT = [os.environ[k] for k in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "PYTORCH_NVML_BASED_CUDA_CHECK")]
                LIBRARY = ctypes.CDLL(%r)
                def got():
                    return ctypes.c_int.in_dll(LIBRARY, "got").value
                """ % os.path.join(self.folder, library + ".so"))
        self.write("site/torch/__init__.py", "THREADS = []\nset_num_threads = THREADS.append\n")
        self.write("train.py", """
            import torch, omp_set_num_threads as a, scipy_openblas_set_num_threads64_ as b
            print(a.AT_IMPORT, a.got(), b.got(), torch.THREADS)
            """)
        given, site = command("../train.py"), {"PYTHONPATH": path}
        nursery, order = self.nursery(given, site), self.order(given)
        self.assertEqual(nursery.said, "ready")
        cpus = len(order["cpus"])
        for entries, said in (({}, ("-1 -1 []" if cpus == 1 else "%d %d [%d]" % (cpus, cpus, cpus))),
                              ({"OMP_NUM_THREADS": "3"}, "3 3 [3]"), ({"OMP_NUM_THREADS": "1"}, "-1 -1 []"),
                              ({"OMP_NUM_THREADS": "4,2", "OPENBLAS_NUM_THREADS": "2"}, "4 2 [4]"),
                              ({"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "5"}, "-1 -1 [5]"),
                              ({"OMP_NUM_THREADS": "many", "OPENBLAS_NUM_THREADS": "6"}, "%s 6 %s" % (("-1", "[]") if cpus == 1 else (cpus, "[%d]" % cpus)))):
            rank = nursery.ask({"ranks": [order | {"environment": environment(0) | entries}]}, self.folder)["ranks"][0]
            self.assertEqual(rank["out"], "['1', '1', '1'] %s\n" % said, rank)

    def test_a_failure_of_its_own(self):
        nursery = self.nursery(command("../missing.py"))
        self.assertRegex(nursery.said, "^cold FileNotFoundError: ")

    def test_what_fails_before_the_script(self):
        self.write("train.py", "print('began')\n")
        given = command("../train.py")
        nursery = self.nursery(given)
        order = self.order(given, directory=os.path.join(self.folder, "missing"))
        rank = nursery.ask({"ranks": [order]}, self.folder)["ranks"][0]
        self.assertEqual(struct.unpack("ii", rank["status"].encode("latin-1")), (3, 2))
        self.assertEqual((rank["out"], rank["code"]), ("", 127 << 8))

    def test_a_script_that_is_gone(self):
        path = self.write("train.py", "print('began')\n")
        given = command("../train.py")
        nursery = self.nursery(given)
        os.unlink(path)
        rank = nursery.ask({"ranks": [self.order(given)]}, self.folder)["ranks"][0]
        self.assertEqual(rank, self.cold(given))

    def test_without_go_none_begins(self):
        self.write("train.py", "print('began')\n")
        result = self.warm(command("../train.py"), count=2, go=False)
        self.assertEqual([(rank["out"], rank["code"]) for rank in result["ranks"]], [("", 127 << 8)] * 2)

    def test_random_numbers_differ(self):
        self.write("train.py", "import random\nprint(random.random())\n")
        ranks = self.warm(command("../train.py"), count=3)["ranks"]
        self.assertEqual(len({rank["out"] for rank in ranks}), 3)

    def test_numpy_is_seeded_anew(self):
        self.write("site/numpy/__init__.py", "from . import random\n")
        self.write("site/numpy/random.py", "def seed():\n    print('seeded')\n")
        self.write("train.py", "import numpy\n")
        given = command("../train.py")
        nursery = self.nursery(given, {"PYTHONPATH": os.path.join(self.folder, "site")})
        ranks = nursery.ask({"ranks": [self.order(given, rank) for rank in range(2)]}, self.folder)["ranks"]
        self.assertEqual([rank["out"] for rank in ranks], ["seeded\n"] * 2)

    def test_a_spare_forks_the_ranks_of_the_next_generation(self):
        """Each as the first ones, until a module has changed."""
        self.write("local.py", "import decimal\n")
        self.write("train.py", FIELDS)
        given = command("../train.py", "two words")
        nursery = self.nursery(given)
        result = nursery.ask({"ranks": [self.order(given, rank) for rank in range(2)], "generations": 4}, self.folder)["ranks"][0]
        self.assertEqual((result["is_child"], result["code"]), (True, 0))
        self.assertEqual(len(result["generations"]), 4)
        for ranks in result["generations"]:
            for rank, warm in enumerate(ranks):
                cold = self.cold(given, rank)
                self.assertEqual(json.loads(warm["out"].partition("\n")[0]), json.loads(cold["out"].partition("\n")[0]))
                self.assertEqual((warm["err"], warm["code"]), (cold["err"], cold["code"]))

    def test_nothing_outlives_its_shim(self):
        self.write("train.py", "import time\ntime.sleep(%d)\n" % LIMIT_S)
        words, held = command("../train.py"), os.path.join(self.folder, "held")
        os.mkfifo(held)
        reader = os.open(held, os.O_RDONLY | os.O_NONBLOCK)
        self.addCleanup(os.close, reader)
        nursery = self.nursery(words)
        nursery.ask({"ranks": [self.order(words, rank, stdin=held) for rank in range(2)], "die": True}, self.folder)
        # Readable at its end: when the last process that holds it is gone.
        self.assertTrue(select.select([reader], [], [], LIMIT_S / 4)[0])
        self.assertEqual(os.read(reader, 1), b"")

    def test_the_nursery_ends_with_its_agent(self):
        self.write("train.py", "import json\n")
        nursery = Nursery(command("../train.py"), self.cwd)
        self.assertEqual(nursery.close(), 0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--fake-shim"]:
        fake_shim()
    else:
        unittest.main()
