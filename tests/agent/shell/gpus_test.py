"""Real agents on a host with the driver of tests/common/fake_nvml: who sees which GPU, and what `nodes` says of them."""
import json
import os
import shutil
import signal

import agents_test
import regroup_e2e as e2e

SEES = ('echo "$RANK ${CUDA_VISIBLE_DEVICES-none} ${CUDA_DEVICE_ORDER-none}" > "$MARKS.$REGROUP_JOB.$RANK.new"; '
        'mv "$MARKS.$REGROUP_JOB.$RANK.new" "$MARKS.$REGROUP_JOB.$RANK"; exec sleep 600')
GPU = "gpu name=NVIDIA_H100 uuid=GPU-{} memory=81920 used=512 celsius={}\n"
FOUR = "".join(GPU.format(i, 40 + i) for i in range(4))


class Gpus(agents_test.Fleet):
    def setUp(self):
        super().setUp()
        self.driver = self.fx.path("driver")
        os.mkdir(self.driver)
        shutil.copy(e2e.binary("libfake_nvml.so"), os.path.join(self.driver, "libnvidia-ml.so.1"))
        self.before_agent = ["env", f"LD_LIBRARY_PATH={self.driver}"]
        self.gpus(FOUR)
        self.jobs = []
        self.addCleanup(self.end_all)

    def end_all(self):
        for job in self.jobs:
            self.regroup("cancel", "--now", job)
        if self.jobs:
            e2e.wait_for(lambda: all(node["slots_used"] == 0 for node in self.nodes()), 20, "all jobs to end", self.fx.describe)

    def gpus(self, text):
        with open(os.path.join(self.driver, "next"), "w") as f:
            f.write(text)
        os.rename(f.name, os.path.join(self.driver, "gpus"))

    def sees(self, workers, *more):
        """The job's id, and what each of its ranks sees."""
        job = self.submit(1, SEES, "--nproc-per-node", str(workers), *more)
        return job, self.seen(job, workers)

    def seen(self, job, workers):
        files = [f"{self.marks}.{job}.{rank}" for rank in range(workers)]
        e2e.wait_for(lambda: all(map(os.path.exists, files)), 20, f"{job} to run", self.fx.describe)
        seen = []
        for file in files:
            with open(file) as f:
                seen.append(f.read().split(maxsplit=1)[1].strip())
        return seen

    def submit(self, *words):
        self.jobs.append(super().submit(*words))
        return self.jobs[-1]

    def end(self, job):
        self.assertEqual(self.regroup("cancel", "--now", job).code, 0)
        e2e.wait_for(lambda: job not in self.node()["jobs"], 20, f"{job} to end", self.fx.describe)

    def nodes(self):
        return json.loads(self.regroup("nodes", "--json").stdout)["nodes"]

    def node(self):
        node, = self.nodes()
        return node

    def test_each_job_sees_the_devices_of_its_slots(self):
        self.agent("a", slots=0)
        self.agents["a"].expect(r"agent started.*slots=4 gpus=0,1,2,3")
        first, seen = self.sees(2)
        self.assertEqual(seen, ["0,1 PCI_BUS_ID"] * 2)
        self.assertEqual(self.sees(1)[1], ["2 PCI_BUS_ID"])
        self.kill("a")  # What it gave out is known to the next one.
        self.agent("a", slots=0)
        self.follows("a")
        self.assertEqual(self.sees(1)[1], ["3 PCI_BUS_ID"])
        self.end(first)
        self.assertEqual(self.sees(1, "--env", "CUDA_VISIBLE_DEVICES=")[1], ["none"])

    def test_with_a_virtual_local_rank_each_worker_sees_one_of_them(self):
        self.agent("a", slots=0)
        self.sees(2)
        file = self.fx.path("work", "job.yaml")
        with open(file, "w") as f:
            json.dump({"name": "job", "nproc_per_node": 2, "virtual_local_rank": True, "env": {"MARKS": self.marks}, "run": ["sh", "-c", SEES]}, f)
        done = self.regroup("submit", file)
        self.jobs.append(done.stdout.strip())
        self.assertEqual(self.seen(self.jobs[-1], 2), ["2 PCI_BUS_ID", "3 PCI_BUS_ID"])

    def test_a_worker_for_each_gpu_of_whole_nodes(self):
        bare = self.before_agent
        self.agent("a", slots=0)
        self.before_agent = bare + ["CUDA_VISIBLE_DEVICES=3,1"]
        self.agent("b", slots=0)
        self.before_agent = bare
        self.agent("c", slots=8)  # More than it has GPUs: they are none.
        for name in "abc":
            self.follows(name)
        small = self.submit(1, SEES, "--nproc-per-node", "1")  # On c, which has the most room.
        self.assertEqual(self.seen(small, 1), ["none none"])
        file = self.fx.path("work", "job.yaml")
        with open(file, "w") as f:
            json.dump({"name": "all", "nnodes": 2, "nproc_per_node": "gpu", "virtual_local_rank": True, "env": {"MARKS": self.marks},
                       "run": ["sh", "-c", SEES]}, f)
        checked = self.regroup("submit", "--dry-run", file)
        self.assertIn("nproc_per_node: gpu\n", checked.stdout)
        self.jobs.append(self.regroup("submit", file).stdout.strip())
        self.assertEqual(self.seen(self.jobs[-1], 6), [f"{gpu} PCI_BUS_ID" for gpu in range(4)] + ["3 none", "1 none"])
        # Beside it nothing else runs on these two, and of GPUs there are no more nodes.
        self.assertEqual(self.seen(self.submit(1, SEES, "--nproc-per-node", "7"), 7), ["none none"] * 7)
        more = self.regroup("submit", "--now-or-never", "--nnodes", "3", "--nproc-per-node", "gpu", "--", "true")
        self.assertNotEqual(more.code, 0)
        self.assertIn("it needs 3 nodes whose slots are GPUs, this cluster has 2", more.stderr)

    def test_fewer_slots_have_several_devices_each(self):
        self.agent("a", slots=2)
        self.assertEqual(self.sees(1)[1], ["0,1 PCI_BUS_ID"])
        self.assertEqual(self.sees(1)[1], ["2,3 PCI_BUS_ID"])

    def test_instances_of_a_divided_gpu_are_slots(self):
        self.gpus(GPU.format(0, 40) + GPU.format(1, 41) + "divided\nmig name=H100_MIG uuid=MIG-a memory=9000\nmig name=H100_MIG uuid=MIG-b memory=9000\n")
        self.agent("a", slots=0)
        self.assertEqual(self.sees(1)[1], ["GPU-0 PCI_BUS_ID"])
        # CUDA shows a process one of them at most.
        self.assertEqual(self.sees(2)[1], ["MIG-a PCI_BUS_ID", "MIG-b PCI_BUS_ID"])

    def test_slots_that_stand_for_others_after_a_restart(self):
        self.agent("a", slots=2)
        self.assertEqual(self.sees(1)[1], ["0,1 PCI_BUS_ID"])
        self.kill("a")
        self.agent("a", slots=4)
        self.follows("a")
        self.assertEqual(self.sees(1)[1], ["2 PCI_BUS_ID"])

    def test_more_slots_than_devices_stand_for_none(self):
        self.agent("a", slots=8)
        self.assertEqual(self.sees(6)[1], ["none none"] * 6)

    def test_an_agent_that_is_told_of_none_gives_none(self):
        self.before_agent.append("CUDA_VISIBLE_DEVICES=")
        self.agent("a", slots=2)
        self.assertEqual(self.sees(1)[1], ["none"])

    def test_what_an_agent_was_told_counts_before_the_driver(self):
        self.before_agent.append("CUDA_VISIBLE_DEVICES=3,1")
        self.agent("a", slots=0)
        self.assertEqual(self.sees(1)[1], ["3 none"])
        self.assertEqual(self.sees(1)[1], ["1 none"])
        e2e.wait_for(lambda: [gpu["gpu"] for gpu in self.node()["gpus"]] == ["1", "3"], 20, "its GPUs", self.fx.describe)

    def test_nodes_tells_of_gpus_and_of_their_errors(self):
        self.agent("a", slots=0)
        self.follows("a")
        e2e.wait_for(lambda: len(self.node()["gpus"]) == 4, 20, "its GPUs", self.fx.describe)
        self.assertEqual(self.node()["gpus"][3], {"gpu": "3", "uuid": "GPU-3", "name": "NVIDIA H100", "memory_bytes": 80 << 30, "used_bytes": 512 << 20,
                                                  "celsius": 43, "xids": 0})
        self.assertIn("4 × NVIDIA H100, 2.0 GiB of 320.0 GiB used, 40–43 °C", self.regroup("nodes").stdout)
        self.gpus(FOUR + "xid 79\n")
        e2e.wait_for(lambda: "GPU 3: 1 Xid, 79" in self.regroup("nodes").stdout, 20, "the error to be told", self.fx.describe)
        self.assertIn("1 Xid, 79", self.regroup("explain", "a").stdout)
        # Told anew to whoever has not heard it.
        self.coordinator.send(signal.SIGKILL)
        self.coordinator.wait()
        self.coordinator = self.start_coordinator("coordinator")
        e2e.wait_for(lambda: "GPU 3: 1 Xid, 79" in self.regroup("nodes").stdout, 30, "it to be told again", self.fx.describe)

    def test_a_driver_that_does_not_answer(self):
        self.gpus(FOUR + "hangs count\n")
        self.agent("a", slots=0)
        self.assertEqual(self.agents["a"].wait(30), 125)
        self.assertIn("the GPUs of this node cannot be counted\nbecause: the NVIDIA driver does not answer within 10 s\ntry: regroup agent --slots 8\n",
                      self.agents["a"].stderr)
        self.agent("a", slots=2)  # As many as somebody says.
        self.agents["a"].expect("GPUs are not shared out, each job sees all there are.*does not answer within 10 s", timeout=20)
        self.follows("a")
        self.assertEqual(self.sees(1)[1], ["none none"])

    def test_the_built_in_node_check(self):
        shutil.copy(e2e.binary("libfake_cuda_driver.so"), os.path.join(self.driver, "libcuda.so.1"))
        with open(os.path.join(self.driver, "cuda"), "w") as f:
            f.write("devices 2\n")
        self.gpus(FOUR + "lost\n")
        self.agent("a", slots=0)
        well, _ = self.sees(2, "--node-check", "gpu")
        sick = self.submit(1, SEES, "--nproc-per-node", "2", "--node-check", "gpu")
        explained = lambda: " ".join(self.regroup("explain", sick).stdout.split())  # noqa: E731
        e2e.wait_for(lambda: "exited with 19: GPU 3: GPU is lost" in explained(), 20, "the reason", self.fx.describe)
        self.gpus(FOUR)  # It is asked again.
        e2e.wait_for(lambda: os.path.exists(f"{self.marks}.{sick}.1"), 30, f"{sick} to run", self.fx.describe)
        self.assertEqual(self.regroup("ps", "--json").stdout.count('"running"'), 2)

    def test_the_check_by_hand(self):
        run = lambda *words: self.fx.start(e2e.binary("regroup-worker"), "check-gpu", *words, env={"LD_LIBRARY_PATH": self.driver})  # noqa: E731
        self.gpus("")
        bare = run()
        self.assertEqual((bare.wait(), bare.stderr), (19, "the driver has no GPU\n"))
        self.assertEqual(run("more").wait(), 2)
        # Each instance by itself.
        shutil.copy(e2e.binary("libfake_cuda_driver.so"), os.path.join(self.driver, "libcuda.so.1"))
        with open(os.path.join(self.driver, "cuda"), "w") as f:
            f.write("devices 1\n")
        self.gpus(GPU.format(0, 40) + "divided\nmig name=H100_MIG uuid=MIG-a memory=9000\nmig name=H100_MIG uuid=MIG-b memory=9000\n")
        both = self.fx.start(e2e.binary("regroup-worker"), "check-gpu", env={"LD_LIBRARY_PATH": self.driver, "CUDA_VISIBLE_DEVICES": "MIG-a,MIG-b"})
        self.assertEqual((both.wait(), both.stdout.count("1 × H100 MIG, idle; a product")), (0, 2), both)
        one = self.fx.start(e2e.binary("regroup-worker"), "check-gpu", env={"LD_LIBRARY_PATH": self.driver, "CUDA_VISIBLE_DEVICES": "MIG-a,MIG-c"})
        self.assertEqual((one.wait(), one.stderr), (19, "GPU MIG-c: the driver has none of this name\n"))
        told = run("--help")
        self.assertEqual(told.wait(), 0)
        self.assertIn("--node-check gpu", told.stdout)

    def test_a_launch_command_counts_them(self):
        done = self.fx.run("run", "--standalone", "--nproc-per-node", "gpu", "sh", "-c", "echo $WORLD_SIZE ${CUDA_VISIBLE_DEVICES-all}",
                           env={"LD_LIBRARY_PATH": self.driver})
        self.assertEqual((done.code, done.stdout.count("4 all\n")), (0, 4), done)
        self.gpus("")
        none = self.fx.run("run", "--standalone", "--nproc-per-node", "gpu", "true", env={"LD_LIBRARY_PATH": self.driver})
        self.assertIn("the NVIDIA driver has none", none.stderr)


if __name__ == "__main__":
    e2e.main()
