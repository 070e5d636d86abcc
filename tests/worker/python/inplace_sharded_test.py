"""Ranks of a model that is distributed over a mesh (HSDP, tensor parallelism), which keep their process in place."""
import os
import sys
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import inplace_world as iw  # noqa: E402 (the path has to come first)

ZYGOTE = None


class Sharded(unittest.TestCase):
    maxDiff = None
    OPTIONS = {"samples": 48, "batch": 12, "epochs": 3, "sleep": 0.0, "script": "inplace_sharded.py"}

    def world(self, in_place=True, **options):
        world = iw.World(ZYGOTE, **{**self.OPTIONS, **options})
        self.addCleanup(world.close)
        world.begin(4) if in_place else world.run(range(4))
        return world

    def replace(self, world, victims, first):
        """Once they are dead."""
        lost = [world.ranks[rank] for rank in victims]
        for local in lost:
            iw.await_exit(world.pids[local])
        kept = [local for local in world.ranks if local not in lost]
        pids = {world.pids[local] for local in kept}
        begun = time.monotonic()
        world.go_on(kept, {rank: first + rank for rank in victims})
        self.assert_equal_replicas(world)
        changed = [line for line in world.lines("changed") if line["generation"] == world.generation]
        print(f"ranks {victims} replaced: {1000 * (max(line['at'] for line in changed) - begun):.0f} ms to the first forward",
              flush=True)
        self.assertLessEqual(pids, {line["pid"] for line in changed})
        self.assertEqual({line["moments"] for line in changed}, {"as parameters"})

    def assert_equal_replicas(self, world):
        """Whoever has the same part has the same bits, and all begin with the same step."""
        lines = world.await_lines("changed", lambda lines: {line["local"] for line in lines
                                                            if line["generation"] == world.generation} >= set(world.ranks))
        lines = [line for line in lines if line["generation"] == world.generation]
        parts = {}
        for line in lines:
            parts.setdefault(str(line["part"]), set()).add(line["digest"])
        self.assertEqual([len(digests) for digests in parts.values()], [1] * len(parts), (lines, world.output()))
        self.assertEqual(len({line["step"] for line in lines}), 1, lines)

    def end(self, world):
        ends = world.await_lines("end", lambda lines: {line["local"] for line in lines} >= set(world.ranks))
        self.assertEqual(len({str(line["parameters"]) for line in ends}), 1)
        self.assertEqual(len({(str(line["part"]), line["digest"]) for line in ends}), 2)
        return {name: ends[0].get(name) for name in ("parameters", "calls", "lr")}

    def refuse(self, world, why, ranks):
        world.agent.await_(lambda said: sum(why in body.get("cannot_go_on", {}).get("why", "") for body in said) >= ranks, 20)


class Hsdp(Sharded):
    def test_each_rank_in_turn_at_each_moment(self):
        options = {"epochs": 6, "clip": True, "evaluate": True}
        plan = [(0, 6, "in forward"), (1, 11, "in backward"), (2, 14, "after step"), (3, 19, "before backward")]
        self.compare(plan, **options)

    def compare(self, plan, **options):
        """One rank after another is replaced, and all ends as if none had been."""
        undisturbed = self.end(self.world(**options))
        world = self.world(**options, plan=[{"local": local, "step": step, "where": where, "do": "kill"}
                                            for local, step, where in plan])
        for victim, _, _ in plan:
            self.replace(world, [victim], 10)
        self.assertEqual(self.end(world), undisturbed)

    def test_gradients_of_several_batches(self):
        self.compare([(3, 8, "in backward"), (1, 12, "in forward")], accumulate=3, prefetch=True, checkpoint=True)

    def test_one_of_each_shard_and_then_both_of_one(self):
        world = self.world(swapped=True, epochs=1000, sleep=0.01)
        world.await_steps(step=3)
        iw.kill(world.pids[1])
        iw.kill(world.pids[2])
        self.replace(world, [1, 2], 10)
        parts = {line["rank"]: line["part"] for line in world.lines("changed")}
        self.assertEqual(parts, {0: [[2, 0]], 1: [[2, 0]], 2: [[2, 1]], 3: [[2, 1]]})
        self.kill_both(world, [2, 3])

    def kill_both(self, world, victims):
        lost = [world.ranks[rank] for rank in victims]
        for local in lost:
            iw.kill(world.pids[local])
            iw.await_exit(world.pids[local])
        world.go_on([local for local in world.ranks if local not in lost], {rank: 20 + rank for rank in victims})
        self.refuse(world, f"rank {victims[0]} lacks the newest state of shard 1 of 2, which is left on no rank", 4)

    def test_a_survivor_is_a_step_ahead(self):
        for behind, shard in ((2, None), (3, 1)):
            plan = [{"local": behind, "step": 6, "where": "behind", "do": "lose"},
                    {"local": 1, "step": 6, "where": "after step", "do": "kill"}]
            world = self.world(plan=plan)
            iw.await_exit(world.pids[1])
            world.go_on([0, 2, 3], {1: 10})
            if shard is None:
                self.assert_equal_replicas(world)
                steps = {line["local"]: line["step"] for line in world.lines("changed") if line["generation"] == 2}
                self.assertEqual(steps, {0: 6, 2: 6, 3: 6, 10: 6})
            else:
                self.refuse(world, "rank 1 lacks the newest state of shard 1 of 2, which is left on no rank", 4)


