"""What is thrown at a coordinator, each in a process of its own: `ATTACKS` has a function of (port, until, state) per class.
`state` is the path of a file with a token, if the coordinator asks for one; nobody here knows it."""
import itertools
import os
import select
import socket
import struct
import time

from http2 import (CONTINUATION, DATA, END_HEADERS, GOAWAY, HEADERS, PING, PREFACE, PRIORITY, RESET, SETTINGS, WINDOW, Connection,
                   field, frame, hello, literal, open_call, read_request, submit_request)

MAGIC = b"REGROUP\x01"


def short_headers(stream, path=b"/nothing", flags=END_HEADERS):
    return frame(HEADERS, stream, b"\x83\x86\x44" + bytes([len(path)]) + path + b"\x41\x01a", flags)


SESSION = b"/regroup.v1.Coordinator/Session"


def streams(make, start=1):
    """Endlessly what `make` gives for stream 1, 3, 5 …, in pieces of some hundred."""
    while start < 0x7FFFF000:
        yield b"".join(make(2 * i + 1) for i in range(start // 2, start // 2 + 200))
        start += 400


def same(data):
    return itertools.repeat(data)


def cancel(stream):
    return frame(RESET, stream, b"\0\0\0\x08")


# What a connection sends after preface and settings, again and again.
FLOODS = {
    "rapid_reset": lambda: streams(lambda s: short_headers(s) + cancel(s)),
    "rapid_reset_session": lambda: streams(lambda s: short_headers(s, SESSION) + cancel(s)),
    "made_to_reset": lambda: streams(lambda s: short_headers(s, SESSION) + frame(WINDOW, s, b"\0\0\0\0")),
    "headers_only": lambda: streams(lambda s: short_headers(s, flags=5)),
    "settings": lambda: same(frame(SETTINGS) * 500),
    "pings": lambda: same(frame(PING, 0, b"12345678") * 500),
    "window_updates": lambda: same(frame(WINDOW, 0, b"\0\0\0\1") * 500),
    "priorities": lambda: same(frame(PRIORITY, 1, b"\0\0\0\0\1") * 500),
    "empty_data": lambda: same(short_headers(1, SESSION) + frame(DATA, 1) * 500),
    "continuations": lambda: same(frame(HEADERS, 1, b"\x83", 0) + frame(CONTINUATION, 1, b"") * 500),
    "goaways": lambda: same(frame(GOAWAY, 0, b"\0\0\0\0\0\0\0\0") * 500),
    "huge_headers": lambda: streams(lambda s: frame(HEADERS, s, literal("x", "y" * 100) * 150, 0) +
                                    frame(CONTINUATION, s, literal("x", "y" * 100) * 150) * 40),
    # One long header into the table, then named by one byte each.
    "hpack_bomb": lambda: streams(lambda s: frame(HEADERS, s, b"\x40\x01x\x7f\x81\x1e" + b"y" * 3805 + b"\xbe" * 12000, 4)),
    "frames_of_16_mib": lambda: same(struct.pack(">I", 0xFFFFFF)[1:] + b"\0\0\0\0\0\1" + b"x" * 65536),
    "upload": lambda: itertools.chain([open_call(1, "Submit", ""), frame(DATA, 1, b"\0\x00\x0f\xff\xf0")],
                                      same(frame(DATA, 1, b"x" * 16384))),
}


def flood(make):
    """One connection at a time, opened anew whenever it was cut."""
    def attack(port, until):
        while time.monotonic() < until:
            with socket.create_connection(("127.0.0.1", port)) as s:
                s.setblocking(False)
                data, source = memoryview(PREFACE + frame(SETTINGS)), make()
                while time.monotonic() < until:
                    readable, writable, _ = select.select([s], [s], [], 0.2)
                    try:
                        if readable and not s.recv(1 << 16):
                            break
                        if writable:
                            data = data[s.send(data):] or memoryview(next(source))
                    except BlockingIOError:
                        continue
                    except (OSError, StopIteration):
                        break
    return attack


def calmly(step):
    """Again and again; what the coordinator cuts is begun anew."""
    def attack(port, until):
        count = 0
        while time.monotonic() < until:
            try:
                step(port, count, until)
            except OSError:
                time.sleep(0.05)
            count += 1
    return attack


def garbage(port, count, until):
    words = [os.urandom(300 + count % 1700), b"\x16\x03\x01\x02\0\x01" + os.urandom(200), b"GET / HTTP/1.1\r\n\r\n", PREFACE[:10],
             bytes([count % 20]) + b"\xff" * 8 * (count % 7), MAGIC + os.urandom(count % 64)]
    with socket.create_connection(("127.0.0.1", port)) as s:
        s.sendall(words[count % len(words)])


def silent(first):
    def step(port, count, until):
        """5,000 connections that say no more than `first`."""
        held = []
        try:
            while len(held) < 5000 and time.monotonic() < until:
                s = socket.create_connection(("127.0.0.1", port))
                held.append(s)
                s.sendall(first)
            time.sleep(max(0, min(1, until - time.monotonic())))
        finally:
            for s in held:
                s.close()
    return step


def connects(port, count, until):
    socket.create_connection(("127.0.0.1", port)).close()


def slow_readers(port, count, until):
    """500 lists, none taken."""
    held = []
    try:
        for _ in range(5):
            c = Connection(("127.0.0.1", port))
            held.append(c)
            for _ in range(100):
                c.start("Read", read_request(ended=True))
        time.sleep(max(0, min(3, until - time.monotonic())))
    finally:
        for c in held:
            c.socket.close()


def fat_groups(jobs, ranks, error):
    exits = b"".join(field(8, field(1, r) + field(2, 1) + field(9 - 1, b"e" * error)) for r in range(ranks))
    return b"".join(field(13, field(2, f"unknown-{i + 1}") + field(3, 1) + field(4, 4) + exits) for i in range(jobs))


def fat_hellos(port, count, until):
    """As fat as they may be, too fat, and of too many parts; each leaves at once."""
    bodies = [hello(f"fat-{count}", groups=fat_groups(60, 4, 2048)), hello(f"fat-{count}", groups=fat_groups(4096, 0, 0)),
              hello(f"fat-{count}", groups=fat_groups(3, 4096, 0)), hello(f"fat-{count}", groups=b"\x6a\0" * 450_000),
              hello(f"fat-{count}", groups=fat_groups(400, 1, 8000))]
    with Connection(("127.0.0.1", port)) as c:
        for i in range(10):
            c.start("Session", bodies[(count + i) % len(bodies)], end=False)


def half_hellos(port, count, until):
    """200 sessions, each one byte short of its hello of nearly 1 MiB."""
    held = []
    try:
        for _ in range(4):
            c = Connection(("127.0.0.1", port), timeout=2)
            held.append(c)
            for _ in range(50):
                c.start("Session", None)
                c.send(frame(DATA, c.stream, b"\0" + struct.pack(">I", 1 << 20)))
                c.room[c.stream] -= 5
                for _ in range(63):
                    if c.room[0] < 16384 or c.room[c.stream] < 16384:
                        break
                    c.send(frame(DATA, c.stream, b"x" * 16384))
                    c.room[0] -= 16384
                    c.room[c.stream] -= 16384
        time.sleep(max(0, min(5, until - time.monotonic())))
    finally:
        for c in held:
            c.socket.close()


def node_storm(port, count, until):
    """Ever new nodes, each gone at once."""
    with Connection(("127.0.0.1", port)) as c:
        for i in range(100):
            c.until_end(c.start("Session", hello(f"storm-{count}-{i}")))


def name_storm(port, count, until):
    """Ever new nodes of one name."""
    with Connection(("127.0.0.1", port)) as c:
        for i in range(100):
            c.until_end(c.start("Session", hello("same", node=f"id-{count}-{i}")))


def submits(port, count, until):
    """Jobs that wait for more nodes than there are."""
    with Connection(("127.0.0.1", port)) as c:
        for i in range(200):
            c.call("Submit", submit_request(f"key-{count}-{i}", "job", ["true"], nodes=1000))


ATTACKS = {name: flood(make) for name, make in FLOODS.items()}
ATTACKS.update({
    "garbage": calmly(garbage),
    "silent": calmly(silent(b"")),
    "silent_before_proof": calmly(silent(MAGIC + b"x" * 31)),
    "silent_after_preface": calmly(silent(PREFACE + frame(SETTINGS))),
    "connects": calmly(connects),
    "slow_readers": calmly(slow_readers),
    "fat_hellos": calmly(fat_hellos),
    "half_hellos": calmly(half_hellos),
    "node_storm": calmly(node_storm),
    "name_storm": calmly(name_storm),
    "submits": calmly(submits),
})
