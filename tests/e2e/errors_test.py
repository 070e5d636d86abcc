"""Why a job failed, as its ranks put it: error files in both shapes, the root cause over all ranks, launchers in launchers."""
import json
import os
import signal
import sys
import textwrap

import regroup_e2e as e2e


class WithProgram(e2e.TestCase):
    def program(self, code, *options, python=sys.executable, env=None):
        path = self.fx.path("work", f"program{len(self.fx.programs)}.py")
        with open(path, "w") as f:
            f.write("import json, os, signal, sys, time\nrank = int(os.environ['RANK'])\n" + textwrap.dedent(code))
        return self.fx.regroup("run", *options, path, env={"PYTHON_EXEC": python, **(env or {})})

    def report(self, run):
        return run.stderr.split("root cause")[-1]


class Errors(WithProgram):
    def test_every_node_names_the_rank_that_failed(self):
        port = e2e.free_port()
        nodes = [self.program("""
            if rank == 1:
                print("the reason", file=sys.stderr)
                sys.exit(6)
            time.sleep(30)
            """, "--nnodes", "2", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "job", "--node-name", f"n{i}") for i in range(2)]
        for run in nodes:
            self.assertEqual(run.wait(), 6, run)
            self.assertRegex(self.report(run), r"rank 1 on n[01] \(local 0, pid \d+\) exit 6 at \S+Z")
            self.assertIn("| the reason", self.report(run))

    def test_a_client_of_an_old_pytorch_is_told_to_a_person(self):
        run = self.program("""
            import socket, struct
            with socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))) as s:
                s.sendall(b"\\x03" + struct.pack("<Q", 5) + b"init/" + struct.pack("<q", 1))
                assert s.recv(1) == b""
            time.sleep(30)
            """)
        run.expect(r"speaks the TCPStore dialect of PyTorch 2\.0 or older.*needs PyTorch 2\.2 or newer")
        run.send(signal.SIGINT)
        self.assertEqual(run.wait(), 130, run)

    def test_the_plain_shape_and_no_shape_at_all(self):
        code = """
            data = {!r}
            print("only on stderr", file=sys.stderr)
            open(os.environ["TORCHELASTIC_ERROR_FILE"], "wb").write(data)
            sys.exit(4)
            """
        run = self.program(code.format(b'{"message": "out of cheese", "timestamp": 12}'))
        self.assertEqual(run.wait(), 4, run)
        self.assertIn("| out of cheese", self.report(run))
        for damaged in (b"", b'{"message": ', b"\xff\x00\xfe", b"[" * 100000):
            run = self.program(code.format(damaged))
            self.assertEqual(run.wait(), 4, run)
            self.assertIn("| only on stderr", self.report(run))

    def test_a_huge_error_file_and_a_pipe_in_its_place_hurt_nobody(self):
        for make in ("open(path, 'wb').truncate(1 << 30)", "os.mkfifo(path)", "os.mkdir(path)"):
            run = self.program(f"""
                path = os.environ["TORCHELASTIC_ERROR_FILE"]
                {make}
                sys.exit("said on stderr")
                """)
            self.assertEqual(run.wait(), 1, run)
            self.assertIn("| said on stderr", self.report(run))

    def test_a_segmentation_fault_shows_where_it_was(self):
        run = self.program("""
            import faulthandler, threading
            faulthandler.enable(all_threads=True)
            for _ in range(8):
                threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
            def deep():
                os.kill(os.getpid(), signal.SIGSEGV)
            deep()
            """)
        self.assertEqual(run.wait(), 139, run)
        report = self.report(run)
        self.assertRegex(report, r"rank 0 on \S+ \(local 0, pid \d+\) .*SIGSEGV")
        self.assertIn("Fatal Python error: Segmentation fault", report)
        self.assertRegex(report, r"program\d+\.py.* in deep")

    def test_a_launcher_in_a_launcher_hands_the_error_on(self):
        inner = self.fx.path("work", "inner.py")
        with open(inner, "w") as f:
            f.write("raise KeyError('deep inside')\n")
        outer = self.fx.path("work", "outer.sh")
        with open(outer, "w") as f:
            f.write(f"exec {e2e.binary('regroup')} run --rdzv-id inner {inner} 2>/dev/null\n")
        run = self.fx.regroup("run", "--no-python", "sh", outer, env={"PYTHON_EXEC": sys.executable})
        self.assertEqual(run.wait(), 1, run)
        self.assertIn("KeyError: 'deep inside'", self.report(run))
        file = self.fx.path("work", "handed.json")
        run = self.program("os.kill(os.getpid(), signal.SIGKILL)\n", env={"TORCHELASTIC_ERROR_FILE": file})
        self.assertEqual(run.wait(), 137, run)
        with open(file) as f:
            handed = json.load(f)["message"]
        self.assertEqual(handed["errorCode"], -9)
        self.assertIn("SIGKILL", handed["message"])
        self.assertTrue(handed["extraInfo"]["timestamp"].isdigit())
        os.unlink(file)
        run = self.program("pass\n", env={"TORCHELASTIC_ERROR_FILE": file})
        self.assertEqual(run.wait(), 0, run)
        self.assertFalse(os.path.exists(file))


class PyTorch(WithProgram):
    def test_record_and_a_peer_that_lost_it(self):
        """The peer, in a collective, fails of the loss; which of both is heard of first says nothing."""
        run = self.program("""
            import torch
            import torch.distributed as dist
            from torch.distributed.elastic.multiprocessing.errors import record

            @record
            def main():
                dist.init_process_group("gloo")
                dist.barrier()
                if rank == 1:
                    raise ValueError("bad batch 17")
                dist.all_reduce(torch.ones(1))

            main()
            """, "--nproc-per-node", "2", "--node-name", "n", python=e2e.torch_python())
        self.assertEqual(run.wait(), 1, run)
        report = self.report(run)
        self.assertRegex(report, r"rank 1 on n \(local 1, pid \d+\) exit 1")
        self.assertIn("ValueError: bad batch 17", report)


if __name__ == "__main__":
    e2e.main()
