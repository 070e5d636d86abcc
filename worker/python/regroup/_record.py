"""The decorator that writes down why a program failed, as torchrun's own does."""
import faulthandler
import functools
import inspect
import json
import os
import time
import traceback
from typing import Any, Callable, TypeVar, cast

from ._client import logger

_MAX_CHARACTERS = 32 << 10  # Of each text: the reader takes files of up to 1 MiB.

F = TypeVar("F", bound=Callable[..., Any])


def record(function: F) -> F:
    """Decorates a program's main function: an exception that leaves it is written to TORCHELASTIC_ERROR_FILE.

        @regroup.record
        def main(): ...

    The exception goes on as if nothing had been there, and exits and interrupts are none. It also turns on Python's
    fault handler. May be nested, and mixed with torch.distributed.elastic's. Does no more than that without the variable.
    """
    if inspect.iscoroutinefunction(function):
        @functools.wraps(function)
        async def wait(*args: Any, **kwargs: Any) -> Any:
            _enable_fault_handler()
            try:
                return await function(*args, **kwargs)
            except Exception as error:
                _write_down(error)
                raise
        return cast(F, wait)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        _enable_fault_handler()
        try:
            return function(*args, **kwargs)
        except Exception as error:
            _write_down(error)
            raise
    return cast(F, call)


def _enable_fault_handler() -> None:
    try:
        if not faulthandler.is_enabled():
            faulthandler.enable(all_threads=True)
    except Exception:
        logger.debug("no fault handler", exc_info=True)  # Standard error is no file here.


def _write_down(error: BaseException) -> None:
    path = os.environ.get("TORCHELASTIC_ERROR_FILE", "")
    if not path or getattr(error, "_regroup_recorded", False):
        return
    try:
        stack = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        content = {"message": {
            "message": _bounded(f"{type(error).__name__}: {_text_of(error)}"),
            "extraInfo": {"py_callstack": _bounded(stack), "timestamp": str(int(time.time()))},
        }}
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        partial = f"{path}.{os.getpid()}"
        with open(partial, "w", encoding="ascii") as file:
            json.dump(content, file)
        os.replace(partial, path)
        error._regroup_recorded = True  # type: ignore[attr-defined]  # An outer one need not do it again.
    except Exception:
        logger.debug("the error file could not be written", exc_info=True)


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "<exception str() failed>"


def _bounded(text: str) -> str:
    """The end of an error says what it is; its beginning may go."""
    return text if len(text) <= _MAX_CHARACTERS else "…" + text[-_MAX_CHARACTERS:]
