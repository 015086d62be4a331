"""Consistency of a release: what other programs read in it, compared with what ``verify`` measures.

Each function yields the faults that refute a release. :func:`unread` names what nothing here can check.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import product
from pathlib import Path
from typing import Any, NotRequired

from peft import LoraConfig
from typing_extensions import TypedDict

from countdown_rl.core import typed_json
from countdown_rl.core.errors import ArtifactError, InputError, first_line
from countdown_rl.core.manifest import MANIFEST, Manifest, initial_model, provenance_chain
from countdown_rl.core.packages import version
from countdown_rl.evaluation.results import Result, breakdowns
from countdown_rl.export import gguf
from countdown_rl.models import chat_template, load, lora, model_files
from countdown_rl.models.model_files import GENERATION, TOKENIZER
from countdown_rl.models.reference import ModelRef
from countdown_rl.release import model_card
from countdown_rl.release.model_card import ADAPTER_CONFIG, CARD, Weights
from countdown_rl.tasks import probe

#: Times of all months, hours and days of the week, in years to come.
_TIMES = [datetime(2025 + 4 * step, 1 + step % 12, 1 + step, step % 24) for step in range(25)]
_NAMES = sorted({time.strftime(part) for time in _TIMES for part in ("%B", "%b", "%A", "%a", "%p")})
#: A line that earlier versions wrote otherwise.
_SCHEMA = re.compile(r".*schema_version.*")
#: What a date is made of.
_DATE = re.compile(rf"\d+|\b({'|'.join(_NAMES)})\b")
#: Turns that no evaluation has.
_TURNS = (
    {"system": "Be brief.", "user": "Which town is this?", "assistant": "Ulm."},
    {
        "system": "You are a pirate.\nRhyme!",
        "user": "Write a poem. " * 300 + "Is it done?",
        "assistant": "No.",
    },
)
_ROLES = (
    ["user"],
    ["system", "user"],
    ["user", "assistant", "user"],
    ["system", "user", "assistant", "user"],
)
#: Settings of an adapter that its tensors or other checks decide.
_FREE = {"base_model_name_or_path", "inference_mode", "peft_version", "revision"}
#: Fields of a model card by the facts that they repeat, and the others of a release.
_FACTS = {"name": "model_name", "base_relation": "base_model_relation"}
_FACTS |= {
    name: name for name in ("base_model", "datasets", "license", "license_name", "license_link")
}
_FIELDS = {
    *_FACTS.values(),
    "language",
    "library_name",
    "pipeline_tag",
    "tags",
    "metrics",
    "model-index",
}
#: Files that the operating system, Git and the Hub's client write beside a release.
_BESIDE = re.compile(r"(.*/)?(\.cache/.*|\.git.*|\.DS_Store)")


def faults(weights: Weights, manifest: Manifest, recorded: Result) -> Iterator[str]:
    """Yield what contradicts the measured weights, the manifests, or the *recorded* evaluation."""
    tokenizer = load.load_tokenizer(ModelRef(str(weights.path), "directory", weights.loadable))
    conversations = probe.conversations(weights.entry, 16)
    try:
        yield from _template(weights.path, tokenizer, conversations)
    except InputError as error:
        yield str(error).replace(f"{weights.path}/", "")
    if weights.gguf and (names := gguf.differences(weights.loadable, tokenizer, conversations)):
        yield f"{weights.gguf} has other values than the tokenizer beside it or unknown ones ({', '.join(names)})"
    yield from _base(weights, manifest)
    yield from _claims(weights, manifest, recorded)


def _template(
    folder: Path, tokenizer: Any, conversations: Sequence[Sequence[dict[str, str]]]
) -> Iterator[str]:
    """Compare prompts of several contents and dates, and the copies of the chat template."""
    for name in ("tokenizer_config.json", "chat_template.json"):
        copy = (
            typed_json.read(folder / name).get("chat_template")
            if (folder / name).is_file()
            else None
        )
        if isinstance(copy, str) and copy.strip() != (tokenizer.chat_template or "").strip():
            yield f"{name} has another chat template"
    own = [
        {turn["role"]: turn["content"] for turn in turns} | {"assistant": "7."}
        for turns in conversations[:3]
    ]
    arguments: list[dict[str, Any]] = [
        chat_template.CHAT_ARGUMENTS,
        chat_template.TEMPLATE_ARGUMENTS,
        {},
    ]
    for roles, given in product(_ROLES, arguments):
        turns = [
            [{"role": role, "content": (_TURNS[0] | words)[role]} for role in roles]
            for words in (*own, *_TURNS)
        ]
        if len({_frame(tokenizer, each, given) for each in turns}) > 1:
            yield f"the chat template writes other text around other prompts ({', '.join(roles)})"
        clocks = [given | {"strftime_now": time.strftime} for time in _TIMES]
        if len({_frame(tokenizer, turns[0], each) for each in (given, *clocks)}) > 1:
            yield "the chat template depends on the date"
    if chat_template.MARK in (tokenizer.chat_template or ""):
        users = [[turn for turn in turns if turn["role"] == "user"] for turns in conversations]
        shown = [
            chat_template.render(tokenizer, turns, chat_template.CHAT_ARGUMENTS) for turns in users
        ]
        if shown != [chat_template.render(tokenizer, turns) for turns in conversations]:
            yield "the chat template does not complete a user turn to the prompt of training"


def _frame(tokenizer: Any, turns: Sequence[dict[str, str]], arguments: dict[str, Any]) -> str:
    """The prompt for *turns* without what they say, and with a mark for each part of a date."""
    text = chat_template.render(tokenizer, turns, arguments)
    for turn in sorted(turns, key=lambda turn: -len(turn["content"])):
        text = text.replace(turn["content"], f"<{turn['role']}>")
    return _DATE.sub("#", text)


def _base(weights: Weights, manifest: Manifest) -> Iterator[str]:
    """Compare the base that facts and adapter name with the chain, and the adapter's settings with its training."""
    chain, base = provenance_chain(weights.entry), manifest.facts.get("base_model")
    initial, named = initial_model(chain), manifest.options.get("base_model")
    if base != (named or (initial.name if initial.kind == "hub" else None)):
        yield f"{MANIFEST} names the base {base}, and its chain begins with {initial.name}"
    if weights.format.name != "adapter":
        return
    config = model_files.adapter_config(weights.path)
    if config.get("base_model_name_or_path") != base or (
        not named and config.get("revision") != initial.revision
    ):
        yield f"{ADAPTER_CONFIG} names another base than {MANIFEST} ({config.get('base_model_name_or_path')})"
    training: Any = next(link.options for link in chain if link.kind == "adapter")
    settings = {"r": "lora_r", "lora_alpha": "lora_alpha", "lora_dropout": "lora_dropout"}
    settings = {key: training.get(name, config.get(key)) for key, name in settings.items()}
    modules = sorted({module.rpartition(".")[2] for module in lora.adapted_modules(weights.path)})
    expected = (
        LoraConfig(**settings, target_modules=modules, task_type="CAUSAL_LM").to_dict()
        if training
        else config
    )
    expected |= {"target_modules": modules, "peft_type": "LORA"}
    found = config | {"target_modules": sorted(config.get("target_modules") or ())}
    names = [
        key
        for key in found
        if key not in _FREE and (found[key] or None) != (expected.get(key) or None)
    ]
    listed = weights.manifest.files.get(ADAPTER_CONFIG, {}).get("sha256")
    texts = [
        json.dumps(config | {"base_model_name_or_path": link.name}, indent=2, sort_keys=True)
        for link in chain
    ]
    written = {
        hashlib.sha256(f"{text}{end}".encode()).hexdigest() for text in texts for end in ("", "\n")
    }  # of old
    if not names and not named and listed not in written:
        names = ["sha256"]
    if names:
        yield f"{ADAPTER_CONFIG} has other settings than the training ({', '.join(sorted(names))})"


