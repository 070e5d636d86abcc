"""What people and the world get wrong: each with a clear message, a documented exit code, and nothing lost."""
import contextlib
import ctypes
import glob
import json
import os
import random
import re
import shutil
import signal
import socket
import sqlite3
import struct
import subprocess
import threading
import time
import unittest

import regroup_e2e as e2e

TEXT = "/usr/share/common-licenses/GPL-3"
# Waits until somebody makes the file $FINISH.
STAY = 'echo "up $MASTER_PORT $REGROUP_SOCKET $REGROUP_GENERATION $$"; while [ ! -e "$FINISH" ]; do sleep 0.02; done'
_CLONE_NEWNS = 0x00020000


class BadInput(e2e.TestCase):
    def setUp(self):
        super().setUp()
        self.port = e2e.free_port()
        self.finish = self.fx.path("work", "finish")

    def refused(self, program, code, what, because=None, advice="."):
        """The program ended with this code and the three lines; the texts are regular expressions."""
        self.assertEqual(program.wait(), code, program)
        self.assertRegex(program.stderr, rf"(?m)^error: .*{what}", program)
        self.assertRegex(program.stderr, rf"(?m)^because: .*{because or '.'}", program)
        self.assertRegex(program.stderr, rf"(?m)^try: .*{advice}", program)
        return program

    def write(self, name, text, mode=0o644):
        path = self.fx.path("work", name)
        with open(path, "w") as f:
            f.write(text)
        os.chmod(path, mode)
        return path

    def end(self):
        open(self.finish, "w").close()

    def at(self, folder="state/coordinator"):
        """Flags of a command that asks the coordinator of start_coordinator()."""
        return "--coordinator", f"127.0.0.1:{self.port}", "--state-dir", self.fx.path(*folder.split("/"))

    def start_coordinator(self, folder="state/coordinator", *options, port=None):
        return self.fx.service(e2e.binary("regroup"), "coordinator", "--listen", f"127.0.0.1:{port or self.port}",
                               "--state-dir", self.fx.path(*folder.split("/")), *options)

    def start_agent(self, folder, *options):
        return self.fx.service(e2e.binary("regroup"), "agent", "--coordinator", f"127.0.0.1:{self.port}",
                               "--state-dir", self.fx.path("state", folder), *options)

    def stop(self, *programs):
        self.fx.let_groups_end()
        for program in programs:
            program.send(signal.SIGTERM)
        for program in programs:
            program.wait()

    def journal(self, folder="state/coordinator"):
        return self.fx.path(*folder.split("/"), f"coordinator-{self.port}", "journal.db")

    def mount(self, name, size):
        """A small file system of its own, which is gone with this process at the latest."""
        own_mounts()
        folder = self.fx.path("work", name)
        os.mkdir(folder)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size},mode=700", "rg", folder], check=True)
        self.addCleanup(subprocess.run, ["umount", "-l", folder], check=True)
        return folder

    def remount(self, folder, how):
        subprocess.run(["mount", "-o", f"remount,{how}", folder], check=True)

    @staticmethod
    def fill(folder):
        """Takes all that is left; returns the file to remove."""
        path = os.path.join(folder, "filler")
        for size in (1 << 16, 1 << 9):
            with open(path, "ab", 0) as f:
                try:
                    while True:
                        f.write(b"x" * size)
                except OSError:
                    pass
        return path

    def serve(self, talk):
        """A listener on a port of its own that gives every client to talk(client); its port."""
        listener = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(listener.close)
        self.addCleanup(listener.shutdown, socket.SHUT_RDWR)

        def accept():
            try:
                while True:
                    client, _ = listener.accept()
                    threading.Thread(target=talk, args=(client,), daemon=True).start()
            except OSError:
                pass
        threading.Thread(target=accept, daemon=True).start()
        return listener.getsockname()[1]


def own_mounts():
    """Puts this process into a mount namespace of its own, once; skips where that is not allowed."""
    if getattr(own_mounts, "done", False):
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS) != 0:
        raise unittest.SkipTest(f"cannot mount: {os.strerror(ctypes.get_errno())}")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    own_mounts.done = True


