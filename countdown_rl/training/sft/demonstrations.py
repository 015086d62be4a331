"""Demonstrations: read from files or a baseline, and graded.

A record has TRL's fields (``prompt`` and ``completion``, as text or messages, or ``messages``, of
which the last is the completion), those of another project (:mod:`countdown_rl.tasks.records`), or
those of a task's row and ``completion``; then the task writes the prompt.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import chain
from pathlib import Path

from countdown_rl.core import artifacts, user_code
from countdown_rl.core.errors import InputError, UsageError
from countdown_rl.core.formatting import plural
from countdown_rl.core.manifest import file_input
from countdown_rl.core.types import JsonObject, Record
from countdown_rl.models.protocols import Tokenizer
from countdown_rl.tasks import files, jsonl, records, registry
from countdown_rl.tasks.registry import parse_row, task_of
from countdown_rl.tasks.response_format import STYLES
from countdown_rl.tasks.splits import held_out
from countdown_rl.tasks.task import Row, check_text
from countdown_rl.training.options import SftOptions

#: Characters shown of a wrong completion.
EXAMPLE = 200
#: Rendered text, or messages.
Prompt = str | Sequence[Mapping[str, str]]


@dataclass(frozen=True)
class Demonstration:
    """A prompt, as rendered text or as messages, and the completion to learn."""

    place: str  # for error messages, such as ``demos.jsonl, row 3``
    prompt: Prompt
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
        counts = Counter(demonstration.note for demonstration in self.filtered)
        of = f"of {len(self.filtered):,}"
        return [f"{note} ({count:,} {of})" for note, count in counts.items() if note]

    @property
    def warning(self) -> str:
        """The number of demonstrations whose puzzle is not known; or ""."""
        unknown = sum(demonstration.row is None for demonstration in self.filtered)
        if not unknown:
            return ""
        return (
            f"{unknown:,} of {plural(len(self.filtered), 'demonstration')} have no known row, so "
            "they are not graded, and compared with test rows by the whole prompt alone."
        )

    def why_wrong(self) -> str:
        """The most common faults of wrong demonstrations, and the first one."""
        faults = [f"{count:,} {reason}" for reason, count in self.wrong.most_common(3)]
        return f"{', '.join(faults)}; {self.example}"

    def skipped(self) -> str:
        """The numbers of those left out by the reason; or ""."""
        return ", ".join(f"{count:,} {reason}" for reason, count in self.left_out.items())

    def facts(self) -> dict[str, int]:
        """The counts, for the manifest."""
        return {
            "read": self.read,
            "graded": self.graded,
            "kept": len(self.filtered),
            **self.left_out,
        }

    def add_wrong(self, demonstration: Demonstration, row: Row, reason: str) -> None:
        """Count a *demonstration* of *row* that the grader rejects for *reason*."""
        self.left_out["wrong"] += 1
        self.wrong[task_of(row).reason(reason)] += 1
        text = _in_one_line(demonstration.completion)
        if len(text) > EXAMPLE:
            text = f"{text[: EXAMPLE // 2]} … {text[-EXAMPLE // 2 :]}"
        self.example = self.example or f"such as {demonstration.place}, for {row.headline}: {text}"


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
        if isinstance(demonstration.prompt, str):
            return any(prompt in text for prompt in self._prompts)
        return text in self._prompts


def _in_one_line(text: str) -> str:
    return " ".join(text.split())


def read(
    options: SftOptions,
    paths: Sequence[Path],
    data: Path | None,
    tokenizer: Tokenizer,
    progress: Callable[..., None] = lambda *_: None,
) -> tuple[Demonstrations, JsonObject]:
    """Read and grade the demonstrations of all sources.

    Wrong ones are skipped unless ``keep_wrong`` is set. Always skipped are those of puzzles in the
    test split of *data*, in its validation split if that is evaluated, and those published in such
    a split.

    Args:
        options: of the run.
        paths: files of demonstrations.
        data: directory of a ``data`` artifact.
        tokenizer: counts the tokens of a search of ``demonstrator``.
        progress: called with the numbers of those read.

    Returns:
        The demonstrations, and the entries of their sources in a manifest.

    Raises:
        InputError: none can be used.
    """
    if not (paths or options.demonstrator):
        raise UsageError("there is nothing to learn from; give --from FILE or --demonstrator NAME.")
    result = Demonstrations()
    inputs: JsonObject = {}
    layout: dict[str, str] = {}
    skipped: dict[str, _HeldOut] = {}
    if data is not None:
        inputs["data"] = artifacts.read(data, "data").as_input()
        splits = ({"validation": "valid"} if options.eval_every else {}) | {"test": "test"}
        for name, split in splits.items():
            path = data / f"{split}.jsonl"
            if path.is_file() and path.stat().st_size:
                rows = jsonl.read_rows(path)
                skipped[name] = _HeldOut(rows)
                layout = layout or {"task": rows[0].task, **rows[0].layout}
    from_files = _from_files(options, paths, inputs, layout, result.left_out)
    for demonstration in chain(from_files, _generated(options, data, tokenizer)):
        result.read += 1
        progress(result.read, result.read, "demonstrations read")
        split = next((name for name, rows in skipped.items() if rows.has(demonstration)), "")
        row = demonstration.row
        if split:
            result.left_out[f"of {split} {skipped[split].noun}s"] += 1
        elif row is None:
            result.filtered.append(demonstration)
        elif jsonl.in_suite(row):
            result.left_out["of a benchmark"] += 1
        else:
            result.graded += 1
            grade = row.grade(demonstration.completion)
            if grade.correct or options.keep_wrong:
                result.filtered.append(demonstration)
            else:
                result.add_wrong(demonstration, row, grade.reason)
    if not result.filtered:
        wrong = f" (--keep-wrong keeps them: {result.why_wrong()})" if result.wrong else ""
        reasons = result.skipped() or "there are none"
        raise InputError(f"none of the demonstrations can be used: {reasons}{wrong}.")
    return result, inputs


def _from_files(
    options: SftOptions,
    paths: Sequence[Path],
    inputs: JsonObject,
    layout: Mapping[str, str],
    left_out: Counter[str],
) -> Iterator[Demonstration]:
    """The demonstrations in files; adds the files to *inputs*, and counts held-out splits."""
    for index, path in enumerate(paths):
        reader = records.Reader(options.field)
        for place, record in files.records(path, options.records or ""):
            with files.at(place):
                split = reader.split(record)
                if held_out(split):
                    left_out[f"of the split {split}"] += 1
                    continue
                parsed = list(_parse(reader, record, place, layout))
            yield from parsed
        inputs[f"from-{index}" if index else "from"] = file_input(path)


def _generated(
    options: SftOptions, data: Path | None, tokenizer: Tokenizer
) -> Iterator[Demonstration]:
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
    complete: Callable[[Row, random.Random], str]
    if baseline is None:
        search = user_code.imported(name)
        complete = partial(_search, options, tokenizer, search)
    else:
        complete = baseline.completion
    for index, row in enumerate(rows):
        completion = complete(row, random.Random(f"{options.seed} {index}"))
        yield Demonstration(f"{data}, row {index + 1}", row.messages(), completion, row)


def _search(
    options: SftOptions,
    tokenizer: Tokenizer,
    search: user_code.Function,
    row: Row,
    rng: random.Random,
) -> str:
    """The first lines of *search*, the user's demonstrator, that fit the budget, one at least."""

    @cache
    def tokens(text: str) -> int:
        return len(tokenizer(text, add_special_tokens=False)["input_ids"])

    with user_code.running(f"demonstrator {options.demonstrator}"):
        lines = search(row, rng)
        line, answer = next(lines)
        thinking = f"{line}\n"
        used = tokens(thinking)
        for line, later in lines:
            used += tokens(f"{line}\n")
            if used + tokens(row.style.answer(later)) > options.max_completion_length:
                break
            thinking += f"{line}\n"
            answer = later
    return row.style.answer(answer, thinking)


