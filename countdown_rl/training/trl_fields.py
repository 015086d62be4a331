"""Fields of TRL's configurations that a user gives as ``--trl KEY=VALUE``."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from urllib.parse import urlsplit

from countdown_rl.core.errors import CountdownError, UsageError, first_line


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
