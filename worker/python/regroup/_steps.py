"""A loop over batches, and a function, that go on in the same process when their generation ends."""
import contextlib
import functools
import itertools
import sys
import threading
import weakref
from collections import deque
from typing import Any, Callable, Deque, Dict, Iterable, Iterator, List, Optional

from . import _agree, _groups, _join, _sharded, _worker
from ._client import logger
from ._context import context
from ._groups import groups
from ._join import Place
from ._sampler import ElasticSampler
from ._state import State, rng_state, set_rng_state

_current: "Optional[Steps]" = None  # Whose body runs.
_place = Place()
_loops = 0
_reported: Optional[int] = None
_hooked: "weakref.WeakSet[Any]" = weakref.WeakSet()
_wrappers: "weakref.WeakSet[Any]" = weakref.WeakSet()  # DistributedDataParallel that _join.renew_wrappers() can make anew.
_said: Dict[str, bool] = {}


def steps(loader: Iterable[Any], model: Any = None, *state: Any, epoch: Optional[int] = None) -> "Steps":
    """Iterates over `loader`, one epoch; a step that is lost with its generation is done again, in the same process.

        import regroup.inplace
        for epoch in range(epochs):
            sampler.set_epoch(epoch)
            for batch in regroup.steps(loader, model, optimizer, scheduler):
                ...

    `model` is what is trained, as it is called (DistributedDataParallel), `state` its optimizers, and what else has a
    state_dict() that a step changes. `epoch` is the number of this epoch, if neither the loader's sampler has it nor a
    count of these loops from the first one is it. A plain iteration outside Regroup, without `import regroup.inplace`,
    or where the groups of this process cannot change their members.
    """
    return Steps(loader, model, state, epoch)


