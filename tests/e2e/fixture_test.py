"""Tests of the end-to-end fixture: each kind of leftover, planted, is caught; a killed test leaves nothing."""
import glob
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from fixture import leftovers, processes  # noqa: E402 (the path has to come first)

_HERE = os.path.dirname(os.path.abspath(__file__))
_PRELUDE = f"""
import os, signal, subprocess, sys, time
sys.path.insert(0, {_HERE!r})
import regroup_e2e as e2e
DAEMON = "import os, sys, time; os.fork() and sys.exit(); os.setsid(); print(os.getpid(), flush=True); time.sleep(600)"
class T(e2e.TestCase):
    def setUp(self):
        super().setUp()
        self.fx.settle_s = 0.2
    def test(self):
"""


class Inner:
    """A test file with one test of the given body, in a folder of its own."""

    def __init__(self, body):
        self.folder = tempfile.TemporaryDirectory(prefix="rgfx")
        self.path = os.path.join(self.folder.name, "inner.py")
        with open(self.path, "w", encoding="utf-8") as f:
            f.write(_PRELUDE + textwrap.indent(textwrap.dedent(body), " " * 8) + "\ne2e.main()\n")
        self.env = {**os.environ, "REGROUP_BIN_DIR": "/usr/bin", "REGROUP_E2E_REPORTS": self.folder.name}
        self.env.pop("CI", None)  # A neighbour's files are not this test's business.

    def run(self):
        return subprocess.run([sys.executable, self.path], env=self.env, text=True, capture_output=True, timeout=60,
                              check=False)

    def start(self):
        return subprocess.Popen([sys.executable, self.path], env=self.env, text=True, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT)

    def close(self):
        self.folder.cleanup()


