"""The nursery of one job on one node: imports what its script will need, once, then forks ranks that start warm.

Built into regroup-shim, which executes the job's own interpreter with this text; agent/README.md has the design. Its
arguments: how many words stand before the script, or before -m and a module, in the command, the modules to import (with
commas between them; none: those that the script imports), then the command. Descriptor 3 is the agent's socket.
It says there "ready" or "cold REASON", is then asked for supervisors ("shim"), and ends when the agent has gone.
"""
import sys

# Libraries that start threads when they are imported, where these do not say 1.
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
# What a first step imports, and nothing at the top of a script says.
LATER = {"torch": "torch._dynamo"}

# What a cold rank has imported before its script's own folder counts.
EARLY = set(sys.modules)

import _imp  # noqa: E402 (EARLY comes first)
import ast  # noqa: E402
import ctypes  # noqa: E402
import fcntl  # noqa: E402
import gc  # noqa: E402
import importlib  # noqa: E402
import importlib.machinery  # noqa: E402
import importlib.util  # noqa: E402
import io  # noqa: E402
import linecache  # noqa: E402
import logging  # noqa: E402
import os  # noqa: E402
import resource  # noqa: E402
import runpy  # noqa: E402
import signal  # noqa: E402
import socket  # noqa: E402
import stat  # noqa: E402
import struct  # noqa: E402
import types  # noqa: E402

ROOM = "REGROUP_WARM_ROOM"
MAX_RSS_BYTES = 4 << 30
MAX_SAID_BYTES = 1 << 20
MAX_MESSAGE_BYTES = 64 << 10
MAX_FDS = 32
AGENT_FD, TEXT_FD = 3, 4  # nursery_exec.cc
WARM_FD = 9  # spawn_fds.h
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
# As in spawn_rank.cc.
STAGE_LIMIT, STAGE_AFFINITY, STAGE_DIRECTORY, STAGE_STREAMS, STAGE_EXEC = 1, 2, 3, 4, 6

LIBC = ctypes.CDLL(None, use_errno=True)


class Cold(Exception):
    """Ranks cannot be forked from this process; says why."""


# ---- what the script will need ------------------------------------------------------------------


def local_files(folder, name, names=()):
    """(package, file) of what importing the module reads, and of those of `names` that are its modules, where it lies in the
    script's folder; None where it does not."""
    top = os.path.join(folder, name.split(".")[0])
    if not os.path.exists(top + ".py") and not os.path.isdir(top):
        return None
    parts, found = name.split("."), []
    for module in [".".join(parts[:count + 1]) for count in range(len(parts))] + ["%s.%s" % (name, more) for more in names]:
        path = os.path.join(folder, *module.split("."))
        if os.path.isfile(os.path.join(path, "__init__.py")):
            found.append((module, os.path.join(path, "__init__.py")))
        elif os.path.isfile(path + ".py"):
            found.append((module.rpartition(".")[0], path + ".py"))
    return found


