"""`regroup-torchrun`: torchrun's command line, its habits, and a PyTorch script that knows neither."""
import glob
import json
import os
import signal
import subprocess
import sys

import regroup_e2e as e2e

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "ddp_train.py")
SHOW = "import os, sys, json; print(json.dumps([dict(os.environ), sys.argv]))\n"


def cores_of_nodes():
    """Of each NUMA node that has CPUs: its cores that this process may use."""
    def listed(path):
        try:
            with open(path, encoding="ascii") as f:
                ranges = [part.split("-") for part in f.read().strip().split(",") if part]
        except FileNotFoundError:
            return set()
        return {cpu for ends in ranges for cpu in range(int(ends[0]), int(ends[-1]) + 1)}

    nodes = [listed(path) for path in glob.glob("/sys/devices/system/node/node[0-9]*/cpulist")]
    siblings = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    return [{min(listed(siblings.format(cpu)), default=cpu) for cpu in cpus & os.sched_getaffinity(0)} for cpus in nodes if cpus]


class Torchrun(e2e.TestCase):
    def torchrun(self, *words, under=(), **more):
        env = {"PYTHON_EXEC": sys.executable, **more.pop("env", {})}
        return self.fx.start(*under, e2e.binary("regroup-torchrun"), *words, env=env, **more)

    def script(self, text, name="program"):
        path = self.fx.path("work", name)
        with open(path, "w") as f:
            f.write(text)
        return path

    def shown(self, *words, **more):
        """(environment, arguments) of each worker, by rank."""
        run = self.torchrun(*words, **more)
        self.assertEqual(run.wait(), 0, run)
        lines = [line[line.index("[{"):] for line in run.stdout.splitlines() if "[{" in line]
        return sorted((json.loads(line) for line in lines), key=lambda worker: int(worker[0]["RANK"]))


