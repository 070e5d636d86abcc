"""Hooks for trainers. None of them is imported here: an object is a callback because it has a callback's methods.

    transformers.Trainer(..., callbacks=[regroup.callbacks.Transformers()])
    lightning.Trainer(..., callbacks=[regroup.callbacks.Lightning("checkpoints")])

    session = regroup.callbacks.Accelerate(accelerator)
    for batch in (loop := session.steps(loader)):      # or enumerate(loader, 1)
        ...
        step = loop.step
        if session.step(step, loss=loss):              # a notice: the same answer on every rank
            session.save(step, f"checkpoints/{step}")
            session.leave()

Each tells progress and commits, and on a notice has all ranks save after the same step and wait to be stopped. Where
Regroup did not start the process they do nothing.
"""
import functools
import os
from typing import Any, Callable, Optional, TypeVar, cast

from . import _accelerate, _agree, _lightning, _transformers, _worker, checkpoint
from ._client import logger
from ._context import context

__all__ = ["Accelerate", "Lightning", "Transformers"]

F = TypeVar("F", bound=Callable[..., Any])


def _quiet(hook: F) -> F:
    """What goes wrong in a hook of ours is logged, and the training goes on."""
    @functools.wraps(hook)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not context().under_regroup:
            return None
        try:
            return hook(*args, **kwargs)
        except Exception:
            logger.warning("regroup's %s failed", hook.__qualname__, exc_info=True)
            return None
    return cast(F, call)


