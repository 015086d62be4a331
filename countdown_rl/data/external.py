"""Published data sets: read through ``datasets``, checked row by row, split like our own.

Countdown rows spell their numbers ``nums`` or ``numbers``, as lists or as text; GSM8K rows have ``question``
and ``answer``. What is dropped is counted by its reason.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from countdown_rl.data.distribution import Exclusion
from countdown_rl.data.generate import solved_row
from countdown_rl.errors import InputError
from countdown_rl.puzzle import rules
from countdown_rl.puzzle.kernel import mix
from countdown_rl.puzzle.rules import MAX_NUMBERS, PARTS, SPLITS, Puzzle, Rule
from countdown_rl.tasks import gsm8k

_FORMATS = {".jsonl": "json", ".json": "json", ".csv": "csv", ".parquet": "parquet"}
_PACKED = (".gz", ".bz2", ".xz", ".zst")
_INTEGER = re.compile(r"\s*([0-9]{1,15})(?:\.0+)?\s*").fullmatch
_LIST = re.compile(r"\s*[\[(]?\s*([0-9]+(?:\s*[,; ]\s*[0-9]+)*)\s*,?\s*[\])]?\s*").fullmatch


@dataclass
class Import:
    """Rows by split, and how many were dropped for which reason."""

    splits: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: {split: [] for split in SPLITS})
    read: int = 0
    dropped: Counter[str] = field(default_factory=Counter)

    def __len__(self) -> int:
        return sum(map(len, self.splits.values()))


def from_file(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The rows of a JSONL, JSON, CSV or Parquet file, compressed or not, each with "" for its split.

    Raises:
        InputError: it is missing, of another format, or cannot be read.
    """
    path = Path(path)
    suffixes = [suffix.lower() for suffix in path.suffixes]
    packed = suffixes.pop() if suffixes and suffixes[-1] in _PACKED else ""
    if not path.is_file():
        raise InputError(f"{path} does not exist or is no file.")
    if not suffixes or suffixes[-1] not in _FORMATS or (packed and suffixes[-1] == ".parquet"):
        raise InputError(
            f"{path}: give a .jsonl, .json or .csv file, plain or packed ({' '.join(_PACKED)}), or a .parquet file."
        )
    if packed == ".zst" and find_spec("zstandard") is None:
        raise InputError(f"{path}: `pip install zstandard` to read this, or unpack it first.")
    from datasets import load_dataset, logging

    logging.set_verbosity(logging.CRITICAL)  # what goes wrong is told once, below
    with _told(str(path)):
        rows = load_dataset(_FORMATS[suffixes[-1]], data_files=str(path), split="train", streaming=True)
        for row in rows:
            yield "", row


def from_hub(name: str, revision: str | None) -> tuple[str, Iterator[tuple[str, Mapping[str, Any]]]]:
    """The commit that *revision* of a Hub data set is, and its rows, each with its published split.

    Raises:
        InputError: there is no such data set, or no network.
    """
    from datasets import get_dataset_config_names, load_dataset
    from huggingface_hub import HfApi

    with _told(name):
        commit = str(HfApi().dataset_info(name, revision=revision).sha)
        configurations = get_dataset_config_names(name, revision=commit)
        chosen = "main" if "main" in configurations else configurations[0]
        splits = load_dataset(name, chosen, revision=commit, streaming=True)

    def rows() -> Iterator[tuple[str, Mapping[str, Any]]]:
        with _told(name):
            for split, found in splits.items():
                for row in found:
                    yield str(split), row

    return commit, rows()


class _told:  # noqa: N801 - reads as a clause
    """Whatever goes wrong inside is told in one sentence about *source*."""

    def __init__(self, source: str) -> None:
        self.source = source

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, InputError):
            text = " ".join(str(error.__cause__ or error).split())[:160] or type(error).__name__
            raise InputError(f"{self.source} cannot be read: {text}.") from error


