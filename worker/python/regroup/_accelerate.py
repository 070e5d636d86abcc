"""A loop written with Accelerate, in place: regroup.steps() over what accelerator.prepare() has returned."""
import sys
from typing import Any, Dict, List, Optional

from . import _steps
from ._context import context
from ._join import Place
from ._state import rng_state, set_rng_state


class Steps(_steps.Steps):
    """`parts`: model, optimizers, and what else has a state_dict() that a step changes; none: all that was prepared."""

    def __init__(self, accelerator: Any, loader: Any, parts: List[Any], epoch: Optional[int]) -> None:
        self._accelerator = accelerator
        self._models = [_steps.wrapper_of(model) for model in parts[:1] or accelerator._models]  # Accelerate keeps what it wraps.
        state = parts[1:] if parts else [*accelerator._optimizers, *accelerator._schedulers]
        source = _Source(accelerator, loader) if hasattr(loader, "synchronized_generator") else None
        counts = [] if source is None else [source]
        super().__init__(loader, self._models[0] if self._models else None, [*map(inner, state), *counts], epoch)
        self._source = source or self._source

    def _why_not(self) -> Optional[str]:
        why_not = super()._why_not()
        if why_not is not None:
            return why_not
        if len(self._models) != 1:
            return f"{len(self._models)} models are prepared: name the one that is trained, as in steps(loader, model, optimizer)"
        loader = self._source.loader
        if type(loader).__name__ == "DataLoaderDispatcher":
            return "its batches are dispatched by one rank (dispatch_batches)"
        if not isinstance(self._source, _Source):
            return "its loader is none of accelerator.prepare()"
        if not any(hasattr(getattr(loader, name, None), "num_processes") for name in ("sampler", "batch_sampler")):
            return "its dataset is iterable: how far each rank is cannot be told"
        why_not = why_not_in_place(self._accelerator)
        if why_not is None and "_regroup_made" not in self._models[0].__dict__:
            return "its model is in no DistributedDataParallel made after `import regroup.inplace`"
        return why_not


def inner(wrapped: Any) -> Any:
    """The optimizer in an AcceleratedOptimizer, which has no hooks; anything else as it is."""
    return wrapped.optimizer if hasattr(wrapped, "param_groups") and hasattr(wrapped, "optimizer") else wrapped


def why_not_in_place(accelerator: Any) -> Optional[str]:
    kind = str(getattr(accelerator.distributed_type, "value", accelerator.distributed_type))
    if kind not in ("MULTI_CPU", "MULTI_GPU"):
        return f"its Accelerate runs as {kind}, not as DistributedDataParallel"
    if getattr(accelerator, "scaler", None) is not None:
        return "it scales gradients for fp16 (bf16 needs no scaling)"
    return None


class _Source(_steps._Source):
    """A loader of accelerator.prepare(): it shards by itself, and an iteration begins with a broadcast. So all ranks begin
    a new one in a new generation, in the order that this epoch has had. Its state_dict() is what Accelerate counts."""

    def __init__(self, accelerator: Any, loader: Any) -> None:
        super().__init__(loader)
        self._accelerator, self.elastic, self.sampler = accelerator, None, None
        self._order: Any = None  # Of the sampler's random numbers, where this epoch began.
        self._begin_at, self._number = 0, 0
        self._drawn = False  # The random numbers that it takes to begin this epoch.

    def state_dict(self) -> Dict[str, Any]:
        return {"step": self._accelerator.step, "number": self.loader.iteration, "order": self._order, "drawn": self._drawn}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        self._accelerator.step, self.loader.iteration = state["step"], state["number"]
        self._order, self._drawn = state["order"], state["drawn"]

    def next(self) -> Any:
        if self._iterator is not None:
            return self._next()
        before, drawn = rng_state(), False
        try:
            self._start()
            batch = self._next()
            drawn = not self._drawn
        finally:
            if not drawn:
                set_rng_state(before)
        self._drawn = True
        return batch

    def _next(self) -> Any:
        assert self._iterator is not None
        try:
            return next(self._iterator)
        except StopIteration:
            self.loader.iteration = self._number + 1
            raise

    def _start(self) -> None:
        loader = self.loader
        if loader.rng_types and loader.synchronized_generator is not None:
            if self._order is not None:
                loader.synchronized_generator.set_state(self._order)
            sys.modules["accelerate.data_loader"].synchronize_rng_states(loader.rng_types, loader.synchronized_generator)
            self._order = loader.synchronized_generator.get_state()
        self._number = loader.iteration
        rest = sys.modules["accelerate.data_loader"].skip_first_batches(loader, self._begin_at) if self._begin_at else loader
        self._iterator = iter(rest)

    def advance(self) -> int:
        return int(self.loader.total_batch_size)

    def begin(self, batches: int) -> None:
        """Its communication is the first next()'s."""
        self._iterator, self._begin_at = None, batches

    def go_on(self, place: Place, held: List[Any], moved: bool) -> List[Any]:
        tell_accelerate(self._accelerator, self.loader)
        place.batches = place.samples // self.advance()
        self.begin(place.batches)
        return []


def tell_accelerate(accelerator: Any, loader: Any) -> None:
    """Accelerate keeps in many places who its ranks are."""
    ctx, state = context(), sys.modules["accelerate.state"]
    for shared in (state.PartialState._shared_state, state.AcceleratorState._shared_state):
        shared.update(num_processes=ctx.world_size, process_index=ctx.rank, local_process_index=ctx.local_rank)
    for part in (getattr(loader, "batch_sampler", None), getattr(loader, "sampler", None), getattr(loader, "dataset", None)):
        if hasattr(part, "num_processes") and hasattr(part, "process_index"):
            part.num_processes, part.process_index = ctx.world_size, ctx.rank
    accelerator.gradient_state.dataloader_references = [None]  # Iterations that were broken off.