class Tensor(Sharded):
    def test_replicas_by_replicate(self):
        Hsdp.compare(self, [(1, 4, "in forward"), (2, 7, "in backward"), (0, 10, "after step")], mode="tp", clip=True,
                     evaluate=True, full=True)


class Refused(Sharded):
    def test_no_replicas(self):
        one = "each of its shards is on one rank only"
        rows = ((one, {"mode": "fsdp", "mesh": [4]}), (one, {"mesh": [1, 4]}), ("are plain tensors", {"mode": "tp-ddp"}))
        for why, options in rows:
            world = self.world(**options, in_place=False, epochs=1)
            world.await_steps(step=2)
            self.assertRegex(world.output(), f"does not outlive its generation: .*{why}")

    def test_who_sends_what(self):
        from regroup import _groups, _sharded

        def said(*shards):
            return [{"was": rank, "shard": shard} for rank, shard in enumerate(shards)]
        a, b, other = ["0 of 2", "m"], ["1 of 2", "m"], ["1 of 2", "n"]
        rows = [(said(None, None, None), [1], {0: 1, 2: 1}, 3), (said(None, None, None), [1, 2], {0: 1}, 3),
                (said(a, b, a, b), [0, 1, 2, 3], {}, 4), (said(a, b, a, b), [2, 3], {0: 2, 1: 3}, 4),
                (said(a, b, a, b, a, b), [0, 4, 1], {2: 0, 3: 1, 5: 1}, 6), (said(a, a, a, a, b), [2, 3, 4], {0: 2, 1: 3}, 5),
                (said(a, b, a, b), [0, 2], "rank 1 lacks the newest state of shard 1 of 2", 4),
                (said(a, b, a, other), [0, 1, 2], "rank 3 lacks the newest state of shard 1 of 2", 4),
                (said(a, b, a, None), [0, 1, 2], "rank 3 lacks the newest state of a model that is not distributed", 4),
                (said(a, a), [0, 1], "its parameters are distributed over a mesh", 3),
                (said(None, None), [0], {1: 0}, 3)]
        for lines, whole, expected, world in rows:
            for line in lines:
                line["world"] = world
            with self.subTest(lines=lines, whole=whole):
                if isinstance(expected, dict):
                    self.assertEqual(_sharded.donors_of(lines, whole), expected)
                else:
                    with self.assertRaisesRegex(_groups.CannotGoOn, expected):
                        _sharded.donors_of(lines, whole)


class Elastic(Sharded):
    def test_a_function_that_is_called_again(self):
        Hsdp.compare(self, [(2, 5, "after step"), (1, 8, "in backward")], elastic=True, steps=10)


if __name__ == "__main__":
    iw.reexec()
    ZYGOTE = iw.Zygote("torch.distributed.fsdp", "torch.distributed.tensor.parallel",
                       "torch.distributed._composable.replicate_with_fsdp")
    try:
        program = unittest.main(exit=False)
    finally:
        ZYGOTE.close()
    sys.exit(not program.result.wasSuccessful())
