"""One page about a run: what was scored, how training went, what was written, where it all comes from.

The page is one HTML file that needs nothing else: no network, no script, no font. Every figure in it is
read from the artifacts, or counted from their completions; the same artifacts give the same bytes.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from countdown_rl import artifacts, formatting
from countdown_rl.artifacts import MADE_BY
from countdown_rl.errors import ArtifactError
from countdown_rl.evaluation import compare
from countdown_rl.evaluation.results import read as read_result
from countdown_rl.formatting import printable
from countdown_rl.report.view import Scored, view

#: What a page begins with; a file that begins otherwise is not written over.
MARK = "<!doctype html>\n<!-- a report of countdown-rl -->\n"


@dataclass(frozen=True)
class Sources:
    """What a report is made of: evaluations by name, and a training log."""

    results: Mapping[str, Path]
    log: Path | None


def find(root: Path, *, results: Sequence[Path] = (), log: Path | None = None) -> Sources:
    """What there is to report on in *root*, where the pipeline puts things; what is given takes its place.

    Raises:
        ArtifactError: there is no evaluation, or the log that is given does not exist.
        InputError: an evaluation is given twice.
    """
    usual = Path(root) / "train" / "log.csv"
    if log is not None and not log.is_file():
        raise ArtifactError(f"{log} does not exist; `{MADE_BY['adapter']}` writes it.")
    place = Path(root) / "eval"
    there = list(results) or sorted(path for path in place.glob("*") if artifacts.peek(path) == "eval")
    if not there:
        raise ArtifactError(f"{place} holds no evaluation; `{MADE_BY['eval']}` makes one.")
    return Sources(compare.by_name(there), log or (usual if usual.is_file() else None))


def write(sources: Sources, out: Path, *, transcripts: int) -> int:
    """Write the page about *sources* at *out*, whole or not at all.

    Args:
        transcripts: how many puzzles, from the first, are shown with what was written.

    Returns:
        Its size in bytes.

    Raises:
        ArtifactError: an input is missing or damaged, or *out* is something else than such a page.
        InputError: the log cannot be read, or no evaluation is of a model.
    """
    out = Path(out)
    if out.is_dir():
        raise ArtifactError(f"{out} is a directory; give --out a file.")
    if out.exists() and not _ours(out):
        raise ArtifactError(f"{out} is not a report of countdown-rl; give --out another file, or remove it first.")
    page = text(sources, transcripts=transcripts).encode()
    out.parent.mkdir(parents=True, exist_ok=True)
    beside = out.with_name(f".{out.name}.partial-{os.getpid()}")
    try:
        beside.write_bytes(page)
        beside.replace(out)
    finally:
        beside.unlink(missing_ok=True)
    return len(page)


def text(sources: Sources, *, transcripts: int) -> str:
    """The page itself."""
    import jinja2

    scored = {name: Scored(artifacts.read(path, "eval"), read_result(path)) for name, path in sources.results.items()}
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("countdown_rl.report", "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= _FILTERS
    return MARK + environment.get_template("page.html.jinja").render(view(scored, sources.log, transcripts))


def _ours(path: Path) -> bool:
    with path.open("rb") as stream:
        return stream.read(len(MARK)) == MARK.encode()


def _value(what: Any) -> str:
    return f"{what:,}" if isinstance(what, int) and not isinstance(what, bool) else formatting.value(what)


def _leaves(values: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value in *values* that there is, however deep, with the words that lead to it."""
    for key, value in values.items():
        name = f"{path} {formatting.flag(key)}".strip()
        if isinstance(value, Mapping):
            yield from _leaves(value, name)
        elif value is not None:
            yield name, value


def _size(count: int) -> str:
    size, units = float(count), iter(("B", "kB", "MB", "GB", "TB"))
    unit = next(units)
    while size >= 1000:
        size, unit = size / 1000, next(units)
    return f"{size:.3g} {unit}"


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    if minutes < 2:
        return f"{seconds:.0f} seconds"
    return f"{minutes} minutes" if minutes < 120 else f"{minutes / 60:.1f} hours"


_FILTERS = {
    "percent": formatting.percent,
    "interval": formatting.interval,
    "points": compare.points,
    "plain": printable,
    "leaves": _leaves,
    "value": _value,
    "short": formatting.short,
    "size": _size,
    "duration": _duration,
}
