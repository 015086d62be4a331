"""Finished batches of an unfinished evaluation, from which an interrupted run resumes."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

from countdown_rl.inference.generate import Completion


class Progress:
    """Completions in the file *path*: one line per batch, after a line that identifies the run.

    *identity* is everything that decides the completions. The batches of another run are dropped, and so is
    everything after a damaged line.
    """

    def __init__(self, path: Path, identity: Mapping[str, Any]) -> None:
        self._path = path
        self._batches: dict[tuple[int, ...], list[Completion]] = {}
        head = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest().encode() + b"\n"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b") as stream:
            stream.seek(0)
            intact = len(head) if stream.readline() == head else 0
            if intact:
                for line in stream:
                    if not self._read(line):
                        break
                    intact += len(line)
            stream.truncate(intact)
            if not intact:
                stream.write(head)

    def batch(self, rows: Sequence[int]) -> list[Completion] | None:
        """The completions of the batch *rows*, if it was finished."""
        return self._batches.get(tuple(rows))

    def add(self, rows: Sequence[int], completions: Sequence[Completion]) -> None:
        """Save a finished batch."""
        self._batches[tuple(rows)] = list(completions)
        line = json.dumps([list(rows), [astuple(completion) for completion in completions]], ensure_ascii=False)
        with self._path.open("ab") as stream:
            stream.write(line.encode() + b"\n")

    def clear(self) -> None:
        """Remove the file."""
        self._path.unlink(missing_ok=True)

    def _read(self, line: bytes) -> bool:
        # A line without its end was cut off, perhaps within a character.
        if not line.endswith(b"\n"):
            return False
        try:
            rows, completions = json.loads(line)
            batch = [
                Completion(str(text), int(tokens), bool(ended), dict(more)) for text, tokens, ended, more in completions
            ]
            key = tuple(map(int, rows))
        except (ValueError, TypeError):
            return False
        if len(batch) != len(key):
            return False
        self._batches[key] = batch
        return True
