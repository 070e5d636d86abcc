"""lightning.Trainer in place: its loop over batches is held at one until that is done, whatever generations it takes.

A step begins with its first batch, and is done once the loop has validated and logged after its last one. Its outcome: what
each batch has returned and logged. The end of an epoch counts as a step of its own.
"""
import copy
import inspect
import sys
from collections import deque
from typing import Any, Deque, Dict, Iterator, List, Optional, Tuple

from . import _groups, _join, _steps, _trainers
from ._context import context
from ._groups import groups
from ._state import rng_state, set_rng_state

_KEEPS = {"BaseFinetuning": "changes what is trained", "WeightAveraging": "keeps a second copy of the parameters",
          "StochasticWeightAveraging": "keeps a second copy of the parameters"}
_CONNECTOR = ("_progress_bar_metrics", "_logged_metrics", "_callback_metrics", "_current_fx", "_first_loop_iter")
_META = ("fx", "name", "prog_bar", "logger", "on_step", "on_epoch", "enable_graph", "add_dataloader_idx", "dataloader_idx",
         "metric_attribute")
_OF_METRICS = ("_update_count", "_computed", "_forward_cache")
_OF_CALLBACKS = ("_last_global_step_saved", "_last_checkpoint_saved", "_defer_save_until_validation", "current_score", "_saving")
_RESUMES = ("_restarting", "_loaded_from_state_dict", "_resuming_from_checkpoint")  # Whether a loop goes on from a checkpoint.
_SMALL = 1 << 20  # Bytes of a tensor that is kept of each batch of a step.


def prepare(trainer: Any) -> None:
    """Before a fit(): a survivor has more than a checkpoint."""
    if _is_active() and groups.alone:
        trainer.__dict__.setdefault("_regroup_sanity_steps", trainer.num_sanity_val_steps)
        trainer.num_sanity_val_steps = 0
        trainer._checkpoint_connector._restore_modules_and_callbacks = lambda *_, **__: None


def begin(trainer: Any) -> "Optional[_Training]":
    """At the begin of its loop over epochs. None: nothing goes on in place."""
    if not _is_active():
        return None
    if not _is_known(trainer):
        version = getattr(sys.modules[type(trainer).__module__.partition(".")[0]], "__version__", "?")
        why_not: Optional[str] = f"Lightning {version} has not the loops of version 2.6"
    else:
        why_not = _why_not(trainer)
    if not _trainers.offered(trainer.model, trainer.optimizers[0] if trainer.optimizers else None, why_not):
        return None
    return _Training(trainer)


def _is_active() -> bool:
    return "regroup.inplace" in sys.modules and groups.active


def _is_known(trainer: Any) -> bool:
    loop = trainer.fit_loop.epoch_loop
    return (all(hasattr(loop, name) for name in ("advance", "_results", "_batches_that_stepped", "val_loop", "on_iteration_done"))
            and "data_fetcher" in inspect.signature(loop.on_advance_end).parameters
            and all(hasattr(loop.automatic_optimization, name) for name in ("optim_progress", "_make_closure"))
            and hasattr(trainer.fit_loop, "_data_fetcher")
            and all(hasattr(trainer._logger_connector, name) for name in _CONNECTOR))


def _why_not(trainer: Any) -> Optional[str]:
    strategy, fetcher = trainer.strategy, trainer.fit_loop._data_fetcher
    kind, environment = type(strategy).__name__, type(getattr(strategy, "cluster_environment", None)).__name__
    if kind != "DDPStrategy" or getattr(strategy, "_model_averager", None) is not None:
        return f"its strategy is {kind}, not plain DistributedDataParallel"
    if environment != "TorchElasticEnvironment":
        return f"its ranks come of {environment}, not of the launcher's variables"
    if not trainer.lightning_module.automatic_optimization or len(trainer.optimizers) != 1:
        return "it optimizes by itself (automatic_optimization = False)"
    if getattr(trainer.precision_plugin, "scaler", None) is not None:
        return "it scales gradients for fp16 (bf16 needs no scaling)"
    if type(fetcher).__name__ == "_DataLoaderIterDataFetcher":
        return "its training_step() fetches batches by itself (dataloader_iter)"
    stream = sys.modules["torch.utils.data"].IterableDataset
    if fetcher.length is None or any(isinstance(getattr(each, "dataset", None), stream) for each in fetcher.combined_loader.flattened):
        return "its dataset is iterable: how far each rank is cannot be told"
    if trainer.reload_dataloaders_every_n_epochs:
        return "its loaders are made anew every few epochs (reload_dataloaders_every_n_epochs)"
    if getattr(trainer, "_val_check_time_interval", None) is not None:
        return "it validates by its own clock (val_check_interval is a time)"
    for callback in trainer.callbacks:
        for each in type(callback).__mro__:
            if each.__name__ in _KEEPS:
                return f"{type(callback).__name__} {_KEEPS[each.__name__]}"
    return None


