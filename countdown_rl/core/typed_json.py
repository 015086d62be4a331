"""JSON objects of files, checked by pydantic against a dataclass or TypedDict; a fault is an
ArtifactError.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

from countdown_rl.core.errors import ArtifactError
from countdown_rl.core.types import JsonObject, Record


def read(file: Path) -> JsonObject:
    """Return the object in *file*."""
    if not file.is_file():
        raise ArtifactError(f"{file} is missing; download or make it again.")
    return parse(file.read_bytes(), file)


def parse(data: bytes | str, source: Path | str) -> JsonObject:
    """Return the object in *data*, which was read from *source*."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _damaged(source, f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise _damaged(source, "not a JSON object")
    return value


def build(value: object, kind: Any, source: Path | str) -> Any:
    """Return JSON as an object of a dataclass, TypedDict or other type.

    Args:
        value: the parsed JSON.
        kind: the type; no field is converted to another type.
        source: the file that *value* was read from, for the error.

    Raises:
        ArtifactError: a field is missing or of another type.
    """
    from pydantic import ValidationError

    try:  # halves of surrogate pairs become question marks
        data = json.dumps(value, ensure_ascii=False).encode(errors="replace")
        return _adapter(kind).validate_json(data, strict=True)
    except ValidationError as error:
        fault = max(error.errors(), key=lambda fault: len(fault["loc"]))
        place = ".".join(map(str, fault["loc"]))
        raise _damaged(source, f"`{place}` {expected(fault)}") from None


def expected(fault: Record) -> str:
    """Return the words of *fault*, an error of pydantic, as the end of a sentence: ``should be a
    valid integer``.
    """
    words = str(fault["msg"]).removeprefix("Input ").partition(", unable")[0]
    return words[:1].lower() + words[1:]


def dump(value: object) -> JsonObject:
    """Return the fields of *value*, an object of a dataclass, as JSON; those that equal their
    default are left out.
    """
    kind: Any = type(value)
    return _adapter(kind).dump_python(value, mode="json", exclude_defaults=True)


def _damaged(source: Path | str, fault: str) -> ArtifactError:
    return ArtifactError(f"{source} is damaged ({fault}); make or download it again.")


@cache
def _adapter(kind: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)
