"""Telling Regroup of checkpoints: it then knows where a restart resumes, and after leave() that all is saved.

A checkpoint is published once the coordinator has accepted it: only of the current generation, and only of a higher
step than the one before. So a process that was given up, and does not know it yet, can't overwrite newer work.
"""
import ctypes
import errno
import os
import shutil
import time
from dataclasses import dataclass
from itertools import count
from typing import Callable, Optional

from . import _wire, _worker
from ._client import Asked, Client
from ._context import context

__all__ = ["Commit", "commit", "report", "restored", "save"]
_attempts = count(1, 2)  # The numbers between are leave()'s.


@dataclass(frozen=True)
class Commit:
    """The answer; true when the checkpoint may be published. Without Regroup nobody objects."""

    accepted: bool
    why_not: str = ""

    def __bool__(self) -> bool:
        return self.accepted


def commit(step: int, path: str = "", *, manifest_hash: str = "", timeout: float = 30.0) -> Commit:
    """Asks whether the checkpoint of `step`, durable in every part, may be published as `path`; waits for the answer.

    Rank 0 asks, after every rank's part is on the disk; on other ranks nothing is asked and the answer is no.
    `manifest_hash` (hexadecimal) tells two checkpoints of one step apart. No answer in time is a no.
    """
    c = _worker.client()
    if c is None:
        return Commit(True)
    asked = _ask(c, step, path, manifest_hash)
    if isinstance(asked, Commit):
        return asked
    if not asked.done.wait(timeout):
        c.give_up(asked)
    if asked.answer is None:
        return Commit(False, f"the coordinator has not answered whether step {step} may be committed")
    return Commit(asked.answer.accepted, asked.answer.why_not)


def report(step: int, path: str = "", *, manifest_hash: str = "") -> None:
    """Tells of a checkpoint that is in its place already; waits for nobody. Rank 0's; other ranks' are ignored."""
    c = _worker.client()
    if c is not None:
        _ask(c, step, path, manifest_hash)


def restored(step: int, seconds: Optional[float] = None) -> None:
    """Tells which checkpoint this process has loaded, and how long that took."""
    _worker.progress(step, restored_step=step, restore_s=seconds)


def save(step: int, path: str, write: Callable[[str], object], *, timeout: float = 30.0) -> Commit:
    """On rank 0: has `write(partial)` write a file or folder, makes it durable, asks, and then moves it to `path`.

    At no time is there half a checkpoint at `path`. Other ranks do nothing. Raises what `write` raises, and OSError
    when the disk does not take it.
    """
    if context().rank != 0:
        return Commit(False, _only_rank_0(context().rank))
    begun = time.monotonic()
    path = os.path.abspath(path)
    partial = f"{path}.partial-{os.getpid()}"
    try:
        write(partial)
        _sync_tree(partial)
        answer = commit(step, path, timeout=timeout)
        if answer:
            _move(partial, path)
        return answer
    finally:
        _remove(partial)
        _worker.add_checkpoint_time(time.monotonic() - begun)


def _only_rank_0(rank: int) -> str:
    return f"rank 0 commits, this is rank {rank}"


def _ask(c: Client, step: int, path: str, manifest_hash: str) -> "Asked | Commit":
    if c.who.rank != 0:
        return Commit(False, _only_rank_0(c.who.rank))
    number = _wire.integer(step)
    if number is None:
        return Commit(False, f"step {step!r} is no step")
    digest = manifest_hash.lower()
    if len(digest) > 128 or set(digest) - set("0123456789abcdef"):
        return Commit(False, "the manifest's hash is not at most 128 hexadecimal digits")
    where = os.fspath(path)
    if len(os.fsencode(where)) > _wire.MAX_TEXT_BYTES:
        return Commit(False, f"a path of more than {_wire.MAX_TEXT_BYTES} bytes")
    if number > (_wire.integer(c.reported("step")) or 0):
        c.report({"step": number})
    question = _wire.Question(next(_attempts), number, where.encode("utf-8", "replace").decode("utf-8"), digest,
                              for_notice=False)
    _worker.asked(question)
    asked = c.ask(question)
    return Commit(False, "too many commits wait for an answer") if asked is None else asked


def _sync_tree(path: str) -> None:
    if os.path.isdir(path):
        for entry in os.scandir(path):
            if not entry.is_symlink():
                _sync_tree(entry.path)
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _move(partial: str, path: str) -> None:
    old = f"{path}.old-{os.getpid()}"
    if not os.path.isdir(path):
        os.replace(partial, path)
    elif not _exchange(partial, path):  # `partial` is the old one then.
        os.rename(path, old)  # A folder does not replace another one.
        os.rename(partial, path)
    fd = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)  # Without it a power cut may undo the move.
    finally:
        os.close(fd)
    _remove(old)


def _exchange(one: str, other: str) -> bool:
    """Swaps two names in one step. False where the C library or the file system cannot."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    at_cwd, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    if rename(at_cwd, os.fsencode(one), at_cwd, os.fsencode(other), ctypes.c_uint(exchange)) == 0:
        return True
    if ctypes.get_errno() in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
        return False
    raise OSError(ctypes.get_errno(), f"cannot put {one} in place of {other}")


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    elif os.path.lexists(path):
        os.unlink(path)
