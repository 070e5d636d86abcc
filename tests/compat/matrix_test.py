"""The parts of the matrix cover what they say, and the greedy that chooses them drops nothing."""
import collections
import itertools
import os
import unittest

import matrix

_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "scripts")


def covered(cells, features):
    return set().union(*map(features, cells))


class Parts(unittest.TestCase):
    def test_every_two_values_meet(self):
        chosen = matrix.pairwise()
        wanted = set().union(*(itertools.combinations((f"script {c.script}", f"launch {c.launch}", f"disturbance {c.disturbance}"), 2)
                               for c in matrix.cells()))
        self.assertEqual(wanted - covered(chosen, matrix.pairs), set())
        self.assertLess(len(chosen), len(matrix.cells()) / 3)
        self.assertEqual(len(chosen), len(set(chosen)))

    def test_the_quick_part_has_every_value_and_every_two_kinds(self):
        chosen = matrix.quick()
        for factor, values in enumerate((matrix.SCRIPTS, matrix.LAUNCHES, matrix.DISTURBANCES)):
            wanted = {name for name in values if factor or matrix.SCRIPTS[name].needs is None}
            self.assertEqual({cell[factor] for cell in chosen}, wanted)
        kinds = {(matrix.SCRIPTS[c.script].resumes, matrix.DISTURBANCES[c.disturbance][0]) for c in chosen}
        self.assertEqual(kinds, set(itertools.product((True, False), ("calm", "loss", "growth"))))
        kinds = {(matrix.LAUNCHES[c.launch].kind, matrix.DISTURBANCES[c.disturbance][0]) for c in chosen}
        self.assertEqual(kinds, {("one node", "calm"), ("one node", "loss"), ("fixed", "calm"), ("fixed", "loss"), ("elastic", "calm"),
                                 ("elastic", "loss"), ("elastic", "growth")})
        self.assertLessEqual(len(chosen), 9, "each costs every run of the tests six seconds")
        self.assertEqual(chosen, matrix.quick())

    def test_what_is_only_in_one_cell_is_kept(self):
        Pair = collections.namedtuple("Pair", "a b")
        cells = [Pair(a, b) for a, b in ((1, 1), (1, 2), (2, 1), (3, 3))]
        for order in itertools.permutations(cells):
            chosen = matrix.cover(list(order), lambda cell: {f"a{cell.a}", f"b{cell.b}"})
            self.assertEqual(set(chosen), {(1, 2), (2, 1), (3, 3)})


class Cells(unittest.TestCase):
    def test_disturbances_stand_where_they_make_sense(self):
        cells = matrix.cells()
        self.assertIn(matrix.Cell("ddp", "elastic", "added"), cells)
        self.assertNotIn(matrix.Cell("ddp", "fixed", "added"), cells)
        self.assertNotIn(matrix.Cell("ddp", "standalone", "node"), cells)

    def test_scripts_know_nothing_of_regroup(self):
        files = sorted(os.listdir(_FOLDER))
        self.assertLessEqual({script.file for script in matrix.SCRIPTS.values()}, set(files))
        for name in files:
            with open(os.path.join(_FOLDER, name), encoding="utf-8") as f:
                self.assertNotIn("regroup", f.read().lower(), name)


if __name__ == "__main__":
    unittest.main(verbosity=2)
