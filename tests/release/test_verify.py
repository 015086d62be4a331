"""Verification: genuine releases are confirmed, each kind of forgery is refuted, and few puzzles tell nothing.

Most tests are of a model that answers "impossible" to every puzzle, and of data of which half are. Version 0.1 put
weights in several formats into one folder; the artifacts that they were made from are taken out of it again.
"""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import snapshot_download
from safetensors.torch import load_file, save_file

from countdown_rl.core import artifacts
from countdown_rl.core.errors import ArtifactError
from countdown_rl.core.manifest import MANIFEST, Manifest, file_entry, file_input
from countdown_rl.data import build
from countdown_rl.evaluation import evaluate, results
from countdown_rl.evaluation.config import EvalOptions
from countdown_rl.evaluation.metrics import measure
from countdown_rl.evaluation.results import Result
from countdown_rl.evaluation.sample import Metrics, Sample
from countdown_rl.inference.generate import Completion
from countdown_rl.release import consistency, folder, verify
from countdown_rl.release.config import PublishOptions
from countdown_rl.release.formats import Weights
from countdown_rl.release.verify import CONFIRMED, REFUTED, TOO_FEW, Verification
from countdown_rl.tasks import jsonl
from tests.support import constant_model, evaluations

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
    for key, name in {"model": "merged", "adapter": "adapter", "quantized": "quantized", "gguf": "gguf"}.items():
        made, folder = Manifest(**manifest.inputs[key]["manifest"]), OLD / "release" / ("" if key == "model" else key)
        (root / name).mkdir()
        for file in made.files:
            shutil.copyfile(folder / file, root / name / file)
        if name == "adapter":  # its publication added the line break
            config = root / name / "adapter_config.json"
            config.write_text(config.read_text().rstrip("\n"))
        (root / name / MANIFEST).write_bytes(made.to_bytes())
        evaluation = OLD / "release" / ("eval" if key == "model" else f"{key}-eval")
        details, lines = json.loads((evaluation / "details.json").read_text()), evaluation / "samples.jsonl"
        samples = [Sample.from_json(line) for line in jsonl.read_objects(lines)]
        about = {name: details[name] for name in ("decoding", "data", "model", "engine", "precision", "path")}
        record(root, evaluations.metrics(samples, rows, **about), samples, artifacts.read(evaluation, "eval"), name)
    publish(root)
    return root


