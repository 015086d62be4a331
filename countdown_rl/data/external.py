"""Import of published data sets: read through ``datasets``, checked row by row, split like generated rows.

Countdown rows have their numbers in ``nums`` or ``numbers``, as lists or as text; GSM8K rows have ``question`` and
``answer``. Rows that are dropped are counted by the reason.
"""

import hashlib
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from countdown_rl.data import jsonl
from countdown_rl.data.distribution import Distribution, Exclusion
from countdown_rl.data.generate import solved_row
from countdown_rl.errors import InputError
from countdown_rl.puzzle import rules
from countdown_rl.puzzle.kernel import mix
from countdown_rl.puzzle.rules import MAX_NUMBERS, PARTS, SPLITS, Puzzle
from countdown_rl.tasks import gsm8k
from countdown_rl.tasks.countdown import integer, numbers_of

#: A published row: its split ("" in a file) and its fields.
Published = tuple[str, Mapping[str, Any]]

#: Characters shown of a row that was dropped.
EXAMPLE = 100

_FORMATS = {".jsonl": "json", ".json": "json", ".csv": "csv", ".parquet": "parquet"}
#: Puzzles as JSON compress to a tenth, a file of zeros to a thousandth; up to ``EXPANDED`` bytes either may be read.
MAX_EXPANSION, EXPANDED = 100, 1 << 28
_COMPRESSIONS = (".gz", ".bz2", ".xz", ".zst")


@dataclass
class Import:
    """Rows by split, the number of rows read, and by reason the number of rows dropped and the first of them."""

    splits: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: {split: [] for split in SPLITS})
    read: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return sum(map(len, self.splits.values()))

    def reasons(self) -> dict[str, str]:
        """The reasons why rows were dropped, each in words with an example, most frequent first."""
        return {
            reason: f"{REASONS[reason]} (such as {self.examples[reason]})" for reason, _ in self.dropped.most_common()
        }


#: Reasons why rows are dropped.
REASONS = {
    "duplicate": "equal to an earlier row",
    "excluded": "in a file of puzzles to keep out of the training data",
    "impossible": "proved to have no solution; --impossible 1 keeps such puzzles",
    "not-a-problem": "without a question, or an answer that ends in #### and a number",
    "not-a-puzzle": "without positive whole numbers in nums (or numbers) and target",
    "split-full": "of a split that has all its rows",
    "too-many-numbers": f"of more than {MAX_NUMBERS} numbers",
}


class Dropped(Exception):  # noqa: N818 - not an error
    """A row that is not imported, with the reason, one of :data:`REASONS`."""


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
    if not path.stat().st_size:
        raise InputError(f"{path} is empty.")
    if suffixes[-1] == ".jsonl" and not compression:  # read here, so that errors have a line
        with path.open("rb") as stream:
            for place, line in jsonl.numbered(stream, str(path)):
                try:
                    yield "", jsonl.decode(line)
                except InputError as error:
                    raise InputError(f"{place}: {error}.") from error
        return
    if compression == ".zst" and find_spec("zstandard") is None:
        raise InputError(f"{path}: `pip install zstandard` to read this, or decompress it first.")
    if compression:
        _check_expansion(path)
    from datasets import load_dataset, logging

    logging.set_verbosity(logging.CRITICAL)  # errors are reported once, below
    with _read_errors(str(path)):
        for row in load_dataset(_FORMATS[suffixes[-1]], data_files=str(path), split="train", streaming=True):
            yield "", row


def _check_expansion(path: Path) -> None:
    """Refuse a file that takes far more memory than disk, as a line of it is read as a whole.

    Raises:
        InputError: it expands beyond ``MAX_EXPANSION`` times its size, or cannot be read.
    """
    import fsspec

    limit, size = max(EXPANDED, MAX_EXPANSION * path.stat().st_size), 0
    with _read_errors(str(path)), fsspec.open(str(path), "rb", compression="infer") as stream:
        while block := stream.read(1 << 20):
            size += len(block)
            if size > limit:
                raise InputError(f"{path} expands to over {MAX_EXPANSION} times its size; decompress it and check it.")


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
        from huggingface_hub.errors import HfHubHTTPError, HTTPError

        if isinstance(error, ConnectionError | HTTPError) and not isinstance(error, HfHubHTTPError):
            raise InputError(
                f"{source} cannot be read, as the Hub cannot be reached; check the network, or give a downloaded file "
                "with --from."
            ) from error
        text = " ".join(str(error.__cause__ or error).split())[:160] or type(error).__name__
        raise InputError(f"{source} cannot be read: {text}.") from error


def import_rows(
    rows: Iterable[Published],
    n: int,
    candidate: Callable[[str, Mapping[str, Any]], Candidate],
    limits: Mapping[str, int | None],
    on_row: Callable[[int], None] = lambda count: None,
) -> Import:
    """The first *n* rows that are new and not dropped, of a split at most its limit.

    Args:
        candidate: :func:`problem`, or what :func:`puzzles` returns.
        on_row: called with the count of rows so far.

    Raises:
        InputError: no row can be used, or fewer than its limit are of a split.
    """
    result = Import()
    seen: set[str] = set()
    for published_split, fields in rows:
        if len(result) == n:
            break
        result.read += 1
        on_row(len(result))
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
            text = json.dumps(fields, ensure_ascii=False, default=str)
            result.examples.setdefault(str(reason), f"row {result.read}, {text[:EXAMPLE]}")
    if not result:
        reasons = "; ".join(f"{result.dropped[reason]:,} {text}" for reason, text in result.reasons().items())
        raise InputError(f"None of the {result.read:,} rows can be used: {reasons or 'there are none'}.")
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
        nums, target = numbers_of(fields), integer(fields.get("target"))
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


def test_rows(path: Path, terms: Distribution) -> Import:
    """The Countdown rows of *path*, all of them in the test split, with or without a solution."""
    candidate = puzzles(terms, Exclusion(), impossible=True)
    rows = from_file(path)
    return import_rows(rows, sys.maxsize, lambda *row: replace(candidate(*row), split="test"), {})


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
            nums, target = numbers_of(fields), integer(fields.get("target"))
            if nums is None:
                raise InputError(f"{path}, row {count}: there is no list of whole numbers in `nums` or `numbers`.")
            if target is None:
                result.hands.add(tuple(sorted(nums)))
            else:
                result.puzzles.add((tuple(sorted(nums)), target))
    return result
