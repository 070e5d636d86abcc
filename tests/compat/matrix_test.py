"""The parts of the matrix cover what they say, and the greedy that chooses them drops nothing."""
import collections
import itertools
import os
import unittest

import matrix

PLAIN = [name for name, script in matrix.SCRIPTS.items() if script.needs is None]
_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "scripts")


class Parts(unittest.TestCase):
    def test_every_two_values_meet(self):
        for scripts in (PLAIN, [name for name in matrix.SCRIPTS if name not in matrix.HABITS], list(matrix.SCRIPTS)):
            chosen = matrix.pairwise(scripts)
            met = set().union(*(matrix.pairs(cell) for cell in chosen))
            for script, (name, kinds) in itertools.product(scripts, matrix.DISTURBANCES.items()):
                self.assertIn((f"script {script}", name), met)
                self.assertIn((f"script {script}", f"no {name}"), met)
                for launch, spec in matrix.LAUNCHES.items():
                    self.assertEqual((f"launch {launch}", name) in met, spec.kind in kinds)
                    self.assertIn((f"launch {launch}", f"no {name}"), met)
            for one, other in itertools.combinations(matrix.DISTURBANCES, 2):
                for pair in itertools.product((one, f"no {one}"), (other, f"no {other}")):
                    self.assertIn(pair, met)
            self.assertEqual({cell.script for cell in chosen}, set(scripts))
            self.assertLessEqual(len(chosen), 24, "each costs every run of the tests eight seconds")
            self.assertEqual(chosen, matrix.pairwise(scripts))

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

    def test_each_cell_is_cold_and_warm(self):
        cells = set(matrix.cells())
        cold = [cell for cell in cells if "warm" not in cell.disturbance]
        self.assertEqual(len(cells), 2 * len(cold))
        self.assertLessEqual({matrix.Cell("ddp", "elastic", d) for d in ("none", "warm", "two", "two+warm", "node", "warm+node")}, cells)
        self.assertNotIn(matrix.Cell("ddp", "elastic", "two+rank"), cells)

    def test_several_happen_in_one_cell_where_each_makes_sense(self):
        cells = matrix.several(["ddp"])
        self.assertIn(matrix.Cell("ddp", "elastic", "two+ipv6+added+rank+node"), cells)
        self.assertIn(matrix.Cell("ddp", "run", "two+rank"), cells)
        self.assertNotIn(matrix.Cell("ddp", "static", "added+rank"), cells)
        self.assertLessEqual({cell for cell in matrix.cells() if cell.script == "ddp"}, set(cells))

    def test_scripts_know_nothing_of_regroup(self):
        files = sorted(os.listdir(_FOLDER))
        self.assertLessEqual({script.file for script in matrix.SCRIPTS.values()}, set(files))
        for name in files:
            with open(os.path.join(_FOLDER, name), encoding="utf-8") as f:
                self.assertNotIn("regroup", f.read().lower(), name)


if __name__ == "__main__":
    unittest.main(verbosity=2)