def countdown(
    rows: Iterable[tuple[str, Mapping[str, Any]]],
    n: int,
    *,
    rule: Rule,
    operators: str,
    exclude: Exclusion,
    limits: Mapping[str, int | None],
    impossible: bool,
) -> Import:
    """The first *n* puzzles of *rows* that are new and solved (or, with *impossible*, proved not to be).

    Raises:
        InputError: no row has numbers and a target.
    """
    made = Import()
    seen: set[str] = set()
    for _, row in rows:
        if len(made) == n:
            break
        made.read += 1
        nums, target = _numbers(row), _integer(row.get("target"))
        if nums is None or target is None or min(nums, default=0) < 1 or target < 1:
            made.dropped["not-a-puzzle"] += 1
        elif len(nums) > MAX_NUMBERS:
            made.dropped["too-many-numbers"] += 1
        else:
            posed = Puzzle(tuple(nums), target, rule, operators)
            split = rules.split_of(nums)
            limit = limits.get(split)
            if posed.id in seen:
                made.dropped["duplicate"] += 1
            elif (tuple(sorted(nums)), target) in exclude:
                made.dropped["excluded"] += 1
            elif limit is not None and len(made.splits[split]) >= limit:
                made.dropped["split-full"] += 1
            else:
                seen.add(posed.id)
                found = solved_row(posed)
                if found["solutions"] or impossible:
                    made.splits[split].append(found)
                else:
                    made.dropped["impossible"] += 1
    _check(made, limits, "`nums` (or `numbers`) and `target`")
    return made


def problems(rows: Iterable[tuple[str, Mapping[str, Any]]], n: int, *, limits: Mapping[str, int | None]) -> Import:
    """The first *n* GSM8K problems of *rows*. A published test split stays the test split.

    Raises:
        InputError: no row has a question, and an answer that ends in ``####`` and a number.
    """
    made = Import()
    seen: set[str] = set()
    for published, row in rows:
        if len(made) == n:
            break
        made.read += 1
        question, answer = row.get("question"), row.get("answer")
        digest = hashlib.sha256(str(question).strip().encode()).hexdigest()
        part = max(0, mix(int(digest[:15], 16)) % PARTS - PARTS + 3)
        split = "test" if published == "test" else SPLITS[min(part, 1) if published else part]
        limit = limits.get(split)
        try:
            if not isinstance(question, str) or not isinstance(answer, str):
                raise InputError("no text")
            gold = gsm8k.gold(answer)
        except InputError:
            made.dropped["not-a-problem"] += 1
            continue
        if digest in seen:
            made.dropped["duplicate"] += 1
        elif limit is not None and len(made.splits[split]) >= limit:
            made.dropped["split-full"] += 1
        else:
            seen.add(digest)
            made.splits[split].append(
                {
                    "id": digest[:16],
                    "task": "gsm8k",
                    "question": question.strip(),
                    "gold": gold,
                    "solution": answer.strip(),
                }
            )
    _check(made, limits, "`question` and `answer` (ending in `####` and a number)")
    return made


def exclusion(paths: Iterable[Path]) -> Exclusion:
    """The puzzles in some files; rows that have numbers and no target keep out every target.

    Raises:
        InputError: a file cannot be read, or has a row without numbers.
    """
    made = Exclusion()
    for path in paths:
        for count, (_, row) in enumerate(from_file(path), 1):
            nums = _numbers(row)
            if nums is None:
                raise InputError(f"{path}, row {count}: there is no list of whole numbers in `nums` or `numbers`.")
            target = _integer(row.get("target"))
            if target is None:
                made.hands.add(tuple(sorted(nums)))
            else:
                made.puzzles.add((tuple(sorted(nums)), target))
    return made


def _check(made: Import, limits: Mapping[str, int | None], columns: str) -> None:
    if not made:
        why = ", ".join(f"{count:,} {reason}" for reason, count in made.dropped.most_common()) or "there are none"
        raise InputError(f"None of the {made.read:,} rows can be used ({why}); they need {columns}.")
    for split, limit in limits.items():
        if limit is not None and len(made.splits[split]) < limit:
            raise InputError(
                f"Only {len(made.splits[split]):,} of these rows belong to {split}, not {limit:,}; "
                f"lower --{split} or read more rows with --n."
            )


def _numbers(row: Mapping[str, Any]) -> list[int] | None:
    found = row.get("nums", row.get("numbers"))
    if isinstance(found, str):
        match = _LIST(found)
        found = re.split(r"\s*[,; ]\s*", match[1]) if match else None
    if not isinstance(found, list | tuple) or not found:
        return None
    numbers = [_integer(number) for number in found]
    return None if None in numbers else [number for number in numbers if number is not None]


def _integer(value: object) -> int | None:
    if isinstance(value, str):
        match = _INTEGER(value)
        return int(match[1]) if match else None
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value or value != int(value):
        return None
    return int(value)
