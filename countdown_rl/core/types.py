"""Names for JSON as Python reads it."""

from collections.abc import Mapping
from typing import Any

#: An object of a JSON document that this package writes.
JsonObject = dict[str, Any]

#: A record of a file that somebody else wrote, as read.
Record = Mapping[str, Any]