def _parse(
    reader: records.Reader, record: Record, place: str, layout: Mapping[str, str]
) -> Iterator[Demonstration]:
    """The demonstrations in *record*; *layout* has the style and template of rows without one."""
    completions = reader.completions(record)
    asked = reader.prompt(record)
    row = _row(reader, record, asked)
    plain = row is not None and not row.keys() & {"style", "template"}
    if row is not None and plain and row.task == layout.get("task"):
        row = parse_row({**row, **layout})
    prompt = _prompt(asked, row)
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


def _prompt(asked: str | Sequence[records.Turn] | None, row: Row | None) -> Prompt:
    """The prompt of a record, or that of its *row*."""
    if not asked:
        if row is None:
            sentence = "a demonstration has a prompt, or a task's row; give --field prompt=EXPR"
            raise InputError(sentence)
        return row.messages()
    if isinstance(asked, str):
        return asked
    if any(turn.reasoning for turn in asked):
        raise InputError("the reasoning of an earlier turn is not used; leave it out")
    roles = [turn.role for turn in asked]
    if "user" not in roles or "system" in roles[1:]:
        raise InputError("the prompt has no turn of the user, or a later turn of the system")
    return [{"role": turn.role, "content": turn.content} for turn in asked]


def _row(
    reader: records.Reader, record: Record, prompt: str | Sequence[records.Turn] | None
) -> Row | None:
    """The row of *record*, by its fields or its *prompt*. Raises InputError if these are of two."""
    asked, _ = records.asked(prompt)
    try:
        row = reader.row(record)
    except records.NoRowError:
        if record.keys() & {"nums", "target"} == {"nums", "target"}:
            raise
        return asked
    if asked is not None and asked.id != row.id:
        raise InputError(f"its prompt asks another puzzle than {row.headline}, or by other rules")
    return row