class OneNode(Torchrun):
    def test_environment_and_arguments(self):
        workers = self.shown("--standalone", "--nproc_per_node=2", "--role", "trainer", "--max-restarts=3", self.script(SHOW),
                             "--x", "${local_rank}", env={"PET_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1"})
        self.assertEqual(len(workers), 2)
        for rank, (env, argv) in enumerate(workers):
            wanted = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "GROUP_RANK": 0, "GROUP_WORLD_SIZE": 1,
                      "ROLE_RANK": rank, "ROLE_WORLD_SIZE": 2, "ROLE_NAME": "trainer", "MASTER_ADDR": "localhost",
                      "TORCHELASTIC_RESTART_COUNT": 0, "TORCHELASTIC_MAX_RESTARTS": 3, "TORCHELASTIC_USE_AGENT_STORE": "True",
                      "TORCH_NCCL_ASYNC_ERROR_HANDLING": 1, "OMP_NUM_THREADS": 1, "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1"}
            self.assertEqual({name: env.get(name) for name in wanted}, {name: str(value) for name, value in wanted.items()})
            self.assertTrue(env["TORCHELASTIC_ERROR_FILE"])
            self.assertEqual(argv[1:], ["--x", str(rank)])

    def test_options_come_from_pet_variables(self):
        env = {"PET_NPROC_PER_NODE": "2", "PET_STANDALONE": "1", "PET_VIRTUAL_LOCAL_RANK": "1", "CUDA_VISIBLE_DEVICES": "4,5"}
        workers = self.shown(self.script(SHOW), env=env)
        self.assertEqual([(w["LOCAL_RANK"], w["CUDA_VISIBLE_DEVICES"]) for w, _ in workers], [("0", "4"), ("0", "5")])

    def test_run_path_and_module(self):
        text = "import sys\nprint(__name__, sys.argv)\n"
        path = self.script(text)
        self.script(text, "some_module.py")
        run = self.torchrun("--standalone", "--run-path", path, "a")
        self.assertEqual(run.wait(), 0, run)
        self.assertEqual(run.stdout, f"__main__ {[path, 'a']!r}\n")
        run = self.torchrun("--standalone", "-m", "some_module", "b")
        self.assertEqual(run.wait(), 0, run)
        self.assertRegex(run.stdout, r"__main__ \['.*some_module.py', 'b'\]")

    def test_what_is_executed_directly_is_called_as_it_was_typed(self):
        os.symlink("/bin/sh", self.fx.path("work", "shell"))
        script = self.script("#!/bin/sh\necho $0\n", "script")
        os.chmod(script, 0o755)
        self.fx.env["PATH"] = self.fx.work + ":" + self.fx.env["PATH"]
        for word, said in (("shell", "shell"), ("./shell", "./shell"), (self.fx.path("work", "shell"), self.fx.path("work", "shell")),
                           ("./script", "./script"), ("script", script)):
            arguments = [] if "script" in word else ["-c", "tr '\\0' '\\n' < /proc/$$/cmdline | head -1"]
            run = self.torchrun("--standalone", "--no-python", word, *arguments)
            self.assertEqual((run.wait(), run.stdout), (0, said + "\n"), run)

    def test_any_subset_of_signals(self):
        """What is not named has its default effect, and ends the workers too."""
        text = "import time\nprint('ready', flush=True)\ntime.sleep(60)\n"
        runs = {number: self.torchrun("--standalone", "--signals-to-handle", "SIGTERM,SIGUSR1", "--grace", "2s", self.script(text))
                for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2)}
        workers = {}
        for number, run in runs.items():
            run.expect("ready", 20, "stdout")
            workers[number] = [info.pid for info in e2e.descendants(run.pid)]
        for number, run in runs.items():
            run.send(number)
        for number, run in runs.items():
            self.assertEqual(run.wait(15), 143 if number == signal.SIGTERM else -number, run)
        for number, pids in workers.items():
            e2e.wait_for(lambda pids=pids: not any(map(e2e.alive, pids)), 15, f"workers to end after {number}", self.fx.describe)
        self.fx.expects_run_directories = True  # Of those that were killed.

    def test_events_on_the_console(self):
        def events(*options, text="print('out')", code=0):
            run = self.torchrun("--standalone", "--nproc-per-node=2", "--event-log-handler", "console", *options, self.script(text))
            self.assertEqual(run.wait(), code, run)
            lines = [json.loads(line) for line in run.stderr.splitlines() if line.startswith("{")]
            for line in lines:
                line["metadata"]["metadata"] = json.loads(line["metadata"]["metadata"])
            return lines
        found = events()
        self.assertEqual([(event["source"], event["name"].split(".")[-1]) for event in found],
                         [("AGENT", "RENDEZVOUS"), ("AGENT", "ASSIGN_WORKER_RANKS"), ("WORKER", "START"), ("WORKER", "START"),
                          ("WORKER", "SUCCEEDED"), ("WORKER", "SUCCEEDED"), ("AGENT", "SUCCEEDED")])
        start, ended = found[2], found[4]
        self.assertEqual(start["metadata"]["worker_id"], ended["metadata"]["worker_id"])
        self.assertEqual(start["metadata"]["metadata"]["local_rank"], [0])
        self.assertEqual(ended["metadata"]["metadata"]["group_world_size"], 1)
        self.assertEqual(events("--log-dir", self.fx.path("work", "logs"), text="import os\nraise SystemExit(3 if os.environ['RANK'] == '1' else 0)", code=3)[-1]["metadata"]["state"], "FAILED")

    def test_workers_own_exit_code(self):
        run = self.torchrun("--standalone", self.script("raise SystemExit(7)\n"))
        self.assertEqual(run.wait(), 7, run)

    def test_output_is_kept_shown_and_filtered_as_asked(self):
        logs = self.fx.path("work", "logs")
        text = ("import os, sys, time\nr = os.environ['RANK']\nprint('loss', r)\nprint('other', r)\nprint('oops', r, file=sys.stderr)\n"
                "sys.exit(1 if r == '0' and os.environ['TORCHELASTIC_RESTART_COUNT'] == '0' else 0)\n")
        run = self.torchrun("--standalone", "--nproc-per-node=2", "--max-restarts=1", "--log-dir", logs, "-t", "1", "-r", "0:2",
                            "--local-ranks-filter", "0", "--duplicate-stdout-filters", "loss", self.script(text))
        self.assertEqual(run.wait(), 0, run)
        self.assertIn("[default0]:loss 0", run.stdout)
        self.assertNotIn("loss 1", run.stdout)
        self.assertNotIn("oops 1", run.stderr)
        folder, = [name for name in os.listdir(logs) if "_" in name]
        attempts = sorted(os.listdir(os.path.join(logs, folder)))
        self.assertEqual(len(attempts), 2, attempts)

        def read(*path):
            with open(os.path.join(logs, folder, *path)) as f:
                return f.read()
        self.assertEqual(attempts[0], "attempt_0")
        self.assertEqual(read("attempt_0", "0", "stderr.log"), "oops 0\n")
        self.assertEqual(read(attempts[1], "1", "stdout.log"), "loss 1\nother 1\n")
        self.assertEqual(sorted(read(attempts[1], "filtered_stdout.log").splitlines()), ["[default0]:loss 0", "[default1]:loss 1"])

    def test_sigusr1_reaches_workers_and_ends_nothing(self):
        text = ("import signal, time\nsignal.signal(signal.SIGUSR1, lambda *_: (print('got it', flush=True), exit(0)))\n"
                "print('ready', flush=True)\ntime.sleep(60)\n")
        run = self.torchrun("--standalone", self.script(text))
        run.expect("ready", stream="stdout")
        run.send(signal.SIGUSR1)
        self.assertEqual(run.wait(), 0, run)
        self.assertIn("got it", run.stdout)

    def bound(self, *words, **more):
        """CPUs of each worker, by rank."""
        text = "import json, os; print(json.dumps([{'RANK': os.environ['RANK']}, sorted(os.sched_getaffinity(0))]))\n"
        return [set(cpus) for _, cpus in self.shown("--standalone", *words, self.script(text), **more)]

    def test_numa_binding_gives_cores_of_their_own(self):
        if min((len(cores) for cores in cores_of_nodes()), default=0) < 2:
            self.skipTest("two allowed cores in each NUMA node are needed")
        first, second = self.bound("--nproc-per-node=2", "--numa-binding=exclusive")
        self.assertTrue(first and second)
        self.assertFalse(first & second, (first, second))
        self.assertLessEqual(first | second, os.sched_getaffinity(0))

    def test_numa_binding_stays_within_what_is_allowed(self):
        allowed = min(os.sched_getaffinity(0))
        self.assertEqual(self.bound("--numa-binding=node", under=("taskset", "-c", str(allowed))), [{allowed}])