def _claims(weights: Weights, manifest: Manifest, recorded: Result) -> Iterator[str]:
    """Compare every metric outside of eval with it: in facts, in the card, and in the benchmark files."""
    facts, metrics = manifest.facts, recorded.metrics
    claimed = {"accuracy": metrics.accuracy, "n": metrics.n, "interval": [*metrics.interval]}
    claimed |= {"formats": {".": weights.format.name}}
    if names := [key for key in facts if key not in _FACTS and facts[key] != claimed.get(key)]:
        yield f"the facts of {MANIFEST} have other metrics than eval ({', '.join(names)})"
    card = _header(weights.path / CARD)
    for fact, field in _FACTS.items():
        if (card.get(field) or None) != (facts.get(fact) or None) and (
            field in card or field == fact
        ):
            yield f"{CARD} has another {field} than {MANIFEST} ({card.get(field)})"
    parts = {
        kind: {"type": "accuracy", "value": round(scores.accuracy, 4), "n": scores.n}
        | {"interval_95": [round(end, 4) for end in scores.interval]}
        for _, kind, scores in [("", "", metrics), *breakdowns(metrics)]
    }
    results = [
        (model, result) for model in card.get("model-index") or () for result in model["results"]
    ]
    for model, result in results:
        kind = str(result.get("dataset", {}).get("config", ""))
        possible = (
            [parts[kind]] if kind in parts else [*parts.values()]
        )  # an earlier version named groups otherwise
        for metric in result["metrics"]:
            states = {"type": metric.get("type"), "value": metric.get("value")}
            states |= {
                key: value
                for key, value in metric.get("args", {}).items()
                if key in ("n", "interval_95")
            }
            if model.get("name") != facts["name"] or not any(
                states.items() <= part.items() for part in possible
            ):
                yield f"{CARD} has other metrics than eval ({metric.get('name')} {metric.get('value')})"
    for file in (
        weights.path / f".eval_results/{metrics.task}.yaml",
        weights.path / model_card.RECORD,
    ):
        if file.exists():
            text = file.read_text("utf-8")
            dataset = re.search(r'(?:hf_repo"|\bid): "?([^"\n]+)', text)
            written = model_card.result_files(
                recorded, facts["name"], dataset[1] if dataset else None
            )
            expected = written.get(file.relative_to(weights.path).as_posix(), "")
            if manifest.version != version():  # whose words were others
                text, expected = (
                    " ".join(re.findall(r"[\d.]+", _SCHEMA.sub("", each)))
                    for each in (text, expected)
                )
            if text != expected:
                yield f"{file.name} has other metrics than eval, or says something else of them"


