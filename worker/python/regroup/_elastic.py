"""A function that is called again, in the same process, when its generation ends."""
import functools
import sys
from types import SimpleNamespace
from typing import Any, Callable, List, TypeVar, cast

from . import _agree, _groups, _join, _sharded, _state, _worker
from ._client import logger
from ._context import context
from ._groups import groups
from ._join import Place

F = TypeVar("F", bound=Callable[..., Any])


class Kept(SimpleNamespace):
    """What a function of @regroup.elastic keeps from one call to the next: its attributes."""

    def __init__(self) -> None:
        super().__init__()
        self._place = Place()

    def once(self, name: str, make: Callable[[], Any]) -> Any:
        """The attribute `name`, which `make()` makes the first time."""
        if not hasattr(self, name):
            setattr(self, name, make())
        return getattr(self, name)

    @property
    def step(self) -> int:
        """How many steps are done, by all ranks."""
        return self._place.step

    def agree(self) -> None:
        """In each call, on every rank, once the groups and all that is kept are there: ranks meet, and whatever has a
        state_dict() becomes as it is on a rank that has done the most steps."""
        modules, optimizers, others = self._parts()
        state = _state.State(_Modules(modules), optimizers, others)
        for module in modules:
            _sharded.put_back(module)
        if groups.active:
            if groups.alone:
                _join.join(self._place, state)
        else:
            _join.agree_by_collectives(self._place, state)
        self._place.valid = True

    def done(self) -> None:
        """After each step. Does not return when the generation is over: the function is called again."""
        self._place.step += 1
        self._place.batches = self._place.optimized = self._place.step
        _worker.progress(self._place.step)
        client = _worker._client
        if client is not None and client.retire is not None:
            raise _groups.Interrupted

    def _parts(self) -> "tuple[List[Any], List[Any], List[Any]]":
        torch = sys.modules["torch"]
        kept = [value for name, value in sorted(vars(self).items()) if not name.startswith("_")]
        modules = [value for value in kept if isinstance(value, torch.nn.Module)]
        optimizers = [value for value in kept if hasattr(value, "param_groups")]
        others = [value for value in kept if hasattr(value, "state_dict") and not any(value is x for x in (*modules, *optimizers))]
        return modules, optimizers, others


class _Modules:
    """Several modules as one."""

    def __init__(self, modules: List[Any]) -> None:
        self._modules = modules

    def parameters(self) -> List[Any]:
        return [parameter for module in self._modules for parameter in module.parameters()]

    def buffers(self) -> List[Any]:
        return [buffer for module in self._modules for buffer in module.buffers()]

    def modules(self) -> List[Any]:
        return []  # Wrappers are made anew by the function.


def elastic(function: F) -> F:
    """Decorates a training's function, which is called again when its generation ends, with what it kept.

        @regroup.elastic
        def train(kept):
            if not dist.is_initialized():
                dist.init_process_group("gloo")
            model = kept.once("model", Net)
            optimizer = kept.once("optimizer", lambda: SGD(model.parameters(), 0.1))
            ddp = DistributedDataParallel(model)
            kept.agree()
            while kept.step < steps:
                ...                             # one step, at place kept.step of the data
                kept.done()

    Further arguments are handed on. With `import regroup.inplace`, PyTorch 2.15 and Gloo the process groups are changed in
    place; else they are destroyed, and the function makes them again. Outside Regroup it is called once.
    """
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        kept = Kept()
        client = _worker.client()
        if not context().under_regroup or client is None:
            return function(kept, *args, **kwargs)
        client.offer_in_place(groups.break_off)
        _agree._on_error = _join.loses
        while True:
            try:
                return function(kept, *args, **kwargs)
            except Exception as error:
                if not _join.loses(error):
                    raise
                logger.debug("this generation is over", exc_info=True)
            _join.survive(lambda: _again(kept))
    return cast(F, call)


def _again(kept: Kept) -> None:
    """After retire(): the function may be called."""
    if groups.active and kept._place.valid:
        if _join.come(0):
            groups.configure_alone()
        return
    dist = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_available() and dist.is_initialized():
        modules, optimizers, _ = kept._parts()
        if _sharded.shard_of(_state.State(_Modules(modules), optimizers, []).parameters()) is not None:
            raise _groups.CannotGoOn("its parameters are distributed over ranks of process groups that have to be made anew")
        groups.break_off_now()
        dist.destroy_process_group()
