"""One worker's connection to its agent, served by a thread of its own."""
import errno
import logging
import math
import os
import select
import signal
import socket
import threading
import time
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Optional, Tuple

from . import _wire
from ._context import Context, context, local_rank_for_agent, token_for_agent

FIRST_REDIAL_S, LAST_REDIAL_S = 0.05, 0.5
REPORT_EVERY_S = 0.1
MAX_QUESTIONS = 16
_IDLE_S = 60.0
_CRASHES = {signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV}
_PATH_BYTES = 107  # Of a Unix socket's address.

logger = logging.getLogger("regroup")


class Asked:
    """A question on its way; `answer` is set once `done` is."""

    def __init__(self, question: _wire.Question) -> None:
        self.question = question
        self.done = threading.Event()
        self.answer: Optional[_wire.Answer] = None


class Client:
    """Says who this worker is, what it does and what it asks; hears notices and answers. Any thread.

    The newest report replaces one that was not sent yet. After a new connection everything that still counts is said
    again. An agent that is not there is dialled until it is: after 50 ms, doubling to 0.5 s.
    """

    def __init__(self, path: str, who: Context) -> None:
        self.who = who
        self.pid = os.getpid()
        self._path, self._local_rank, self._token = path, local_rank_for_agent(), token_for_agent()
        self._wake_reader, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_reader, False)
        os.set_blocking(self._wake_writer, False)

        # Of the thread.
        self._socket: Optional[socket.socket] = None
        self._incoming, self._outgoing = b"", b""
        self._said_takes_notice = self._welcomed = False
        self._redial_s = FIRST_REDIAL_S
        self._next_dial = 0.0

        # Guarded by _changed, whose lock may be taken again by the same thread: a signal handler may call us too.
        self._changed = threading.Condition()
        self._stopped = False
        self._takes_notice = False
        self._report: Optional[Dict[str, Any]] = None
        self._report_due = False
        self._next_report = 0.0
        self._questions: Deque[Asked] = deque()
        self._asking: Optional[Asked] = None
        self._question_due = False
        self._notice: Optional[_wire.Notice] = None
        self._callbacks: List[Callable[[_wire.Notice], object]] = []
        self._in_place: Optional[Callable[[], object]] = None  # Breaks off what this process does with others.
        self._hello_due = False
        self._retire: Optional[_wire.Retire] = None  # The newest.
        self._new_generation: Optional[Tuple[int, Dict[str, str]]] = None  # The newest.
        self._retired = 0  # The generation that this process says to have retired from.
        self._cannot: Optional[Tuple[int, str]] = None
        self._words_due = False  # Of the two above.
        self._sent = True

        self._thread = threading.Thread(target=self._run, name="regroup", daemon=True)
        self._thread.start()

    # ---- said by the program --------------------------------------------------------------------

    def report(self, fields: Dict[str, Any]) -> None:
        with self._changed:
            self._report = {**(self._report or {}), **fields}
            wake, self._report_due = not self._report_due, True
        if wake:
            self._wake()

    def reported(self, name: str) -> Any:
        with self._changed:
            return (self._report or {}).get(name)

    def ask(self, question: _wire.Question) -> Optional[Asked]:
        """None: too many questions wait already."""
        asked = Asked(question)
        with self._changed:
            if self._stopped or len(self._questions) >= MAX_QUESTIONS:
                return None
            self._questions.append(asked)
        self._wake()
        return asked

    def give_up(self, asked: Asked) -> None:
        with self._changed:
            if self._asking is asked:
                self._asking, self._question_due = None, False
            elif asked in self._questions:
                self._questions.remove(asked)
        self._wake()

    def take_notices(self) -> None:
        """From now on the agent tells this worker of a notice; before, it sends SIGTERM."""
        if self._takes_notice:
            return
        with self._changed:
            self._takes_notice = True
            # The coordinator waits only for workers that have spoken.
            self._report_due = self._report_due or self._report is None
            self._report = self._report or {"step": 0}
        self._wake()

    def on_notice(self, callback: Callable[[_wire.Notice], object]) -> None:
        with self._changed:
            self._callbacks.append(callback)
        self.take_notices()
        self._wake()

    def offer_in_place(self, break_off: Optional[Callable[[], object]]) -> None:
        """From now on this process can outlive its generation: once that ends, a thread of ours calls `break_off()`, and
        the program says retired(). None: no longer."""
        with self._changed:
            self._hello_due = self._hello_due or (break_off is None) != (self._in_place is None)
            self._in_place = break_off
        self._wake()

    @property
    def retire(self) -> Optional[_wire.Retire]:
        """Set while the generation that this process takes part in is over."""
        retire = self._retire
        return retire if retire is not None and retire.generation >= self.who.generation else None

    def await_retire(self, seconds: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self.retire is not None or self._stopped, seconds) and self.retire is not None

    def retired(self) -> None:
        with self._changed:
            self._retired, self._words_due = self.who.generation, True
        self._wake()

    def cannot_go_on(self, why: str) -> None:
        with self._changed:
            self._cannot, self._words_due = (self.who.generation, why), True
        self._wake()

    def await_new_generation(self, seconds: float) -> Optional[Tuple[int, Dict[str, str]]]:
        """The next generation of a process that has retired; None: not within this time."""
        def come() -> bool:
            return self._stopped or (self._new_generation is not None and self._new_generation[0] > self.who.generation)
        with self._changed:
            return self._new_generation if self._changed.wait_for(come, seconds) and not self._stopped else None

    def adopt(self) -> None:
        """This process's variables are those of a new generation: says so."""
        with self._changed:
            self.who, self._local_rank, self._token = context(), local_rank_for_agent(), token_for_agent()
            self._hello_due = True
            self._report_due = self._report is not None
            self._notice = None  # If it still counts, it comes again.
            self._retired, self._words_due = 0, False
        self._wake()

    @property
    def notice(self) -> Optional[_wire.Notice]:
        return self._notice

    def flush(self, seconds: float) -> bool:
        """Returns once everything said has reached an agent, at the latest after `seconds`; whether it is."""
        with self._changed:
            self._next_report = 0.0
            self._wake()
            self._changed.wait_for(lambda: self._stopped or self._is_sent(), seconds)
            return self._is_sent()

    def close(self) -> None:
        with self._changed:
            self._stopped = True
        self._wake()
        self._thread.join(1.0)

    def drop(self) -> None:
        """In a forked child: closes what it inherited, so that the agent sees its parent's end."""
        if self._socket is not None:
            self._socket.close()
        for fd in (self._wake_reader, self._wake_writer):
            if fd >= 0:
                os.close(fd)

    # ---- the thread -----------------------------------------------------------------------------

    def _wake(self) -> None:
        with self._changed:  # The number of a closed descriptor may be somebody else's already.
            try:
                if self._wake_writer >= 0:
                    os.write(self._wake_writer, b"\0")
            except BlockingIOError:
                pass  # Full: it wakes up anyway.

    def _is_sent(self) -> bool:
        # An agent that greets us only now would find us gone, and read no further.
        return self._welcomed and self._sent and not (
            self._report_due or self._question_due or self._questions or self._hello_due or self._words_due)

    def _run(self) -> None:
        try:
            # The program's signals are its own: one that it blocks, to wait for it, must not be delivered here.
            signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.valid_signals()) - _CRASHES)
            while not self._stopped:
                now = time.monotonic()
                if self._socket is None and now >= self._next_dial:
                    self._dial()
                self._exchange(self._collect(now))
                self._call_back()
        except Exception:  # A defect of ours must not end a training, nor fill its log.
            logger.debug("no longer in touch with the agent", exc_info=True)
        finally:
            self._end()

    def _end(self) -> None:
        if self._socket is not None:
            self._socket.close()
        with self._changed:
            self._stopped = True
            waiting = [self._asking, *self._questions]
            os.close(self._wake_writer)
            os.close(self._wake_reader)
            self._wake_writer = self._wake_reader = -1
            self._changed.notify_all()
        for asked in waiting:
            if asked is not None:
                asked.done.set()

    def _dial(self) -> None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket = sock
        try:
            sock.setblocking(False)
            _connect(sock, self._path)
        except OSError:
            return self._hang_up()
        with self._changed:
            self._welcomed, self._outgoing = False, self._hello()
            # A new agent knows nothing yet.
            self._words_due = self._retired > 0 or self._cannot is not None
            self._report_due = self._report is not None
            self._question_due = self._asking is not None
        return None

    def _hang_up(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket, self._incoming, self._outgoing = None, b"", b""
        self._next_dial = time.monotonic() + self._redial_s
        self._redial_s = min(self._redial_s * 2, LAST_REDIAL_S)

    def _collect(self, now: float) -> float:
        """Queues what is due; returns after how many seconds to look again if nothing happens."""
        with self._changed:
            if self._socket is None:
                self._sent = False
                return max(0.0, self._next_dial - now)
            if self._hello_due or self._said_takes_notice != self._takes_notice:
                self._outgoing += self._hello()
            self._outgoing += self._words()
            if self._asking is None and self._questions:
                self._asking, self._question_due = self._questions.popleft(), True
            report, again = self._due_report(now)
            question = self._asking.question if self._asking is not None and self._question_due else None
        # A number may be a tensor that its device has not finished: reading it waits, and so does this thread.
        lines = b"" if report is None else _wire.progress(report)
        with self._changed:
            if question is not None:
                lines += _wire.commit(question)
                self._question_due = False
            self._outgoing += lines
            self._sent = not self._outgoing
            if self._is_sent():
                self._changed.notify_all()
        return again

    def _hello(self) -> bytes:
        self._hello_due, self._said_takes_notice = False, self._takes_notice
        return _wire.hello(self.who, self._local_rank, self._token, self._takes_notice, self._in_place is not None)

    def _words(self) -> bytes:
        """What a process that outlives its generation has to say."""
        due, self._words_due = self._words_due, False
        lines = b""
        if due and self._retired > 0:
            lines += _wire.retired(self._retired)
        if due and self._cannot is not None:
            lines += _wire.cannot_go_on(*self._cannot)
        return lines

    def _due_report(self, now: float) -> Tuple[Optional[Dict[str, Any]], float]:
        # One at a time: while the agent does not read, newer reports replace the one that waits. How far it came goes
        # before what it asks.
        if not self._report_due or self._report is None or (self._outgoing and not self._question_due):
            return None, _IDLE_S
        if now < self._next_report and not self._question_due:
            return None, self._next_report - now
        self._report_due = False
        self._next_report = now + REPORT_EVERY_S
        return self._report, _IDLE_S

    def _exchange(self, seconds: float) -> None:
        poll = select.poll()
        poll.register(self._wake_reader, select.POLLIN)
        if self._socket is not None:
            poll.register(self._socket, select.POLLIN | (select.POLLOUT if self._outgoing else 0))
        for fd, happened in poll.poll(math.ceil(1000 * seconds)):
            if fd == self._wake_reader:
                os.read(fd, 4096)
            elif self._socket is not None:
                if happened & select.POLLOUT:
                    self._write(self._socket)
                if self._socket is not None and happened & ~select.POLLOUT:
                    self._read(self._socket)

    def _write(self, sock: socket.socket) -> None:
        try:
            sent = sock.send(self._outgoing, socket.MSG_NOSIGNAL)
            self._outgoing = self._outgoing[sent:]
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._hang_up()

    def _read(self, sock: socket.socket) -> None:
        try:
            got = sock.recv(4096)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            got = b""
        if not got:
            return self._hang_up()
        *lines, self._incoming = (self._incoming + got).split(b"\n")
        for line in lines:
            self._obey(line)
        if len(self._incoming) > _wire.MAX_LINE_BYTES:
            self._hang_up()
        return None

    def _obey(self, line: bytes) -> None:
        said = _wire.parse(line)
        if said is None:
            return
        if "welcome" in said:
            self._redial_s, self._welcomed = FIRST_REDIAL_S, True
        elif "notice" in said:
            heard = _wire.notice_of(said["notice"])
            # Told again after a reconnect. It may come earlier than was said, never later.
            if self._notice is None or heard.deadline < self._notice.deadline:
                self._notice = heard
        elif "commit" in said:
            self._take_answer(_wire.answer_of(said["commit"]))
        elif "retire" in said:
            self._take_retire(_wire.retire_of(said["retire"]))
        elif "newGeneration" in said or "new_generation" in said:
            self._take_new_generation(_wire.new_generation_of(said.get("newGeneration", said.get("new_generation"))))

    def _take_answer(self, answer: Optional[_wire.Answer]) -> None:
        with self._changed:
            asked = self._asking
            if answer is None or asked is None:
                return
            if (answer.attempt, answer.step) != (asked.question.attempt, asked.question.step):
                return
            self._asking = None
        asked.answer = answer
        asked.done.set()

    def _take_retire(self, retire: Optional[_wire.Retire]) -> None:
        with self._changed:
            if retire is None or retire.generation < self.who.generation:
                return  # That one is over for us.
            if self._retire is not None and self._retire.generation >= retire.generation:
                # Said again: perhaps what we said was lost.
                self._words_due = self._retired > 0 or self._cannot is not None
                return
            self._retire = retire
            break_off = self._in_place
            self._changed.notify_all()
        if break_off is not None:
            break_off()

    def _take_new_generation(self, said: Optional[Tuple[int, Dict[str, str]]]) -> None:
        with self._changed:
            if said is not None and said[0] > max(self.who.generation, self._new_generation[0] if self._new_generation else 0):
                self._new_generation = said
                self._changed.notify_all()

    def _call_back(self) -> None:
        if self._notice is None:
            return
        with self._changed:
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            try:
                callback(self._notice)
            except Exception:
                logger.warning("a callback of regroup.on_notice() failed", exc_info=True)


def _connect(sock: socket.socket, path: str) -> None:
    if len(os.fsencode(path)) <= _PATH_BYTES:
        return sock.connect(path)
    folder, name = os.path.split(path)
    fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        short = f"/proc/self/fd/{fd}/{name}"
        if len(os.fsencode(short)) > _PATH_BYTES:
            raise OSError(errno.ENAMETOOLONG, "the name of the agent's socket is too long", path)
        return sock.connect(short)
    finally:
        os.close(fd)
