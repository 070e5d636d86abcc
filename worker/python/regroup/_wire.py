"""The lines that a worker and its agent exchange: proto/local.proto in protobuf's JSON mapping."""
import json
import math
import time
from dataclasses import dataclass
from typing import Any, Dict, Optional, Union

from ._context import Context

VERSION = 1
MAX_LINE_BYTES = 64 << 10
MAX_TEXT_BYTES = 4096
_MAX_INTEGER = (1 << 63) - 1
_MAX_LEFT_S = 1e6

INTEGERS = ("step", "samples", "tokens", "restored_step")
NUMBERS = ("loss", "tokens_per_second", "init_s", "restore_s", "first_step_s", "checkpoint_s")


@dataclass(frozen=True)
class Notice:
    """This node, or this group of workers, is about to go: save now. `deadline` is of time.monotonic()."""

    deadline: float

    @property
    def remaining(self) -> float:
        """Seconds left, never below 0."""
        return max(0.0, self.deadline - time.monotonic())


@dataclass(frozen=True)
class Question:
    """May this checkpoint be published?"""

    attempt: int
    step: int
    path: str
    manifest_hash: str
    for_notice: bool


@dataclass(frozen=True)
class Answer:
    attempt: int
    step: int
    accepted: bool
    why_not: str


def _line(kind: str, body: Dict[str, Any]) -> bytes:
    return json.dumps({kind: body}, separators=(",", ":"), allow_nan=False).encode("ascii") + b"\n"


def hello(who: Context, local_rank: int, token: str, takes_notice: bool) -> bytes:
    return _line("hello", {"version": VERSION, "job": who.job, "generation": who.generation, "rank": who.rank,
                           "local_rank": local_rank, "token": token, "takes_notice": takes_notice})


def progress(report: Dict[str, Any]) -> bytes:
    """Fields that are no number, not finite or out of range are left out: they must not cost the connection."""
    body: Dict[str, Union[int, float]] = {}
    for name in INTEGERS:
        number = integer(report.get(name))
        if number is not None:
            body[name] = number
    for name in NUMBERS:
        value = _finite(report.get(name))
        if value is not None:
            body[name] = value
    return _line("progress", body)


def commit(question: Question) -> bytes:
    return _line("commit", {"attempt": question.attempt, "step": question.step, "path": question.path,
                            "manifest_hash": question.manifest_hash, "for_notice": question.for_notice})


def integer(value: Any) -> Optional[int]:
    """`value` if it is a whole number that the wire can carry."""
    try:
        number = int(value)
        return number if number == value and 0 <= number <= _MAX_INTEGER else None
    except Exception:  # Whatever a stranger's __int__ raises.
        return None


def _finite(value: Any) -> Optional[float]:
    try:
        number = float(value)
        return number if math.isfinite(number) else None
    except Exception:  # Also what reading a tensor raises.
        return None


def parse(line: bytes) -> Optional[Dict[str, Any]]:
    """The agent's line as an object; None: nothing that can be used (an agent may be newer, and say more)."""
    try:
        value = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def notice_of(body: Any) -> Notice:
    left = body.get("leftS", body.get("left_s", 0)) if isinstance(body, dict) else 0
    seconds = _finite(left)
    if seconds is None or not 0 < seconds < _MAX_LEFT_S:
        seconds = 0.0  # Not a number, negative or beyond reason: as good as none left.
    return Notice(time.monotonic() + seconds)


def answer_of(body: Any) -> Optional[Answer]:
    if not isinstance(body, dict):
        return None
    try:  # 64-bit numbers are text in protobuf's mapping, and what is 0 or false is left out.
        return Answer(int(body.get("attempt", 0)), int(body.get("step", 0)), body.get("accepted", False) is True,
                      str(body.get("whyNot", body.get("why_not", ""))))
    except (TypeError, ValueError):
        return None