class CommandsAndFiles(BadInput):
    def test_unknown_flag_and_field(self):
        self.refused(self.fx.run("run", "--nnode", "2", "true"), 125, "unknown flag --nnode", "did you mean --nnodes?")
        self.refused(self.fx.run("ps", "--xyzzy"), 2, "unknown flag --xyzzy", "no such flag", "regroup ps --help")
        path = self.write("job.yaml", "name: a\nrun: x\nnproc_per_nod: 2\n")
        self.refused(self.fx.run("submit", path), 2, "job.yaml:3: unknown field nproc_per_nod", "nproc_per_node")
        self.refused(self.fx.run("submit", "--wait", path), 125, "job.yaml:3: unknown field nproc_per_nod")
        self.refused(self.fx.run("submit", self.write("no.yaml", "name: [a\n")), 2, "no.yaml:.* not YAML")

    def test_bounds(self):
        for flags, what, because, advice in (
                (("--nnodes", "4:2"), "minimum above its maximum", "4 is more than 2", "--nnodes 2:4"),
                (("--nnodes", "0"), "out of range", "1 to 10000", "--nnodes 1"),
                (("--nnodes", "1000000000"), "out of range", "1 to 10000", "--nnodes 10000"),
                (("--ppn", "0"), "out of range", "1 to 1024", "--nproc-per-node"),
                (("--ppn", "1000000000"), "out of range", "1 to 1024", "--nproc-per-node"),
                (("--port-range", "7000-7000"), "too small", "witness", "--port-range 7000-7100")):
            self.refused(self.fx.run("run", *flags, "true"), 125, what, because, advice)
        for field, what, because in (
                ("nnodes: 4:2", "minimum above its maximum", "4 is more than 2"),
                ("nproc_per_node: 0", "out of range", "1 to 1024"),
                ("nproc_per_node: 1000000000", "out of range", "1 to 1024")):
            path = self.write("job.yaml", f"name: a\nrun: x\n{field}\n")
            self.refused(self.fx.run("submit", path), 2, f"job.yaml:3: .*{what}", because)

    def test_few_descriptors(self):
        for words in (("run", "--nproc-per-node", "8", "true"), ("agent", "--coordinator", "127.0.0.1:9")):
            few = self.fx.start("sh", "-c", 'ulimit -n 100; exec "$@"', "sh", e2e.binary("regroup"), *words)
            self.refused(few, 125, "may open 100 descriptors", "needs 128", "ulimit -Hn")
        begun = [name for folder in ("coordinator-*", "nodes/*") for name in glob.glob(self.fx.path("state", "regroup", folder))]
        self.assertFalse(begun)  # No coordinator, and no node taken.

    def test_missing_program(self):
        bad = self.write("bad", "#!/no/such/interpreter\n", 0o755)
        plain = self.write("plain", "")
        self.refused(self.fx.run("run", "/no/such/program"), 127, "/no/such/program was not found")
        self.refused(self.fx.run("run", "nothing.py"), 127, "nothing.py was not found")
        self.refused(self.fx.run("run", "--no-python", plain), 126, "plain cannot be executed", "denied", "chmod")
        self.refused(self.fx.run("run", "--no-python", bad), 126, "cannot be executed", "/no/such/interpreter")
        # Submitted, it is the node that finds out: the same codes, and no restart is tried.
        coordinator, agent = self.start_coordinator(), self.start_agent("a", "--node-name", "here")
        agent.expect("following the coordinator")
        for words, code, what in (
                (("--", "/no/such/program"), 127, "/no/such/program could not be started: No such file"),
                (("--", "no-such-program"), 127, "no-such-program could not be started: No such file"),
                (("--", plain), 126, "plain could not be started: Permission denied"),
                (("--", bad), 126, "bad could not be started: its interpreter: No such file"),
                (("--workdir", "/no/such/folder", "--", "true"), 126, "working directory /no/such/folder: No such")):
            run = self.fx.run("submit", "--wait", *self.at(), *words)
            self.assertEqual(run.code, code, run)
            self.assertRegex(run.stderr, rf"FAILED, exit {code} · .*{what}", run)
            self.assertRegex(run.stderr, r"root cause .* on here", run)
            job = run.stdout.strip()
            self.assertEqual(self.fx.run("wait", job, *self.at()).code, code)
            self.assertRegex(self.fx.run("ps", "-a", job, *self.at()).stdout, r"failed .* 0/3")
        self.stop(coordinator, agent)