class TwoNodes(Torchrun):
    def test_static_ranks_follow_node_rank(self):
        """As tutorials have it: underscores, no back-end named. The node of rank 1 comes first."""
        port, path, runs = e2e.free_port(), self.script(SHOW), {}
        for rank in (1, 0):
            runs[rank] = self.torchrun("--nnodes=2", f"--node_rank={rank}", "--nproc_per_node=1", "--master_addr=127.0.0.1",
                                       f"--master_port={port}", path)
        for rank, run in runs.items():
            self.assertEqual(run.wait(), 0, run)
            env, _ = json.loads(run.stdout)
            self.assertEqual((env["RANK"], env["GROUP_RANK"], env["WORLD_SIZE"]), (str(rank), str(rank), "2"), run)

    def test_c10d_with_an_id(self):
        port, path = e2e.free_port(), self.script(SHOW)
        runs = [self.torchrun("--nnodes=1:2", "--rdzv_backend=c10d", f"--rdzv_endpoint=localhost:{port}", "--rdzv_id=Job_7",
                              "--rdzv_conf=join_timeout=20,last_call_timeout=3", "--node-name", f"n{i}", path,
                              env={"TORCHELASTIC_ENABLE_FILE_TIMER": "1"}) for i in range(2)]
        for run in runs:
            self.assertEqual(run.wait(), 0, run)
            self.assertIn("--rdzv-conf last_call_timeout has no effect", run.stderr)
            self.assertIn("regroup: TORCHELASTIC_ENABLE_FILE_TIMER=1 has no effect", run.stderr)
        self.assertTrue(all('"TORCHELASTIC_RUN_ID": "Job_7"' in run.stdout for run in runs if run.stdout))

    def test_join_timeout(self):
        run = self.torchrun("--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{e2e.free_port()}",
                            "--rdzv-conf=join_timeout=1", self.script(""))
        self.assertEqual(run.wait(), 124, run)
        self.assertIn("regroup-torchrun --nnodes 2", run.stderr)


class AgainstTorchrun(Torchrun):
    def test_every_option_of_the_real_one_is_known(self):
        code = ("import json; from torch.distributed.run import get_args_parser as p\n"
                "print(json.dumps([a.option_strings for a in p()._actions if a.option_strings]))")
        done = subprocess.run([e2e.torch_python(), "-c", code], capture_output=True, text=True, check=True)
        run = self.torchrun("--help")
        self.assertEqual(run.wait(), 0)
        words = set(run.stdout.replace(",", " ").split())
        for spellings in json.loads(done.stdout):
            if "--help" not in spellings:
                for name in spellings:
                    self.assertIn(name if name[1] != "-" else name.replace("_", "-"), words)

    def test_events_have_its_keys_in_its_order(self):
        def shapes(*argv):
            run = self.fx.start(*argv, "--standalone", "--event-log-handler", "console", "--no-python", "true",
                                env={"PYTHON_EXEC": sys.executable})
            self.assertEqual(run.wait(60), 0, run)
            lines = [json.loads(line) for line in run.stderr.splitlines() if line.startswith("{")]
            kinds = {"hostname": None, "duration_ms": None, "run_id": None, "worker_id": None, "total_run_time": None}

            def shape(key, value):
                return key, type(value).__name__ if key in kinds else list(json.loads(value)) if key == "metadata" else value
            return [(event["name"], event["source"], event["timestamp"], [shape(*item) for item in event["metadata"].items()]) for event in lines]
        self.assertEqual(shapes(e2e.binary("regroup-torchrun")), shapes(e2e.torch_python(), "-m", "torch.distributed.run"))

    def test_a_ddp_script(self):
        logs = self.fx.path("work", "logs")
        os.mkdir(logs)
        run = self.torchrun("--standalone", "--nproc-per-node", "2", SCRIPT, "--epochs", "2", "--checkpoint",
                            self.fx.path("work", "model.pt"), "--log-dir", logs, env={"PYTHON_EXEC": e2e.torch_python()})
        self.assertEqual(run.wait(60), 0, run)
        texts = []
        for name in os.listdir(logs):
            with open(os.path.join(logs, name)) as f:
                texts.append(f.read())
        self.assertEqual(sum("done rank=" in text for text in texts), 2, texts)


if __name__ == "__main__":
    e2e.main()
