"""README.md says what is true: its shell blocks run, its job file is accepted, the files that it names exist."""
import json
import os
import re
import shutil
import sys

import regroup_e2e as e2e

_ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", ".."))
_TRAIN = """import os, time
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], flush=True)
time.sleep(0.2)
"""


def blocks(language):
    with open(os.path.join(_ROOT, "README.md"), encoding="utf-8") as f:
        return re.findall(rf"^```{language}\n(.*?)^```$", f.read(), re.M | re.S)


class Readme(e2e.TestCase):
    def setUp(self):
        super().setUp()
        self.port = e2e.free_port()
        self.fx.env.update(REGROUP_STATE_DIR=self.fx.path("state", "here"), REGROUP_LISTEN=f"127.0.0.1:{self.port}")
        with open(self.fx.path("work", "train.py"), "w", encoding="utf-8") as f:
            f.write(_TRAIN)

    def execute(self, script):
        """As a person would type it; what is left in the background is ended."""
        script = script.replace("localhost", f"localhost:{self.port}")
        shell = self.fx.start("bash", "-euo", "pipefail", "-c", f'trap \'kill $(jobs -p) 2>/dev/null || true; wait\' EXIT\n{script}')
        self.assertEqual(shell.wait(60), 0, f"{script}\n{shell}\n{self.fx.describe()}")
        return shell

    def tree(self):
        """The working folder as a clone in which everything is built: ./dev with this build's programs."""
        work = self.fx.path("work")
        for name in ("dev", "CMakePresets.json"):
            shutil.copy2(os.path.join(_ROOT, name), work)
        for name in ("deploy", ".ci"):
            shutil.copytree(os.path.join(_ROOT, name), os.path.join(work, name))
        os.makedirs(os.path.join(work, "build", "release"))
        os.symlink(os.path.dirname(e2e.binary("regroup")), os.path.join(work, "build", "release", "bin"))
        self.script(os.path.join("build", "release", "build.ninja"), "")
        self.script(os.path.join("tools", "ninja"), "echo 'ninja: no work to do.'")
        self.fx.env["PATH"] = os.path.join(work, "tools") + ":" + self.fx.env["PATH"]
        if "REGROUP_PACKAGES" in os.environ:  # Not a Debian system.
            self.fx.env["REGROUP_PACKAGES"] = os.environ["REGROUP_PACKAGES"]

    def script(self, path, text):
        path = self.fx.path("work", path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as f:
            f.write(f"#!/bin/sh\n{text}\n")
        os.chmod(path, 0o755)

    def test_dev_commands_are_known(self):
        shown = self.fx.start(os.path.join(_ROOT, "dev"))
        self.assertEqual(shown.wait(), 0, shown)
        usage = shown.stdout
        seen = re.findall(r"^\./dev (\S+)", "".join(blocks("bash")), re.M)
        self.assertEqual(seen[:2], ["demo", "test"], "the first two commands of the README")
        for command in seen:
            self.assertRegex(usage, rf"(?m)^  {command} ")

    def test_shell_blocks_run(self):
        self.tree()
        prefix, executed = self.fx.path("home", "prefix"), 0
        for block in blocks("bash"):
            # What takes minutes is looked at below. What is not here can't be raced.
            left_out = r"\./dev (demo|test)$" + ("" if shutil.which("torchrun") else "|torchrun ")
            lines = [line for line in block.splitlines() if not re.match(left_out, line)]
            if not lines:
                continue
            if lines == ["./dev install"]:
                lines = [f"./dev install --prefix {prefix}"]
                self.fx.env["PATH"] = f"{prefix}/bin:" + self.fx.env["PATH"]  # As it then says.
            shown = self.execute("\n".join(lines))
            if "logs last --tail" in block:  # Of the two nodes only; the run before has another number, and is found by it.
                self.assertEqual(len(shown.stdout.split("regroup logs train-3\n")[1].splitlines()), 2, shown)
                self.execute("regroup explain train-2\nregroup logs train-2")
            executed += 1
        self.assertGreaterEqual(executed, 5)
        self.assertTrue(os.path.exists(f"{prefix}/bin/regroup-torchrun"), "the README installs")
        self.execute(f"./dev uninstall --prefix {prefix}")
        self.assertFalse(os.path.exists(prefix), "something stays")

    def test_the_two_commands_are_what_tests_and_integration_run(self):
        self.tree()
        os.makedirs(self.fx.path("work", "tests", "demo"))
        with open(self.fx.path("work", "tests", "demo", "demo.py"), "w", encoding="utf-8") as f:
            f.write("import os, sys\nprint(os.path.abspath(__file__), os.environ['REGROUP_BIN_DIR'], *sys.argv[1:])\n")
        run = self.execute("./dev demo --fast --seed 7").stdout.splitlines()[-1].split()
        self.assertEqual([os.path.relpath(run[0], self.fx.work), *run[2:]], ["tests/demo/demo.py", "--fast", "--seed", "7"])
        with open(os.path.join(_ROOT, "tests", "demo", "demo_test.py"), encoding="utf-8") as f:
            self.assertIn('DEMO = os.path.join(_HERE, "demo.py")', f.read())  # Beside itself: in tests/demo.
        self.script("dev", 'echo "CI=$CI ./${0##*/} $*"')
        (command,) = [block for block in blocks("bash") if block.startswith("./dev test")]
        self.assertEqual(self.execute(".ci/run").stdout.strip(), f"CI=true {command.strip()}")

    def test_script_runs_with_and_without_regroup(self):
        (text,) = blocks("python")
        with open(self.fx.path("work", "script.py"), "w", encoding="utf-8") as f:
            f.write(text)
        self.fx.env.update(PYTHONPATH=os.path.join(_ROOT, "worker", "python"), PYTHONDONTWRITEBYTECODE="1", PYTHONWARNINGS="ignore")
        for launcher in ([sys.executable], [e2e.binary("regroup"), "run"]):
            run = self.fx.start(*launcher, "script.py", env={"PYTHON_EXEC": sys.executable})
            self.assertEqual(run.wait(), 0, run)
            with open(self.fx.path("work", "step.json"), encoding="utf-8") as f:
                self.assertEqual(f.read(), "100")
            os.unlink(self.fx.path("work", "step.json"))
        job = json.loads(self.fx.run("ps", "-a", "--json").stdout)["jobs"][0]
        self.assertEqual((job["step"], job["committed_step"]), (100, 100))

    def test_job_file_is_accepted(self):
        (text,) = blocks("yaml")
        with open(self.fx.path("work", "job.yaml"), "w", encoding="utf-8") as f:
            f.write(text)
        shown = self.fx.run("submit", "--dry-run", "job.yaml")
        self.assertEqual(shown.code, 0, shown)
        self.assertIn("name: gpt", shown.stdout)

    def test_files_exist(self):
        with open(os.path.join(_ROOT, "README.md"), encoding="utf-8") as f:
            text = f.read()
        named = re.findall(r"^\d+\. `([^`]+)`", text, re.M)
        self.assertEqual(len(named), 10, "ten files, in order")
        for path in named + re.findall(r"\]\(([^)#:]+)\)", text):
            self.assertTrue(os.path.exists(os.path.join(_ROOT, path)), path)


if __name__ == "__main__":
    e2e.main()