def earlier_metrics(
    written: Mapping[str, Any], own: Mapping[str, Any], groups: Mapping[str, Mapping[str, Any]]
) -> tuple[list[str], list[str]]:
    """Names of the metrics *written* by an earlier version that differ from our *own*, and that we do not compute.

    Its groups, compared with *groups*, may have other names, or other values, and its intervals another method.
    """
    different, unknown = [], []
    for name, value in {**written, "groups": {}, **written.get("groups", {})}.items():
        if name in own:
            different += [] if _agrees(value, own[name]) else [name]
            continue
        is_group = isinstance(value, dict) and all(
            isinstance(share, dict) for share in value.values()
        )
        shares = {f"{name} {label}": value[label] for label in value} if is_group else {name: value}
        for metric, share in shares.items():
            labels = {
                metric.rpartition(" ")[2],
                metric.rpartition("_")[2],
                metric.replace("_", "-"),
            }
            same = [values[label] for values in groups.values() for label in labels & values.keys()]
            if not same:
                unknown.append(metric)
            elif not any(
                _agrees(share, each) or share == round(each["accuracy"], 3) for each in same
            ):
                different.append(metric)
    return different, unknown


def _agrees(written: Any, own: Any) -> bool:
    """Return True if *written* is part of *own*, with the ends of intervals within a quarter of their width."""
    if isinstance(written, dict) and isinstance(own, dict):
        return all(name in own and _agrees(value, own[name]) for name, value in written.items())
    if (
        isinstance(written, list)
        and isinstance(own, list)
        and {*map(type, written), *map(type, own)} <= {int, float}
    ):
        width = own[-1] - own[0]
        return len(written) == 2 and all(
            abs(a - b) <= width / 4 for a, b in zip(written, own, strict=True)
        )
    return bool(written == own)


def unread(weights: Weights, task: str) -> list[str]:
    """Names of the files, and of code and fields in them, that other programs may read and nothing here compares."""
    folder, tokenizer = (
        weights.path,
        TOKENIZER[:4] if (weights.path / "tokenizer.json").is_file() else TOKENIZER,
    )
    adapter = weights.format.name == "adapter"
    own = [weights.loadable] if weights.gguf else model_files.shards(folder)
    known = {MANIFEST, CARD, GENERATION, model_card.RECORD, "chat_template.jinja", *tokenizer}
    known |= {path.name for path in own}
    known |= (
        {ADAPTER_CONFIG}
        if adapter
        else {"Modelfile"}
        if weights.gguf
        else {"config.json", model_files.INDEX}
    )
    files = [
        path.relative_to(folder).as_posix()
        for path in sorted(folder.rglob("*"))
        if not path.is_dir()
    ]
    known |= {
        name
        for name in files
        if name.startswith(("eval/", f".eval_results/{task}.")) or _BESIDE.fullmatch(name)
    }
    names = [name for name in files if name not in known]
    for name in (name for name in files if name.endswith("config.json") and "/" not in name):
        names += [
            f"{key} of {name}"
            for key in ("auto_map", "auto_mapping")
            if typed_json.read(folder / name).get(key)
        ]
    return names + [
        f"{field} of {CARD}" for field in _header(folder / CARD) if field not in _FIELDS
    ]


def _header(card: Path) -> dict[str, Any]:
    """The header of the model *card*. Raises ArtifactError if it is none that the Hub would read."""
    from huggingface_hub import metadata_load
    from yaml import YAMLError

    try:
        header = metadata_load(card) or {}
    except (ValueError, YAMLError) as error:
        raise ArtifactError(
            f"{card} has no header that can be read: {first_line(error)}."
        ) from error
    typed_json.build(header.get("model-index") or [], list[_Model], f"the header of {card}")
    return dict(header)


class _Result(TypedDict):
    metrics: list[dict[str, Any]]
    dataset: NotRequired[dict[str, Any]]


class _Model(TypedDict):
    results: list[_Result]
