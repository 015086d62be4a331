"""Reading of JSON objects whose fields have the types of a TypedDict or a dataclass, which pydantic checks.

What is missing or damaged, in the file or in one field, is an ArtifactError.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

from countdown_rl.core.errors import ArtifactError

#: Levels of nesting that a JSON file may have; a chain of manifests takes about thirty.
MAX_DEPTH = 200
MAX_BYTES = 2**28


def read(file: Path, hint: Any = dict) -> dict[str, Any]:
    return parse(read_bytes(file), file, hint)


def read_bytes(file: Path) -> bytes:
    """Return the contents of *file*. Raises ArtifactError if it is missing, no ordinary file, or far too large."""
    if not file.is_file() or file.stat().st_size > MAX_BYTES:
        fault = "not an ordinary JSON file" if file.exists() else "missing"
        raise ArtifactError(f"{file} is {fault}; download or make it again.")
    return file.read_bytes()


def parse(data: bytes | str, source: Path | str, hint: Any = dict) -> Any:
    """Return the JSON value *data*, of the type *hint*, read from *source*."""
    try:
        value = json.loads(data)
    except RecursionError:
        raise damaged(source, "nested too deep") from None
    except ValueError as error:
        raise damaged(source, f"not JSON: {error}") from error
    check_type(value, hint, source)
    return value


def check_type(value: Any, hint: Any, source: Path | str) -> None:
    """Check that *value*, read from *source*, has the type *hint*."""
    from pydantic import ValidationError

    try:
        _adapter(hint).validate_python([value])
    except ValidationError as error:
        raise damaged(source, _fault(value, error)) from None
    if _deeper(value, MAX_DEPTH):
        raise damaged(source, "nested too deep")


def damaged(source: Path | str, fault: str) -> ArtifactError:
    return ArtifactError(f"{source} is damaged ({fault}); make or download it again.")


def build(value: Any, kind: Any, source: Path | str) -> Any:
    """Return the object of the dataclass *kind* that :func:`dump` wrote as *value*, read from *source*."""
    from pydantic import ValidationError

    try:
        return _adapter(kind).validate_json(json.dumps([value]))[0]
    except ValidationError as error:
        raise damaged(source, _fault(value, error)) from None


def dump(value: Any) -> dict[str, Any]:
    """Return the fields of *value*, an object of a dataclass, as JSON; those that equal their default are left out."""
    kind: Any = type(value)
    (fields,) = _adapter(kind).dump_python([value], mode="json", exclude_defaults=True)
    return dict(fields)


def _fault(value: Any, error: Any) -> str:
    """The innermost fault of *value* among those in the ValidationError *error*."""
    fault = max(error.errors(), key=lambda fault: len(fault["loc"]))
    # Its location also names the branches of unions, which the value does not have.
    part, names = [value], list[str]()
    for key in fault["loc"]:
        if (isinstance(part, list) and key < len(part)) or (isinstance(part, dict) and key in part):
            part = part[key]
            names.append(" ".join(str(key).split()))
    if fault["type"] == "missing":
        return f"no `{'.'.join([*names[1:], str(fault['loc'][-1])])}`"
    name = f"`{'.'.join(names[1:])}`" if names[1:] else "it"
    message = fault["msg"].replace("Input", name, 1).replace("a valid dictionary", "an object")
    return f"{message}, not {json.dumps(fault['input']):.40}"


@cache
def _adapter(hint: Any) -> Any:
    from pydantic import ConfigDict, TypeAdapter

    # In a list, since a TypedDict takes no configuration here. Numbers are finite, and no type is converted.
    return TypeAdapter(list[hint], config=ConfigDict(strict=True, allow_inf_nan=False))


def _deeper(value: Any, levels: int) -> bool:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(levels == 0 or _deeper(part, levels - 1) for part in parts)
