"""./dev install writes what it says, over an older version too; ./dev uninstall leaves the folder as it was."""
import os
import subprocess

import regroup_e2e as e2e

_DEPLOY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "deploy")


class Install(e2e.TestCase):
    def setUp(self):
        super().setUp()
        self.prefix = self.fx.path("work", "a prefix")
        os.makedirs(os.path.join(self.prefix, "bin"))
        self.write("bin/neighbour")

    def write(self, path):
        with open(os.path.join(self.prefix, path), "w", encoding="utf-8") as f:
            f.write("not Regroup's")

    def script(self, name, *arguments, code=0):
        program = self.fx.start("bash", os.path.join(_DEPLOY, name), *arguments)
        self.assertEqual(program.wait(60), code, program)
        return program

    def install(self):
        return self.script("install.sh", os.path.dirname(e2e.binary("regroup")), self.prefix)

    def content(self):
        return sorted(os.path.relpath(os.path.join(folder, name), self.prefix)
                      for folder, folders, files in os.walk(self.prefix) for name in folders + files)

    def test_install_and_uninstall(self):
        before = self.content()
        self.assertIn("export PATH", self.install().stdout)
        for path in ("bin/regroup", "bin/regroup-agent", "bin/regroup-shim", "bin/regroup-worker", "bin/regroup-torchrun",
                     "share/man/man1/regroup.1", "share/man/man1/regroup-run.1", "share/man/man1/regroup-worker.1",
                     "share/man/man1/regroup-worker-train.1", "share/man/man1/regroup-worker-generate.1",
                     "share/man/man1/regroup-worker-plan.1", "share/man/man1/regroup-worker-check-gpu.1", "share/man/man1/regroup-plan.1",
                     "share/zsh/site-functions/_regroup",
                     "share/bash-completion/completions/regroup", "share/fish/vendor_completions.d/regroup.fish"):
            self.assertTrue(os.path.getsize(os.path.join(self.prefix, path)) > 0, path)
        shown = subprocess.run([os.path.join(self.prefix, "bin/regroup"), "version"], env=self.fx.env, text=True,
                               capture_output=True, check=True).stdout
        self.assertIn("regroup", shown)
        self.assertIn("removed", self.script("uninstall.sh", self.prefix).stdout)
        self.assertEqual(self.content(), before)

    def test_the_installed_programs_find_each_other(self):
        self.install()
        run = self.fx.start(os.path.join(self.prefix, "bin/regroup"), "run", "--no-python", "sh", "-c", "exit 7")
        self.assertEqual(run.wait(), 7, run)
        self.assertRegex(self.script("uninstall.sh", self.prefix).stdout, r"jobs and logs remain in /\S+/regroup\n")

    def test_over_an_older_version(self):
        before = self.content()
        self.install()
        self.write("bin/regroup-old")
        manifest = os.path.join(self.prefix, "share/regroup/manifest")
        with open(manifest, "a", encoding="utf-8") as f:
            f.write(f"file {self.prefix}/bin/regroup-old\n")
        self.install()
        self.assertNotIn("bin/regroup-old", self.content())
        self.write("share/man/man1/other.1")
        self.script("uninstall.sh", self.prefix)
        self.assertEqual(self.content(), sorted(before + ["share", "share/man", "share/man/man1",
                                                          "share/man/man1/other.1"]))

    def test_nothing_installed(self):
        program = self.script("uninstall.sh", self.prefix, code=1)
        self.assertIn("nothing is installed below", program.stderr)

    def test_nothing_built(self):
        program = self.script("install.sh", self.fx.work, self.prefix, code=1)
        self.assertIn("try: ./dev build", program.stderr)
        self.assertEqual(self.content(), ["bin", "bin/neighbour"])


if __name__ == "__main__":
    e2e.main()