class _Training(_trainers.Training):
    """One call of fit()."""

    def __init__(self, trainer: Any) -> None:
        super().__init__(trainer.model, [trainer.optimizers[0]], [config.scheduler for config in trainer.lr_scheduler_configs])
        self.trainer, self._fit, self._loop = trainer, trainer.fit_loop, trainer.fit_loop.epoch_loop
        self._automatic = self._loop.automatic_optimization
        self._results = _Results(trainer)
        self._batches = _Batches(self._fit)
        self._outputs: List[Any] = []  # Of batches of this step.
        self._number = 0  # How many of them are through.
        self._closure: Any = None  # Of the newest one.
        self._versions = 0  # Of parameters, when this step began.
        self._stepped = self._replaying = False
        self._begun = False  # Whether `place` is that of an epoch.
        self._target: Any = None  # What to count once the next epoch has begun, which others are in.
        self._offset = 0  # Batches of this epoch that a checkpoint had, and the loader has not skipped.
        self._slice = (context().rank, context().world_size)
        self._planned, self._each = self._fit.max_batches, self._samples()  # Batches of the epoch, and their samples of all ranks.
        self._forward = trainer.lightning_module.forward
        self._hook = trainer.optimizers[0].register_step_post_hook(lambda *_: self._optimized())
        self._original = (self._loop.advance, self._loop.on_advance_end, self._automatic.run, self._fit.on_advance_end,
                          self._automatic._make_closure)
        self._loop.advance, self._loop.on_advance_end = self._advance, lambda _: None
        self._automatic.run, self._fit.on_advance_end = self._run, self._end_epoch
        self._automatic._make_closure = self._make_closure
        _steps._offer()

    def close(self) -> None:
        self._hook.remove()
        for owner, name in ((self._loop, "advance"), (self._loop, "on_advance_end"), (self._automatic, "run"),
                            (self._automatic, "_make_closure"), (self._fit, "on_advance_end"),
                            (self.trainer._checkpoint_connector, "_restore_modules_and_callbacks")):
            owner.__dict__.pop(name, None)
        steps = self.trainer.__dict__.pop("_regroup_sanity_steps", None)
        if steps is not None:
            self.trainer.num_sanity_val_steps = steps

    # ---- what the trainer calls -------------------------------------------------------------------

    def _advance(self, _: Any) -> None:
        self._enter()
        self._until_done(self._meet_and_do_a_batch)

    def _end_epoch(self) -> None:
        place = self.place
        if groups.alone:
            _groups.await_the_end("it has come to the end of an epoch before it has met the others")
        state, epoch = self._state, place.epoch
        if state._before:  # It may have ended early, within a step too.
            self._settle()
        place.batches = max(place.batches, int(self._planned))

        def end() -> None:
            if place.epoch != epoch:  # Where others are already.
                self._target = self.counted()
                return
            if not state._before:
                self._set_rng()
                state.remember()
                self._versions = self._changes()
            self._original[3]()
            state.settle()
        self._until_done(end)

    def _make_closure(self, *args: Any, **kwargs: Any) -> Any:
        self._closure = self._original[4](*args, **kwargs)
        return self._closure

    def _run(self, optimizer: Any, batch_idx: int, kwargs: Any) -> Any:
        self._number += 1
        if self._replaying and self.outcome is not None:
            return self._replay(self.outcome)
        output = self._original[2](optimizer, batch_idx, kwargs)
        self._closure = None
        if self._stepped:
            self._come_to(output)
        else:
            self._outputs.append(_detached(output, _SMALL))
        return output

    def _replay(self, outcome: Dict[str, Any]) -> Any:
        outputs = outcome["outputs"]
        if self._fit._should_accumulate():
            return dict(outputs[min(self._number, len(outputs)) - 1])
        self._automatic.optim_progress.load_state_dict(copy.deepcopy(outcome["progress"]))
        self._results.put(outcome["results"])
        if outcome["rng"] is not None:
            set_rng_state(outcome["rng"])
        return dict(outputs[-1])

    def _optimized(self) -> None:
        self.place.optimized += 1
        self._stepped = True
        self._state._buffers = {}  # They stay, as parameters do.
        step = self._automatic.optim_progress.optimizer.step
        before = (step.total.completed, step.current.completed)
        step.total.completed, step.current.completed = step.total.ready, step.current.ready
        result = getattr(self._closure, "_result", None)
        self._come_to({} if result is None or result.loss is None else result.asdict())
        step.total.completed, step.current.completed = before

    def _come_to(self, output: Any) -> None:
        self.outcome = {"outputs": [*self._outputs, _detached(output)], "progress": self._automatic.optim_progress.state_dict(),
                        "results": self._results.taken(), "rng": rng_state()}

    # ---- one batch --------------------------------------------------------------------------------

    def _enter(self) -> None:
        place, epoch = self.place, self._fit.epoch_progress.current.processed
        place.valid = place.valid or not groups.alone
        if self._target is not None:
            self.count(self._target)
            self._target = None
            self._go_to()
        elif place.valid and (epoch != place.epoch or not self._begun):
            self._batches.clear()
            place.epoch, place.digests, place.batches = epoch, {}, self._loop.batch_progress.current.completed
            place.samples, self._offset, self._begun = place.batches * self._samples(), place.batches, True

    def _until_done(self, what: Any) -> None:
        while True:
            try:
                if self.is_over():
                    raise _groups.Interrupted
                return what()
            except StopIteration:
                raise
            except Exception as error:
                _trainers.lose(error)
            self._recover()

    def _meet_and_do_a_batch(self) -> None:
        if groups.alone:
            self._meet()
        if self._begun and self._loop.done:  # Where others are.
            return
        state, batches = self._state, self._batches
        if not state._before:
            if not batches.again:
                batches.fetch()
            self._set_rng()
            state.remember()
            self.place.note_rng(state.rng_before())
            self._replaying = self.outcome is not None
            self._outputs, self._number, self._stepped, self._versions = [], 0, False, self._changes()
        self._original[0](batches)
        self._original[1](batches)
        if self.outcome is not None and not self._fit._should_accumulate():
            self._settle()

    def _set_rng(self) -> None:
        if self._state.rng is not None:
            set_rng_state(self._state.rng)
            self._state.rng = None

    def _settle(self) -> None:
        place, done = self.place, self._batches.finish()
        place.batches += done
        place.samples += done * self._samples()
        place.step = self.trainer.global_step
        self._state.settle()
        self.outcome, self._replaying, self._outputs = None, False, []

    def _changes(self) -> int:
        return sum(parameter._version for parameter in self._state.model.parameters())

    def _samples(self) -> int:
        return int(getattr(self._fit._combined_loader.flattened[0], "batch_size", None) or 1) * context().world_size

    # ---- generations ------------------------------------------------------------------------------

    def _recover(self) -> None:
        trainer, module = self.trainer, self.trainer.lightning_module
        if trainer.validating:
            self._loop.val_loop._module_mode.restore(module)
            self._loop.val_loop._results.reset()
        trainer.training = True
        module._current_fx_name = None
        module.forward = self._forward  # Another one has led into training_step(), and was broken off.
        if self._state._before and self.outcome is None and self._changes() != self._versions:
            self.place.valid = False  # By an optimizer that calls its closure more than once, which has not come to its end.
        self._state.rewind()
        _join.survive(self._attempt)

    def _attempt(self) -> None:
        _join.come(0)  # Wherever others are, all meet at once.
        self._meet()

    def _meet(self) -> None:
        place, before, was_valid = self.place, (self.place.epoch, self.place.batches), self.place.valid
        self.meet_others()
        self._replaying, self._begun = False, True
        now = (context().rank, context().world_size)
        goes_on, self._slice = now == self._slice and before[0] == place.epoch and was_valid, now
        self._tell()
        goes_on = not self._plan() and goes_on
        if not (goes_on and self._batches.go_on(place.batches - before[1])):
            self._go_to()

    def _tell(self) -> None:
        """Lightning keeps in some places who its ranks are."""
        ctx, strategy = context(), self.trainer.strategy
        if strategy.root_device.type == "cpu":
            strategy.parallel_devices = strategy.parallel_devices[:1] * ctx.local_world_size
        strategy.num_nodes = max(1, ctx.world_size // ctx.local_world_size)
        strategy.set_world_ranks()
        for loop in (self._fit, self._loop.val_loop):
            for loader in loop._combined_loader.flattened if loop._combined_loader is not None else []:
                for sampler in (getattr(loader, "sampler", None), getattr(getattr(loader, "batch_sampler", None), "sampler", None)):
                    if all(hasattr(sampler, name) for name in ("num_replicas", "rank", "set_epoch")):
                        _steps._tell(sampler, ctx.rank, ctx.world_size)

    def _plan(self) -> bool:
        """How many batches an epoch has, and are done, with as many ranks as there are now. Whether that is news."""
        trainer, fit, place, loop = self.trainer, self._fit, self.place, self._loop
        planned, each, combined = self._planned, self._each, fit._combined_loader
        combined.limits = combined._iterator.limits = self._limits(combined, trainer.limit_train_batches)
        self._planned, self._each = len(combined), self._samples()
        fit.max_batches = self._planned
        validation = loop.val_loop
        if validation._combined_loader is not None:
            validation._max_batches = self._limits(validation._combined_loader, trainer.limit_val_batches)
        if (planned, each) == (self._planned, self._each):
            return False
        if not isinstance(trainer.val_check_interval, int):
            trainer.val_check_batch = max(1, int(fit.max_batches * trainer.val_check_interval))
        accumulated, ended = trainer.accumulate_grad_batches, place.batches >= planned
        last = (self._planned - 1) // accumulated * accumulated
        place.batches = self._planned if ended else min(place.samples // self._each // accumulated * accumulated, last)
        current = loop.batch_progress.current
        current.ready = current.started = current.processed = current.completed = place.batches
        loop.batch_progress.is_last_batch = ended
        return True

    def _limits(self, combined: Any, limit: Any) -> List[Any]:
        parse = sys.modules[type(self._fit).__module__]._parse_num_batches
        return [parse(self.trainer.state.stage, len(each), limit) for each in combined.flattened]

    def _go_to(self) -> None:
        """The loader begins this epoch anew, and skips what is done."""
        fit, place, rng = self._fit, self.place, rng_state()
        self._batches.clear()
        if place.batches < fit.max_batches:
            for loader in fit._combined_loader.flattened:
                sys.modules[type(fit).__module__]._set_sampler_epoch(loader, place.epoch)
            self._batches.begin(place.batches, self._offset)
        set_rng_state(rng)

    # ---- what a trainer counts --------------------------------------------------------------------

    def _loops(self, loop: Any = None, prefix: str = "") -> Iterator[Tuple[str, Any]]:
        loop = loop or self._fit
        yield prefix, loop
        for name, part in vars(loop).items():
            if hasattr(part, "on_iteration_done"):
                yield from self._loops(part, f"{prefix}{name}.")

    def _progresses(self) -> Iterator[Tuple[str, Any]]:
        for prefix, loop in self._loops():
            for name, part in vars(loop).items():
                if hasattr(part, "reset_on_run") and hasattr(part, "load_state_dict"):
                    yield prefix + name, part

    def counted(self) -> Dict[str, Any]:
        trainer = self.trainer
        connector = {name: getattr(trainer._logger_connector, name) for name in _CONNECTOR}
        return {
            "progress": {name: progress.state_dict() for name, progress in self._progresses()},
            "resumes": {name: {flag: getattr(loop, flag) for flag in _RESUMES if hasattr(loop, flag)} for name, loop in self._loops()},
            "stepped": self._loop._batches_that_stepped, "should_stop": trainer.should_stop,
            "accumulate": trainer.accumulate_grad_batches, "results": self._results.taken(),
            "connector": {name: dict(value) if isinstance(value, dict) else value for name, value in connector.items()},
            "callbacks": {str(callback.state_key): (copy.deepcopy(callback.state_dict()), _some_of(callback))
                          for callback in trainer.callbacks}}

    def count(self, counted: Dict[str, Any]) -> None:
        self._count(counted, whole=False)

    def _count(self, counted: Dict[str, Any], whole: bool) -> None:
        """`whole`: this is a new rank. A Timer goes on by itself, and what it is told would be added to that."""
        trainer = self.trainer
        for name, progress in self._progresses():
            progress.load_state_dict(copy.deepcopy(counted["progress"][name]))
        for name, loop in self._loops():
            vars(loop).update(counted["resumes"][name])
        self._loop._batches_that_stepped, trainer.should_stop = counted["stepped"], counted["should_stop"]
        trainer.accumulate_grad_batches = counted["accumulate"]
        self._results.put(counted["results"])
        for name, value in counted["connector"].items():
            setattr(trainer._logger_connector, name, dict(value) if isinstance(value, dict) else value)
        for callback in trainer.callbacks:
            state, some = counted["callbacks"].get(str(callback.state_key), ({}, {}))
            if state and (whole or all(each.__name__ != "Timer" for each in type(callback).__mro__)):
                if "dirpath" in state and hasattr(callback, "dirpath"):
                    callback.dirpath = state["dirpath"]
                callback.load_state_dict(copy.deepcopy(state))
            vars(callback).update(some)

    def said(self) -> Dict[str, Any]:
        outcome, counted = self.outcome, self.counted()
        if outcome is not None:
            outcome = {**outcome, "outputs": [_plain(output) for output in outcome["outputs"]],
                       "results": self._results.told(outcome["results"])}
        return {"counted": {**counted, "results": self._results.told(counted["results"])}, "outcome": outcome,
                "offset": self._offset, "planned": self._planned, "each": self._each}

    def take(self, said: Dict[str, Any]) -> None:
        counted, self.outcome = said["counted"], said["outcome"]
        self._offset, self._planned, self._each = said["offset"], said["planned"], said["each"]
        counted["results"] = self._results.heard(counted["results"])
        self._count(counted, whole=not self._begun)
        if self.outcome is not None:
            self.outcome["results"] = self._results.heard(self.outcome["results"])
            if not self.place.rng_shared:
                self.outcome["rng"] = None


def _some_of(callback: Any) -> Dict[str, Any]:
    """By which a callback decides whether to save, a collective, and what its state_dict() has not."""
    return {name: value for name, value in vars(callback).items() if name in _OF_CALLBACKS}


class _Batches:
    """In place of the loop's data fetcher: keeps the batches of a step until it is done."""

    def __init__(self, fit: Any) -> None:
        self._fit = fit
        self.again: Deque[Tuple[Any, bool]] = deque()  # To come, and whether it is the last of its epoch.
        self._held: List[Tuple[Any, bool]] = []

    def __next__(self) -> Any:
        if not self.again:
            self.fetch()
        self._held.append(self.again.popleft())
        return self._held[-1][0]

    @property
    def done(self) -> bool:
        return self._held[-1][1]

    def fetch(self) -> None:
        fetcher = self._fit._data_fetcher
        batch = next(fetcher)
        self.again.append((batch, fetcher.done))

    def finish(self) -> int:
        """The step is done; how many batches it had."""
        count = len(self._held)
        self._held.clear()
        return count

    def clear(self) -> None:
        self._held, self.again = [], deque()

    def go_on(self, passed: int) -> bool:
        """All of them again, but for the first few. False: that is further than they are."""
        batches = [*self._held, *self.again]
        if not 0 <= passed <= len(batches):
            return False
        self._held, self.again = [], deque(batches[passed:])
        return True

    def begin(self, batches: int, offset: int) -> None:
        """A new iterator; `offset`: of the `batches` that are done, those that it has never had."""
        fetcher, loaders = self._fit._data_fetcher, self._fit._combined_loader.flattened
        self.clear()
        with _steps.skipping(loaders[0] if len(loaders) == 1 else None, max(0, batches - offset)) as left:
            iter(fetcher)
            for _ in range(left):
                next(fetcher)
        fetcher.fetched, fetcher.length = batches, int(self._fit.max_batches)
        fetcher.done = batches >= fetcher.length


class _Results:
    """What the module has logged in this epoch, and its torchmetrics."""

    def __init__(self, trainer: Any) -> None:
        self._logged, self._reduce = trainer.fit_loop.epoch_loop._results, trainer.strategy.reduce
        modules = dict(trainer.lightning_module.named_modules())
        self._metrics = {name: part for name, part in modules.items() if hasattr(part, "_defaults") and hasattr(part, "_reductions")}
        self._heard: Dict[str, Any] = {}  # What only other ranks have logged.

    def taken(self) -> Dict[str, Any]:
        logged = {key: (result, {name: value for name, value in vars(result).items() if _is_plain(value)})
                  for key, result in self._logged.items()}
        metrics = {name: {part: _copied(getattr(metric, part)) for part in (*metric._defaults, *_OF_METRICS) if hasattr(metric, part)}
                   for name, metric in self._metrics.items()}
        return {"logged": logged, "metrics": metrics}

    def put(self, taken: Dict[str, Any]) -> None:
        self._logged.clear()
        for key, (result, values) in taken["logged"].items():
            vars(result).update(values)
            self._logged[key] = result
        for name, parts in taken["metrics"].items():
            for part, value in parts.items():
                setattr(self._metrics[name], part, _copied(value))

    @staticmethod
    def told(taken: Dict[str, Any]) -> Dict[str, Any]:
        """The same for other ranks. Each logs in the order of these keys, and so communicates in it at the epoch's end."""
        logged = []
        for key, (result, values) in taken["logged"].items():
            meta, sync = result.meta, result.meta.sync
            logged.append((key, {name: getattr(meta, name) for name in _META}, meta.reduce_fx.__name__,
                           (sync.should, sync.rank_zero_only, _name_of(sync.group)), result.is_tensor, values))
        return {"logged": logged, "metrics": taken["metrics"]}

    def heard(self, told: Dict[str, Any]) -> Dict[str, Any]:
        logged = {}
        for key, meta, reduction, sync, is_tensor, values in told["logged"]:
            result = self._logged.get(key, self._heard.get(key))
            if result is None:
                result = self._heard[key] = self._made(meta, reduction, sync, is_tensor)
            logged[key] = (result, values)
        return {"logged": logged, "metrics": told["metrics"]}

    def _made(self, meta: Dict[str, Any], reduction: str, sync: Any, is_tensor: bool) -> Any:
        module = sys.modules[type(self._logged).__module__]
        made = module._Metadata(**meta, reduce_fx=reduction)
        should, rank_zero_only, name = sync
        group = None if name is None else next(group.pg for group in groups.all if group.name == name)
        made.sync = module._Sync(_should=should, fn=self._reduce, rank_zero_only=rank_zero_only, _group=group)
        result = module._ResultMetric(made, is_tensor)
        if not is_tensor:
            result.value = self._metrics[meta["metric_attribute"]]
        return result


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float, str, sys.modules["torch"].Tensor))


