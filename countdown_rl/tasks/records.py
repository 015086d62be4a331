"""Find the row of a task in the records of other projects by the names of their fields.

The fields of a row may be in a mapping inside of a record, as in verl (``reward_model.ground_truth``), reasoning-gym
(``metadata``) and verifiers (``info``), or be a row's id in ``custom_id`` (OpenAI batches). Mappings may be text in the
notation of JSON or Python.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from countdown_rl.core.errors import InputError
from countdown_rl.tasks import registry
from countdown_rl.tasks.conversations import COMPLETIONS, PAIRS, PROMPTS, decoded
from countdown_rl.tasks.splits import held_out
from countdown_rl.tasks.task import Row, Task


class NoRowError(InputError):
    """A record has no row of a task."""


@dataclass(frozen=True)
class Match:
    """A task's row in a record."""

    row: Row
    note: str  # where the row was; "" if its fields are those of the record
    unused: set[str]  # names of the record's fields that the task does not know


def search(record: Mapping[str, Any]) -> Match | None:
    """As :func:`find_row`; None if there is none."""
    with suppress(NoRowError):
        return find_row(record)
    return None


def find_row(record: Mapping[str, Any], published_as: Task | None = None) -> Match:
    """The row in *record*, of *published_as* or the task it resembles; NoRowError for none, InputError for two."""
    fields = _without_empty(record)
    tasks = [published_as] if published_as else registry.own_tasks()
    if not published_as and "task" in fields:
        with suppress(InputError, TypeError):  # it may name something else
            tasks = [registry.task(fields["task"])]
    names = [name for task in tasks if (name := task.row.of_id(fields.get("custom_id")))]
    matches: list[tuple[str, Row]] = []
    faults: list[tuple[Task, InputError]] = []
    mappings = [*_mappings(fields)]
    around: dict[str, Any] = {}
    if len(mappings) > 1 or names:
        around = {
            name: value
            for name, value in fields.items()
            if any(name in task.fields for task in tasks)
        }
    for path, inner in (*mappings, *(("custom_id", name) for name in names)):
        for task in tasks:
            try:
                row = _read(task, inner, published_as is not None)
            except InputError as error:
                faults += [] if path else [(task, error)]
                continue
            if seconds := [
                other.noun
                for other in tasks
                if other is not task and other.example.keys() <= inner.keys()
            ]:
                raise InputError(f"it has the fields of a {task.noun} and of a {seconds[0]}")
            matches.append((path, _around(task, row, around if path else {})))
            break
    if not matches:
        near = [
            (task, error) for task, error in faults if task.example.keys() & fields.keys()
        ] or faults[:1]
        every = " and ".join(f"no {task.noun} ({error})" for task, error in near)
        raise NoRowError(str(near[0][1]) if len(near) == 1 else f"it is {every}")
    path, row = matches[0]
    task = registry.task(row.task)
    for other, same in matches[1:]:
        if same.task == row.task and same.id != row.id:
            raise InputError(
                f"it has two {task.noun}s, {row.headline} and, in `{other}`, {same.headline}"
            )
    if (split := held_out(split_of(fields))) and row.get("split") != split:
        row = task.row({**row, "split": split})
    ids = (value for _, holder in mappings for name, value in holder.items() if name.endswith("id"))
    for known_as in dict.fromkeys(map(str, ids)):
        if (
            known_as != row.id
            and (named := task.row.of_id(known_as))
            and task.row(named).id != row.id
        ):
            raise InputError(
                f"its id {known_as} is that of another {task.noun} than its fields, {row.headline}"
            )
    note = ""
    if path:
        note = f"the {task.noun} is read from {path}"
    elif not published_as and task.name != fields.get("task", registry.DEFAULT):
        note = f"read as rows of the task {task.name}"
    used = {*task.fields, *task.aliases, path.partition(".")[0], "task", "split", "custom_id"}
    return Match(row, note, fields.keys() - used)


def check_prompt(row: Row, prompt: str) -> str:
    """Words of *prompt* that may change the rules of *row*, or ""; InputError if it certainly asks another row."""
    try:
        asked = row.fields_in(prompt, [name for name in ("rule", "operators") if row.get(name)])
    except InputError as error:
        return f"{error}; it is graded by the fields of the record"
    if asked and type(row)({**row.kept, **asked}).id != row.id:
        noun = registry.task(row.task).noun
        raise InputError(
            f"its prompt asks another {noun} than {row.headline}, or asks it by other rules; correct one"
        )
    return ""


def _read(task: Task, fields: Mapping[str, Any], published: bool) -> Row:
    """The row of *task* in *fields*; of *published* ones, which may be those of a row too, by ``import_row`` first."""
    own = task.example.keys() <= fields.keys()
    if task.import_row and (published or not own):
        try:
            return task.row(task.import_row(fields))
        except InputError:
            if not own:
                raise
    return task.row(fields)


def _around(task: Task, row: Row, record: Mapping[str, Any]) -> Row:
    """*row* with the fields that the *record* around it has for it, and with the name of its task."""
    more = {
        key: value
        for key, value in record.items()
        if key in task.fields and key not in row and key != "task"
    }
    if not more and row.get("task", registry.DEFAULT) == task.name:
        return row
    named = {} if task.name == registry.DEFAULT else {"task": task.name}
    return task.row(
        {**more, **{key: value for key, value in row.items() if key != "task"}, **named}
    )


def split_of(record: Mapping[str, Any]) -> str:
    """The split that *record* or a mapping in it names, a held-out one first; "" if there is none."""
    splits = [
        split for _, holder in _mappings(record) if isinstance(split := holder.get("split"), str)
    ]
    return next(filter(held_out, splits), splits[0] if splits else "")


def _mappings(
    fields: Mapping[str, Any], path: str = "", depth: int = 4
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """*fields* and the mappings in it with their paths, except for what a model wrote or read."""
    yield path, fields
    for name, value in fields.items() if depth else ():
        if (
            isinstance(value, str)
            and value.lstrip()[:1] == "{"
            and name not in (*COMPLETIONS, *PAIRS, *PROMPTS)
        ):
            value = decoded(value)
        if isinstance(value, Mapping) and name not in COMPLETIONS:
            yield from _mappings(
                _without_empty(value), f"{path}.{name}" if path else name, depth - 1
            )


def _without_empty(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The *fields* that have a value: a table has all columns in every row."""
    return {str(name): value for name, value in fields.items() if value is not None and value != ""}
