"""Demonstrations: read from files, the Hub or a baseline, graded, and tokenized as a model meets them when it is asked.

A record has TRL's fields (``prompt`` and ``completion``, as text or messages, or ``messages``, of which the last is the
completion), those of another project (:mod:`countdown_rl.tasks.layouts`), or those of a task and ``completion``; then
the task writes the prompt.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from countdown_rl.core import artifacts
from countdown_rl.core.errors import InputError, UsageError
from countdown_rl.data import external
from countdown_rl.evaluation import baselines
from countdown_rl.models import chat_template, ends
from countdown_rl.tasks import files, jsonl, layouts, registry
from countdown_rl.tasks.layouts import held_out
from countdown_rl.tasks.registry import parse_row, task_of
from countdown_rl.tasks.response_format import STYLES
from countdown_rl.tasks.task import Row, check_text
from countdown_rl.training.config import SftOptions

#: Characters shown of a completion that is wrong.
EXAMPLE = 200
#: A conversation.
Messages = Sequence[Mapping[str, str]]


@dataclass(frozen=True)
class Demonstration:
    """A prompt, as text that was rendered already or as messages, and the completion to learn.

    Attributes:
        place: for error messages, such as ``demos.jsonl, row 3``.
        row: the row of the task, where the demonstration names it.
        notes: where its parts are in the record.
        unused: names of the record's fields that are no part of it.
        generated: a baseline wrote it, so that nobody can shorten it.
    """

    place: str
    prompt: str | Messages
    completion: str
    row: Row | None
    notes: tuple[str, ...] = ()
    unused: frozenset[str] = frozenset()
    generated: bool = False

    @property
    def asked(self) -> str:
        """The text of the prompt that asks: the turns of the user."""
        if isinstance(self.prompt, str):
            return self.prompt
        return "\n".join(turn["content"] for turn in self.prompt if turn["role"] == "user")


class _HeldOut:
    """Rows whose demonstrations are left out, found by their fields and by their prompts."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._identities, self._rows = {row.identity for row in rows}, rows

    def has(self, demonstration: Demonstration) -> bool:
        """Return True if *demonstration* is of one of these rows: by its own row, or by what its prompt asks."""
        row, text = demonstration.row, demonstration.asked
        if not self._rows or (row is not None and row.identity in self._identities):
            return bool(self._rows)
        if type(self._rows[0]).identities_in(text) & self._identities:
            return True
        text = _in_one_line(text)
        return text in self._prompts or (
            isinstance(demonstration.prompt, str) and any(prompt in text for prompt in self._prompts)
        )

    @cached_property
    def _prompts(self) -> set[str]:
        turns = (turn for row in self._rows for turn in row.messages() if turn["role"] == "user")
        return {_in_one_line(turn["content"]) for turn in turns}


def _in_one_line(text: str) -> str:
    return " ".join(text.split())


@dataclass
class Demonstrations:
    """Demonstrations to train on, and counts of those read, graded, and left out by the reason.

    Attributes:
        wrong: reasons why the grader finds some wrong, in words, and their numbers.
        example: the first of these.
        notes: remarks on what was read.
    """

    kept: list[Demonstration] = field(default_factory=list)
    read: int = 0
    graded: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    wrong: Counter[str] = field(default_factory=Counter)
    example: str = ""
    notes: list[str] = field(default_factory=list)

    def why_wrong(self) -> str:
        """The reasons why the grader finds some wrong, with an example."""
        return f"{', '.join(f'{count:,} {reason}' for reason, count in self.wrong.most_common(3))}; {self.example}"

    def row(self) -> Row | None:
        """The row of the first demonstration that names one."""
        return next((each.row for each in self.kept if each.row is not None), None)

    def facts(self) -> dict[str, Any]:
        """The counts, for the manifest."""
        return {"read": self.read, "graded": self.graded, "kept": len(self.kept), **self.left_out}


