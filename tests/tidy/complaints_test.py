"""Every test that tests/compat/COMPLAINTS.md names exists, and every row names one."""
import os
import re
import sys
import unittest

_TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
for _folder in ("scenario", "compat"):
    sys.path.insert(0, os.path.join(_TESTS, _folder))
import matrix  # noqa: E402 (the path has to come first)
import rules_test  # noqa: E402

_TUTORIAL = re.compile(r"^    def (test_\w+)", re.MULTILINE)


def tests():
    """Names of tests by the word for their folder."""
    found = {word: rules_test.tests_in(folder) for word, folder in rules_test.FOLDERS.items()}
    text = rules_test.read(os.path.join(_TESTS, "compat", "tutorials.py"))
    found["compat"] |= {f"Tutorials.{name}" for name in _TUTORIAL.findall(text)}
    found["compat"] |= {"Matrix.test_" + "_".join(cell) for cell in matrix.cells()}
    return found


class Complaints(unittest.TestCase):
    def setUp(self):
        self.text = rules_test.read(os.path.join(_TESTS, "compat", "COMPLAINTS.md"))

    def test_every_named_test_exists(self):
        self.assertEqual(rules_test.findings(self.text, tests()), [])
        self.assertGreater(len(list(rules_test.rows_of(self.text))), 20)

    def test_each_thread_has_one_row(self):
        threads = [thread for cell in re.findall(r"^\| ([^|]*#[^|]*) \|", self.text, re.MULTILINE) for thread in full_names(cell)]
        self.assertEqual(sorted(threads), sorted(set(threads)))

    def test_what_is_missing_is_found(self):
        known = tests()
        self.assertIn("Matrix.test_ddp_elastic_node", known["compat"])
        row = "| a#1 | it broke | it does not | {} |\n"
        self.assertEqual(rules_test.findings(row.format("compat `Matrix.test_ddp_elastic_node`"), known), [])
        for cell in ("compat `Matrix.test_ddp_standalone_node`", "e2e `Life.test_nothing`", "none"):
            self.assertEqual(len(rules_test.findings(row.format(cell), known)), 1, cell)


def full_names(cell):
    """["pytorch#1", "pytorch#2"] of "pytorch#1, #2"."""
    repository, names = "", []
    for word in cell.split(", "):
        before, _, number = word.partition("#")
        repository = before or repository
        names.append(f"{repository}#{number}")
    return names


if __name__ == "__main__":
    unittest.main(verbosity=2)
