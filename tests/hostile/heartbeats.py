"""How fast agents are answered."""
import collections
import time

from http2 import DATA, Connection, field, hello

BEAT_EVERY = 1.8  # One heartbeat in a third of the lease is answered.


def probe(port, agents, results):
    """Agents on connections of their own, whose heartbeats are answered one after another, until told to stop; when and how long each
    took."""
    def answered(agent, last=b""):
        while True:
            got = agent.frame()
            assert got is not None, "an agent's session was cut"
            if got[0] == DATA and got[3] and got[3].endswith(last):
                return time.monotonic()

    sessions = collections.deque()
    for i in range(agents):
        agent = Connection(("127.0.0.1", port))
        agent.session = agent.start("Session", hello(f"agent-{i}"), deadline="", end=False)
        sessions.append(agent)
    for i, agent in enumerate(sessions):
        agent.due = answered(agent) + BEAT_EVERY * i / agents  # One by one, not all at once.
    took = []
    while not results.poll(max(0, sessions[0].due - time.monotonic())):
        agent = sessions[0]
        begun = time.monotonic()
        agent.post(agent.session, field(3, field(1, 0)), end=False)
        end = answered(agent, field(10, b""))  # A HeartbeatAnswer.
        took.append((begun, end - begun))
        agent.due = end + BEAT_EVERY  # Sooner it would not be answered.
        sessions.rotate(-1)
    results.send(took)
    for agent in sessions:
        agent.socket.close()


def p99(took, begin, end):
    """What 99 of 100 did not exceed, of those that were begun meanwhile."""
    times = sorted(seconds for at, seconds in took if begin <= at < end)
    return times[len(times) * 99 // 100] if times else 0.0