class _Hooks:
    """A trainer calls more hooks than are ours, in newer versions others: those do nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("on_") or name in ("setup", "teardown"):
            return _nothing
        raise AttributeError(f"{type(self).__name__} has no {name}")


def _nothing(*_args: Any, **_kwargs: Any) -> None:
    return None


class Transformers(_Hooks):
    """For transformers.Trainer. It saves where the trainer does: output_dir/checkpoint-STEP.

    After `import regroup.inplace`, with Transformers 5 and DistributedDataParallel, a rank keeps its process, model and
    optimizer when another one fails or the job changes its size: the step that was lost is done again.
    """

    _regroup_in_place = True

    @_quiet
    def on_init_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        _transformers.install()

    @_quiet
    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step > 0:
            checkpoint.restored(state.global_step)

    @_quiet
    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        _worker.progress(state.global_step, samples=_samples(args, state.global_step),
                         tokens=getattr(state, "num_input_tokens_seen", 0) or None)
        if _agree.should_stop_together():
            control.should_save = control.should_training_stop = True

    @_quiet
    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        _worker.progress(state.global_step, loss=(logs or {}).get("loss"))

    @_quiet
    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        _agree.barrier()  # Every rank writes its part.
        if context().rank == 0:
            folder = os.path.abspath(os.path.join(args.output_dir, f"checkpoint-{state.global_step}"))
            _commit(state.global_step, folder)

    @_quiet
    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        _leave_unless(0 < state.max_steps <= state.global_step)


def _samples(args: Any, step: int) -> Optional[int]:
    try:
        return int(step * args.train_batch_size * args.gradient_accumulation_steps * args.world_size)
    except (AttributeError, TypeError):
        return None


class Lightning(_Hooks):
    """For lightning.Trainer (and pytorch_lightning's). On a notice it saves to `folder`/regroup-STEP.ckpt; checkpoints
    of ModelCheckpoint are reported as they come.

    After `import regroup.inplace`, with Lightning 2.6 and DistributedDataParallel, a rank keeps its process, model and
    optimizer when another one fails or the job changes its size: the step that was lost is done again.
    """

    state_key = _legacy_state_key = "regroup"

    def __init__(self, folder: str) -> None:
        self._folder = os.path.abspath(folder)
        self._saving: Optional[int] = None  # The step of a checkpoint that is being written.
        self._own_save = False
        self._training: Any = None  # In place.

    def state_dict(self) -> "dict[str, Any]":
        return {}

    def load_state_dict(self, state_dict: "dict[str, Any]") -> None:
        """There is nothing to load."""

    @_quiet
    def setup(self, trainer: Any, module: Any, stage: Optional[str] = None) -> None:
        if stage == "fit":
            _lightning.prepare(trainer)

    @_quiet
    def on_train_start(self, trainer: Any, module: Any) -> None:
        self._end_in_place()
        if trainer.global_step > 0:
            checkpoint.restored(int(trainer.global_step))
        self._training = _lightning.begin(trainer)

    @_quiet
    def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
        self._end_in_place()

    def _end_in_place(self) -> None:
        training, self._training = self._training, None
        if training is not None:
            training.close()

    @_quiet
    def on_save_checkpoint(self, trainer: Any, module: Any, state: Any) -> None:
        if not self._own_save:
            self._saving = int(state["global_step"])

    @_quiet
    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        self._report_saved(trainer)

    @_quiet
    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        _worker.progress(int(trainer.global_step), loss=loss)
        if not _agree.should_stop_together():
            return
        step = int(trainer.global_step)
        path = os.path.join(self._folder, f"regroup-{step}.ckpt")
        self._own_save = True
        try:
            trainer.save_checkpoint(path)  # A collective; returns once every rank has written.
        finally:
            self._own_save = False
        _worker.end_on_sigterm()  # Lightning's handler would wait for ranks that are gone.
        if context().rank == 0:
            _commit(step, path)
        _worker.leave()

    @_quiet
    def on_train_end(self, trainer: Any, module: Any) -> None:
        self._end_in_place()
        self._report_saved(trainer)
        _leave_unless(not trainer.interrupted)

    def _report_saved(self, trainer: Any) -> None:
        if self._saving is None:
            return
        step, self._saving = self._saving, None
        saver = getattr(trainer, "checkpoint_callback", None)
        path = next((path for name in ("_last_checkpoint_saved", "last_model_path", "best_model_path")
                     if (path := getattr(saver, name, ""))), "")
        checkpoint.report(step, str(path))


class Accelerate:
    """For a loop written with Accelerate. Every method is called by every rank."""

    def __init__(self, accelerator: Any) -> None:
        self._accelerator = accelerator

    def steps(self, loader: Any, *parts: Any, epoch: Optional[int] = None) -> _accelerate.Steps:
        """regroup.steps() over a prepared loader: after `import regroup.inplace` a rank keeps its process, model and optimizer
        when another one fails. `parts`: the prepared model, optimizers and schedulers; without them all that was prepared."""
        return _accelerate.Steps(self._accelerator, loader, list(parts), epoch)

    def step(self, step: int, *, loss: Any = None, samples: Optional[int] = None, tokens: Optional[int] = None) -> bool:
        """Tells of a finished step; true on every rank, after the same step, when it is time to save and leave."""
        _worker.progress(step, loss=loss, samples=samples, tokens=tokens)
        return _agree.should_stop_together()

    def save(self, step: int, folder: str, **options: Any) -> checkpoint.Commit:
        """accelerator.save_state() into `folder`, then the commit. Raises what the former raises."""
        self._accelerator.save_state(folder, **options)
        self._accelerator.wait_for_everyone()
        return _commit(step, os.path.abspath(folder))

    def restored(self, step: int) -> None:
        """After accelerator.load_state(): which step that was."""
        checkpoint.restored(step)

    def leave(self) -> None:
        """Waits to be stopped, if there was a notice."""
        _worker.leave()


def _commit(step: int, path: str) -> checkpoint.Commit:
    """These checkpoints are in their place already: only a save for a notice needs the answer."""
    if _worker.noticed():
        return checkpoint.commit(step, path)
    checkpoint.report(step, path)
    return checkpoint.Commit(True)


def _leave_unless(done: bool) -> None:
    if done:
        _worker.finished()
    else:
        _worker.leave()
