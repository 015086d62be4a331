"""State of this process that a command may change. The command line enters :func:`restored` once, the API per call."""

import logging
import os
import random
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from importlib import import_module
from typing import Any

from countdown_rl.core.errors import UsageError

_lock, _alone = threading.RLock(), threading.Lock()
_undo = ExitStack()
_depth = 0
_remembered: set[str] = set()


@contextmanager
def restored() -> Iterator[None]:
    """Restore the state of the process at the end of the block; of nested and concurrent blocks, of the last one."""
    global _depth
    with _lock:
        _depth += 1
        if _depth == 1:
            _undo.enter_context(warnings.catch_warnings())
            remember(*(name for name in _SETTINGS if sys.modules.get(name)))
            quantizer = logging.getLogger(
                "bitsandbytes"
            )  # PEFT imports it, and with AVX-512 it logs while imported
            on_restore(quantizer.setLevel, quantizer.level)
            quantizer.setLevel(logging.ERROR)
            os.environ.setdefault(
                "HF_HUB_DISABLE_TELEMETRY", "1"
            )  # read by huggingface_hub, which TRL reports with
            if constants := sys.modules.get("huggingface_hub.constants"):  # it was read already
                patch(constants, "HF_HUB_DISABLE_TELEMETRY", True)
    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            if not _depth:
                _remembered.clear()
                _undo.close()


@contextmanager
def alone() -> Iterator[None]:
    """Raise UsageError if another thread of this process is in such a block."""
    if not _alone.acquire(blocking=False):
        raise UsageError(
            "another thread of this process is training; wait for it, or train in a process of its own."
        )
    try:
        yield
    finally:
        _alone.release()


def on_restore(function: Callable[..., Any], *arguments: Any) -> None:
    """Call *function* at the end of the outermost :func:`restored`, if there is one."""
    if _depth:
        _undo.callback(function, *arguments)


def remember_contents(*mappings: dict[str, Any]) -> None:
    """Restore the contents of *mappings* at the end of :func:`restored`."""
    for mapping in mappings:
        on_restore(_replace, mapping, dict(mapping))


def patch(owner: Any, name: str, value: Any) -> None:
    """Set an attribute of a library until the end of :func:`restored`."""
    on_restore(setattr, owner, name, getattr(owner, name))
    setattr(owner, name, value)


def remember(*modules: str) -> None:
    """Import *modules*, and restore their settings at the end of :func:`restored`. Call it before they are changed."""
    for name in modules:
        module = import_module(name)
        with _lock:
            if _depth and name not in _remembered:
                _remembered.add(name)
                for restore, *values in _SETTINGS[name](module):
                    _undo.callback(restore, *values)


def _interpreter(_: Any) -> Iterator[tuple[Any, ...]]:
    yield _replace, os.environ, dict(os.environ)
    yield _replace, sys.path, [*sys.path]
    with suppress(FileNotFoundError):  # the directory was removed
        yield os.chdir, os.getcwd()
    yield random.setstate, random.getstate()
    yield logging.disable, logging.root.manager.disable
    for logger in (logging.root, *logging.root.manager.loggerDict.values()):
        if isinstance(logger, logging.Logger):  # the others are placeholders of names
            # Setting a level clears the caches of all loggers.
            yield _unless_same, partial(getattr, logger, "level"), logger.setLevel, logger.level
            yield _replace, logger.handlers, [*logger.handlers]
    if threading.current_thread() is threading.main_thread():
        for number in signal.valid_signals():
            if (handler := signal.getsignal(number)) is not None:
                yield (
                    _unless_same,
                    partial(signal.getsignal, number),
                    partial(signal.signal, number),
                    handler,
                )


def _torch(torch: Any) -> Iterator[tuple[Any, ...]]:
    yield torch.set_num_threads, torch.get_num_threads()
    yield torch.set_rng_state, torch.get_rng_state()
    if torch.cuda.is_initialized():
        yield torch.cuda.set_rng_state_all, torch.cuda.get_rng_state_all()
    yield torch.set_default_dtype, torch.get_default_dtype()
    yield torch.set_grad_enabled, torch.is_grad_enabled()
    yield torch.set_deterministic_debug_mode, torch.get_deterministic_debug_mode()
    yield torch.backends.cuda.enable_cudnn_sdp, torch.backends.cuda.cudnn_sdp_enabled()
    for name in ("deterministic", "benchmark"):
        yield setattr, torch.backends.cudnn, name, getattr(torch.backends.cudnn, name)


def _progress_bars(bars: Any) -> Iterator[tuple[Any, ...]]:
    yield (
        bars.disable_progress_bars
        if bars.are_progress_bars_disabled()
        else bars.enable_progress_bars,
    )


#: For each module, the functions that restore its settings, with their arguments.
_SETTINGS: dict[str, Callable[[Any], Iterable[tuple[Any, ...]]]] = {
    "sys": _interpreter,
    "numpy": lambda numpy: [(numpy.random.set_state, numpy.random.get_state())],
    "torch": _torch,
    "huggingface_hub.utils": _progress_bars,
    "datasets.utils": _progress_bars,
    "transformers.utils.logging": lambda bars: [
        (bars.enable_progress_bar if bars.is_progress_bar_enabled() else bars.disable_progress_bar,)
    ],
}


def _replace(container: Any, contents: Any) -> None:
    """Give a list or mapping its former contents, where they differ."""
    if container != contents:
        container.clear()
        (container.update if isinstance(contents, dict) else container.extend)(contents)


def _unless_same(read: Callable[[], Any], write: Callable[[Any], Any], value: Any) -> None:
    if read() != value:
        write(value)
