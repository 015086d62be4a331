"""Verification: genuine releases are confirmed, each kind of forgery is refuted, and few puzzles tell nothing.

Most tests are of a model that answers "impossible" to every puzzle, and of data of which half are. Version 0.1 put
weights in several formats into one folder; the artifacts that they were made from are taken out of it again.
"""

import json
import re
import shutil
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import snapshot_download

from countdown_rl.cli import console
from countdown_rl.cli import verify as cli
from countdown_rl.core import artifacts
from countdown_rl.core.errors import ArtifactError
from countdown_rl.core.manifest import MANIFEST, Manifest, file_entry
from countdown_rl.data import build
from countdown_rl.evaluation import evaluate, results
from countdown_rl.evaluation.config import EvalOptions
from countdown_rl.evaluation.results import Result
from countdown_rl.evaluation.sample import Sample
from countdown_rl.inference.generate import Completion
from countdown_rl.release import consistency, verify
from countdown_rl.release.model_card import Weights
from countdown_rl.release.verify import CONFIRMED, REFUTED, TOO_FEW, Verification
from countdown_rl.tasks import jsonl
from tests.support import constant_model, evaluations, forgeries
from tests.support.forgeries import chained, publish, republish, rows_of

OLD = Path(__file__).parent / "data" / "release-0.1"
N = 120


def checked(folder: Path | str, **options: Any) -> Verification:
    return verify.verify(str(folder), **{"fresh": N, "seed": 1} | options)


