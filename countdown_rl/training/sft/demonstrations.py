"""Demonstrations: read from files or a baseline, and graded.

A record has TRL's fields (``prompt`` and ``completion``, as text or messages, or ``messages``, of which the last is the
completion), those of another project (:mod:`countdown_rl.tasks.records`), or those of a task's row and ``completion``;
then the task writes the prompt.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

from countdown_rl.core import artifacts, user_code
from countdown_rl.core.errors import InputError, UsageError
from countdown_rl.core.formatting import plural
from countdown_rl.core.manifest import file_input
from countdown_rl.tasks import files, jsonl, records, registry
from countdown_rl.tasks.registry import parse_row, task_of
from countdown_rl.tasks.response_format import STYLES
from countdown_rl.tasks.splits import held_out
from countdown_rl.tasks.task import Row, check_text
from countdown_rl.training.options import SftOptions

#: Characters shown of a wrong completion.
EXAMPLE = 200


@dataclass(frozen=True)
class Demonstration:
    """A prompt, as rendered text or as messages, and the completion to learn."""

    place: str  # for error messages, such as ``demos.jsonl, row 3``
    prompt: str | Sequence[Mapping[str, str]]
    completion: str
    row: Row | None  # of the task, if the record has one
    note: str = ""  # a remark on how the record was read

    @property
    def text(self) -> str:
        """The prompt in one line, without its turns of the system and the assistant."""
        if isinstance(self.prompt, str):
            return _in_one_line(self.prompt)
        turns = (turn["content"] for turn in self.prompt if turn["role"] == "user")
        return _in_one_line("\n".join(turns))


@dataclass
class Demonstrations:
    """Demonstrations to train on, and counts of those read, graded, and left out by the reason."""

    filtered: list[Demonstration] = field(default_factory=list)
    read: int = 0
    graded: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)  # by the grader's reason
    example: str = ""  # the first wrong one

    @property
    def notes(self) -> list[str]:
        """Remarks on the demonstrations to train on, with their counts."""
        counts = Counter(each.note for each in self.filtered if each.note)
        return [f"{note} ({count:,} of {len(self.filtered):,})" for note, count in counts.items()]

    @property
    def warning(self) -> str:
        """The number of demonstrations whose puzzle is not known; or ""."""
        unknown = sum(each.row is None for each in self.filtered)
        if not unknown:
            return ""
        return (
            f"{unknown:,} of {plural(len(self.filtered), 'demonstration')} have no known row, so they "
            "are not graded, and compared with test rows by the whole prompt alone."
        )

    def why_wrong(self) -> str:
        return f"{', '.join(f'{count:,} {reason}' for reason, count in self.wrong.most_common(3))}; {self.example}"

    def facts(self) -> dict[str, int]:
        """The counts, for the manifest."""
        return {
            "read": self.read,
            "graded": self.graded,
            "kept": len(self.filtered),
            **self.left_out,
        }

    def add_wrong(self, demonstration: Demonstration, row: Row, reason: str) -> None:
        self.left_out["wrong"] += 1
        self.wrong[task_of(row).reason(reason)] += 1
        text = _in_one_line(demonstration.completion)
        shown = (
            text if len(text) <= EXAMPLE else f"{text[: EXAMPLE // 2]} … {text[-EXAMPLE // 2 :]}"
        )
        self.example = self.example or f"such as {demonstration.place}, for {row.headline}: {shown}"


class _HeldOut:
    """Rows whose demonstrations are skipped."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.noun = task_of(rows[0]).noun
        self._known = {(row.task, row.identity) for row in rows}
        self._prompts = {_in_one_line(row.prompt().user) for row in rows}

    def has(self, demonstration: Demonstration) -> bool:
        row = demonstration.row
        if row is not None and (row.task, row.identity) in self._known:
            return True
        text = demonstration.text
        rendered = isinstance(demonstration.prompt, str)
        return text in self._prompts or (rendered and any(each in text for each in self._prompts))


def _in_one_line(text: str) -> str:
    return " ".join(text.split())


def read(
    options: SftOptions,
    paths: Sequence[Path],
    data: Path | None,
    progress: Callable[..., None] = lambda *_: None,
    tokenizer: Any = None,
) -> tuple[Demonstrations, dict[str, Any]]:
    """The demonstrations of all sources, and the entries of these inputs in a manifest.

    The *tokenizer* counts the tokens of a search of ``demonstrator``.

    Wrong ones are skipped unless ``keep_wrong`` is set. Always skipped are those of puzzles in the test split of
    *data*, and in its validation split if that is evaluated, and those published in such a split.
    """
    if not (paths or options.demonstrator):
        raise UsageError("there is nothing to learn from; give --from FILE or --demonstrator NAME.")
    result, inputs, held_out = Demonstrations(), dict[str, Any](), {}
    layout: Mapping[str, str] = {}
    if data is not None:
        inputs["data"] = artifacts.read(data, "data").as_input()
        splits = ({"validation": "valid"} if options.eval_every else {}) | {"test": "test"}
        for name, split in splits.items():
            path = data / f"{split}.jsonl"
            if path.is_file() and path.stat().st_size:
                rows = jsonl.read_rows(path)
                held_out[name] = _HeldOut(rows)
                layout = layout or {"task": rows[0].task, **rows[0].layout}
    parsed = _parsed(_published(options, paths, inputs), layout, result.left_out)
    for demonstration in chain(parsed, _generated(options, data, tokenizer)):
        result.read += 1
        progress(result.read, result.read, "demonstrations read")
        row = demonstration.row
        if split := next((name for name, rows in held_out.items() if rows.has(demonstration)), ""):
            result.left_out[f"of {split} {held_out[split].noun}s"] += 1
            continue
        if row is not None and jsonl.in_suite(row):
            result.left_out["of a benchmark"] += 1
            continue
        if row is not None:
            result.graded += 1
            grade = row.grade(demonstration.completion)
            if not grade.correct and not options.keep_wrong:
                result.add_wrong(demonstration, row, grade.reason)
                continue
        result.filtered.append(demonstration)
    if not result.filtered:
        reasons = [f"{count:,} {reason}" for reason, count in result.left_out.items() if count]
        wrong = (
            f" (--keep-wrong keeps the wrong ones: {result.why_wrong()})" if result.wrong else ""
        )
        raise InputError(
            f"none of the demonstrations can be used: {', '.join(reasons) or 'there are none'}{wrong}."
        )
    return result, inputs


