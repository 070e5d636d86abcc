"""Ranks of a PyTorch script that keep their process when their generation ends, with real process groups."""
import os
import sys
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import inplace_world as iw  # noqa: E402 (the path has to come first)

ZYGOTE = None


class InPlace(unittest.TestCase):
    maxDiff = None

    def world(self, count, **options):
        world = iw.World(ZYGOTE, **options)
        self.addCleanup(world.close)
        world.begin(count)
        return world

    def assert_equal_ranks(self, world, generation=None):
        """All ranks begin a generation with the same parameters, to the bit."""
        generation = generation or world.generation
        lines = world.await_lines("changed", lambda lines: {line["local"] for line in lines if line["generation"] == generation}
                                  >= set(world.ranks))
        seen = {line["local"]: line["digest"] for line in lines if line["generation"] == generation}
        self.assertEqual(len(set(seen.values())), 1, (lines, world.output()))


    def tell(self, what, world, begun):
        """Prints how long it took until every rank has done a step; returns those of this generation."""
        steps = [line for line in world.lines("step") if line["generation"] == world.generation]
        first = max(min(line["at"] for line in steps if line["local"] == local) for local in world.ranks)
        print(f"{what}: {1000 * (first - begun):.0f} ms", flush=True)
        return steps


class WorldOneSmaller(InPlace):
    def lose(self, victim, where):
        plan = [{"local": victim, "step": 6, "where": where, "do": "kill"}]
        world = self.world(3, plan=plan)
        world.await_steps(step=3)
        iw.await_exit(world.pids[victim])
        begun = time.monotonic()
        kept = [local for local in range(3) if local != victim]
        pids = [world.pids[local] for local in kept]
        world.go_on(kept)
        world.await_steps(step=9)
        self.assert_equal_ranks(world)
        steps = self.tell(f"local rank {victim} killed {where}", world, begun)
        self.assertEqual({line["world"] for line in steps}, {2})
        self.assertEqual(sorted({line["pid"] for line in steps}), sorted(pids))
        ids = {line["local"]: set() for line in world.lines("changed")}
        for line in world.lines("changed"):
            ids[line["local"]].add(tuple(line["ids"]))
        self.assertTrue(all(len(each) == 1 for each in ids.values()), ids)

    def test_each_rank_in_turn_at_each_moment(self):
        moments = ["before forward", "before backward", "in backward", "after backward", "after step"]
        for number, where in enumerate(moments):
            with self.subTest(where=where):
                self.lose(number % 3, where)

    def test_a_survivor_is_a_step_ahead(self):
        for ahead, behind in ((0, 1), (1, 0)):
            plan = [{"local": behind, "step": 6, "where": "behind", "do": "lose"},
                    {"local": 2, "step": 6, "where": "after backward", "do": "kill"}]
            world = self.world(3, plan=plan)
            iw.await_exit(world.pids[2])
            world.go_on([0, 1])
            world.await_steps(step=9)
            self.assert_equal_ranks(world)
            changed = [line for line in world.lines("changed") if line["generation"] == 2]
            self.assertEqual({line["step"] for line in changed}, {6}, changed)
            steps = {local: [line["step"] for line in world.lines("step") if line["local"] == local] for local in (0, 1)}
            self.assertIn(6, steps[ahead])
            self.assertNotIn(6, steps[behind])

    def test_a_rank_that_hangs_in_a_collective_comes_out(self):
        world = self.world(3, plan=[{"local": 1, "step": 5, "where": "before backward", "do": "stop"}])
        world.await_lines("stops", bool)
        time.sleep(0.2)  # The others are in their collective by now, or will be in the moment that they are told.
        begun = time.monotonic()
        world.go_on([0, 2])
        iw.kill(world.pids[1])
        world.await_steps(step=8)
        self.assert_equal_ranks(world)
        self.tell("a peer that is stopped", world, begun)

    def test_groups_of_all_ranks_and_of_some(self):
        world = self.world(3, groups=True, some=True, vote=True)
        world.await_steps(step=3)
        iw.kill(world.pids[2])
        iw.await_exit(world.pids[2])
        world.go_on([0, 1])
        world.await_steps(step=world.lines("step")[-1]["step"] + 3)
        self.assert_equal_ranks(world)
        iw.kill(world.pids[1])
        world.end_generation([0])
        world.run([0], [0])
        world.agent.await_(lambda said: any("has lost one" in body.get("cannot_go_on", {}).get("why", "") for body in said), 20)


