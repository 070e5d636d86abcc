"""An agent and its coordinator with a network between them that goes away and comes back without a word."""
import os
import re
import time

import hosts
import regroup_e2e as e2e


class Partition(hosts.TwoHostsTestCase):
    LEASE_S = 1.0

    def service(self, host, role, *options):
        return self.fx.service(*host.command(e2e.binary("regroup"), role, *options, "--insecure", "--state-dir",
                                             self.fx.path("state", f"{role}-{host.name}")))

    def coordinator(self, host):
        program = self.service(host, "coordinator", "--listen", host.ipv4, "--agent-lease", "1s", "--heartbeat", "200ms")
        socket = self.fx.path("state", f"coordinator-{host.name}", "coordinator-29400", "socket")
        e2e.wait_for(lambda: os.path.exists(socket), 20, "the coordinator", self.fx.describe)
        return program

    def test_an_agent_notices_within_a_lease_and_is_back_within_two_seconds(self):
        first, second = self.hosts
        self.coordinator(first)
        agent = self.service(second, "agent", "--coordinator", first.ipv4)
        agent.expect("following the coordinator", timeout=20)

        def said(what, times):
            e2e.wait_for(lambda: agent.stderr.count(what) >= times, 20, f"{what!r} {times} times", self.fx.describe)
        for i, outage_s in enumerate((3, 12)):  # TCP alone would be silent for as long again after each.
            cut_at = time.monotonic()
            self.pair.cut(second)
            said("nothing was heard from the coordinator for 1 s", i + 1)
            self.assertLess(time.monotonic() - cut_at, 2 * self.LEASE_S + 1)
            time.sleep(max(0, cut_at + outage_s - time.monotonic()))
            self.pair.heal(second)
            healed_at = time.monotonic()
            said("following the coordinator", i + 2)
            self.assertLess(time.monotonic() - healed_at, 2, self.fx.describe())

    def test_the_next_coordinator_of_a_list_is_tried(self):
        first, second = self.hosts
        self.coordinator(first)
        agent = self.service(second, "agent", "--coordinator", f"{second.ipv4}:1,{first.ipv4}")
        agent.expect("following the coordinator", timeout=20)
        self.assertRegex(str(agent), re.escape(f"{second.ipv4}:1"))


if __name__ == "__main__":
    e2e.main()
