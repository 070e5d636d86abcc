"""transformers.Trainer in place: its method for one epoch is called again, from the step that was lost on.

That is the trainer's own way to resume in the middle of an epoch, with what a survivor has in its memory in place of a
checkpoint. A step is done once the trainer fetches the next one. Its outcome: the losses and the norm that it has had.
"""
import copy
import functools
import inspect
import sys
from typing import Any, Callable, Dict, List, Optional

from . import _accelerate, _groups, _join, _steps, _trainers
from ._client import logger
from ._context import context
from ._groups import groups
from ._state import rng_state, set_rng_state

_RUN_EPOCH = ("model", "epoch", "train_dataloader", "steps_in_epoch", "num_update_steps_per_epoch", "resume_from_checkpoint",
              "epochs_trained", "steps_trained_in_current_epoch")
_FETCH = ("epoch_iterator", "num_batches", "device")
_COUNTERS = ("_total_loss_scalar", "_globalstep_last_logged", "current_flos", "_initial_global_step",
             "_initial_num_input_tokens_seen")
_OWN = ("log_history", "is_local_process_zero", "is_world_process_zero", "stateful_callbacks")


def install() -> None:
    """Called by the callback, once the trainer's module is there."""
    kind = getattr(sys.modules.get("transformers.trainer"), "Trainer", None)
    if "regroup.inplace" not in sys.modules or not groups.active or kind is None or hasattr(kind.train, "_regroup"):
        return
    if not (_takes(kind, "_run_epoch", _RUN_EPOCH) and _takes(kind, "get_batch_samples", _FETCH) and hasattr(kind, "_get_grad_norm")):
        version = getattr(sys.modules["transformers"], "__version__", "?")
        logger.warning("this rank does not outlive its generation: Transformers %s has no Trainer._run_epoch() as of version 5", version)
        return
    kind.train, kind._run_epoch = _train(kind.train), _run_epoch(kind._run_epoch)


def _takes(kind: Any, method: str, names: Any) -> bool:
    return hasattr(kind, method) and set(names) <= set(inspect.signature(getattr(kind, method)).parameters)


def _is_ours(trainer: Any) -> bool:
    return any(getattr(callback, "_regroup_in_place", False) for callback in trainer.callback_handler.callbacks)


