"""In place: a PyTorch script under `regroup run --in-place`, whose ranks keep their process when another one is killed."""
import glob
import json
import os
import signal
import textwrap

import regroup_e2e as e2e
from python_test import PACKAGE

RANKS, SAMPLES, BATCH, EPOCHS = 3, 96, 12, 1000
# One object a line to $MARKS/PID: that a step is done; at the end a digest of the parameters and every sample of the last epoch.
SCRIPT = """
    import hashlib, json, os, time
    import torch, torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, TensorDataset
    import regroup, regroup.inplace

    log = open(os.path.join(os.environ["MARKS"], str(os.getpid())), "a", buffering=1)
    def say(**what):
        ctx = regroup.context()
        print(json.dumps({"generation": ctx.generation, "rank": ctx.rank, "world": ctx.world_size, **what}), file=log)

    say(came=True)
    while os.path.exists(os.path.join(os.environ["MARKS"], "hold")):
        time.sleep(0.01)
    dist.init_process_group("gloo")
    torch.manual_seed(7)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    data = TensorDataset(torch.arange(SAMPLES), torch.randn(SAMPLES, 4, generator=torch.Generator().manual_seed(3)))
    sampler = regroup.ElasticSampler(data, batch_size=BATCH, seed=5)
    loader = DataLoader(data, batch_sampler=sampler)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        loop = regroup.steps(loader, model, optimizer)
        for ids, x in loop:
            (model(x).square().mean() * sampler.weight).backward()
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(0.01)
            say(step=loop.step, ids=ids.tolist())
        if os.path.exists(os.path.join(os.environ["MARKS"], "enough")):
            break
    digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
    say(digest=digest, step=loop.step)
    dist.destroy_process_group()
    time.sleep(0.5)  # PyTorch's threads let go of the last tensors.
    """


