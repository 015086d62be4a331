"""Identity of a run: everything that decides its result, compared when a command is repeated."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from countdown_rl.core import user_code
from countdown_rl.core.artifacts import read, with_article
from countdown_rl.core.errors import ArtifactError
from countdown_rl.core.formatting import flag
from countdown_rl.core.manifest import Manifest, contents, portable
from countdown_rl.core.options import Options

#: The file beside the checkpoints of an unfinished run.
RUN = "run.json"


def run_directory(out: Path, *, by_default: bool) -> Path:
    """Return the directory of the log of a run that writes *out*, which ``train`` does *by_default* or was told."""
    return out.with_name("train") if by_default else Path(f"{out}-run")


@dataclass(frozen=True)
class Identity:
    """Identity of a run of a command with *options_type*: the *options* and *inputs* of a manifest, and the *machine*.

    That is the digests of the user's ``code``, a fact in the manifest, and for an unfinished run library ``versions``.
    """

    options_type: type[Options]
    options: Mapping[str, Any]
    inputs: Mapping[str, Any]
    machine: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        options_type: type[Options],
        options: Mapping[str, Any],
        inputs: Mapping[str, Any],
        **machine: Any,
    ) -> "Identity":
        """Return the identity of a run that starts now, with the code of the functions in *options* and of tasks."""
        code = user_code.digests([*user_code.named(options), *sorted(user_code.PLUGINS)])
        return cls(options_type, options, inputs, {"code": code, **machine})

    def to_json(self) -> dict[str, Any]:
        return _as_json({"options": self.options, "inputs": self.inputs, **self.machine})

    def differences(self, before: Any) -> str:
        """Return the first differences from the JSON of a run, such as ``--seed was 42, is 1; other data``; "" if none.

        Of a run of another version, unrecorded options have their default, and other values are the same.
        """
        sections = [
            before.get(key) if isinstance(before, Mapping) else None
            for key in ("options", "inputs")
        ]
        if not all(isinstance(section, Mapping) for section in sections):
            return "it cannot be read"
        now, fields = self.to_json(), self.options_type.__dataclass_fields__
        defaults = {
            name: fields[name].default for name in fields if name in now["options"]
        }  # of those not completed
        old = _as_json(defaults | self.options_type.completed(before["options"]))
        new = self.options_type.past | now["options"]
        counted = [key for key in old if key in now["options"] or key not in fields]
        changes = [(key, old[key], new.get(key)) for key in counted if old[key] != new.get(key)]
        texts = [
            (key, *("not given" if value is None else value for value in pair))
            for key, *pair in changes
        ]
        phrases = [f"{flag(key)} was {before}, is {after}" for key, before, after in texts]
        old, new = (contents(run["inputs"]) for run in (before, now))
        phrases += [
            f"other {key}" for key in dict.fromkeys([*new, *old]) if old.get(key) != new.get(key)
        ]
        for section in sorted(self.machine.keys() & before.keys()):
            old, new = before[section], now[section]
            if isinstance(old, Mapping):
                changed = [key for key in new if old.get(key, new[key]) != new[key]]
                phrases += [f"{key} was {old[key]}, is {new[key]}" for key in changed]
            elif old != new:
                phrases.append(f"other {section}")
        return "; ".join(phrases[:3] + ["..."] * (len(phrases) > 3))


def _as_json(values: Mapping[str, Any]) -> dict[str, Any]:
    return dict(json.loads(json.dumps(portable(values), default=str)))


def finished(out: Path, kind: str, run: Identity, *, overwrite: bool) -> Manifest | None:
    """Return the manifest at *out* if the same *run* made it; without *overwrite* another one is an ArtifactError."""
    if overwrite:
        return None
    try:
        manifest = read(out, kind)
    except ArtifactError:  # missing or damaged
        return None
    if differences := run.differences(
        {**manifest.facts, "options": manifest.options, "inputs": manifest.inputs}
    ):
        raise ArtifactError(
            f"{out} holds {with_article(kind)} that this command did not make ({differences}), which would be lost; "
            f"give --out another directory, or --overwrite to replace it."
        )
    return manifest
