"""This process as a worker: one client, made when it is first needed, never in a process that must not speak."""
import atexit
import os
import signal
import sys
import threading
import time
from dataclasses import replace
from typing import Any, Callable, Dict, Optional

from . import _wire
from ._client import Client, logger
from ._context import context

NOTICE_EXPIRED = 17  # Exit code of a worker that left for a notice and was never stopped.
_AWAIT_STOP_S = 60.0  # After a notice's deadline.
_LAST_WORDS_S = 0.5  # They take a millisecond, unless the agent is away.

_lock = threading.RLock()  # A signal handler may call us while its own thread is here.
_client: Optional[Client] = None
_starting = False
_silent = False  # This process must not speak, or can't.
_seen = False  # The program knows of the notice.
_saved: Optional[_wire.Question] = None  # The newest checkpoint that was asked for.
_saved_for_notice = False


def client() -> Optional[Client]:
    """This worker's connection, or None where there is nobody to talk to."""
    if _client is not None or _silent:
        return _client
    return _start()


def _start() -> Optional[Client]:
    global _client, _silent, _starting
    path = os.environ.get("REGROUP_SOCKET", "")
    with _lock:
        if _client is None and not _silent and not _starting:
            if not path or _is_helper():
                _silent = True
                return None
            _starting = True
            try:
                _client = Client(path, context())
            except Exception:  # No thread or descriptor to be had: then without.
                logger.debug("cannot talk to the agent", exc_info=True)
                _silent = True
            finally:
                _starting = False
        return _client


def _is_helper() -> bool:
    """A DataLoader's worker or another daemonic child of a worker: its variables are its parent's, its work is not."""
    process = sys.modules.get("multiprocessing.process")
    return process is not None and bool(process.current_process().daemon)


def _after_fork() -> None:
    global _client, _silent, _seen, _lock, _starting
    inherited, _client = _client, None
    _lock, _seen, _starting = threading.RLock(), False, False
    if inherited is not None:
        _silent = True
        inherited.drop()


os.register_at_fork(after_in_child=_after_fork)


def progress(step: int, *, loss: Any = None, samples: Optional[int] = None, tokens: Optional[int] = None,
             tokens_per_second: Any = None, restored_step: Optional[int] = None, init_s: Optional[float] = None,
             restore_s: Optional[float] = None, first_step_s: Optional[float] = None,
             checkpoint_s: Optional[float] = None) -> None:
    """Tells how far this rank is: steps, samples and tokens done so far, by the whole job and over all restarts. Call it
    on every rank.

    Absolute and cheap: the newest report replaces one that was not sent yet. `restored_step` is the step of the
    checkpoint that this process loaded. Numbers may be tensors; those of a GPU are read in the background. What is no
    finite number is left out.
    """
    c = client()
    if c is None:
        return
    said = {"step": step, "loss": loss, "samples": samples, "tokens": tokens, "tokens_per_second": tokens_per_second,
            "restored_step": restored_step, "init_s": init_s, "restore_s": restore_s, "first_step_s": first_step_s,
            "checkpoint_s": checkpoint_s}
    try:
        c.report({name: _settled(name, value) for name, value in said.items() if value is not None})
    except Exception:
        logger.debug("a report was dropped", exc_info=True)


def _settled(name: str, value: Any) -> Any:
    """A number, or a tensor of another device that nobody else changes and that keeps no graph alive."""
    if getattr(value, "is_cuda", False):
        return value.detach().clone()
    if name in _wire.INTEGERS:
        return _wire.integer(value)
    try:
        return float(value)
    except Exception:
        return None


def should_stop() -> bool:
    """Whether this node has been told that it must go: save, then leave().

    Call it on every rank and at every step: from its first call on, a notice reaches this rank here instead of as
    SIGTERM. Ranks may hear of a notice a step apart; should_stop_together() makes them agree.
    """
    return notice() is not None


def notice() -> Optional[_wire.Notice]:
    """The notice, once there is one, with the time that is left."""
    global _seen
    c = client()
    if c is None:
        return None
    c.take_notices()
    heard = c.notice
    _seen = _seen or heard is not None
    return heard


def agree() -> None:
    """Another rank has heard of a notice, and this one leaves with it."""
    global _seen
    _seen = True


def noticed() -> bool:
    """Whether what is saved now is saved for a notice."""
    return _seen or (_client is not None and _client.notice is not None)


def on_notice(callback: Callable[[_wire.Notice], object]) -> None:
    """Has `callback(notice)` called once, from a thread of ours, when a notice comes. What it raises is logged."""
    c = client()
    if c is None:
        return

    def seen(heard: _wire.Notice) -> None:
        global _seen
        _seen = True
        callback(heard)
    c.on_notice(seen)


def finished() -> None:
    """All work is done: from now on exit code 0 means so, even though a notice has been seen."""
    global _seen
    _seen = False


def leave() -> None:
    """After a notice, on every rank that has saved: waits until this process is stopped, and does not return.

    Rank 0, once it has committed, also tells that all is saved: workers are then stopped at once, otherwise at the
    deadline. Without a notice it returns at once. Waiting is what tells "preempted" from "done": a worker that exits with 0 has
    finished its job. A program that was shown a notice and comes to its end does the same by itself, unless it called
    finished(), was ended by an exception, or left by os._exit().
    """
    c = client()
    if c is None or not _seen:
        return
    begun = time.monotonic()
    end_on_sigterm()
    _tell_saved(c)
    c.flush(_LAST_WORDS_S)
    while time.monotonic() < (c.notice.deadline if c.notice else begun) + _AWAIT_STOP_S:
        time.sleep(0.5)
    logger.warning("left for a notice, but nobody stopped this worker")
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            pass
    os._exit(NOTICE_EXPIRED)


def asked(question: _wire.Question) -> None:
    """Every rank has saved, and rank 0 asks whether that counts."""
    global _saved, _saved_for_notice
    _saved, _saved_for_notice = question, noticed()


def _tell_saved(c: Client) -> None:
    """The same commit once more, now as the last one: whoever waits for it may stop this job's workers. Not earlier, for
    they are stopped at once, and a checkpoint is published only after its commit."""
    if _saved is None or not (_saved_for_notice or _saved.step >= (c.reported("step") or 0)):
        return  # Ranks may be saving: they have until the deadline.
    c.ask(replace(_saved, attempt=_saved.attempt + 1, for_notice=True))


def torch_imports(*modules: str) -> None:
    """Names what a script imports in its functions, for `--warm`; called at its top with literal strings, in the order of
    their import. It is read there without being called: a call does nothing."""


def end_on_sigterm() -> None:
    """All is saved: SIGTERM may end this process, whatever a trainer had in mind for it."""
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    except ValueError:
        pass  # Not in the main thread.


def flush(seconds: float = 1.0) -> bool:
    """Waits until everything said is on its way, at most `seconds`; whether it is. True without Regroup."""
    c = client()
    return c is None or c.flush(seconds)


def add_checkpoint_time(seconds: float) -> None:
    c = client()
    if c is not None:
        c.report({"checkpoint_s": (c.reported("checkpoint_s") or 0.0) + seconds})


def report(fields: Dict[str, Any]) -> None:
    c = client()
    if c is not None:
        c.report(fields)


def _at_exit() -> None:
    if _client is None or _client.pid != os.getpid():
        return
    ended_by_exception = getattr(sys, "last_type", None) is not None
    if _seen and not ended_by_exception:
        leave()
    _client.flush(_LAST_WORDS_S)
    _client.close()


atexit.register(_at_exit)
