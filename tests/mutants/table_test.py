"""The table of mistakes names lines that are there."""
import pathlib
import unittest

import table

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Table(unittest.TestCase):
    def test_each_stands_in_one_place(self):
        for file, right, wrong in table.MUTANTS:
            self.assertEqual((ROOT / file).read_text().count(right), 1, (file, right))
            self.assertNotEqual(right, wrong)

    def test_there_are_enough_and_no_two_are_the_same(self):
        self.assertGreaterEqual(len(table.MUTANTS), 60)
        self.assertEqual(len(set(table.MUTANTS)), len(table.MUTANTS))


if __name__ == "__main__":
    unittest.main()
