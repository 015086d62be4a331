"""Verification: true claims are confirmed, false ones refuted, and few puzzles tell nothing.

The model answers "impossible" to every puzzle, and half of the puzzles are.
"""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from countdown_rl.core import artifacts
from countdown_rl.core.errors import ArtifactError
from countdown_rl.core.manifest import MANIFEST, Manifest, file_entry
from countdown_rl.data import build
from countdown_rl.evaluation import evaluate
from countdown_rl.export.config import QuantizeOptions
from countdown_rl.export.quantize import quantize_model
from countdown_rl.models import reference
from countdown_rl.release import folder, verify
from countdown_rl.release.config import PublishOptions
from countdown_rl.release.verify import CONFIRMED, REFUTED, TOO_FEW, Verification
from tests.support import constant_model

N = constant_model.DATA.test


def checked(release: Path | str = "release", **options: object) -> Verification:
    return verify.verify(str(release), **{"fresh": N, "seed": 1} | options)


@pytest.fixture(scope="session")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``data``, ``model``, its evaluation, and a ``release`` of it. Do not write to it."""
    root = tmp_path_factory.mktemp("released")
    build.make(constant_model.DATA, root / "data")
    inputs = {"data": artifacts.read(root / "data", "data").as_input()}
    with artifacts.writing(root / "model", "model", options={}, inputs=inputs) as draft:
        constant_model.checkpoint(draft.path)
    publish(root, "model")
    return root


def publish(root: Path, name: str) -> None:
    paths = {"model": str(root / name), "data": root / "data", "out": root / "eval" / name}
    evaluate.evaluate(constant_model.EVALUATION, **paths)
    folder.build(PublishOptions(model=str(root / name)), root / "release")


@pytest.fixture
def root(released: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    copy = Path(shutil.copytree(released, tmp_path / "root"))
    monkeypatch.chdir(copy)
    return copy


def sealed(change: Callable[..., object], name: str = "details.json") -> None:
    """Let *change* rewrite the file *name* of the evaluation in the release, and list it as it is then."""
    file = Path("release/eval", name)
    lines = [json.loads(line) for line in file.read_text().splitlines()] if name[-1] == "l" else []
    content = lines or json.loads(file.read_text())
    change(content)
    file.write_text("\n".join(map(json.dumps, lines or [content])) + "\n")
    for place in (Path("release/eval"), Path("release")):
        manifest = json.loads((place / MANIFEST).read_bytes())
        manifest["files"] = {path: file_entry(place / path) for path in manifest["files"]}
        (place / MANIFEST).write_bytes(Manifest(**manifest).to_bytes())


@pytest.mark.parametrize("name", ["model", "gguf"])
def test_a_true_claim_is_confirmed_on_recorded_and_new_puzzles(root, name):
    if name == "gguf":
        ref = reference.find_model(str(root / "model"))
        quantize_model(ref, root / name, QuantizeOptions(format=name))
        publish(root, name)
    report = checked()
    assert (report.conclusion, report.reasons) == (CONFIRMED, [])
    recorded, new = report.measured
    assert (recorded.puzzles, recorded.n, recorded.p) == ("recorded", N, 1.0)
    assert (new.puzzles, new.n) == ("new", N)
    assert checked().measured == report.measured


def test_weights_that_do_less_than_is_claimed_are_refuted(root):
    constant_model.checkpoint(root / "other", answers=False)
    shutil.move(root / "other/model.safetensors", root / "release/model.safetensors")
    assert re.search("model.safetensors is damaged", checked().reasons[0])
    sealed(lambda details: None)
    reasons = checked().reasons
    words = [re.search("0.0% of 120 (recorded|new)", reason)[1] for reason in reasons]
    assert words == ["recorded", "new"]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("details.json", lambda details: details["groups"]["numbers"]["4"].update(accuracy=0.99)),
        ("samples.jsonl", lambda lines: lines[0].update(completion="I do not know.")),
    ],
)
def test_metrics_that_the_completions_do_not_have_are_refuted(root, name, change):
    sealed(change, name)
    assert checked().conclusion == REFUTED


def test_files_that_are_missing_or_lead_out_of_the_folder_are_not_read(root):
    (root / "release/config.json").unlink()
    assert checked().reasons == ["config.json is missing"]
    manifest = json.loads(Path("release", MANIFEST).read_bytes())
    manifest["files"]["../model/config.json"] = file_entry(root / "model/config.json")
    Path("release", MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(ArtifactError, match="not a release"):
        checked()


def test_few_puzzles_confirm_nothing(root):
    assert checked(limit=1).conclusion == TOO_FEW
    assert checked(fresh=50).conclusion == TOO_FEW
    assert len({checked(seed=None, fresh=3).seed for _ in range(2)}) == 2


def test_imported_puzzles_have_to_be_given(root):
    manifest = json.loads(Path("model", MANIFEST).read_bytes())
    del manifest["inputs"]["data"]
    Path("model", MANIFEST).write_bytes(Manifest(**manifest).to_bytes())
    publish(root, "model")
    with pytest.raises(ArtifactError, match="--data"):
        checked()
    report = checked(data=[root / "data"])
    assert report.conclusion == CONFIRMED
    assert len(report.measured) == 1


def test_what_is_no_release_with_an_evaluation_is_an_error(root):
    with pytest.raises(ArtifactError, match="not a release"):
        checked("model")
    shutil.rmtree("eval")
    folder.build(PublishOptions(model="model"), Path("release"))
    with pytest.raises(ArtifactError, match="no evaluation"):
        checked()


def test_a_repository_is_verified_at_a_revision_from_the_links_of_its_cache(root, hub):
    commit = hub.add_model("me/tiny", root / "release")
    sealed(lambda details: details.update(accuracy=0.9))
    hub.add_model("me/tiny", root / "release")
    assert checked("me/tiny").conclusion == REFUTED
    report = checked(f"me/tiny@{commit}")
    assert (report.conclusion, report.revision) == (CONFIRMED, commit)


def test_the_command_prints_claim_and_measurements_and_its_status_is_the_conclusion(
    root, run_command
):
    said = run_command("verify", "release", "--fresh", N, "--seed", 1)
    shown = r"50\.0% of 120.*recorded puzzles.*new puzzles.*conclusion +confirmed"
    assert re.search(shown, said.out, re.DOTALL)
    said = run_command("verify", "release", "--limit", 1, "--json", code=1)
    assert json.loads(said.out)["conclusion"] == TOO_FEW
