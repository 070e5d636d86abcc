"""The lines that a worker and its agent exchange: proto/local.proto in protobuf's JSON mapping."""
import json
import math
import time
from dataclasses import dataclass
from typing import Any, Dict, Optional, Tuple, Union

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
class Retire:
    """This generation is over: take part in nothing of it any more, and wait for the next one. By `deadline`, of
    time.monotonic(), or the process is killed."""

    generation: int
    deadline: float


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


def hello(who: Context, local_rank: int, token: str, takes_notice: bool, in_place: bool = False) -> bytes:
    body = {"version": VERSION, "job": who.job, "generation": who.generation, "rank": who.rank, "local_rank": local_rank,
            "token": token, "takes_notice": takes_notice}
    # Left out where it is false: an agent that does not know it need not skip it.
    return _line("hello", {**body, "in_place": True} if in_place else body)


def retired(generation: int) -> bytes:
    return _line("retired", {"generation": generation})


def cannot_go_on(generation: int, why: str) -> bytes:
    text = why.encode("utf-8", "replace")[:MAX_TEXT_BYTES].decode("utf-8", "ignore")
    return _line("cannot_go_on", {"generation": generation, "why": text})


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


def retire_of(body: Any) -> Optional[Retire]:
    generation = _generation_of(body)
    return None if generation is None else Retire(generation, notice_of(body).deadline)


def new_generation_of(body: Any) -> Optional[Tuple[int, Dict[str, str]]]:
    """Its number, and the variables of a process of this rank."""
    generation = _generation_of(body)
    variables = body.get("environment", {}) if isinstance(body, dict) else None
    if generation is None or not isinstance(variables, dict):
        return None
    if not all(isinstance(name, str) and isinstance(value, str) for name, value in variables.items()):
        return None
    return generation, variables


def _generation_of(body: Any) -> Optional[int]:
    try:  # As text: a 64-bit number.
        return int(body.get("generation", 0)) if isinstance(body, dict) else None
    except (TypeError, ValueError):
        return None


def answer_of(body: Any) -> Optional[Answer]:
    if not isinstance(body, dict):
        return None
    try:  # 64-bit numbers are text in protobuf's mapping, and what is 0 or false is left out.
        return Answer(int(body.get("attempt", 0)), int(body.get("step", 0)), body.get("accepted", False) is True,
                      str(body.get("whyNot", body.get("why_not", ""))))
    except (TypeError, ValueError):
        return None
