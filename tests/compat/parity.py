"""regroup-torchrun beside torchrun: every flag of `torchrun --help` given to both, and PyTorch's own tests of its launcher.

    parity.py     two lines that have most flags between them (in `./dev test`)

`./dev compat` has a line for each flag. The workers of both launchers must find the same: every variable, all arguments, the
working directory; and both must end alike.
"""
import json
import os
import re
import socket
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
import regroup_e2e as e2e  # noqa: E402 (the path has to come first)

SHOW = ("import json, os, sys\n"
        "with open('seen.' + os.environ['RANK'], 'w') as f:\n"
        "    json.dump([dict(os.environ), sys.argv, os.getcwd()], f)\n")
# Flags before the script, by the one that is tried; {port} is free. None: it says, and starts nothing.
FLAGS = {
    "nnodes": ["--nnodes=1:1"],
    "nproc-per-node": ["--nproc_per_node=2"],
    "rdzv-backend": ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:{port}"],
    "rdzv-endpoint": ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"],
    "rdzv-id": ["--rdzv-id=Some_1", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:{port}"],
    "rdzv-conf": ["--rdzv-conf=timeout=9", "--master-port={port}"],
    "standalone": ["--standalone"],
    "max-restarts": ["--max-restarts=3"],
    "monitor-interval": ["--monitor-interval=0.5"],
    "start-method": ["--start-method=fork"],
    "event-log-handler": ["--event-log-handler=console"],
    "role": ["--role=trainer"],
    "module": ["--module"],
    "no-python": ["--no-python"],
    "run-path": ["--run-path"],
    "log-dir": ["--log-dir=logs"],
    "redirects": ["--redirects=3"],
    "tee": ["--tee=0:1"],
    "log-line-prefix-template": ["--log-line-prefix-template=x", "--tee=3"],
    "local-ranks-filter": ["--local-ranks-filter=0"],
    "duplicate-stdout-filters": ["--duplicate-stdout-filters=a", "--log-dir=logs"],
    "duplicate-stderr-filters": ["--duplicate-stderr-filters=a", "--log-dir=logs"],
    "node-rank": ["--node-rank=0", "--master-port={port}"],
    "master-addr": ["--master-addr=127.0.0.1", "--master-port={port}"],
    "master-port": ["--master-port={port}"],
    "local-addr": ["--local-addr=127.0.0.1"],
    "logs-specs": ["--logs-specs=default"],
    "numa-binding": None,  # torchrun's looks for the GPU of each rank.
    "signals-to-handle": ["--signals-to-handle=SIGTERM,SIGUSR1"],
    "shutdown-timeout": ["--shutdown-timeout=5"],
    "virtual-local-rank": ["--virtual-local-rank", "--nproc-per-node=2"],
    "print-completion": None,
}
# As many of them as one line can have.
TOGETHER = {
    "together": ["--standalone", "--nproc_per_node=2", "--max-restarts=3", "--role=trainer", "--signals-to-handle=SIGTERM,SIGUSR1",
                 "--logs-specs=default", "--log-dir=logs", "-r", "0:3", "-t", "1:3", "--virtual-local-rank", "--event-log-handler=console"],
    "static": ["--nnodes=1", "--node_rank=0", "--master_addr=localhost", "--master_port={port}", "--rdzv-id=7", "--no-python",
               "--start-method=fork", "--monitor-interval=1", "--shutdown-timeout=5"],
}
ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "4,5", "OF_THE_USER": "a b"}
# Must be there under both; what it says differs from run to run. A static group's port is its endpoint's there.
VARIES = {"MASTER_PORT", "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_RUN_ID"}
OURS = re.compile("REGROUP_|PYTHONUNBUFFERED$")

LINES = {f"test_flag_{name.replace('-', '_')}": ("any", "torchrun too", f"--{name}") for name, words in FLAGS.items() if words}
LINES["test_every_flag_is_tried"] = ("any", "torchrun too", "--help")
LINES["test_pytorchs_own"] = ("PyTorch's own", "torchrun's", "none")


