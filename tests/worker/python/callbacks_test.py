"""Callbacks by duck typing, against stand-ins that call them as the trainers do; and how ranks agree to stop."""
import os
import sys
import types
import unittest
from types import SimpleNamespace

from fake_agent import WorkerTest, wait_for

import regroup
from regroup import _worker, callbacks

TRANSFORMERS_EVENTS = ("init_end train_begin epoch_begin step_begin pre_optimizer_step optimizer_step substep_end step_end "
                       "evaluate predict prediction_step log save epoch_end train_end push_begin").split()


class CallbackTest(WorkerTest):
    def setUp(self):
        super().setUp()
        self.left = []
        leave, _worker.leave = _worker.leave, lambda: self.left.append(_worker._seen)
        self.addCleanup(setattr, _worker, "leave", leave)

    def notice(self):
        regroup.should_stop()
        self.agent.await_hello(takes_notice=True)
        self.agent.tell({"notice": {"leftS": 20}})
        wait_for(lambda: _worker._client.notice)

    def assert_reported(self, report):
        self.agent.await_(lambda said: {"progress": report} in said)

    def commits(self, count=1):
        """All commits asked for, once there are `count`."""
        asked = self.agent.await_(lambda said: sum("commit" in body for body in said) >= count)
        return [body["commit"] for body in asked if "commit" in body]


class Transformers(CallbackTest):
    def setUp(self):
        super().setUp()
        self.callback = callbacks.Transformers()
        self.arguments = SimpleNamespace(output_dir=self.path("out"), train_batch_size=4, gradient_accumulation_steps=2, world_size=3)
        self.state = SimpleNamespace(global_step=0, max_steps=100)
        self.control = SimpleNamespace(should_save=False, should_training_stop=False)

    def event(self, name, **more):
        return getattr(self.callback, "on_" + name)(self.arguments, self.state, self.control, model=None, optimizer=None, **more)

    def test_a_run(self):
        self.become_worker()
        self.state.global_step = 96
        for name in TRANSFORMERS_EVENTS:
            self.assertIsNone(self.event(name))
        self.state.global_step = 97
        self.event("step_end")
        self.event("log", logs={"loss": 2.5})
        self.assert_reported({"step": 97, "samples": 97 * 24, "restored_step": 96, "loss": 2.5})
        self.assertFalse(self.control.should_save or self.control.should_training_stop)
        self.assertEqual([(c["step"], c["path"], c["for_notice"]) for c in self.commits()],
                         [(96, self.path("out", "checkpoint-96"), False)])

    def test_a_notice_saves_stops_and_leaves(self):
        self.become_worker()
        self.state.global_step = 5
        self.notice()
        self.event("step_end")
        self.assertTrue(self.control.should_save and self.control.should_training_stop)
        self.event("save")
        self.event("train_end")
        self.assertEqual(self.left, [True])
        self.assertEqual([(c["step"], c["for_notice"]) for c in self.commits()], [(5, False)])

    def test_a_training_that_is_through_is_finished(self):
        self.become_worker()
        self.notice()
        regroup.should_stop()
        self.state.global_step = 100
        self.event("train_end")
        self.assertEqual((self.left, _worker._seen), ([], False))

    def test_without_regroup_and_with_strange_arguments_nothing_happens(self):
        for name in TRANSFORMERS_EVENTS:
            self.event(name)
        self.become_worker()
        self.state = SimpleNamespace()
        with self.assertLogs("regroup", "WARNING"):
            self.event("step_end")


class Lightning(CallbackTest):
    def setUp(self):
        super().setUp()
        self.callback = callbacks.Lightning(self.path("ckpt"))
        self.saved = []
        self.trainer = SimpleNamespace(global_step=0, interrupted=False, save_checkpoint=self.save,
                                       checkpoint_callback=SimpleNamespace(last_model_path="", best_model_path="/best.ckpt"))

    def save(self, path):
        self.callback.on_save_checkpoint(self.trainer, None, {"global_step": self.trainer.global_step})
        self.saved.append(path)

    def step(self, step, outputs):
        self.callback.on_train_batch_start(self.trainer, None, None, step)
        self.trainer.global_step = step
        self.callback.on_train_batch_end(self.trainer, None, outputs, None, step)

    def test_a_run(self):
        self.become_worker()
        self.callback.setup(self.trainer, None, stage="fit")
        self.callback.on_fit_start(self.trainer, None)
        self.callback.on_train_start(self.trainer, None)
        self.step(1, {"loss": 1.5})
        self.save("by ModelCheckpoint")
        self.step(2, 1.25)
        self.callback.on_train_end(self.trainer, None)
        self.callback.teardown(self.trainer, None, stage="fit")
        self.assert_reported({"step": 2, "loss": 1.25})
        self.assertEqual([(c["step"], c["path"], c["for_notice"]) for c in self.commits()], [(1, "/best.ckpt", False)])
        self.assertEqual((self.callback.state_dict(), self.left), ({}, []))
        self.assertRaises(AttributeError, lambda: self.callback.something_else)

    def test_the_file_that_was_written_is_reported_not_the_best_one(self):
        self.become_worker()
        self.trainer.checkpoint_callback._last_checkpoint_saved = "/step-4.ckpt"
        self.step(4, 1.0)
        self.save("by ModelCheckpoint")
        self.step(5, 1.0)
        self.assertEqual([(c["step"], c["path"]) for c in self.commits()], [(4, "/step-4.ckpt")])

    def test_a_save_for_a_notice_that_fails(self):
        """Its process goes on in place, and other saves are reported as before."""
        self.become_worker()
        self.notice()
        self.trainer.save_checkpoint = lambda _: 1 / 0
        self.step(7, None)
        self.save("by ModelCheckpoint")
        self.callback.on_train_end(self.trainer, None)
        self.assertEqual([c["step"] for c in self.commits()], [7])

    def test_a_notice_saves_and_leaves(self):
        self.become_worker()
        self.notice()
        self.step(7, None)
        path = self.path("ckpt", "regroup-7.ckpt")
        self.assertEqual((self.saved, self.left), ([path], [True]))
        self.assertEqual([(c["step"], c["path"], c["for_notice"]) for c in self.commits()], [(7, path, False)])


