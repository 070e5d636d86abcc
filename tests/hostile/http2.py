"""Frames of HTTP/2 and messages of proto/, byte by byte: what a client library would not send."""
import socket
import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RESET, SETTINGS, PING, GOAWAY, WINDOW, CONTINUATION = 0, 1, 2, 3, 4, 6, 7, 8, 9
END_STREAM, END_HEADERS, ACK = 1, 4, 1
SERVICE = "/regroup.v1.Coordinator/"


def frame(kind, stream=0, payload=b"", flags=0):
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def literal(name, value):
    """A header that enters no table."""
    out = b"\0"
    for text in (name.encode(), value.encode()):
        assert len(text) < 127
        out += bytes([len(text)]) + text
    return out


def open_call(stream, call, deadline="60S", end=False):
    fields = [(":method", "POST"), (":scheme", "http"), (":path", SERVICE + call), (":authority", "a"), ("te", "trailers"),
              ("content-type", "application/grpc")]
    if deadline:
        fields.append(("grpc-timeout", deadline))
    return frame(HEADERS, stream, b"".join(literal(*f) for f in fields), END_HEADERS | (END_STREAM if end else 0))


def varint(value):
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def field(number, value):
    """Of a message: a number, or bytes, text or another message."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    value = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(value)) + value


def read_request(jobs=True, selector="", detail=False, ended=False):
    return field(1, 1 if jobs else 2) + field(2, selector) + field(3, int(detail)) + field(4, int(ended))


def hello(name, node=None, groups=b"", notices=b"", version=None):
    """An AgentMessage."""
    version = version or field(1, 1) + field(2, 2) + field(3, "fake")
    body = (field(3, node or f"id-{name}") + field(4, 1) + field(5, "boot") + field(6, name) + field(8, 1) + field(9, version) +
            field(10, "127.0.0.1") + field(11, "127.0.0.1") + groups + notices)
    return field(1, body)


def submit_request(key, name, command, nodes=1):
    spec = (field(1, name) + field(2, 2) + field(3, nodes) + field(4, nodes) + field(5, 1) + field(6, 1) +
            b"".join(field(7, word) for word in command) + field(8, "/") + field(10, 10**10) + field(11, 6 * 10**10) + field(15, 1))
    return field(1, key) + field(2, spec)


class Connection:
    """A client that does as it likes, but sends no more than it may. `window`: what the server may send on each stream."""

    def __init__(self, address, window=65535, timeout=20):
        family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
        self.socket = socket.socket(family, socket.SOCK_STREAM)
        self.socket.settimeout(timeout)
        self.socket.connect(address)
        if family != socket.AF_UNIX:
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.stream, self.buffer = -1, b""
        self.initial, self.room = 65535, {0: 65535}  # What may be sent on a new stream; on each and, by 0, on all.
        self.send(PREFACE + frame(SETTINGS, 0, struct.pack(">HI", 4, window)))

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.socket.close()

    def send(self, data):
        self.socket.sendall(data)

    def start(self, call, body=None, deadline="60S", end=True):
        """A new call, with its first message if there is one. None: the connection is over."""
        self.stream += 2
        self.room[self.stream] = self.initial
        self.send(open_call(self.stream, call, deadline))
        return self.stream if body is None or self.post(self.stream, body, end) else None

    def post(self, stream, body, end=True):
        """One message of gRPC; False: the stream or the connection was over before."""
        data = b"\0" + struct.pack(">I", len(body)) + body
        while data:
            size = min(16384, len(data), self.room[0], self.room[stream])
            if size <= 0:
                got = self.frame()
                if got is None or got[2] == stream and (got[0] == RESET or got[0] == HEADERS and got[1] & END_STREAM):
                    return False
                continue
            piece, data = data[:size], data[size:]
            self.room[0] -= size
            self.room[stream] -= size
            self.send(frame(DATA, stream, piece, END_STREAM if end and not data else 0))
        return True

    def frame(self):
        """The next frame: kind, flags, stream, payload; obeys what it says of windows. None: the connection is over."""
        while len(self.buffer) < 9 or len(self.buffer) < 9 + int.from_bytes(self.buffer[:3], "big"):
            try:
                got = self.socket.recv(1 << 16)
            except ConnectionError:
                return None
            if not got:
                return None
            self.buffer += got
        size, kind, flags = int.from_bytes(self.buffer[:3], "big"), self.buffer[3], self.buffer[4]
        stream, payload = int.from_bytes(self.buffer[5:9], "big"), self.buffer[9:9 + size]
        self.buffer = self.buffer[9 + size:]
        if kind == SETTINGS and not flags & ACK:
            for name, value in struct.iter_unpack(">HI", payload):
                if name == 4:
                    self.room = {on: room + (value - self.initial if on else 0) for on, room in self.room.items()}
                    self.initial = value
            self.send(frame(SETTINGS, 0, b"", ACK))
        if kind == PING and not flags & ACK:
            self.send(frame(PING, 0, payload, ACK))
        if kind == WINDOW:
            self.room[stream] = self.room.get(stream, 0) + int.from_bytes(payload, "big")
        return kind, flags, stream, payload

    def until_end(self, stream):
        """What comes on this stream until its end, and its last headers or reset. None: the connection is over."""
        data = b""
        while True:
            got = self.frame()
            if got is None:
                return None
            kind, flags, on, payload = got
            if kind == DATA and payload:
                more = struct.pack(">I", len(payload))
                self.send(frame(WINDOW, 0, more) + frame(WINDOW, on, more))
            if on != stream:
                continue
            if kind == DATA:
                data += payload
            if kind == RESET or flags & END_STREAM and kind in (DATA, HEADERS):
                del self.room[stream]
                return data[5:], payload

    def call(self, call, body):
        stream = self.start(call, body)
        return self.until_end(stream) if stream else None
