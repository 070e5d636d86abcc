"""Who may be a node or give orders: on its own host a coordinator's user, elsewhere who proves to know its token."""
import os
import re
import signal
import socket
import stat
import sys

import hosts
import regroup_e2e as e2e

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"


class OnOneHost(e2e.TestCase):
    def setUp(self):
        super().setUp()
        self.port = e2e.free_port()
        self.at = f"127.0.0.1:{self.port}"
        self.state = self.fx.path("state", "c")

    def coordinator(self, *flags):
        program = self.fx.service("regroup", "coordinator", "--listen", self.at, "--state-dir", self.state, *flags)
        program.expect("serves")
        return program

    def anothers(self):
        """A state directory of another user, and what a command of that user begins with."""
        if os.geteuid() != 0:
            self.skipTest("only root can start programs as another user")
        for folder in (self.fx.root, self.fx.path("state")):
            os.chmod(folder, 0o711)
        theirs = self.fx.path("state", "theirs")
        os.mkdir(theirs, 0o700)
        os.chown(theirs, 65534, 65534)
        return theirs, ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", e2e.binary("regroup")]

    def nodes(self):
        return self.fx.run("nodes", "--state-dir", self.state).stdout

    def test_the_token_is_made_once_for_this_user_only(self):
        first = self.coordinator()
        path = os.path.join(self.state, f"coordinator-{self.port}", "token")
        self.assertEqual(stat.S_IMODE(os.stat(path).st_mode), 0o600)
        printed = self.fx.run("token", "--state-dir", self.state)
        self.assertRegex(printed.stdout, r"\A[0-9a-f]{64}\n\Z", printed)
        first.kill()
        first.wait()
        self.coordinator()
        self.assertEqual(self.fx.run("token", "--coordinator", self.at).stdout, printed.stdout)

    def test_its_own_user_needs_no_token(self):
        """Each has a state directory of its own; what they share is the user and the port."""
        self.coordinator()
        self.fx.service("regroup", "agent", "--coordinator", self.at, "--node-name", "own", "--state-dir", self.fx.path("state", "a"))
        e2e.wait_for(lambda: "ready" in self.nodes(), 20, "the node", self.fx.describe, every=0.1)
        done = self.fx.run("submit", "--wait", "--coordinator", self.at, "--", "true")
        self.assertEqual(done.code, 0, done)

    def test_another_user_is_told_what_to_give(self):
        """It gets neither a session nor an answer, until it has the token."""
        coordinator = self.coordinator()
        theirs, regroup = self.anothers()
        agent = [*regroup, "agent", "--coordinator", self.at, "--node-name", "other", "--state-dir", theirs]
        stranger = self.fx.service(*agent)
        stranger.expect(r"is asked over TCP, and no token was given.*REGROUP_TOKEN=… regroup agent --coordinator", 20)
        asked = self.fx.start(*regroup, "ps", "--coordinator", self.at, "--state-dir", theirs)
        self.assertEqual(asked.wait(20), 125, asked)
        self.assertIn(f"try: REGROUP_TOKEN=… regroup ps --coordinator {self.at}", asked.stderr)
        wrong = self.fx.service(*agent, env={"REGROUP_TOKEN": "f" * 64})
        wrong.expect("has another token.*regroup token on its host prints the right one", 20)
        coordinator.expect("a caller was turned away.*it has another token.*regroup token prints it", 20)
        self.assertNotIn("other", self.nodes())
        for program in (stranger, wrong):
            program.send(signal.SIGTERM)
            program.wait()
        token = self.fx.run("token", "--state-dir", self.state).stdout.strip()
        path = os.path.join(theirs, "of-the-other")
        with open(path, "w") as f:
            f.write(token + "\n")
        os.chown(path, 65534, 65534)
        self.fx.service(*agent, "--token-file", path)
        e2e.wait_for(lambda: "ready" in self.nodes(), 20, "the node", self.fx.describe, every=0.1)

    def test_plain_grpc_hears_why_and_reaches_nothing(self):
        coordinator = self.coordinator()
        with socket.create_connection(("127.0.0.1", self.port), 10) as stranger:
            stranger.sendall(PREFACE)
            heard = b""
            while piece := stranger.recv(4096):
                heard += piece
        self.assertIn(b"asks for its token: regroup token on its host prints it", heard)
        coordinator.expect("a caller was turned away.*it shows no token", 20)

    def test_nobody_is_dialled_without_a_proof(self):
        """A stranger's listener on the coordinator's port gets not even a Hello."""
        with socket.create_server(("127.0.0.1", self.port)) as server:
            server.settimeout(20)
            self.fx.service("regroup", "agent", "--coordinator", self.at, "--state-dir", self.fx.path("state", "a"),
                            env={"REGROUP_TOKEN": "f" * 64})
            heard = b""
            while not heard:  # It looks whether anybody listens, first.
                taken, _ = server.accept()
                taken.settimeout(20)
                heard = taken.recv(4096)
            with taken:
                self.assertEqual((heard[:8], len(heard)), (b"REGROUP\1", 40))
                # A coordinator that says it takes everybody changes nothing: it has to prove, too.
                taken.sendall(b"I" + bytes(32))
                self.assertEqual(len(taken.recv(4096)), 32)
                taken.sendall(b"Y" + bytes(32))
                self.assertEqual(taken.recv(4096), b"")

    def test_insecure_takes_everybody(self):
        self.coordinator("--insecure")
        theirs, regroup = self.anothers()
        self.fx.service(*regroup, "agent", "--coordinator", self.at, "--insecure", "--state-dir", theirs)
        e2e.wait_for(lambda: "ready" in self.nodes(), 20, "the node", self.fx.describe, every=0.1)

    def test_authz_prints_the_table(self):
        out = self.fx.run("authz").stdout
        for call in ("Session", "SendLogs", "Submit", "Cancel", "Read", "ForgetNode", "Logs"):
            self.assertRegex(out, rf"(?m)^{call} +yes +yes +yes$")
        self.assertRegex(out, r"(?m)^\(store\) +- +members +yes$")

    def test_what_is_no_token_is_refused(self):
        for extra, env in (([], {"REGROUP_TOKEN": "short"}), (["--token-file", "/no/such/file"], {})):
            done = self.fx.run("ps", "--coordinator", "192.0.2.1", *extra, env=env)
            self.assertEqual(done.code, 2, done)
            self.assertIn("REGROUP_TOKEN: this is no token" if env else "cannot be read", done.stderr)


