"""``countdown-rl grade``: grades of completions, one line each."""

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal, TextIO

import typer

from countdown_rl.cli import console
from countdown_rl.core.errors import InputError, UsageError
from countdown_rl.core.options import option

_VERDICTS = ("correct", "format", "strict_format")


def grade(
    source: Annotated[
        str, typer.Argument(metavar="FILE", help="JSONL, JSON, CSV or Parquet with completions; - is stdin.")
    ] = "-",
    out: Annotated[Path | None, option("File for the grades.", show_default="stdout")] = None,
    on_error: Annotated[
        Literal["stop", "mark"],
        option("For a line that cannot be graded: stop, or write its error in place of a grade."),
    ] = "stop",
    as_json: Annotated[
        bool, option("Print a summary as one JSON object; grades only with --out.", name="--json")
    ] = False,
) -> None:
    """Grade completions exactly, one line of output per completion.

    A row has `nums` and `target`, or the fields of another task, and `completion`: text, messages, or a list of them;
    optionally `rule`, `operators`, `style`, `task` and `id`. Records of verl, reasoning-gym, verifiers and OpenAI
    batches are read too. A grade has `format`, `strict_format`, `correct`, `answer`, `value` (an exact fraction),
    `reason` and `trailing`, and `sample` if a row has several completions. JSONL is streamed.

    Examples:
        countdown-rl grade samples.jsonl --out grades.jsonl
        echo '{"nums": [3,4], "target": 7, "completion": "<answer>3+4</answer>"}' \\
          | countdown-rl grade
    """
    from countdown_rl.core import artifacts
    from countdown_rl.tasks import conversations, files, jsonl, records

    reasons: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    notes = {""}
    with ExitStack() as stack:
        lines = stack.enter_context(_opened(source))
        stream: TextIO | None = None if as_json else sys.stdout
        if out is not None:
            if out.is_file() and os.path.samestat(os.fstat(lines.fileno()), out.stat()):
                raise UsageError("--out is the input file; give another one.")
            if out.is_file() or not out.exists():  # else a device or a pipe
                artifacts.check_place(out, "--out")
                out = stack.enter_context(artifacts.replacing(Path(os.path.realpath(out))))
            stream = stack.enter_context(out.open("w", encoding="utf-8", newline="\n"))
        write: Callable[[dict[str, Any]], Any] = jsonl.writer(stream).write if stream else lambda _: None

        def refuse(error: InputError) -> None:
            if on_error == "stop":
                raise error
            counts["errors"] += 1
            write({"error": str(error)})

        for place, fields in files.read(lines, "standard input" if source == "-" else source, refuse):
            try:
                with files.at(place):
                    match = records.find_row(fields)
                    turns = [conversations.completion(part) for part in conversations.split(fields)]
                    texts = [turn.text(match.row.style) for turn in turns if turn]
                    if not texts or len(texts) < len(turns):
                        raise InputError("there is no text in `completion`")
            except InputError as error:
                refuse(error)
                continue
            if match.note not in notes:
                notes.add(match.note)
                console.note(match.note)
            for index, text in enumerate(texts):
                graded = match.row.grade(text)
                counts.update({"n": 1, **{name: getattr(graded, name) for name in _VERDICTS}})
                reasons[graded.reason] += 1
                labels = {"id": match.row["id"]} if "id" in match.row else {}
                labels |= {"sample": index} if len(texts) > 1 else {}
                write(labels | asdict(graded))
    del reasons[""]
    summary = {name: counts[name] for name in ("n", *_VERDICTS)}
    summary |= {"errors": counts["errors"]} if on_error == "mark" else {}
    console.result({**summary, "reasons": dict(reasons.most_common())}, as_json=as_json)
    if not as_json:
        errors = f", {counts['errors']:,} not gradable" if counts["errors"] else ""
        console.note(f"{counts['n']:,} graded, {counts['correct']:,} correct{errors}.")


@contextmanager
def _opened(source: str) -> Iterator[BinaryIO]:
    if source == "-":
        if sys.stdin is None:
            raise InputError("standard input is closed; give a FILE.")
        yield sys.stdin.buffer
    elif not Path(source).exists() or Path(source).is_dir():  # a pipe is fine: grade <(COMMAND)
        raise InputError(f"{source} does not exist or is no file.")
    else:
        with Path(source).open("rb") as lines:
            yield lines
