"""Habits that tutorials have taught people, each with the command line as it stands there (only `torchrun` is replaced)."""
import os
import signal
import socket

import regroup_e2e as e2e
import jobs
import matrix

# What `./dev compat` shows of each test: script, launch, disturbance.
LINES = {
    "test_a_c10d_at_localhost": ("ddp", "tutorial (a)", "none"),
    "test_b_static_with_underscores": ("ddp", "tutorial (b)", "none"),
    "test_c_spawns_at_its_own_address": ("spawn", "tutorial (c)", "none"),
    "test_c_spawned_process_is_killed": ("spawn", "tutorial (c)", "rank"),
    "test_c_submitted": ("spawn", "tutorial (c)", "submitted"),
    "test_d_data_parallel": ("DataParallel", "tutorial (d)", "none"),
    "test_e_resumes_what_rank_0_saved": ("resume", "tutorial (e)", "again"),
    "test_f_accelerate_launch_on_two_machines": ("accelerate", "tutorial (f)", "none"),
    "test_g_explicit_rank_and_world_size": ("explicit", "tutorial (g)", "none"),
    "test_h_loaders_go_with_their_rank": ("loader", "tutorial (h)", "rank"),
    "test_i_record_tells_why": ("record", "tutorial (i)", "failure"),
    "test_j_dcp_at_another_world_size": ("dcp", "tutorial (j)", "again"),
    "test_k_a_rank_that_hangs_is_found_by_its_peers": ("ddp", "tutorial (k)", "hang"),
}


def plain():
    """Those that PyTorch alone is enough for."""
    needs = {name: script.needs for name, script in matrix.SCRIPTS.items()}
    return [test for test, (script, *_) in LINES.items() if needs.get(script) is None]


_MACHINES = """compute_environment: LOCAL_MACHINE
distributed_type: MULTI_GPU
machine_rank: {machine}
main_process_ip: 127.0.0.2
main_process_port: {port}
main_training_function: main
num_machines: 2
num_processes: 2
rdzv_backend: c10d
same_network: false
use_cpu: false
"""


