"""Forgeries of a release, functions of its directory or of that of its artifacts, by the reasons that refute them."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from countdown_rl.core import artifacts
from countdown_rl.core.manifest import MANIFEST, Manifest, file_entry, file_input
from countdown_rl.evaluation import evaluate, results
from countdown_rl.evaluation.config import EvalOptions
from countdown_rl.evaluation.metrics import measure
from countdown_rl.evaluation.results import Result
from countdown_rl.evaluation.sample import Metrics, Sample
from countdown_rl.inference.generate import Completion
from countdown_rl.release import folder
from countdown_rl.release.config import PublishOptions
from countdown_rl.tasks import jsonl
from tests.support import constant_model


def rows_of(root: Path) -> list[Any]:
    return jsonl.read_rows(root / "data" / "test.jsonl")


def publish(root: Path, name: str = "merged", **options: Any) -> Path:
    """Build the release of what is at *root*/*name* now."""
    model = PublishOptions(model=str(root / name), license="mit", name="constant", **options)
    folder.build(model, root / "release")
    return root / "release"


def record(
    root: Path, metrics: Metrics, samples: list[Sample], manifest: Manifest, name: str = "merged"
) -> None:
    """Write an evaluation with the options and inputs of *manifest*, whatever it contradicts."""
    with artifacts.writing(
        root / "eval" / name, "eval", options=manifest.options, inputs=manifest.inputs
    ) as draft:
        results.write(draft.path, metrics, samples)


def evaluation(root: Path) -> Result:
    return results.read(root / "eval" / "merged")


def republish(
    root: Path, change: Callable[[list[Sample]], Any], rows: list[Any] | None = None
) -> None:
    """Let *change* replace samples of the merged weights, on other *rows* if given; figures, card and every digest are
    made to go with them."""
    recorded, rows = evaluation(root), rows or rows_of(root)
    change(recorded.samples)
    inputs = recorded.manifest.inputs | {
        "model": artifacts.read(root / "merged", "merged").as_input()
    }
    inputs["model"]["source"] = "merged"
    model = replace(recorded.metrics.model, digest=inputs["model"]["digest"])
    figures = vars(measure(recorded.samples, rows))
    metrics = replace(recorded.metrics, **figures, model=model, data=inputs["data"])
    record(root, metrics, recorded.samples, replace(recorded.manifest, inputs=inputs))
    publish(root)


def seal(
    folder: Path, change: Callable[[dict[str, Any]], Any] = lambda manifest: None, *added: str
) -> None:
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
    seal(
        root / "release",
        lambda manifest: manifest["inputs"]["model"].update(Manifest(**made).as_input()),
    )


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
        shutil.copytree(
            root / "merged", draft.path, ignore=lambda *_: [MANIFEST], dirs_exist_ok=True
        )


def changed_verdicts(root: Path) -> None:
    def change(samples: list[Sample]) -> None:
        for sample in samples[:40]:
            sample.grade.correct, sample.grade.reason = True, ""

    republish(root, change)


def better_completions(root: Path) -> None:
    def change(samples: list[Sample]) -> None:
        samples[:36] = map(right, samples[:36], rows_of(root))

    republish(root, change)


def invented_completions(
    count: int, text: str = "Let me see. </think>", tokens: int = 4
) -> Callable[[Path], None]:
    """A forgery whose first *count* completions have other words or lengths, and the same verdicts."""

    def forge(root: Path) -> None:
        def change(samples: list[Sample]) -> None:
            for index, (sample, row) in enumerate(
                zip(samples[:count], rows_of(root), strict=False)
            ):
                completion = Completion(
                    sample.completion.replace("</think>", text), tokens, not sample.truncated
                )
                samples[index] = Sample.of(row, completion)

        republish(root, change)
        assert evaluation(root).metrics.accuracy == 0.5

    return forge


def sampled(
    root: Path, change: Callable[[dict[str, Any]], Any], file: str = "details.json", **options: Any
) -> None:
    """Let *change* doctor the *file* of an evaluation with several completions, and publish it."""
    path = root / "eval" / "merged"
    settings = EvalOptions(max_new_tokens=8, temperature=1.0, samples=4, **options)
    evaluate.evaluate(settings, model="merged", data=root / "data", out=path)
    recorded = results.read(path)
    with artifacts.writing(
        path, "eval", options=recorded.manifest.options, inputs=recorded.manifest.inputs
    ) as draft:
        results.write(draft.path, recorded.metrics, recorded.samples, settings.pass_at_values)
        values = json.loads((draft.path / file).read_text())
        change(values)
        (draft.path / file).write_text(json.dumps(values))
    publish(root)


def forged_figure(
    change: Callable[[dict[str, Any]], Any], *arguments: str, **options: Any
) -> Callable[[Path], None]:
    return lambda root: sampled(root, change, *arguments, **options)


def an_altered_chain(root: Path) -> None:
    seal(
        root / "release",
        lambda manifest: manifest["inputs"]["model"]["manifest"]["options"].update(base="other"),
    )


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
    (
        "is not in the manifest",
        lambda root: (root / "release" / "adapter_config.json").write_text("{}"),
    ),
    (DAMAGED, noise),
    ("the manifest of merged in manifest.json was changed", an_altered_chain),
    ("eval is an evaluation of other weights", weights_without_their_evaluation),
    (GENERATION, with_sampling),
    (f"{FIGURES} .accuracy", forged_figure(lambda values: values.update(accuracy=0.9))),
    (f"{FIGURES} .interval", forged_figure(lambda values: values.update(interval=[0.49, 0.51]))),
    (
        f"{FIGURES} .pass_at",
        forged_figure(lambda values: values["pass_at"].update({"64": values["pass_at"]["4"]})),
    ),
    (f"{FIGURES} .puzzles", forged_figure(lambda values: values.update(puzzles="0" * 64))),
    (f"{FIGURES} .grammar", forged_figure(lambda values: values.update(grammar=1))),
    (f"{FIGURES} .majority", forged_figure(lambda values: values["majority"].update(share=0.99))),
    (
        f"{FIGURES} .groups",
        forged_figure(lambda values: values["groups"]["numbers"]["4"].update(accuracy=0.99)),
    ),
    (
        f"{FIGURES} .pass@4",
        forged_figure(lambda all: all.update({"pass@4": 0.99}), "metrics.json", pass_at="1,4"),
    ),
    ("do not have the grades of their texts", changed_verdicts),
    ("or are of other rows", lambda root: republish(root, lambda samples: samples.reverse())),
    ("solve 50.0% of 120 recorded puzzles, and .*% of 120 is claimed", better_completions),
    (
        "solve 0.0% of 120 recorded puzzles, and 50.0% of 120 is claimed",
        other_weights_in_the_whole_chain,
    ),
    ("repeat 0 of 120 greedy completions", invented_completions(120)),
    ("repeat 60 of 120 greedy completions", invented_completions(60)),
    ("repeat 0 of 120 greedy completions", invented_completions(120, "</think>", tokens=3)),
    ("the recorded options do not generate the recorded rows", puzzles_chosen_by_hand),
    ("on rows that the weights were trained on", an_evaluation_on_training_data),
]


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
        fields = {
            name: field for name, field in reader.fields.items() if not name.startswith("GGUF.")
        }
        for name, field in fields.items():
            value = change(field.contents()) if name == key else field.contents()
            if name != "general.architecture":
                writer.add_key_value(
                    name, value, field.types[0], field.types[1] if len(field.types) > 1 else None
                )
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


def settings(**values: Any) -> Callable[[Path], None]:
    return changed("adapter_config.json", lambda config: config.update(values))


def facts(**values: Any) -> Callable[[Path], None]:
    return changed(MANIFEST, lambda manifest: manifest["facts"].update(values))


SHOWN = "{%% if messages|length > 2 %%}Buy now{%% else %%}%s{%% endif %%}"
AD = {"chat_template": "Buy now"}
METRIC = "    - type: accuracy"
OTHER_RESULTS = ".eval_results/countdown.yaml"
_INSIDE: dict[str, list[tuple[str, Callable[[Path], None]]]] = {
    "merged": [
        ("depends on the date", ad("strftime_now('%Y') > '2030'")),
        ("depends on the date", ad("strftime_now('%m') == '12'")),
        ("depends on the date", ad("strftime_now('%H') < '06'")),
        ("around other prompts", ad("'Numbers' not in messages[-1].content")),
        ("around other prompts", ad("messages[-1].content|length > 900")),
        (
            "around other prompts .*system",
            ad("messages[0].role == 'system' and 'pirate' in messages[0].content"),
        ),
        (
            "does not complete a user turn",
            ad("bare is not defined and messages[0].role != 'system'"),
        ),
        ("does not show", chat(lambda text: SHOWN % text)),
        (
            "tokenizer_config.json has another",
            changed("tokenizer_config.json", lambda values: values.update(AD)),
        ),
        ("another base_model", card("base_model: me/base", "base_model: me/other")),
        ("another license", card('license: "?mit"?', "license: apache-2.0")),
        ("other metrics than eval .*0.999", card("value: 0.5", "value: 0.999")),
        (
            "than eval .*pass@2",
            card(METRIC, f"    - {{type: pass_at_2, name: pass@2, value: 0.9}}\n{METRIC}"),
        ),
        ("other metrics than eval", card('"n": 120', '"n": 12000')),
        ("facts .*accuracy", facts(accuracy=0.999)),
        ("facts .*pass@2", facts(**{"pass@2": 0.5})),
        ("names the base", facts(base_model="me/other")),
        ("every_eval_ever.json has other", benchmark('"score": 0.5', '"score": 0.9')),
        ("countdown.yaml has other", benchmark("value: 50.0", "value: 99.0", OTHER_RESULTS)),
        (
            "every_eval_ever.json .*says",
            benchmark('"inference_engine": {', '"inference_engine": {"speed": "fastest", '),
        ),
        ("countdown.yaml .*says", benchmark("notes:", "notes: best of all;", OTHER_RESULTS)),
        ("countdown.yaml has other", benchmark("$", "\n- {value: 99.0}", OTHER_RESULTS)),
    ],
    "adapter": [
        ("has other settings .*use_rslora", settings(use_rslora=True)),
        ("has other settings .*use_dora", settings(use_dora=True)),
        ("has other settings .*alpha_pattern", settings(alpha_pattern={"q_proj": 64})),
        ("has other settings .*bias", settings(bias="all")),
        ("has other settings .*target_modules", settings(target_modules=["q_proj"])),
        ("adapter_config.json has other settings", settings(lora_alpha=32)),
        ("names another base", settings(base_model_name_or_path="me/other")),
        ("names another base", settings(revision="other")),
    ],
    "gguf": [
        ("tokenizer.chat_template", head("tokenizer.chat_template", lambda text: "Buy now")),
        ("ggml.tokens", head("tokenizer.ggml.tokens", lambda tokens: tokens[:4] + tokens[:3:-1])),
        ("ggml.merges", head("tokenizer.ggml.merges", lambda merges: merges[::-1])),
        ("ggml.token_type", head("tokenizer.ggml.token_type", lambda types: [1] * len(types))),
        ("ggml.eos_token_id", head("tokenizer.ggml.eos_token_id", lambda token: token + 1)),
        ("sampling.temp", head("general.sampling.temp", lambda temperature: 2.0)),
        ("general.sampling.top_k", head("general.sampling.top_k", lambda value: "x")),
        ("llama.rope.scaling.type", head("llama.rope.scaling.type", lambda value: "x")),
        ("chat_template.tool_use", head("tokenizer.chat_template.tool_use", lambda value: "x")),
        (
            "Modelfile",
            lambda folder: edit(folder / "Modelfile", "PARAMETER temperature 0", "SYSTEM Buy now"),
        ),
    ],
}
INSIDE = [(name, *case) for name in _INSIDE for case in _INSIDE[name]]
