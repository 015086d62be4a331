import os
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from countdown_rl.cli import console
from countdown_rl.cli.parameters import option
from countdown_rl.core.errors import InputError, UsageError
from countdown_rl.core.formatting import percent
from countdown_rl.evaluation.config import (
    CompletionOperators,
    CompletionRule,
    CompletionStyle,
    OnError,
)
from countdown_rl.tasks.options import Fields, RecordsPath

if TYPE_CHECKING:
    from countdown_rl.tasks.task import Row

_VERDICTS = ("correct", "format", "strict_format")


def grade(
    source: Annotated[
        str, typer.Argument(metavar="FILE", help="JSONL, JSON, CSV or Parquet; - is stdin.")
    ] = "-",
    out: Annotated[Path | None, option("File for the grades.", show_default="stdout")] = None,
    data: Annotated[
        Path | None, option("Rows that the completions name by id: a data directory or a file.")
    ] = None,
    style: CompletionStyle = None,
    rule: CompletionRule = None,
    operators: CompletionOperators = None,
    field: Fields = (),
    records: RecordsPath = None,
    on_error: OnError = "stop",
) -> None:
    """Grade completions exactly, one line of output per completion.

    A row has `nums` and `target`, or the fields of another task, and `completion`: text, messages, or a list of them;
    optionally `rule`, `operators`, `style`, `task` and `id`. The files that eval --completions reads are read too; ids
    of rows need --data. A grade has `id` or `place`, `format`, `strict_format`, `correct`, `answer`, `value` (an exact
    fraction), `reason` and `trailing`, and `sample` if a row has several completions. JSONL is streamed. With --json a
    summary is printed, and grades are written only to --out.

    Examples:
        countdown-rl grade samples.jsonl --out grades.jsonl
        echo '{"nums": [3,4], "target": 7, "completion": "<answer>3+4</answer>"}' \\
          | countdown-rl grade
    """
    from countdown_rl.core import artifacts
    from countdown_rl.evaluation import caveats
    from countdown_rl.evaluation.completions import Reader
    from countdown_rl.tasks import jsonl, registry

    reasons: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    first = ""
    unanswered: list[tuple[Row, str]] = []
    with ExitStack() as stack:
        if source != "-" and (
            not Path(source).exists() or Path(source).is_dir()
        ):  # a pipe is fine: grade <(COMMAND)
            raise InputError(f"{source} does not exist or is no file.")
        lines = sys.stdin.buffer if source == "-" else stack.enter_context(Path(source).open("rb"))
        stream: TextIO | None = None if console.as_json else sys.stdout
        if out is not None:
            if out.is_file() and os.path.samestat(os.fstat(lines.fileno()), out.stat()):
                raise UsageError("is the input file; give another one.", option="out")
            if out.is_file() or not out.exists():  # else a device or a pipe
                artifacts.check_place(out, "--out")
                out = stack.enter_context(artifacts.replacing(Path(os.path.realpath(out))))
            stream = stack.enter_context(out.open("w", encoding="utf-8", newline="\n"))
        write: Callable[[dict[str, Any]], Any] = (
            jsonl.writer(stream).write if stream else lambda _: None
        )

        def refuse(error: InputError) -> None:
            if on_error == "stop":
                raise error
            nonlocal first
            first = first or str(error)
            counts["errors"] += 1
            write({"error": str(error)})

        jsonl.check_rules(data, rule=rule, operators=operators)
        known = jsonl.read_rows(jsonl.test_file(data), console.note) if data else ()
        reader = Reader(known, field, records or "", style=style, rule=rule, operators=operators)
        name = "standard input" if source == "-" else source
        for row, completions, place in reader.read(lines, name, refuse):
            labels = (
                {"id": row["id"]} if "id" in row else {"place": place.removeprefix(f"{name}, ")}
            )
            for index, completion in enumerate(completions):
                graded = row.grade(completion.text)
                counts.update({"n": 1, **{name: getattr(graded, name) for name in _VERDICTS}})
                reasons[graded.reason] += 1
                if graded.reason == "no-answer" and len(unanswered) < caveats.TRIED:
                    unanswered.append((row, completion.text))
                write(
                    labels | ({"sample": index} if len(completions) > 1 else {}) | graded.to_json()
                )
    if not counts["n"]:
        raise InputError(f"no completion was graded: {first or f'{name} has no rows.'}")
    if advice := caveats.bare_answers(unanswered, reasons["no-answer"], counts["n"]):
        console.warn(advice)
    del reasons[""]
    summary = {name: counts[name] for name in ("n", *_VERDICTS)}
    summary |= {"errors": counts["errors"]} if on_error == "mark" else {}
    console.result({**summary, "reasons": dict(reasons.most_common())})
    if not console.as_json:
        share = percent(counts["correct"] / counts["n"])
        lines = [f"{counts['n']:,} graded, {counts['correct']:,} correct ({share})."]
        task = registry.task(row.task)
        lines += [f"{n:7,}  {task.reason(name)}" for name, n in reasons.most_common(5)]
        if counts["errors"]:
            lines.append(f"{counts['errors']:7,}  records that cannot be graded")
        console.note("\n".join(lines))