def read(
    options: SftOptions, paths: Sequence[Path], data: Path | None, on_row: Callable[[int], None] = lambda _: None
) -> tuple[Demonstrations, dict[str, Any]]:
    """The demonstrations of all sources, and the entries of these inputs in a manifest.

    Wrong ones are left out unless they are to be kept; always those of puzzles in the test split of *data*, and in its
    validation split where that is evaluated, and those that belong to such a split of their own.
    """
    inputs: dict[str, Any] = {}
    layout: Mapping[str, str] = {}
    held_out = {}
    if data is not None:
        inputs["data"] = artifacts.read(data, "data").as_input()
        splits = {**({"valid": "validation"} if options.eval_every else {}), "test": "test"}
        kept_out = {name: _rows(data / f"{split}.jsonl") for split, name in splits.items()}
        held_out = {name: _HeldOut(rows) for name, rows in kept_out.items()}
        layout = next(({"task": rows[0].task, **rows[0].layout} for rows in kept_out.values() if rows), {})
    result = Demonstrations()
    notes, unused, earlier = dict[str, None](), set[str](), 0
    for demonstration in _sources(options, paths, data, inputs, layout, result.left_out):
        result.read += 1
        on_row(result.read)
        row = demonstration.row
        notes |= dict.fromkeys(demonstration.notes)
        unused |= demonstration.unused
        if row is not None and options.eval_every:
            _check_prompt(demonstration, row, layout)
        if split := next((name for name, rows in held_out.items() if rows.has(demonstration)), None):
            result.left_out[f"of {split} puzzles"] += 1
            continue
        if row is not None:
            result.graded += 1
            grade = row.grade(demonstration.completion)
            if not grade.correct and not options.keep_wrong:
                result.left_out["wrong"] += 1
                result.wrong[task_of(row).reason(grade.reason)] += 1
                text = _in_one_line(demonstration.completion)
                shown = text if len(text) <= EXAMPLE else f"{text[: EXAMPLE // 2]} … {text[-EXAMPLE // 2 :]}"
                result.example = result.example or f"such as {demonstration.place}, for {row.headline}: {shown}"
                continue
        earlier += (
            sum(turn["role"] == "assistant" for turn in demonstration.prompt[:-1] if isinstance(turn, Mapping)) > 0
        )
        result.kept.append(demonstration)
    if not result.kept:
        reasons = [f"{count:,} {reason}" for reason, count in result.left_out.items() if count]
        wrong = f" (--keep-wrong keeps the wrong ones: {result.why_wrong()})" if result.wrong else ""
        raise InputError(f"none of the demonstrations can be used: {', '.join(reasons) or 'there are none'}{wrong}.")
    result.notes += notes
    if unused:
        result.notes.append(f"not used: {', '.join(sorted(unused))}")
    if texts := sum(isinstance(demonstration.prompt, str) for demonstration in result.kept):
        result.notes.append(
            f"{texts:,} have a prompt that is one text, which is used as it is, without a chat template"
        )
    if earlier:
        result.notes.append(f"{earlier:,} have earlier turns of the assistant, which are read and not learned")
    return result, inputs


def _rows(path: Path) -> list[Row]:
    """The rows of a split, which may be empty."""
    return jsonl.read_rows(path) if path.is_file() and path.stat().st_size else []


def _sources(
    options: SftOptions,
    paths: Sequence[Path],
    data: Path | None,
    inputs: dict[str, Any],
    layout: Mapping[str, str],
    left_out: Counter[str],
) -> Iterator[Demonstration]:
    """The demonstrations of all sources in turn; adds their entries to *inputs*, and held-out rows to *left_out*."""
    if not (paths or options.from_hub or options.demonstrator):
        raise UsageError("there is nothing to learn from; give --from FILE, --from-hub NAME or --demonstrator NAME.")
    for index, file in enumerate(paths):
        yield from _parsed(((place, "", record) for place, record in files.records(file)), layout, left_out)
        inputs[f"from-{index}" if index else "from"] = artifacts.file_input(file)
    for index, name in enumerate(options.from_hub):
        source, _, revision = name.partition("@")
        commit, rows = external.from_hub(source, revision or None)
        inputs[f"from-hub-{index}" if index else "from-hub"] = {"source": source, "revision": commit, "digest": commit}
        records = ((f"{source}, row {row}", split, fields) for row, (split, fields) in enumerate(rows, 1))
        yield from _parsed(records, layout, left_out)
    if options.demonstrator:
        if data is None:
            raise UsageError(
                f"--demonstrator {options.demonstrator} answers the training puzzles of --data; give that too."
            )
        yield from _by_baseline(options, data)


def _by_baseline(options: SftOptions, data: Path) -> Iterator[Demonstration]:
    rows = jsonl.read_rows(data / "train.jsonl")
    name = str(options.demonstrator)
    if (baseline := baselines.find(name, rows)) is None:
        raise UsageError(f"--demonstrator {name} is none of the task {rows[0].task}.")
    for index, row in enumerate(rows):
        completion = baselines.answer(baseline, row, f"{options.seed} {index}")
        yield Demonstration(f"{data}, row {index + 1}", row.messages(), completion, row, generated=True)


def _parsed(
    records: Iterable[tuple[str, str, Mapping[str, Any]]], layout: Mapping[str, str], left_out: Counter[str]
) -> Iterator[Demonstration]:
    """The demonstrations in *records*: the place of each, the split it was published in ("" in a file), its fields."""
    for place, published, record in records:
        split = published or layouts.split_of(record)
        if held_out(split):
            left_out[f"of the split {split}"] += 1
            continue
        with files.at(place):
            singles = layouts.split(record)
        for index, fields in enumerate(singles, 1):
            yield parse(fields, f"{place}, completion {index}" if len(singles) > 1 else place, layout)