class Parity(e2e.TestCase):
    """`go` starts a line under each launcher, both at once, in folders of their own."""

    def go(self, name, flags):
        port, runs = e2e.free_port(), []
        for launcher, argv in (("torchrun", [e2e.torch_python(), "-m", "torch.distributed.run"]),
                               ("regroup", [e2e.binary("regroup-torchrun")])):
            folder = self.fx.path("work", launcher)
            os.mkdir(folder)
            with open(os.path.join(folder, "show.py"), "w", encoding="ascii") as f:
                f.write(SHOW)
            script = {"module": ["show"]}.get(name, [e2e.torch_python(), "show.py"] if "--no-python" in flags else ["show.py"])
            words = [word.format(port=port + (launcher == "regroup")) for word in flags]
            runs.append(self.fx.start(*argv, *words, *script, "--lr", "${local_rank}", cwd=folder,
                                      env={**ENVIRONMENT, "PYTHON_EXEC": e2e.torch_python()}))
        self.assertEqual([run.wait(90) for run in runs], [0, 0], self.fx.describe())
        theirs, ours = (self.seen(launcher) for launcher in ("torchrun", "regroup"))
        self.assertEqual(list(ours), list(theirs))
        for rank, found in ours.items():
            self.compare(found, theirs[rank], flags)

    def seen(self, launcher):
        """[environment, arguments, folder] by rank, with the launcher's folder called HERE."""
        folder, found = self.fx.path("work", launcher), {}
        for name in sorted(os.listdir(folder)):
            if name.startswith("seen."):
                with open(os.path.join(folder, name), encoding="utf-8") as f:
                    found[name] = json.loads(f.read().replace(folder, "HERE"))
        return found

    def compare(self, ours, theirs, flags):
        environment, expected = ({name: value for name, value in found[0].items() if not OURS.match(name)} for found in (ours, theirs))
        for name in VARIES - {"TORCHELASTIC_RUN_ID"} | ({"TORCHELASTIC_RUN_ID"} if not any("rdzv-id" in word for word in flags) else set()):
            for found in (environment, expected):
                self.assertTrue(found.pop(name, None), name)
        # Its name for the host, where that is this host's own.
        if expected["MASTER_ADDR"] == socket.getfqdn():
            self.assertIn(environment["MASTER_ADDR"], ("localhost", expected["MASTER_ADDR"]))
            expected["MASTER_ADDR"] = environment["MASTER_ADDR"]
        self.assertEqual(environment, expected)
        self.assertEqual(ours[1:], theirs[1:])

    def test_together(self):
        self.go("together", TOGETHER["together"])

    def test_static(self):
        self.go("static", TOGETHER["static"])

    def test_every_flag_is_tried(self):
        code = ("import json; from torch.distributed.run import get_args_parser as p\n"
                "print(json.dumps([o for a in p()._actions for o in a.option_strings if o[:2] == '--']))")
        done = subprocess.run([e2e.torch_python(), "-c", code], capture_output=True, text=True, check=True)
        flags = {flag[2:].replace("_", "-") for flag in json.loads(done.stdout)} - {"help"}
        aliases = {"total-ranks"}
        self.assertEqual(flags - aliases - set(FLAGS), set())

    def test_pytorchs_own(self):
        """Those of its tests that start a launcher and look at what comes of it, with ours in its place."""
        checkout, why = pytorch_checkout(e2e.torch_python())
        if why:
            self.skipTest(why)
        runner = os.path.join(os.path.dirname(os.path.abspath(__file__)), "pytorchs_own.py")
        run = self.fx.start(e2e.torch_python(), runner, checkout, e2e.binary("regroup-torchrun"), env={"PYTHON_EXEC": e2e.torch_python()})
        self.assertEqual(run.wait(500), 0, run)


def pytorch_checkout(python):
    """(folder of the tests of PyTorch's launcher, "") or ("", why there is none)."""
    where = "import os, torch; print(os.path.dirname(os.path.dirname(torch.__file__)))"
    beside = subprocess.run([python, "-c", where], capture_output=True, text=True, check=True).stdout.strip()
    tried = [path for path in (os.environ.get("PYTORCH_SOURCE"), beside, "/usr/src/pytorch", os.path.expanduser("~/pytorch")) if path]
    for root in tried:
        folder = os.path.join(root, "test", "distributed", "launcher")
        if os.path.exists(os.path.join(folder, "test_run.py")):
            return folder, ""
    return "", "no test/distributed/launcher/test_run.py: PYTORCH_SOURCE=FOLDER names a checkout of PyTorch"


def add_flags():
    for name, flags in FLAGS.items():
        if flags:
            setattr(Parity, f"test_flag_{name.replace('-', '_')}", lambda self, name=name, flags=flags: self.go(name, flags))


if __name__ == "__main__":
    del Parity.test_pytorchs_own  # Of ./dev compat.
    e2e.main()
