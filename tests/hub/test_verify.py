"""Verification of releases: one that nobody touched is confirmed, and each kind of doctored one is refuted."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from countdown_rl import artifacts
from countdown_rl.artifacts import MANIFEST, Manifest
from countdown_rl.data import build as gen_data
from countdown_rl.data import jsonl
from countdown_rl.data.config import DataOptions
from countdown_rl.errors import ArtifactError
from countdown_rl.evaluation import compare, evaluate, reproduce, results
from countdown_rl.evaluation.config import EvalOptions
from countdown_rl.evaluation.metrics import measure
from countdown_rl.hub import release
from countdown_rl.hub.config import PublishOptions
from countdown_rl.hub.verify import CONFIRMED, REFUTED, verify
from countdown_rl.inference.generate import Completion
from countdown_rl.models import load as models
from countdown_rl.models import reference
from countdown_rl.models.reference import SHIPPED
from tests.support import tiny_llama

N = 16
OPTIONS = EvalOptions(max_new_tokens=128, threads=1)
WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data, the shipped weights as a model trained on them, its evaluation, a comparison and the release of it all."""
    root = tmp_path_factory.mktemp("verify")
    gen_data.make(DataOptions(n=60, valid=4, test=N, workers=1), root / "data")
    train(root)
    for name in ("random", "model"):
        model = str(root / "model") if name == "model" else name
        evaluate.evaluate(OPTIONS, model=model, data=root / "data", out=root / "eval" / name)
    publish(root)
    return root


@pytest.fixture
def root(released: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(released, tmp_path / "root"))


def train(root: Path, noise: float = 0.0) -> None:
    """Write the model: the shipped one, with *noise* on its weights."""
    import torch
    from safetensors.torch import load_file, save_file

    inputs = {"data": artifacts.read(root / "data", "data").as_input()}
    with artifacts.writing(root / "model", "model", options={"max_steps": 3}, inputs=inputs) as draft:
        shutil.copytree(SHIPPED["countdown-tiny"], draft.path, ignore=lambda *_: [MANIFEST], dirs_exist_ok=True)
        if noise:
            torch.manual_seed(0)
            tensors = load_file(draft.path / WEIGHTS)
            noisy = {name: tensor + noise * torch.randn(tensor.shape) for name, tensor in tensors.items()}
            dtypes = {name: tensor.dtype for name, tensor in tensors.items()}
            save_file({name: tensor.to(dtypes[name]) for name, tensor in noisy.items()}, draft.path / WEIGHTS)


def publish(root: Path) -> None:
    """Make the comparison and the release of what is in *root* now."""
    compare.compare({name: root / "eval" / name for name in ("random", "model")}, root / "eval" / "comparison")
    release.build(PublishOptions(model=str(root / "model")), root / "release")


def record(root: Path, change: Callable[[list[dict[str, Any]], dict[str, Any]], Any]) -> None:
    """Let *change* doctor the samples and the figures; every digest and the card are made to go with them."""
    recorded = results.read(root / "eval" / "model")
    samples, figures = recorded.samples, recorded.metrics
    change(samples, figures)
    manifest, model = recorded.manifest, artifacts.read(root / "model", "model")
    figures["model"]["digest"] = model.digest
    inputs = manifest.inputs | {"model": model.as_input() | {"source": "model"}}
    with artifacts.writing(root / "eval" / "model", "eval", options=manifest.options, inputs=inputs) as draft:
        results.write(draft.path, figures, samples)
    publish(root)


def seal(folder: Path, change: Callable[[dict[str, Any]], Any] = lambda manifest: None) -> None:
    """List the files of a release as they are now, and let *change* doctor the manifest."""
    manifest = json.loads((folder / MANIFEST).read_bytes())
    manifest["files"] = {name: artifacts.entry(folder / name) for name in manifest["files"]}
    change(manifest)
    (folder / MANIFEST).write_bytes(Manifest(**manifest).to_bytes())


def edit(file: Path, pattern: str, replacement: str) -> None:
    text, count = re.subn(pattern, replacement, file.read_text("utf-8"), count=1)
    assert count
    file.write_text(text, "utf-8")


# Each doctors the release in `root`.


def other_weights(root: Path) -> None:
    train(root, noise=0.02)
    shutil.copyfile(root / "model" / WEIGHTS, root / "release" / WEIGHTS)


