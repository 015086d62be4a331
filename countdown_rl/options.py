"""Checks that every stage's options share."""

from collections.abc import Mapping
from typing import Any

from countdown_rl.errors import UsageError


def check_choices(options: Any, choices: Mapping[str, tuple[str, ...]]) -> None:
    """Refuse a value that is none of the *choices* for its field."""
    for name, allowed in choices.items():
        if getattr(options, name) not in allowed:
            flag = "--" + name.replace("_", "-")
            raise UsageError(f"{flag} {getattr(options, name)} is none of: {', '.join(allowed)}.")
