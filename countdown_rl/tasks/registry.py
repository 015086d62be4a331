"""Registry of the tasks, and the parser of data rows."""

from collections.abc import Mapping
from typing import Any

from countdown_rl.errors import InputError
from countdown_rl.tasks.countdown import CountdownRow
from countdown_rl.tasks.gsm8k import Gsm8kRow
from countdown_rl.tasks.task import Row

TASKS: dict[str, type[Row]] = {row.task: row for row in (CountdownRow, Gsm8kRow)}


def parse_row(fields: Any) -> Row:
    """The row of the task that *fields* name; Countdown where they name none.

    Raises:
        InputError: *fields* are no mapping, name an unknown task, or are not what the task needs.
    """
    if isinstance(fields, Row):
        return fields
    if not isinstance(fields, Mapping):
        raise InputError("not a JSON object")
    name = fields.get("task") or CountdownRow.task
    if name not in TASKS:
        raise InputError(f"there is no task {name!r}; take {' or '.join(TASKS)}")
    return TASKS[name](fields)
