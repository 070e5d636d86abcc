"""What all ranks decide together, so that none leaves a collective that the others still wait in."""
import sys
from typing import Any, Callable, Optional

from . import _worker
from ._client import logger
from ._context import context


class _Ballot:
    """One vote a call, over a Gloo group of its own: the device is not waited for. The outcome is known a call later."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        # A new rank would not have it: who lives through generations votes in the group of all, in the order of calls.
        self._group = None if _on_error is not None else torch.distributed.new_group(backend="gloo")
        self._votes: Any = None
        self._work: Any = None

    def cast(self, vote: bool) -> bool:
        outcome = False
        if self._work is not None:
            self._work.wait()
            outcome = bool(self._votes.item())
        self._votes = self._torch.tensor([int(vote)], dtype=self._torch.int32)
        self._work = self._torch.distributed.all_reduce(
            self._votes, op=self._torch.distributed.ReduceOp.MAX, group=self._group, async_op=True)
        return outcome


_ballot: Optional[_Ballot] = None
_broken = False
_decided = False
_on_error: Optional[Callable[[BaseException], bool]] = None  # Whether an error comes of the end of a generation.


def should_stop_together() -> bool:
    """should_stop(), but the same on every rank: true one call after the first rank has heard of a notice.

    A collective: every rank calls it at the same places, usually once a step. With torch.distributed initialised the
    ranks vote on the CPU, in the background of the step; without it each rank is on its own.
    """
    global _decided
    if not context().under_regroup:
        return False
    torch = _distributed()
    if torch is None:
        return _worker.should_stop()
    if not _decided and not _broken:
        _decided = _vote(torch)
        if _decided:
            _worker.agree()
    return _decided


def _vote(torch: Any) -> bool:
    global _ballot, _broken
    try:
        if _ballot is None:
            _ballot = _Ballot(torch)
        return _ballot.cast(_worker.should_stop())
    except Exception as error:  # A rank is gone, and so will be this one; or there is no Gloo here.
        if _on_error is not None and _on_error(error):
            return False  # This one stays, and all of them vote anew in the next generation.
        logger.warning("ranks cannot agree on when to stop: notices go unheard", exc_info=True)
        _broken = True
        return False


def forget() -> None:
    """A new generation: all votes are cast anew."""
    global _ballot, _broken, _decided
    ballot, _ballot, _broken, _decided = _ballot, None, False, False
    try:
        if ballot is not None and ballot._work is not None:
            ballot._work.wait()  # Its group is broken off already.
    except Exception:
        logger.debug("a vote was lost", exc_info=True)


def _distributed() -> Any:
    """The torch module, if this program has more than one rank in torch.distributed."""
    torch = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    try:
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            return torch if distributed.get_world_size() > 1 else None
    except Exception:
        logger.debug("torch.distributed cannot be asked", exc_info=True)
    return None


def barrier() -> None:
    """Returns once every rank is here; at once without torch.distributed."""
    torch = _distributed()
    if torch is not None and context().under_regroup:
        torch.distributed.barrier()
