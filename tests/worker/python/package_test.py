"""The wheel: what is in it, that it installs and works, and that its types are in order."""
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile

from fake_agent import PACKAGE

ROOT = os.path.dirname(os.path.dirname(PACKAGE))


def read(*path):
    with open(os.path.join(ROOT, *path), encoding="utf-8") as f:
        return f.read()


class Package(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.wheels = [cls.build(os.path.join(cls.folder, name)) for name in "ab"]

    @classmethod
    def build(cls, folder):
        done = subprocess.run(["bash", os.path.join(ROOT, "deploy", "package.sh"), folder], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": cls.folder})
        if done.returncode != 0:
            raise AssertionError(done.stderr)
        assert glob.glob(folder + "/*") == [done.stdout.strip()], done
        return done.stdout.strip()

    def test_contents(self):
        with zipfile.ZipFile(self.wheels[0]) as wheel:
            names = wheel.namelist()
            metadata = wheel.read(next(n for n in names if n.endswith("/METADATA"))).decode()
        modules = {"regroup/" + os.path.basename(path) for path in glob.glob(os.path.join(PACKAGE, "regroup", "*.py"))}
        self.assertEqual({n for n in names if ".dist-info/" not in n}, modules | {"regroup/py.typed"})
        self.assertTrue(any(n.endswith("LICENSE") for n in names), names)
        self.assertNotIn("Requires-Dist", metadata)
        self.assertIn("Requires-Python: >=3.8", metadata)
        self.assertRegex(os.path.basename(self.wheels[0]), r"-py3-none-any\.whl$")

    def test_one_version(self):
        project = re.search(r"project\(regroup VERSION (\S+)", read("CMakeLists.txt")).group(1)
        self.assertEqual(re.search(r'^version = "(.*)"', read("worker", "python", "pyproject.toml"), re.M).group(1), project)
        self.assertEqual(re.search(r'^__version__ = "(.*)"', read("worker", "python", "regroup", "__init__.py"), re.M).group(1), project)
        self.assertIn(f"regroup-{project}-", self.wheels[0])

    def test_the_same_sources_give_the_same_bytes(self):
        first, second = (open(path, "rb") for path in self.wheels)
        with first, second:
            self.assertEqual(first.read(), second.read())

    def test_it_works_from_the_wheel(self):
        code = f"import sys; sys.path.insert(0, {self.wheels[0]!r}); import regroup; print(regroup.context().world_size, regroup.__file__)"
        done = subprocess.run([sys.executable, "-I", "-c", code], stdout=subprocess.PIPE, text=True, check=True)
        self.assertEqual(done.stdout, f"1 {self.wheels[0]}/regroup/__init__.py\n")

    def test_every_public_name_is_typed_and_described(self):
        code = f"""
import sys; sys.path.insert(0, {PACKAGE!r})
import inspect, regroup
for module in (regroup, regroup.checkpoint, regroup.callbacks):
    for name in module.__all__:
        value = getattr(module, name)
        assert inspect.getdoc(value), name
        if inspect.isfunction(value):
            signature = inspect.signature(value)
            assert signature.return_annotation is not signature.empty, name
            for parameter in signature.parameters.values():
                assert parameter.annotation is not parameter.empty, (name, parameter)
"""
        subprocess.run([sys.executable, "-B", "-c", code], check=True)


if __name__ == "__main__":
    unittest.main()
