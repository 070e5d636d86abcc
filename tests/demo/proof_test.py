"""The demo's proof finds what it is there to find: each way of cheating, in made-up logs of an otherwise right run."""
import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import proof  # noqa: E402

STEPS, BATCH = 20, 6


def run(generations):
    """Logs of generations [(number, world, first step, last step)], slices as the sampler cuts them."""
    lines = []
    for number, world, first, last in generations:
        for step in range(first, last + 1):
            for rank in range(world):
                start = (step - 1) * BATCH + rank * BATCH // world
                end = (step - 1) * BATCH + (rank + 1) * BATCH // world
                lines.append(proof.Consumed(number, step, rank, world, start, end - start, sum(range(start, end)), 3.0 - step / 10))
    return lines


RIGHT = [(1, 3, 1, 9), (2, 3, 9, 15), (3, 2, 15, 20)]
RESUMED = {1: 0, 2: 8, 3: 14}


class ExactlyOnce(unittest.TestCase):
    def problems(self, lines, resumed=None):
        return proof.check_exactly_once(lines, RESUMED if resumed is None else resumed, STEPS, BATCH)[0]

    def counts(self, lines):
        counts = proof.count_samples(lines, RESUMED, STEPS, BATCH)
        return counts.once, counts.lost, counts.more

    def test_a_right_run_has_no_problem(self):
        self.assertEqual(proof.check_exactly_once(run(RIGHT), RESUMED, STEPS, BATCH), ([], 2))
        self.assertEqual(proof.count_samples(run(RIGHT), RESUMED, STEPS, BATCH), proof.Counts(120, 0, 0, 120))

    def test_a_skipped_batch(self):
        lines = [line._replace(first=line.first + BATCH) if line.step >= 10 else line for line in run(RIGHT)]
        self.assertTrue(self.problems(lines))
        self.assertEqual(self.counts(lines), (114, 6, 0))

    def test_a_repeated_batch(self):
        lines = [line._replace(first=line.first - BATCH) if line.step >= 10 else line for line in run(RIGHT)]
        self.assertTrue(self.problems(lines))
        self.assertEqual(self.counts(lines), (108, 6, 6))

    def test_a_lost_rank(self):
        lines = [line for line in run(RIGHT) if not (line.step == 5 and line.rank == 1)]
        self.assertTrue(self.problems(lines))
        self.assertEqual(self.counts(lines), (118, 2, 0))

    def test_a_missing_step(self):
        lines = [line for line in run(RIGHT) if line.step != 12]
        self.assertTrue(self.problems(lines))
        self.assertEqual(self.counts(lines), (114, 6, 0))

    def test_no_logs_at_all(self):
        self.assertTrue(self.problems([]))
        self.assertEqual(self.counts([]), (0, 120, 0))

    def test_a_step_beyond_the_end(self):
        self.assertTrue(self.problems(run([*RIGHT, (4, 2, 21, 21)]), {**RESUMED, 4: 20}))

    def test_a_resume_that_skips(self):
        self.assertTrue(self.problems(run([(1, 3, 1, 9), (2, 3, 12, 20)]), {1: 0, 2: 11}))


class Lineage(unittest.TestCase):
    def test_a_later_generation_owns_what_it_repeats(self):
        owner = proof.lineage(run(RIGHT), RESUMED)
        self.assertEqual((owner[8], owner[9], owner[14], owner[15]), (1, 2, 2, 3))

    def test_hashes_do_not_depend_on_the_world(self):
        self.assertEqual(proof.step_hashes(run(RIGHT), RESUMED), proof.step_hashes(run([(1, 1, 1, STEPS)]), {}))

    def test_resuming_from_zero_shows_in_what_counts(self):
        owner = proof.lineage(run([(1, 3, 1, 9), (2, 3, 1, 20)]), {1: 0, 2: 0})
        self.assertEqual(set(owner.values()), {2})


class Reading(unittest.TestCase):
    def test_a_torn_last_line_is_not_a_line(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "1-0.log"), "w") as f:
                f.write("1 1 0 1 0 6 ff 2.5\n1 2 0 1 6 6 f")
            self.assertEqual(proof.read_sample_logs(folder), [proof.Consumed(1, 1, 0, 1, 0, 6, 255, 2.5)])

    def test_when_coordinators_served(self):
        log = ('2026-11-21T22:42:00.338202Z info what="the coordinator serves" folder=/x epoch=1 rows=0\n'
               '2026-11-21T22:42:05.512346Z info what="generation ends" job=demo-1\n'
               '2026-11-21T22:42:08.438591Z info what="the coordinator serves" folder=/x epoch=2 rows=28\n2026-11')
        first, second = proof.served_at(log)
        self.assertAlmostEqual(first, 1795300920.338202, places=5)
        self.assertAlmostEqual(second - first, 8.100389, places=5)
        self.assertEqual(proof.served_at(""), [])

    def test_entropy(self):
        self.assertAlmostEqual(proof.unigram_entropy(b"abababab"), 0.693147, places=6)
        self.assertEqual(proof.unigram_entropy(b"aaaa"), 0)


if __name__ == "__main__":
    unittest.main()
