"""@regroup.record: the error file has the shape that torchrun's has, and nothing else changes."""
import asyncio
import faulthandler
import json
import os
import subprocess
import sys
import time
import unittest

from fake_agent import WorkerTest, environment

import regroup


class Record(WorkerTest):
    def setUp(self):
        super().setUp()
        self.file = os.environ["TORCHELASTIC_ERROR_FILE"] = self.path("attempt", "error.json")

    def written(self):
        with open(self.file, encoding="utf-8") as f:
            return json.load(f)

    def test_shape(self):
        @regroup.record
        def main(a, *, b):
            raise KeyError("c", a, b)

        with self.assertRaises(KeyError):
            main(1, b=2)
        content = self.written()
        self.assertEqual(list(content), ["message"])
        self.assertEqual(set(content["message"]), {"message", "extraInfo"})
        self.assertEqual(content["message"]["message"], "KeyError: ('c', 1, 2)")
        extra = content["message"]["extraInfo"]
        self.assertEqual(set(extra), {"py_callstack", "timestamp"})
        self.assertRegex(extra["py_callstack"], r"(?s)^Traceback \(most recent call last\):.*in main\n.*KeyError: \('c', 1, 2\)\n$")
        self.assertRegex(extra["timestamp"], r"^\d+$")
        self.assertAlmostEqual(int(extra["timestamp"]), time.time(), delta=60)
        self.assertTrue(faulthandler.is_enabled())
        self.assertEqual(os.listdir(os.path.dirname(self.file)), ["error.json"])

    def test_results_names_and_words_stay(self):
        @regroup.record
        def main(a: int = 3) -> int:
            """Words."""
            return a + 1

        self.assertEqual((main(), main(a=1), main.__name__, main.__doc__), (4, 2, "main", "Words."))
        self.assertFalse(os.path.exists(self.file))

    def test_exits_and_interrupts_are_no_errors(self):
        for kind in (SystemExit, KeyboardInterrupt):
            @regroup.record
            def main(kind=kind):
                raise kind(3)
            with self.assertRaises(kind):
                main()
        self.assertFalse(os.path.exists(self.file))

    def test_nested_the_inner_one_writes_and_a_later_error_replaces_it(self):
        @regroup.record
        def inner():
            raise ValueError("first")

        @regroup.record
        def outer():
            try:
                inner()
            finally:
                os.rename(self.file, self.file + ".first")

        @regroup.record
        def translating():
            try:
                inner()
            except ValueError as error:
                raise OSError("second") from error

        with self.assertRaises(ValueError):
            outer()
        self.assertEqual(os.listdir(os.path.dirname(self.file)), ["error.json.first"], "written once")
        with self.assertRaises(OSError):
            translating()
        self.assertEqual(self.written()["message"]["message"], "OSError: second")
        self.assertIn("ValueError: first", self.written()["message"]["extraInfo"]["py_callstack"])

    def test_coroutines(self):
        @regroup.record
        async def main():
            await asyncio.sleep(0)
            raise ValueError("late")

        with self.assertRaises(ValueError):
            asyncio.run(main())
        self.assertEqual(self.written()["message"]["message"], "ValueError: late")

    def test_hostile_exceptions(self):
        class Mute(Exception):
            __slots__ = ()

            def __str__(self):
                raise RuntimeError("not even that")

        def fail(error):
            raise error
        main = regroup.record(fail)
        for error, said in ((Mute(), "Mute: <exception str() failed>"), (ValueError("\ud800\0é"), "ValueError: \ud800\0é")):
            with self.assertRaises(type(error)):
                main(error)
            self.assertEqual(self.written()["message"]["message"], said)
        with self.assertRaises(ValueError):
            main(ValueError("\U0001f600" * 1_000_000 + "the end"))
        self.assertLess(os.path.getsize(self.file), 1 << 20)
        self.assertTrue(self.written()["message"]["message"].endswith("the end"))

    def test_a_file_that_can_not_be_written_hides_nothing(self):
        os.environ["TORCHELASTIC_ERROR_FILE"] = "/proc/nowhere/error.json"

        @regroup.record
        def main():
            raise ValueError("mine")
        with self.assertRaisesRegex(ValueError, "mine"):
            main()

    def test_without_the_variable_it_only_passes_on(self):
        for value in ("", None):
            os.environ.pop("TORCHELASTIC_ERROR_FILE", None)
            if value is not None:
                os.environ["TORCHELASTIC_ERROR_FILE"] = value
            with self.assertRaises(ZeroDivisionError):
                regroup.record(lambda: 1 // 0)()

    def test_a_crash_shows_where_python_was(self):
        code = "import regroup, os, signal\n@regroup.record\ndef main(): os.kill(os.getpid(), signal.SIGSEGV)\nmain()"
        done = subprocess.run([sys.executable, "-c", code], env=environment(self.path("none.sock")), stderr=subprocess.PIPE, text=True)
        self.assertEqual(done.returncode, -11)
        self.assertIn("Segmentation fault", done.stderr)
        self.assertIn("in main", done.stderr)


if __name__ == "__main__":
    unittest.main()
