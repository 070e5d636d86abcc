"""Ranks of a trainer's script that keep their process when their generation ends: the real trainers, real process groups."""
import collections
import importlib.util
import os
import shutil
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import inplace_world as iw  # noqa: E402 (the path has to come first)

ZYGOTE = None
UNDISTURBED = {}


class Trainers:
    """What goes on with each trainer; `trainer`, of derived classes."""

    maxDiff = None
    trainer = ""

    def world(self, count=3, **options):
        world = iw.World(ZYGOTE, script="inplace_trainers.py", trainer=self.trainer, **options)
        self.addCleanup(shutil.rmtree, world.folder, ignore_errors=True)
        self.addCleanup(world.close)
        world.begin(count)
        self.last_world = world
        return world

    def ends(self, world):
        """What ranks have said at their end; all have the same parameters, to the bit."""
        ends = world.await_lines("end", lambda lines: {line["local"] for line in lines} >= set(world.ranks), 120)
        self.assertEqual(len(ends), len(world.ranks), ends)
        self.assertEqual(len({line["digest"] for line in ends}), 1, ends)
        return sorted(ends, key=lambda line: line["rank"])

    def undisturbed(self, **options):
        key = (self.trainer, repr(sorted(options.items())))
        if key not in UNDISTURBED:
            UNDISTURBED[key] = self.ends(self.world(**options))[0]
        return UNDISTURBED[key]

    def replace(self, victim, step, where, check=True, also=(), **options):
        """That rank kills itself and is replaced; the run ends as one in which no rank was lost. `also`: what happens besides."""
        expected, self.victim, self.killed_at = self.undisturbed(**options), victim, step
        world = self.world(plan=[{"local": victim, "step": step, "where": where}, *also], **options)
        iw.await_exit(world.pids[victim], 90)
        kept = [local for local in range(3) if local != victim]
        pids = {local: world.pids[local] for local in kept}
        begun = time.monotonic()
        world.go_on(kept, {victim: 10 + victim})
        ends = self.ends(world)
        after = [line for line in world.lines("forward") if line["generation"] == 2]
        first = max(min((line["at"] for line in after if line["local"] == local), default=begun) for local in world.ranks)
        print(f"{self.trainer}, rank {victim} killed {where}, {options}: {1000 * (first - begun):.0f} ms", flush=True)
        self.assertEqual({line["local"]: line["pid"] for line in ends if line["local"] in kept}, pids, "survivors keep their process")
        if check:
            for line in ends:
                self.compare(line, expected, lost=step if where == "after step" else 0)
        if where == "before forward":
            new = [line["kind"] for line in world.lines() if line["local"] == 10 + victim]
            self.assertNotEqual(new[0], "validation", "a new rank validates nothing by itself")
        return world, ends

    def compare(self, line, expected, lost=0):
        """`lost`: a step whose loss on the lost rank is lost with it, as its gradients are not."""
        distance = sum((a - b) ** 2 for a, b in zip(line["parameters"], expected["parameters"])) ** 0.5
        self.assertLessEqual(distance / sum(a * a for a in expected["parameters"]) ** 0.5, 1e-3)
        for name in ("step", "steps", "epoch", "lr", "seen"):
            self.assertEqual(line[name], expected[name], name)

    def test_each_rank_at_each_moment(self):
        for number, where in enumerate(["before forward", "in backward", "after step"]):
            with self.subTest(where=where):
                self.replace(number, 5, where)

    def test_gradient_accumulation(self):
        for victim, where in ((0, "before forward"), (1, "in backward"), (2, "after step")):
            with self.subTest(where=where):
                self.replace(victim, 5, where, accumulate=3)

    def test_between_epochs_and_in_the_last_step_of_one(self):
        self.replace(1, 8, "after step")
        self.replace(0, 9, "before forward")

    def test_every_sample_once(self):
        world, _ = self.replace(2, 4, "before forward", accumulate=2)
        seen = {}
        for line in world.lines("forward"):
            seen.setdefault(line["step"], {}).setdefault(line["generation"], []).extend(line["indices"])
        whole = [sorted(seen[step][max(seen[step])]) for step in sorted(seen)]
        for epoch in range(2):
            self.assertEqual(sorted(sum(whole[epoch * 4:epoch * 4 + 4], [])), list(range(96)))

    def change(self, first, then, step=4, **options):
        """The world is another one from that step on; `then`: who is in it, of whom those below `first` are kept."""
        world = self.world(first, sleep=0.1, samples=192, **options)
        world.await_steps(1, step=step)
        kept = [local for local in then if local < first]
        pids = {local: world.pids[local] for local in kept}
        for local in set(range(first)) - set(kept):
            iw.kill(world.pids[local])
            iw.await_exit(world.pids[local])
        world.go_on(kept, [local for local in then if local >= first])
        ends = self.ends(world)
        self.assertEqual({line["local"]: line["pid"] for line in ends if line["local"] in kept}, pids)
        self.assertEqual(len({(line["step"], line["steps"], line["epoch"], line["lr"]) for line in ends}), 1, ends)
        self.assertEqual(ends[0]["step"], ends[0]["steps"])
        return ends[0]

    def refuses(self, trainer, why):
        world = iw.World(ZYGOTE, script="inplace_trainers.py", trainer=trainer)
        self.addCleanup(shutil.rmtree, world.folder, ignore_errors=True)
        self.addCleanup(world.close)
        world.run([0, 1])
        for line in world.await_lines("refused", lambda lines: len(lines) == 2):
            self.assertEqual(line["why"], why)


