import os
import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from countdown_rl.cli import console
from countdown_rl.cli.parameters import option
from countdown_rl.core.errors import InputError, UsageError
from countdown_rl.core.formatting import percent, plural
from countdown_rl.core.types import JsonObject
from countdown_rl.evaluation.config import (
    CompletionOperators,
    CompletionRule,
    CompletionStyle,
    OnError,
)
from countdown_rl.tasks.options import Fields, RecordsPath

if TYPE_CHECKING:
    from collections.abc import Sequence

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

    A row has `nums` and `target`, or the fields of another task, and `completion`: text, messages,
    or a list of them; optionally `rule`, `operators`, `style`, `task` and `id`. The files that eval
    --completions reads are read too; ids of rows need --data. A grade has `id` or `place`,
    `format`, `strict_format`, `correct`, `answer`, `value` (an exact fraction), `reason` and
    `trailing`, and `sample` if a row has several completions. JSONL is streamed. With --json a
    summary is printed, and grades are written only to --out.

    Examples:
        countdown-rl grade samples.jsonl --out grades.jsonl
        echo '{"nums": [3,4], "target": 7, "completion": "<answer>3+4</answer>"}' \\
          | countdown-rl grade
    """
    import jsonlines

    from countdown_rl.core import artifacts
    from countdown_rl.evaluation import caveats
    from countdown_rl.evaluation.completions import STDIN, Reader
    from countdown_rl.tasks import jsonl, registry

    counts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    faults: list[str] = []
    unanswered: list[tuple[Row, str]] = []
    name = STDIN if source == "-" else source
    jsonl.check_rules(data, rule=rule, operators=operators)
    known: Sequence[Row] = ()
    if data:
        known = jsonl.read_rows(jsonl.test_file(data), console.note)
    reader = Reader(known, field, records or "", style=style, rule=rule, operators=operators)

    with ExitStack() as stack:
        stream: TextIO | None = None if console.as_json else sys.stdout
        if out is not None:
            if _is_read(source, out):
                raise UsageError("is the input file; give another one.", option="out")
            partial = stack.enter_context(artifacts.replacing(out.resolve()))
            stream = stack.enter_context(partial.open("w", encoding="utf-8", newline="\n"))
        write = jsonlines.Writer(stream, dumps=jsonl.encode).write if stream else lambda _: None

        def refuse(error: InputError) -> None:
            if on_error == "stop":
                raise error
            faults.append(str(error))
            write({"error": str(error)})

        for row, completions, place in reader.read(source, refuse):
            labels: JsonObject = {"place": place.removeprefix(f"{name}, ")}
            if "id" in row:
                labels = {"id": row["id"]}
            for index, completion in enumerate(completions):
                graded = row.grade(completion.text)
                counts["n"] += 1
                counts.update(verdict for verdict in _VERDICTS if getattr(graded, verdict))
                reasons[graded.reason] += 1
                if not graded.well_formed:
                    counts["unread"] += 1
                    if len(unanswered) < caveats.TRIED:
                        unanswered.append((row, completion.text))
                if len(completions) > 1:
                    labels["sample"] = index
                write(labels | graded.to_json())

    n = counts["n"]
    if not n:
        cause = next(iter(faults), f"{name} has no rows.")
        raise InputError(f"no completion was graded: {cause}")
    if unanswered:
        console.warn(caveats.no_answers(unanswered, counts["unread"], n))
    del reasons[""]
    summary: JsonObject = {key: counts[key] for key in ("n", *_VERDICTS)}
    if on_error == "mark":
        summary["errors"] = len(faults)
    console.result({**summary, "reasons": dict(reasons.most_common())})

    if console.as_json:
        return
    task = registry.task(row.task)
    for reason, count in reasons.most_common(5):
        console.note(f"{count:7,}  {task.reason(reason)}")
    if faults:
        console.note(f"{len(faults):7,}  records that cannot be graded")
    correct = counts["correct"]
    text = f"Graded {plural(n, 'completion')}: {correct:,} correct ({percent(correct / n)})"
    if out:
        text += f"; grades are in {out}"
    console.done(f"{text}.")


def _is_read(source: str, file: Path) -> bool:
    """Return True if *source* is *file*, which stdin may be redirected from."""
    try:
        read = os.fstat(sys.stdin.fileno()) if source == "-" else os.stat(source)
        return file.is_file() and os.path.samestat(read, file.stat())
    except OSError:  # a stream of no file
        return False
