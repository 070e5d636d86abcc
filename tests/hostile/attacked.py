"""A coordinator under attack: its memory before, meanwhile and afterwards."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
import regroup_e2e as e2e  # noqa: E402
from http2 import Connection, submit_request  # noqa: E402

DURING_MB, AFTER_MB = 32, 10  # Of resident memory, above the beginning: while it lasts, and a minute after.


class TestCase(e2e.TestCase):
    def setUp(self):
        super().setUp()
        self.port = e2e.free_port()
        self.fx.env["REGROUP_STATE_DIR"] = self.fx.path("state", "here")

    def start(self, *flags):
        self.coordinator = self.fx.service(e2e.binary("regroup"), "coordinator", "--listen", f"127.0.0.1:{self.port}", *flags)
        self.coordinator.expect("the coordinator serves")

    def resident_mb(self):
        with open(f"/proc/{self.coordinator.process.pid}/statm", encoding="ascii") as f:
            return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6

    def connect(self, **how):
        return Connection(("127.0.0.1", self.port), **how)

    def fill(self, jobs, first=0):
        """Submits jobs whose command lines are as long as they may be."""
        command = ["true", b"x" * 60_000]
        with self.connect() as client:
            for i in range(first, first + jobs):
                data, status = client.call("Submit", submit_request(f"key-{i}", f"job-{i}", command, nodes=2))
                self.assertTrue(data, status)