class FixtureTest(unittest.TestCase):
    def inner(self, body):
        inner = Inner(body)
        self.addCleanup(inner.close)
        return inner

    def assert_caught(self, body, what):
        result = self.inner(body).run()
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn("left behind", result.stderr)
        self.assertIn(what, result.stderr)

    def test_a_clean_test_passes(self):
        result = self.inner("""
            p = self.fx.start("sh", "-c", "echo out; echo err >&2; exit 3")
            self.assertEqual(p.wait(), 3, p)
            self.assertEqual((p.stdout, p.stderr), ("out\\n", "err\\n"))
            self.assertEqual(e2e.environment(os.getpid())["HOME"], os.environ["HOME"])
            self.fx.service("sleep", "600")
        """).run()
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_the_guard_takes_no_end_for_a_kill(self):
        """Neither an end with success nor one with a failure, however late the root process comes to say so."""
        for body, code in (("pass", 0), ("self.fail()", 1)):
            inner = self.inner(f"os.kill(os.getppid(), signal.SIGSTOP)\n{body}")
            root = inner.start()
            self.addCleanup(root.stdout.close)
            self.addCleanup(root.kill)
            self.wait_until(lambda: root.poll() is None and processes.read(root.pid).state == "T"
                            and not processes.descendants(root.pid))
            time.sleep(0.5)
            root.send_signal(signal.SIGCONT)
            self.assertEqual(root.wait(20), code)
            self.assertEqual(glob.glob(os.path.join(inner.folder.name, "*.txt")), [])

    def test_a_daemon_is_caught_and_ended(self):
        inner = self.inner("""
            p = self.fx.start("python3", "-c", DAEMON)
            e2e.wait_for(lambda: p.stdout.strip())
            print("daemon", p.stdout, file=sys.stderr)
        """)
        result = inner.run()
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertIn("left behind:\n  process", result.stderr)
        daemon = int(result.stderr.split("daemon")[1].split()[0])
        self.assertFalse(processes.alive(daemon))

    def test_a_listening_socket_is_named(self):
        self.assert_caught("""
            p = self.fx.start("python3", "-c",
                "import socket, time; s = socket.create_server(('127.0.0.1', 0)); print(1, flush=True); time.sleep(600)")
            p.expect("1", stream="stdout")
        """, "listening on tcp 127.0.0.1:")

    def test_a_socket_of_the_test_itself(self):
        self.assert_caught("import socket; self.kept = socket.create_server(('127.0.0.1', 0))",
                           "listening socket of the test itself: tcp 127.0.0.1:")

    def test_shared_memory(self):
        self.assert_caught("""
            path = "/dev/shm/rgfx-%d" % os.getpid()
            open(path, "w").write(self.fx.root)
        """, "file /dev/shm/rgfx-")
        self.assertEqual(glob.glob("/dev/shm/rgfx-*"), [])

    def test_a_temporary_file(self):
        self.assert_caught("""
            path = "/tmp/regroup-planted-%d" % os.getpid()
            os.mkdir(path)
            open(path + "/x", "w").write(self.fx.root)
        """, "file /tmp/regroup-planted-")
        self.assertEqual(glob.glob("/tmp/regroup-planted-*"), [])

    def test_a_control_group(self):
        if not os.access("/sys/fs/cgroup", os.W_OK) and not os.access("/sys/fs/cgroup/unified", os.W_OK):
            print(f"SKIPPED {self.id()}: no control group can be made here")
            self.skipTest("no control group can be made here")
        self.assert_caught("""
            import glob
            for base in ["/sys/fs/cgroup/unified"] + sorted(glob.glob("/sys/fs/cgroup/*/")) + ["/sys/fs/cgroup"]:
                try:
                    os.mkdir(os.path.join(base, "regroup-planted-%d" % os.getpid()))
                    break
                except OSError:
                    continue
        """, "control group /sys/fs/cgroup/")
        self.assertFalse([path for path in leftovers.cgroups() if "planted" in path])

    def folder(self):
        folder = tempfile.TemporaryDirectory(prefix="rg", dir="/tmp")
        self.addCleanup(folder.cleanup)
        return folder.name

    def test_a_neighbours_files_stay_and_nobodys_count(self):
        """Of tests that run side by side. A neighbour's name its folder, or are named in it as run directories are."""
        ours, theirs, pid = self.folder(), self.folder(), os.getpid()
        paths = {name: f"/dev/shm/rgfx-{name}-{pid}" for name in ("ours", "theirs", "named", "nobodys")}
        texts = {paths["ours"]: ours, paths["theirs"]: theirs, os.path.join(theirs, "node.json"): os.path.basename(paths["named"])}
        before = leftovers.Before(ours, pid, strict=True)
        for path in {**texts, **dict.fromkeys(paths.values())}:
            self.addCleanup(leftovers.remove, path)
            with open(path, "w", encoding="utf-8") as f:
                f.write(texts.get(path, ""))
        self.assertEqual(set(before.found_files()) & set(paths.values()), {paths["ours"], paths["nobodys"]})
        before.clean()
        self.assertEqual({name for name, path in paths.items() if os.path.exists(path)}, {"theirs", "named"})

    def test_a_neighbours_control_groups_stay_and_nobodys_count(self):
        roots = [path for path in ("/sys/fs/cgroup/unified", "/sys/fs/cgroup") if os.access(path, os.W_OK)]
        if not roots:
            self.skipTest("no control group can be made here")
        ours, theirs, node = self.folder(), self.folder(), f"/dev/shm/rgfx-node-{os.getpid()}"
        before = leftovers.Before(ours, os.getpid(), strict=True)
        with open(os.path.join(theirs, "node.json"), "w", encoding="utf-8") as f:
            f.write(os.path.basename(node))
        os.mkdir(node)
        self.addCleanup(leftovers.remove, node)
        groups = [f"{roots[0]}/regroup-job.1{leftovers.mark_of(path)}planted" for path in (node, node + "x")]
        for path in groups:
            os.mkdir(path)
            self.addCleanup(leftovers.remove_cgroup, path)
        self.assertEqual(set(before.found_cgroups()) & set(groups), {groups[1]})
        before.clean()
        self.assertEqual([os.path.exists(path) for path in groups], [True, False])

    def test_terminal_modes(self):
        inner = self.inner("""
            import termios, tty
            tty.setraw(0)
        """)
        from fixture.terminal import Terminal
        with Terminal([sys.executable, inner.path], env=inner.env) as terminal:
            self.assertEqual(terminal.wait(30), 1)
            self.assertIn("terminal: its modes", terminal.text)
            self.assertFalse(terminal.modes_kept())

    def test_terminal_modes_of_a_program(self):
        """Each terminal that the fixture gave to a program counts, also one that the test has closed."""
        for close in ("", "t.close()"):
            self.assert_caught(f"""
                t = self.fx.terminal("stty", "raw")
                self.assertEqual(t.wait(), 0)
                {close}
            """, "terminal of stty raw: its modes are not what they were")

    def test_terminal_modes_that_were_put_back(self):
        """Nor does a program count that did not end by itself: it was never asked to put them back."""
        result = self.inner("""
            t = self.fx.terminal("sh", "-c", 'before=$(stty -g); stty raw; stty "$before"')
            self.assertEqual(t.wait(), 0)
            killed = self.fx.terminal("sh", "-c", "stty -echo; echo here; exec sleep 600")
            killed.expect("here")
        """).run()
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_a_terminal_program(self):
        result = self.inner("""
            with self.fx.terminal("sh", "-c", "stty size; trap 'echo caught; exit 5' INT; while :; do sleep 0.1; done",
                                  rows=30, columns=70) as t:
                t.expect("30 70")
                t.send("\\x03")
                t.expect("caught")
                self.assertEqual(t.wait(), 5)
                self.assertTrue(t.modes_kept())
            hung_up = self.fx.terminal("sh", "-c", "echo here; sleep 600")
            hung_up.expect("here")
            hung_up.hang_up()
            self.assertEqual(hung_up.wait(), -signal.SIGHUP)
        """).run()
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_wait_for_says_what_it_saw(self):
        result = self.inner("e2e.wait_for(lambda: 0, 0.05, 'the number to change', show='more')").run()
        self.assertEqual(result.returncode, 1)
        self.assertIn("the number to change; last: 0\nmore", result.stderr)

    def test_all_skipped_is_said(self):
        result = self.inner("self.skipTest('no such thing here')").run()
        self.assertEqual(result.returncode, 77, result.stderr)
        self.assertIn("SKIPPED __main__.T.test: no such thing here", result.stdout)

    def test_a_killed_test_leaves_nothing(self):
        for victim in ("the test", "its root process", "both"):
            with self.subTest(victim):
                self.check_killed(victim)

    def check_killed(self, victim):
        inner = self.inner("""
            p = self.fx.start("python3", "-c", DAEMON)
            e2e.wait_for(lambda: p.stdout.strip())
            q = self.fx.start("sleep", "600")
            open("/dev/shm/rgfx-killed-%d" % os.getpid(), "w").write(self.fx.root)
            print("READY", os.getpid(), p.stdout.strip(), q.pid, self.fx.root, flush=True)
            time.sleep(600)
        """)
        root = inner.start()
        self.addCleanup(root.stdout.close)
        self.addCleanup(root.wait)
        self.addCleanup(root.kill)
        words, shown = [], ""
        while "READY" not in words:
            line = root.stdout.readline()
            shown += line
            self.assertTrue(line, f"the inner test ended early: {shown}")
            words = line.split()
        test, daemon, sleeper = (int(word) for word in words[1:4])
        folder = words[4]
        victims = {"the test": [test], "its root process": [root.pid], "both": [root.pid, test]}[victim]
        processes.send(victims, signal.SIGKILL)
        report = os.path.join(inner.folder.name, f"{root.pid}.txt")
        self.wait_until(lambda: _read(report).endswith(f"removed {folder}\n"))
        self.assertFalse([pid for pid in (test, daemon, sleeper) if processes.alive(pid)])
        self.assertFalse(os.path.exists(folder))
        self.assertEqual(glob.glob("/dev/shm/rgfx-killed-*"), [])
        if victim == "the test":
            self.assertEqual(root.wait(20), 1)
            self.assertIn("was killed; its guard:\n  ended process", root.stdout.read())

    def wait_until(self, predicate):
        deadline = time.monotonic() + 20
        while not predicate():
            self.assertLess(time.monotonic(), deadline, "in vain")
            time.sleep(0.02)


def _read(path):
    if not os.path.exists(path):
        return ""
    with open(path, encoding="utf-8") as f:
        return f.read()


if __name__ == "__main__":
    unittest.main(verbosity=2)