class Steps:
    """`step`: how many steps are done, of all epochs; `batch`: how many batches of this epoch. Both count a batch that is
    done again once, which enumerate() does not."""

    def __init__(self, loader: Iterable[Any], model: Any, state: Iterable[Any], epoch: Optional[int]) -> None:
        optimizers = [part for part in state if hasattr(part, "param_groups")]
        others = [part for part in state if not hasattr(part, "param_groups") and hasattr(part, "state_dict")]
        self._state = State(model, optimizers, others)
        self._source = _Source(loader)
        self._epoch = epoch
        self._held: List[Any] = []  # Batches since the last step of an optimizer.
        self._again: Deque[Any] = deque()  # Of them, those to be done again.
        self._lost = self._settled = self._behind = self._plain = False
        self._thread = threading.get_ident()

    @property
    def step(self) -> int:
        return _place.step

    @property
    def batch(self) -> int:
        return _place.batches + max(0, len(self._held) - 1)

    def __iter__(self) -> Iterator[Any]:
        global _loops, _current
        _loops += 1
        why_not = self._why_not()
        if why_not is not None:
            if context().under_regroup and why_not and not _said.setdefault(why_not, False):
                _said[why_not] = True
                logger.warning("this rank does not outlive its generation: %s", why_not)
            yield from self._plainly()
            return
        if not self._enter():
            return
        while True:
            if self._is_over():
                self._recover()
                if self._behind:
                    return
                continue
            try:
                batch = self._again.popleft() if self._again else self._source.next()
            except StopIteration:
                return
            except Exception as error:
                if not self.loses(error):
                    raise
                continue
            self._begin(batch)
            _current = self
            try:
                yield batch
            finally:
                _current = None
            self._end()

    def _why_not(self) -> Optional[str]:
        # What a trainer does with a model that is distributed is not known.
        return _why_not(self._state.model, self._state.optimizers, distributed=type(self) is Steps)

    def _plainly(self) -> Iterator[Any]:
        """An iteration that only counts."""
        global _current
        self._plain = True
        for optimizer in self._state.optimizers:
            _hook(optimizer)
        _place.batches = 0
        for batch in self._source.loader:
            self._settled = False
            self._held.append(batch)
            _current = self
            try:
                yield batch
            finally:
                _current = None
            if not self._settled and not self._state.optimizers:
                self._settle()

    # ---- one step ---------------------------------------------------------------------------------

    def _begin(self, batch: Any) -> None:
        self._lost = self._settled = False
        if not self._held:
            self._state.remember()
            _place.note_rng(self._state.rng_before())
        self._held.append(batch)

    def _end(self) -> None:
        if not self._lost and not self._settled and not self._state.optimizers:
            self._settle()
        self._report()

    def _settle(self) -> None:
        """What is held is done: parameters have changed by it."""
        _place.batches += len(self._held)
        for _ in self._held:
            _place.samples += self._source.advance()
        _place.step += 1
        self._held.clear()
        self._state.settle()
        self._settled = True

    def optimizing(self, optimizer: Any) -> None:
        """An optimizer is about to step. After a lost backward() it has nothing to step by."""
        if self._lost and optimizer in self._state.optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad = None

    def optimized(self, optimizer: Any) -> None:
        if not self._lost and optimizer in self._state.optimizers:
            _place.optimized += 1
            if not self._settled:
                self._settle()

    def loses(self, error: BaseException) -> bool:
        self._lost = self._lost or (not self._plain and _join.loses(error))
        return self._lost

    @property
    def lost(self) -> bool:
        return self._lost and threading.get_ident() == self._thread

    @staticmethod
    def _report() -> None:
        """For a script that does not tell its progress itself."""
        global _reported
        client = _worker.client()
        if client is not None and client.reported("step") in (None, 0, _reported):
            _reported = _place.step
            _worker.progress(_place.step)

    # ---- generations ------------------------------------------------------------------------------

    def _enter(self) -> bool:
        """At the begin of an epoch. False: the others have done it already."""
        epoch = self._epoch if self._epoch is not None else self._source.epoch
        epoch = _loops - 1 if epoch is None else epoch
        for optimizer in self._state.optimizers:
            _hook(optimizer)
        _place.valid = _place.valid or not groups.alone
        if not (groups.alone and epoch < groups.awaited):
            if _place.valid and (epoch != _place.epoch or _place.batches):
                _place.epoch, _place.batches, _place.samples, _place.digests = epoch, 0, 0, {}
        _offer()
        if groups.alone and epoch < groups.awaited and not self._is_over():
            return False
        if groups.alone and not self._is_over():
            self._alone_no_longer()
        elif not self._is_over():
            self._source.begin(0)
        return not self._behind

    def _is_over(self) -> bool:
        client = _worker._client
        return self._lost or (client is not None and client.retire is not None)

    def _alone_no_longer(self) -> None:
        try:
            self._meet()
        except Exception as error:
            if isinstance(error, _groups.CannotGoOn):
                _groups.await_the_end(str(error))
            if not _join.loses(error):
                _groups.await_the_end(f"{type(error).__name__}: {error}")
            self._recover()

    def _recover(self) -> None:
        self._state.rewind()
        _join.survive(self._attempt)

    def _attempt(self) -> None:
        if not _join.come(_place.epoch):
            _place.valid, self._behind = False, True
            self._held.clear()
            return
        self._meet()

    def _meet(self) -> None:
        source = self._source
        moved = _join.join(_place, self._state)
        self._lost = self._behind = False
        rng = rng_state() if moved else self._state.rng_before()
        self._again = deque(source.go_on(_place, self._held, moved))
        self._held, _place.digests = [], {}
        set_rng_state(rng)