def _train(train: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(train)
    def call(self: Any, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        self.__dict__.pop("_regroup_training", None)
        if _is_ours(self) and groups.active and groups.alone:
            resume_from_checkpoint = None  # A survivor has more than a checkpoint.
            self.args.eval_on_start = False
        try:
            return train(self, resume_from_checkpoint, *args, **kwargs)
        finally:
            training = self.__dict__.pop("_regroup_training", None)
            if training is not None:
                training.close()
    call._regroup = True  # type: ignore[attr-defined]
    return call


def _run_epoch(run: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(run)

    @functools.wraps(run)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        said = dict(signature.bind(self, *args, **kwargs).arguments)
        del said["self"]
        if "_regroup_training" not in self.__dict__:
            self._regroup_training = _training(self, said)
        training = self._regroup_training
        return run(self, **said) if training is None else training.run(functools.partial(run, self), said)
    return call


def _training(trainer: Any, said: Dict[str, Any]) -> "Optional[_Training]":
    if not _is_ours(trainer):
        return None
    why_not = _accelerate.why_not_in_place(trainer.accelerator)
    offered = _trainers.offered(said["model"], _accelerate.inner(trainer.optimizer), why_not)
    return _Training(trainer, said) if offered else None


class _Training(_trainers.Training):
    """One call of train()."""

    def __init__(self, trainer: Any, said: Dict[str, Any]) -> None:
        optimizer = _accelerate.inner(trainer.optimizer)
        super().__init__(said["model"], [optimizer], [trainer.lr_scheduler])
        self.trainer = trainer
        self._world, self._changed = context().world_size, False  # The trainer has planned for so many ranks.
        self._epochs, self.scheduled = trainer.state.num_train_epochs, trainer.state.max_steps
        self._losses: List[Any] = []
        self._norm: Any = None
        self._replayed = -1  # Batches of a step that is done again only after its optimizer; -1: another step.
        self._count = 0  # Batches of this step.
        self._fetched = self._behind = False
        self._hook = optimizer.register_step_post_hook(lambda *_: self._optimized())
        self._wrapped = {"get_batch_samples": self._fetch, "training_step": self._step, "_get_grad_norm": self._grad_norm}
        self._original = {name: getattr(trainer, name) for name in (*self._wrapped, "_load_rng_state")}
        trainer.__dict__.update(self._wrapped, _load_rng_state=self._load_rng)

    def close(self) -> None:
        self._hook.remove()
        for name in self._original:
            self.trainer.__dict__.pop(name, None)

    # ---- one epoch --------------------------------------------------------------------------------

    def run(self, run: Callable[..., Any], said: Dict[str, Any]) -> Any:
        result = self._run(run, said)
        trainer = self.trainer  # More ranks need more epochs for as many steps, which its own loop does not know of.
        while (self._changed or groups.alone) and trainer.args.max_steps > 0 and said["epoch"] + 1 >= self._epochs \
                and not trainer.control.should_training_stop:
            said = {**said, "epoch": said["epoch"] + 1}
            trainer.control = trainer.callback_handler.on_epoch_begin(trainer.args, trainer.state, trainer.control)
            result = self._run(run, said)
        return result

    def _run(self, run: Callable[..., Any], said: Dict[str, Any]) -> Any:
        place, epoch = self.place, said["epoch"]
        place.valid = place.valid or not groups.alone
        if place.valid:
            place.epoch, place.batches, place.samples, place.digests = epoch, 0, 0, {}
            if said["resume_from_checkpoint"] is not None and epoch == said["epochs_trained"]:
                place.batches = said["steps_trained_in_current_epoch"]
                place.samples = place.batches * self._samples()
        _steps._offer()
        if groups.alone and epoch < groups.awaited and not self.is_over():
            return None
        again, met = False, not groups.alone
        while True:
            try:
                if self.is_over():
                    raise _groups.Interrupted
                if not met:
                    self._meet()
                    again = met = True
                self._fetched = False
                result = run(**self._from_here(said, again))
                self._finish()
                return result
            except Exception as error:
                _trainers.lose(error)
            self._recover()
            if self._behind:
                return None
            again = met = True

    def _from_here(self, said: Dict[str, Any], again: bool) -> Dict[str, Any]:
        if self._changed:
            said = {**said, **self._planned(said)}
        if again:
            said = {**said, "resume_from_checkpoint": "", "epochs_trained": said["epoch"],
                    "steps_trained_in_current_epoch": self.place.batches}
        return said

    def _planned(self, said: Dict[str, Any]) -> Dict[str, Any]:
        """An epoch of another number of ranks."""
        args, state, place = self.trainer.args, self.trainer.state, self.place
        accumulated = args.gradient_accumulation_steps
        length = len(said["train_dataloader"])
        updates = max(1, -(-length // accumulated))
        last = updates - 1 if self.outcome is not None else updates
        place.batches = min(place.samples // self._samples() // accumulated, last) * accumulated
        if args.max_steps <= 0:
            left = int(-(-(args.num_train_epochs - said["epoch"]) * updates // 1)) - place.batches // accumulated
            state.max_steps = state.global_step + left
        return {"steps_in_epoch": length, "num_update_steps_per_epoch": updates}

    @property
    def planned(self) -> int:
        """For how many ranks this trainer has planned; 0: it has planned anew."""
        return 0 if self._changed else self._world

    def _samples(self) -> int:
        return int(self.trainer.args.train_batch_size) * context().world_size

    # ---- what the trainer calls -------------------------------------------------------------------

    def _fetch(self, *args: Any, **kwargs: Any) -> Any:
        self._finish()
        if self.is_over():
            raise _groups.Interrupted
        state = self._state
        if self._fetched and state.rng is None:
            state.remember()
        found = self._original["get_batch_samples"](*args, **kwargs)
        if state.rng is not None:
            set_rng_state(state.rng)
        state.remember()
        state.rng, self._fetched, self._count = None, True, len(found[0])
        self.place.note_rng(state.rng_before())
        self._replayed = 0 if self.outcome is not None else -1
        return found

    def _load_rng(self, checkpoint: Any) -> None:
        if checkpoint != "":
            self._original["_load_rng_state"](checkpoint)
            if self._state._before:
                self._state._before["rng"] = rng_state()

    def _step(self, *args: Any, **kwargs: Any) -> Any:
        if self._replayed < 0 or self.outcome is None:
            loss = self._original["training_step"](*args, **kwargs)
            self._losses.append(loss)
            return loss
        losses = self.outcome["losses"]
        loss = losses[min(self._replayed, len(losses) - 1)]
        self._replayed += 1
        if self._replayed == self._count and self.outcome["rng"] is not None:
            set_rng_state(self.outcome["rng"])
        return loss.clone()

    def _grad_norm(self, *args: Any, **kwargs: Any) -> Any:
        if self._replayed >= 0 and self.outcome is not None:
            return self.outcome["norm"]
        self._norm = self._original["_get_grad_norm"](*args, **kwargs)
        return self._norm

    def _optimized(self) -> None:
        if self._replayed >= 0:  # Without gradients: it has done nothing.
            return
        self.place.optimized += 1
        self._state._buffers = {}  # They stay, as parameters do.
        self.outcome = {"losses": [loss.detach().clone() for loss in self._losses], "norm": self._norm, "rng": rng_state()}

    def _finish(self) -> None:
        """The step before is done, and all that comes after it."""
        if not self._count:
            return
        self.place.batches += self._count
        self.place.samples += self._count * self._samples()
        self.place.step = self.trainer.state.global_step
        self._state.settle()
        self._losses, self.outcome, self._count, self._replayed = [], None, 0, -1

    # ---- generations ------------------------------------------------------------------------------

    def _recover(self) -> None:
        self._state.rewind()
        self._losses, self._count, self._replayed = [], 0, -1
        _join.survive(self._attempt)

    def _attempt(self) -> None:
        if not _join.come(self.place.epoch):
            self.place.valid, self._behind, self.outcome, self._state.rng = False, True, None, None
            self._state.settle()
            return
        self._meet()

    def _meet(self) -> None:
        self.meet_others()
        self._behind = False
        _accelerate.tell_accelerate(self.trainer.accelerator, self.trainer.callback_handler.train_dataloader)
        self.trainer.state.is_world_process_zero = self.trainer.is_world_process_zero()
        self.trainer.state.is_local_process_zero = self.trainer.is_local_process_zero()
        plans = {self.planned, self.received.get("planned", self.planned)}
        self._changed = plans != {context().world_size} or self.place.samples != self.place.batches * self._samples()

    def said(self) -> Dict[str, Any]:
        counted = {**self.counted(), "history": self.trainer.state.log_history}
        return {"counted": counted, "outcome": self.outcome, "planned": self.planned, "scheduled": self.scheduled}

    def take(self, said: Dict[str, Any]) -> None:
        self.trainer.state.log_history = list(said["counted"].pop("history"))
        self.count(said["counted"])
        self.outcome = said["outcome"]
        if self.outcome is not None and not self.place.rng_shared:
            self.outcome["rng"] = None
        if self.trainer._created_lr_scheduler and said["scheduled"] != self.scheduled:
            self.scheduled = said["scheduled"]
            self._schedule()

    def _schedule(self) -> None:
        """A schedule for as many steps as that of the others, which its state does not tell."""
        trainer, optimizer = self.trainer, self._state.optimizers[0]
        options, state = [dict(group) for group in optimizer.param_groups], trainer.lr_scheduler.state_dict()
        trainer.lr_scheduler = None
        trainer.create_scheduler(self.scheduled)
        trainer.lr_scheduler.load_state_dict(state)
        for group, said in zip(optimizer.param_groups, options):
            group.update(said)
        self._state.others = [trainer.lr_scheduler]
        trainer.callback_handler.lr_scheduler = trainer.lr_scheduler

    # ---- what a trainer counts --------------------------------------------------------------------

    def counted(self) -> Dict[str, Any]:
        trainer = self.trainer
        handler = trainer.callback_handler
        return {
            "state": {name: copy.deepcopy(value) for name, value in vars(trainer.state).items() if name not in _OWN},
            "logged": len(trainer.state.log_history),
            "counters": {name: copy.deepcopy(getattr(trainer, name)) for name in _COUNTERS if hasattr(trainer, name)},
            "loss": trainer._tr_loss.detach().clone(),
            "control": dict(vars(trainer.control)),
            "callbacks": {str(number): copy.deepcopy(callback.state()["attributes"])
                          for number, callback in enumerate(handler.callbacks) if hasattr(callback, "state")}}

    def count(self, said: Dict[str, Any]) -> None:
        trainer = self.trainer
        vars(trainer.state).update(copy.deepcopy(said["state"]))
        del trainer.state.log_history[said["logged"]:]
        vars(trainer).update(said["counters"])
        trainer._tr_loss = said["loss"].clone()
        vars(trainer.control).update(said["control"])
        for number, callback in enumerate(trainer.callback_handler.callbacks):
            vars(callback).update(copy.deepcopy(said["callbacks"].get(str(number), {})))