class Tutorials(e2e.TestCase):
    def go(self, line, file, *arguments, needs=None):
        python = jobs.python_for(matrix.Script(file, False, needs))
        return jobs.start_line(self.fx, line, [os.path.join(jobs.FOLDER, file), *arguments], python, self.fx.work)

    def needs_port(self, port):
        """Tutorials name theirs."""
        with socket.socket() as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                s.bind(("127.0.0.1", port))
            except OSError as why:
                self.skipTest(f"port {port}: {why.strerror}")

    def finishes(self, programs, world):
        for program in programs:
            self.assertEqual(program.wait(120), 0, self.fx.describe())
        said = "".join(program.stdout for program in programs)
        for rank in range(world):
            self.assertEqual(said.count(f"finished rank={rank} world={world}"), 1, self.fx.describe())

    def test_a_c10d_at_localhost(self):
        self.needs_port(29500)
        self.finishes([self.go("regroup-torchrun --nproc_per_node=4 --rdzv_backend=c10d --rdzv_endpoint=localhost:29500", "ddp.py")], 4)

    def test_b_static_with_underscores(self):
        self.needs_port(1234)
        line = "regroup-torchrun --nproc_per_node=1 --nnodes=2 --node_rank={} --master_addr=127.0.0.1 --master_port=1234"
        self.finishes([self.go(line.format(node), "ddp.py") for node in (0, 1)], 2)

    def test_c_spawns_at_its_own_address(self):
        self.finishes([self.go("regroup-torchrun --nproc-per-node 1", "spawn.py")], 2)

    def test_c_spawned_process_is_killed(self):
        run = self.go("regroup-torchrun --nproc-per-node 1 --max-restarts 1", "spawn.py", "--pause", "0.2")
        run.expect("step 1", 30, "stdout")
        spawned = [info.pid for info in self.fx.processes("spawn_main")]
        self.assertEqual(len(spawned), 2)
        os.kill(spawned[1], signal.SIGKILL)
        self.finishes([run], 2)
        self.assertEqual([pid for pid in spawned if e2e.alive(pid)], [])

    def test_c_submitted(self):
        self.fx.env["REGROUP_STATE_DIR"] = self.fx.path("state", "c")
        self.fx.env["REGROUP_COORDINATOR"] = endpoint = f"127.0.0.1:{e2e.free_port()}"
        self.fx.service("regroup", "coordinator", "--listen", endpoint).expect("serves")
        self.fx.service("regroup", "agent", "--slots", "1", env={"PYTHON_EXEC": e2e.torch_python()})
        submitted = self.go("regroup submit --wait --", "spawn.py")
        self.assertEqual(submitted.wait(60), 0, self.fx.describe())
        self.assertIn("serves its own store", submitted.stderr)
        said = self.fx.run("logs", "spawn").stdout
        self.assertEqual([said.count(f"finished rank={rank} world=2") for rank in (0, 1)], [1, 1], said)

    def test_d_data_parallel(self):
        self.finishes([self.go("regroup-torchrun --nproc_per_node=1", "data_parallel.py")], 1)

    def test_e_resumes_what_rank_0_saved(self):
        for steps, resumed in ((2, 0), (4, 2)):
            run = self.go("regroup-torchrun --standalone --nproc_per_node=2", "resume.py", "--steps", steps)
            self.finishes([run], 2)
            self.assertEqual(run.stdout.count("resumes at 2"), resumed, run)

    def test_f_accelerate_launch_on_two_machines(self):
        """The launcher is torchrun's own; the rendezvous of its machines is the port of our coordinator, on neither of them.

        Accelerate takes everything from its file but the back-end, for which it has a default that counts more.
        """
        python, port = jobs.python_for(matrix.SCRIPTS["accelerate"]), e2e.free_port("127.0.0.2")
        state = self.fx.path("state", "c")
        self.fx.service("regroup", "coordinator", "--listen", f"127.0.0.2:{port}", "--state-dir", state).expect("serves")
        machines = []
        for machine in range(2):
            file = self.fx.path("work", f"machine{machine}.yaml")
            with open(file, "w") as f:
                f.write(_MACHINES.format(machine=machine, port=port))
            machines.append(self.fx.start(python, "-m", "accelerate.commands.launch", "--config_file", file, "--rdzv_backend", "c10d",
                                          os.path.join(jobs.FOLDER, "accelerated.py"), "--steps", 2, env={"PYTHONUNBUFFERED": "1"}))
        self.finishes(machines, 2)

    def test_g_explicit_rank_and_world_size(self):
        self.finishes([self.go("regroup-torchrun --nproc_per_node=2", "explicit.py")], 2)

    def test_h_loaders_go_with_their_rank(self):
        """Nothing restarts it: when the launcher has ended, so has every process that a loader started."""
        run = self.go("regroup-torchrun --standalone --nproc_per_node=2", "loader.py", "--steps", 1000, "--pause", 0.05)
        run.expect("step 2", 60, "stdout")
        ranks = [info for info in self.fx.processes("loader.py") if "RANK" in e2e.environment(info.pid)]
        loaders = [info.pid for info in ranks if info.ppid in {rank.pid for rank in ranks}]
        self.assertEqual(len(loaders), 4)
        os.kill(next(info.ppid for info in ranks if info.pid in loaders), signal.SIGKILL)
        self.assertEqual(run.wait(30), 128 + signal.SIGKILL, run)
        self.assertEqual([info for info in ranks if e2e.alive(info.pid)], [])

    def test_i_record_tells_why(self):
        run = self.go("regroup-torchrun --standalone --nproc_per_node=2", "record.py", "--bad-batch", 2)
        self.assertEqual(run.wait(60), 1, run)
        report = run.stderr.split("root cause")[-1]
        self.assertRegex(report, r"rank 1 on \S+ \(local 1, pid \d+\) exit 1")
        self.assertIn("ValueError: batch 2 has no label", report)

    def test_j_dcp_at_another_world_size(self):
        for world, steps in ((2, 2), (3, 4)):
            run = self.go(f"regroup-torchrun --standalone --nproc_per_node={world}", "dcp.py", "--steps", steps)
            self.finishes([run], world)
        self.assertEqual(run.stdout.count("resumes at 2"), 3, run)

    def test_k_a_rank_that_hangs_is_found_by_its_peers(self):
        """Their collective runs into its time-out; the one that hangs is ended with them."""
        run = self.go("regroup-torchrun --standalone --nproc_per_node=2 --max-restarts=1", "ddp.py", "--steps", 20, "--pause", 0.05,
                      "--timeout", 4)
        run.expect("step 2", 60, "stdout")
        ranks = {int(e2e.environment(info.pid)["RANK"]): info.pid for info in self.fx.processes("ddp.py")
                 if "RANK" in e2e.environment(info.pid)}
        os.kill(ranks[1], signal.SIGSTOP)
        run.expect("generation 2", 30)
        self.assertEqual([pid for pid in ranks.values() if e2e.alive(pid)], [])
        self.finishes([run], 2)
        self.assertRegex(run.stderr, r"rank 0: exit 1.*restart 1 of 1")
