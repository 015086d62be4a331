"""Release folder of a model or a data set, and its upload to the Hub; the same inputs and options give the same bytes.

A reader sees the repository before the one commit of an upload or after it, never in between; a new one is private
until then. huggingface_hub retries transfers and skips stored content, so a failed upload can be repeated.
"""

import json
import logging
import re
import sys
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from countdown_rl.core import artifacts, formatting, hub
from countdown_rl.core.errors import ArtifactError, HubError, UsageError, first_line
from countdown_rl.core.formatting import as_section
from countdown_rl.core.manifest import (
    MADE_BY,
    MANIFEST,
    Manifest,
    file_input,
    initial_model,
    provenance_chain,
)
from countdown_rl.core.packages import version
from countdown_rl.evaluation import results, training_log
from countdown_rl.models import ends, model_files
from countdown_rl.models.reference import SHIPPED
from countdown_rl.release import model_card
from countdown_rl.release.config import DATA_OPTIONS, PublishOptions, UploadOptions
from countdown_rl.release.demo import page as demo
from countdown_rl.release.model_card import ADAPTER_CONFIG, FILES, Release, Weights
from countdown_rl.release.report import charts
from countdown_rl.tasks.probe import trained_on
from countdown_rl.tasks.registry import task_of

if TYPE_CHECKING:
    from huggingface_hub import HfApi

#: The Hub's name of each split.
_SPLITS = {"train": "train", "valid": "validation", "test": "test"}
#: Type of the repository for each kind of artifact that can be uploaded.
REPO_TYPES: dict[str, Literal["model", "dataset"]] = {"release": "model", "data-release": "dataset"}
#: Bytes searched of a file of weights: its metadata come first.
_METADATA = 1 << 24


@dataclass(frozen=True)
class Upload:
    """Result of an upload."""

    url: str
    commit: str
    tag: str
    private: bool


def publish(
    options: PublishOptions, out: Path, target: UploadOptions, on_warning: Callable[[str], None]
) -> tuple[Manifest, Upload | None]:
    """Build the release at *out*, and upload it if *target* asks for that."""
    manifest = build(options, out)
    if options.data is None and "accuracy" not in manifest.facts:
        on_warning(
            "these weights have not been evaluated, and the card says so; run `countdown-rl eval` on them."
        )
    return manifest, push(out, manifest, target) if target.push else None


def build(options: PublishOptions, out: Path) -> Manifest:
    """Write the release at *out*: of a model, or of the data set that *options* name.

    Raises ArtifactError if an input is missing, damaged or about other weights, or contains a token.
    """
    kind = "release" if options.data is None else "data-release"
    artifacts.check_writable(out, kind)
    if options.data is None:
        release, settings = read_inputs(options), asdict(options)
        inputs, write = release.inputs, partial(_write_model, release)
        del settings["data"]
    else:
        settings, write = (
            {name: getattr(options, name) for name in DATA_OPTIONS},
            partial(_write_data, options),
        )
        data = artifacts.read(Path(options.data), "data", verify=False)
        inputs = {"data": data.as_input() | {"source": options.data}}
    with artifacts.writing(
        out, kind, options=settings, inputs=inputs, libraries=("huggingface_hub",)
    ) as draft:
        write(draft)
        check_no_token(draft.path, manifest=json.dumps(inputs, default=vars))
    return artifacts.read(out, kind, verify=False)


def read_inputs(options: PublishOptions) -> Release:
    """Read the inputs that *options* name, and those that the pipeline keeps beside the weights."""
    weights = Weights.read(options.model)
    chain, parent = provenance_chain(weights.entry), weights.path.parent
    inputs, evaluation, table = {"model": weights.entry}, None, None
    path = Path(options.evaluation or parent / "eval" / weights.path.name)
    if options.evaluation or (path / MANIFEST).exists():
        evaluation = results.read(path)
        if not weights.measured_by(evaluation):
            again = f"countdown-rl eval --model {weights.path} --out {path} --overwrite"
            raise ArtifactError(
                f"{path} is of other weights than {weights.path} holds now; run `{again}`."
            )
        if evaluation.metrics.data["digest"] in results.training_data(chain):
            raise ArtifactError(
                f"{path} is on rows used in training; run `countdown-rl eval` on the test split."
            )
        inputs["eval"] = evaluation.manifest.as_input()
    digest = (evaluation.manifest if evaluation else weights.manifest).digest

    def is_comparison(path: Path) -> bool:
        return digest in [link.digest for link in artifacts.read(path, "comparison").lineage]

    default = parent / "eval" / "comparison"
    if comparison := _input(
        options.comparison, default if (default / MANIFEST).exists() else None, is_comparison
    ):
        table = as_section((comparison / "comparison.md").read_text("utf-8"))
        inputs["comparison"] = artifacts.read(comparison, "comparison").as_input()
    if log := _input(
        options.log, parent / "train" / "log.csv", lambda path: training_log.is_log_of(path, chain)
    ):
        inputs["log"] = file_input(log)
    initial = initial_model(chain)
    base_model = options.base_model or (initial.name if initial.kind == "hub" else None)
    license = options.license
    if license is None and (
        initial.name in SHIPPED or (initial.kind == "model" and base_model is None)
    ):
        license = "apache-2.0"  # of this package, which made the base
    if options.with_demo and weights.gguf is None:
        quantize = "run `countdown-rl quantize --format gguf` and give its directory to --model"
        raise UsageError(f"needs GGUF weights: {quantize}.", option="with_demo")
    if weights.format.name == "adapter" and base_model is None:
        advice = "merge it first, or give --base-model"
        raise UsageError(
            f"an adapter needs its base, and {initial.name} is not on the Hub; {advice}."
        )
    revision = initial.revision if options.base_model is None else None
    licenses = {"license": license} if license else base_license(base_model, revision)
    return Release(options, weights, evaluation, chain, inputs, table, log, base_model, licenses)


