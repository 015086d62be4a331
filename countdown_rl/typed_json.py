"""Reading of JSON objects whose fields have the types of a TypedDict, which pydantic checks."""

import json
from functools import cache
from typing import Any

#: Levels of nesting that a JSON file may have; a chain of manifests takes about thirty.
MAX_DEPTH = 200


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


def fault(value: Any, hint: Any) -> str | None:
    """Return what is wrong with *value* if its type is not *hint*, as a sentence that names the field."""
    from pydantic import ValidationError

    try:
        _checker(hint).validate_python([value])
        return None
    except ValidationError as error:
        fault = max(error.errors(), key=lambda fault: len(fault["loc"]))
    # Its location also names the branches of unions, which the value does not have.
    part, names = [value], list[str]()
    for key in fault["loc"]:
        if isinstance(key, int) or (isinstance(part, dict) and key in part):
            part = part[key]
            names.append(str(key))
    if fault["type"] == "missing":
        return f"no `{'.'.join([*names[1:], str(fault['loc'][-1])])}`"
    name = f"`{'.'.join(names[1:])}`" if names[1:] else "it"
    message = fault["msg"].replace("Input", name, 1).replace("a valid dictionary", "an object")
    return f"{message}, not {json.dumps(fault['input']):.40}"


@cache
def _checker(hint: Any) -> Any:
    from pydantic import ConfigDict, TypeAdapter

    # In a list, since a TypedDict takes no configuration here. Numbers are finite, and no type is converted.
    return TypeAdapter(list[hint], config=ConfigDict(strict=True, allow_inf_nan=False))


def _deeper(value: Any, levels: int) -> bool:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(levels == 0 or _deeper(part, levels - 1) for part in parts)
