"""What transformers.Trainer and lightning.Trainer have in common in place: a trainer counts more than a loop does.

A step is done once all that a trainer does after the optimizer (schedule, counters, logs, evaluation, saving) is done too.
Until then that is done again after a loss, with what the step has come to (`outcome`).
"""
from typing import Any, Dict, List, Optional

from . import _groups, _join, _steps, _worker
from ._client import logger
from ._groups import groups
from ._join import Place
from ._state import State, rng_state


class Training:
    """One call of train() or fit(). A derived class says what its trainer counts."""

    def __init__(self, model: Any, optimizers: List[Any], others: List[Any]) -> None:
        self.place = Place()
        self._state = TrainerState(self, model, optimizers, others)
        self.outcome: Optional[Dict[str, Any]] = None  # Of a step that the optimizer has done.
        self.received: Dict[str, Any] = {}  # What another rank has said(), while its state is taken.

    def counted(self) -> Any:
        """What a step changes besides parameters, optimizer and schedule."""
        raise NotImplementedError

    def count(self, counted: Any) -> None:
        """Back to that."""
        raise NotImplementedError

    def said(self) -> Dict[str, Any]:
        """The same and more, for other ranks."""
        raise NotImplementedError

    def take(self, said: Dict[str, Any]) -> None:
        """Becomes as the rank is that has said it."""
        raise NotImplementedError

    @property
    def within(self) -> bool:
        """Whether a step has begun."""
        return bool(self._state._before) or self._state.rng is not None

    def meet_others(self) -> None:
        """In a new generation, and after rewind(). Counters, and random numbers for the step that is done again, as they are
        on a rank that is furthest."""
        state, within = self._state, self.within
        mine, self.received = self.counted(), {}
        if _join.join(self.place, state):
            self.take(self.received)
            state.rng = rng_state() if self.received["within"] else None
        else:
            self.count(mine)
            state.rng = state.rng_before() if within else None
        state.settle()

    @staticmethod
    def is_over() -> bool:
        client = _worker._client
        return client is not None and client.retire is not None


class TrainerState(State):
    """With what a trainer counts besides."""

    def __init__(self, training: Training, model: Any, optimizers: List[Any], others: List[Any]) -> None:
        super().__init__(model, optimizers, others)
        self._training = training
        self.rng: Any = None  # To be set once the next batches are there.

    def remember(self) -> None:
        super().remember()
        self._before["counted"] = self._training.counted()

    def rewind(self) -> None:
        super().rewind()
        if self._before:
            self._training.count(self._before["counted"])

    def rng_before(self) -> Any:
        return self.rng if self.rng is not None else super().rng_before()

    def send(self, group: Any, rank: int, more: Dict[str, Any]) -> None:
        said = {**self._training.said(), "within": self._training.within}
        super().send(group, rank, {**more, "training": said})

    def receive(self, group: Any, rank: int) -> Dict[str, Any]:
        more = super().receive(group, rank)
        self._training.received = more.pop("training")
        return more


def lose(error: Exception) -> None:
    """Returns where a step is lost by it, and so is to be done again."""
    if isinstance(error, _groups.CannotGoOn):
        _groups.await_the_end(str(error))
    if not _join.loses(error):
        raise error
    logger.debug("a step was lost", exc_info=True)


_trainings = 0


def offered(model: Any, optimizer: Any, why_not: Optional[str]) -> bool:
    """Whether a training goes on in place; said if not. `why_not`: what the trainer says of itself."""
    global _trainings
    _trainings += 1
    plain = _steps._why_not(model, [optimizer])
    why_not = plain if plain is not None else why_not
    if why_not is None and _trainings > 1:
        why_not = f"this is training number {_trainings} of its script, and a new rank begins with the first"
    if why_not is None and not hasattr(optimizer, "register_step_post_hook"):
        why_not = f"{type(optimizer).__name__} is no optimizer of PyTorch's kind"
    if why_not is None:
        return True
    if why_not and groups.alone:  # The others are no further than this, or they would not have come here.
        _groups.await_the_end(why_not)
    if why_not:
        logger.warning("this rank does not outlive its generation: %s", why_not)
    return False