def _input(named: str | None, default: Path | None, belongs: Callable[[Path], bool]) -> Path | None:
    """Return the input that the user *named*, or the *default* one if it *belongs* to the weights."""
    path = Path(named) if named else default
    if path and belongs(path):
        return path
    if named:
        raise ArtifactError(
            f"{path} is not about these weights; give one that is, or leave it out."
        )
    return None


def base_license(base_model: str | None, revision: str | None) -> dict[str, str]:
    """Return the license on the card of *base_model* on the Hub, as the metadata of a card."""
    if base_model is None:
        return {}
    from huggingface_hub import HfApi
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        info = HfApi().model_info(base_model, revision=revision, timeout=20)
    except RepositoryNotFoundError:
        return {}
    except Exception as error:  # an answer that makes no sense raises any
        raise HubError(
            f"the card of {base_model} cannot be read: {hub.reason(error)}; or give --license."
        ) from error
    data: Any = info.card_data or {}
    return {key: data[key] for key in ("license", "license_name", "license_link") if data.get(key)}


def _write_model(release: Release, draft: artifacts.ArtifactWriter) -> None:
    options, weights, base_model = release.options, release.weights, release.base_model
    for name, entry in weights.manifest.files.items():
        if FILES.fullmatch(name):
            draft.copy(weights.path / name, name, entry)
    if (
        model_files.GENERATION in weights.manifest.files
    ):  # reduced to the tokens that end a completion, as evaluated
        config = model_files.generation_config(weights.path)
        ends.write(draft.path, config.get("eos_token_id"), config.get("pad_token_id"))
    if weights.format.name == "adapter":
        config = model_files.adapter_config(weights.path)
        if config.get("base_model_name_or_path") != base_model:
            text = json.dumps(
                config | {"base_model_name_or_path": base_model}, indent=2, sort_keys=True
            )
            (draft.path / ADAPTER_CONFIG).write_text(f"{text}\n")
    if evaluation := release.evaluation:
        for name, entry in evaluation.manifest.files.items():
            draft.copy(evaluation.path / name, f"eval/{name}", entry)
        (draft.path / "eval" / MANIFEST).write_bytes(evaluation.manifest.to_bytes())
        draft.facts |= {
            key: getattr(evaluation.metrics, key) for key in ("accuracy", "n", "interval")
        }
        for name, text in model_card.result_files(
            evaluation, release.name, options.benchmark
        ).items():
            (draft.path / name).parent.mkdir(exist_ok=True)
            (draft.path / name).write_text(text, "utf-8")
    if options.license_file:
        (draft.path / model_card.LICENSE).write_bytes(Path(options.license_file).read_bytes())
    if release.log:
        curves = charts.curves({"": [training_log.read(release.log)]}, trained_on(release.chain))
        (draft.path / model_card.CURVES).write_text(charts.picture(curves), "utf-8")
    if options.with_demo:
        page = demo.text(weights.loadable, release.chain, release.evaluation)
        (draft.path / demo.INDEX).write_text(page, "utf-8")
    (draft.path / model_card.CARD).write_text(model_card.render(release), "utf-8")
    draft.facts |= {
        "name": release.name,
        "base_model": base_model,
        "base_relation": release.base_relation,
    }
    draft.facts |= {
        "datasets": list(options.trained_on),
        "formats": {".": weights.format.name},
        **release.license,
    }


def _write_data(options: PublishOptions, draft: artifacts.ArtifactWriter) -> None:
    """Write the splits of the data artifact ``options.data``, and a card from which ``load_dataset`` reads them."""
    data = Path(str(options.data))
    manifest = artifacts.read(data, "data", verify=False)
    for name, entry in manifest.files.items():
        draft.copy(data / name, name, entry)
    splits, task = manifest.facts["splits"], task_of(manifest.options)
    rows = {split: splits[split]["rows"] for split in _SPLITS if splits.get(split, {}).get("rows")}
    if not rows:
        raise ArtifactError(f"{data} holds no rows; make it again with `{MADE_BY['data']}`.")
    with (data / f"{next(iter(rows))}.jsonl").open(encoding="utf-8") as stream:
        fields = list(json.loads(stream.readline()))
    groups = [splits[split].get("groups", {}).items() for split in rows]
    counts = [(group, value) for split in groups for group, values in split for value in values]
    source = manifest.inputs.get("from", {})
    draft.facts |= {
        "name": options.name or f"{task.name}-{task.noun}s",
        "license": options.license,
        "rows": rows,
    }
    card = model_card.fill(
        "dataset_card.md.jinja",
        **draft.facts,
        task=task,
        splits=splits,
        columns=sorted({(group, value) for group, value in counts if task.group(group).main}),
        fields=fields,
        command=f"{MADE_BY['data']} {formatting.flags(manifest.options)}",
        source=source.get("hub") or source.get("file"),
        revision=source.get("revision"),
        own_test="test" in manifest.inputs,
        split_names=_SPLITS,
    )
    (draft.path / model_card.CARD).write_text(card, "utf-8")
    if "test" in rows:
        (draft.path / model_card.DEFINITION).write_text(model_card.definition(task), "utf-8")


