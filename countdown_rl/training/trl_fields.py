"""Fields of TRL's configurations that a user gives as ``--trl KEY=VALUE``."""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar
from urllib.parse import urlsplit

from countdown_rl.core.errors import CountdownError, UsageError, first_line

Config = TypeVar("Config")


def split(items: Sequence[str]) -> dict[str, str]:
    """Return the fields of *items* ("key=value") as text.

    Raises:
        UsageError: an item has another form, or a password.
    """
    fields = {}
    for item in items:
        key, _, value = item.partition("=")
        if not key.isidentifier() or "=" not in item:
            raise UsageError(f"{item} is not of the form key=value.", option="trl")
        if "@" in value and urlsplit(value).password:
            raise UsageError(
                f"{key} has an address with a password, which the manifest would publish; "
                "give it without.",
                option="trl",
            )
        fields[key] = value
    return fields


def config(
    kind: type[Config],
    items: Sequence[str],
    fields: Mapping[str, object],
    defaults: Mapping[str, object] = {},
) -> Config:
    """Return a configuration of TRL.

    Args:
        kind: its class.
        items: fields of the user ("key=value").
        fields: fields that follow from other options.
        defaults: fields that *items* may replace.

    Raises:
        UsageError: an item names one of *fields* or no field of *kind*, or TRL rejects its value.
    """
    from transformers import HfArgumentParser

    keys = split(items)
    for key in keys:
        if key in fields or key not in kind.__dataclass_fields__:  # type: ignore[attr-defined]
            raise UsageError(
                f"{key}: {kind.__name__} has no such field, or it follows from another option.",
                option="trl",
            )
    with rejected(items):
        try:
            parser = HfArgumentParser(kind, exit_on_error=False)
            parsed = parser.parse_args([f"--{item}" for item in items])
        except argparse.ArgumentError as error:
            raise ValueError(error.message) from error
        requested = {key: getattr(parsed, key) for key in keys}
        return kind(**fields, **{**defaults, **requested})


@contextmanager
def rejected(items: Sequence[str]) -> Iterator[None]:
    """Raise UsageError with what TRL says where it fails on *items*."""
    try:
        yield
    except CountdownError:
        raise
    except Exception as error:
        if not items:
            raise
        raise UsageError(
            f"{' '.join(items)}: TRL rejects this: {first_line(error):.300}.", option="trl"
        ) from error
