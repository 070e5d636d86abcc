"""Every test that proto/RULES.md names exists, every rule names one, and each scenario has a test of its name."""
import ast
import os
import re
import unittest

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FOLDERS = {
    "scenario": "tests/scenario",
    "core": "tests/launcher/coordinator/core",
    "shell": "tests/launcher/coordinator/shell",
    "agent": "tests/agent",
    "cli": "tests/launcher/cli",
    "io": "tests/common/io",
    "rpc": "tests/common/rpc",
    "config": "tests/common/config",
    "report": "tests/common/report",
    "tidy": "tests/tidy",
    "hostile": "tests/hostile",
    "e2e": "tests/e2e",
    "compat": "tests/compat",
}
_SCENARIOS = 15
_CPP_TEST = re.compile(r"^\s*(?:TYPED_)?TEST(?:_F|_P)?\(\s*(\w+)\s*,\s*(\w+)\s*\)", re.MULTILINE)
_TOKEN = re.compile(r"`([^`]+)`|\b(" + "|".join(FOLDERS) + r")\b")


def read(path):
    with open(path, encoding="utf-8") as f:
        return f.read()


def tests_in(folder):
    """The names of all tests below a folder, as `Suite.Test`."""
    names = set()
    for base, _, files in os.walk(os.path.join(_ROOT, folder)):
        for name in files:
            path = os.path.join(base, name)
            if name.endswith("_test.cc") or name.endswith("_contract.h"):
                names.update(".".join(found) for found in _CPP_TEST.findall(read(path)))
            elif name.endswith("_test.py"):
                for node in ast.parse(read(path)).body:
                    if isinstance(node, ast.ClassDef):
                        names.update(f"{node.name}.{part.name}" for part in node.body
                                     if isinstance(part, ast.FunctionDef) and part.name.startswith("test"))
    return names


def rows_of(text):
    """(first cell, the last one, which names its tests) of every row of every table."""
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("| ") and len(cells) > 1 and cells[0] not in ("rule", "scenario", "thread", "---"):
            yield cells[0], cells[-1]


def findings(text, tests):
    """What is wrong with a page of rules. `tests`: names by the word for their folder."""
    wrong = []
    for rule, cell in rows_of(text):
        where, named = None, 0
        for name, word in _TOKEN.findall(cell):
            if word:
                where = word
                continue
            named += 1
            if where is None:
                wrong.append(f"{rule}: {name} stands behind no folder")
            elif name.endswith(".*"):
                if not any(test.startswith(name[:-1]) for test in tests[where]):
                    wrong.append(f"{rule}: no suite {name} in {FOLDERS[where]}")
            elif name not in tests[where]:
                wrong.append(f"{rule}: no test {name} in {FOLDERS[where]}")
        if named == 0:
            wrong.append(f"{rule}: no test is named")
    return wrong


class Rules(unittest.TestCase):
    def setUp(self):
        self.text = read(os.path.join(_ROOT, "proto", "RULES.md"))

    def test_every_named_test_exists(self):
        tests = {word: tests_in(folder) for word, folder in FOLDERS.items()}
        self.assertEqual(findings(self.text, tests), [])
        self.assertGreater(len(list(rows_of(self.text))), 60)

    def test_each_scenario_has_a_test_of_its_name(self):
        found = re.findall(r"^\| (\d+)\. (\w+) \| scenario `\w+\.(\w+)` \|$", self.text, re.MULTILINE)
        self.assertEqual([int(number) for number, _, _ in found], list(range(1, _SCENARIOS + 1)))
        self.assertEqual([title for _, title, _ in found], [test for _, _, test in found])

    def test_the_checker_knows_each_invariant(self):
        checker = "".join(read(os.path.join(_ROOT, "tests", "sim", name)) for name in ("checker.cc", "policies.cc", "truths.cc"))
        numbers = [number for group in re.findall(r"`Random\.LivesKeepTheInvariants` \(([\d, ]+)\)", self.text)
                   for number in group.split(", ")]
        self.assertEqual([n for n in numbers if not re.search(rf'"{n}: ', checker)], [])
        self.assertGreater(len(set(numbers)), 12)

    def test_what_is_missing_is_found(self):
        tests = {word: set() for word in FOLDERS}
        tests["core"] = {"Jobs.one"}
        page = "| rule | test |\n| --- | --- |\n| r | {} |\n"
        self.assertEqual(findings(page.format("core `Jobs.one`, `Jobs.*`"), tests), [])
        for cell, said in (("core `Jobs.two`", "no test Jobs.two"), ("scenario `Jobs.one`", "no test Jobs.one"),
                           ("core `Nodes.*`", "no suite Nodes.*"), ("`Jobs.one`", "behind no folder"),
                           ("core", "no test is named")):
            wrong = findings(page.format(cell), tests)
            self.assertEqual(len(wrong), 1, cell)
            self.assertIn(said, wrong[0])


if __name__ == "__main__":
    unittest.main()
