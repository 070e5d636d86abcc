"""Starts and kills the real processes of the demo: one coordinator and three agents on loopback."""
import ctypes
import glob
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time

import proof


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def children_of(pid):
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as f:
            return [int(c) for c in f.read().split()]
    except OSError:
        return []


def command_of(pid):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as f:
            return f.read().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def age_of(pid):
    """Seconds since that process began, or None when it is gone."""
    try:
        with open(f"/proc/{pid}/stat") as f:
            ticks = int(f.read().rpartition(")")[2].split()[19])
    except OSError:
        return None
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def kill(pid, number=signal.SIGKILL):
    """The moment just before the signal, or None when the process is already gone."""
    try:
        now = time.time()
        os.kill(pid, number)
        return now
    except ProcessLookupError:
        return None


def kill_descendants():
    """SIGKILLs and reaps everything that we started, directly or not. We are a subreaper: orphans are ours."""
    for _ in range(500):
        left = descendants(os.getpid())
        if not left:
            break
        for pid in left:
            kill(pid)
        reap()
        time.sleep(0.01)


def descendants(pid):
    found = []
    for child in children_of(pid):
        found += [child, *descendants(child)]
    return found


def reap():
    """Collects children that became ours when their parent was killed."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0] != 0:
            pass
    except ChildProcessError:
        pass


def become_subreaper():
    PR_SET_CHILD_SUBREAPER = 36
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def remove_cgroup(path):
    """A control group is a folder that goes as a whole, once its processes are gone: the kernel may need a moment."""
    for _ in range(100):
        try:
            os.rmdir(path)
            return
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.01)


def remove_run_directories(folder):
    """What killed nodes left whose state directories are in `folder`; `agent/shim/run_directory.h` says where."""
    bases = ["/run/regroup", os.path.join(os.environ.get("XDG_RUNTIME_DIR") or "/run", "regroup"),
             f"/dev/shm/regroup-{os.geteuid()}"]
    for path in glob.glob(os.path.join(glob.escape(folder), "*", "node-*", "node.json")):
        with open(path, encoding="utf-8") as f:
            node = json.load(f)["node"]
        for base in bases:
            for spec in glob.glob(os.path.join(base, node, "*", "spec")):
                with open(spec, "rb") as f:
                    for cgroup in re.findall(rb"/[\w./-]*/regroup-[\w.-]+\.[0-9]+\.[0-9a-f]{8}-[0-9a-f]{12}", f.read()):
                        remove_cgroup(cgroup.decode())
            shutil.rmtree(os.path.join(base, node), ignore_errors=True)


class Cluster:
    """Owns every process that it starts; `close` leaves none."""

    def __init__(self, bin_dir, folder):
        self.bin_dir, self.folder = bin_dir, folder
        self.port = free_port()
        self.coordinator = None
        self.agents = {}
        self.environment = dict(os.environ)
        for key in [k for k in self.environment if k.startswith("REGROUP_") and k != "REGROUP_TEST_MUTATION"]:
            del self.environment[key]
        self.environment["REGROUP_COORDINATOR"] = f"unix:{folder}/coordinator-{self.port}/coordinator.sock"

    def _spawn(self, name, arguments):
        log = open(os.path.join(self.folder, f"{name}.log"), "ab")
        return subprocess.Popen([os.path.join(self.bin_dir, "regroup"), *arguments], env=self.environment, stdin=subprocess.DEVNULL,
                                stdout=log, stderr=log, start_new_session=True)

    def start_coordinator(self):
        self.coordinator = self._spawn("coordinator", ["coordinator", "--listen", f"127.0.0.1:{self.port}",
                                                       "--state-dir", self.folder])

    def start_agent(self, name):
        self.agents[name] = self._spawn(name, [
            "agent", "--coordinator", f"127.0.0.1:{self.port}", "--node-name", name, "--slots", "1",
            "--state-dir", os.path.join(self.folder, name), "--sigterm-is-notice"])

    def call(self, *arguments, timeout=20):
        return subprocess.run([os.path.join(self.bin_dir, "regroup"), *arguments], env=self.environment, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=timeout)

    def served_at(self):
        """When each coordinator served, says its log."""
        with open(os.path.join(self.folder, "coordinator.log"), encoding="utf-8", errors="replace") as f:
            return proof.served_at(f.read())

    def read(self, *arguments):
        """The object that a command prints with --json, or None while the coordinator does not answer."""
        done = self.call(*arguments, "--json")
        if done.returncode != 0:
            return None
        return json.loads(done.stdout)

    def node_processes(self, name):
        """(agent pid, shim pids, worker pids) of a node: shims are found by the node's run directory."""
        agent = self.agents[name].pid
        shims = [c for c in children_of(agent) if "regroup-shim" in command_of(c)]
        workers = [w for s in shims for w in children_of(s)]
        return agent, shims, workers

    def close(self):
        """Kills what is left, and removes what the killed could not."""
        kill_descendants()
        remove_run_directories(self.folder)