@pytest.fixture(scope="session")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The artifacts in the old release with their evaluations, the data, and a release of the merged weights."""
    root = tmp_path_factory.mktemp("released")
    build.make(constant_model.DATA, root / "data")
    rows, manifest = rows_of(root), artifacts.read(OLD / "release", "release")
    for key, name in {
        "model": "merged",
        "adapter": "adapter",
        "quantized": "quantized",
        "gguf": "gguf",
    }.items():
        made, folder = (
            Manifest(**manifest.inputs[key]["manifest"]),
            OLD / "release" / ("" if key == "model" else key),
        )
        (root / name).mkdir()
        for file in made.files:
            shutil.copyfile(folder / file, root / name / file)
        if name == "adapter":  # its publication added the line break
            config = root / name / "adapter_config.json"
            config.write_text(config.read_text().rstrip("\n"))
        (root / name / MANIFEST).write_bytes(made.to_bytes())
        evaluation = OLD / "release" / ("eval" if key == "model" else f"{key}-eval")
        details, lines = (
            json.loads((evaluation / "details.json").read_text()),
            evaluation / "samples.jsonl",
        )
        samples = [Sample.from_json(line) for line in jsonl.read_objects(lines)]
        about = {
            name: details[name]
            for name in ("decoding", "data", "model", "engine", "precision", "path")
        }
        metrics = evaluations.metrics(samples, rows, **about)
        forgeries.record(root, metrics, samples, artifacts.read(evaluation, "eval"), name)
    publish(root)
    return root


@pytest.fixture
def root(released: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    copy = Path(shutil.copytree(released, tmp_path / "root"))
    monkeypatch.chdir(copy)
    return copy


@pytest.mark.parametrize(("reason", "forge"), forgeries.FORGERIES)
def test_a_forgery_is_refuted(root, reason, forge):
    forge(root)
    report = checked(root / "release")
    assert report.conclusion == REFUTED
    assert re.search(reason, "\n".join(report.reasons))


@pytest.mark.parametrize(("name", "reason", "forge"), forgeries.INSIDE)
def test_what_other_programs_read_is_compared(root, hub, name, reason, forge):
    """Each forgery contradicts the rest of the release, whoever listed its files."""
    hub.add_model("me/base", OLD / "base")
    published = publish(root, name, benchmark="me/puzzles")
    weights, manifest, measured = opened(published)
    assert [*consistency.faults(weights, manifest, measured)] == []
    forge(published)
    forgeries.seal(published)
    assert re.search(reason, "\n".join(consistency.faults(*opened(published))))


def opened(folder: Path) -> tuple[Weights, Manifest, Result]:
    manifest = Manifest.parse((folder / MANIFEST).read_bytes(), folder / MANIFEST)
    listed = manifest.inputs["model"]
    return (
        Weights(folder, Manifest(**listed["manifest"]), listed),
        manifest,
        results.read(folder / "eval"),
    )


def test_what_nothing_compares_is_named(root):
    folder = root / "release"
    added = (
        "pytorch_model.bin",
        "modeling.py",
        "further/model.safetensors",
        "consolidated.safetensors",
    )
    for name in added:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("")
    forgeries.changed(
        "config.json", lambda values: values.update(auto_map={"AutoModel": "modeling.Model"})
    )(folder)
    forgeries.seal(folder, lambda values: None, *added)
    named = "\n".join(consistency.unread(opened(folder)[0], "countdown"))
    assert all(name in named for name in (*added, "auto_map of config.json"))


def test_no_more_puzzles_are_generated_than_were_measured(root, monkeypatch):
    monkeypatch.setattr(verify, "MAX_PUZZLES", 100)
    data = artifacts.read(root / "data", "data")
    chained(root, replace(data, options=data.options | {"n": 10**8, "test": 9 * 10**7}).as_input())
    republish(root, lambda samples: None)
    monkeypatch.setattr(build, "generate", lambda *_: pytest.fail("generates puzzles"))
    with pytest.raises(ArtifactError, match="90,000,000 rows"):
        checked(root / "release")


@pytest.mark.parametrize("name", ["merged", "adapter", "quantized", "gguf"])
def test_a_release_of_this_version_is_confirmed(root, hub, name):
    hub.add_model("me/base", OLD / "base")
    report = checked(publish(root, name))
    assert (report.conclusion, report.reasons) == (CONFIRMED, [])
    assert [(claim.location, len(claim.measured)) for claim in report.claims] == [(".", 2)]
    assert [part.repeated for part in report.claims[0].measured] == [N, None]
    assert any("sha256" in subject for subject in report.checked)
    assert any("words" in subject for subject in report.not_checked)


NONE_OF_3 = {"accuracy": 0.0, "n": 3, "correct": 0, "interval": [0.0, 1.0]}


@pytest.mark.parametrize(
    ("file", "change", "reason"),
    [
        ("details.json", {}, ""),
        ("details.json", {("by_solutions", "2-9"): NONE_OF_3}, ""),
        ("details.json", {("draws",): {"sd": 0.1}, ("intervals", "truncated"): [0.0, 0.035]}, ""),
        ("details.json", {("by_size", "4", "correct"): 30}, "by_size 4"),
        ("details.json", {("by_needs", "add-sub", "accuracy"): 0.5}, "by_needs add-sub"),
        ("details.json", {("intervals", "format"): [0.99, 1.0]}, "intervals"),
        ("details.json", {("interval",): [0.499, 0.501]}, "interval"),
        ("details.json", {("mean_tokens",): 3.0}, "mean_tokens"),
        *(
            ("metrics.json", {(name,): 0.9}, name)
            for name in ("acc_4", "accuracy", "mul_div", "high")
        ),
    ],
)
def test_a_release_of_an_earlier_version_is_judged_by_the_metrics_that_it_wrote(
    root, file, change, reason
):
    shutil.rmtree(root / "eval" / "merged")
    early = Path(shutil.copytree(OLD / "release" / "eval", root / "eval" / "merged"))
    values = json.loads((early / file).read_text())
    for (*path, name), value in change.items():
        reduce(dict.__getitem__, path, values)[name] = value
    (early / file).write_text(json.dumps(values))
    manifest = Manifest.parse((early / MANIFEST).read_bytes(), early / MANIFEST)
    entries = manifest.files | {file: file_entry(early / file)}
    (early / MANIFEST).write_bytes(replace(manifest, files=entries).to_bytes())
    report = checked(publish(root))
    assert (report.conclusion == CONFIRMED) != bool(reason)
    assert report.reasons == (
        [f"eval/{file} has other metrics than its samples ({reason})"] if reason else []
    )
    told = " ".join(report.not_checked)
    assert reason or {"impossible", "wrong_refusals"} <= {*re.findall(r"\w+", told)}
    assert ("by_solutions 2-9" in told, "draws" in told) == (
        ("by_solutions", "2-9") in change,
        ("draws",) in change,
    )


def test_a_release_measured_in_another_arithmetic_is_confirmed(root):
    options = EvalOptions(max_new_tokens=8, precision="bf16", batch_size=7)
    evaluate.evaluate(options, model="merged", data=root / "data", out=root / "eval" / "merged")
    assert checked(publish(root)).conclusion == CONFIRMED


def test_a_release_whose_verdicts_differ_on_a_few_puzzles_is_confirmed(root):
    """As those do that were measured on another processor."""
    rows = rows_of(root)

    def change(samples: list[Sample]) -> None:
        wrong = [index for index, sample in enumerate(samples) if not sample.grade.correct]
        last = max(index for index, sample in enumerate(samples) if sample.grade.correct)
        for index in wrong[:6]:
            samples[index] = forgeries.right(samples[index], rows[index])
        samples[last] = Sample.of(rows[last], Completion("", 1, True))

    republish(root, change)
    report = checked(root / "release")
    assert (report.conclusion, report.reasons) == (CONFIRMED, [])
    assert report.claims[0].measured[0].p < 1


@pytest.mark.slow
def test_releases_of_a_whole_chain_made_now_are_confirmed(here, hub):
    hub.add_model("me/base", constant_model.checkpoint(here / "base"))
    root = constant_model.chain(here, base="me/base")
    for name in ("merged", "adapter", "quantized", "gguf"):
        assert checked(publish(root, name)).conclusion == CONFIRMED


def test_a_release_with_several_completions_of_each_puzzle_is_confirmed(root):
    forgeries.sampled(root, lambda values: None, pass_at="1,2,4")
    report = checked(root / "release")
    assert (report.conclusion, report.reasons) == (CONFIRMED, [])
    assert "the words of the sampled completions in eval" in report.not_checked


def test_a_release_whose_files_are_links_is_confirmed(root, hub):
    """As those in the caches of DVC and the Hub, and beside what `hf download`, Git and a file manager write."""
    folder, cache = root / "release", root / "cache" / "files" / "md5" / "ab"
    cache.mkdir(parents=True)
    for number, path in enumerate([path for path in folder.rglob("*") if path.is_file()]):
        shutil.move(path, cache / str(number))
        path.symlink_to(cache / str(number))
    for beside in (
        ".cache/huggingface/download/README.md.metadata",
        ".gitattributes",
        ".DS_Store",
        "eval/.DS_Store",
    ):
        (folder / beside).parent.mkdir(parents=True, exist_ok=True)
        (folder / beside).write_text("")
    report = checked(folder)
    assert (report.conclusion, report.reasons) == (CONFIRMED, [])
    hub.add_model("me/tiny", folder)
    snapshot = snapshot_download("me/tiny")
    assert (Path(snapshot) / "model.safetensors").is_symlink()
    assert checked(snapshot).conclusion == CONFIRMED


def test_few_puzzles_confirm_nothing_and_the_seed_repeats_the_measurement_and_is_otherwise_random(
    root,
):
    for few in ({"limit": 1}, {"fresh": 50}):
        assert checked(root / "release", **few).conclusion == TOO_FEW
    first, again = (checked(root / "release", seed=7) for _ in range(2))
    assert first.claims == again.claims
    assert len({checked(root / "release", seed=None, fresh=3).seed for _ in range(2)}) == 2


def test_imported_puzzles_have_to_be_given(root):
    data = artifacts.read(root / "data", "data")
    data.inputs["from"] = {"file": "own.jsonl", "digest": "0"}
    chained(root, data.as_input())
    republish(root, lambda samples: None)
    with pytest.raises(ArtifactError, match="--data"):
        checked(root / "release")
    report = checked(root / "release", data=[root / "data" / "test.jsonl"])
    assert report.conclusion == CONFIRMED
    assert any("new puzzles" in subject for subject in report.not_checked)


def test_what_cannot_be_measured_is_an_error_and_no_refutation(root, command):
    for source in ("elsewhere", str(root / "merged"), str(OLD / "release")):
        with pytest.raises(ArtifactError, match=r"not a directory|not a release|in one format"):
            checked(source)
    assert command("verify", str(root / "release"), "--fresh", str(10**8)).exit_code == 2
    shutil.rmtree(root / "eval")
    with pytest.raises(ArtifactError, match="evaluation"):
        checked(publish(root))


def test_a_repository_is_verified_at_a_revision(root, hub):
    commit = hub.add_model("me/tiny", root / "release")
    forgeries.noise(root)
    hub.add_model("me/tiny", root / "release")
    assert checked("me/tiny").conclusion == REFUTED
    report = checked(f"me/tiny@{commit}")
    assert (report.conclusion, report.revision) == (CONFIRMED, commit)


def test_the_command_prints_claim_and_measurements_and_its_status_is_the_conclusion(root, command):
    result = command("verify", str(root / "release"), "--fresh", str(N), "--seed", "1")
    assert result.exit_code == 0
    shown = r"50\.0% of 120 claimed.*recorded puzzles.*new puzzles.*conclusion +confirmed"
    assert re.search(shown, result.stdout, re.DOTALL)
    assert command("verify", str(root / "release"), "--limit", "1").exit_code == 1
    (root / "release" / forgeries.GENERATION).unlink()
    result = command("verify", str(root / "release"), "--json")
    values = json.loads(result.stdout)
    assert (result.exit_code, values["conclusion"]) == (1, REFUTED)
    assert values["reasons"] == ["generation_config.json is missing"]


def test_too_few_puzzles_are_told_with_the_number_that_is_needed(capsys):
    console.result({}, cli._view(Verification("release", None, "digest", 1)))
    assert "need 100 puzzles; raise --limit and --fresh" in " ".join(
        capsys.readouterr().out.split()
    )
