"""regroup.checkpoint: what is asked before a checkpoint is published, by whom, and what an answer does."""
import os
import threading
import time
import unittest

from fake_agent import WorkerTest, accept, refuse, wait_for

import regroup
from regroup import checkpoint


def silent(_question):
    return None


class Commits(WorkerTest):
    def test_accepted_or_refused_with_the_reason(self):
        self.become_worker()
        self.assertEqual(checkpoint.commit(120, "/ckpt/120", manifest_hash="AB"), checkpoint.Commit(True))
        self.agent.judge = refuse
        answer = checkpoint.commit(121)
        self.assertFalse(answer)
        self.assertEqual(answer.why_not, "no reason")
        asked = [body["commit"] for _, body in self.agent.said if "commit" in body]
        self.assertEqual((asked[0]["step"], asked[0]["path"], asked[0]["manifest_hash"], asked[0]["for_notice"]),
                         (120, "/ckpt/120", "ab", False))
        self.assertLess(asked[0]["attempt"], asked[1]["attempt"])

    def test_a_commit_is_progress(self):
        self.become_worker()
        checkpoint.commit(120)
        self.agent.await_step(120)
        checkpoint.commit(119)
        regroup.flush()
        self.assertNotIn({"progress": {"step": 119}}, [body for _, body in self.agent.said])

    def test_other_ranks_do_not_ask(self):
        self.become_worker(RANK="1")
        self.assertIn("this is rank 1", checkpoint.commit(1).why_not)
        checkpoint.report(1)
        self.assertFalse(checkpoint.save(1, self.path("x"), lambda path: self.fail()))
        regroup.progress(step=2)
        self.assertNotIn("commit", [kind for body in self.agent.await_step(2) for kind in body])

    def test_no_answer_is_a_no_and_the_next_one_is_asked(self):
        self.become_worker()
        self.agent.judge = silent
        self.assertIn("not answered", checkpoint.commit(1, timeout=0.1).why_not)
        self.agent.judge = accept
        self.assertTrue(checkpoint.commit(2))

    def test_an_answer_to_another_question_is_not_taken(self):
        self.become_worker()
        self.agent.judge = lambda question: accept({**question, "attempt": question["attempt"] + 1})
        self.assertFalse(checkpoint.commit(1, timeout=0.2))

    def test_asked_again_after_the_agent_restarts(self):
        self.become_worker()
        self.agent.judge = silent
        answers = []
        asker = threading.Thread(target=lambda: answers.append(checkpoint.commit(5, timeout=20)))
        asker.start()
        self.agent.await_(lambda said: any("commit" in body for body in said))
        self.agent.close()
        self.agent.judge = accept
        self.agent.open()
        asker.join()
        self.assertEqual(answers, [checkpoint.Commit(True)])

    def test_reports_wait_for_nobody_and_are_bounded(self):
        self.become_worker(agent=False)
        begun = time.monotonic()
        for step in range(100):
            checkpoint.report(step)
        self.assertLess(time.monotonic() - begun, 1)
        self.assertIn("too many", checkpoint.commit(100).why_not)

    def test_what_would_cost_the_connection_is_not_said(self):
        self.become_worker()
        for step, path, digest in ((-1, "", ""), (1.5, "", ""), (None, "", ""), (1, "x" * 5000, ""), (1, "", "xyz"), (1, "", "a" * 129)):
            answer = checkpoint.commit(step, path, manifest_hash=digest)
            self.assertTrue(not answer and answer.why_not, (step, path[:9], digest[:9]))
        self.assertTrue(checkpoint.commit(1, "/tmp/\udcff"))
        self.assertEqual(self.agent.connections, 1)

    def test_how_far_it_came_is_told_before_what_it_asks(self):
        self.become_worker()
        regroup.progress(step=1)
        self.agent.await_step(1)
        regroup.progress(step=2)
        checkpoint.commit(2)
        self.assertEqual(self.agent.kinds(), ["hello", "progress", "progress", "commit"])

    def test_restored(self):
        self.become_worker()
        checkpoint.restored(96, seconds=0.5)
        self.assertEqual(self.agent.await_step(96)[-1], {"progress": {"step": 96, "restored_step": 96, "restore_s": 0.5}})


class Saving(WorkerTest):
    def write(self, path):
        with open(path, "w") as f:
            f.write(f"at {os.path.basename(path)}")

    def write_folder(self, path):
        os.makedirs(os.path.join(path, "deep"))
        self.write(os.path.join(path, "deep", "a"))

    def test_a_file_appears_when_it_is_accepted_and_not_before(self):
        self.become_worker()
        target = self.path("model.pt")
        self.agent.judge = lambda question: accept(question) if not os.path.exists(target) else refuse(question)
        self.assertTrue(checkpoint.save(10, target, self.write))
        with open(target) as f:
            self.assertTrue(f.read().startswith("at model.pt.partial"))
        self.assertEqual(os.listdir(self.folder).count("model.pt"), 1)
        self.assertFalse(checkpoint.save(11, target, self.write_folder), "refused: it is there")
        self.assertEqual(sorted(os.listdir(self.folder)), ["agent.sock", "model.pt"])
        asked = self.agent.await_(lambda said: any("commit" in body for body in said))
        self.assertEqual(next(b for b in asked if "commit" in b)["commit"]["path"], target)
        said = self.agent.await_(lambda said: any("checkpoint_s" in body.get("progress", {}) for body in said))
        self.assertGreater(max(body.get("progress", {}).get("checkpoint_s", 0) for body in said), 0)

    def test_a_folder_replaces_an_older_one(self):
        self.become_worker()
        for step in (1, 2):
            self.assertTrue(checkpoint.save(step, self.path("last"), self.write_folder))
        self.assertEqual(os.listdir(self.path("last", "deep")), ["a"])
        self.assertEqual(sorted(os.listdir(self.folder)), ["agent.sock", "last"])

    def test_a_folder_is_replaced_in_one_step(self):
        for name in ("old", "new"):
            self.write_folder(self.path(name))
            self.write(self.path(name, name))
        self.assertTrue(checkpoint._exchange(self.path("new"), self.path("old")))
        self.assertEqual(sorted(os.listdir(self.path("old"))), ["deep", "new"])
        self.assertEqual(sorted(os.listdir(self.path("new"))), ["deep", "old"])
        with self.assertRaises(OSError):
            checkpoint._exchange(self.path("nowhere"), self.path("old"))

    def test_what_write_raises_is_raised_and_nothing_is_left(self):
        self.become_worker()

        def fail(path):
            self.write(path)
            raise ValueError("disk")
        with self.assertRaisesRegex(ValueError, "disk"):
            checkpoint.save(1, self.path("model.pt"), fail)
        self.assertEqual(os.listdir(self.folder), ["agent.sock"])
        with self.assertRaises(FileNotFoundError):
            checkpoint.save(1, self.path("model.pt"), lambda path: None)

    def test_without_regroup_it_is_an_atomic_save(self):
        self.assertTrue(checkpoint.save(1, self.path("model.pt"), self.write))
        self.assertEqual(os.listdir(self.folder), ["model.pt"])


if __name__ == "__main__":
    unittest.main()