class Accelerate(CallbackTest):
    def test_a_run_and_a_notice(self):
        self.become_worker()
        done = []
        session = callbacks.Accelerate(SimpleNamespace(save_state=lambda folder, **options: done.append((folder, options)),
                                                       wait_for_everyone=lambda: done.append("all")))
        session.restored(2)
        self.assertFalse(session.step(3, loss=0.5))
        self.assertTrue(session.save(3, self.path("3"), safe_serialization=False))
        self.notice()
        self.assertTrue(session.step(4))
        self.assertTrue(session.save(4, self.path("4")))
        session.leave()
        self.assertEqual(done, [(self.path("3"), {"safe_serialization": False}), "all", (self.path("4"), {}), "all"])
        self.assertEqual([(c["step"], c["for_notice"]) for c in self.commits(2)], [(3, False), (4, False)])
        self.assertEqual(self.left, [True])


class FakeTorch(types.ModuleType):
    """Of a world of two: `other` is how the other rank votes in each round."""

    class Tensor:
        def __init__(self, values):
            self.values = values

        def item(self):
            return self.values[0]

    def __init__(self, other):
        super().__init__("torch")
        self.int32, self.other, self.groups, self.votes = "int32", iter(other), [], []
        self.distributed = SimpleNamespace(
            is_available=lambda: True, is_initialized=lambda: True, get_world_size=lambda: 2, ReduceOp=SimpleNamespace(MAX="max"),
            new_group=lambda backend: self.groups.append(backend), all_reduce=self.all_reduce)

    def tensor(self, values, dtype):
        return self.Tensor(values)

    def all_reduce(self, tensor, op, group, async_op):
        mine, theirs = tensor.values[0], next(self.other)
        if theirs is None:
            raise RuntimeError("Connection closed by peer")
        self.votes.append(mine)

        def wait():
            tensor.values[0] = max(mine, theirs)
        return SimpleNamespace(wait=wait)


class Agreement(CallbackTest):
    def install(self, torch):
        before = sys.modules.get("torch")
        sys.modules["torch"] = torch
        self.addCleanup(lambda: sys.modules.pop("torch") if before is None else sys.modules.update(torch=before))

    def test_the_same_call_on_every_rank(self):
        self.become_worker()
        self.install(torch := FakeTorch([0, 0, 1, 1, 1]))
        self.assertEqual([regroup.should_stop_together() for _ in range(6)], [False, False, False, True, True, True])
        self.assertEqual((torch.groups, torch.votes), (["gloo"], [0, 0, 0, 0]))
        self.assertTrue(_worker.noticed(), "it leaves with the rank that heard of the notice")

    def test_my_own_notice_counts_a_call_later(self):
        self.become_worker()
        self.install(FakeTorch([0] * 9))
        self.notice()
        self.assertEqual([regroup.should_stop_together() for _ in range(2)], [False, True])

    def test_a_lost_rank_is_somebody_elses_business(self):
        self.become_worker()
        self.install(FakeTorch([0, None]))
        with self.assertLogs("regroup", "WARNING") as logs:
            self.assertEqual([regroup.should_stop_together() for _ in range(4)], [False] * 4)
        self.assertEqual(len(logs.output), 1)

    def test_alone_there_is_no_vote(self):
        self.become_worker()
        self.install(torch := FakeTorch([]))
        torch.distributed.is_initialized = lambda: False
        self.notice()
        self.assertTrue(regroup.should_stop_together())


if __name__ == "__main__":
    unittest.main()
