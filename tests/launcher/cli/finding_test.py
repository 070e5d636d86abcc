"""How commands and agents find the coordinator of their own host, and what they say where it does not run."""
import json
import os
import shlex
import signal

import regroup_e2e as e2e


def default():
    """regroup with the state directory it takes by itself: for root /var/lib/regroup, which may be in use here."""
    own = ("unshare", "-m", "sh", "-c", 'mount -t tmpfs none /var/lib; exec "$@"', "sh") if os.geteuid() == 0 else ()
    return (*own, e2e.binary("regroup"))


class Finding(e2e.TestCase):
    def setUp(self):
        super().setUp()
        self.port, self.state = e2e.free_port(), self.fx.path("state", "elsewhere")
        self.folder = f"{self.state}/coordinator-{self.port}"
        self.coordinator = self.fx.service("regroup", "coordinator", "--listen", f"127.0.0.1:{self.port}", "--state-dir", self.state)
        self.coordinator.expect("serves")

    def done(self, code, *words):
        done = self.fx.run(*words)
        self.assertEqual(done.code, code, done)
        return done

    def test_by_its_port_or_by_being_the_only_one(self):
        """Neither the agent nor a command is told the state directory or gets --insecure."""
        for host in ("localhost", "127.0.0.1"):
            self.done(0, "nodes", "--coordinator", f"{host}:{self.port}")
        found = self.fx.service("regroup", "agent", "--slots", "2", "--node-name", "node0", "--state-dir",
                                self.fx.path("state", "node0"), "--coordinator", self.folder + "/socket")
        found.expect("following the coordinator")
        here = f"localhost:{self.port}"
        e2e.wait_for(lambda: "0/2" in self.fx.run("nodes", "--coordinator", here).stdout, 10, "the node", self.fx.describe, every=0.1)
        self.assertEqual(self.done(0, "submit", "--coordinator", here, "--wait", "--", "true").stdout, "true-1\n")
        self.assertIn("succeeded", self.done(0, "ps", "-a", "--coordinator", here).stdout)
        submit = self.fx.start(*default(), "submit", "--", "true")
        self.assertEqual(submit.wait(), 125, submit)
        self.assertIn(f"try: --coordinator {self.folder}", submit.stderr)

    def test_an_agent_that_is_told_nothing(self):
        agent = self.fx.service(*default(), "agent", "--slots", "2")
        agent.expect(f"following the coordinator.*{self.folder}/socket")
        agent.send(signal.SIGTERM)
        self.assertEqual(agent.wait(), 0)
        other = self.fx.service("regroup", "coordinator", "--listen", f"127.0.0.1:{e2e.free_port()}", "--state-dir", self.fx.path("state", "other"))
        other.expect("serves")
        agent = self.fx.service(*default(), "agent", "--slots", "2")
        agent.expect("more than one coordinator runs on this host: .*--coordinator names one")
        agent = self.fx.service("regroup", "agent", "--slots", "2", "--state-dir", self.state)
        agent.expect(f"following the coordinator.*{self.folder}/socket")
        agent = self.fx.service("regroup", "agent", "--slots", "2", "--state-dir", self.fx.path("state", "empty"))
        agent.expect("no coordinator of this user runs in .*regroup coordinator starts one")

    def test_one_of_another_user_is_not_followed(self):
        if os.geteuid() != 0:
            self.skipTest("only root can start one as another user")
        self.coordinator.send(signal.SIGTERM)
        self.assertEqual(self.coordinator.wait(), 0)
        for folder in (self.fx.root, self.fx.path("state")):
            os.chmod(folder, 0o711)
        theirs, port = self.fx.path("state", "theirs"), e2e.free_port()
        os.mkdir(theirs, 0o700)
        os.chown(theirs, 65534, 65534)
        other = self.fx.service("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", e2e.binary("regroup"), "coordinator",
                                "--listen", f"127.0.0.1:{port}", "--state-dir", theirs)
        other.expect("serves")
        self.fx.service(*default(), "agent", "--slots", "2").expect("no coordinator of this user runs on this host")
        self.assertNotIn(theirs, self.fx.run("ps", "--coordinator", f"localhost:{port}").stderr)

    def test_a_dead_one(self):
        here = ("--state-dir", self.state)
        job = self.done(0, "submit", *here, "-N", "2", "--", "true").stdout.strip()
        self.coordinator.kill()
        command = f"regroup coordinator --listen 127.0.0.1:{self.port} --state-dir {self.state}"
        listed = self.done(0, "ps", *here)
        self.assertRegex(listed.stdout, rf"{job} +unknown ")
        self.assertIn(f"no coordinator runs in {self.folder}, so it cannot be told how {job} fares · it is started by: {command}\n", listed.stderr)
        nodes = self.done(0, "nodes", *here)
        self.assertIn(f"no coordinator runs in {self.folder} · it is started by: {command}\n", nodes.stderr)
        self.assertIn(f"try: {command}", self.done(125, "submit", *here, "--", "true").stderr)
        again = self.fx.service(*shlex.split(command))
        again.expect("serves")
        listed = self.done(0, "ps", *here)
        self.assertRegex(listed.stdout, rf"{job} +queued ")
        self.assertEqual(listed.stderr, "")
        jobs = [job] + [self.done(0, "submit", *here, "-N", "2", "--", "true").stdout.strip() for _ in range(4)]
        for alive, told in ((5, "5 jobs fare"), (4, f"{', '.join(jobs[1:])} fare")):
            self.assertEqual(len(json.loads(self.done(0, "ps", *here, "--json").stdout)["jobs"]), alive)
            again.kill()
            again.wait()
            self.assertIn(f"so it cannot be told how {told} · ", self.done(0, "ps", *here).stderr)
            again = self.fx.service(*shlex.split(command))
            again.expect("serves")
            self.done(0, "cancel", *here, jobs[5 - alive])
        for job in jobs[2:]:
            self.done(0, "cancel", *here, job)


if __name__ == "__main__":
    e2e.main()