def parse(fields: Mapping[str, Any], place: str, layout: Mapping[str, str] = {}) -> Demonstration:
    """The demonstration in a record with one completion.

    Args:
        layout: the ``task``, ``style`` and ``template`` of the rows of that task which have neither of the latter two.
    """
    with files.at(place):
        claimed = registry.task(registry.DEFAULT).example.keys() <= layouts.given(fields)
        found = layouts.find_row(fields) if claimed else layouts.search(fields)
        exchange = layouts.exchange(fields)
        row = found.row if found else None
        if row is not None and row.task == layout.get("task") and not row.keys() & {"style", "template"}:
            row = parse_row({**row, **layout})
        prompt = exchange.prompt if exchange else None
        if exchange and row and not prompt:
            prompt = row.messages()
        if not exchange or not prompt:
            raise InputError(
                "a demonstration has `prompt` and `completion`, or `messages`, or the fields of a task's row and "
                "`completion`, or those of Alpaca or ShareGPT"
            )
        style = row.style if row else STYLES["model_opens"]
        if exchange.completion.reasoning and style.direct:
            raise InputError("there is reasoning beside the answer, which the style direct has no place for")
        completion = exchange.completion.text(style)
        if not exchange.completion.content:
            raise InputError("the completion is empty")
        texts = [prompt] if isinstance(prompt, str) else [turn["content"] for turn in prompt]
        check_text("".join((*texts, completion)), "the text")
    unused = (found.unused if found else layouts.given(fields)) - set(exchange.names)
    notes = tuple(filter(None, (found.note if found else "", exchange.note)))
    return Demonstration(place, prompt, completion, row, notes, frozenset(unused))


def _check_prompt(demonstration: Demonstration, row: Row, layout: Mapping[str, str]) -> None:
    """Raise InputError if the *demonstration* of *row* has another prompt than a validation row of *layout*."""
    fields = {key: value for key, value in row.items() if key not in ("style", "template")}
    if row.task == layout.get("task") and not isinstance(demonstration.prompt, str):
        expected = parse_row({**fields, **layout}).messages()
        if list(demonstration.prompt) != expected:
            raise InputError(
                f"{demonstration.place} has another prompt or style than the validation puzzles of --data, which would "
                "measure what is not learned; leave its `prompt`, `style` and `template` out, or --eval-every."
            )


def start_of_text(tokenizer: Any) -> str:
    """The text that *tokenizer* puts before every other, such as a begin-of-text token."""
    alone, ids = (tokenizer("a", add_special_tokens=special)["input_ids"] for special in (False, True))
    start = next((index for index in range(len(ids)) if ids[index : index + len(alone)] == alone), 0)
    return str(tokenizer.decode(ids[:start]))


def _without_end(text: str, *ends: str | None) -> str:
    """*text* without any of *ends* at its end, and without white space after them."""
    while end := next((end for end in ends if end and text.rstrip().endswith(end)), None):
        text = text.rstrip().removesuffix(end)
    return text


def tokenize(known: Demonstrations, tokenizer: Any, max_length: int) -> list[dict[str, list[int]]]:
    """Token ids of each demonstration as ``input_ids``, and as ``labels`` with -100 for those of the prompt.

    Prompt and completion are encoded one by one, as in inference. A completion ends with the end of its turn. Those of
    a baseline that are longer than *max_length* are left out.

    Raises:
        InputError: another one is longer than *max_length*, and the text names it; or none is left.
    """
    turn_end, end = ends.end_of_turn(tokenizer), ends.learned_end(tokenizer)
    start = start_of_text(tokenizer)
    prompts, completions = [], []
    for demonstration in known.kept:
        if isinstance(demonstration.prompt, str):
            prompt = chat_template.Rendered(start + demonstration.prompt.removeprefix(start))
        else:
            *_, last = demonstration.prompt
            prefill = last["content"] if last["role"] == "assistant" else ""
            prompt = chat_template.Rendered(chat_template.render(tokenizer, demonstration.prompt), prefill)
        prompts.append(prompt.text)
        completion = prompt.continuation(demonstration.completion)
        completions.append(_without_end(completion, turn_end, tokenizer.eos_token) + end)
    encoded = (chat_template.token_ids(tokenizer, texts) for texts in (prompts, completions))
    examples, kept = [], []
    for demonstration, prompt, completion in zip(known.kept, *encoded, strict=True):
        if (length := len(prompt) + len(completion)) > max_length:
            if demonstration.generated:
                known.left_out["too long"] += 1
                continue
            raise InputError(
                f"{demonstration.place}: prompt and completion have {length} tokens, more than --max-length "
                f"{max_length}; raise it, or remove that row."
            )
        kept.append(demonstration)
        examples.append({"input_ids": prompt + completion, "labels": [-100] * len(prompt) + completion})
    if not kept:
        raise InputError(f"all demonstrations are longer than --max-length {max_length}; raise it.")
    known.kept = kept
    return examples
