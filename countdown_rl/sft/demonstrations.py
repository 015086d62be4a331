"""Demonstrations: read from files, the Hub or a baseline, graded, and tokenized as a model meets them when it is asked.

A row has TRL's fields (``prompt`` and ``completion``, as text or messages, or ``messages``, of which the last is the
completion), or those of a task and ``completion``; then the task writes the prompt.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from countdown_rl import artifacts
from countdown_rl.data import external, jsonl
from countdown_rl.data.source import held_out
from countdown_rl.errors import InputError, UsageError
from countdown_rl.evaluation import baselines
from countdown_rl.models import chat_template
from countdown_rl.sft.config import SftOptions
from countdown_rl.tasks.registry import parse_row
from countdown_rl.tasks.task import Row

#: A conversation.
Messages = Sequence[Mapping[str, str]]


@dataclass(frozen=True)
class Demonstration:
    """A prompt, as text that was rendered already or as messages, and the completion to learn.

    Attributes:
        place: for error messages, such as ``demos.jsonl, row 3``.
        row: the row of the task, where the demonstration names it.
        generated: a baseline wrote it, so that nobody can shorten it.
    """

    place: str
    prompt: str | Messages
    completion: str
    row: Row | None
    generated: bool = False


@dataclass
class Demonstrations:
    """Demonstrations to train on, and counts of those read, graded, and left out by the reason."""

    kept: list[Demonstration] = field(default_factory=list)
    read: int = 0
    graded: int = 0
    left_out: Counter[str] = field(default_factory=Counter)

    def task(self) -> str | None:
        """The task of the first demonstration that names one."""
        return next((each.row.task for each in self.kept if each.row is not None), None)

    def facts(self) -> dict[str, Any]:
        """The counts, for the manifest."""
        return {"read": self.read, "graded": self.graded, "kept": len(self.kept), **self.left_out}


def read(
    options: SftOptions, files: Sequence[Path], data: Path | None, on_row: Callable[[int], None] = lambda _: None
) -> tuple[Demonstrations, dict[str, Any]]:
    """The demonstrations of all sources, and the entries of these inputs in a manifest.

    Wrong ones are left out unless they are to be kept, those of puzzles in the test split of *data* always.
    """
    inputs: dict[str, Any] = {}
    if data is not None:
        inputs["data"] = artifacts.read(data, "data").as_input()
    test = {row.identity for row in jsonl.read_rows(data / "test.jsonl")} if data is not None else set()
    result = Demonstrations()
    for demonstration in _sources(options, files, data, inputs, result.left_out):
        result.read += 1
        on_row(result.read)
        row = demonstration.row
        if row is not None and row.identity in test:
            result.left_out["of test puzzles"] += 1
            continue
        if row is not None:
            result.graded += 1
            if not row.grade(demonstration.completion).correct:
                result.left_out["wrong"] += not options.keep_wrong
                if not options.keep_wrong:
                    continue
        result.kept.append(demonstration)
    if not result.kept:
        raise InputError(
            f"none of the {result.read:,} demonstrations can be used: {result.left_out['wrong']:,} are wrong by the "
            f"grader (--keep-wrong keeps them), {result.left_out['of test puzzles']:,} are of test puzzles"
            + "".join(f", {n:,} are {reason}" for reason, n in result.left_out.items() if "split" in reason)
            + "."
        )
    return result, inputs


def _sources(
    options: SftOptions, files: Sequence[Path], data: Path | None, inputs: dict[str, Any], left_out: Counter[str]
) -> Iterator[Demonstration]:
    """The demonstrations of all sources in turn; adds their entries to *inputs*, and held-out rows to *left_out*."""
    if not (files or options.from_hub or options.demonstrator):
        raise UsageError("there is nothing to learn from; give --from FILE, --from-hub NAME or --demonstrator NAME.")
    for index, file in enumerate(files):
        yield from _parsed(str(file), external.from_file(file), left_out)
        inputs[f"from-{index}" if index else "from"] = artifacts.file_input(file)
    for index, name in enumerate(options.from_hub):
        source, _, revision = name.partition("@")
        commit, rows = external.from_hub(source, revision or None)
        inputs[f"from-hub-{index}" if index else "from-hub"] = {"source": source, "revision": commit, "digest": commit}
        yield from _parsed(source, rows, left_out)
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
        completion = baselines.complete(baseline, row, f"{options.seed} {index}")
        yield Demonstration(f"{data}, row {index + 1}", row.messages(), completion.text, row, generated=True)


def _parsed(source: str, rows: Iterable[external.Published], left_out: Counter[str]) -> Iterator[Demonstration]:
    for index, (published, fields) in enumerate(rows, 1):
        split = published or str(fields.get("split") or "")
        if held_out(split):
            left_out[f"of the split {split}"] += 1
        else:
            yield parse(fields, f"{source}, row {index}")


def parse(fields: Mapping[str, Any], place: str) -> Demonstration:
    """The demonstration in *fields*."""
    row = None
    with suppress(InputError):
        row = parse_row({key: value for key, value in fields.items() if value is not None})
    prompt, completion = fields.get("prompt"), fields.get("completion")
    if prompt is None and fields.get("messages"):
        *prompt, completion = _messages(fields["messages"], place)
        completion = [completion]
    elif prompt is None and row is not None:
        prompt = row.messages()
    if isinstance(completion, list | tuple):
        completion = _messages(completion, place)
        if len(completion) != 1 or completion[0]["role"] != "assistant":
            raise InputError(f"{place}: the completion should be one turn of the assistant.")
        completion = completion[0]["content"]
    if isinstance(prompt, list | tuple):
        prompt = _messages(prompt, place)
    if not isinstance(completion, str) or not completion or not prompt or not isinstance(prompt, str | list):
        raise InputError(
            f"{place}: a demonstration has `prompt` and `completion`, or `messages`, or the fields of a task's row and "
            "`completion`."
        )
    return Demonstration(place, prompt, completion, row)


def _messages(turns: Any, place: str) -> list[dict[str, str]]:
    if not isinstance(turns, list | tuple) or not turns:
        raise InputError(f"{place}: messages should be a list of turns.")
    for turn in turns:
        if not isinstance(turn, Mapping) or not all(isinstance(turn.get(key), str) for key in ("role", "content")):
            raise InputError(f"{place}: a turn should have `role` and `content`, both text.")
    return [{"role": turn["role"], "content": turn["content"]} for turn in turns]


def end_of_turn(tokenizer: Any) -> str:
    """The text by which the chat template ends a turn of the assistant; the end-of-text token where it has none."""
    mark = "?!mark!?"
    turns = [{"role": "user", "content": "?"}, {"role": "assistant", "content": mark}]
    rest = ""
    if tokenizer.chat_template:
        rest = chat_template.apply(tokenizer, turns).rpartition(mark)[2].strip()
    return rest or str(tokenizer.eos_token)


def start_of_text(tokenizer: Any) -> str:
    """The text that *tokenizer* puts before every other, such as a begin-of-text token."""
    return str(tokenizer.decode(tokenizer("")["input_ids"]))


def tokenize(known: Demonstrations, tokenizer: Any, max_length: int) -> list[dict[str, list[int]]]:
    """Token ids of each demonstration as ``input_ids``, and as ``labels`` with -100 for those of the prompt.

    Prompt and completion are encoded one by one, as in inference. A completion ends with the end of its turn. Those of
    a baseline that are longer than *max_length* are left out.

    Raises:
        InputError: another one is longer than *max_length*, and the text names it; or none is left.
    """
    end = end_of_turn(tokenizer)
    start = start_of_text(tokenizer)
    prompts = []
    for demonstration in known.kept:
        if isinstance(demonstration.prompt, str):
            prompts.append(start + demonstration.prompt.removeprefix(start))
        else:
            prompts.append(chat_template.render(tokenizer, demonstration.prompt))
    completions = [each.completion.removesuffix(end) + end for each in known.kept]
    encoded = (tokenizer(texts, add_special_tokens=False)["input_ids"] for texts in (prompts, completions))
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
