"""What anybody can name (a program, a folder, a user, a node's refusal) reaches nobody's terminal raw."""
import os
import pwd
import re

import regroup_e2e as e2e

# Sets the window's title, rings, forges a line, clears the screen (as ESC and as one byte), and is no UTF-8.
HOSTILE = "\x1b]0;pwn\a\nFAKE LINE\x1b[2J\x9b2J"
# What our own programs send: colours, and where they redraw a line.
OURS = re.compile(r"\x1b\[[0-9;]*[mKAJGhl]|[\r\n\t]")
RAW = re.compile(r"[\x00-\x1f\x7f\x80-\x9f]")


class HostileText(e2e.TestCase):
    def setUp(self):
        super().setUp()
        port = e2e.free_port()
        self.fx.env["REGROUP_STATE_DIR"] = self.fx.path("state", "here")
        self.fx.service(e2e.binary("regroup"), "coordinator", "--listen", f"127.0.0.1:{port}")
        self.fx.service(e2e.binary("regroup"), "agent", "--coordinator", f"127.0.0.1:{port}", "--node-name", "node0", "--slots", "2")
        e2e.wait_for(lambda: "ready" in self.fx.run("nodes").stdout, 20, "the node", self.fx.describe, every=0.1)

    def shown(self, *arguments, **options):
        """What the command shows on a terminal, which has to be clean."""
        terminal = self.fx.terminal(e2e.binary("regroup"), *arguments, columns=200, **options)
        terminal.wait(30)
        text = OURS.sub("", terminal.text)
        self.assertIsNone(RAW.search(text), f"{arguments}: {terminal.text!r}")
        self.assertNotIn("\nFAKE LINE", terminal.text, arguments)
        self.assertNotIn("\x1b[2J", terminal.text, arguments)
        return terminal.text

    def look_at(self, job):
        for command in (["ps"], ["ps", "-a"], ["ps", job], ["explain", job], ["wait", job], ["logs", job],
                        ["logs", job, "--stderr"], ["nodes"], ["explain", "node0"], ["nodes", "node0"]):
            self.shown(*command)

    def submitted(self, *words, **options):
        done = self.fx.run("submit", *words, **options)
        self.assertEqual(done.code, 0, done)
        return done.stdout.strip()

    def test_a_program_that_is_not_there(self):
        job = self.submitted("--max-restarts", "0", "--workdir", "/", "--", "/x" + HOSTILE)
        text = self.shown("wait", job)
        self.assertIn("\\x1b]0;pwn\\x07\\x0aFAKE LINE", text)
        self.look_at(job)
        self.shown("submit", "--wait", "--max-restarts", "0", "--", "/y" + HOSTILE)

    def test_a_folder_that_is_not_there(self):
        job = self.submitted("--max-restarts", "0", "--workdir", "/nowhere" + HOSTILE, "--", "true")
        self.shown("wait", job)
        self.look_at(job)

    def test_who_cancelled(self):
        job = self.submitted("--", "sleep", "600")
        e2e.wait_for(lambda: "running" in self.fx.run("ps", job).stdout, 20, "the job", self.fx.describe, every=0.1)
        self.shown("cancel", job, "--now", env={"USER": HOSTILE})
        said = self.shown("wait", job)  # A variable does not say who somebody is.
        self.assertIn(f"cancelled by {pwd.getpwuid(os.geteuid()).pw_name} on ", said)
        self.assertNotIn("pwn", said)
        self.look_at(job)

    def test_a_node_check_and_its_words(self):
        said = "printf '\\033]0;pwn\\007\\nFAKE LINE\\033[2J\\2332J' >&2; exit 1"
        job = self.submitted("--node-check", said, "--", "true")
        e2e.wait_for(lambda: "its node check exited with 1" in self.fx.run("explain", job).stdout, 20, "the refusal", self.fx.describe, every=0.1)
        for command in (["ps"], ["explain", job], ["nodes"], ["explain", "node0"]):
            self.shown(*command)
        self.shown("cancel", job)
        self.look_at(job)

    def test_a_launch_command(self):
        """Its screen, its report and its list tell of what it ran."""
        self.shown("run", "--no-python", "--max-restarts", "0", "/z" + HOSTILE)
        folder = self.fx.path("work", "d" + HOSTILE.replace("/", ""))
        os.mkdir(folder)
        self.shown("run", "--no-python", "--max-restarts", "0", "sh", "-c", "exit 3", cwd=folder)
        self.shown("ps", "-a")

    def test_words_that_mean_nothing(self):
        for command in ([HOSTILE], ["ps", HOSTILE], ["explain", HOSTILE], ["wait", HOSTILE], ["logs", HOSTILE], ["cancel", HOSTILE],
                        ["nodes", HOSTILE], ["submit", HOSTILE], ["submit", "--name", HOSTILE, "--", "true"], ["run", "--nnodes", HOSTILE, "x"],
                        ["man", HOSTILE], ["prune", "--keep", HOSTILE], ["ps", "--state-dir", HOSTILE]):
            self.shown(*command)


if __name__ == "__main__":
    e2e.main()