def _copied(value: Any) -> Any:
    """Of a metric's state, which may be changed where it is: a tensor, or a list of such."""
    return value.detach().clone() if isinstance(value, sys.modules["torch"].Tensor) else copy.copy(value)


def _detached(value: Any, most: Optional[int] = None) -> Any:
    """Of what a batch has returned; of its tensors those of at most so many bytes."""
    tensor = sys.modules["torch"].Tensor
    if isinstance(value, dict):
        return {name: _detached(part, most) for name, part in value.items() if _is_small(part, most)}
    if type(value) in (list, tuple):
        return type(value)(_detached(part, most) for part in value if _is_small(part, most))
    return value.detach() if isinstance(value, tensor) else value


def _is_small(value: Any, most: Optional[int]) -> bool:
    is_tensor = isinstance(value, sys.modules["torch"].Tensor)
    return most is None or not is_tensor or value.numel() * value.element_size() <= most


def _plain(value: Any) -> Any:
    """What of it can be told to other ranks."""
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_plain(part) for part in value)
    return value if _is_plain(value) else None


def _name_of(group: Any) -> Optional[str]:
    """Of a process group that was made the same way on all ranks."""
    if group is None:
        return None
    ours = groups.of(group)
    if ours is None:
        raise _groups.CannotGoOn("it logs in a process group (sync_dist_group) that cannot change its members")
    return ours.name
