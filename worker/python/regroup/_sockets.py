"""The connections of a process group, and how to break them off from another thread.

Gloo's abort() does nothing, and a rank that waits for a peer that is stopped waits until its group's time-out. So the
sockets that a group has opened are shut down below it: whatever waits on them fails at once.
"""
import os
import socket
import struct
import time
from typing import Dict, Sequence


_BYTES_ACKED = 120  # In struct tcp_info of linux/tcp.h; what was received follows.


def connected() -> Dict[int, str]:
    """{descriptor: identity} of this process's TCP connections."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        identity = _identity(fd)
        if identity.startswith("socket:") and _peers(fd, identity):
            found[fd] = identity
    return found


def shut_down(sockets: Dict[int, str]) -> None:
    """Those of them that are still open. A number that is another file's by now is left alone."""
    for fd, identity in sockets.items():
        peer = _open(fd, identity)
        if peer is not None:
            with peer:
                try:
                    peer.shutdown(socket.SHUT_RD)
                except OSError:
                    pass  # The other end was faster.


def await_quiet(sockets: Sequence[Dict[int, str]], quiet: float, longest: float) -> None:
    """Until their bytes have stood still for `quiet` seconds; at most `longest`."""
    now = still_since = time.monotonic()
    until, last = now + longest, None
    while now < min(until, still_since + quiet):
        count = sum(moved(some) for some in sockets)
        looked = time.monotonic() - now
        if count != last:
            still_since, last = now, count
        time.sleep(max(quiet / 5, looked))  # Others need this core, and the interpreter.
        now = time.monotonic()


def moved(sockets: Dict[int, str]) -> int:
    """Bytes that they have received, or sent so that the other end has them; of what is closed by now none."""
    total = 0
    for fd, identity in sockets.items():
        own = _open(fd, identity)
        if own is not None:
            with own:
                try:
                    info = own.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_ACKED + 16)
                except OSError:
                    continue
            total += sum(struct.unpack_from("=QQ", info, _BYTES_ACKED)) if len(info) == _BYTES_ACKED + 16 else 0
    return total


def _peers(fd: int, identity: str) -> bool:
    peer = _open(fd, identity)
    if peer is None:
        return False
    with peer:
        try:
            return peer.family in (socket.AF_INET, socket.AF_INET6) and bool(peer.getpeername())
        except OSError:
            return False  # It listens.


def _open(fd: int, identity: str) -> "socket.socket | None":
    """A descriptor of our own for it: the number may be closed, and used again, by another thread at any time."""
    try:
        own = os.dup(fd)
    except OSError:
        return None
    if _identity(own) != identity:
        os.close(own)
        return None
    blocking = os.get_blocking(own)
    try:
        peer = socket.socket(fileno=own)
    except OSError:
        os.close(own)
        return None
    if os.get_blocking(own) != blocking:  # After socket.setdefaulttimeout(), and for every number of this connection.
        os.set_blocking(own, blocking)
    return peer


def _identity(fd: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return ""
