"""Doorway of the public API: a call converts its arguments, names options as Python does, and leaves no trace."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from countdown_rl.core import process_state, values
from countdown_rl.core.formatting import spelled

Function = TypeVar("Function", bound=Callable[..., Any])


def public(function: Function) -> Function:
    """Make *function* part of the public API.

    Its arguments are converted by their annotations, those in quotes excepted, and unknown ones are a UsageError. The
    state of the process is what it was when the call returns or fails.
    """
    signature = inspect.signature(function)
    parameters = signature.parameters
    is_open = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())

    @functools.wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        with spelled(in_python=True), process_state.restored():
            if not is_open:
                values.check_names(keywords, parameters)
            given = signature.bind(*args, **keywords)
            for name, value in given.arguments.items():
                hint = parameters[name].annotation
                if values.converts(hint):
                    given.arguments[name] = values.convert(name, value, hint)
            return function(*given.args, **given.kwargs)

    return call  # type: ignore[return-value]
