"""The Python package under real launch commands and agents: progress, notices, commits, error files."""
import json
import os
import signal
import sys

import regroup_e2e as e2e

HERE = os.path.dirname(os.path.abspath(__file__))
WORKER = os.path.join(HERE, "python_worker.py")
PACKAGE = os.path.join(HERE, "..", "..", "worker", "python")
ENDLESS = 1_000_000


class Python(e2e.TestCase):
    def setUp(self):
        super().setUp()
        self.folder = self.fx.path("work")
        self.fx.env.update({"PYTHONPATH": PACKAGE, "PYTHONDONTWRITEBYTECODE": "1", "PYTHON_EXEC": sys.executable})
        self.port = e2e.free_port()

    def launch(self, *arguments, name="node0", options=(), worker=WORKER):
        return self.fx.regroup("run", "--rdzv-endpoint", f"127.0.0.1:{self.port}", "--rdzv-id", "job", "--node-name", name,
                               *options, worker, self.folder, *arguments)

    def log(self, word=None):
        """[(generation, rank, world, word, …)] of what workers wrote, of all or of those with `word`."""
        try:
            with open(os.path.join(self.folder, "log")) as f:
                lines = [line.split() for line in f]
        except FileNotFoundError:
            return []
        found = [(int(g), int(r), int(w), *rest) for g, r, w, *rest in lines]
        return [line for line in found if word in (None, line[3])]

    def await_log(self, word, count=1, timeout=20):
        return e2e.wait_for(lambda: len(found := self.log(word)) >= count and found, timeout, f"{count} × {word}", self.fx.describe)

    def job(self):
        """The job as `ps --json` shows it."""
        shown = self.fx.run("ps", "-a", "--json")
        return next(iter(json.loads(shown.stdout)["jobs"]), {})

    def await_step(self, step):
        return e2e.wait_for(lambda: (job := self.job()).get("step", 0) >= step and job, 20, f"step {step}", self.fx.describe, every=0.1)


class Launched(Python):
    def test_progress_is_shown(self):
        run = self.launch(ENDLESS)
        job = self.await_step(3)
        self.assertGreater(job["loss"], 0)
        run.send(signal.SIGINT)
        self.assertEqual(run.wait(), 130, run)

    def test_sigterm_is_a_notice_the_script_saves_and_the_same_command_goes_on(self):
        run = self.launch(ENDLESS)
        self.await_step(3)
        run.send(signal.SIGTERM)
        self.assertEqual(run.wait(20), 143, run)
        (notice,), (saved,) = self.log("notice"), self.log("saved")
        self.assertAlmostEqual(float(notice[5]), 28, delta=4, msg="the grace of 30 s, less what stopping takes")
        self.assertEqual(saved[4:6], (notice[4], "True"))
        self.assertIn("preempted (saved)", run.stderr)
        step = int(saved[4])
        job = self.job()
        self.assertEqual((job["state"], job["committed_step"], job["restarts"]), ("preempted", step, 0))
        self.assertEqual(job["commit_path"], os.path.join(self.folder, "state.json"))

        again = self.launch(step + 5)
        self.assertEqual(again.wait(20), 0, again)
        self.assertEqual(self.log("start")[1][4:], (str(step), "0", str(step)), "resumed, uncharged, and told from where")
        self.assertEqual([line[4] for line in self.log("done")], [str(step + 5)])

    def test_a_script_that_does_not_ask_gets_sigterm_at_once(self):
        run = self.launch(ENDLESS, "--plain")
        self.await_step(3)
        run.send(signal.SIGTERM)
        self.assertEqual(run.wait(10), 143, run)
        job = self.job()
        self.assertEqual((job["state"], job["restarts"]), ("preempted", 0))

    def test_a_node_that_comes_makes_the_script_save_and_go_on_with_it(self):
        for kind in ("", "--plain"):
            with self.subTest(kind or "saves"):
                options = ("--nnodes", "1:2", "--scale-up", "now")
                arguments = [ENDLESS, *filter(None, [kind])]
                nodes = [self.launch(*arguments, options=options)]
                self.await_step(3)
                before = len(self.log("start"))
                nodes.append(self.launch(*arguments, name="node1", options=options))
                started = self.await_log("start", before + 2)[-2:]
                self.assertEqual([line[2] for line in started], [2, 2])
                if not kind:
                    self.assertEqual(started[0][4], self.log("saved")[-1][4], "it goes on from what it saved")
                self.assertEqual(self.job()["restarts"], 0)
                explained = self.fx.run("explain", "--generation", "1").stdout
                self.assertIn("node1", explained)
                self.assertNotRegex(explained, "supervisor")
                for node in nodes:
                    node.send(signal.SIGTERM)
                self.assertEqual([node.wait() for node in nodes], [143, 143], self.fx.describe())
                os.unlink(os.path.join(self.folder, "log"))
                self.port = e2e.free_port()

    def test_a_failure_is_told_with_its_traceback(self):
        run = self.launch(9, "--fail-at", "4", options=("--max-restarts", "1"))
        self.assertEqual(run.wait(), 1, run)
        self.assertEqual([line[5] for line in self.log("start")], ["0", "1"])
        self.assertRegex(run.stderr, r"RuntimeError: no step after 4")
        self.assertRegex(run.stderr, r"python_worker\.py\", line \d+, in main")