def other_weights_listed(root: Path) -> None:
    other_weights(root)
    seal(root / "release")


def other_weights_in_the_chain(root: Path) -> None:
    other_weights(root)
    files = artifacts.read(root / "model", "model").files
    seal(root / "release", lambda manifest: manifest["inputs"]["model"]["manifest"].update(files=files))


def other_weights_with_every_digest(root: Path) -> None:
    train(root, noise=0.02)
    record(root, lambda samples, figures: None)


def another_chat_template(root: Path) -> None:
    edit(root / "release" / "chat_template.jinja", "$", "{# #}")
    seal(root / "release")


def an_adapter_beside_the_weights(root: Path) -> None:
    (root / "release" / "adapter_config.json").write_text("{}")


def a_missing_file(root: Path) -> None:
    (root / "release" / "generation_config.json").unlink()


def another_accuracy_on_the_card(root: Path) -> None:
    edit(root / "release" / "README.md", r"all puzzles \| [\d.]+%", "all puzzles | 99.0%")


def another_accuracy_on_the_card_listed(root: Path) -> None:
    another_accuracy_on_the_card(root)
    seal(root / "release")


def another_accuracy_in_the_metadata(root: Path) -> None:
    edit(root / "release" / "README.md", r"value: 0\.\d+", "value: 0.99")
    seal(root / "release")


def another_licence_in_the_metadata(root: Path) -> None:
    edit(root / "release" / "README.md", "license: apache-2.0", "license: apache-2.0-modified")
    seal(root / "release")


def a_sentence_with_a_figure(root: Path) -> None:
    edit(root / "release" / "README.md", "## Results\n", "## Results\n\nOn harder puzzles it solves 95%.\n")
    seal(root / "release")


def another_accuracy_in_the_comparison(root: Path) -> None:
    edit(root / "release" / "README.md", r"\| random \| [\d.]+%", "| random | 0.1%")
    seal(root / "release")


def another_accuracy_in_the_manifest(root: Path) -> None:
    seal(root / "release", lambda manifest: manifest["facts"].update(accuracy=0.99))


def a_verdict_listed(root: Path) -> None:
    edit(root / "release" / "eval" / "samples.jsonl", '"correct": false', '"correct": true')
    seal(root / "release")


def a_verdict(root: Path) -> None:
    def change(samples: list[dict[str, Any]], figures: dict[str, Any]) -> None:
        next(sample for sample in samples if not sample["correct"]).update(correct=True, reason="")
        figures.update(measure(samples, rows(root)))

    record(root, change)


def a_text(root: Path) -> None:
    def change(samples: list[dict[str, Any]], figures: dict[str, Any]) -> None:
        index = next(index for index, sample in enumerate(samples) if not sample["correct"])
        row = rows(root)[index]
        answer = row["solution"]
        text = f"\n1. yes\n</think>\n<answer>{answer}</answer>"
        samples[index] = evaluate.graded(row, 0, 1, Completion(text, tokens(text), True))
        assert samples[index]["correct"]
        figures.update(measure(samples, rows(root)))

    record(root, change)


def a_figure_left_out(root: Path) -> None:
    edit(root / "release" / "eval" / "details.json", r'  "format": [\d.]+,\n', "")
    manifest = json.loads((root / "release" / "eval" / MANIFEST).read_bytes())
    manifest["files"]["details.json"] = artifacts.entry(root / "release" / "eval" / "details.json")
    evaluation = Manifest(**manifest)
    (root / "release" / "eval" / MANIFEST).write_bytes(evaluation.to_bytes())
    seal(root / "release", lambda manifest: manifest["inputs"].update(eval=evaluation.as_input()))


def the_figures(root: Path) -> None:
    record(root, lambda samples, figures: figures.update(accuracy=0.99, correct=N))


def a_length(root: Path) -> None:
    def change(samples: list[dict[str, Any]], figures: dict[str, Any]) -> None:
        samples[0]["tokens"] -= 10
        figures.update(measure(samples, rows(root)))

    record(root, change)


def the_puzzle_of_a_sample(root: Path) -> None:
    record(root, lambda samples, figures: samples[0].update(nums=samples[0]["nums"][::-1]))


