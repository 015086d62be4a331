"""Names for JSON as Python reads it."""

from collections.abc import Mapping
from typing import Any

#: An object of a JSON document.
JsonObject = dict[str, Any]

#: The fields of a record of a file, or of a row, by name.
Record = Mapping[str, Any]


def as_list(value: object) -> list[Any]:
    """Return the items of a list or tuple, else *value* as the only item."""
    return list(value) if isinstance(value, list | tuple) else [value]
