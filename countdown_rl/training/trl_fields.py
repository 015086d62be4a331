"""Fields of TRL's configurations that a user gives as ``--trl KEY=VALUE``."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from countdown_rl.core.errors import CountdownError, UsageError, first_line, out_of_memory


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
        if "@" in value or key == "hub_token":
            raise UsageError(
                f"{key}: the manifest would publish a password or token; give no @, and set HF_TOKEN "
                "in the environment.",
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
        if not items or out_of_memory(error):
            raise
        raise UsageError(
            f"{' '.join(items)}: TRL rejects this: {first_line(error):.300}.", option="trl"
        ) from error