class InPlace(e2e.TestCase):
    def setUp(self):
        super().setUp()
        self.marks = self.fx.path("work", "marks")
        os.mkdir(self.marks)
        text = textwrap.dedent(SCRIPT)
        for name in ("SAMPLES", "BATCH", "EPOCHS"):
            text = text.replace(name, str(globals()[name]))
        with open(self.fx.path("work", "train.py"), "w", encoding="utf-8") as f:
            f.write(text)

    def launch(self, *options):
        return self.fx.regroup("run", "--nproc-per-node", RANKS, "--max-restarts", 9, *options, "train.py",
                               env={"PYTHON_EXEC": e2e.torch_python(), "PYTHONPATH": PACKAGE, "MARKS": self.marks, "OMP_NUM_THREADS": "1"})

    def leave_import_out(self):
        path = self.fx.path("work", "train.py")
        with open(path, encoding="utf-8") as f:
            text = f.read()
        changed = text.replace("import regroup, regroup.inplace", "import regroup").replace(
            "say(digest=digest", 'say(path=os.environ["PYTHONPATH"], site="REGROUP_SITE" in os.environ, digest=digest')
        with open(path, "w", encoding="utf-8") as f:
            f.write(changed)

    def said(self):
        """What each process has said, by its pid."""
        found = {}
        for path in glob.glob(os.path.join(self.marks, "[0-9]*")):
            with open(path, encoding="utf-8") as f:
                found[int(os.path.basename(path))] = [json.loads(line) for line in f.read().splitlines()]
        return found

    def steps_in(self, generation, count=RANKS):
        """{rank: pid} of those that have done a step in that generation, once there are so many."""
        def look():
            ranks = {line["rank"]: pid for pid, lines in self.said().items() for line in lines
                     if "step" in line and line["generation"] == generation}
            return ranks if len(ranks) == count else None
        return e2e.wait_for(look, 60, f"steps in generation {generation}", self.fx.describe)

    def finish(self, run):
        with open(os.path.join(self.marks, "enough"), "w", encoding="utf-8"):
            pass
        self.assertEqual(run.wait(), 0, run)
        ends = [line for lines in self.said().values() for line in lines if "digest" in line]
        self.assertEqual(len(ends), RANKS, ends)
        self.assertEqual(len({line["digest"] for line in ends}), 1, ends)
        return ends

    def test_each_rank_in_turn_is_killed(self):
        run = self.launch()  # The import alone does it.
        before = self.steps_in(1)
        for victim in range(RANKS):
            os.kill(before[victim], signal.SIGKILL)
            after = self.steps_in(victim + 2)
            kept = {rank: pid for rank, pid in before.items() if rank != victim}
            self.assertEqual({rank: after[rank] for rank in kept}, kept, "survivors keep their process and their rank")
            self.assertNotIn(after[victim], before.values())
            before = after
        self.finish(run)
        self.assertIn("train.py imports regroup.inplace, so its ranks keep their process", run.stderr)
        self.assertIn(" · world 3 · 2 ranks kept · down ", run.stderr)
        explained = self.fx.run("explain").stdout
        self.assertIn("ranks 1 2 kept their processes", explained)
        self.assertIn("ranks 0 1 kept their processes", explained)

    def test_a_second_one_is_killed_before_the_first_has_a_successor(self):
        run = self.launch("--warm")
        before = self.steps_in(1)
        hold = os.path.join(self.marks, "hold")
        with open(hold, "w", encoding="utf-8"):
            pass
        os.kill(before[2], signal.SIGKILL)
        e2e.wait_for(lambda: len(self.said()) == RANKS + 1, 60, "a new process", self.fx.describe)
        waiting = set(self.said()) - set(before.values())
        os.kill(before[1], signal.SIGKILL)
        e2e.wait_for(lambda: len(self.said()) == RANKS + 3, 60, "two more processes", self.fx.describe)
        os.unlink(hold)
        after = self.steps_in(3)
        self.assertEqual(after[0], before[0], "who was left keeps its process")
        self.assertFalse(set(after.values()) & waiting, "who had not come to its loop is replaced")
        self.finish(run)
        self.assertIn("world 3 · 1 rank kept", run.stderr)

    def test_with_warm_ranks_and_without_the_import(self):
        self.leave_import_out()
        run = self.launch("--warm", "--in-place")
        before = self.steps_in(1)
        os.kill(before[1], signal.SIGKILL)
        after = self.steps_in(2)
        self.assertEqual((after[0], after[2]), (before[0], before[2]))
        for end in self.finish(run):
            self.assertEqual((end["path"], end["site"]), (PACKAGE, False))

    def test_a_sitecustomize_of_theirs_is_run_and_the_import_can_be_overruled(self):
        """In a cold rank; PyTorch does not matter here."""
        own = self.fx.path("work", "own")
        os.mkdir(own)
        with open(os.path.join(own, "sitecustomize.py"), "w", encoding="utf-8") as f:
            f.write("import sys\nsys.theirs = __file__\n")
        program = "import os, sys; print(sys.theirs, sys.modules['sitecustomize'].__file__, os.environ.get('PYTHONPATH'), sys.path[1])"
        run = self.fx.run("run", "-q", "--in-place", "python3", "-c", program, env={"PYTHONPATH": own})
        self.assertEqual(run.stdout.split(), [os.path.join(own, "sitecustomize.py")] * 2 + [own, own], run)
        with open(self.fx.path("work", "train.py"), "w", encoding="utf-8") as f:
            f.write("import os\nif 0:\n    import regroup.inplace\nprint('REGROUP_SITE' in os.environ, 'PYTHONPATH' in os.environ)\n")
        run = self.fx.run("run", "--in-place=false", "train.py", env={"PYTHON_EXEC": "python3"})
        self.assertNotIn("regroup.inplace", run.stderr)
        self.assertEqual(run.stdout.split(), ["False", "False"], run)

    def test_a_package_that_knows_nothing_of_it_costs_a_script_nothing(self):
        for name in ("torch.py", "regroup.py"):
            with open(self.fx.path("work", name), "w", encoding="utf-8") as f:
                f.write("")
        with open(self.fx.path("work", "train.py"), "w", encoding="utf-8") as f:
            f.write("import torch\nprint('trains')\n")
        run = self.fx.run("run", "--in-place", "train.py", env={"PYTHON_EXEC": "python3"})
        self.assertEqual((run.code, run.stdout), (0, "trains\n"), run)
        self.assertIn("regroup: --in-place: ModuleNotFoundError: No module named 'regroup.inplace'", run.stderr)


if __name__ == "__main__":
    e2e.main()