class Transformers(Trainers, unittest.TestCase):
    trainer = "transformers"

    def compare(self, line, expected, lost=0):
        super().compare(line, expected)
        self.assertEqual(line["digest"], expected["digest"])
        left_out = ("loss", "train_loss") if lost else ()
        logged = [[{name: value for name, value in each.items() if name not in left_out or 0 < each["step"] != lost and name == "loss"}
                   for each in some] for some in (line["history"], expected["history"])]
        self.assertEqual(*logged)

    def test_while_it_evaluates(self):
        world, ends = self.replace(1, 6, "in evaluation", arguments={"eval_strategy": "steps", "eval_steps": 3}, check=False)
        expected = self.undisturbed(arguments={"eval_strategy": "steps", "eval_steps": 3})
        self.assertEqual({line["digest"] for line in ends}, {expected["digest"]})
        told = [[each for each in line["history"] if "eval_loss" in each] for line in (*ends, expected)]
        self.assertTrue(all(each == told[0] for each in told), told)

    def test_fewer_ranks(self):
        self.assertEqual(self.change(3, [0, 2])["epoch"], 2.0)

    def test_more_ranks(self):
        self.assertEqual(self.change(2, [0, 1, 2], accumulate=2)["epoch"], 2.0)

    def test_more_ranks_and_as_many_steps_as_asked_for(self):
        self.assertEqual(self.change(2, [0, 1, 2], arguments={"max_steps": 40})["step"], 40)


class Loops(Trainers):
    """Whose wrapper sums its first gradients in another order once it is made anew: parameters are not the same to the bit."""

    def compare(self, line, expected, lost=0):
        super().compare(line, expected)
        distance = max(abs(a - b) for a, b in zip(line["parameters"], expected["parameters"]))
        self.assertLess(distance, 1e-5)

    def change(self, first, then, **options):
        """An epoch goes on after the samples done so far, but for those of a batch that is half done."""
        last, seen = super().change(first, then, **options), {}
        for line in self.last_world.lines("forward"):
            seen.setdefault(line["step"], {}).setdefault(line["generation"], []).extend(line["indices"])
        done = collections.Counter(index for some in seen.values() for index in some[max(some)])
        self.assertEqual((len(done), min(done.values())), (192, 2))
        self.assertLessEqual(sum(done.values()), 2 * 192 + 4 * max(first, len(then)) * options.get("accumulate", 1))
        return last

    def test_fewer_ranks(self):
        self.change(3, [0, 2])

    def test_more_ranks(self):
        self.change(2, [0, 1, 2], accumulate=2)