def easier_puzzles(root: Path) -> None:
    def change(samples: list[dict[str, Any]], figures: dict[str, Any]) -> None:
        solved = next(index for index, sample in enumerate(samples) if sample["correct"])
        indices = [index if sample["correct"] else solved for index, sample in enumerate(samples)]
        samples[:] = [samples[index] for index in indices]
        figures.update(measure(samples, [rows(root)[index] for index in indices]))

    record(root, change)


def other_decoding_settings(root: Path) -> None:
    record(root, lambda samples, figures: figures["decoding"].update(seed=1))


def a_test_puzzle_in_the_training_data(root: Path) -> None:
    data = artifacts.read(root / "data", "data")
    with artifacts.writing(root / "other", "data", options=data.options) as draft:
        shutil.copytree(root / "data", draft.path, ignore=lambda *_: [MANIFEST], dirs_exist_ok=True)
        jsonl.append_rows(
            draft.path / "train.jsonl", [json.loads((root / "data/test.jsonl").read_bytes().split(b"\n")[0])]
        )
    shutil.rmtree(root / "data")
    (root / "other").rename(root / "data")
    train(root)
    record(root, lambda samples, figures: None)


def rows(root: Path) -> list[Any]:
    return jsonl.read_rows(root / "data" / "test.jsonl")


def tokens(text: str) -> int:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(SHIPPED["countdown-tiny"])
    return len(tokenizer(text, add_special_tokens=False)["input_ids"])


#: What each of the doctored releases is refuted by.
DOCTORED: dict[Callable[[Path], None], str] = {
    other_weights: r"model\.safetensors is not the file that the manifest lists",
    other_weights_listed: r"model\.safetensors is not the file of model",
    other_weights_in_the_chain: "the manifest of model does not have its recorded digest",
    other_weights_with_every_digest: "the accuracy is .* here|none that these weights write",
    another_chat_template: r"chat_template\.jinja is not the file of model",
    an_adapter_beside_the_weights: r"adapter_config\.json is not in the manifest",
    a_missing_file: r"generation_config\.json is missing",
    another_accuracy_on_the_card: r"README\.md is not the file that the manifest lists",
    another_accuracy_on_the_card_listed: r"README\.md has 99\.0% where",
    another_accuracy_in_the_metadata: r"README\.md has 0\.99 where",
    another_licence_in_the_metadata: "other metadata",
    a_sentence_with_a_figure: r"README\.md has 95% where",
    another_accuracy_in_the_comparison: "the comparison in README",
    another_accuracy_in_the_manifest: "another accuracy",
    a_verdict_listed: r"samples\.jsonl is damaged",
    a_verdict: r"1 of \d+ samples are not what .*correct, reason",
    a_text: "none that these weights write",
    a_figure_left_out: "does not describe the release",
    the_figures: r"details\.json has other figures than its samples \(accuracy, correct\)",
    a_length: "another length",
    the_puzzle_of_a_sample: "samples are not what .*nums",
    easier_puzzles: "samples are not what their puzzles",
    other_decoding_settings: "other decoding settings",
    a_test_puzzle_in_the_training_data: "not what gen-data makes",
}


def test_an_untouched_release_is_confirmed_twice(root):
    for _ in range(2):
        report = verify(str(root / "release"))
        assert (report.conclusion, report.reasons) == (CONFIRMED, [])
        assert report.evaluations["."].completions == N
        assert 0 < report.evaluations["."].accuracy < 1
        assert report.checked.keys() == {"files", "manifests", "card", "data", "eval"}
        assert "training" in report.not_checked[-1]


@pytest.mark.parametrize("doctor", DOCTORED, ids=lambda doctor: doctor.__name__)
def test_a_doctored_release_is_refuted(root, doctor):
    doctor(root)
    report = verify(str(root / "release"))
    assert report.conclusion == REFUTED
    assert re.search(DOCTORED[doctor], report.reasons[0])
    if "the manifest lists" in report.reasons[0]:
        assert not report.checked


def test_recorded_texts_are_as_likely_as_any_also_in_another_precision(released):
    samples = results.read(released / "eval" / "model").samples
    for precision, bound in (("fp32", 1e-3), ("bf16", reproduce.ROUNDING)):
        loaded = models.load(reference.resolve(str(released / "model")), precision=precision)
        gaps = [
            reproduce._gap(loaded, sample, row, OPTIONS.max_new_tokens)
            for sample, row in zip(samples, rows(released), strict=True)
        ]
        assert max(gaps) < bound


