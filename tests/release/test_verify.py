"""Verification: genuine releases are confirmed, each kind of forgery is refuted, and few puzzles tell nothing.

Most tests are of a model that answers "impossible" to every puzzle, and of data of which half are. Its release was
published by version 0.1; the artifacts that it was made from are taken out of it again.
"""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import snapshot_download
from safetensors.torch import load_file, save_file

from countdown_rl.core import artifacts
from countdown_rl.core.artifacts import MANIFEST, Manifest
from countdown_rl.core.errors import ArtifactError
from countdown_rl.data import build
from countdown_rl.data.config import DataOptions
from countdown_rl.evaluation import compare, evaluate, results
from countdown_rl.evaluation.config import EvalOptions
from countdown_rl.evaluation.metrics import measure
from countdown_rl.evaluation.sample import Sample
from countdown_rl.inference.generate import Completion
from countdown_rl.models.reference import SHIPPED
from countdown_rl.release import folder, verify
from countdown_rl.release.config import PublishOptions
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
    rows, manifest = jsonl.read_rows(root / "data" / "test.jsonl"), artifacts.read(OLD / "release", "release")
    for key, name in {"model": "merged", "adapter": "adapter", "quantized": "quantized", "gguf": "gguf"}.items():
        made, folder = Manifest(**manifest.inputs[key]["manifest"]), OLD / "release" / ("" if key == "model" else key)
        for file in made.files:
            (root / name).mkdir(exist_ok=True)
            shutil.copyfile(folder / file, root / name / file)
        (root / name / MANIFEST).write_bytes(made.to_bytes())
        evaluation = OLD / "release" / ("eval" if key == "model" else f"{key}-eval")
        details, samples = json.loads((evaluation / "details.json").read_text()), evaluation / "samples.jsonl"
        samples = [Sample.from_json(line, "old") for line in jsonl.read_objects(samples)]
        made = artifacts.read(evaluation, "eval")
        with artifacts.writing(root / "eval" / name, "eval", options=made.options, inputs=made.inputs) as draft:
            kept = {name: details[name] for name in ("decoding", "data", "model", "engine", "precision", "path")}
            results.write(draft.path, evaluations.metrics(samples, rows, **kept), samples)
    config = root / "adapter" / "adapter_config.json"
    config.write_text(config.read_text().rstrip("\n"))
    publish(root)
    return root


