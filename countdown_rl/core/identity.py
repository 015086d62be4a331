"""Identity of a run: everything that decides its result, compared when a command is repeated."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from countdown_rl.core.artifacts import read, with_article
from countdown_rl.core.errors import ArtifactError
from countdown_rl.core.formatting import flag
from countdown_rl.core.manifest import Manifest, portable

#: The file beside the checkpoints of an unfinished run.
RUN = "run.json"


def run_identity(options: Mapping[str, Any], inputs: Mapping[str, Any], **machine: Any) -> dict[str, Any]:
    """Return everything that decides the result of a run, as JSON: two runs are the same if it is equal.

    *machine* is what else counts for an unfinished run, such as the ``versions`` of libraries.
    """
    values: dict[str, Any] = json.loads(json.dumps(portable({"options": options, "inputs": inputs, **machine})))
    return values


def describe_differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Return the first differences of two identities, such as ``--seed was 42, is 1; other data``."""
    phrases = []
    for section in ("options", "inputs", "versions"):
        old, new = before.get(section, {}), after.get(section, {})
        for key in [key for key in dict.fromkeys([*new, *old]) if old.get(key) != new.get(key)]:
            name = flag(key) if section == "options" else key
            change = f"{name} was {old.get(key)}, is {new.get(key)}"
            phrases.append(f"other {key}" if section == "inputs" else change)
    return "; ".join(phrases[:3] + ["..."] * (len(phrases) > 3))


def finished(out: Path, kind: str, run: Mapping[str, Any], *, overwrite: bool) -> Manifest | None:
    """Return the manifest of the artifact at *out* if the run of that :func:`run_identity` made it, else None.

    Raises ArtifactError if the intact artifact of another run is there, and *overwrite* is False.
    """
    if overwrite:
        return None
    try:
        manifest = read(out, kind)
    except ArtifactError:  # missing or damaged
        return None
    if differences := describe_differences(run_identity(manifest.options, manifest.inputs), run):
        raise ArtifactError(
            f"{out} holds {with_article(kind)} that this command did not make ({differences}), which would be lost; "
            f"give {flag('out')} another directory, or {flag('overwrite')} to replace it."
        )
    return manifest