def imports(node, package):
    """(module, names) that a statement at the top of a file imports, or tells regroup.torch_imports()."""
    if isinstance(node, ast.Import):
        return [(alias.name, ()) for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        if node.level > (package.count(".") + 1 if package else 0):
            return []  # The rank fails there, and says so.
        base = package.rsplit(".", node.level - 1)[0] if node.level > 0 else ""
        return [(".".join(filter(None, (base, node.module))), tuple(alias.name for alias in node.names))]
    call = getattr(node, "value", None)
    if isinstance(node, ast.Expr) and isinstance(call, ast.Call):
        if "torch_imports" in (getattr(call.func, "attr", None), getattr(call.func, "id", None)):
            return [(word.value, ()) for word in call.args if isinstance(word, ast.Constant) and isinstance(word.value, str)]
    return []


def wanted(script, folder, package="", seen=None):
    """(module, names) of the imports at the top of the script and of its local modules, in their order."""
    seen = set() if seen is None else seen
    seen.add(script)
    with io.open_code(script) as f:
        tree = ast.parse(f.read(), script)
    found = []
    for node in tree.body:
        for name, names in imports(node, package):
            files = local_files(folder, name, names)
            if files is None and name != "__future__":
                found.append((name, names))
            for its_package, file in files or ():
                if file not in seen:
                    found += wanted(file, folder, its_package, seen)
    return found


def wanted_by_module(name, folder, own):
    """As wanted(), of what `python -m` executes. Imports the packages above it, as that does."""
    files = local_files(folder, name, ("__main__",))
    seen, found = set(), []
    for package, file in files or ():
        if file not in seen:
            found += wanted(file, folder, package, seen)
    if files is not None:
        return found
    parent = name.rpartition(".")[0]
    import_all([(parent, ())] if parent else [], own)
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        import_all([(name, ())], own)
        spec = importlib.util.find_spec(name + ".__main__")
    if spec is None:
        raise Cold("there is no module %s that can be executed" % name)
    if not spec.origin or not spec.origin.endswith(".py"):
        return []
    return [ask for ask in wanted(spec.origin, folder, spec.parent) if ask[0] != spec.name]


# ---- whether a fork of this process is as good as a new one --------------------------------------


def check(own):
    """Raises Cold where something lives here that a fork would break or share."""
    threads = len(os.listdir("/proc/self/task"))
    if threads != 1:
        raise Cold("starts %d threads" % (threads - 1))
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        try:
            at, mode = os.readlink("/proc/self/fd/" + name), os.fstat(fd).st_mode
        except OSError:
            continue  # Of the listing itself.
        if at.startswith(("/dev/nvidia", "/dev/kfd", "/dev/dri", "/dev/accel")):
            raise Cold("opens " + at)
        if stat.S_ISSOCK(mode) and fd not in own:
            raise Cold("opens a socket")
    if _imp.lock_held():
        raise Cold("holds the lock of imports")
    owned = getattr(logging._lock, "_is_owned", lambda: False)
    if owned():
        raise Cold("holds the lock of logging")
    with open("/proc/self/statm", "rb") as f:
        rss = int(f.read().split()[1]) * resource.getpagesize()
    if rss > MAX_RSS_BYTES:
        raise Cold("takes %.1f GiB, more than %d" % (rss / (1 << 30), MAX_RSS_BYTES >> 30))


def import_all(asked, own):
    try:
        check(own)
    except Cold as why:
        raise Cold("the interpreter itself %s" % why) from None
    for name, names in asked:
        try:
            __import__(name, {}, {}, list(names), 0)
        except BaseException as error:  # Whatever it is, the rank meets it as well, and says so.
            raise Cold("import %s: %s: %s" % (name, type(error).__name__, str(error)[:200])) from None
        check_after(name, own)
    for name, later in LATER.items():
        if name in sys.modules:
            try:
                __import__(later)
            except Exception:
                pass  # The script may never need it.
            check_after(later, own)


def check_after(name, own):
    try:
        check(own)
    except Cold as why:
        raise Cold("import %s %s" % (name, why)) from None


def refuse_shadowed(folder):
    """Cold ranks look into the script's folder first; the nursery does not."""
    tops = {name.split(".")[0] for name in sys.modules} - {name.split(".")[0] for name in EARLY}
    for top in sorted(tops):
        if local_files(folder, top) is not None:
            raise Cold("%s of the script's folder hides the module that was imported" % top)


def imported_files():
    files = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    return {file: identity(file) for file in files if isinstance(file, str) and file != __file__}


def identity(file):
    try:
        at = os.stat(file)
    except OSError:
        return None
    return (at.st_mtime_ns, at.st_size, at.st_ino)


# ---- sockets -------------------------------------------------------------------------------------


def receive(sock):
    """(message, descriptors); an empty message is the end."""
    fds = []
    size = struct.calcsize("i")
    message, ancillary, _, _ = sock.recvmsg(MAX_MESSAGE_BYTES, socket.CMSG_SPACE(MAX_FDS * size))
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds += struct.unpack("%di" % (len(data) // size), data[:len(data) // size * size])
    return message, fds


def close_all(fds):
    for fd in fds:
        os.close(fd)


# ---- names that other processes see --------------------------------------------------------------


class Shown:
    """The memory behind /proc/PID/cmdline and the end of /proc/PID/environ, which other processes read."""

    def __init__(self):
        with open("/proc/self/stat", "rb") as f:
            fields = f.read().rpartition(b")")[2].split()
        self.words_start, self.words_end, start, self.entries_end = (int(fields[at]) for at in (45, 46, 47, 48))
        at = ctypes.string_at(start, self.entries_end - start).find(ROOM.encode() + b"=")
        self.entries_start = start + at if at >= 0 else self.entries_end

    @staticmethod
    def _write(start, end, parts):
        room, text = end - start, b""
        for part in parts:
            if len(text) + len(part) + 1 < room:
                text += part + b"\0"
        if room > 0:
            ctypes.memmove(start, text.ljust(room, b"\0"), room)

    def show_words(self, words):
        self._write(self.words_start, self.words_end, words)

    def show_entries(self, entries):
        self._write(self.entries_start, self.entries_end, entries)


# ---- a rank --------------------------------------------------------------------------------------


class Plan:
    """What regroup-shim (warm_start.cc) says of one rank."""

    def __init__(self, text):
        self.directory, self.umask, self.oom, self.shim = b"", 0o22, b"", 0
        self.limits, self.cpus, self.words, self.entries = [], [], [], []
        for item in text.split(b"\0")[:-1]:
            kind, value = item[:1], item[1:]
            if kind == b"d":
                self.directory = value
            elif kind == b"u":
                self.umask = int(value)
            elif kind == b"o":
                self.oom = value
            elif kind == b"p":
                self.shim = int(value)
            elif kind == b"l":
                number, soft, hard = (int(part) for part in value.split(b":"))
                self.limits.append((number, self.bound(soft), self.bound(hard)))
            elif kind == b"c":
                self.cpus.append(int(value))
            elif kind == b"a":
                self.words.append(value)
            elif kind == b"e":
                self.entries.append(value)

    @staticmethod
    def bound(value):
        return resource.RLIM_INFINITY if value == (1 << 64) - 1 else value


def set_up(plan, streams, status_fd):
    """As RunChild of spawn_rank.cc, in its order."""
    stage = STAGE_EXEC
    try:
        try:
            with open("/proc/self/oom_score_adj", "wb", buffering=0) as f:
                f.write(plan.oom)
        except OSError:
            pass  # Lowering needs a right: then the inherited value stays.
        stage = STAGE_LIMIT
        for number, soft, hard in plan.limits:
            resource.setrlimit(number, (soft, hard))
        stage = STAGE_AFFINITY
        if plan.cpus:
            os.sched_setaffinity(0, plan.cpus)
        os.umask(plan.umask)
        stage = STAGE_DIRECTORY
        if plan.directory:
            os.chdir(plan.directory)
        stage = STAGE_STREAMS
        for fd, target in zip(streams, (0, 1, 2)):
            os.dup2(fd, target)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
    except OSError as error:
        os.write(status_fd, struct.pack("ii", stage, error.errno or 0))
        os._exit(127)


def leave_site():
    """As sitecustomize.py of ranks under --in-place does, which the nursery has run for them."""
    site, path = os.environ.pop("REGROUP_SITE", None), os.environ.get("PYTHONPATH", "")
    if site is not None and path == site:
        os.environ.pop("PYTHONPATH", None)
    elif site is not None and path.startswith(site + os.pathsep):
        os.environ["PYTHONPATH"] = path[len(site) + 1:]


def take_environment(entries):
    os.environ.clear()
    for entry in entries:
        key, _, value = entry.partition(b"=")
        os.environb[key] = value
    leave_site()


def thread_count(*names):
    """As these libraries read it: the first that is a number, else a thread for each CPU."""
    for name in names + ("OMP_NUM_THREADS",):
        first = os.environ.get(name, "").split(",")[0].strip()
        if first.isdigit() and int(first) > 0:
            return int(first)
    return len(os.sched_getaffinity(0))


def take_threads():
    """The environment was read when the libraries were loaded, and said one thread."""
    omp, blas = thread_count(), thread_count("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS")
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as f:
        paths = {line.rstrip("\n").split(None, 5)[5] for line in f if ".so" in line}
    for path in paths:
        name = os.path.basename(path)
        if "openblas" in name and blas > 1:
            call(path, blas, *(prefix + "openblas_set_num_threads" + suffix for prefix in ("", "scipy_") for suffix in ("", "64_")))
        elif name.startswith(("libgomp", "libiomp", "libomp")) and omp > 1:
            call(path, omp, "omp_set_num_threads")
    torch = sys.modules.get("torch")
    if torch is not None and max(omp, thread_count("MKL_NUM_THREADS")) > 1:
        torch.set_num_threads(thread_count("MKL_NUM_THREADS"))


def call(path, number, *names):
    library = ctypes.CDLL(path)
    for name in names:
        function = getattr(library, name, None)
        if function is not None:
            return function(ctypes.c_int(number))
    return None


def reseed():
    """What a new interpreter draws from the system while it imports; `random` does it itself after a fork."""
    random = sys.modules.get("numpy.random")
    if random is not None:
        random.seed()


def repeat_said(said):
    """Every rank's log has what its imports printed."""
    for fd, target in zip(said, (1, 2)):
        text = os.pread(fd, MAX_SAID_BYTES, 0)
        while text:
            text = text[os.write(target, text):]


def takes_folder():
    """Whether the interpreter looks for modules in the script's folder."""
    return not sys.flags.isolated and not getattr(sys.flags, "safe_path", False)


def new_main(loader):
    main = types.ModuleType("__main__")
    main.__loader__ = loader
    main.__builtins__ = sys.modules["builtins"]
    main.__annotations__ = {}
    sys.modules["__main__"] = main
    return main


def program(words, before):
    """The script as __main__, and its text; ends the process as the interpreter would where there is none."""
    script = words[before]
    sys.argv[:] = words[before:]
    if takes_folder():
        sys.path.insert(0, os.path.dirname(os.path.realpath(script)))
    path = script
    if sys.version_info >= (3, 9) and not os.path.isabs(script):
        path = os.path.join(os.getcwd(), script)
    main = new_main(importlib.machinery.SourceFileLoader("__main__", path))
    main.__file__, main.__cached__ = path, None
    try:
        with io.open_code(path) as f:
            text = f.read()
    except OSError as error:
        sys.stderr.write("%s: can't open file %r: [Errno %d] %s\n" %
                         (sys.executable, path, error.errno, error.strerror))
        raise SystemExit(2)
    return main, text


def become_module(words, before):
    """What `python -m` does before it looks for the module."""
    sys.argv[:] = ["-m"] + words[before + 2:]
    if takes_folder():
        sys.path.insert(0, os.getcwd())
    new_main(importlib.machinery.BuiltinImporter)


def run(plan, before):
    kept = sys.modules["__main__"]  # This module's functions run until the end.
    words = [os.fsdecode(word) for word in plan.words]
    if hasattr(sys, "orig_argv"):
        sys.orig_argv[:] = words
    importlib.invalidate_caches()
    is_module = words[before] == "-m"
    main, text = program(words, before) if not is_module else (become_module(words, before), "")
    try:
        if is_module:
            runpy._run_module_as_main(words[before + 1])
        else:
            exec(compile(text, main.__file__, "exec", dont_inherit=True), main.__dict__)
    except SystemExit:
        raise
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_globals is kept.__dict__:
            trace = trace.tb_next
        error.__traceback__ = trace
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
        sys.excepthook(type(error), error, trace)
        # The interpreter ends as after any uncaught exception, but has said all there is to say.
        sys.excepthook = lambda *_: None
        raise


def become_rank(plan, fds, state):
    """In the new process, from its fork until the script is over."""
    stdin, stdout, stderr, status_fd, go = fds[1:6]
    os.setsid()
    if os.read(go, 1) != b"g":
        os._exit(127)  # The shim has given up on this process before it was told its number.
    # The parent is the shim by now: it says go after the process between the two has ended.
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != plan.shim:
        os._exit(127)
    set_up(plan, (stdin, stdout, stderr), status_fd)
    state["shown"].show_words(plan.words)
    state["shown"].show_entries(sorted(plan.entries, key=lambda entry: not entry.startswith(b"REGROUP_")))
    take_environment(plan.entries)
    take_threads()
    reseed()
    # Whoever prints a stack reads the files of its frames. This one's name is that of a descriptor, which the script may make
    # a pipe that nobody writes to.
    linecache.cache[__file__] = (0, None, [], __file__)
    repeat_said(state["said"])
    close_all(fds + state["said"])  # The status pipe too: it has begun its program.


# ---- between a shim and its ranks ----------------------------------------------------------------


def end_with(shim):
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != shim:
        os._exit(1)


def serve_shim(warm, shim, state):
    """Forks the ranks of one generation as the shim asks for them, then ends, so that they are the shim's children.

    Before them it forks its spare, where it is asked to: that does the same in the next generation, and is the shim's child
    by then. Returns in a rank only, with its plan."""
    end_with(shim)
    in_cgroup = spare = False
    while True:
        message, fds = receive(warm)
        if not message:
            os._exit(0)
        if spare:  # Its parent was another one until now, with which it was not to end.
            end_with(shim)
            spare = False
            if changed(state["files"]) is not None:
                os._exit(0)
        if message == b"spare":
            pid = fork()
            if pid == 0:
                warm.close()
                warm, spare = socket.socket(fileno=fds[0]), True
            else:
                close_all(fds)
                warm.send(struct.pack("ii", pid, 0))
            continue
        if len(fds) > 6 and not in_cgroup:
            try:
                procs = os.open("cgroup.procs", os.O_WRONLY, dir_fd=fds[6])
                os.write(procs, b"0")
                os.close(procs)
                in_cgroup = True
            except OSError:
                pass
        plan = Plan(os.pread(fds[0], os.fstat(fds[0]).st_size, 0))
        pid = fork()
        if pid == 0:
            warm.close()
            become_rank(plan, fds, state)
            return plan
        close_all(fds)
        warm.send(struct.pack("ii", pid, in_cgroup))


def fork():
    """As os.fork(); what has failed as a negative number."""
    try:
        return os.fork()
    except OSError as error:
        return -(error.errno or 1)


def become_shim(message, fds, own, state):
    """In a new process: executes regroup-shim with the descriptors it expects, beside a child that has the imports.

    Returns in a rank only, with its plan."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    words = message.split(b"\0")[1:-1]
    targets = [int(word) for word in words.pop(0).split(b",")]
    answer = socket.socket(fileno=fds.pop())
    # Before the fork: a child learns of it only so on older kernels.
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    shim = os.getpid()
    child = os.fork()
    if child == 0:
        close_all(fds + list(own))  # It may outlive the nursery, whose end the agent sees there.
        answer.close()
        mine.close()
        return serve_shim(theirs, shim, state)
    try:
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them; what it executes shall not.
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        answer.send(b"%d" % shim)
        if answer.recv(16) != b"go":
            os._exit(1)
        copies = [fcntl.fcntl(fd, fcntl.F_DUPFD, 64) for fd in fds + [mine.fileno()]]
        targets.append(WARM_FD)
        for copy, target in zip(copies, targets):
            os.dup2(copy, target)
        for name in os.listdir("/proc/self/fd"):
            if int(name) not in targets:
                os.closerange(int(name), int(name) + 1)  # That of the listing is closed already.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        os.execve(words[0], words + [b"--warm", b"%d" % child], {})
    finally:
        os._exit(1)


# ---- the nursery ---------------------------------------------------------------------------------


def prepare(words, before, modules, own):
    is_module, program = words[before] == "-m", words[before]
    folder = os.getcwd() if is_module else os.path.dirname(os.path.realpath(program))
    asked = [(module, ()) for module in modules]
    if not asked:
        asked = wanted_by_module(words[before + 1], folder, own) if is_module else wanted(program, folder)
    import_all(asked, own)
    refuse_shadowed(folder)
    gc.collect()
    sys.stdout.flush()
    sys.stderr.flush()
    LIBC.fflush(None)


def changed(files):
    return next((file for file, was in files.items() if identity(file) != was), None)


def serve_agent(agent, own, state):
    """Returns in a rank only, with its plan."""
    files = state["files"] = imported_files()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # Supervisors that end are not waited for.
    agent.send(b"ready")
    while True:
        message, fds = receive(agent)
        if not message:
            os._exit(0)
        try:
            check(own | set(fds))
            stale = changed(files)
            if stale is not None:
                raise Cold("%s has changed since it was imported" % stale)
        except Cold as why:
            agent.send(b"cold " + str(why).encode())
            os._exit(0)
        if os.fork() == 0:
            return become_shim(message, fds, own, state)
        close_all(fds)


def main():
    """Returns in a rank only: its plan and how many words stand before the script or -m."""
    agent = socket.socket(fileno=AGENT_FD)
    os.close(TEXT_FD)
    if sys.version_info < (3, 8):
        agent.send(b"cold Python %d.%d is older than 3.8" % sys.version_info[:2])
        os._exit(0)
    before, modules = int(sys.argv[1]), sys.argv[2].split(",") if sys.argv[2] else []
    words = sys.argv[3:-1]  # The last one is room for longer ones.
    if takes_folder():
        del sys.path[0]
    os.environ.pop(ROOM, None)
    # NVML says whether there are devices without a context of CUDA.
    os.environ.update(dict.fromkeys(THREADS, "1"), PYTORCH_NVML_BASED_CUDA_CHECK="1")
    said = [os.memfd_create("stdout"), os.memfd_create("stderr")]
    for fd, target in zip(said, (1, 2)):
        os.dup2(fd, target)
    state = {"shown": Shown(), "said": said}
    shown = words[before:before + (2 if words[before] == "-m" else 1)]
    state["shown"].show_words([b"regroup-nursery"] + [os.fsencode(word) for word in shown])
    own = {agent.fileno()}
    try:
        prepare(words, before, modules, own)
    except BaseException as error:  # Whatever it is, it costs the warmth alone.
        why = str(error) if isinstance(error, Cold) else "%s: %s" % (type(error).__name__, error)
        agent.send(b"cold " + why.encode(errors="replace")[:4000])
        os._exit(0)
    plan = serve_agent(agent, own, state)
    agent.detach()
    return plan, before


if __name__ == "__main__":
    run(*main())
