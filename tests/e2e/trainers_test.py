"""Callbacks of the package `regroup` in the real Transformers, Lightning and Accelerate.

`./dev test -R trainers` installs them into a PyTorch of its own; each is skipped where REGROUP_TEST_PYTHON can't import it.
"""
import json
import os
import signal
import subprocess

import regroup_e2e as e2e
from python_test import PACKAGE

WORKER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "trainers_worker.py")


class Trainers(e2e.TestCase):
    warm = ()

    def one(self, kind, suffix):
        python = e2e.torch_python()
        if subprocess.run([python, "-c", f"import {kind}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode != 0:
            self.skipTest(f"no {kind} in {python}")
        self.folder = self.fx.path("work", "out")
        os.mkdir(self.folder)
        self.fx.env.update({"PYTHONPATH": PACKAGE, "PYTHONDONTWRITEBYTECODE": "1", "PYTHON_EXEC": python, "PYTHONWARNINGS": "ignore",
                            "HF_HUB_OFFLINE": "1"})
        self.port = e2e.free_port()

        run = self.launch(kind, 1_000_000)
        job = e2e.wait_for(lambda: (job := self.job()).get("step", 0) >= 45 and job, 90, "45 steps", self.fx.describe, every=0.2)
        self.assertIn("loss", job)
        self.assertEqual(job["committed_step"], 40, "its own checkpoints are reported")
        run.send(signal.SIGTERM)
        self.assertEqual(run.wait(25), 143, run)
        self.assertIn("preempted (saved)", run.stderr)
        self.assertNotRegex(run.stderr, "regroup's .* failed")
        self.assertNotIn("start cold", run.stderr)
        job = self.job()
        step = job["committed_step"]
        self.assertGreaterEqual(step, 45)
        self.assertEqual(job["commit_path"], os.path.join(self.folder, suffix.format(step)))
        self.assertTrue(os.path.exists(job["commit_path"]))
        self.assertEqual(job["restarts"], 0)

        again = self.launch(kind, step + 10)
        self.assertEqual(again.wait(90), 0, again)
        with open(os.path.join(self.folder, "log")) as f:
            lines = sorted(line.split() for line in f)
        self.assertEqual(lines, [["1", "0", "start", "0"], ["1", "1", "start", "0"],
                                 ["2", "0", "done", str(step + 10)], ["2", "0", "start", str(step)],
                                 ["2", "1", "done", str(step + 10)], ["2", "1", "start", str(step)]])

    def launch(self, kind, steps):
        return self.fx.regroup("run", "--rdzv-endpoint", f"127.0.0.1:{self.port}", "--rdzv-id", kind, "--nproc-per-node", "2", *self.warm,
                               WORKER, kind, self.folder, steps)

    def job(self):
        return next(iter(json.loads(self.fx.run("ps", "-a", "--json").stdout)["jobs"]), {})

    def test_transformers(self):
        self.one("transformers", "checkpoint-{}")

    def test_lightning(self):
        self.one("lightning", "regroup-{}.ckpt")

    def test_accelerate(self):
        self.one("accelerate", "step-{}")


class Warm(Trainers):
    def one(self, kind, suffix):
        self.warm = (f"--warm=torch,{kind}",)
        super().one(kind, suffix)


class InPlace(e2e.TestCase):
    def test_a_rank_of_transformers_is_killed(self):
        self.kill_a_rank("transformers")

    def test_a_rank_of_accelerate_is_killed(self):
        self.kill_a_rank("accelerate")

    def test_a_rank_of_lightning_is_killed(self):
        self.kill_a_rank("lightning")

    def kill_a_rank(self, trainer):
        python = e2e.torch_python()
        if subprocess.run([python, "-c", f"import {trainer}"], stderr=subprocess.DEVNULL).returncode != 0:
            self.skipTest(f"no {trainer} in {python}")
        logs = self.fx.path("work", "logs")
        os.mkdir(logs)
        options = {"trainer": trainer, "plan": [{"local": 1, "step": 5, "where": "in backward"}]}
        script = os.path.join(os.path.dirname(PACKAGE), "..", "tests", "worker", "python", "inplace_trainers.py")
        run = self.fx.regroup("run", "--nproc-per-node", "3", "--max-restarts", "1", "--in-place", f"--warm=torch,{trainer}",
                              os.path.normpath(script), env={
                                  "PYTHONPATH": PACKAGE, "PYTHONDONTWRITEBYTECODE": "1", "PYTHON_EXEC": python, "LOGS": logs,
                                  "OPTIONS": json.dumps(options), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"})
        self.assertEqual(run.wait(120), 0, run)
        lines = []
        for name in os.listdir(logs):
            if name.endswith(".log"):
                with open(os.path.join(logs, name), encoding="utf-8") as f:
                    lines += [json.loads(line) for line in f]
        ends = [line for line in lines if line["kind"] == "end"]
        self.assertEqual(sorted((line["rank"], line["generation"], line["step"], line["steps"]) for line in ends),
                         [(rank, 2, 16, 16) for rank in range(3)])
        self.assertEqual(len({line["digest"] for line in ends}), 1)
        pids = {line["pid"] for line in lines if line["generation"] == 1}
        self.assertEqual({line["rank"] for line in ends if line["pid"] in pids}, {0, 2}, "survivors keep their process")
        self.assertGreaterEqual(min(line["step"] for line in lines if line["kind"] == "step" and line["pid"] not in pids), 4)


if __name__ == "__main__":
    e2e.main()
