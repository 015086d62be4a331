"""``countdown-rl grade``: grades of completions, one line each."""

import os
import sys
from collections import Counter
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, BinaryIO, Literal, TextIO

import typer

from countdown_rl.cli import console
from countdown_rl.core.options import option


def grade(
    source: Annotated[
        str, typer.Argument(metavar="FILE", help="JSONL, JSON, CSV or Parquet with completions; - is stdin.")
    ] = "-",
    out: Annotated[Path | None, option("File for the grades.", show_default="stdout")] = None,
    on_error: Annotated[
        Literal["stop", "mark"],
        option("At a line that cannot be graded: stop, or write its error in place of a grade."),
    ] = "stop",
    as_json: Annotated[
        bool, option("Print a summary as one JSON object; grades only with --out.", name="--json")
    ] = False,
) -> None:
    """Grade completions exactly, one line of output per completion.

    A row has `nums` and `target`, or the fields of another task, and `completion`, as text or messages, or a list of
    them; optionally `rule`, `operators`, `style`, `task` and `id`. The layouts of verl, reasoning-gym, verifiers and
    OpenAI batches are known. A grade has `format`, `strict_format`, `correct`, `answer`, `value` (an exact fraction),
    `reason` and `trailing`, and `sample` where a row has several completions. Memory does not grow with a JSONL file.

    Examples:
        countdown-rl grade samples.jsonl --out grades.jsonl
        echo '{"nums": [3,4], "target": 7, "completion": "<answer>3+4</answer>"}' \\
          | countdown-rl grade
    """
    from countdown_rl.core import artifacts
    from countdown_rl.core.errors import InputError, UsageError
    from countdown_rl.tasks import files, jsonl, layouts

    reasons: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    notes = {""}
    with ExitStack() as stack:
        if source == "-":
            if sys.stdin is None:
                raise InputError("standard input is closed; give a FILE.")
            lines: BinaryIO = sys.stdin.buffer
        else:
            if not Path(source).is_file():
                raise InputError(f"{source} does not exist or is no file.")
            lines = stack.enter_context(Path(source).open("rb"))
        if out is not None and out.is_file() and os.path.samestat(os.fstat(lines.fileno()), out.stat()):
            raise UsageError("--out is the input file; give another one.")
        stream: TextIO | None = None if as_json else sys.stdout
        if out is not None:
            if out.is_file() or not out.exists():  # else a device or a pipe
                artifacts.check_place(out, "--out")
                out = stack.enter_context(artifacts.replacing(Path(os.path.realpath(out))))
            stream = stack.enter_context(out.open("w", encoding="utf-8", newline="\n"))
        writer = None if stream is None else jsonl.writer(stream)

        def refuse(error: InputError) -> None:
            if on_error == "stop":
                raise error
            counts["errors"] += 1
            if writer is not None:
                writer.write({"error": str(error)})

        for place, fields in files.read(lines, "standard input" if source == "-" else source, refuse):
            try:
                with files.at(place):
                    found = layouts.find_row(fields)
                    row, turns = found.row, [layouts.completion(each) for each in layouts.split(fields)]
                    texts = [turn.text(row.style) for turn in turns if turn]
                    if not texts or len(texts) < len(turns):
                        raise InputError("there is no text in `completion`")
            except InputError as error:
                refuse(error)
                continue
            if found.note not in notes:
                notes.add(found.note)
                console.note(found.note)
            for index, text in enumerate(texts):
                counts["n"] += 1
                graded = row.grade(text)
                counts.update({name: getattr(graded, name) for name in ("format", "strict_format", "correct")})
                reasons[graded.reason] += 1
                named = {"id": row["id"]} if "id" in row else {}
                named |= {"sample": index} if len(texts) > 1 else {}
                if writer is not None:
                    writer.write(named | asdict(graded))
    del reasons[""]
    summary = {name: counts[name] for name in ("n", "correct", "format", "strict_format")}
    summary |= {"errors": counts["errors"]} if on_error == "mark" else {}
    console.result({**summary, "reasons": dict(reasons.most_common())}, as_json=as_json)
    if not as_json:
        errors = f", {counts['errors']:,} not gradable" if counts["errors"] else ""
        console.note(f"{counts['n']:,} graded, {counts['correct']:,} correct{errors}.")