class NewRanks(InPlace):
    def test_the_lost_rank_is_replaced(self):
        for victim in range(3):
            world = self.world(3, groups=True, vote=True)
            world.await_steps(step=4)
            iw.kill(world.pids[victim])
            iw.await_exit(world.pids[victim])
            begun = time.monotonic()
            kept = [local for local in range(3) if local != victim]
            pids = [world.pids[local] for local in kept]
            world.go_on(kept, {victim: 10 + victim})
            step = world.lines("step")[-1]["step"]
            world.await_steps(step=step + 4)
            self.assert_equal_ranks(world)
            steps = self.tell(f"rank {victim} replaced", world, begun)
            self.assertEqual({line["world"] for line in steps}, {3})
            self.assertEqual({line["pid"] for line in steps}, {*pids, world.pids[10 + victim]})
            self.assertTrue(all(line["step"] > 3 for line in steps), "the new one goes on where the others are")

    def test_growth(self):
        world = self.world(2)
        world.await_steps(step=4)
        begun = time.monotonic()
        world.go_on([0, 1], [2, 3])
        world.await_steps(step=world.lines("step")[-1]["step"] + 4)
        self.assert_equal_ranks(world)
        steps = self.tell("two ranks more", world, begun)
        self.assertEqual({line["world"] for line in steps}, {4})

    def test_a_new_rank_cannot_join_a_group_of_some_in_a_larger_world(self):
        world = self.world(3, some=True)
        world.await_steps(step=3)
        world.go_on([0, 1, 2], [3])
        for local in (0, 1):
            world.agent.await_(lambda said: sum("cannot take in" in b.get("cannot_go_on", {}).get("why", "") for b in said) >= 2, 20)

    def test_the_next_generation_is_lost_as_well(self):
        world = self.world(3)
        world.await_steps(step=3)
        iw.kill(world.pids[2])
        iw.await_exit(world.pids[2])
        world.end_generation([0, 1])
        world.run([0, 1, 7], [0, 1])
        iw.kill(world.pids[7])
        for local in (0, 1):
            world.agent.await_hello_of(2, local)
        world.go_on([0, 1])
        world.await_steps()
        self.assert_equal_ranks(world)


class GroupsOfSome(InPlace):
    def test_a_new_rank_takes_its_place_in_groups_of_some(self):
        for count, rounds in ((3, [[0]]), (4, [[1], [2, 3], [1, 0]])):
            world = self.world(count, parts=True, groups=True)
            world.await_steps(step=4)
            groups_of = {line["rank"]: [members for members, _ in line["sums"]] for line in world.lines("step")}
            for number, victims in enumerate(rounds):
                with self.subTest(victims=victims, count=count, number=number):
                    self.replace(world, victims, 10 * (number + 1), groups_of)

    def replace(self, world, victims, first, groups_of):
        lost = [world.ranks[rank] for rank in victims]
        for local in lost:
            iw.kill(world.pids[local])
            iw.await_exit(world.pids[local])
        begun = time.monotonic()
        world.go_on([local for local in world.ranks if local not in lost], {rank: first + rank for rank in victims})
        world.await_steps(step=world.lines("step")[-1]["step"] + 4)
        self.assert_equal_ranks(world)
        steps = self.tell(f"ranks {victims} of {len(world.ranks)} replaced, in groups of some", world, begun)
        self.assertEqual({line["pid"] for line in steps}, {world.pids[local] for local in world.ranks})
        for line in steps:
            self.assertEqual(line["sums"], [[members, sum(members)] for members in groups_of[line["rank"]]], line)

    def test_a_new_rank_that_makes_other_groups(self):
        world = self.world(3, parts=True, other_order=True)
        world.await_steps(step=3)
        iw.kill(world.pids[2])
        iw.await_exit(world.pids[2])
        world.go_on([0, 1], {2: 5})
        world.agent.await_(lambda said: sum("by that name" in b.get("cannot_go_on", {}).get("why", "") for b in said) >= 2, 20)


