"""Import of published data sets: read through ``datasets``, checked row by row, split like generated rows.

Countdown rows have their numbers in ``nums`` or ``numbers``, as lists or as text; GSM8K rows have ``question`` and
``answer``. Rows that are dropped are counted by the reason.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from countdown_rl.data.distribution import Distribution, Exclusion
from countdown_rl.data.generate import solved_row
from countdown_rl.errors import InputError
from countdown_rl.puzzle import rules
from countdown_rl.puzzle.kernel import mix
from countdown_rl.puzzle.rules import MAX_NUMBERS, PARTS, SPLITS, Puzzle
from countdown_rl.tasks import gsm8k

#: A published row: its split ("" in a file) and its fields.
Published = tuple[str, Mapping[str, Any]]

_FORMATS = {".jsonl": "json", ".json": "json", ".csv": "csv", ".parquet": "parquet"}
_COMPRESSIONS = (".gz", ".bz2", ".xz", ".zst")
_INTEGER = re.compile(r"\s*([0-9]{1,15})(?:\.0+)?\s*").fullmatch
_LIST = re.compile(r"\s*[\[(]?\s*([0-9]+(?:\s*[,; ]\s*[0-9]+)*)\s*,?\s*[\])]?\s*").fullmatch


@dataclass
class Import:
    """Rows by split, the number of rows read, and of rows dropped by reason."""

    splits: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: {split: [] for split in SPLITS})
    read: int = 0
    dropped: Counter[str] = field(default_factory=Counter)

    def __len__(self) -> int:
        return sum(map(len, self.splits.values()))


class Dropped(Exception):  # noqa: N818 - not an error
    """A row that is not imported, with the reason."""


@dataclass(frozen=True)
class Candidate:
    """A row that may be imported: what identifies it, its split, and a function that makes it or raises Dropped."""

    id: str
    split: str
    make: Callable[[], dict[str, Any]]


def from_file(path: Path) -> Iterator[Published]:
    """The rows of a JSONL, JSON, CSV or Parquet file, compressed or not.

    Raises:
        InputError: it is missing, of another format, or cannot be read.
    """
    path = Path(path)
    suffixes = [suffix.lower() for suffix in path.suffixes]
    compression = suffixes.pop() if suffixes and suffixes[-1] in _COMPRESSIONS else ""
    if not path.is_file():
        raise InputError(f"{path} does not exist or is no file.")
    if not suffixes or suffixes[-1] not in _FORMATS or (compression and suffixes[-1] == ".parquet"):
        raise InputError(
            f"{path}: give a .jsonl, .json or .csv file, plain or compressed ({' '.join(_COMPRESSIONS)}), "
            "or a .parquet file."
        )
    if compression == ".zst" and find_spec("zstandard") is None:
        raise InputError(f"{path}: `pip install zstandard` to read this, or decompress it first.")
    from datasets import load_dataset, logging

    logging.set_verbosity(logging.CRITICAL)  # errors are reported once, below
    with _read_errors(str(path)):
        for row in load_dataset(_FORMATS[suffixes[-1]], data_files=str(path), split="train", streaming=True):
            yield "", row


def from_hub(name: str, revision: str | None) -> tuple[str, Iterator[Published]]:
    """The commit of a Hub data set at *revision*, and its rows.

    Raises:
        InputError: there is no such data set, or no network.
    """
    from datasets import get_dataset_config_names, load_dataset
    from huggingface_hub import HfApi

    with _read_errors(name):
        commit = str(HfApi().dataset_info(name, revision=revision).sha)
        configurations = get_dataset_config_names(name, revision=commit)
        configuration = "main" if "main" in configurations else configurations[0]
        splits = load_dataset(name, configuration, revision=commit, streaming=True)

    def rows() -> Iterator[Published]:
        with _read_errors(name):
            for split, published in splits.items():
                for row in published:
                    yield str(split), row

    return commit, rows()


@contextmanager
def _read_errors(source: str) -> Iterator[None]:
    """Turn any error of a library into an InputError about *source*."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        text = " ".join(str(error.__cause__ or error).split())[:160] or type(error).__name__
        raise InputError(f"{source} cannot be read: {text}.") from error


