"""Registry of tasks, the parser of data rows, and grades in words."""

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pkgutil import resolve_name
from typing import Any

from countdown_rl.core.errors import InputError
from countdown_rl.core.options import plain, shown
from countdown_rl.core.types import Record
from countdown_rl.core.user_code import PLUGINS
from countdown_rl.tasks.task import Baseline, Row, Task

GROUP = "countdown_rl.tasks"
#: The task of rows that name none.
DEFAULT = "countdown"
#: The tasks of this package; those of others come from their entry points.
_OWN = {
    "countdown": "countdown_rl.tasks.countdown.task:TASK",
    "gsm8k": "countdown_rl.tasks.gsm8k:TASK",
}


@cache
def task(name: str) -> Task:
    """The task called *name*; InputError if there is none, or if the package that has it cannot be
    imported.
    """
    if name in _OWN:
        return resolve_name(_OWN[name])
    entry = _others().get(name)
    if entry is None:
        raise InputError(
            f"there is no task {name!r}; use {' or '.join(names())}, or install the package that has it"
        )
    PLUGINS.add(entry.value)
    try:
        loaded = entry.load()
    except Exception as error:  # anything may happen in a module of somebody else
        raise InputError(
            f"the task {name!r} of {entry.value} cannot be imported: {error}"
        ) from error
    if not isinstance(loaded, Task) or loaded.name != name or loaded.row.task != name:
        raise InputError(f"{entry.value} is no Task with the name {name!r}")
    return loaded


def own_tasks() -> list[Task]:
    """The tasks of this package, the default one first."""
    return list(map(task, _OWN))


def names() -> list[str]:
    """The names of all tasks."""
    return [*_OWN, *sorted(_others().keys() - _OWN.keys())]


def task_of(fields: Record) -> Task:
    """The task in the field ``task`` of a row, a graded completion or metrics.

    Raises InputError if there is none.
    """
    name = fields.get("task") or DEFAULT
    if not isinstance(name, str):
        raise InputError("`task` should be text")
    return task(name)


def baseline(name: str, rows: Sequence[Row]) -> Baseline | None:
    """The baseline *name* of the task of *rows*, or None."""
    return task(rows[0].task).baselines.get(name)


def parse_row(fields: object) -> Row:
    """The row of the task that *fields* name, by default Countdown; InputError if they are no row
    of a known task.
    """
    if isinstance(fields, Row):
        return fields
    if not isinstance(fields, Mapping):
        raise InputError("not a JSON object")
    return task_of(fields).row(fields)


def rows_of(columns: Record, count: int) -> list[Row]:
    """Return the rows that the *columns* of a data set describe.

    Args:
        columns: the fields of the rows' tasks, as lists of *count* values, which may be missing
            (None). Other columns are ignored.

    Raises:
        InputError: a column has another length, or a row is invalid.
    """

    def column(name: str) -> list[Any]:
        cells = plain(columns[name])
        if not isinstance(cells, list) or len(cells) != count:
            raise InputError(f"{name} should be a list of {count}, not {shown(cells)}.")
        return cells

    names = {"task", "style", "template"}
    for task_name in {*column("task")} if "task" in columns else {None}:
        known = task_of({"task": task_name})
        names.update(known.aliases, known.fields)
    table = {name: column(name) for name in names & columns.keys()}

    rows = []
    for index in range(count):
        cells = {name: values[index] for name, values in table.items()}
        rows.append(parse_row({name: cell for name, cell in cells.items() if cell is not None}))
    return rows


@cache
def _others() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP)}


def verdict(
    row: Row, answer: str | None, value: str | None, reason: str, truncated: bool | None = False
) -> str:
    """A grade in words.

    Args:
        row: the row that was asked.
        answer: the model's answer, which is not escaped for printing; None if there is none.
        value: the exact value of the answer as text.
        reason: why it is incorrect; "" if it is correct.
        truncated: the completion reached the token limit.
    """
    equation = answer
    # An answer that states its value, or is a number itself, is left as it is.
    if answer and value and "=" not in answer and answer != value:
        equation = f"{answer} = {value}"
    if not reason:
        return str(equation)
    if reason == "no-answer" and truncated:
        return "no answer: truncated at the token limit"
    if reason == "wrong-value":
        return f"{equation}, not {row.reference}"
    phrase = task(row.task).reason(reason)
    return f"{answer}: {phrase}" if answer else phrase
