"""Reading of JSON objects whose fields have the types of a TypedDict."""

import json
import math
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints, is_typeddict

#: Levels of nesting that a JSON file may have; a chain of manifests takes about thirty.
MAX_DEPTH = 200
_KINDS: dict[Any, str] = {
    dict: "an object",
    list: "a list",
    str: "text",
    bool: "true or false",
    int: "a whole number",
    float: "a finite number",
    NoneType: "null",
}
_hints = cache(get_type_hints)


def loads(data: bytes | str, hint: Any) -> Any:
    """Return the JSON value *data*, which has the type *hint*.

    Raises:
        ValueError: it is no JSON, is nested too deep, or has another type; the text says which field.
    """
    try:
        value = json.loads(data)
        problem = "nested too deep" if _deeper(value, MAX_DEPTH) else fault(value, hint)
    except RecursionError:
        problem = "nested too deep"
    except ValueError as error:
        problem = f"not JSON: {error}"
    if problem is not None:
        raise ValueError(problem)
    return value


def fault(value: Any, hint: Any, name: str = "") -> str | None:
    """Return what is wrong with *value*, a field called *name*, if its type is not *hint*."""
    kind, arguments = get_origin(hint) or hint, get_args(hint)
    if kind in (Union, UnionType):
        faults = [fault(value, argument, name) for argument in arguments]
        return None if None in faults else max(filter(None, faults), key=lambda text: text.count("."))
    if is_typeddict(hint):
        kind = dict
    if kind is float:
        matches = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    else:
        matches = kind is Any or (isinstance(value, kind) and not (kind is int and isinstance(value, bool)))
    if not matches:
        expected = f"{_KINDS[kind]}, not {json.dumps(value):.40}"
        return f"`{name}` should be {expected}" if name else f"should be {expected}"
    if is_typeddict(hint):
        if missing := sorted(hint.__required_keys__ - value.keys()):
            return f"no `{name and name + '.'}{missing[0]}`"
        parts = [(value[key], inner, key) for key, inner in _hints(hint).items() if key in value]
    elif kind in (dict, list) and arguments:
        pairs = value.items() if kind is dict else enumerate(value)
        parts = [(part, arguments[-1], str(key)) for key, part in pairs]
    else:
        return None
    return next(filter(None, (fault(part, inner, f"{name and name + '.'}{key}") for part, inner, key in parts)), None)


def _deeper(value: Any, levels: int) -> bool:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(levels == 0 or _deeper(part, levels - 1) for part in parts)
