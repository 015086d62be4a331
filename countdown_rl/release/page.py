"""The report: one self-contained HTML page about the results, training, completions and origin of a run.

The page needs no network, script or font. Every figure in it is read from the artifacts, or counted from their
completions; the same artifacts give the same bytes.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from countdown_rl.core import artifacts, formatting
from countdown_rl.core.artifacts import MADE_BY
from countdown_rl.core.errors import ArtifactError
from countdown_rl.evaluation import compare, tables
from countdown_rl.release import charts
from countdown_rl.release.charts import Curve

#: The beginning of every page; a file that begins otherwise is not overwritten.
MARK = "<!doctype html>\n<!-- a {} of countdown-rl -->\n"

#: Logs by the name of their run.
Runs = dict[str, list[Path]]


def find(root: Path, *, results: Sequence[Path] = (), logs: Sequence[str] = ()) -> tuple[dict[str, Path], Runs]:
    """The evaluations by name, and the logs by run, in *root*, where the pipeline writes them, unless others are given.

    Args:
        logs: each a path, or ``NAME=PATH,PATH,...`` for the seeds of a run.
    """
    default_log, directory = root / "train" / "log.csv", root / "eval"
    runs = compare.by_setting(logs or ([str(default_log)] if default_log.is_file() else []))
    if missing := [path for paths in runs.values() for path in paths if not path.is_file()]:
        raise ArtifactError(f"{missing[0]} does not exist; `{MADE_BY['adapter']}` writes it.")
    paths = list(results) or sorted(path for path in directory.glob("*") if artifacts.peek(path) == "eval")
    if not paths:
        raise ArtifactError(f"{directory} holds no evaluation; `{MADE_BY['eval']}` makes one.")
    return compare.by_name(paths), runs


def check_path(out: Path, kind: str = "report") -> None:
    """Check that *out* can be written: it is not there yet, or is a page of this *kind* already."""
    if out.is_dir():
        raise ArtifactError(f"{out} is a directory; give --out a file.")
    artifacts.check_place(out, "--out")
    if out.exists():
        mark = MARK.format(kind).encode()
        with out.open("rb") as stream:
            if stream.read(len(mark)) != mark:
                raise ArtifactError(f"{out} is not a {kind} of countdown-rl; give --out another file, or remove it.")


def save(page: str, out: Path) -> int:
    """Write *page* at *out*, atomically, and return its size in bytes."""
    content = page.encode()
    with artifacts.replacing(out) as partial:
        partial.write_bytes(content)
    return len(content)


def save_figures(curves: Sequence[Curve], directory: Path) -> None:
    """Write each of *curves* as an SVG file named by its title into *directory*."""
    directory.mkdir(parents=True, exist_ok=True)
    for curve in curves:
        name = re.sub(r"[^a-z0-9]+", "-", curve.title.lower()).strip("-")
        with artifacts.replacing(directory / f"{name}.svg") as partial:
            partial.write_text(charts.picture([curve]), "utf-8")


def text(values: Mapping[str, Any], demo: str | None = None) -> str:
    """The HTML of the report about *values*, see :func:`view.view`; *demo* is the file name of the demo beside it."""
    environment = formatting.html_templates()
    filters = (formatting.percent, formatting.interval, formatting.short, formatting.duration, tables.points)
    environment.filters |= {filter.__name__: filter for filter in filters} | {"leaves": _leaves, "value": _value}
    html = environment.get_template("release/page.html.jinja").render(values, demo=demo)
    return MARK.format("report") + formatting.printable(html)


def _value(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else formatting.value(value)


def _leaves(values: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value in nested *values* but None, each with the keys that lead to it."""
    for key, value in values.items():
        name = f"{path} {formatting.flag(key)[2:]}".strip()
        if isinstance(value, Mapping):
            yield from _leaves(value, name)
        elif value is not None:
            yield name, value