class Lightning(Loops, unittest.TestCase):
    trainer = "lightning"

    def compare(self, line, expected, lost=0):
        super().compare(line, expected)
        saved = [name.replace("-v1", "") for name in line["saved"]]  # It may have been saved already.
        self.assertEqual((line["wait"], saved), (expected["wait"], expected["saved"]))
        self.assertEqual(line["loops"], expected["loops"])
        self.assertEqual(sorted(line["metrics"]), sorted(expected["metrics"]))
        if line["rank"] == 0:
            if self.victim != 0:  # A new rank has a log of its own, from there on.
                self.assertEqual(sorted(line["logged"]), sorted(expected["logged"]))
            for step, value in line["logged"].items():
                self.assertAlmostEqual(value, expected["logged"][step], delta=1e-4 * abs(value), msg=step)
        # What the lost rank has logged in the last epoch is lost.
        of_epoch = ("loss", "loss_epoch", "error") if self.killed_at > expected["step"] // 2 + 1 else ()
        for name, value in line["metrics"].items():
            if name not in of_epoch:
                self.assertAlmostEqual(value, expected["metrics"][name], delta=1e-4 * abs(value), msg=name)

    def test_fewer_ranks(self):
        end = self.change(3, [1, 2])
        self.assertEqual(max(map(int, end["logged"])), end["step"] - 1, "rank 0 is another process now, and logs")
        validated = [line["local"] for line in self.last_world.lines("validation") if line["generation"] == 2]
        self.assertEqual([validated.count(local) for local in (1, 2)], [6, 6], "24 samples in batches of 4, twice")

    def test_fewer_ranks_of_a_limited_epoch(self):
        end = Trainers.change(self, 3, [0, 2], step=8, arguments={"limit_train_batches": 10})
        self.assertIn(end["step"], (19, 20), "one more of this epoch, and the next one")

    def test_one_has_not_stepped(self):
        """What comes between the last collective and the optimizer has failed on one rank alone."""
        self.replace(1, 5, "after optimizer", also=[
            {"local": 2, "step": 6, "where": "before optimizer", "raises": "gloo: Connection closed by peer"}])

    def test_one_has_not_come_to_the_next_step(self):
        self.replace(1, 6, "before the wrapper's forward", also=[
            {"local": 2, "step": 5, "where": "after step", "raises": "gloo: Connection closed by peer"}])

    def test_the_new_rank_is_lost_before_all_have_met(self):
        expected, self.victim, self.killed_at = self.undisturbed(), 1, 5
        world = self.world(plan=[{"local": 1, "step": 5, "where": "before forward"},
                                 {"local": 11, "step": 0, "where": "at the begin of a new rank"}])
        iw.await_exit(world.pids[1], 90)
        world.go_on([0, 2], {1: 11})
        iw.await_exit(world.pids[11], 90)
        world.go_on([0, 2], {1: 21})
        for line in self.ends(world):
            self.compare(line, expected)

    def test_resumed_in_the_middle_of_an_epoch(self):
        world = self.world(epochs=1, arguments={"val_check_interval": 3})
        self.ends(world)
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        found = shutil.copy(os.path.join(world.folder, "saved", "epoch=0-step=6.ckpt"), folder)
        self.replace(0, 8, "in backward", checkpoint=found)

    def test_an_epoch_that_ends_early(self):
        self.replace(1, 13, "at the end of an epoch", arguments={"max_epochs": -1, "max_steps": 13})
        self.replace(2, 2, "at the end of an epoch", accumulate=2, leave_at=5, arguments={"val_check_interval": 2})  # Within a step.

    def test_before_the_forward_of_the_wrapper(self):
        """Whose buffers come from rank 0."""
        self.replace(0, 5, "before the wrapper's forward")

    def test_once_the_optimizer_has_stepped(self):
        self.replace(0, 5, "after optimizer")
        self.replace(1, 6, "after optimizer", accumulate=2)

    def test_in_the_first_step_of_an_epoch(self):
        self.replace(2, 9, "in backward")

    def test_while_it_validates(self):
        self.replace(2, 8, "in validation")
        self.replace(0, 6, "in validation", arguments={"val_check_interval": 3})

    def test_at_the_end_of_an_epoch(self):
        self.replace(1, 8, "at the end of an epoch")
        self.replace(0, 16, "at the end of an epoch")

    def test_one_is_in_the_next_epoch_already(self):
        """The last collective of an epoch has failed on one rank alone."""
        self.replace(1, 9, "before forward", also=[
            {"local": 2, "step": 8, "where": "after the end of an epoch", "raises": "gloo: Connection closed by peer"}])

    def test_once_it_has_saved(self):
        self.replace(1, 8, "after saving")

    def test_what_is_refused(self):
        self.refuses("refused by lightning", {
            "nothing": None, "by itself": "it optimizes by itself (automatic_optimization = False)",
            "fetching": "its training_step() fetches batches by itself (dataloader_iter)",
            "iterable": "its dataset is iterable: how far each rank is cannot be told",
            "loaders": "its loaders are made anew every few epochs (reload_dataloaders_every_n_epochs)",
            "average": "StochasticWeightAveraging keeps a second copy of the parameters",
            "variables": "its ranks come of LightningEnvironment, not of the launcher's variables"})


class Accelerate(Loops, unittest.TestCase):
    trainer = "accelerate"

    def compare(self, line, expected, lost=0):
        super().compare(line, expected)
        self.assertEqual((line["epoch"], line["inside"]), (2, False))

    def test_what_is_refused(self):
        self.refuses("refused", {
            "dispatched": "its batches are dispatched by one rank (dispatch_batches)",
            "iterable": "its dataset is iterable: how far each rank is cannot be told",
            "nothing": None, "named": None, "loader": "its loader is none of accelerator.prepare()",
            "wrapper": "its model is in no DistributedDataParallel made after `import regroup.inplace`",
            "models": "2 models are prepared: name the one that is trained, as in steps(loader, model, optimizer)"})


if __name__ == "__main__":
    os.environ.update(HF_HUB_OFFLINE="1", PYTHONWARNINGS="ignore")
    iw.reexec()
    FOUND = [name for name in ("transformers", "lightning", "accelerate") if importlib.util.find_spec(name) is not None]
    if not FOUND:
        print(f"SKIPPED: no trainer in {sys.executable}")
        sys.exit(77)
    ZYGOTE = iw.Zygote(*FOUND, *(["transformers.trainer"] if "transformers" in FOUND else []))
    try:
        program = unittest.main(exit=False)
    finally:
        ZYGOTE.close()
    sys.exit(not program.result.wasSuccessful())
