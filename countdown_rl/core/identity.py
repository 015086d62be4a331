"""Identity of a run: everything that decides its result, compared when a command is repeated."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from countdown_rl.core import user_code
from countdown_rl.core.artifacts import read, with_article
from countdown_rl.core.errors import ArtifactError
from countdown_rl.core.formatting import flag
from countdown_rl.core.manifest import Manifest, portable
from countdown_rl.core.types import JsonObject, Record

#: Differences that a sentence names.
_NAMED = 3


@dataclass(frozen=True)
class Identity:
    """Identity of a run: the *options* and *inputs* of a manifest, and the *machine*.

    The machine is the digests of the user's ``code``, a fact in the manifest, and for an unfinished
    run the library ``versions``.
    """

    options: Record
    inputs: Record
    machine: Record = field(default_factory=dict)

    @classmethod
    def of(cls, options: Record, inputs: Record, **machine: object) -> "Identity":
        """Return the identity of a run that starts now, with the code of the functions in *options*
        and of tasks.
        """
        code = user_code.digests([*user_code.named(options), *sorted(user_code.PLUGINS)])
        return cls(options, inputs, {"code": code, **machine})

    def to_json(self) -> JsonObject:
        sections = {"options": self.options, "inputs": self.inputs, **self.machine}
        return json.loads(json.dumps(portable(sections), default=str))

    def differences(self, before: Record | None) -> str:
        """Return the first differences from the JSON of a run, such as ``--seed was 42, is 1; other
        data``; "" if none.
        """
        if before is None:
            return "it cannot be read"
        phrases = list(self._differences(before))
        if len(phrases) > _NAMED:
            phrases[_NAMED:] = ["..."]
        return "; ".join(phrases)

    def _differences(self, before: Record) -> Iterator[str]:
        for section, now in self.to_json().items():
            recorded = before.get(section, now)
            for key in dict.fromkeys([*now, *recorded]):
                old, new = recorded.get(key), now.get(key)
                if section == "code" and new == user_code.UNKNOWN:
                    yield f"{key} has no source to compare"
                elif old == new:
                    continue
                elif section == "inputs":
                    yield f"other {key}"
                else:
                    name = flag(key) if section == "options" else key
                    yield f"{name} was {old}, is {new}"


def finished(out: Path, kind: str, run: Identity, *, overwrite: bool) -> Manifest | None:
    """Return the manifest of a finished artifact that the same run made.

    Args:
        out: the directory of the artifact.
        kind: its kind.
        run: the identity of the run that starts now.
        overwrite: make the artifact again in any case.

    Returns:
        The manifest, or None if the run has to be done.

    Raises:
        ArtifactError: another run made the artifact, and *overwrite* is False.
    """
    if overwrite:
        return None
    try:
        manifest = read(out, kind)
    except ArtifactError:  # missing or damaged
        return None
    before = {**manifest.facts, "options": manifest.options, "inputs": manifest.inputs}
    if differences := run.differences(before):
        raise ArtifactError(
            f"{out} holds {with_article(kind)} that this command did not make ({differences}), which would be lost; "
            f"give --out another directory, or --overwrite to replace it."
        )
    return manifest