@pytest.fixture
def root(released: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    copy = Path(shutil.copytree(released, tmp_path / "root"))
    monkeypatch.chdir(copy)
    return copy


def rows_of(root: Path) -> list[Any]:
    return jsonl.read_rows(root / "data" / "test.jsonl")


def publish(root: Path, name: str = "merged", **options: Any) -> Path:
    """Build the release of what is at *root*/*name* now."""
    model = PublishOptions(model=str(root / name), license="mit", name="constant", **options)
    folder.build(model, root / "release")
    return root / "release"


def record(root: Path, metrics: Metrics, samples: list[Sample], manifest: Manifest, name: str = "merged") -> None:
    """Write an evaluation with the options and inputs of *manifest*, whatever it contradicts."""
    with artifacts.writing(root / "eval" / name, "eval", options=manifest.options, inputs=manifest.inputs) as draft:
        results.write(draft.path, metrics, samples)


def evaluation(root: Path) -> Result:
    return results.read(root / "eval" / "merged")


def republish(root: Path, change: Callable[[list[Sample]], Any], rows: list[Any] | None = None) -> None:
    """Let *change* replace samples of the merged weights, on other *rows* if given; figures, card and every digest are
    made to go with them."""
    recorded, rows = evaluation(root), rows or rows_of(root)
    change(recorded.samples)
    inputs = recorded.manifest.inputs | {"model": artifacts.read(root / "merged", "merged").as_input()}
    inputs["model"]["source"] = "merged"
    model = replace(recorded.metrics.model, digest=inputs["model"]["digest"])
    figures = vars(measure(recorded.samples, rows))
    metrics = replace(recorded.metrics, **figures, model=model, data=inputs["data"])
    record(root, metrics, recorded.samples, replace(recorded.manifest, inputs=inputs))
    publish(root)


def seal(folder: Path, change: Callable[[dict[str, Any]], Any] = lambda manifest: None, *added: str) -> None:
    """List the files of a release as they are now, with those *added*, and let *change* doctor the manifest."""
    manifest = json.loads((folder / MANIFEST).read_bytes())
    manifest["files"] = {name: file_entry(folder / name) for name in (*manifest["files"], *added)}
    change(manifest)
    (folder / MANIFEST).write_bytes(Manifest(**manifest).to_bytes())


def edit(file: Path, pattern: str, replacement: str) -> None:
    text, count = re.subn(pattern, replacement, file.read_text("utf-8"), count=1)
    assert count
    file.write_text(text, "utf-8")


def right(sample: Sample, row: Any) -> Sample:
    """*sample* with a right answer to *row*."""
    answer = row.get("solution") or "impossible"
    graded = Sample.of(row, Completion(f"</think><answer>{answer}</answer>", sample.tokens, True))
    assert graded.grade.correct
    return graded


def without_answers(folder: Path) -> None:
    """Give *folder* weights that never answer."""
    constant_model.checkpoint(folder / "other", answers=False)
    shutil.move(folder / "other" / "model.safetensors", folder / "model.safetensors")
    shutil.rmtree(folder / "other")


# Forgeries of the release in the directory that they get.


def noise(root: Path) -> None:
    file, generator = root / "release" / "model.safetensors", torch.Generator().manual_seed(1)
    weights = {
        name: weight + 0.004 * weight.std() * torch.randn(weight.shape, generator=generator)
        for name, weight in load_file(file).items()
    }
    save_file(weights, file, metadata={"format": "pt"})
    seal(root / "release")


def weights_without_their_evaluation(root: Path) -> None:
    without_answers(root / "merged")
    made = artifacts.read(root / "release", "release").inputs["model"]["manifest"]
    made["files"]["model.safetensors"] = file_entry(root / "merged" / "model.safetensors")
    shutil.copyfile(root / "merged" / "model.safetensors", root / "release" / "model.safetensors")
    seal(root / "release", lambda manifest: manifest["inputs"]["model"].update(Manifest(**made).as_input()))


def other_weights_in_the_whole_chain(root: Path) -> None:
    without_answers(root / "merged")
    chained(root, artifacts.read(root / "data", "data").as_input())
    republish(root, lambda samples: None)


def chained(root: Path, data: dict[str, Any]) -> None:
    """Let the manifest of the merged weights, as they are now, say that they were trained on *data*."""
    merged = json.loads((root / "merged" / MANIFEST).read_bytes())
    adapter = Manifest(**merged["inputs"]["adapter"]["manifest"])
    adapter.inputs["data"] = data
    inputs = {"adapter": adapter.as_input() | {"source": "adapter"}}
    with artifacts.writing(root / "merged", "merged", options={}, inputs=inputs) as draft:
        shutil.copytree(root / "merged", draft.path, ignore=lambda *_: [MANIFEST], dirs_exist_ok=True)


def changed_verdicts(root: Path) -> None:
    def change(samples: list[Sample]) -> None:
        for sample in samples[:40]:
            sample.grade.correct, sample.grade.reason = True, ""

    republish(root, change)


def better_completions(root: Path) -> None:
    def change(samples: list[Sample]) -> None:
        samples[:36] = map(right, samples[:36], rows_of(root))

    republish(root, change)


def invented_completions(count: int, text: str = "Let me see. </think>", tokens: int = 4) -> Callable[[Path], None]:
    """A forgery whose first *count* completions have other words or lengths, and the same verdicts."""

    def forge(root: Path) -> None:
        def change(samples: list[Sample]) -> None:
            for index, (sample, row) in enumerate(zip(samples[:count], rows_of(root), strict=False)):
                completion = Completion(sample.completion.replace("</think>", text), tokens, not sample.truncated)
                samples[index] = Sample.of(row, completion)

        republish(root, change)
        assert evaluation(root).metrics.accuracy == 0.5

    return forge


def sampled(root: Path, change: Callable[[dict[str, Any]], Any], file: str = "details.json", **options: Any) -> None:
    """Let *change* doctor the *file* of an evaluation with several completions, and publish it."""
    path = root / "eval" / "merged"
    settings = EvalOptions(max_new_tokens=8, threads=1, temperature=1.0, samples=4, **options)
    evaluate.evaluate(settings, model="merged", data=root / "data", out=path)
    recorded = results.read(path)
    with artifacts.writing(path, "eval", options=recorded.manifest.options, inputs=recorded.manifest.inputs) as draft:
        results.write(draft.path, recorded.metrics, recorded.samples, settings.pass_at_values)
        values = json.loads((draft.path / file).read_text())
        change(values)
        (draft.path / file).write_text(json.dumps(values))
    publish(root)


def forged_figure(change: Callable[[dict[str, Any]], Any], *arguments: str, **options: Any) -> Callable[[Path], None]:
    return lambda root: sampled(root, change, *arguments, **options)


def an_altered_chain(root: Path) -> None:
    seal(root / "release", lambda manifest: manifest["inputs"]["model"]["manifest"]["options"].update(base="other"))


def puzzles_chosen_by_hand(root: Path) -> None:
    rows = [row for row in rows_of(root) if not row["solutions"]]
    data = artifacts.read(root / "data", "data")
    with artifacts.writing(root / "data", "data", options=data.options) as draft:
        draft.facts.update(data.facts)
        shutil.copyfile(root / "data" / "train.jsonl", draft.path / "train.jsonl")
        jsonl.write_rows(draft.path / "test.jsonl", map(dict, rows))
    chained(root, artifacts.read(root / "data", "data").as_input())
    recorded = evaluation(root)
    recorded.manifest.inputs["data"] = file_input(root / "data" / "test.jsonl")
    record(root, recorded.metrics, recorded.samples, recorded.manifest)

    def change(samples: list[Sample]) -> None:
        samples[:] = [right(samples[0], row) for row in rows]

    republish(root, change, rows)


def an_evaluation_on_training_data(root: Path) -> None:
    # publish refuses it, so the release is changed afterwards.
    train, folder = file_input(root / "data" / "train.jsonl"), root / "release"
    details = json.loads((folder / "eval" / "details.json").read_text()) | {"data": train}
    (folder / "eval" / "details.json").write_text(json.dumps(details))
    manifest = json.loads((folder / "eval" / MANIFEST).read_bytes())
    manifest["inputs"]["data"] = train
    manifest["files"]["details.json"] = file_entry(folder / "eval" / "details.json")
    changed = Manifest(**manifest)
    (folder / "eval" / MANIFEST).write_bytes(changed.to_bytes())
    seal(folder, lambda values: values["inputs"].update(eval=changed.as_input()))


DAMAGED, FIGURES = "is not the file that the manifest", "has other metrics than its samples"
GENERATION = "generation_config.json"


def with_sampling(root: Path) -> None:
    (root / "release" / GENERATION).write_text('{"eos_token_id": 1, "temperature": 0.6}')
    seal(root / "release")


FORGERIES: list[tuple[str, Callable[[Path], None]]] = [
    (r"^model\.safetensors is damaged", lambda root: without_answers(root / "release")),
    (r"^generation_config\.json is missing", lambda root: (root / "release" / GENERATION).unlink()),
    ("is not in the manifest", lambda root: (root / "release" / "adapter_config.json").write_text("{}")),
    (DAMAGED, noise),
    ("the manifest of merged in manifest.json was changed", an_altered_chain),
    ("eval is an evaluation of other weights", weights_without_their_evaluation),
    (GENERATION, with_sampling),
    (f"{FIGURES} .accuracy", forged_figure(lambda values: values.update(accuracy=0.9))),
    (f"{FIGURES} .interval", forged_figure(lambda values: values.update(interval=[0.49, 0.51]))),
    (f"{FIGURES} .pass_at", forged_figure(lambda values: values["pass_at"].update({"64": values["pass_at"]["4"]}))),
    (f"{FIGURES} .majority", forged_figure(lambda values: values["majority"].update(share=0.99))),
    (f"{FIGURES} .groups", forged_figure(lambda values: values["groups"]["numbers"]["4"].update(accuracy=0.99))),
    (
        f"{FIGURES} .pass@4",
        forged_figure(lambda values: values.update({"pass@4": 0.99}), "metrics.json", pass_at="1,4"),
    ),
    ("do not have the grades of their texts", changed_verdicts),
    ("or are of other puzzles", lambda root: republish(root, lambda samples: samples.reverse())),
    ("solve 50.0% of 120 recorded puzzles, and .*% of 120 is claimed", better_completions),
    ("solve 0.0% of 120 recorded puzzles, and 50.0% of 120 is claimed", other_weights_in_the_whole_chain),
    ("repeat 0 of 120 greedy completions", invented_completions(120)),
    ("repeat 60 of 120 greedy completions", invented_completions(60)),
    ("repeat 0 of 120 greedy completions", invented_completions(120, "</think>", tokens=3)),
    ("the recorded options do not generate the recorded puzzles", puzzles_chosen_by_hand),
    ("on puzzles that the weights were trained on", an_evaluation_on_training_data),
]


@pytest.mark.parametrize(("reason", "forge"), FORGERIES)
def test_a_forgery_is_refuted(root, reason, forge):
    forge(root)
    report = checked(root / "release")
    assert report.conclusion == REFUTED
    assert re.search(reason, "\n".join(report.reasons))


def chat(change: Callable[[str], str]) -> Callable[[Path], None]:
    """A forgery whose chat template *change* makes from the genuine one."""

    def forge(folder: Path) -> None:
        file = folder / "chat_template.jinja"
        file.write_text(change(file.read_text()))

    return forge


def ad(condition: str) -> Callable[[Path], None]:
    return chat(lambda text: f"{{% if {condition} %}}Buy now {{% endif %}}{text}")


def changed(name: str, change: Callable[[Any], Any]) -> Callable[[Path], None]:
    """A forgery that lets *change* doctor the JSON file *name*."""

    def forge(folder: Path) -> None:
        values = json.loads((folder / name).read_bytes())
        change(values)
        (folder / name).write_text(json.dumps(values, indent=2, sort_keys=True) + "\n")

    return forge


def card(pattern: str, replacement: str) -> Callable[[Path], None]:
    return lambda folder: edit(folder / "README.md", pattern, replacement)


def head(key: str, change: Callable[[Any], Any]) -> Callable[[Path], None]:
    """A forgery whose GGUF file has another value under *key*, which may be new."""

    def forge(folder: Path) -> None:
        import gguf

        path = folder / "model-Q8_0.gguf"
        reader = gguf.GGUFReader(path)
        writer = gguf.GGUFWriter(folder / "forged", "llama")
        fields = {name: field for name, field in reader.fields.items() if not name.startswith("GGUF.")}
        for name, field in fields.items():
            value = change(field.contents()) if name == key else field.contents()
            if name != "general.architecture":
                writer.add_key_value(name, value, field.types[0], field.types[1] if len(field.types) > 1 else None)
        if key not in fields:
            writer.add_string(key, change(None))
        for tensor in reader.tensors:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        (folder / "forged").replace(path)

    return forge


def benchmark(old: str, new: str, name: str = "every_eval_ever.json") -> Callable[[Path], None]:
    return lambda folder: edit(folder / name, old, new)


INSIDE: list[tuple[str, str, Callable[[Path], None]]] = [
    *(
        ("merged", "depends on the date", ad(f"strftime_now('{spec}'"))
        for spec in ("%Y') > '2030", "%m') == '12", "%H') < '06")
    ),
    *(
        ("merged", "around other prompts", ad(test))
        for test in ("'Numbers' not in messages[-1].content", "messages[-1].content|length > 900")
    ),
    ("merged", "around other prompts .*system", ad("messages[0].role == 'system' and 'pirate' in messages[0].content")),
    ("merged", "does not complete a user turn", ad("bare is not defined and messages[0].role != 'system'")),
    (
        "merged",
        "does not show",
        chat(lambda text: "{% if messages|length > 2 %}Buy now{% else %}" + text + "{% endif %}"),
    ),
    (
        "merged",
        "tokenizer_config.json has another chat template",
        changed("tokenizer_config.json", lambda values: values.update(chat_template="Buy now")),
    ),
    ("merged", "another base_model", card("base_model: me/base", "base_model: me/other")),
    ("merged", "another license", card('license: "?mit"?', "license: apache-2.0")),
    ("merged", "other metrics than eval .*0.999", card("value: 0.5", "value: 0.999")),
    (
        "merged",
        "other metrics than eval .*pass@2",
        card("    - type: accuracy", "    - {type: pass_at_2, name: pass@2, value: 0.9}\n    - type: accuracy"),
    ),
    ("merged", "other metrics than eval", card('"n": 120', '"n": 12000')),
    ("merged", "facts .*accuracy", changed(MANIFEST, lambda values: values["facts"].update(accuracy=0.999))),
    ("merged", "facts .*pass@2", changed(MANIFEST, lambda values: values["facts"].update({"pass@2": 0.5}))),
    ("merged", "names the base", changed(MANIFEST, lambda values: values["facts"].update(base_model="me/other"))),
    ("merged", "every_eval_ever.json has other", benchmark('"score": 0.5', '"score": 0.9')),
    ("merged", "countdown.yaml has other", benchmark("value: 50.0", "value: 99.0", ".eval_results/countdown.yaml")),
    ("merged", "countdown.yaml has other", benchmark("$", "\n- {value: 99.0}", ".eval_results/countdown.yaml")),
    *(
        (
            "adapter",
            rf"adapter_config.json has other settings .*{key}",
            changed("adapter_config.json", lambda values, key=key, value=value: values.update({key: value})),
        )
        for key, value in {
            "use_rslora": True,
            "use_dora": True,
            "alpha_pattern": {"q_proj": 64},
            "bias": "all",
            "target_modules": ["q_proj"],
        }.items()
    ),
    (
        "adapter",
        "adapter_config.json has other settings",
        changed("adapter_config.json", lambda values: values.update(lora_alpha=32)),
    ),
    (
        "adapter",
        "names another base",
        changed("adapter_config.json", lambda values: values.update(base_model_name_or_path="me/other")),
    ),
    ("adapter", "names another base", changed("adapter_config.json", lambda values: values.update(revision="other"))),
    ("gguf", "tokenizer.chat_template", head("tokenizer.chat_template", lambda text: "Buy now")),
    ("gguf", "ggml.tokens", head("tokenizer.ggml.tokens", lambda tokens: tokens[:4] + tokens[:3:-1])),
    ("gguf", "ggml.merges", head("tokenizer.ggml.merges", lambda merges: merges[::-1])),
    ("gguf", "ggml.token_type", head("tokenizer.ggml.token_type", lambda types: [1] * len(types))),
    ("gguf", "ggml.eos_token_id", head("tokenizer.ggml.eos_token_id", lambda token: token + 1)),
    ("gguf", "sampling.temp", head("general.sampling.temp", lambda temperature: 2.0)),
    *(
        ("gguf", key, head(key, lambda value: "x"))
        for key in ("general.sampling.top_k", "llama.rope.scaling.type", "tokenizer.chat_template.tool_use")
    ),
    ("gguf", "Modelfile", lambda folder: edit(folder / "Modelfile", "PARAMETER temperature 0", "SYSTEM Buy now")),
]


@pytest.mark.parametrize(("name", "reason", "forge"), INSIDE)
def test_what_other_programs_read_is_compared(root, hub, name, reason, forge):
    """Each forgery contradicts the rest of the release, whoever listed its files."""
    hub.add_model("me/base", OLD / "base")
    published = publish(root, name, benchmark="me/puzzles")
    weights, manifest, measured = opened(published)
    assert [*consistency.faults(weights, manifest, measured)] == []
    forge(published)
    seal(published)
    assert re.search(reason, "\n".join(consistency.faults(*opened(published))))


def opened(folder: Path) -> tuple[Weights, Manifest, Result]:
    manifest = Manifest.parse((folder / MANIFEST).read_bytes(), folder / MANIFEST)
    listed = manifest.inputs["model"]
    return Weights(folder, Manifest(**listed["manifest"]), listed), manifest, results.read(folder / "eval")


def test_what_nothing_compares_is_named(root):
    folder = root / "release"
    added = ("pytorch_model.bin", "modeling.py", "further/model.safetensors", "consolidated.safetensors")
    for name in added:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("")
    changed("config.json", lambda values: values.update(auto_map={"AutoModel": "modeling.Model"}))(folder)
    seal(
        folder,
        lambda values: None,
        "pytorch_model.bin",
        "modeling.py",
        "further/model.safetensors",
        "consolidated.safetensors",
    )
    named = "\n".join(consistency.unread(opened(folder)[0], "countdown"))
    assert all(name in named for name in (*added, "auto_map of config.json"))


def test_no_more_puzzles_are_generated_than_were_measured(root, monkeypatch):
    monkeypatch.setattr(verify, "MAX_PUZZLES", 100)
    data = artifacts.read(root / "data", "data")
    chained(root, replace(data, options=data.options | {"n": 10**8, "test": 9 * 10**7}).as_input())
    republish(root, lambda samples: None)
    monkeypatch.setattr(build, "generate", lambda *_: pytest.fail("generates puzzles"))
    with pytest.raises(ArtifactError, match="90,000,000 puzzles"):
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


@pytest.mark.parametrize(
    ("file", "change", "reason"),
    [
        ("details.json", {}, ""),
        (
            "details.json",
            {("by_solutions", "2-9"): {"accuracy": 0.0, "n": 3, "correct": 0, "interval": [0.0, 1.0]}},
            "",
        ),
        ("details.json", {("draws",): {"sd": 0.1}, ("intervals", "truncated"): [0.0, 0.035]}, ""),
        ("details.json", {("by_size", "4", "correct"): 30}, "by_size 4"),
        ("details.json", {("by_needs", "add-sub", "accuracy"): 0.5}, "by_needs add-sub"),
        ("details.json", {("intervals", "format"): [0.99, 1.0]}, "intervals"),
        ("details.json", {("interval",): [0.499, 0.501]}, "interval"),
        ("details.json", {("mean_tokens",): 3.0}, "mean_tokens"),
        ("metrics.json", {("acc_4",): 0.9}, "acc_4"),
        ("metrics.json", {("accuracy",): 0.6}, "accuracy"),
        ("metrics.json", {("mul_div",): 0.1}, "mul_div"),
        ("metrics.json", {("high",): 0.6}, "high"),
    ],
)
def test_a_release_of_an_earlier_version_is_judged_by_the_metrics_that_it_wrote(root, file, change, reason):
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
    assert report.reasons == ([f"eval/{file} has other metrics than its samples ({reason})"] if reason else [])
    told = " ".join(report.not_checked)
    assert reason or {"impossible", "wrong_refusals"} <= {*re.findall(r"\w+", told)}
    assert ("by_solutions 2-9" in told, "draws" in told) == (("by_solutions", "2-9") in change, ("draws",) in change)


def test_a_release_measured_in_another_arithmetic_is_confirmed(root):
    options = EvalOptions(max_new_tokens=8, threads=1, precision="bf16", batch_size=7)
    evaluate.evaluate(options, model="merged", data=root / "data", out=root / "eval" / "merged")
    assert checked(publish(root)).conclusion == CONFIRMED


def test_a_release_whose_verdicts_differ_on_a_few_puzzles_is_confirmed(root):
    """As those do that were measured on another processor."""
    rows = rows_of(root)

    def change(samples: list[Sample]) -> None:
        wrong = [index for index, sample in enumerate(samples) if not sample.grade.correct]
        last = max(index for index, sample in enumerate(samples) if sample.grade.correct)
        for index in wrong[:6]:
            samples[index] = right(samples[index], rows[index])
        samples[last] = Sample.of(rows[last], Completion("", 1, True))

    republish(root, change)
    report = checked(root / "release")
    assert (report.conclusion, report.reasons) == (CONFIRMED, [])
    assert report.claims[0].measured[0].p < 1


@pytest.mark.slow
def test_releases_of_a_whole_chain_made_now_are_confirmed(tmp_path, hub, monkeypatch):
    monkeypatch.chdir(tmp_path)
    hub.add_model("me/base", constant_model.checkpoint(tmp_path / "base"))
    root = constant_model.chain(tmp_path, base="me/base")
    for name in ("merged", "adapter", "quantized", "gguf"):
        assert checked(publish(root, name)).conclusion == CONFIRMED


def test_a_release_with_several_completions_of_each_puzzle_is_confirmed(root):
    sampled(root, lambda values: None, pass_at="1,2,4")
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
    for beside in (".cache/huggingface/download/README.md.metadata", ".gitattributes", ".DS_Store", "eval/.DS_Store"):
        (folder / beside).parent.mkdir(parents=True, exist_ok=True)
        (folder / beside).write_text("")
    report = checked(folder)
    assert (report.conclusion, report.reasons) == (CONFIRMED, [])
    hub.add_model("me/tiny", folder)
    snapshot = snapshot_download("me/tiny")
    assert (Path(snapshot) / "model.safetensors").is_symlink()
    assert checked(snapshot).conclusion == CONFIRMED


def test_few_puzzles_confirm_nothing(root):
    assert checked(root / "release", limit=1).conclusion == TOO_FEW
    assert checked(root / "release", fresh=50).conclusion == TOO_FEW


def test_the_seed_repeats_the_measurement_and_is_otherwise_random(root):
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
    noise(root)
    hub.add_model("me/tiny", root / "release")
    assert checked("me/tiny").conclusion == REFUTED
    report = checked(f"me/tiny@{commit}")
    assert (report.conclusion, report.revision) == (CONFIRMED, commit)


def test_the_command_prints_claim_and_measurements_and_its_status_is_the_conclusion(root, command):
    result = command("verify", str(root / "release"), "--fresh", str(N), "--seed", "1")
    assert result.exit_code == 0
    assert re.search(
        r"50\.0% of 120 claimed.*recorded puzzles.*new puzzles.*conclusion +confirmed", result.stdout, re.S
    )
    assert command("verify", str(root / "release"), "--limit", "1").exit_code == 1
    (root / "release" / GENERATION).unlink()
    result = command("verify", str(root / "release"), "--json")
    values = json.loads(result.stdout)
    assert (result.exit_code, values["conclusion"]) == (1, REFUTED)
    assert values["reasons"] == ["generation_config.json is missing"]