class _Source:
    """A loader, and where in it to go on."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        batches = getattr(loader, "batch_sampler", None)
        sampler = getattr(batches, "sampler", None) or getattr(loader, "sampler", None)
        self.elastic: Optional[ElasticSampler] = next((s for s in (batches, sampler) if isinstance(s, ElasticSampler)), None)
        # DistributedSampler, and what is made like it.
        self.sampler = sampler if all(hasattr(sampler, name) for name in ("num_replicas", "rank", "set_epoch")) else None
        self._batch_size = int(getattr(loader, "batch_size", None) or 1)
        self._iterator: Optional[Iterator[Any]] = None
        self._slice = (0, 1)  # Of what rank and world the iterator is.

    @property
    def epoch(self) -> Optional[int]:
        for sampler in (self.elastic, self.sampler):
            if sampler is not None and isinstance(getattr(sampler, "epoch", None), int):
                return int(sampler.epoch)
        return None

    def next(self) -> Any:
        if self._iterator is None:
            self.begin(0)
        assert self._iterator is not None
        return next(self._iterator)

    def advance(self) -> int:
        """One more batch is done, by all ranks; its samples."""
        if self.elastic is None:
            return self._batch_size * self._slice[1]
        before = self.elastic.consumed
        self.elastic.advance()
        return self.elastic.consumed - before

    def begin(self, batches: int) -> None:
        """A new iterator, from there on."""
        ctx = context()
        self._slice = (ctx.rank, ctx.world_size)
        with skipping(self.loader, batches if self.elastic is None else 0) as left:
            self._iterator = iter(self.loader)
        if left:
            next(itertools.islice(self._iterator, left - 1, None), None)

    def go_on(self, place: Place, held: List[Any], moved: bool) -> List[Any]:
        """In a new generation; returns what is to be done again first. All ranks have the same `place`."""
        ctx = context()
        as_before = self._slice == (ctx.rank, ctx.world_size) and self._iterator is not None
        if self.elastic is not None:
            self.elastic.load_state_dict({"seed": self.elastic.seed, "epoch": place.epoch, "consumed": place.samples})
        elif self.sampler is not None:
            self.sampler.set_epoch(place.epoch)
            _tell(self.sampler, ctx.rank, ctx.world_size)
            if not as_before:
                place.batches = place.samples // (self._batch_size * ctx.world_size)
        if as_before and (not moved or self.elastic is None):
            return [] if moved else held
        if self._iterator is not None and self.elastic is None and self.sampler is None:
            return [] if moved else held  # Where it is cannot be told, but by going on.
        self._iterator = None
        self.begin(place.batches)
        return []


class _Rest:
    """A batch sampler after its first batches."""

    def __init__(self, sampler: Any, batches: int) -> None:
        self._sampler, self._batches = sampler, batches

    def __iter__(self) -> Iterator[Any]:
        # Not before the first is asked for: a loader draws random numbers of its own first.
        yield from itertools.islice(iter(self._sampler), self._batches, None)

    def __len__(self) -> int:
        return max(0, len(self._sampler) - self._batches)


@contextlib.contextmanager
def skipping(loader: Any, batches: int) -> Iterator[int]:
    """An iterator that is made of `loader` within begins after that many batches, without reading them; but for so many as
    are returned, which the caller has to read."""
    data = sys.modules.get("torch.utils.data")  # Without it no loader is one of PyTorch's.
    plain = (data is not None and isinstance(loader, data.DataLoader) and type(loader).__iter__ is data.DataLoader.__iter__
             and loader.batch_sampler is not None and not isinstance(loader.dataset, data.IterableDataset)
             and not loader.persistent_workers)
    if not plain or not batches:
        yield batches
        return
    sampler = loader.batch_sampler
    loader.__dict__["batch_sampler"] = _Rest(sampler, batches)  # Which it lets nobody set.
    try:
        yield 0
    finally:
        loader.__dict__["batch_sampler"] = sampler


def _tell(sampler: Any, rank: int, world: int) -> None:
    """A DistributedSampler, who its ranks are from now on."""
    size = len(sampler.dataset)
    sampler.rank, sampler.num_replicas = rank, world
    rest = getattr(sampler, "drop_last", False) and size % world != 0
    sampler.num_samples = size // world if rest else -(-size // world)
    sampler.total_size = sampler.num_samples * world


def _offer() -> None:
    client = _worker.client()
    if client is not None:
        client.offer_in_place(groups.break_off)
    if any(device.type == "cpu" for device in groups.all[0].pg._device_types):
        _agree._on_error = _join.loses


def _why_not(model: Any, optimizers: List[Any], distributed: bool = False) -> Optional[str]:
    """Why this process cannot outlive its generation; "" where that is plain."""
    if not context().under_regroup or _worker.client() is None or "regroup.inplace" not in sys.modules:
        return ""
    if not groups.active:
        return "its process groups are not of the kind that can change their members (PyTorch 2.15, gloo)"
    wrapper = sys.modules["torch.nn.parallel.distributed"].DistributedDataParallel
    for module in model.modules() if model is not None else []:
        kind = type(module).__name__
        if "FullyShardedDataParallel" in kind or ("FSDP" in kind and not _sharded.is_fsdp2(module)):
            return f"{kind} keeps a part of the parameters on each rank"
        if isinstance(module, wrapper) and "_regroup_made" not in module.__dict__:
            return "its DistributedDataParallel was made before `import regroup.inplace`"
    parameters = State(model, optimizers, []).parameters()
    if not distributed and any(_sharded.is_distributed(parameter) for parameter in parameters):
        return "its parameters are distributed over ranks (DTensor)"
    why_not = _sharded.why_not(model, parameters)
    if why_not is not None:
        return why_not
    sharded = [type(o).__name__ for o in optimizers if "ZeroRedundancy" in type(o).__name__]
    return f"{sharded[0]} keeps a part of its state on each rank" if sharded else None


# ---- what a body calls ------------------------------------------------------------------------------

_COLLECTIVES = ("all_reduce", "reduce", "broadcast", "all_gather", "all_gather_into_tensor", "all_gather_object", "gather",
                "gather_object", "scatter", "scatter_object_list", "broadcast_object_list", "reduce_scatter",
                "reduce_scatter_tensor", "all_to_all", "all_to_all_single", "barrier", "monitored_barrier", "send", "recv",
                "all_reduce_coalesced", "all_gather_coalesced", "all_gather_single", "reduce_scatter_single")


class _Nothing:
    """The work of a collective of a lost step."""

    def wait(self, *_: Any, **__: Any) -> bool:
        return True

    def is_completed(self) -> bool:
        return True


def install() -> None:
    """An error that comes of a generation's end does not leave the body of a loop: the rest of the body runs without
    communication and without effect on parameters, and then its step is done again."""
    torch, dist = sys.modules["torch"], sys.modules["torch.distributed"]
    if hasattr(torch.autograd.backward, "_regroup"):
        return
    torch.autograd.backward = _guarded(torch.autograd.backward, lambda *_, **__: None)
    for name in _COLLECTIVES:
        if hasattr(dist, name):
            setattr(dist, name, _guarded(getattr(dist, name), lambda *_, **kw: _Nothing() if kw.get("async_op") else None))
    wrapper = sys.modules["torch.nn.parallel.distributed"].DistributedDataParallel
    wrapper.forward = _guarded(wrapper.forward, lambda self, *args, **kwargs: self.module(*args, **kwargs))
    wrapper.__init__ = _remembering(wrapper.__init__)
    _sharded.install(_guarded)


def _guarded(function: Callable[..., Any], instead: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        loop = _current
        if loop is None or threading.get_ident() != loop._thread:
            return function(*args, **kwargs)
        if not loop.lost:
            try:
                return function(*args, **kwargs)
            except Exception as error:
                if not loop.loses(error):
                    raise
        return instead(*args, **kwargs)
    call._regroup = True  # type: ignore[attr-defined]
    return call


def _remembering(make: Callable[..., None]) -> Callable[..., None]:
    """How a wrapper was made, so that it can be made anew."""
    import inspect
    signature = inspect.signature(make)

    @functools.wraps(make)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        made = dict(signature.bind(self, *args, **kwargs).arguments)
        self.__dict__["_regroup_made"] = {name: value for name, value in made.items() if name not in ("self", "module")}
        _wrappers.add(self)
    return init


def wrapper_of(model: Any) -> Any:
    """The DistributedDataParallel around `model`, of which alone a caller may know; `model` itself, if there is none."""
    return next((wrapper for wrapper in _wrappers if wrapper.__dict__.get("_modules", {}).get("module") is model), model)


def _hook(optimizer: Any) -> None:
    if optimizer in _hooked or not hasattr(optimizer, "register_step_pre_hook"):
        return
    _hooked.add(optimizer)

    def before(which: Any, *_: Any) -> None:
        if _current is not None:
            _current.optimizing(which)

    def after(which: Any, *_: Any) -> None:
        if _current is not None:
            _current.optimized(which)
    optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(after)
