"""Runs PyTorch's own tests of its launcher (a checkout's test_run.py) against another launcher.

    python pytorchs_own.py FOLDER LAUNCHER

Left out are those that replace parts of torchrun's inside by mocks: they are about that inside.
"""
import importlib.util
import os
import subprocess
import sys
import unittest

import torch.distributed.run
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

MISUSE = 125


def main():
    folder, launcher = sys.argv[1:]

    def launch(args=None):
        done = subprocess.run([launcher, *(args or [])], stderr=subprocess.PIPE, text=True, check=False)
        sys.stderr.write(done.stderr)
        if done.returncode == MISUSE:
            raise ValueError(done.stderr)
        if done.returncode != 0:
            raise ChildFailedError(launcher, {})

    torch.distributed.run.main = launch
    sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location("test_run", os.path.join(folder, "test_run.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    suite = unittest.TestSuite()
    for test in unittest.defaultTestLoader.loadTestsFromTestCase(module.ElasticLaunchTest):
        if not hasattr(getattr(test, test._testMethodName), "patchings"):
            suite.addTest(test)
    print(f"{suite.countTestCases()} tests of {folder}")
    sys.exit(not (suite.countTestCases() and unittest.TextTestRunner(verbosity=2).run(suite).wasSuccessful()))


if __name__ == "__main__":
    main()