def _published(
    options: SftOptions, paths: Sequence[Path], inputs: dict[str, Any]
) -> Iterator[tuple[records.Reader, files.PlacedRecord]]:
    """The records of files, with their readers; adds their entries to *inputs*."""
    for index, path in enumerate(paths):
        reader = records.Reader(options.field)
        for record in files.records(path, options.records or ""):
            yield reader, record
        inputs[f"from-{index}" if index else "from"] = file_input(path)


def _parsed(
    published: Iterable[tuple[records.Reader, files.PlacedRecord]],
    layout: Mapping[str, str],
    left_out: Counter[str],
) -> Iterator[Demonstration]:
    """The demonstrations in *published* records; *left_out* counts those of held-out splits."""
    for reader, (place, record) in published:
        with files.at(place):
            split = reader.split(record)
            if held_out(split):
                left_out[f"of the split {split}"] += 1
                continue
            parsed = list(parse(reader, record, place, layout))
        yield from parsed


def _generated(options: SftOptions, data: Path | None, tokenizer: Any) -> Iterator[Demonstration]:
    """The demonstrations of ``demonstrator`` for the training rows of *data*."""
    name = options.demonstrator
    if not name:
        return
    if data is None:
        raise UsageError(
            f"{name} answers the training rows of --data; give that too.", option="demonstrator"
        )
    rows = jsonl.read_rows(data / "train.jsonl")
    baseline = registry.baseline(name, rows)
    if baseline is None and ":" not in name:
        baselines = ", ".join(task_of(rows[0]).baselines)
        raise UsageError(
            f"{name}: take one of {baselines}, or a function of yours as module:function.",
            option="demonstrator",
        )
    demonstrate: Any = baseline.completion if baseline else user_code.imported(name)
    for index, row in enumerate(rows):
        rng = random.Random(f"{options.seed} {index}")
        if baseline:
            completion = demonstrate(row, rng)
        else:
            with user_code.running(f"demonstrator {name}"):
                lines = demonstrate(row, rng)
                completion = _within(lines, row, tokenizer, options.max_completion_length)
        place = f"{data}, row {index + 1}"
        yield Demonstration(place, row.messages(), completion, row)


def _within(lines: Iterator[tuple[str, str]], row: Row, tokenizer: Any, budget: int) -> str:
    """The completion of as many of the *lines* of a demonstrator as fit *budget* tokens, at least one."""

    @cache
    def tokens(text: str) -> int:
        return len(tokenizer(text, add_special_tokens=False)["input_ids"])

    line, answer = next(lines)
    thinking, used = f"{line}\n", tokens(f"{line}\n")
    for line, later in lines:
        used += tokens(f"{line}\n")
        if used + tokens(row.style.answer(later)) > budget:
            break
        thinking, answer = f"{thinking}{line}\n", later
    return row.style.answer(answer, thinking)


def parse(
    reader: records.Reader,
    record: Mapping[str, Any],
    place: str,
    layout: Mapping[str, str] = {},
) -> Iterator[Demonstration]:
    """The demonstrations in a *record*; *layout* has the default style and template for its task."""
    completions = reader.completions(record)
    asked = reader.prompt(record)
    row = _row(reader, record, asked)
    if (
        row is not None
        and row.task == layout.get("task")
        and not row.keys() & {"style", "template"}
    ):
        row = parse_row({**row, **layout})
    if isinstance(asked, list):
        if any(turn.reasoning for turn in asked):
            raise InputError("the reasoning of an earlier turn is not used; leave it out")
        prompt: Any = [{"role": turn.role, "content": turn.content} for turn in asked]
        roles = [turn["role"] for turn in prompt]
        if "user" not in roles or "system" in roles[1:]:
            raise InputError("the prompt has no turn of the user, or a later turn of the system")
    else:
        prompt = asked or (row and row.messages())
    if not prompt:
        raise InputError("a demonstration has a prompt, or a task's row; give --field prompt=EXPR")
    shown = prompt if isinstance(prompt, str) else "".join(turn["content"] for turn in prompt)
    style = row.style if row else STYLES["model_opens"]
    for index, turn in enumerate(completions, 1):
        if turn.reasoning and style.direct:
            raise InputError("there is reasoning beside the answer, and the style direct has none")
        if not turn.content:
            raise InputError("the completion is empty")
        completion = turn.text(style)
        check_text(f"{shown}{completion}", "the text")
        numbered = f"{place}, completion {index}" if len(completions) > 1 else place
        yield Demonstration(numbered, prompt, completion, row, reader.note)


def _row(reader: records.Reader, record: Mapping[str, Any], prompt: Any) -> Row | None:
    """The row of *record*, by its fields or its *prompt*. Raises InputError if these are of two."""
    asked = records.asked(prompt)[0]
    try:
        row = reader.row(record)
    except records.NoRowError:
        if record.keys() & {"nums", "target"} == {"nums", "target"}:
            raise
        return asked
    if asked is not None and asked.id != row.id:
        raise InputError(f"its prompt asks another puzzle than {row.headline}, or by other rules")
    return row
