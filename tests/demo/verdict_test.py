"""The demo's verdict over made-up logs: a right run passes; each planted fault fails it, with a summary that tells true
numbers, whatever is missing."""
import os
import sys
import types
import unittest
from unittest import mock

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import demo  # noqa: E402
import proof  # noqa: E402

TEXT = bytes(range(256)) * 100  # Unigram entropy: ln 256 = 5.545.
STEPS, BATCH = 240, 24  # Of demo.Plan(fast=True).
# Number, world, the step whose commit it resumed from, its last step; the job grows and shrinks as in the demo.
LIVES = [(1, 3, 0, 30), (2, 3, 24, 70), (3, 2, 64, 110), (4, 3, 104, 150), (5, 2, 150, STEPS)]


def logs(lives):
    lines = []
    for number, world, restored, last in lives:
        for step in range(restored + 1, last + 1):
            for rank in range(world):
                first = (step - 1) * BATCH + rank * BATCH // world
                end = (step - 1) * BATCH + (rank + 1) * BATCH // world
                lines.append(proof.Consumed(number, step, rank, world, first, end - first, sum(range(first, end)), 5.5 - step / 100))
    return lines


def journal(lives):
    """As `explain --json` shows it; each generation formed right after the commit that it should resume from."""
    events = []
    for number, _, restored, _ in lives:
        events += [{"type": "commit_accepted", "step": restored}] if restored else []
        events.append({"type": "generation_formed", "generation": number})
    return {"events": events, "ran_for_s": 10.0, "time": {"productive_s": 9.0, "regroup_s": 1.0},
            "generations": [{"generation": number, "state": "over", "world": world, "restored_step": restored}
                            for number, world, restored, _ in lives]}


def verdict(lines, lives=LIVES, view=None):
    screen = types.SimpleNamespace()
    fake = types.SimpleNamespace(
        plan=demo.Plan(True, 7), seed=7, folder="/demo", coordinator="", clock=lambda: "0:10", screen=screen,
        options=types.SimpleNamespace(fast=True), job=lambda fresh: view or journal(lives), lines=lambda: lines)
    with mock.patch.object(demo.Verdict, "_undisturbed", lambda *_: logs([(0, 1, 0, STEPS)])):
        return demo.Verdict(fake, TEXT, "data.txt")


class Verdict(unittest.TestCase):
    def summary(self, of):
        with mock.patch.object(demo.Verdict, "sample_text", lambda _: "some text"):
            return "\n".join(of.summary())

    def fails(self, lines, problem, shown, **more):
        summary = self.summary(verdict(lines, **more))
        self.assertIn("Regroup demo: FAILED", summary)
        self.assertRegex(summary, f"(?m)^ FAILED: .*{problem}")
        self.assertIn(shown, summary)

    def test_a_right_run_passes(self):
        right = verdict(logs(LIVES))
        self.assertEqual(right.problems, [])
        summary = self.summary(right)
        self.assertIn("Regroup demo: PASSED", summary)
        self.assertIn(" samples      5,760 of 5,760 once, 0 lost; 18 steps computed twice", summary)
        self.assertIn("goodput 90.0 %", summary)

    def test_a_skipped_batch(self):
        lines = [line._replace(first=line.first + BATCH) if line.step >= 70 else line for line in logs(LIVES)]
        self.fails(lines, "positions start at", " 5,736 of 5,760 once, 24 lost;")

    def test_a_repeated_batch(self):
        lines = [line._replace(first=line.first - BATCH) if line.step >= 70 else line for line in logs(LIVES)]
        self.fails(lines, "positions start at", " 5,712 of 5,760 once, 24 lost, 24 more than once;")

    def test_other_samples_than_the_positions_say(self):
        lines = [line._replace(hash=line.hash + 1) if line.step == 70 else line for line in logs(LIVES)]
        self.fails(lines, "other samples than the undisturbed run in 1 steps", " 5,760 of 5,760 once, 0 lost;")

    def test_resuming_from_zero(self):
        lives = [(number, world, 0, last) for number, world, _, last in LIVES]
        self.fails(logs(lives), "generation 2 resumed from step 0, the newest commit was 24", " 360 steps computed twice",
                   view={**journal(lives), "events": journal(LIVES)["events"]})

    def test_a_wrong_gradient_scale(self):
        lines = [line._replace(loss=line.loss + 0.002) if line.step > 1 else line for line in logs(LIVES)]
        self.fails(lines, "final loss 3.102 differs", "5.490 → 3.102   unigram entropy 5.545   undisturbed run 3.100 (Δ 2e-03)")

    def test_no_better_than_counting_bytes(self):
        lines = [line._replace(loss=6.0) for line in logs(LIVES)]
        self.fails(lines, "is not under the text's unigram entropy", "6.000 → 6.000")

    def test_an_end_that_was_never_reached(self):
        lives = [*LIVES[:-1], (5, 2, 150, 200)]
        self.fails(logs(lives), "steps missing", " 4,800 of 5,760 once, 960 lost;", lives=lives)
        self.fails(logs(lives), "final loss None", "5.490 → –   unigram entropy 5.545   undisturbed run 3.100\n", lives=lives)

    def test_no_logs_at_all(self):
        self.fails([], "steps missing", " loss         – → –   unigram entropy 5.545   undisturbed run 3.100\n")


if __name__ == "__main__":
    unittest.main()