@pytest.fixture
def root(released: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    copy = Path(shutil.copytree(released, tmp_path / "root"))
    monkeypatch.chdir(copy)
    return copy


def publish(root: Path, name: str = "merged", **options: Any) -> Path:
    """Build the release of what is at *root*/*name* now."""
    model = PublishOptions(model=str(root / name), license="mit", name="constant", **options)
    folder.build(model, root / "release")
    return root / "release"


def record(root: Path, change: Callable[[list[Sample]], Any], rows: list[Any] | None = None) -> None:
    """Let *change* replace samples of the merged weights, on other *rows* if given; figures, card and every digest are
    made to go with them."""
    recorded = results.read(root / "eval" / "merged")
    rows = rows or jsonl.read_rows(root / "data" / "test.jsonl")
    change(recorded.samples)
    per_row = len(recorded.samples) // len(rows)
    figures = measure(recorded.samples, rows[: len(recorded.samples) // (per_row or 1)])
    inputs = recorded.manifest.inputs | {"model": artifacts.read(root / "merged", "merged").as_input()}
    inputs["model"]["source"] = "merged"
    model = replace(recorded.metrics.model, digest=inputs["model"]["digest"])
    metrics = replace(recorded.metrics, **vars(figures), model=model, data=inputs["data"])
    with artifacts.writing(root / "eval" / "merged", "eval", options=recorded.manifest.options, inputs=inputs) as draft:
        results.write(draft.path, metrics, recorded.samples)
    publish(root)


def seal(folder: Path, change: Callable[[dict[str, Any]], Any] = lambda manifest: None, *added: str) -> None:
    """List the files of a release as they are now, with those *added*, and let *change* doctor the manifest."""
    manifest = json.loads((folder / MANIFEST).read_bytes())
    manifest["files"] = {name: artifacts.entry(folder / name) for name in (*manifest["files"], *added)}
    change(manifest)
    (folder / MANIFEST).write_bytes(Manifest(**manifest).to_bytes())


def edit(file: Path, pattern: str, replacement: str) -> None:
    text, count = re.subn(pattern, replacement, file.read_text("utf-8"), count=1)
    assert count
    file.write_text(text, "utf-8")


def right(root: Path, sample: Sample, row: Any) -> Sample:
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


# Each forges the release in `root`; its docstring is what refutes it.


def other_weights(root: Path) -> None:
    r"""model\.safetensors is damaged"""
    without_answers(root / "release")


def other_weights_listed(root: Path) -> None:
    r"""model\.safetensors is not the file that the manifest of its weights lists"""
    without_answers(root / "release")
    seal(root / "release")


def a_good_gguf_in_a_subfolder(root: Path) -> None:
    r"""good/model-Q8_0\.gguf is no file of such a release"""
    without_answers(root / "release")
    shutil.copytree(root / "gguf", root / "release" / "good")
    seal(root / "release", lambda manifest: None, "good/model-Q8_0.gguf")
    shutil.rmtree(root / "release" / "good", ignore_errors=True)
    (root / "release" / "good").mkdir()
    shutil.copyfile(root / "gguf" / "model-Q8_0.gguf", root / "release" / "good" / "model-Q8_0.gguf")


def a_good_gguf_as_a_second_format(root: Path) -> None:
    r"""^model\.safetensors is not the file that the manifest of its weights lists"""
    shutil.rmtree(root / "release")
    shutil.copytree(OLD / "release", root / "release")
    without_answers(root / "release")
    seal(root / "release")


def two_gguf_files(root: Path) -> None:
    r"""a\.gguf is no file of such a release"""
    publish(root, "gguf")
    shutil.copyfile(root / "release" / "model-Q8_0.gguf", root / "release" / "a.gguf")
    seal(root / "release", lambda manifest: None, "a.gguf")


def another_modelfile(root: Path) -> None:
    """Modelfile is not the file that the manifest of its weights lists"""
    publish(root, "gguf")
    edit(root / "release" / "Modelfile", "careful solver", "careful solver (the answer is impossible)")
    seal(root / "release")


def an_adapter_over_another_base(root: Path) -> None:
    r"""the adapter in \. loads me/other, and README\.md names me/base"""
    publish(root, "adapter")
    edit(root / "release" / "adapter_config.json", "me/base", "me/other")
    edit(root / "release" / "adapter_config.json", r'"revision": "\w+"', '"revision": null')
    seal(root / "release")


def a_template_for_this_tool(root: Path) -> None:
    r"""chat_template\.jinja is not the file"""
    file = root / "release" / "chat_template.jinja"
    text = file.read_text()
    file.write_text(f"{{% if bare is defined or date_string is defined %}}{text}{{% else %}}no{{% endif %}}")
    seal(root / "release")


def hints_in_the_template(root: Path) -> None:
    r"""chat_template\.jinja is not the file"""
    file = root / "release" / "chat_template.jinja"
    file.write_text("{% if '4' in messages[-1]['content'] %}It is impossible. {% endif %}" + file.read_text())
    seal(root / "release")


def a_comparison_without_the_evaluation(root: Path) -> None:
    """a comparison without the evaluation of these weights"""
    publish(root, comparison=str(compared(root)))
    edit(root / "release" / "README.md", r"\| merged \| 50\.0%", "| merged | 99.9%")
    manifest = artifacts.read(root / "eval" / "comparison", "comparison")
    other = Manifest(**vars(manifest) | {"inputs": {}})
    seal(root / "release", lambda values: values["inputs"].update(comparison=other.as_input()))


def another_accuracy_in_the_metadata(root: Path) -> None:
    r"""metadata of README\.md do not have what the evaluation has \(accuracy\)"""
    edit(root / "release" / "README.md", "value: 0.5", "value: 0.99")
    seal(root / "release")


def other_terms_in_the_metadata(root: Path) -> None:
    r"""do not have what the evaluation has \(n\)"""
    edit(root / "release" / "README.md", "n: 120", "n: 12000")
    seal(root / "release")


def two_accuracies_in_the_metadata(root: Path) -> None:
    """have 2 accuracies on all puzzles"""
    edit(root / "release" / "README.md", r"      config: 3 numbers\n", "")
    seal(root / "release")


def extra_figures(root: Path) -> None:
    r"""eval/details\.json has figures that no evaluation has \(accuracy_on_all_puzzles\)"""
    recorded = results.read(root / "eval" / "merged")
    manifest, figures = recorded.manifest, recorded.metrics.to_json() | {"accuracy_on_all_puzzles": 0.999}
    with artifacts.writing(root / "eval/merged", "eval", options=manifest.options, inputs=manifest.inputs) as draft:
        results.write(draft.path, recorded.metrics, recorded.samples)
        (draft.path / "details.json").write_text(json.dumps(figures))
    publish(root)


def another_count_of_samples(root: Path) -> None:
    r"""eval/details\.json and its manifest have different settings \(samples, temperature\)"""
    recorded = results.read(root / "eval" / "merged")
    decoding = replace(recorded.metrics.decoding, samples=10, temperature=1.0, greedy=False)
    manifest = recorded.manifest
    with artifacts.writing(root / "eval/merged", "eval", options=manifest.options, inputs=manifest.inputs) as draft:
        results.write(draft.path, replace(recorded.metrics, decoding=decoding), recorded.samples)
    publish(root)


def another_evaluation(root: Path) -> None:
    """eval is not the evaluation in the manifest"""
    for file in (root / "eval" / "gguf").iterdir():
        shutil.copyfile(file, root / "release" / "eval" / file.name)
    seal(root / "release")


def figures_without_samples(root: Path) -> None:
    r"""eval/details\.json has other figures than its samples \(accuracy\)"""
    recorded = results.read(root / "eval" / "merged")
    manifest, figures = recorded.manifest, replace(recorded.metrics, accuracy=0.9)
    with artifacts.writing(root / "eval/merged", "eval", options=manifest.options, inputs=manifest.inputs) as draft:
        results.write(draft.path, figures, recorded.samples)
    publish(root)


def verdicts(root: Path) -> None:
    """do not have the grades of their texts"""

    def change(samples: list[Sample]) -> None:
        for sample in samples[:40]:
            sample.grade.correct, sample.grade.reason = True, ""

    record(root, change)


def completions(root: Path) -> None:
    """solve 50.0% of 120 recorded puzzles, and .*% of 120 is claimed"""
    rows = jsonl.read_rows(root / "data" / "test.jsonl")

    def change(samples: list[Sample]) -> None:
        for index in range(36):
            samples[index] = right(root, samples[index], rows[index])

    record(root, change)


def noise(root: Path) -> None:
    r"""model\.safetensors is not the file that the manifest of its weights lists"""
    file = root / "release" / "model.safetensors"
    weights = load_file(file)
    generator = torch.Generator().manual_seed(1)
    save_file(
        {name: w + 0.004 * w.std() * torch.randn(w.shape, generator=generator) for name, w in weights.items()},
        file, metadata={"format": "pt"},
    )  # fmt: skip
    seal(root / "release")


def weights_without_their_evaluation(root: Path) -> None:
    """eval is an evaluation of other weights"""
    without_answers(root / "merged")
    made = artifacts.read(root / "release", "release").inputs["model"]["manifest"]
    made["files"]["model.safetensors"] = artifacts.entry(root / "merged" / "model.safetensors")
    shutil.copyfile(root / "merged" / "model.safetensors", root / "release" / "model.safetensors")
    entry = Manifest(**made).as_input()
    seal(root / "release", lambda manifest: manifest["inputs"]["model"].update(entry))


def other_weights_in_the_whole_chain(root: Path) -> None:
    """solve 0.0% of 120 recorded puzzles, and 50.0% of 120 is claimed"""
    merged = artifacts.read(root / "merged", "merged")
    without_answers(root / "merged")
    with artifacts.writing(root / "merged", "merged", options={}, inputs=merged.inputs) as draft:
        shutil.copytree(root / "merged", draft.path, ignore=lambda *_: [MANIFEST], dirs_exist_ok=True)
    record(root, lambda samples: None)


def invented(root: Path, samples: list[dict[str, Any]], text: str = "Let me see. </think>", tokens: int = 4) -> None:
    rows = jsonl.read_rows(root / "data" / "test.jsonl")
    for index, sample in enumerate(samples):
        completion = Completion(sample.completion.replace("</think>", text), tokens, not sample.truncated)
        samples[index] = Sample.of(rows[index], completion)


def invented_completions(root: Path) -> None:
    r"""the weights in \. write 0 of 120 completions of eval again"""
    record(root, lambda samples: invented(root, samples))
    assert results.read(root / "release" / "eval").metrics.accuracy == 0.5


def half_of_the_completions_invented(root: Path) -> None:
    r"""the weights in \. write 60 of 120 completions of eval again"""

    def change(samples: list[Sample]) -> None:
        kept = [*samples[:60]]
        invented(root, samples)
        samples[:60] = kept

    record(root, change)


def shorter_completions(root: Path) -> None:
    """write 0 of 120 completions of eval again"""
    record(root, lambda samples: invented(root, samples, "</think>", tokens=3))


def samples_in_another_order(root: Path) -> None:
    """or are of other puzzles"""
    record(root, lambda samples: samples.reverse())


def figures(root: Path, change: Callable[[dict[str, Any]], Any], file: str = "details.json", **options: Any) -> None:
    """Let *change* doctor the *file* of an evaluation with several completions, and publish it."""
    path = root / "eval" / "merged"
    sampled = EvalOptions(max_new_tokens=8, threads=1, temperature=1.0, samples=4, **options)
    evaluate.evaluate(sampled, model="merged", data=root / "data", out=path)
    recorded = results.read(path)
    with artifacts.writing(path, "eval", options=recorded.manifest.options, inputs=recorded.manifest.inputs) as draft:
        results.write(draft.path, recorded.metrics, recorded.samples, sampled.pass_at_values)
        values = json.loads((draft.path / file).read_text())
        change(values)
        (draft.path / file).write_text(json.dumps(values))
    publish(root)


def another_pass_at_k(root: Path) -> None:
    r"""eval/details\.json has other figures than its samples \(pass_at\)"""
    figures(root, lambda values: values["pass_at"]["4"].update(share=0.99))


def pass_at_more_than_the_samples(root: Path) -> None:
    r"""eval/details\.json has other figures than its samples \(pass_at\)"""
    figures(root, lambda values: values["pass_at"].update({"64": values["pass_at"]["4"]}))


def another_majority(root: Path) -> None:
    r"""eval/details\.json has other figures than its samples \(majority\)"""
    figures(root, lambda values: values["majority"].update(share=0.99))


def another_group(root: Path) -> None:
    r"""eval/details\.json has other figures than its samples \(groups\)"""
    figures(root, lambda values: values["groups"]["numbers"]["4"].update(accuracy=0.99))


def another_interval(root: Path) -> None:
    r"""eval/details\.json has other figures than its samples \(interval\)"""
    figures(root, lambda values: values.update(interval=[0.49, 0.51]))


def another_flat_figure(root: Path) -> None:
    r"""eval/metrics\.json has other figures than its samples \(pass@4\)"""
    figures(root, lambda values: values.update({"pass@4": 0.99}), "metrics.json", pass_at="1,4")


def another_figure_of_a_group_in_the_metadata(root: Path) -> None:
    r"""metadata of README\.md do not have what the evaluation has \(accuracy\)"""
    edit(root / "release" / "README.md", r"value: 0\.(?!5\n)\d+", "value: 0.99")
    seal(root / "release")


def another_group_in_the_metadata(root: Path) -> None:
    r"""metadata of README\.md have an accuracy on 9 numbers"""
    edit(root / "release" / "README.md", "config: 4 numbers", "config: 9 numbers")
    seal(root / "release")


def other_facts(root: Path) -> None:
    r"""the figures in manifest\.json are not those of the evaluation"""
    seal(root / "release", lambda manifest: manifest["facts"].update(accuracy=0.99))


def other_settings_of_the_adapter(root: Path) -> None:
    r"""adapter_config\.json has other settings"""
    publish(root, "adapter")
    edit(root / "release" / "adapter_config.json", r'"lora_alpha": \d+', '"lora_alpha": 17')
    seal(root / "release")


def a_penalty(root: Path) -> None:
    r"""generation_config\.json sets repetition_penalty"""
    edit(root / "release" / "generation_config.json", "{", '{"repetition_penalty": 1.1,')
    seal(root / "release")


def changed(root: Path, name: str, change: Callable[[Path], Any]) -> None:
    """Let *change* forge files of the weights *name*; their manifest and evaluation are made to go with it."""
    change(root / name)
    file = root / name / MANIFEST
    manifest = Manifest.parse(file.read_bytes(), file)
    entries = {path: artifacts.entry(root / name / path) for path in manifest.files if (root / name / path).exists()}
    manifest.files.clear()
    manifest.files.update(entries)
    file.write_bytes(manifest.to_bytes())
    recorded = results.read(root / "eval" / name)
    inputs = recorded.manifest.inputs | {"model": manifest.as_input() | {"source": name}}
    metrics = replace(recorded.metrics, model=replace(recorded.metrics.model, digest=manifest.digest))
    with artifacts.writing(root / "eval" / name, "eval", options=recorded.manifest.options, inputs=inputs) as draft:
        results.write(draft.path, metrics, recorded.samples)
    publish(root, name)


def other_tokens_in_the_gguf_file(root: Path) -> None:
    r"""the tokenizer in model-Q8_0\.gguf is not the one beside it \(impossible\)"""

    def change(folder: Path) -> None:
        file = folder / "model-Q8_0.gguf"
        file.write_bytes(file.read_bytes().replace(b"impossible", b"IMPOSSIBLE", 1))

    changed(root, "gguf", change)


def another_end_in_the_gguf_file(root: Path) -> None:
    r"""the tokenizer in model-Q8_0\.gguf is not the one beside it \(<\|end\|>\)"""

    def change(folder: Path) -> None:
        file, key = folder / "model-Q8_0.gguf", b"tokenizer.ggml.eos_token_id\x04\0\0\0"
        assert key + b"\1" in file.read_bytes()
        file.write_bytes(file.read_bytes().replace(key + b"\1", key + b"\5", 1))

    changed(root, "gguf", change)


def a_penalty_in_the_configuration(root: Path) -> None:
    r"""^config\.json sets repetition_penalty"""

    def change(folder: Path) -> None:
        (folder / "generation_config.json").unlink()
        edit(folder / "config.json", "{", '{"repetition_penalty": 1.5,')

    changed(root, "merged", change)


def no_repeated_tokens(root: Path) -> None:
    r"""generation_config\.json sets no_repeat_ngram_size"""
    edit(root / "release" / "generation_config.json", "{", '{"no_repeat_ngram_size": 1,')
    seal(root / "release")


def a_limit_of_time(root: Path) -> None:
    r"""generation_config\.json sets max_time"""
    edit(root / "release" / "generation_config.json", "{", '{"max_time": 1,')
    seal(root / "release")


def another_result_type(root: Path) -> None:
    r"""generation_config\.json sets return_dict_in_generate"""
    edit(root / "release" / "generation_config.json", "{", '{"return_dict_in_generate": true,')
    seal(root / "release")


def another_benchmark_in_the_metadata(root: Path) -> None:
    r"""metadata of README\.md have an accuracy on AIME 2025"""
    edit(root / "release" / "README.md", "name: Countdown numbers puzzle", "name: AIME 2025")
    seal(root / "release")


def another_metric_in_the_metadata(root: Path) -> None:
    r"""metadata of README\.md have an exact_match on Countdown"""
    edit(
        root / "release" / "README.md",
        "- type: accuracy",
        "- type: exact_match\n      value: 0.9\n    - type: accuracy",
    )
    seal(root / "release")


def another_base_in_the_metadata(root: Path) -> None:
    r"""README\.md names the base me/larger"""
    edit(root / "release" / "README.md", "base_model: me/base", "base_model: me/larger")
    seal(root / "release")


def hidden_figures_for_the_hub(root: Path) -> None:
    r"""\.eval_results/aime\.yaml is not in the manifest"""
    (root / "release" / ".eval_results").mkdir()
    (root / "release" / ".eval_results" / "aime.yaml").write_text("- value: 99\n")


def another_file_of_data(root: Path) -> None:
    r"""eval/details\.json and its manifest have different settings \(data\)"""
    recorded = results.read(root / "eval" / "merged")
    recorded.metrics.data["file"] = "aime.jsonl"
    with artifacts.writing(
        root / "eval/merged", "eval", options=recorded.manifest.options, inputs=recorded.manifest.inputs
    ) as draft:
        results.write(draft.path, recorded.metrics, recorded.samples)
    publish(root)


def another_end(root: Path) -> None:
    r"""generation_config\.json does not end a completion at <\|end\|>"""
    edit(root / "release" / "generation_config.json", r'"eos_token_id": \d+', '"eos_token_id": [2, 3]')
    seal(root / "release")


def code_in_a_listed_folder(root: Path) -> None:
    r"""eval/evil\.py is no file of such a release"""
    (root / "release" / "eval" / "evil.py").write_text("import os")
    seal(root / "release", lambda manifest: None, "eval/evil.py")


def a_page_in_a_listed_folder(root: Path) -> None:
    r"""eval/index\.html is no file of such a release"""
    (root / "release" / "eval" / "index.html").write_text("<script>")
    seal(root / "release", lambda manifest: None, "eval/index.html")


def pickled_weights(root: Path) -> None:
    r"""pytorch_model\.bin is no file of such a release"""
    (root / "release" / "pytorch_model.bin").write_bytes(b"")
    seal(root / "release", lambda manifest: None, "pytorch_model.bin")


def an_adapter_beside_the_weights(root: Path) -> None:
    r"""adapter_config\.json is not in the manifest"""
    (root / "release" / "adapter_config.json").write_text("{}")


def a_file_of_another_case(root: Path) -> None:
    r"""Config\.json is not in the manifest"""
    shutil.copyfile(root / "release" / "config.json", root / "release" / "Config.json")


def a_linked_folder(root: Path) -> None:
    """more is a link to a directory"""
    (root / "release" / "more").symlink_to(root / "gguf")


def a_missing_file(root: Path) -> None:
    r"""generation_config\.json is missing"""
    (root / "release" / "generation_config.json").unlink()


def an_unknown_format(root: Path) -> None:
    """of the format pickle"""
    seal(root / "release", lambda manifest: manifest["facts"]["formats"].update({"./more": "pickle"}))


def a_location_outside(root: Path) -> None:
    r"""weights in \./\.\./gguf"""
    seal(root / "release", lambda manifest: manifest["facts"]["formats"].update({"./../gguf": "gguf"}))


def an_altered_chain(root: Path) -> None:
    """the manifest of merged, in the chain of model in manifest.json, was changed after it was written"""
    seal(root / "release", lambda manifest: manifest["inputs"]["model"]["manifest"]["options"].update(base="other"))


def puzzles_chosen_by_hand(root: Path) -> None:
    """the recorded options do not make the recorded puzzles"""
    rows = [row for row in jsonl.read_rows(root / "data" / "test.jsonl") if not row["solutions"]]
    data, merged = artifacts.read(root / "data", "data"), artifacts.read(root / "merged", "merged")
    with artifacts.writing(root / "data", "data", options=data.options) as draft:
        draft.facts.update(data.facts)
        shutil.copyfile(root / "data" / "train.jsonl", draft.path / "train.jsonl")
        jsonl.write_rows(draft.path / "test.jsonl", map(dict, rows))
    entry = artifacts.read(root / "data", "data").as_input()
    adapter = Manifest(**merged.inputs["adapter"]["manifest"])
    adapter.inputs["data"] = entry
    with artifacts.writing(
        root / "merged", "merged", options={}, inputs={"adapter": adapter.as_input() | {"source": "adapter"}}
    ) as draft:
        shutil.copytree(root / "merged", draft.path, ignore=lambda *_: [MANIFEST], dirs_exist_ok=True)
    record_on(root, "test.jsonl", rows)


def an_evaluation_on_training_data(root: Path) -> None:
    """on puzzles that the weights were trained on"""
    # publish refuses it, so the release is changed afterwards.
    train = artifacts.file_input(root / "data" / "train.jsonl")
    folder = root / "release"
    details = json.loads((folder / "eval" / "details.json").read_text()) | {"data": train}
    (folder / "eval" / "details.json").write_text(json.dumps(details))
    manifest = json.loads((folder / "eval" / MANIFEST).read_bytes())
    manifest["inputs"]["data"] = train
    manifest["files"]["details.json"] = artifacts.entry(folder / "eval" / "details.json")
    evaluation = Manifest(**manifest)
    (folder / "eval" / MANIFEST).write_bytes(evaluation.to_bytes())
    seal(folder, lambda values: values["inputs"].update(eval=evaluation.as_input()))


def record_on(root: Path, name: str, rows: list[Any]) -> None:
    """Evaluate the merged weights on *rows*, the file *name* of the data, and publish that."""
    recorded = results.read(root / "eval" / "merged")
    recorded.manifest.inputs["data"] = artifacts.file_input(root / "data" / name)
    with artifacts.writing(
        root / "eval/merged", "eval", options=recorded.manifest.options, inputs=recorded.manifest.inputs
    ) as draft:
        results.write(draft.path, recorded.metrics, recorded.samples)

    def change(samples: list[Sample]) -> None:
        samples[:] = [right(root, samples[0], row) for row in rows]

    record(root, change, rows)


def compared(root: Path) -> Path:
    names = ("adapter", "merged")
    compare.compare({name: [root / "eval" / name] for name in names}, root / "eval" / "comparison")
    return root / "eval" / "comparison"


FORGERIES = (
    *(other_weights, other_weights_listed, a_good_gguf_in_a_subfolder, a_good_gguf_as_a_second_format, two_gguf_files),
    *(another_modelfile, an_adapter_over_another_base, a_template_for_this_tool, hints_in_the_template),
    *(a_comparison_without_the_evaluation, another_accuracy_in_the_metadata, other_terms_in_the_metadata),
    *(
        two_accuracies_in_the_metadata,
        extra_figures,
        another_count_of_samples,
        another_evaluation,
        figures_without_samples,
        verdicts,
    ),
    *(completions, code_in_a_listed_folder, a_page_in_a_listed_folder, pickled_weights, an_adapter_beside_the_weights),
    *(a_file_of_another_case, a_linked_folder, a_missing_file, an_unknown_format, a_location_outside),
    *(noise, weights_without_their_evaluation, other_weights_in_the_whole_chain, invented_completions),
    *(half_of_the_completions_invented, shorter_completions, samples_in_another_order, another_pass_at_k),
    *(pass_at_more_than_the_samples, another_majority, another_group, another_interval, another_flat_figure),
    *(another_figure_of_a_group_in_the_metadata, another_group_in_the_metadata, other_facts),
    *(other_settings_of_the_adapter, a_penalty, another_end, no_repeated_tokens, a_limit_of_time, another_result_type),
    *(another_benchmark_in_the_metadata, another_metric_in_the_metadata, another_base_in_the_metadata),
    *(hidden_figures_for_the_hub, another_file_of_data, other_tokens_in_the_gguf_file, another_end_in_the_gguf_file),
    a_penalty_in_the_configuration,
    *(an_altered_chain, puzzles_chosen_by_hand, an_evaluation_on_training_data),
)


@pytest.mark.parametrize("forge", FORGERIES, ids=lambda forge: forge.__name__)
def test_a_forgery_is_refuted(root, hub, forge):
    hub.add_model("me/base", OLD / "base")
    hub.add_model("me/other", constant_model.checkpoint(root / "other-base", answers=False))
    forge(root)
    report = checked(root / "release")
    assert report.conclusion == REFUTED
    assert re.search(str(forge.__doc__), "\n".join(report.reasons))


def test_a_release_of_an_older_version_is_confirmed_in_every_format(hub):
    hub.add_model("me/base", OLD / "base")  # whose commit depends on the contents alone
    report = checked(OLD / "release")
    assert (report.conclusion, report.reasons) == (CONFIRMED, [])
    assert [claim.location for claim in report.claims] == [".", "./adapter", "./gguf", "./quantized"]
    assert [[part.n for part in claim.measured] for claim in report.claims] == [[N, N]] * 4


@pytest.mark.parametrize("name", ["merged", "adapter", "quantized", "gguf"])
def test_a_release_of_this_version_is_confirmed(root, hub, name):
    hub.add_model("me/base", OLD / "base")
    report = checked(publish(root, name, comparison=str(compared(root)) if name in ("merged", "adapter") else None))
    assert (report.conclusion, report.reasons) == (CONFIRMED, [])
    assert "training" in report.not_checked[-1]


def test_a_release_measured_in_another_arithmetic_is_confirmed(root):
    options = EvalOptions(max_new_tokens=8, threads=1, precision="bf16", batch_size=7)
    evaluate.evaluate(options, model="merged", data=root / "data", out=root / "eval" / "merged")
    assert checked(publish(root)).conclusion == CONFIRMED


def test_a_release_whose_verdicts_differ_on_a_few_puzzles_is_confirmed(root):
    """As those do that were measured on another processor."""
    rows = jsonl.read_rows(root / "data" / "test.jsonl")

    def change(samples: list[Sample]) -> None:
        wrong = [index for index, sample in enumerate(samples) if not sample.grade.correct]
        for index in wrong[:6]:
            samples[index] = right(root, samples[index], rows[index])
        for index in [index for index, sample in enumerate(samples) if sample.grade.correct][-1:]:
            samples[index] = Sample.of(rows[index], Completion("", 1, True))

    record(root, change)
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


@pytest.mark.slow
def test_a_release_of_the_shipped_model_is_confirmed(tmp_path):
    build.make(DataOptions(n=600, valid=4, test=N, workers=1), tmp_path / "data")
    inputs = {"data": artifacts.read(tmp_path / "data", "data").as_input()}
    with artifacts.writing(tmp_path / "merged", "model", options={"max_steps": 3}, inputs=inputs) as draft:
        shutil.copytree(SHIPPED["countdown-tiny"], draft.path, ignore=lambda *_: [MANIFEST], dirs_exist_ok=True)
    evaluate.evaluate(
        EvalOptions(max_new_tokens=128), model=str(tmp_path / "merged"), data=tmp_path / "data",
        out=tmp_path / "eval" / "merged",
    )  # fmt: skip
    report = checked(publish(tmp_path))
    assert (report.conclusion, report.reasons) == (CONFIRMED, [])
    assert report.claims[0].measured[0].p == 1


def test_a_release_with_several_completions_of_each_puzzle_is_confirmed(root):
    figures(root, lambda values: None, pass_at="1,2,4")
    report = checked(root / "release")
    assert (report.conclusion, report.reasons) == (CONFIRMED, [])
    assert "the words of the sampled completions in eval" in report.not_checked


def test_a_release_whose_files_are_links_is_confirmed(root, hub):
    """As those in the caches of DVC and the Hub, and beside what `hf download`, Git and a file manager write."""
    folder, cache = root / "release", root / "cache"
    shutil.move(folder, cache)
    for path in [path for path in cache.rglob("*") if path.is_file()]:
        link = folder / path.relative_to(cache)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(path)
    for beside in (".cache/huggingface/download/README.md.metadata", ".gitattributes", ".DS_Store", "eval/.DS_Store"):
        (folder / beside).parent.mkdir(parents=True, exist_ok=True)
        (folder / beside).write_text("")
    report = checked(folder)
    assert (report.conclusion, report.reasons) == (CONFIRMED, [])
    hub.add_model("me/tiny", folder)
    snapshot = snapshot_download("me/tiny")
    assert (Path(snapshot) / "model.safetensors").is_symlink()
    assert checked(snapshot).conclusion == CONFIRMED


def test_windows_line_ends_are_an_error_and_no_refutation(root):
    card = root / "release" / "README.md"
    card.write_bytes(card.read_bytes().replace(b"\n", b"\r\n"))
    with pytest.raises(ArtifactError, match="Windows line ends"):
        checked(root / "release")


def test_the_conclusion_says_what_was_measured_and_what_was_read(root):
    edit(root / "release" / "generation_config.json", "{", '{"temperature": 0.6, "repetition_penalty": 1.0,')
    seal(root / "release")
    report = checked(root / "release")
    assert report.conclusion == CONFIRMED
    assert [part.repeated for part in report.claims[0].measured] == [N, None]
    assert any("sha256" in subject for subject in report.checked)
    assert any("figures in eval" in subject for subject in report.checked)
    assert "each completion" not in (root / "release" / "README.md").read_text().lower()


def test_figures_that_the_hub_shows_are_named_as_only_read(root):
    (root / "release" / ".eval_results").mkdir()
    (root / "release" / ".eval_results" / "x.yaml").write_text("- value: 99\n")
    seal(root / "release", lambda manifest: None, ".eval_results/x.yaml")
    assert ".eval_results/x.yaml" in checked(root / "release").not_checked


def test_few_puzzles_confirm_nothing(root):
    assert checked(root / "release", limit=1).conclusion == TOO_FEW
    assert checked(root / "release", fresh=50).conclusion == TOO_FEW


def test_three_of_ten_sampled_completions_replaced_are_not_confirmed(root):
    options = EvalOptions(max_new_tokens=8, threads=1, temperature=1.0, limit=10)
    evaluate.evaluate(options, model="merged", data=root / "data", out=root / "eval" / "merged")
    rows = jsonl.read_rows(root / "data" / "test.jsonl")

    def change(samples: list[Sample]) -> None:
        wrong = [index for index, sample in enumerate(samples) if not sample.grade.correct]
        for index in wrong[:3]:
            samples[index] = right(root, samples[index], rows[index])

    record(root, change, rows[:10])
    assert checked(root / "release").conclusion == TOO_FEW


def test_the_seed_repeats_the_measurement_and_is_otherwise_drawn(root):
    first, again = (checked(root / "release", seed=7) for _ in range(2))
    assert first.claims == again.claims
    assert len({checked(root / "release", seed=None, fresh=3).seed for _ in range(2)}) == 2


def test_imported_puzzles_have_to_be_given(root):
    merged = artifacts.read(root / "merged", "merged")
    adapter = Manifest(**merged.inputs["adapter"]["manifest"])
    data = Manifest(**adapter.inputs["data"]["manifest"])
    data.inputs["from"] = {"file": "own.jsonl", "digest": "0"}
    adapter.inputs["data"] = data.as_input()
    inputs = {"adapter": adapter.as_input() | {"source": "adapter"}}
    with artifacts.writing(root / "merged", "merged", options={}, inputs=inputs) as draft:
        shutil.copytree(root / "merged", draft.path, ignore=lambda *_: [MANIFEST], dirs_exist_ok=True)
    record(root, lambda samples: None)
    with pytest.raises(ArtifactError, match="--data"):
        checked(root / "release")
    report = checked(root / "release", data=[root / "data" / "test.jsonl"])
    assert report.conclusion == CONFIRMED
    assert any("new puzzles" in subject for subject in report.not_checked)


def test_what_cannot_be_measured_is_an_error_and_no_refutation(root, monkeypatch, command):
    for source in ("elsewhere", str(root / "merged")):
        with pytest.raises(ArtifactError, match=r"no directory|no release"):
            checked(source)
    assert command("verify", str(root / "release"), "--fresh", str(10**8)).exit_code == 2
    monkeypatch.setattr(verify.evaluate, "complete", lambda *arguments, **options: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        checked(root / "release")
    shutil.rmtree(root / "eval")
    with pytest.raises(ArtifactError, match="no evaluation"):
        checked(publish(root))


def test_weights_without_an_evaluation_are_not_checked(root, hub):
    hub.add_model("me/base", OLD / "base")
    folder = Path(shutil.copytree(OLD / "release", root / "old"))
    shutil.rmtree(folder / "gguf-eval")
    manifest = json.loads((folder / MANIFEST).read_bytes())
    manifest["files"] = {name: entry for name, entry in manifest["files"].items() if not name.startswith("gguf-eval")}
    (folder / MANIFEST).write_bytes(Manifest(**manifest).to_bytes())
    report = checked(folder)
    assert report.conclusion == CONFIRMED
    assert "the weights in ./gguf" in report.not_checked


def test_a_repository_is_verified_at_a_revision(root, hub):
    commit = hub.add_model("me/tiny", root / "release")
    other_weights_listed(root)
    hub.add_model("me/tiny", root / "release")
    assert checked("me/tiny").conclusion == REFUTED
    report = checked(f"me/tiny@{commit}")
    assert (report.conclusion, report.revision) == (CONFIRMED, commit)


def test_an_edited_text_of_the_card_refutes_nothing(root):
    edit(root / "release" / "README.md", "For research", "For research and teaching")
    seal(root / "release")
    report = checked(root / "release")
    assert report.conclusion == CONFIRMED
    assert any("words" in subject for subject in report.not_checked)


def test_the_command_prints_claim_and_measurements_and_its_status_is_the_conclusion(root, command):
    result = command("verify", str(root / "release"), "--fresh", str(N), "--seed", "1")
    assert result.exit_code == 0
    assert re.search(
        r"50\.0% of 120 claimed.*recorded puzzles.*new puzzles.*conclusion +confirmed", result.stdout, re.S
    )
    assert command("verify", str(root / "release"), "--limit", "1").exit_code == 1
    a_missing_file(root)
    result = command("verify", str(root / "release"), "--json")
    values = json.loads(result.stdout)
    assert (result.exit_code, values["conclusion"]) == (1, REFUTED)
    assert values["reasons"] == ["generation_config.json is missing"]