def import_rows(
    rows: Iterable[Published],
    n: int,
    candidate: Callable[[str, Mapping[str, Any]], Candidate],
    limits: Mapping[str, int | None],
) -> Import:
    """The first *n* rows that are new and not dropped, of a split at most its limit.

    Args:
        candidate: :func:`problem`, or what :func:`puzzles` returns.

    Raises:
        InputError: no row can be used, or fewer than its limit are of a split.
    """
    result = Import()
    seen: set[str] = set()
    for published_split, fields in rows:
        if len(result) == n:
            break
        result.read += 1
        try:
            row = candidate(published_split, fields)
            limit = limits.get(row.split)
            if row.id in seen:
                raise Dropped("duplicate")
            if limit is not None and len(result.splits[row.split]) >= limit:
                raise Dropped("split-full")
            seen.add(row.id)
            result.splits[row.split].append(row.make())
        except Dropped as reason:
            result.dropped[str(reason)] += 1
    if not result:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in result.dropped.most_common())
        raise InputError(
            f"None of the {result.read:,} rows can be used ({reasons or 'there are none'}). Countdown rows need `nums` "
            "(or `numbers`) and `target`; gsm8k rows `question` and `answer`, which ends in `####` and a number."
        )
    for split, limit in limits.items():
        if limit is not None and len(result.splits[split]) < limit:
            raise InputError(
                f"Only {len(result.splits[split]):,} of these rows belong to {split}, not {limit:,}; "
                f"lower --{split} or read more rows with --n."
            )
    return result


def puzzles(
    terms: Distribution, exclude: Exclusion, *, impossible: bool
) -> Callable[[str, Mapping[str, Any]], Candidate]:
    """A function that makes candidates of Countdown rows, by the rule and operators of *terms*.

    Args:
        impossible: keep puzzles that are proved to have no solution.
    """

    def candidate(published_split: str, fields: Mapping[str, Any]) -> Candidate:
        nums, target = _numbers(fields), _integer(fields.get("target"))
        if nums is None or target is None or min(nums) < 1 or target < 1:
            raise Dropped("not-a-puzzle")
        if len(nums) > MAX_NUMBERS:
            raise Dropped("too-many-numbers")
        if (tuple(sorted(nums)), target) in exclude:
            raise Dropped("excluded")
        puzzle = Puzzle(tuple(nums), target, terms.rule, terms.operators)

        def make() -> dict[str, Any]:
            row = solved_row(puzzle)
            if not row["solutions"] and not impossible:
                raise Dropped("impossible")
            return row

        return Candidate(puzzle.id, rules.split_of(nums), make)

    return candidate


def problem(published_split: str, fields: Mapping[str, Any]) -> Candidate:
    """The candidate of a GSM8K row. A published test split remains the test split."""
    question, answer = fields.get("question"), fields.get("answer")
    if not isinstance(question, str) or not isinstance(answer, str):
        raise Dropped("not-a-problem")
    try:
        gold = gsm8k.gold(answer)
    except InputError:
        raise Dropped("not-a-problem") from None
    digest = hashlib.sha256(question.strip().encode()).hexdigest()
    part = max(0, mix(int(digest[:15], 16)) % PARTS - PARTS + 3)
    split = "test" if published_split == "test" else SPLITS[min(part, 1) if published_split else part]
    row = {"id": digest[:16], "task": "gsm8k", "question": question.strip(), "gold": gold, "solution": answer.strip()}
    return Candidate(digest, split, lambda: row)


def exclusion(paths: Iterable[Path]) -> Exclusion:
    """The puzzles in some files; a row without a target keeps out its numbers with every target.

    Raises:
        InputError: a file cannot be read, or has a row without numbers.
    """
    result = Exclusion()
    for path in paths:
        for count, (_, fields) in enumerate(from_file(path), 1):
            nums, target = _numbers(fields), _integer(fields.get("target"))
            if nums is None:
                raise InputError(f"{path}, row {count}: there is no list of whole numbers in `nums` or `numbers`.")
            if target is None:
                result.hands.add(tuple(sorted(nums)))
            else:
                result.puzzles.add((tuple(sorted(nums)), target))
    return result


def _numbers(fields: Mapping[str, Any]) -> list[int] | None:
    nums = fields.get("nums", fields.get("numbers"))
    if isinstance(nums, str):
        match = _LIST(nums)
        nums = re.split(r"\s*[,; ]\s*", match[1]) if match else None
    if not isinstance(nums, list | tuple) or not nums:
        return None
    integers = [number for number in map(_integer, nums) if number is not None]
    return integers if len(integers) == len(nums) else None


def _integer(value: object) -> int | None:
    if isinstance(value, str):
        match = _INTEGER(value)
        return int(match[1]) if match else None
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value or value != int(value):
        return None
    return int(value)