def test_texts_that_rounding_explains_are_those_of_another_machine(root, monkeypatch):
    a_text(root)
    monkeypatch.setattr(reproduce, "_gap", lambda *arguments: reproduce.ROUNDING / 2)
    report = verify(str(root / "release"))
    assert report.conclusion == (
        f"within the arithmetic of another machine (1 of {N} texts differ, accuracy within its interval)"
    )


def test_a_test_puzzle_in_imported_training_data_refutes(root):
    data = artifacts.read(root / "data", "data")
    with artifacts.writing(root / "other", "data", options=data.options, inputs={"from": {"file": "own"}}) as draft:
        shutil.copytree(root / "data", draft.path, ignore=lambda *_: [MANIFEST], dirs_exist_ok=True)
        jsonl.append_rows(draft.path / "train.jsonl", map(dict, rows(root)[:2]))
    shutil.rmtree(root / "data")
    (root / "other").rename(root / "data")
    train(root)
    record(root, lambda samples, figures: None)
    with pytest.raises(ArtifactError, match="--data"):
        verify(str(root / "release"))
    report = verify(str(root / "release"), data=[root / "data"])
    assert report.reasons == [f"2 of {N} test puzzles are in the training data {report.reasons[0][-12:]}"]
    # With the test split alone the training data stay unknown, and the conclusion says so.
    report = verify(str(root / "release"), data=[root / "data" / "test.jsonl"], limit=2)
    assert report.conclusion == CONFIRMED
    assert any("training data" in subject for subject in report.not_checked)
    assert any(f"{N - 2} puzzles after the first 2" in subject for subject in report.not_checked)


def test_other_data_are_refused(root):
    gen_data.make(DataOptions(n=60, seed=1, workers=1), root / "other")
    with pytest.raises(ArtifactError, match="other is not data of this release"):
        verify(str(root / "release"), data=[root / "other"])


def test_a_repository_is_verified_at_a_revision(root, hub):
    commit = hub.add_model("me/tiny", root / "release")
    another_accuracy_on_the_card_listed(root)
    hub.add_model("me/tiny", root / "release")
    assert verify("me/tiny").conclusion == REFUTED
    report = verify(f"me/tiny@{commit}")
    assert (report.conclusion, report.revision) == (CONFIRMED, commit)


def test_an_adapter_is_verified_over_its_base_in_the_precision_of_its_evaluation(root, hub):
    hub.add_model("me/base", tiny_llama.checkpoint(root / "base"))
    inputs = {
        "model": reference.resolve("me/base").as_input(),
        "data": artifacts.read(root / "data", "data").as_input(),
    }
    with artifacts.writing(root / "adapter", "adapter", options={"precision": "nf4"}, inputs=inputs) as draft:
        tiny_llama.adapter(draft.path, root / "base", reference="me/base")
        (draft.path / "README.md").unlink()
    options = EvalOptions(max_new_tokens=8, threads=1)
    out = root / "eval" / "adapter"
    result = evaluate.evaluate(options, model=str(root / "adapter"), data=root / "data", out=out)
    assert result.metrics["precision"] == "nf4"
    release.build(PublishOptions(model=str(root / "adapter"), license="mit"), root / "release")
    report = verify(str(root / "release"))
    assert report.conclusion == CONFIRMED
    assert "the data that me/base was trained on before" in report.not_checked


def test_what_is_no_release_or_was_not_evaluated_is_an_error(root):
    for source in ("elsewhere", str(root / "model")):
        with pytest.raises(ArtifactError, match=r"no directory|no release"):
            verify(source)
    shutil.rmtree(root / "eval")
    release.build(PublishOptions(model=str(root / "model")), root / "release")
    with pytest.raises(ArtifactError, match="no evaluation"):
        verify(str(root / "release"))


def test_the_command_prints_one_page_and_its_status_is_the_conclusion(root, command):
    result = command("verify", str(root / "release"))
    assert result.exit_code == 0
    assert re.search(rf"0 of {N} texts differ.*conclusion +confirmed", result.stdout, re.DOTALL)
    a_missing_file(root)
    result = command("verify", str(root / "release"), "--json")
    values = json.loads(result.stdout)
    assert (result.exit_code, values["conclusion"]) == (1, REFUTED)
    assert values["reasons"] == ["generation_config.json is missing"]
