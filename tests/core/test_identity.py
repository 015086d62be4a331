"""Identity of a run: options, inputs and code decide it, whichever version of the package recorded them."""

import json
import pkgutil
import re
from dataclasses import MISSING, dataclass, fields
from importlib import import_module
from pathlib import Path
from typing import Annotated, ClassVar

import pytest

import countdown_rl
from countdown_rl.core import artifacts
from countdown_rl.core.errors import ArtifactError
from countdown_rl.core.identity import Identity, finished
from countdown_rl.core.manifest import Manifest, provenance_chain
from countdown_rl.core.options import Options, option
from countdown_rl.evaluation.config import EvalOptions
from countdown_rl.training.options import TrainOptions

ROOT = Path(__file__).parents[2]
#: Options of ``train`` that version 0.1 did not have.
LATER = {
    "eval_samples",
    "eval_temperature",
    "sampler",
    "advantage",
    "dynamic_sampling",
    "baseline",
}


def recorded(options, inputs=()):
    return json.loads(json.dumps({"options": options, "inputs": dict(inputs)}, default=str))


def options_types(base: type = Options) -> list[type]:
    for module in pkgutil.walk_packages(countdown_rl.__path__, "countdown_rl."):
        if module.name.endswith((".config", ".options")):
            import_module(module.name)
    return [kind for sub in base.__subclasses__() for kind in options_types(sub) or [sub]]


def test_two_runs_are_the_same_where_options_and_inputs_are(here):
    with artifacts.writing(Path("data"), "data", options={"n": 1}) as draft:
        (draft.path / "rows.jsonl").write_text("rows")
    data = artifacts.read(Path("data"), "data").as_input()
    with artifacts.writing(Path("eval"), "eval", options={"n": 1}, inputs={"data": data}) as draft:
        (draft.path / "rows.jsonl").write_text("rows")
    same, other = (
        Identity(Options, {"n": 1}, {"data": data}),
        Identity(Options, {"n": 2}, {"data": {}}),
    )
    assert finished(Path("eval"), "eval", same, overwrite=False)
    assert finished(Path("eval"), "eval", other, overwrite=True) is None
    with pytest.raises(ArtifactError, match="--n was 1, is 2; other data"):
        finished(Path("eval"), "eval", other, overwrite=False)
    Path("eval/rows.jsonl").write_text("damaged")
    assert finished(Path("eval"), "eval", other, overwrite=False) is None


@pytest.mark.parametrize("kind", options_types(), ids=lambda kind: kind.__name__)
def test_an_option_that_is_added_changes_no_earlier_run(kind):
    @dataclass(frozen=True)
    class Grown(kind):
        added: Annotated[int | None, option("New.")] = 3
        changed: Annotated[tuple[str, ...], option("Newer.")] = ("new",)
        past: ClassVar = {**kind.past, "changed": ["old"], "removed": 0.5}

    required = {field.name: "x" for field in fields(kind) if field.default is MISSING}
    past = {key: kind.past[key] for key in kind.past.keys() & kind.__dataclass_fields__.keys()}
    before = kind(**required).recorded | past
    now = before | {"added": 3, "changed": ("old",)}
    fewer = [
        {key: before[key] for key in before if key != left_out}
        for left_out in before.keys() - required.keys()
    ]
    for earlier in (
        before,
        before | {"removed": 0.5},
        {"changed": ["old"]} | required,
        required,
        *fewer,
    ):
        assert Identity(Grown, now, {}).differences(recorded(earlier)) == ""
    for change, phrase in (
        ({"added": 4}, "--added was 3, is 4"),
        ({"changed": ("new",)}, "--changed was .'old'"),
    ):
        assert re.search(phrase, Identity(Grown, now | change, {}).differences(recorded(before)))
    assert "--added was 3, is not given" in Identity(Grown, now | {"added": None}, {}).differences(
        recorded(before)
    )
    assert "--removed was 1, is 0.5" in Identity(Grown, now, {}).differences(
        recorded(before | {"removed": 1})
    )


def kept_manifests() -> list:
    """The manifests in the repository, and those of their inputs."""
    files = [
        path
        for name in ("artifacts", "tests")
        for path in sorted((ROOT / name).rglob("manifest.json"))
    ]
    links = [
        link
        for file in files
        for link in provenance_chain(Manifest.parse(file.read_bytes(), file).as_input())
    ]
    return [
        link
        for link in {link.digest: link for link in links}.values()
        if link.kind in ("adapter", "eval")
    ]


def test_the_manifests_of_versions_0_1_and_0_2_match_their_commands():
    runs = [
        (EvalOptions if link.kind == "eval" else TrainOptions, link.options)
        for link in kept_manifests()
    ]
    old = {
        key: value for key, value in TrainOptions().recorded.items() if key not in LATER
    } | TrainOptions.past
    for kind, options in [*runs, (TrainOptions, old | {"model": "a", "revision": None})]:
        meant = kind.past | options  # where a default has changed, the command names the former one
        own = {key: meant[key] for key in meant.keys() & kind.__dataclass_fields__.keys()}
        repeated = kind(
            **{
                key: tuple(value) if isinstance(value, list) else value
                for key, value in own.items()
            }
        )
        values = repeated.recorded | (
            {} if kind is EvalOptions else {"model": options.get("model")}
        )
        assert Identity(kind, values, {}).differences(recorded(options)) == ""
    assert {kind for kind, _ in runs} == {EvalOptions, TrainOptions}


def test_inputs_are_the_same_where_their_files_are():
    def inputs(options, digest="d"):
        data = Manifest("data", options, files={"rows": {"sha256": digest}}).as_input()
        merged = Manifest(
            "merged", options, {"data": data}, files={"model": {"sha256": "m"}}
        ).as_input()
        return {"model": {"source": "m", "base": merged} | merged, "exclude": [data]}

    run = Identity(Options, {}, inputs({"n": 1, "added": 3}))
    assert run.differences(recorded({}, inputs({"n": 1}))) == ""
    assert run.differences(recorded({}, inputs({"n": 1}, "e"))) == "other model; other exclude"

    for damaged in (None, 1, "x", [], {}, {"options": 1, "inputs": {}}, {"options": {}}):
        assert run.differences(damaged) == "it cannot be read"