# A client of PyTorch's store says which protocol it speaks, and pings; prints what it hears.
STORE_CLIENT = """
import socket, sys
client = socket.create_connection((sys.argv[1], int(sys.argv[2])), 10)
try:
    client.sendall(bytes.fromhex("00cef7853c" "0d07000000"))
    print(client.recv(4).hex() or "closed", flush=True)
except ConnectionError:
    print("closed", flush=True)
"""


class OnTwoHosts(hosts.TwoHostsTestCase):
    def on(self, host, *words, start=None, **options):
        return (start or self.fx.start)(*host.command(e2e.binary("regroup"), *words), **options)

    def test_the_line_to_paste_brings_the_other_host(self):
        first, second = self.hosts
        words = ["run", "--nnodes", "2", "--rdzv-endpoint", first.ipv4]
        host = self.on(first, *words, "--state-dir", self.fx.path("state", "a"), "sh", "-c", "echo rank $RANK token=$REGROUP_TOKEN")
        host.expect("On the others:", 30)
        host.expect(r"--rdzv-id sh .*\n", 30)
        self.assertEqual(host.stderr.count("REGROUP_TOKEN="), 1, host.stderr)
        line = re.search(r"REGROUP_TOKEN=([0-9a-f]{64}) regroup run", host.stderr)
        self.assertIsNotNone(line, host.stderr)
        # Without it the other host is told what it needs.
        without = self.on(second, *words, "--state-dir", self.fx.path("state", "b"), "true")
        self.assertEqual(without.wait(30), 125, without)
        self.assertRegex(without.stderr, r"try: REGROUP_TOKEN=… regroup run --nnodes 2 .*--rdzv-endpoint \S+:29400 --rdzv-id true true")
        other = self.on(second, *words, "--rdzv-id", "sh", "--state-dir", self.fx.path("state", "b"), "sh", "-c",
                        "echo rank $RANK token=$REGROUP_TOKEN", env={"REGROUP_TOKEN": line.group(1)})
        self.assertEqual([host.wait(60), other.wait(60)], [0, 0], self.fx.describe())
        # No worker hears it.
        self.assertEqual(sorted((host.stdout + other.stdout).splitlines()), ["rank 0 token=", "rank 1 token="])

    def test_a_fleet_with_a_token(self):
        """Its agent comes back, and goes on with the same jobs, when the coordinator was killed."""
        first, second = self.hosts
        state = self.fx.path("state", "c")
        serve = ["coordinator", "--listen", first.ipv4, "--state-dir", state]
        coordinator = self.on(first, *serve, start=self.fx.service)
        coordinator.expect("serves", 20)
        token = {"REGROUP_TOKEN": self.fx.run("token", "--state-dir", state).stdout.strip()}

        def store_says(host):
            client = self.fx.start(*host.command(sys.executable, "-c", STORE_CLIENT, first.ipv4, "29400"))
            self.assertEqual(client.wait(20), 0, client)
            return client.stdout.strip()
        # A client of the store cannot prove anything: its address has to be a member's.
        self.assertEqual([store_says(first), store_says(second)], ["07000000", "closed"])
        coordinator.expect("a caller was turned away.*its address is no member's", 20)
        refused = self.on(second, "agent", "--coordinator", first.ipv4, "--state-dir", self.fx.path("state", "x"))
        self.assertEqual(refused.wait(20), 125, refused)
        self.assertIn("is asked over TCP, and no token was given", refused.stderr)
        self.on(second, "agent", "--coordinator", first.ipv4, "--state-dir", self.fx.path("state", "a"), start=self.fx.service,
                env=token)
        def ready():
            return "ready" in self.fx.run("nodes", "--state-dir", state).stdout
        e2e.wait_for(ready, 20, "the node", self.fx.describe, every=0.1)
        self.assertEqual(store_says(second), "07000000")
        done = self.on(second, "submit", "--wait", "--coordinator", first.ipv4, "--name", "job", "--", "sh", "-c", "echo it ran", env=token)
        self.assertEqual(done.wait(60), 0, done)
        logs = self.on(second, "logs", "job", "--coordinator", first.ipv4, env=token)
        self.assertEqual(logs.wait(30), 0, logs)
        self.assertIn("it ran", logs.stdout)
        coordinator.kill()
        coordinator.wait()
        self.on(first, *serve, start=self.fx.service).expect("serves", 20)
        e2e.wait_for(ready, 20, "the node again", self.fx.describe, every=0.1)


if __name__ == "__main__":
    e2e.main()
