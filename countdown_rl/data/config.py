"""Options of ``gen-data``."""

from dataclasses import dataclass


@dataclass(frozen=True)
class DataOptions:
    """``gen-data``: how many puzzles, of which kinds, and where the lines between splits fall.

    ``size``, ``numbers``, ``targets``, ``operators`` and ``rule`` say otherwise than the preset where they
    are given. ``from_`` is the flag ``--from``.
    """

    n: int = 50_000
    seed: int = 42
    valid: int | None = None
    test: int | None = None
    preset: str = "3to4"
    size: tuple[str, ...] = ()
    numbers: str | None = None
    targets: str | None = None
    operators: str | None = None
    rule: str | None = None
    impossible: float = 0.0
    balance: tuple[str, ...] = ()
    style: str | None = None
    task: str = "countdown"
    from_: str | None = None
    from_hub: str | None = None
    revision: str | None = None
    exclude: tuple[str, ...] = ()
    workers: int = 0