class Samples(InPlace):
    OPTIONS = {"samples": 100, "batch": 12, "epochs": 3}

    def end(self, world):
        ends = world.await_lines("end", lambda lines: {line["local"] for line in lines} >= set(world.ranks))
        self.assertEqual(len({line["digest"] for line in ends}), 1)
        return ends[0]["parameters"]

    def test_every_sample_once_and_the_same_parameters(self):
        undisturbed = self.end(self.world(3, **self.OPTIONS))
        plan = [{"local": 1, "step": 4, "where": "in backward", "do": "kill"}]
        world = self.world(3, plan=plan, **self.OPTIONS)
        iw.await_exit(world.pids[1])
        world.go_on([0, 2])
        world.await_steps(step=12)
        iw.kill(world.pids[0])
        iw.await_exit(world.pids[0])
        world.go_on([2], {0: 5, 1: 6})
        parameters = self.end(world)
        distance = sum((a - b) ** 2 for a, b in zip(parameters, undisturbed)) ** 0.5 / sum(a * a for a in undisturbed) ** 0.5
        print(f"relative L2 from an undisturbed run: {distance:.2e}", flush=True)
        self.assertLessEqual(distance, 1e-3)
        self.check_samples(world)

    def check_samples(self, world):
        import regroup
        os.environ.update(RANK="0", WORLD_SIZE="1")
        steps = {}
        for line in world.lines("step"):
            steps.setdefault(line["step"], {}).setdefault((line["generation"], line["world"]), []).extend(line["indices"])
        step = 0
        for epoch in range(self.OPTIONS["epochs"]):
            sampler = regroup.ElasticSampler(self.OPTIONS["samples"], self.OPTIONS["batch"], seed=5)
            sampler.set_epoch(epoch)
            for batch in sampler:
                step += 1
                (seen,) = steps.pop(step).values()  # A step is done in one generation.
                self.assertEqual(len(seen), len(set(seen)))
                self.assertLessEqual(set(seen), set(batch), (epoch, step))  # Who was killed has not told its part.
        self.assertEqual(steps, {})

    def test_a_distributed_sampler(self):
        world = self.world(3, sampler="distributed", epochs=40)
        world.await_steps(step=3)
        iw.kill(world.pids[0])
        iw.await_exit(world.pids[0])
        world.go_on([1, 2], [4])
        world.await_steps(step=world.lines("step")[-1]["step"] + 4)
        iw.kill(world.pids[2])
        iw.await_exit(world.pids[2])
        world.go_on([1, 4])
        self.end(world)


class SeveralBatchesAndOptimizers(InPlace):
    OPTIONS = {"samples": 96, "batch": 12, "epochs": 5}

    def ends(self, world):
        ends = world.await_lines("end", lambda lines: {line["local"] for line in lines} >= set(world.ranks))
        self.assertEqual(len({line["digest"] for line in ends}), 1, ends)
        self.assertEqual(len({tuple(line["counts"]) for line in ends}), 1, ends)
        return ends[0]

    def check(self, batch, where, **options):
        undisturbed = self.ends(self.world(3, **self.OPTIONS, **options))
        for victim in range(3):
            for replaced in (False, True):
                with self.subTest(victim=victim, replaced=replaced):
                    plan = [{"local": victim, "step": batch, "where": where, "do": "kill"}]
                    world = self.world(3, plan=plan, **self.OPTIONS, **options)
                    iw.await_exit(world.pids[victim])
                    world.go_on([local for local in range(3) if local != victim], {victim: 5} if replaced else {})
                    end = self.ends(world)
                    self.assertEqual(end["counts"], undisturbed["counts"])
                    there = undisturbed["parameters"]
                    distance = sum((a - b) ** 2 for a, b in zip(end["parameters"], there)) ** 0.5 / sum(a * a for a in there) ** 0.5
                    self.assertLessEqual(distance, 1e-3)

    def test_gradients_of_four_batches(self):
        for batch, where in ((10, "in backward"), (11, "before forward"), (12, "in backward"), (12, "after backward")):
            self.check(batch, where, accumulate=4)

    def test_an_optimizer_for_each_part(self):
        for where in ("in backward", "after backward", "between optimizers"):
            self.check(14, where, several=True)


class Elastic(InPlace):
    """A function that is called again."""

    def change(self, **options):
        world = self.world(3, script="inplace_elastic.py", **options)
        world.await_steps(step=4)
        iw.kill(world.pids[1])
        iw.await_exit(world.pids[1])
        begun = time.monotonic()
        world.go_on([0, 2])
        world.await_steps(step=world.lines("step")[-1]["step"] + 2)
        self.assert_equal_ranks(world)
        self.tell(f"a function called again {options}", world, begun)
        world.go_on([0, 2], [5])
        world.await_steps(step=world.lines("step")[-1]["step"] + 2)
        self.assert_equal_ranks(world)
        changed = {line["local"]: set() for line in world.lines("changed")}
        for line in world.lines("changed"):
            changed[line["local"]].add((line["pid"], *line["ids"]))
        self.assertEqual([len(changed[local]) for local in (0, 2, 5)], [1, 1, 1])

    def test_groups_are_changed(self):
        self.change()

    def test_groups_are_made_anew_below_pytorch_2_15(self):
        self.change(old=True)


