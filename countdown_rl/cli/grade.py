"""``countdown-rl grade``: grade completions, a line at a time."""

import sys
from collections import Counter
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, BinaryIO, TextIO

import typer

from countdown_rl.cli import console


def grade(
    source: Annotated[
        str, typer.Argument(metavar="[FILE]", help="JSONL with nums, target, completion; - for stdin.")
    ] = "-",
    out: Annotated[Path | None, typer.Option(help="Write the grades to this file instead of stdout.")] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print a summary as one JSON object; grades only with --out.")
    ] = False,
) -> None:
    """Grade completions exactly, a line for a line, in constant memory.

    A line needs `nums`, `target` and `completion`; `rule`, `operators`, `style` and `task` are heeded where
    they are given, and `id` is passed on. Out come `format`, `strict_format`, `correct`, `answer`, `value`
    (an exact fraction), `reason` and `trailing`.

    Examples:

      countdown-rl grade samples.jsonl --out grades.jsonl

      echo '{"nums": [3, 4], "target": 7, "completion": "<answer>3 + 4</answer>"}' | countdown-rl grade
    """
    from countdown_rl.data import jsonl
    from countdown_rl.errors import InputError, UsageError

    reasons: Counter[str] = Counter()
    counts = Counter[str]()
    with ExitStack() as stack:
        lines: BinaryIO = sys.stdin.buffer
        if source != "-":
            if not Path(source).is_file():
                raise InputError(f"{source} does not exist or is no file.")
            if out is not None and out.exists() and out.samefile(source):
                raise UsageError("--out is the file to grade; name another one.")
            lines = stack.enter_context(Path(source).open("rb"))
        to: TextIO | None = None if json else sys.stdout
        if out is not None:
            to = stack.enter_context(out.open("w", encoding="utf-8", newline="\n"))
        grades = None if to is None else jsonl.writer(to)
        for row in jsonl.iter_rows(lines, "standard input" if source == "-" else source):
            counts["n"] += 1
            completion = row.get("completion")
            if not isinstance(completion, str):
                raise InputError(f"{source}, row {counts['n']}: there is no text in `completion`.")
            made = row.grade(completion)
            for name in ("format", "strict_format", "correct"):
                counts[name] += getattr(made, name)
            reasons[made.reason] += 1
            if grades is not None:
                grades.write({**({"id": row["id"]} if "id" in row else {}), **asdict(made)})
    reasons.pop("", None)
    summary = {name: counts[name] for name in ("n", "correct", "format", "strict_format")}
    console.result({**summary, "reasons": dict(reasons.most_common())}, as_json=json)
    if not json:
        console.note(f"{counts['n']:,} graded, {counts['correct']:,} right.")