class Together(Python):
    def setUp(self):
        super().setUp()
        self.fx.env["PYTHON_EXEC"] = e2e.torch_python()

    def test_ranks_agree_on_the_step(self):
        options = ("--nnodes", "1:2", "--nproc-per-node", "2")
        nodes = [self.launch(ENDLESS, "--torch", name=f"node{i}", options=(*options, "--scale-up", "now")) for i in range(2)]
        e2e.wait_for(lambda: any(line[2] == 4 for line in self.log("start")), 60, "four ranks", self.fx.describe)
        generation = max(line[0] for line in self.log("start"))
        job = self.await_step(20)
        self.assertEqual(job["world"], 4)
        nodes[1].send(signal.SIGTERM)
        self.assertEqual(nodes[1].wait(20), 143, nodes[1])
        notices = [line for line in self.log("notice") if line[0] == generation]
        self.assertEqual(sorted(line[1] for line in notices), [0, 1, 2, 3])
        self.assertEqual(len({line[4] for line in notices}), 1, "all after the same step")
        survivors = e2e.wait_for(lambda: len(found := [line for line in self.log("start") if line[0] > generation]) == 2 and found, 60,
                                 "two ranks", self.fx.describe)
        self.assertEqual({line[4] for line in survivors}, {notices[0][4]}, "they go on from what was saved")
        self.assertEqual(self.job()["restarts"], 0)
        self.await_step(int(notices[0][4]) + 3)  # A rank that has not asked yet gets SIGTERM, and its peer an error.
        nodes[0].send(signal.SIGTERM)
        self.assertEqual(nodes[0].wait(20), 143, nodes[0])


class Submitted(Python):
    def test_the_agent_is_killed_and_comes_back(self):
        state = self.fx.path("state", "c")
        self.fx.service(e2e.binary("regroup"), "coordinator", "--listen", f"127.0.0.1:{self.port}", "--state-dir", state)
        self.fx.env["REGROUP_COORDINATOR"] = f"unix:{state}/coordinator-{self.port}/coordinator.sock"

        def agent():
            return self.fx.service(e2e.binary("regroup"), "agent", "--coordinator", f"127.0.0.1:{self.port}", "--node-name", "node0",
                                   "--slots", "1", "--state-dir", self.fx.path("state", "a"))
        first = agent()
        e2e.wait_for(lambda: "ready" in self.fx.run("nodes").stdout, 20, "a node", self.fx.describe, every=0.1)
        done = self.fx.run("submit", "--name", "job", "--", "env", f"PYTHONPATH={PACKAGE}", "PYTHONDONTWRITEBYTECODE=1", sys.executable,
                           WORKER, self.folder, ENDLESS)
        self.assertEqual(done.code, 0, done)
        step = self.await_step(3)["step"]
        first.kill()
        agent()
        self.assertGreater(self.await_step(step + 50)["step"], step)
        self.assertEqual(len(self.log("start")), 1, "the worker was not touched")
        self.assertEqual(self.fx.run("cancel", "job").code, 0)
        e2e.wait_for(lambda: self.job()["state"] == "cancelled", 20, "the end", self.fx.describe, every=0.1)


if __name__ == "__main__":
    e2e.main()
