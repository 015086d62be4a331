"""The finished batches of a run that is not finished, so that one that was killed goes on where it was."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

from countdown_rl.inference.generate import Completion


class Progress:
    """Completions in a file at *path*, a line a batch, after a line that says which run they are of.

    *identity* is all that decides what the run writes. What another run left is dropped; so is what comes
    after a line that cannot be read.
    """

    def __init__(self, path: Path, identity: Mapping[str, Any]) -> None:
        self._path = path
        self._batches: dict[tuple[int, ...], list[Completion]] = {}
        head = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest().encode() + b"\n"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+b") as stream:
            stream.seek(0)
            whole = len(head) if stream.readline() == head else 0
            if whole:
                for line in stream:
                    if not self._keep(line):
                        break
                    whole += len(line)
            stream.truncate(whole)
            if not whole:
                stream.write(head)

    def batch(self, rows: Sequence[int]) -> list[Completion] | None:
        """The completions of *rows*, if that batch was finished."""
        return self._batches.get(tuple(rows))

    def add(self, rows: Sequence[int], completions: Sequence[Completion]) -> None:
        """Keep a finished batch."""
        self._batches[tuple(rows)] = list(completions)
        line = json.dumps([list(rows), [astuple(one) for one in completions]], ensure_ascii=False)
        with self._path.open("ab") as stream:
            stream.write(line.encode() + b"\n")

    def clear(self) -> None:
        """Forget everything: the run has ended."""
        self._path.unlink(missing_ok=True)

    def _keep(self, line: bytes) -> bool:
        # A line without its end was cut off; so may be a character in the middle of it.
        if not line.endswith(b"\n"):
            return False
        try:
            rows, completions = json.loads(line)
            batch = [Completion(str(text), int(tokens), bool(ended)) for text, tokens, ended in completions]
            key = tuple(map(int, rows))
        except (ValueError, TypeError):
            return False
        if len(batch) != len(key):
            return False
        self._batches[key] = batch
        return True
