"""What `./dev bench` calls missed, and what its exit code is, over rows that measure nothing."""
import contextlib
import io
import json
import os
import sys
import unittest
from unittest import mock

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import bench  # noqa: E402
import row as row_module  # noqa: E402
import worker_rows  # noqa: E402
from row import Row, Unavailable  # noqa: E402


def row(name, samples=(), ship=2.0, error=None, **options):
    def measure(_):
        if error:
            raise error
        return list(samples), "a set-up"
    return Row(name, "s", ship, ship / 2, measure, **options)


GOOD = row("good", [1.0, 1.5, 9.0])


class Check(unittest.TestCase):
    def bench(self, *rows, check=True):
        """(exit code, names that are called missed, the line of each row)."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = bench.main(["--check"] if check else [], list(rows))
        missed = err.getvalue().removeprefix("missed: ").strip()
        return code, missed, [json.loads(line) for line in out.getvalue().splitlines()]

    def test_a_row_that_reaches_its_target(self):
        code, missed, (line,) = self.bench(GOOD)
        self.assertEqual((code, missed, line["ok"]), (0, "", True))
        self.assertEqual((line["n"], line["p50"], line["p99"], line["max"]), (3, 1.5, 9.0, 9.0))

    def test_a_row_that_misses_it(self):
        for bad in (row("bad", [3.0]), row("bad", [1.0], higher_is_better=True), row("bad", [1.0, 1.0, 3.0], judged="p99"),
                    row("bad", error=RuntimeError("broke"))):
            self.assertEqual(self.bench(GOOD, bad, GOOD)[:2], (1, "bad"))
            self.assertEqual(self.bench(GOOD, bad, check=False)[:2], (0, "bad"))

    def test_a_row_that_can_not_be_measured_has_not_reached_it(self):
        absent = row("absent", error=Unavailable("no PyTorch"))
        code, missed, lines = self.bench(GOOD, absent, GOOD)
        self.assertEqual((code, missed, lines[1]), (1, "absent", {"row": "absent", "skipped": "no PyTorch"}))
        self.assertEqual(self.bench(GOOD, absent, check=False)[0], 0)

    def test_without_pytorch_the_race_is_missed_and_an_absent_gloo_is_not(self):
        with mock.patch.dict(os.environ):
            os.environ.pop("REGROUP_TEST_PYTHON", None)
            code, missed, _ = self.bench(*[r for r in worker_rows.ROWS if "PyTorch" in r.name])
        self.assertEqual((code, missed), (1, "train step of 124 M against PyTorch, train step of 11 M against PyTorch"))
        alone = [{"name": "allreduce_1KiB", "samples": [1e-6], "setup": "2 ranks"}]
        with mock.patch.object(worker_rows, "json_lines", return_value=alone), mock.patch("os.path.exists", return_value=True):
            code, missed, (line,) = self.bench(*[r for r in worker_rows.ROWS if "1 KiB" in r.name])
        self.assertEqual((code, missed), (0, ""))
        self.assertIn("no Gloo here", line["setup"])

    def test_the_step_must_be_twice_as_fast_only_where_the_peer_is_held_back(self):
        for vendor, flags, held in (("AuthenticAMD", "fma avx512f", True), ("AuthenticAMD", "fma avx2", False),
                                    ("GenuineIntel", "avx2 avx512f", False)):
            with mock.patch.object(worker_rows, "cpu_facts", return_value={"vendor_id": vendor, "flags": flags}):
                self.assertEqual(worker_rows.peers_kernels_are_held_back(), held, (vendor, flags))
        with mock.patch.object(worker_rows, "cpu_facts", return_value={}):
            self.assertFalse(worker_rows.peers_kernels_are_held_back())

    def test_a_row_names_the_cpu_and_the_most_of_its_vectors(self):
        named = {"model name": "EPYC 9", "flags": "sse2 avx2 avx512f avx512_bf16"}
        with mock.patch.object(row_module, "cpu_facts", return_value=named):
            self.assertIn("EPYC 9 avx512_bf16", self.bench(GOOD)[2][0]["setup"])

    def test_both_sides_of_a_train_step_have_two_threads_and_the_same_shape(self):
        """As the row's set-up says."""
        started = []

        def lines(command, environment=None, timeout=600):
            started.append(command)
            return [{"p50": 100.0, "losses": [5.0]}]
        for race in [r for r in worker_rows.ROWS if "PyTorch" in r.name]:
            started.clear()
            with mock.patch.object(worker_rows, "json_lines", lines), mock.patch.dict(os.environ, REGROUP_TEST_PYTHON="python3"):
                _, setup = race.measure("/bin")
            self.assertIn("2 threads", setup)
            self.assertTrue(any("torch_step.py" in word for command in started for word in command))
            shapes = set()
            for command in started:
                self.assertEqual(command[command.index("--threads") + 1], "2", command)
                shapes.add(frozenset((flag, value) for flag, value in zip(command, command[1:]) if flag[:2] == "--" and value[0].isdigit()
                                     and flag != "--warmup"))
            self.assertEqual(len(shapes), 1, shapes)
            if "124 M" in race.name:
                self.assertLessEqual({("--layers", "12"), ("--width", "768"), ("--vocabulary", "50257"), ("--time", "64")}, *shapes)


if __name__ == "__main__":
    unittest.main(verbosity=2)
