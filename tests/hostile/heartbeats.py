"""How fast agents are answered."""
import collections
import time

from http2 import DATA, Connection, field, hello

BEAT_EVERY = 1.8  # One heartbeat in a third of the lease is answered.


def probe(port, agents, results):
    """Agents on connections of their own, whose heartbeats are answered one after another, until it hears "the end". Whatever it hears,
    it says when each was due since the last time, and how long after that its answer was there."""
    def answered(agent, what=None):
        while True:
            got = agent.frame()
            assert got is not None, "an agent's session was cut"
            if got[0] == DATA and got[3] and got[3] == (what or got[3]):
                return time.monotonic()

    sessions = collections.deque()
    for i in range(agents):
        agent = Connection(("127.0.0.1", port))
        agent.session = agent.start("Session", hello(f"agent-{i}"), deadline="", end=False)
        sessions.append(agent)
    for i, agent in enumerate(sessions, 1):  # While a Welcome is being written no heartbeat is answered.
        agent.due = answered(agent) + BEAT_EVERY * i / agents  # One by one, not all at once.
    took, said = [], ""
    while said != "the end":
        if results.poll(max(0, sessions[0].due - time.monotonic())):
            said = results.recv()
            results.send(took)
            took = []
            continue
        agent = sessions[0]
        agent.post(agent.session, field(3, field(1, 0)), end=False)
        end = answered(agent, bytes(5))  # A message with nothing in it.
        took.append((agent.due, end - agent.due))  # Who had to wait behind a slow one was answered late.
        agent.due = end + BEAT_EVERY  # Sooner it would not be answered.
        sessions.rotate(-1)
    for agent in sessions:
        agent.socket.close()


def p99(took):
    """What 99 of 100 did not exceed."""
    times = sorted(seconds for _, seconds in took)
    return times[len(times) * 99 // 100] if times else 0.0
