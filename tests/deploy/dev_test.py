"""./dev where something is missing: no apt, no rights, no network, a word it does not know. Only apt and sudo are played."""
import os
import shutil
import subprocess
import tempfile
import unittest

DEV = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "dev")
SYNTAX_ONLY = os.path.join(os.path.dirname(DEV), "deploy", "cmake", "syntax_only", "syntax_only.sh")
TOOLS = "bash cat cmake dirname env grep mkdir nproc readlink realpath tail tee true".split()
NOBODY = 65534


class Dev(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        os.chmod(self.folder, 0o777)
        shutil.copy(DEV, self.folder)
        self.path = os.path.join(self.folder, "bin")
        os.mkdir(self.path)
        for tool in TOOLS:
            if where := shutil.which(tool):
                os.symlink(where, os.path.join(self.path, tool))

    def play(self, name, text):
        file = os.path.join(self.path, name)
        with open(file, "w", encoding="utf-8") as f:
            f.write(f"#!{shutil.which('bash')}\n{text}\n")
        os.chmod(file, 0o755)

    def debian(self, installed=""):
        self.play("dpkg-query", f"for name in {installed or '$NONE'}; do echo $name installed; done")
        self.play("apt-get", f"echo apt-get \"$@\" >>{self.folder}/asked; echo 'E: Could not resolve the name of a mirror' >&2; exit 100")

    def run_dev(self, *words, user=None):
        return subprocess.run([os.path.join(self.folder, "dev"), *words], env={"PATH": self.path, "HOME": self.folder}, user=user,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)

    def test_alone_it_explains(self):
        done = self.run_dev()
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        for word in ("demo", "test", "build", "bench", "fuzz", "lint", "install", "uninstall", "First time here?"):
            self.assertIn(word, done.stdout)
        done = self.run_dev("tset")
        self.assertEqual((done.returncode, done.stderr), (1, "error: there is no command tset\ntry: ./dev\n"))

    def test_fuzz_knows_its_targets(self):
        os.makedirs(os.path.join(self.folder, "tests", "fuzz", "corpus", "store"))
        done = self.run_dev("fuzz", "stroe")
        self.assertEqual((done.returncode, done.stderr), (1, "error: fuzz: there is no target stroe\nthere are: store\n"))
        for words in (["--minutes", "0"], ["--runs", "many"], ["--minutes"]):
            done = self.run_dev("fuzz", *words)
            self.assertEqual((done.returncode, done.stderr),
                             (1, f"error: fuzz: {words[0]} needs a number from 1\ntry: ./dev fuzz --minutes 10\n"))

    def test_two_in_one_checkout_wait_for_each_other(self):
        os.symlink(shutil.which("flock"), os.path.join(self.path, "flock"))
        os.mkfifo(os.path.join(self.folder, "go"))
        os.makedirs(os.path.join(self.folder, "deploy"))
        with open(os.path.join(self.folder, "deploy", "uninstall.sh"), "w", encoding="utf-8") as f:
            f.write("echo here\nread -r word <go\necho $word\n")

        def start(**more):
            return subprocess.Popen([os.path.join(self.folder, "dev"), "uninstall", "--prefix", "/x"], stdin=subprocess.DEVNULL, text=True,
                                    env={"PATH": self.path, "HOME": self.folder, **more}, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        first = start()
        self.assertEqual(first.stdout.readline(), "here\n")
        second = start()
        self.assertEqual(second.stderr.readline(), "another ./dev works in this checkout: waiting until it has ended …\n")
        nested = start(REGROUP_DEV_HAS_TURN="1")  # What the first one starts does not wait for it.
        self.assertEqual(nested.stdout.readline(), "here\n")
        self.assertEqual(self.run_dev().returncode, 0, "the help waits for nobody")
        for program in (nested, first):
            program.terminate()
            program.communicate(timeout=20)
        self.assertEqual(second.stdout.readline(), "here\n")
        with open(os.path.join(self.folder, "go"), "w", encoding="utf-8") as f:
            f.write("done\n")
        self.assertEqual(second.communicate(timeout=20), ("done\n", ""))

    def test_what_it_has_become_meanwhile_is_not_run(self):
        """As by a `git pull` in another terminal."""
        go = os.path.join(self.folder, "go")
        os.mkfifo(go)
        os.unlink(os.path.join(self.path, "cmake"))
        self.play("cmake", f"[[ $1 == --build ]] || read -r word <{go}")
        for name in ("ninja", "touch"):
            self.play(name, "true")
        program = subprocess.Popen([os.path.join(self.folder, "dev"), "build"], stdin=subprocess.DEVNULL, text=True,
                                   env={"PATH": self.path, "HOME": self.folder, "REGROUP_PACKAGES": "present"},
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.assertIn("configuring", program.stdout.readline())
        with open(os.path.join(self.folder, "dev"), "a", encoding="utf-8") as f:
            f.write(f": >{self.folder}/run\n")
        with open(go, "w", encoding="utf-8") as f:
            f.write("done\n")
        said = "".join(program.communicate(timeout=20))
        self.assertTrue(said.endswith("build/release/bin\n"), said)
        self.assertEqual(program.returncode, 0, said)
        self.assertFalse(os.path.exists(os.path.join(self.folder, "run")))

    def test_where_there_is_no_apt(self):
        done = self.run_dev("build")
        self.assertEqual(done.returncode, 1)
        self.assertIn("error: this is not a Debian system", done.stderr)
        self.assertIn("libgrpc++-dev", done.stderr)
        self.assertIn("REGROUP_PACKAGES=present", done.stderr)

    def test_who_may_not_install_is_told_what_root_types(self):
        self.debian("g++ cmake")
        done = self.run_dev("build", user=NOBODY if os.geteuid() == 0 else None)
        self.assertEqual(done.returncode, 1)
        self.assertIn("and this user may not install them. As root:\n  apt-get install ninja-build ccache", done.stderr)
        self.assertFalse(os.path.exists(os.path.join(self.folder, "asked")))

    def test_without_network_it_says_what_it_tried(self):
        self.debian("g++ cmake")
        self.play("sudo", "[[ $1 != -n ]] || shift; exec \"$@\"")
        done = self.run_dev("build")
        self.assertEqual(done.returncode, 1)
        command = "env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends ninja-build ccache"
        self.assertLess(done.stdout.index(command), done.stdout.index("installing …"), "the command comes first")
        self.assertIn("error: the packages could not be installed (no network?)", done.stderr)
        self.assertIn("E: Could not resolve the name of a mirror", done.stderr)
        with open(os.path.join(self.folder, "build", "log", "apt-install.log"), encoding="utf-8") as log:
            self.assertIn("Could not resolve", log.read())

    def test_packages_that_are_there_are_not_asked_for(self):
        names = subprocess.run(["bash", "-c", f"source <(grep -v '^main ' {DEV} | sed '/^cd /d'); echo ${{BUILD_PACKAGES[@]}}"],
                               capture_output=True, text=True, check=True).stdout.strip()
        self.debian(names)
        self.run_dev("build")
        self.assertFalse(os.path.exists(os.path.join(self.folder, "asked")))

    def test_clang_reads_the_benchmarks_too(self):
        os.unlink(os.path.join(self.path, "cmake"))
        self.play("cmake", "mkdir -p build/$2")
        self.play("ninja", "echo \"$@\" >>asked")
        self.play("touch", "true")
        self.play("python3", "[[ $* != *--needs-torch* ]]")
        done = subprocess.run([os.path.join(self.folder, "dev"), "test"], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              env={"PATH": self.path, "HOME": self.folder, "REGROUP_PACKAGES": "present"}, timeout=60, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(os.path.join(self.folder, "asked"), encoding="utf-8") as f:
            asked = [line.split() for line in f]
        self.assertEqual([(words[1], words[4:]) for words in asked],
                         [("build/dev", ["all"]), ("build/release", ["all"]), ("build/clang", ["all", "benches"])])


class SyntaxOnly(unittest.TestCase):
    """What stands between the compiler that only reads and Ninja, which wants to see a file and an exit code."""

    def read(self, *words):
        with tempfile.TemporaryDirectory() as folder:
            made = os.path.join(folder, "made.o")
            done = subprocess.run([SYNTAX_ONLY, *words, "-o", made], capture_output=True, timeout=60, check=False)
            return done.returncode, os.path.exists(made)

    def test_a_file_is_made_only_where_nothing_was_wrong(self):
        self.assertEqual(self.read("sh", "-c", "exit 0", "sh"), (0, True))
        self.assertEqual(self.read("sh", "-c", "exit 3", "sh"), (3, False))
        self.assertEqual(self.read("sh", "-c", "kill -9 $$", "sh"), (137, False))

    def test_a_compiler_without_a_file_to_make_ends(self):
        for shell in ("sh", "bash"):
            done = subprocess.run([shell, SYNTAX_ONLY, "true"], capture_output=True, timeout=10, check=False)
            self.assertNotEqual(done.returncode, 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
