"""Two hosts on one machine: network, UTS and mount namespaces joined by a veth pair. Needs root and iproute2.

Each host has its own IPv4 and IPv6 address, its own host name (which nothing resolves, or which /etc/hosts maps to
127.0.1.1 as Debian does) and its own loopback. Names of the namespaces carry our pid, so two test runs do not meet.
"""
import itertools
import os
import shutil
import subprocess
import tempfile
import unittest

import regroup_e2e as e2e

_NOBODY = "02:00:00:00:00:99"  # No interface has this address, so what is sent to it is dropped by who receives it.


class Host:
    def __init__(self, name, namespace, ipv4, ipv6, hosts_file):
        self.name, self.namespace, self.ipv4, self.ipv6 = name, namespace, ipv4, ipv6
        self.hosts_file = hosts_file

    def command(self, *argv):
        """argv as a command line that runs inside this host; the last exec is argv's, so pids are its own."""
        inside = f'mount --bind "{self.hosts_file}" /etc/hosts && hostname "{self.name}" && exec "$@"'
        return ["ip", "netns", "exec", self.namespace, "unshare", "--uts", "--mount", "sh", "-c", inside, "sh", *argv]


def available():
    """None, or why two hosts can't be made here."""
    if os.geteuid() != 0:
        return "needs root for network namespaces"
    for tool in ("ip", "unshare", "mount"):
        if shutil.which(tool) is None:
            return f"needs the command '{tool}'"
    return None


class TwoHosts:
    _made = itertools.count()  # Several pairs of one process do not meet either.

    def __init__(self, resolves_to_127_0_1_1=False):
        self.resolves = resolves_to_127_0_1_1
        self.folder = tempfile.mkdtemp(prefix="rg-hosts-")
        self.hosts = []

    def __enter__(self):
        pid = os.getpid()
        net = 10 + pid % 200  # Private to our namespaces: no address outside them is ever used.
        pair = next(self._made)
        names = [f"rg{pid}.{pair}a", f"rg{pid}.{pair}b"]
        try:
            for i, namespace in enumerate(names):
                self._ip("netns", "add", namespace)
                name = ("alpha", "beta")[i]
                hosts_file = os.path.join(self.folder, f"hosts-{name}")
                with open(hosts_file, "w") as f:
                    f.write("127.0.0.1 localhost\n::1 localhost\n" + (f"127.0.1.1 {name}\n" if self.resolves else ""))
                self.hosts.append(Host(name, namespace, f"10.{net}.7.{i + 1}", f"fd00:{net}::{i + 1}", hosts_file))
            self._ip("link", "add", "veth0", "netns", names[0], "type", "veth", "peer", "name", "veth0", "netns", names[1])
            for host in self.hosts:
                self._in(host, "link", "set", "lo", "up")
                self._in(host, "addr", "add", f"{host.ipv4}/24", "dev", "veth0")
                self._in(host, "addr", "add", f"{host.ipv6}/64", "dev", "veth0", "nodad")
                self._in(host, "link", "set", "veth0", "up")
        except Exception:
            self.__exit__()
            raise
        return self.hosts

    def cut(self, host):
        """The host falls silent: what it sends and what is sent to it vanishes, and nobody's link or route tells so."""
        other = next(peer for peer in self.hosts if peer is not host)
        for sender, receiver in ((host, other), (other, host)):
            for address in (receiver.ipv4, receiver.ipv6):
                self._in(sender, "neigh", "replace", address, "lladdr", _NOBODY, "dev", "veth0", "nud", "permanent")

    def heal(self, host):
        """What was cut is whole again, and nobody is told."""
        other = next(peer for peer in self.hosts if peer is not host)
        for sender, receiver in ((host, other), (other, host)):
            for address in (receiver.ipv4, receiver.ipv6):
                self._in(sender, "neigh", "del", address, "dev", "veth0")

    def __exit__(self, *_):
        for host in self.hosts:
            subprocess.run(["ip", "netns", "del", host.namespace], check=False, capture_output=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _ip(self, *arguments):
        subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)

    def _in(self, host, *arguments):
        self._ip("-n", host.namespace, *arguments)


class TwoHostsTestCase(e2e.TestCase):
    """Each test has two hosts of its own, `hosts` of the `pair`."""

    def setUp(self):
        why = available()
        if why:
            raise unittest.SkipTest(why)
        super().setUp()
        self.pair = TwoHosts()
        self.hosts = self.pair.__enter__()

    def tearDown(self):
        self.pair.__exit__()