def check_no_token(folder: Path, *, manifest: str = "", token: str | None = None) -> None:
    """Check that no file in *folder*, and no text in *manifest*, has *token* or anything in the format of a token."""
    texts = {"the manifest": manifest}
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        with file.open("rb") as stream:
            data = stream.read(_METADATA if file.suffix in (".safetensors", ".gguf") else -1)
        texts[file.name] = data.decode("latin-1")
    for name, text in texts.items():
        if hub.TOKEN.search(text) or (token and token in text):
            raise ArtifactError(
                f"{name} contains what looks like a token for the Hub; remove it before publishing."
            )


def push(folder: Path, manifest: Manifest, options: UploadOptions) -> Upload:
    """Make the repository of *options* hold exactly the release at *folder*, whose manifest is *manifest*.

    Raises HubError: no token, no write access, no network, or a repository that this package did not make.
    """
    from huggingface_hub import HfApi, get_token
    from huggingface_hub.errors import HTTPError
    from huggingface_hub.utils import disable_progress_bars

    token = get_token()
    if token is None:
        raise HubError(
            "there is no token for the Hub; log in with `hf auth login`, or set HF_TOKEN."
        )
    if not re.fullmatch(r"[\x21-\x7e]+", token):
        raise HubError(
            "the token for the Hub contains invalid characters; log in again with `hf auth login`."
        )
    check_no_token(folder, token=token)
    logging.getLogger("huggingface_hub").setLevel(logging.CRITICAL)
    if not sys.stderr.isatty():
        disable_progress_bars()
    api = HfApi(token=token, library_name="countdown-rl", library_version=version())
    try:
        with warnings.catch_warnings(action="ignore"):
            return _update(api, folder, manifest, options)
    except (RuntimeError, OSError, ValueError, HTTPError) as error:
        if isinstance(error, ValueError) and not isinstance(
            error, json.JSONDecodeError
        ):  # of the card's metadata
            raise HubError(
                f"the Hub does not accept {options.repo_id}: {first_line(error)}."
            ) from error
        cause = hub.reason(error)
        raise HubError(
            f"{options.repo_id} cannot be uploaded: {cause}, and run the same command again."
        ) from error


def _update(api: "HfApi", folder: Path, manifest: Manifest, options: UploadOptions) -> Upload:
    repo_id, repo_type = str(options.repo_id), REPO_TYPES[manifest.kind]
    api.create_repo(repo_id, repo_type=repo_type, private=True, exist_ok=True)
    info: Any = api.repo_info(repo_id, repo_type=repo_type)
    if not info.private and not options.public:
        raise HubError(
            f"{repo_id} is public; give --public to publish there, or another --repo-id."
        )
    present = {sibling.rfilename for sibling in info.siblings or ()} - {
        ".gitattributes"
    }  # the Hub's own file
    previous = None
    if MANIFEST in present:
        file = api.hf_hub_download(repo_id, MANIFEST, revision=info.sha, repo_type=repo_type)
        previous = artifacts.peek(Path(file).parent)
    if present and previous != manifest.kind:
        raise HubError(
            f"{repo_id} exists, and countdown-rl did not make it; choose another --repo-id."
        )
    files: Any = {
        "folder_path": folder,
        "allow_patterns": [*manifest.files, MANIFEST],
        "delete_patterns": "*",
    }
    files |= {"commit_message": f"Release {manifest.digest[:12]}", "parent_commit": info.sha}
    commit = api.upload_folder(repo_id=repo_id, repo_type=repo_type, **files).oid
    tags = {
        ref.name: ref.target_commit for ref in api.list_repo_refs(repo_id, repo_type=repo_type).tags
    }
    newest = max((int(name[1:]) for name in tags if re.fullmatch(r"v\d+", name)), default=0)
    if tags.get(tag := f"v{newest}") != commit:
        tag = f"v{newest + 1}"
        api.create_tag(repo_id, tag=tag, revision=commit, repo_type=repo_type)
    if options.public and info.private:
        api.update_repo_settings(repo_id, repo_type=repo_type, visibility="public")
    url = f"{api.endpoint}/{'datasets/' if repo_type == 'dataset' else ''}{repo_id}"
    return Upload(url, commit, tag, not options.public)