class Training(BadInput):
    def train(self, steps, checkpoints, *options, run=()):
        # Under `run`, with its exit code; or by itself, which is quicker.
        return self.fx.start(*run, e2e.binary("regroup-worker"), "train", "--data", TEXT, "--steps", steps, "--layers", 1,
                             "--width", 32, "--heads", 1, "--context", 32, "--batch", 2, "--checkpoint-every", 2,
                             "--keep", 3, "--checkpoint-dir", checkpoints, *options)

    def commits(self, folder):
        names = os.listdir(os.path.join(folder, "commits"))
        return sorted(int(name[5:]) for name in names if re.fullmatch(r"step-\d+", name))

    def test_unreadable_data(self):
        worker = e2e.binary("regroup-worker")
        for data, because in (("/no/such/data", "No such file"), ("/proc/self/mem", "Input/output error"),
                              ("/dev/null", "0 bytes, fewer than one sample")):
            self.refused(self.fx.start(worker, "train", "--data", data), 2, "cannot train on this data", because, "--data")
        run = self.refused(self.fx.regroup("run", worker, "train", "--data", "/no/such/data"), 2, "this data", "No such file")
        self.assertIn("FAILED, exit 2", run.stderr)
        codes = re.findall(r"(?m)^  (\d+)  ", self.fx.start(worker, "--help").expect("(?s)exit codes:.*18  ", stream="stdout").string)
        self.assertEqual(codes, "0 1 2 10 11 12 13 14 15 16 17 18 19".split())

    def test_numbers_that_do_not_fit(self):
        folder = self.fx.path("ckpt")
        with open(self.fx.path("train.yaml"), "w", encoding="utf-8") as file:
            file.write("accumulate_type: bf16\n")
        for options, what, because, correction in (
                (("--accumulate-type", "f16"), '"f16" is not accepted', "f32 and bf16 are", "f32"),
                (("--accumulate-type", "bf16"), "--accumulate-type bf16 does not fit --precision f32", "f32 alone is accepted",
                 "--precision bf16"),
                (("--config", self.fx.path("train.yaml")), "--accumulate-type bf16 does not fit --precision f32", "",
                 "--precision bf16"),
                (("--accumulate-type", "bf16", "--precision", "bf16", "--reduce-type", "f32"),
                 "--accumulate-type bf16 does not fit --reduce-type f32", "as they keep them", "--reduce-type bf16")):
            self.refused(self.train(2, folder, *options), 2, what, because, correction)
        self.assertFalse(os.path.exists(folder))

    def test_no_gpu(self):
        """Whatever this program was built with and this machine has: no GPU is to be seen."""
        worker = [e2e.binary("regroup-worker"), "train", "--data", TEXT, "--steps", "2", "--layers", "1", "--width", "32",
                  "--heads", "1", "--context", "32"]
        hidden = ("env", "CUDA_VISIBLE_DEVICES=")
        began = time.monotonic()
        self.refused(self.fx.start(*hidden, *worker, "--device", "cuda"), 19, "--device cuda cannot be had",
                     "(driver|no GPU|nvcc)", "(.*or )?--device cpu")
        self.assertLess(time.monotonic() - began, 5)
        self.fx.start(*hidden, *worker).expect("training on the CPU: .*(driver|no GPU|nvcc)", stream="stdout")
        self.refused(self.fx.start(*worker, "--device", "cpu", "--transport", "nccl"), 2, "does not fit --device cpu", "GPUs",
                     "--device cuda")

    def test_checkpoint_directory_not_writable(self):
        self.refused(self.train(2, "/proc/ckpt"), 13, "/proc/ckpt cannot be written", "", "--checkpoint-dir")
        folder = self.mount("ckpt", "1m")
        self.remount(folder, "ro")
        run = self.train(2, folder, run=(e2e.binary("regroup"), "run"))
        self.refused(run, 13, "cannot be written", "Read-only file system", "--checkpoint-dir")
        self.assertIn("FAILED, exit 13", run.stderr)

    def test_checkpoint_directory_of_two_mounts(self):
        """As on two hosts with one share: another device number for rank 0. What becomes of files that one rank makes beneath the
        other's overlay is undefined (a save may end with ESTALE), so only who trains with whom is looked at."""
        disk = self.mount("disk", "16m")
        for name in ("below", "work", "shared", "shared/ckpt", "shared/ckpt/commits", "other"):
            os.mkdir(os.path.join(disk, name))
        seen = self.fx.path("work", "seen")
        os.mkdir(seen)
        subprocess.run(["mount", "-t", "overlay", "-o", f"lowerdir={disk}/below,upperdir={disk}/shared,workdir={disk}/work",
                        "rg", seen], check=True)
        self.addCleanup(subprocess.run, ["umount", "-l", seen], check=True)
        self.assertNotEqual(os.stat(seen + "/ckpt").st_dev, os.stat(disk + "/shared/ckpt").st_dev)

        def train(of_rank_0, of_rank_1):
            worker = [e2e.binary("regroup-worker"), "train", "--data", TEXT, "--steps", 6, "--layers", 1, "--width", 32,
                      "--heads", 1, "--context", 32, "--batch", 2, "--checkpoint-every", 2]
            script = f'if [ $RANK = 0 ]; then dir={of_rank_0}; else dir={of_rank_1}; fi; exec "$@" --checkpoint-dir $dir'
            return self.fx.regroup("run", "--nproc-per-node", 2, "--no-python", "sh", "-c", script, "-", *worker)

        run = train(seen + "/ckpt", disk + "/shared/ckpt")
        run.wait()
        self.assertRegex(run.stdout, r"step +6")
        self.assertNotIn("elsewhere", run.stderr)
        run = train(seen + "/ckpt", disk + "/other/ckpt")
        self.assertEqual(run.wait(), 12, run)
        for rank in (0, 1):
            self.assertRegex(run.stderr, rf"(?m):{rank}\] error: rank 1 would keep its checkpoints elsewhere than rank 0")
            self.assertRegex(run.stderr, rf"(?m):{rank}\] because: this is rank {rank} with .*ckpt, every 2 steps")
        self.assertEqual(os.listdir(disk + "/other/ckpt/commits"), [])

    def test_checkpoint_directory_full(self):
        """The training goes on, what was committed stays, and the last step is not lost silently."""
        folder = self.mount("ckpt", "2m")
        self.assertEqual(self.train(2, folder).wait(), 0)
        filler = self.fill(folder)
        run = self.refused(self.train(6, folder), 16, "all 6 steps are done, but the last checkpoint", "No space left",
                           "make room")
        self.assertRegex(run.stdout, "resumed from step 2[^0-9]")
        self.assertRegex(run.stderr, r"warning: the checkpoint of step 4 was not saved .*No space left.*training goes on")
        self.assertEqual(self.commits(folder), [2])
        os.unlink(filler)
        run = self.train(6, folder)
        self.assertEqual(run.wait(), 0, run)
        self.assertRegex(run.stdout, "resumed from step 2[^0-9]")
        self.assertEqual(self.commits(folder)[-1], 6)

    def test_damaged_checkpoint(self):
        folder = self.fx.path("work", "ckpt")
        self.assertEqual(self.train(6, folder).wait(), 0)
        self.assertEqual(self.commits(folder), [2, 4, 6])
        good = self.fx.path("work", "good")
        os.rename(folder, good)
        record, (shard,) = "commits/step-6", [p[len(good) + 1:] for p in glob.glob(good + "/step-6/*/*.safetensors")]

        def flip(path):
            with open(path, "r+b") as f:
                f.seek(os.path.getsize(path) // 2)
                byte = f.read(1)
                f.seek(-1, os.SEEK_CUR)
                f.write(bytes([byte[0] ^ 1]))

        damages = ((flip, shard, "does not match"), (lambda p: os.truncate(p, 100), shard, "100 bytes"),
                   (os.unlink, shard, "No such file"), (flip, record, "the record"),
                   (lambda p: os.truncate(p, 100), record, "record"), (os.unlink, record, None))
        for damage, file, said in damages:
            shutil.copytree(good, folder)
            damage(os.path.join(folder, file))
            run = self.train(6, folder)
            self.assertEqual(run.wait(), 0, run)
            self.assertRegex(run.stdout, "resumed from step 4[^0-9]")
            if said is not None:  # A checkpoint is there once its record is: without one, none was lost.
                self.assertRegex(run.stderr, f"warning: the commit of step 6 is not usable: .*{said}")
            self.assertEqual(self.commits(folder)[-1], 6)  # Committed anew.
            shutil.rmtree(folder)
        shutil.copytree(good, folder)
        for path in glob.glob(folder + "/step-*/*/*.safetensors"):
            flip(path)
        before = set(glob.glob(folder + "/**", recursive=True))
        self.refused(self.train(8, folder), 14, "cannot resume", "none of 3 commits in .*ckpt verifies", "--checkpoint-dir")
        self.refused(self.fx.start(e2e.binary("regroup-worker"), "generate", "--checkpoint", folder), 14, "checkpoint")
        self.assertEqual(before - set(glob.glob(folder + "/**", recursive=True)), set(), "nothing is deleted")


class Ports(BadInput):
    def test_taken_by_a_regroup(self):
        """A launch command joins it; a second coordinator is refused."""
        first = self.start_coordinator()
        first.expect("serves")
        self.refused(self.fx.regroup("coordinator", "--listen", f"127.0.0.1:{self.port}", "--state-dir", self.fx.path("state", "b")),
                     125, f"port {self.port} of 127.0.0.1 is taken", "a Regroup coordinator listens", "--listen")
        self.refused(self.fx.regroup("coordinator", "--listen", f"127.0.0.1:{self.port}", "--state-dir",
                                     self.fx.path("state", "coordinator")), 125, "already runs", f"pid {first.pid}")
        run = self.fx.run("run", "--rdzv-endpoint", f"127.0.0.1:{self.port}", "true")
        self.assertEqual(run.code, 0, run)
        self.assertIsNone(first.code)
        self.assertEqual(len([p for p in self.fx.processes("coordinator") if p.pid != first.pid]), 0)
        self.stop(first)

    def test_range_for_stores_and_witnesses_taken(self):
        """The node says so, waits for one to be free, and goes on."""
        listeners = []
        while len(listeners) < 2:
            first = socket.create_server(("127.0.0.1", 0))
            port = first.getsockname()[1]
            try:
                listeners = [first, socket.create_server(("127.0.0.1", port + 1))]
            except OSError:
                first.close()
        run = self.fx.regroup("run", "--node-name", "here", "--port-range", f"{port}-{port + 1}", "true")
        run.expect(f"regroup: here cannot prepare: every port of {port}-{port + 1} at 127.0.0.1 is in use")
        shown = self.fx.run("explain")
        self.assertRegex(shown.stdout, r"(?s)here could not prepare a generation: every.port.of.*It\s+tries\s+again")
        for listener in listeners:
            listener.close()
        self.assertEqual(run.wait(), 0, run)

    def is_told(self, port, words):
        self.port = port
        agent = self.start_agent(f"agent-{port}")
        coordinator = self.fx.regroup("coordinator", "--listen", f"127.0.0.1:{port}")
        run = self.fx.regroup("run", "--nnodes", "2", "--rdzv-endpoint", f"127.0.0.1:{port}", "true")
        ps = self.fx.regroup("ps", "--coordinator", f"127.0.0.1:{port}")
        self.refused(coordinator, 125, f"port {port} .* is taken", words)
        self.refused(run, 125, f"127.0.0.1:{port}", words, "--rdzv-endpoint")
        self.refused(ps, 125, "cannot be reached", words)
        agent.expect(words, timeout=15)  # It goes on trying.
        self.assertIsNone(agent.code, agent)
        self.stop(agent)

    def test_taken_by_something_else(self):
        def greet(client):
            with client, contextlib.suppress(OSError):
                client.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
                client.recv(100)
        self.is_told(self.serve(greet), "something that is not Regroup listens on")

    def test_taken_by_something_silent(self):
        held = []
        self.port = self.serve(held.append)
        agent = self.start_agent("a")
        self.refused(self.fx.regroup("run", "--nnodes", "2", "--rdzv-endpoint", f"127.0.0.1:{self.port}", "true"), 125,
                     f"127.0.0.1:{self.port}", "something that is not Regroup listens on", "--rdzv-endpoint")
        agent.expect("no coordinator.*something that is not Regroup listens on", timeout=20)
        self.stop(agent)
        for client in held:
            client.close()

    def test_taken_by_a_torchrun(self):
        store = self.fx.start(e2e.torch_python(), "-c", "import sys, torch.distributed as d\n"
                              f"s = d.TCPStore('127.0.0.1', {self.port}, is_master=True, wait_for_workers=False)\n"
                              "print('up', flush=True)\nsys.stdin.read()", stdin=subprocess.PIPE)
        store.expect("up", stream="stdout", timeout=60)
        self.is_told(self.port, "a torchrun seems to listen on")
        self.assertIsNone(store.code)
        store.process.stdin.close()
        self.assertEqual(store.wait(), 0)


class Unreachable(BadInput):
    def test_agent_waits_visibly_and_goes_on(self):
        agent = self.start_agent("a")
        agent.expect(f"no coordinator.*nobody listens on 127.0.0.1:{self.port}", timeout=3)
        stopped = self.start_agent("b")
        stopped.expect("no coordinator", timeout=3)
        begun = time.monotonic()
        stopped.send(signal.SIGINT)
        stopped.wait()
        self.assertLess(time.monotonic() - begun, 1)
        coordinator = self.start_coordinator()
        agent.expect("following the coordinator", timeout=10)
        self.assertEqual(self.fx.run("submit", "--wait", *self.at(), "--", "true").code, 0)
        self.stop(coordinator, agent)

    def test_launch_command_waits_visibly_and_goes_on(self):
        """In a network namespace of its own, where the endpoint's address belongs to nobody at first."""
        endpoint = f"192.0.2.1:{self.port}"
        command = ["unshare", "-n", "sh", "-c", 'ip link set lo up && exec "$@"', "sh", e2e.binary("regroup"), "run",
                   "--nnodes", "1:2", "--rdzv-endpoint", endpoint, "--insecure", "--no-python", "sh", "-c", "echo done"]
        if subprocess.run(["unshare", "-n", "ip", "link", "set", "lo", "up"], capture_output=True).returncode != 0:
            raise unittest.SkipTest("no network namespace can be made")
        runs = [self.fx.start(*command) for _ in range(2)]
        for run in runs:
            run.expect(f"regroup: the coordinator {endpoint} does not answer .*trying again", timeout=3)
        begun = time.monotonic()
        runs[0].send(signal.SIGINT)
        self.assertEqual(runs[0].wait(), 130, runs[0])
        self.assertLess(time.monotonic() - begun, 1)
        inside = ["nsenter", "-t", str(runs[1].pid), "-n"]
        subprocess.run([*inside, "ip", "address", "add", "192.0.2.1/32", "dev", "lo"], check=True)
        coordinator = self.fx.service(*inside, e2e.binary("regroup"), "coordinator", "--listen", endpoint, "--insecure",
                                      "--state-dir", self.fx.path("state", "coordinator"))
        self.assertEqual(runs[1].wait(), 0, self.fx.describe())
        self.assertIn("done", runs[1].stdout)
        self.stop(coordinator)

    def test_commands_say_who_listens(self):
        self.refused(self.fx.run("ps", *self.at()), 125, f"127.0.0.1:{self.port} cannot be reached", "nobody listens on")
        self.refused(self.fx.run("submit", "--wait", *self.at(), "--", "true"), 125, "cannot be reached", "nobody listens on")


class Versions(BadInput):
    def setUp(self):
        super().setUp()
        self.helper = e2e.binary("other_version")
        text = self.fx.run("version").stdout
        self.ours = re.search(r"protocol +(\d+\.\d+)", text).group(1)

    def test_coordinator_refuses_an_agent_of_another_version(self):
        coordinator = self.start_coordinator("state/coordinator", "--insecure")  # The helper has no token.
        coordinator.expect("serves")
        agent = self.fx.start(self.helper, "join", f"127.0.0.1:{self.port}", "9", "0")
        self.assertEqual(agent.wait(), 1, agent)
        for told in (agent.stdout, coordinator.stderr):
            self.assertRegex(told, rf"coordinator speaks {self.ours} \(.*\), the agent 9\.0 \(another build\)")
        major, minor = self.ours.split(".")
        agent = self.fx.start(self.helper, "join", f"127.0.0.1:{self.port}", major, int(minor) + 1)
        self.assertEqual(agent.wait(), 0, agent)  # One minor apart works.
        self.stop(coordinator)

    def test_a_coordinator_of_another_version_is_refused(self):
        coordinator = self.fx.start(self.helper, "serve", self.port, "9", "0")
        e2e.wait_for(lambda: socket.create_connection(("127.0.0.1", self.port)).close() is None, 10)
        both = rf"9\.0 \(another build\).*{self.ours}"
        agent = self.start_agent("a", "--insecure")
        agent.expect(both)
        self.fx.env["REGROUP_INSECURE"] = "1"
        run = self.fx.regroup("run", "--nnodes", "2", "--rdzv-endpoint", f"127.0.0.1:{self.port}", "true")
        self.refused(run, 125, "cannot follow the coordinator", both, "the same Regroup")
        self.refused(self.fx.run("ps", *self.at()), 1, "another protocol", both)
        self.refused(self.fx.run("submit", "--wait", *self.at(), "--", "true"), 125, "another protocol", both)
        self.stop(agent)
        coordinator.kill()


class Journal(BadInput):
    def test_damaged(self):
        coordinator = self.start_coordinator()
        coordinator.expect("serves")
        for _ in range(8):  # No agent: they stay queued.
            self.assertEqual(self.fx.run("submit", *self.at(), "--env", "FILLING=" + "x" * 30000, "--", "true").code, 0)
        self.stop(coordinator)
        path = self.journal()
        with open(path, "rb") as f:
            good = f.read()

        def put(data):
            for old in glob.glob(path + "*"):
                os.unlink(old)
            with open(path, "wb") as f:
                f.write(data)

        def later():
            put(good)
            with sqlite3.connect(path) as database:
                database.execute("PRAGMA user_version=99")
            database.close()
            with open(path, "rb") as f:
                return f.read()

        middle = good.index(b"x" * 1000, len(good) // 2) + 500
        damages = {
            "flipped": good[:middle] + b"y" + good[middle + 1:],
            "a page": good[:4096 * 3] + bytes(random.Random(7).randbytes(4096)) + good[4096 * 4:],
            "truncated": good[:len(good) // 2],
            "cut off": good[:60],
            "no database": b"these are my notes, not a database\n" * 500,
        }
        for name, data in damages.items():
            with self.subTest(name):
                put(data)
                self.refused(self.start_coordinator(), 125, f"the journal {re.escape(path)} is damaged",
                             rf"a copy is kept as {re.escape(path)}\.damaged", "restore the folder from a backup")
                for file in (path, path + ".damaged"):
                    with open(file, "rb") as f:
                        self.assertEqual(f.read(), data, f"{file} is kept as it was")
        put(damages["flipped"])
        run = self.fx.regroup("run", "--nnodes", "2", "--rdzv-endpoint", f"127.0.0.1:{self.port}", "--state-dir",
                              self.fx.path("state", "coordinator"), "true")
        self.refused(run, 125, "coordinator of this run cannot start", f"{re.escape(path)} is damaged", "restore")
        self.refused(self.fx.run("ps", "--state-dir", self.fx.path("state", "coordinator")), 1, "is damaged")
        future = later()
        put(future)
        self.refused(self.start_coordinator(), 125, f"{re.escape(path)} is of a newer Regroup", "format 99", "newer version")
        with open(path, "rb") as f:
            self.assertEqual(f.read(), future)
        put(good)  # The backup.
        coordinator = self.start_coordinator()
        coordinator.expect("serves")
        self.assertEqual(self.fx.run("ps", *self.at()).stdout.count("queued"), 8)
        self.stop(coordinator)


    def test_damaged_under_a_running_job(self):
        """Its coordinator cannot come back until somebody repairs the journal: said, waited for, and nobody is touched."""
        run = self.fx.regroup("run", "--nnodes", "1:2", "--rdzv-endpoint", f"127.0.0.1:{self.port}", "--no-python", "sh", "-c",
                              STAY, env={"FINISH": self.finish})
        pid = int(run.expect(r"up \d+ \S+ 1 (\d+)", stream="stdout").group(1))
        run.expect("generation 1")
        (coordinator,) = self.fx.processes("coordinator", "--ad-hoc")
        os.kill(coordinator.pid, signal.SIGSTOP)  # What it has committed by now is on the disk.
        folder = os.path.dirname(os.path.join(self.fx.state_dir, f"coordinator-{self.port}", "x"))
        shutil.copytree(folder, folder + ".good", ignore=shutil.ignore_patterns("socket", "lock"))
        for name in ("journal.db", "journal.db-wal"):
            with open(os.path.join(folder, name), "r+b") as f:
                f.write(b"\xff" * 8192)
        os.kill(coordinator.pid, signal.SIGKILL)
        run.expect("regroup: warning: the coordinator of this run cannot start: the journal .*journal.db is damaged: .*kept as")
        run.expect("regroup: the coordinator 127.0.0.1.* (does not answer|has not answered for) .*waiting for it, workers are left alone")
        self.assertTrue(e2e.alive(pid))
        os.rename(folder, folder + ".bad")
        os.rename(folder + ".good", folder)
        run.expect("regroup: the coordinator answers again")
        self.end()
        self.assertEqual(run.wait(), 0, run)
        self.assertRegex(run.stderr, r"succeeded · .* · 1 generation ")

    def test_damaged_node_folder(self):
        coordinator, agent = self.start_coordinator(), self.start_agent("a")
        agent.expect("following the coordinator")
        self.stop(agent)
        path = self.fx.path("state", "a", "node-0", "node.json")
        with open(path, "rb") as f:
            good = f.read()
        for data in (b"", good[:20], b"\xff" * 100):
            with open(path, "wb") as f:
                f.write(data)
            self.refused(self.start_agent("a"), 125, f"{re.escape(path)} is damaged", "which node", "node-0")
            with open(path, "rb") as f:
                self.assertEqual(f.read(), data)
        with open(path, "wb") as f:
            f.write(good)
        agent = self.start_agent("a")
        agent.expect("following the coordinator")
        self.assertEqual(self.fx.run("nodes", *self.at()).stdout.count("\n"), 2, "the same node as before")
        self.stop(agent, coordinator)


class FullDisk(BadInput):
    def test_starting(self):
        folder = self.mount("state", "1m")
        filler = self.fill(folder)
        self.refused(self.fx.run("run", "--state-dir", folder, "true"), 125, f"keep its state in {folder}", "No space left",
                     f"df {folder}")
        self.refused(self.fx.run("agent", "--state-dir", folder), 125, f"keep its state in {folder}", "No space left", "df ")
        self.refused(self.start_coordinator("work/state"), 125, f"keep its state in {folder}", "No space left", "df ")
        os.truncate(filler, os.path.getsize(filler) - 3 * 4096)  # Enough for the lock, not for the journal.
        self.refused(self.start_coordinator("work/state"), 125, "disk of the journal is full", "journal.db", "free space")
        self.remount(folder, "ro")
        self.refused(self.fx.run("run", "--state-dir", folder + "/new", "true"), 125, "state directory .*/new", "Read-only")
        self.refused(self.fx.run("coordinator", "--state-dir", folder), 125, "not writable", "Read-only")

    def test_while_a_coordinator_serves(self):
        """It says so, answers nothing that it could not keep, loses nothing, and goes on when there is room."""
        folder = self.mount("state", "80m")
        coordinator = self.start_coordinator("work/state")
        coordinator.expect("serves")
        agent = self.start_agent("a")
        at = self.at("work/state")
        job = self.fx.regroup("submit", "--wait", *at, "--env", f"FINISH={self.finish}", "--", "sh", "-c", STAY)
        job.expect("sh-1", stream="stdout")
        self.assertEqual(self.fx.run("submit", *at, "--nnodes", "2", "--", "true").code, 0)
        e2e.wait_for(lambda: "running" in self.fx.run("ps", *at).stdout, 10)
        filler = self.fill(folder)
        self.refused(self.fx.run("submit", *at, "--", "true"), 1, "disk of the coordinator is full", "0 MiB are free", "prune")
        self.end()
        coordinator.expect("disk of the journal is full: nothing is answered until there is room")
        cancel = self.fx.run("cancel", *at, "true-2")
        self.refused(cancel, 125, "true-2 cannot be cancelled", "its coordinator does not answer", "regroup explain true-2")
        self.assertIsNone(job.code, job)
        os.unlink(filler)
        self.assertEqual(job.wait(), 0, self.fx.describe())
        self.assertEqual(self.fx.run("cancel", *at, "true-2").code, 0)
        run = self.fx.run("submit", "--wait", *at, "--", "true")
        self.assertEqual(run.code, 0, run)
        self.stop(coordinator, agent)

    def test_while_a_run_writes_its_output(self):
        """Workers are not held up, all they write is shown, and that it is not kept is said at once."""
        folder = self.mount("state", "80m")
        run = self.fx.regroup("run", "--state-dir", folder, "--no-python", "sh", "-c",
                              STAY + "; seq 1 50000; while [ -e \"$FINISH\" ]; do sleep 0.02; done; echo last words",
                              env={"FINISH": self.finish})
        run.expect("up", stream="stdout")
        filler = self.fill(folder)
        self.end()
        run.expect("regroup: .*the disk of .* is full: output is not kept, workers run on")
        os.unlink(filler)
        os.unlink(self.finish)
        self.assertEqual(run.wait(), 0, run)
        shown = run.stdout.splitlines()
        self.assertEqual(shown[-50001:], [*map(str, range(1, 50001)), "last words"])


class Names(BadInput):
    def test_two_agents_with_one_name(self):
        coordinator = self.start_coordinator()
        first = self.start_agent("a", "--node-name", "twin")
        first.expect("following the coordinator")
        second = self.start_agent("b", "--node-name", "twin")
        second.expect(r"refused by the coordinator.*node name twin is taken.*because=.*127\.0\.0\.1.*try=.*--node-name")
        self.assertIsNone(second.code)
        coordinator.expect("refused a session.*node name twin is taken")
        self.assertEqual(self.fx.run("submit", "--wait", *self.at(), "--", "true").code, 0)
        self.assertEqual(self.fx.run("nodes", *self.at()).stdout.count("twin"), 1)
        # By default a node is called after its host: the second one of a host gets a name of its own.
        others = [self.start_agent(folder) for folder in ("c", "d")]
        names = sorted(agent.expect(r"following the coordinator.* name=(\S+)").group(1) for agent in others)
        self.assertEqual(names, [socket.gethostname(), socket.gethostname() + "-2"])
        # The name is free once its node is forgotten.
        self.stop(first)
        e2e.wait_for(lambda: self.fx.run("nodes", "forget", "twin", *self.at()).code == 0, 10)
        second.expect("following the coordinator", timeout=10)
        self.stop(second, *others)
        self.stop(coordinator)


def http2(path, body):
    """A gRPC call of this path with this as the beginning of its body."""
    def header(name, value):  # Literal, not indexed, not compressed.
        return bytes([0, len(name)]) + name.encode() + bytes([len(value)]) + value.encode()

    def frame(kind, flags, stream, payload):
        return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload
    headers = b"".join(header(*pair) for pair in (
        (":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "x"),
        ("content-type", "application/grpc"), ("te", "trailers"), ("grpc-timeout", "5S")))
    return (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b"") + frame(1, 4, 1, headers) + frame(0, 0, 1, body))


def garbage():
    noise = random.Random(1)
    session, read = "/regroup.v1.Coordinator/Session", "/regroup.v1.Coordinator/Read"
    yield noise.randbytes(4096)
    yield b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    yield bytes.fromhex("16030100c8010000c40303") + noise.randbytes(193)  # The beginning of TLS.
    yield b"\xff" * 64  # Lengths of 4 GiB and more.
    yield b"\0" * 65536
    yield b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\0\0\0\0\0\x01half a frame"
    yield http2(session, b"\0\xff\xff\xff\xff")  # A message of 4 GiB.
    yield http2(session, b"\0\0\0\0\x40half")  # Half a message, then nothing.
    yield http2(session, b"\0\0\0\0\x20" + noise.randbytes(32))
    yield http2(session, b"\0\0\0\0\0")
    yield http2(read, b"\0\0\0\0\x20" + noise.randbytes(32))
    yield http2("/no.such.Service/Method", b"\0\0\0\0\0")
    yield b"\x00\xce\xf7\x85\x3c" + b"\xff" * 200  # A TCPStore's client, then lengths.
    yield b"\x00\xce\xf7\x85\x3c\x02" + struct.pack("<Q", 1 << 62)
    yield b"{" * (1 << 20)  # A line without end.
    yield b'{"hello": {"version": 1e99}}\n'
    yield b'{"progress": {"step": "-1"}}\n'
    yield b""  # Open, and silent.


class Garbage(BadInput):
    def sockets(self):
        """Every address on which this test's processes listen: TCP ports and paths of Unix sockets."""
        inodes = set()
        for info in self.fx.processes():
            for fd in glob.glob(f"/proc/{info.pid}/fd/*"):
                try:
                    inodes.add(os.readlink(fd))
                except OSError:
                    pass
        ports = set()
        with open("/proc/net/tcp") as f:
            for row in [line.split() for line in f][1:]:
                if row[3] == "0A" and f"socket:[{row[9]}]" in inodes:
                    ports.add(int(row[1].split(":")[1], 16))
        return ports

    def memory(self):
        found = {}
        for info in self.fx.processes():
            try:
                with open(f"/proc/{info.pid}/status") as f:
                    rss = re.search(r"VmRSS:\s+(\d+)", f.read())
            except OSError:  # A child of a worker, gone by now.
                continue
            if rss and info.argv and "regroup" in info.argv[0]:
                found[info.pid] = int(rss.group(1)) << 10
        return found

    def send(self, where, data):
        client = socket.socket(socket.AF_UNIX if isinstance(where, str) else socket.AF_INET)
        client.settimeout(5)
        try:
            client.connect(where)
            client.sendall(data)
        except OSError:
            pass  # Turned away: fine.
        return client

    def test_on_every_port_and_socket(self):
        run = self.fx.regroup("run", "--nnodes", "1:2", "--ppn", "2", "--max-restarts", "1", "--node-name", "n",
                              "--rdzv-endpoint", f"127.0.0.1:{self.port}", "--rdzv-id", "job", "--no-python", "sh", "-c", STAY,
                              env={"FINISH": self.finish})
        said = run.expect(r"up (\d+) (\S+) 1 (\d+)", stream="stdout")
        run.expect("generation 1 · world 2")
        store, workers = int(said.group(1)), said.group(2)
        paths = [path for folder in (os.path.dirname(workers), self.fx.path("state"))
                 for path in glob.glob(folder + "/**", recursive=True) if os.path.exists(path) and not os.path.isfile(path)
                 and not os.path.isdir(path)]
        ports = self.sockets()
        self.assertIn(self.port, ports)
        self.assertIn(store, ports)
        self.assertEqual(len(ports), 3, "coordinator, store, witness")
        self.assertIn(workers, paths)
        self.assertGreaterEqual(len(paths), 4, f"coordinator, workers, shim, store: {paths}")
        shims = lambda: {p.pid for p in self.fx.processes("regroup-shim") if "--c10d" not in p.argv}  # noqa: E731
        pids, before = shims(), self.memory()
        clients = []
        for where in [*(("127.0.0.1", port) for port in ports), *paths]:
            clients += [self.send(where, data) for data in garbage()]
            clients += [self.send(where, b"") for _ in range(80)]
        ps = self.fx.run("ps")
        self.assertRegex(ps.stdout, r"running\s+1 \(1:2\)\s+1 ", ps)
        for pid, rss in self.memory().items():
            self.assertLess(rss - before.get(pid, rss), 32 << 20, f"memory of {pid} grew: {self.fx.describe()}")
        self.assertEqual(shims(), pids)
        # Who knows the protocol still gets in, and a generation can end and another be formed.
        pid = int(said.group(3))
        rank = e2e.environment(pid)
        own, other = rank["REGROUP_WORKER_TOKEN"], {"0": 1, "1": 0}[rank["RANK"]]
        hello = {"version": 1, "job": "job-1", "generation": "1", "rank": int(rank["RANK"]), "localRank": int(rank["RANK"])}
        for stranger in (hello, {**hello, "rank": other, "localRank": other, "token": own}):
            refused = self.send(workers, json.dumps({"hello": stranger}).encode() + b'\n{"progress": {"step": 9}}\n')
            self.assertEqual(refused.recv(100), b"")
            clients.append(refused)
        worker = self.send(workers, json.dumps({"hello": {**hello, "token": own}}).encode() + b"\n")
        self.assertIn(b"welcome", worker.recv(100))
        os.kill(pid, signal.SIGKILL)
        run.expect(r"up \d+ \S+ 2 \d+", stream="stdout")
        self.end()
        self.assertEqual(run.wait(), 0, run)
        self.assertRegex(run.stderr, r"succeeded · .* · 2 generations, 1 restart")
        for client in [*clients, worker]:
            client.close()


if __name__ == "__main__":
    e2e.main()