class WithoutRegroup(unittest.TestCase):
    def test_a_plain_loop_that_counts(self):
        import torch

        import regroup
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        sampler = regroup.ElasticSampler(10, 4)
        loop = regroup.steps(torch.utils.data.DataLoader(range(10), batch_sampler=sampler), model, optimizer)
        seen, steps = [], []
        for batch in loop:
            seen += batch.tolist()
            optimizer.step()
            steps.append((loop.step, loop.batch))
        self.assertEqual((sorted(seen), steps, len(sampler)), (list(range(10)), [(1, 1), (2, 2), (3, 3)], 3))
        self.assertEqual((sampler.consumed, sampler.weight), (10, 1.0))

    def test_what_is_done_is_skipped_without_being_read(self):
        import torch
        from regroup import _steps
        read = []

        class Read(torch.utils.data.Dataset):
            def __len__(self):
                return 12

            def __getitem__(self, index):
                read.append(index)
                return index

        def loader(**options):
            return torch.utils.data.DataLoader(Read(), batch_size=2, shuffle=True, generator=torch.Generator().manual_seed(7), **options)

        for workers in (0, 1):
            whole, some = [batch.tolist() for batch in loader(num_workers=workers)], loader(num_workers=workers)
            read.clear()
            with _steps.skipping(some, 4) as left:
                rest = iter(some)
            self.assertEqual((left, [batch.tolist() for batch in rest]), (0, whole[4:]))
            self.assertEqual(len(some), 6)
            self.assertEqual(read, [] if workers else sum(whole[4:], []))
        with _steps.skipping(loader(num_workers=1, persistent_workers=True), 4) as left:
            self.assertEqual(left, 4)  # Its iterator is made once for all epochs.
        with _steps.skipping([1, 2, 3], 2) as left:
            self.assertEqual(left, 2)

    def test_a_function_that_is_called_once(self):
        import torch  # noqa: F401 (of which what is kept may be made)

        import regroup

        @regroup.elastic
        def train(kept, what):
            kept.agree()
            kept.done()
            return kept.step, kept.once("model", lambda: what), kept.once("model", list)
        self.assertEqual(train(3), (1, 3, 3))


class ManyGenerations(InPlace):
    EARLY, LATE = 50, 200

    @staticmethod
    def memory(pid):
        """Anonymous memory in kB, descriptors, threads. Not Private_Dirty: what a rank shares with the process it was forked
        from counts there once it is written, a page after the other for hundreds of generations."""
        with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as f:
            fields = dict(line.split(":", 1) for line in f if line.count(":") == 1)
        return int(fields["Anonymous"].split()[0]), len(os.listdir(f"/proc/{pid}/fd")), len(os.listdir(f"/proc/{pid}/task"))

    def test_memory_is_flat(self):
        # PyTorch's flight recorder keeps the last 2000 collectives, which take 2 MB and a hundred generations to come.
        world = self.world(3, sleep=0.0, vote=True, groups=True, memory=[self.EARLY, self.LATE],
                           environment={"TORCH_FR_BUFFER_SIZE": "20"})
        begun, seen, stuck = time.monotonic(), {}, 0
        for number in range(1, self.LATE + 1):
            world.await_steps(number, step=1)
            if number in (self.EARLY, self.LATE):
                told = world.await_lines("memory", lambda lines: sum(line["generation"] == number for line in lines) == 3)
                seen[number] = {line["pid"]: (*self.memory(line["pid"]), line["heap"], line["objects"])
                                for line in told if line["generation"] == number}
            if number % 10 == 9:
                iw.kill(world.pids[world.ranks[2]])
            alive = world.ranks[:2] if number % 10 == 9 else world.ranks
            kept = world.end_as_an_agent(alive, 10.0)
            stuck += len(alive) - len(kept)
            world.run([*kept, *(100 + 3 * number + n for n in range(3 - len(kept)))], kept)
        world.await_steps()
        self.assert_equal_ranks(world)
        print(f"{self.LATE} generations in {time.monotonic() - begun:.0f} s; killed because they hung: {stuck}; "
              f"anonymous kB, descriptors, threads, bytes of malloc(), Python objects: {seen}", flush=True)
        self.assertLessEqual(stuck, 3, "of 600 retirements")
        early, late = seen[self.EARLY], seen[self.LATE]
        both = early.keys() & late.keys()
        self.assertGreaterEqual(len(both), 2 - stuck)
        for pid in both:
            more = [b - a for a, b in zip(early[pid], late[pid]) if a is not None]
            self.assertLess(more[0], 512, (pid, more))  # The heap grows by steps of 132 kB.
            self.assertLessEqual(more[1], 2, (pid, more))  # A connection may be on its way.
            self.assertLessEqual(more[2], 4, (pid, more))  # Threads that wait before they break off.
            self.assertLess(max(more[3:-1], default=0), 192 << 10, (pid, more))  # Less than 1.3 kB a generation.
            self.assertLess(more[-1], 300, (pid, more))


if __name__ == "__main__":
    iw.reexec()
    ZYGOTE = iw.Zygote()
    try:
        program = unittest.main(exit=False)
    finally:
        ZYGOTE.close()
    sys.exit(not program.result.wasSuccessful())
