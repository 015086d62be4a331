"""Calls of functions in a child process that ends at a limit of time or memory.

A Jinja template is a program, and one of a few characters can run for hours or take all memory.
"""

import faulthandler
import importlib
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from functools import lru_cache
from threading import Lock
from typing import Any

from countdown_rl.errors import CountdownError, InputError, first_line

SECONDS = 10
#: Address space of the child, where the system limits it (Linux); the modules that it loads take a third.
BYTES = 1 << 30
#: Length of a result as JSON.
LENGTH = 1 << 20

_lock = Lock()


class LimitError(CountdownError):
    """A call was stopped at a limit."""


def call(function: str, *arguments: Any, **keywords: Any) -> Any:
    """Return what *function*, named as ``module:name``, returns for arguments in JSON.

    Raises:
        InputError: the function raised an exception.
        LimitError: it was stopped.
    """
    request = json.dumps([SECONDS, function, arguments, keywords])
    with _lock:
        child: Any = _child(os.getpid())
        answer = ""
        try:
            child.stdin.write(f"{request}\n")
            child.stdin.flush()
            answer = child.stdout.readline()
        finally:
            if not answer:  # it ended, or this process was interrupted
                child.kill()
                child.communicate()
                _child.cache_clear()
    if not answer:
        limits = f"{SECONDS} seconds, {BYTES >> 30} GB of memory or {LENGTH:,} characters"
        raise LimitError(f"it takes more than {limits}; replace it")
    result, error = json.loads(answer)
    if error:
        raise InputError(error)
    return result


@lru_cache(maxsize=1)
def _child(parent: int) -> subprocess.Popen[str]:
    """The child of the process *parent*; a fork of that has its own. It ends when its input closes."""
    path = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-P", "-m", __name__]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(command, env=os.environ | path, encoding="ascii", **pipes)  # noqa: S603


def _serve() -> None:
    """Answer each request on standard input by a line of the result, or null and the error."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
    for line in sys.stdin:
        seconds, function, arguments, keywords = json.loads(line)
        module, _, name = function.partition(":")
        try:
            called = getattr(importlib.import_module(module), name)
            faulthandler.dump_traceback_later(seconds, exit=True)
            answer = json.dumps([called(*arguments, **keywords), None])
        except MemoryError:
            break
        except Exception as error:  # a template's own, or that of a broken installation
            answer = json.dumps([None, first_line(error)])
        faulthandler.cancel_dump_traceback_later()
        if len(answer) > LENGTH:
            break
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _serve()
