"""The stages as functions: paths or rows in, one artifact directory out. Import them from :mod:`countdown_rl`.

Each has the options of the command of its name, spelled as in Python (``max_new_tokens`` for ``--max-new-tokens``), and
raises the errors of :mod:`countdown_rl.core.errors`.
"""

import functools
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeVar

from countdown_rl.core.errors import CountdownError

if TYPE_CHECKING:
    from countdown_rl.core.manifest import Manifest
    from countdown_rl.evaluation.results import Result as Evaluation
    from countdown_rl.tasks.task import Row
    from countdown_rl.training.options import RunArguments
    from countdown_rl.training.run import Result

Arguments = TypeVar("Arguments", bound="RunArguments")
Stage = TypeVar("Stage", bound=Callable[..., Any])
Source = str | Path
Callback = Callable[[Any], None]

_FLAG = re.compile(r"(?<![\w-])--(?:no-)?([a-z][a-z0-9-]*)")


def with_python_names(stage: Stage) -> Stage:
    """Let the errors of *stage* name options as Python does: ``max_new_tokens`` for ``--max-new-tokens``."""

    @functools.wraps(stage)
    def call(*args: Any, **keywords: Any) -> Any:
        try:
            return stage(*args, **keywords)
        except CountdownError as error:
            text = _FLAG.sub(lambda match: match[1].replace("-", "_"), str(error))
            raise type(error)(text).with_traceback(error.__traceback__) from error.__cause__

    return call  # type: ignore[return-value]


def train(
    model: Source,
    data: "Source | Iterable[Row]",
    out: Source,
    *,
    rewards: Mapping[str | Callable[..., Any], float] | None = None,
    on_step: Callback = lambda _: None,
    on_note: Callback = lambda _: None,
    on_warning: Callback = lambda _: None,
    **options: Any,
) -> "Result":
    """Train a LoRA adapter, or all weights, with GRPO, and write an ``adapter`` or ``model`` artifact at *out*.

    If a run is killed, call it again to resume. Its log and sampled completions are written to ``OUT-run``.

    Args:
        model: "countdown-tiny", a directory, a GGUF file or a Hub id.
        data: a data directory, whose training split is used, a file of rows, or rows.
        rewards: weight by name or function: ``f(grade, row, tokens)`` of one completion, or a TRL reward function. It
            must be defined at the top level of a module or script.
        on_step: called with each row of the log.
        options: fields of :class:`countdown_rl.training.options.TrainOptions` and
            :class:`countdown_rl.training.options.RunArguments`.

    Raises:
        UsageError: the options contradict each other.
        InputError, ModelError, ArtifactError: an input is missing or invalid, or *out* cannot be written.
    """
    from countdown_rl.training.grpo.run import GrpoRun
    from countdown_rl.training.options import RunArguments, TrainOptions
    from countdown_rl.training.run import Reporter

    arguments, settings = _arguments(
        RunArguments, model, out, options, data=_file(data, Path(f"{out}-run", "rows.jsonl"))
    )
    if rewards is not None:
        settings["reward"] = tuple(f"{_name(reward)}={weight!r}" for reward, weight in rewards.items())
    reporter = Reporter(step=on_step, note=on_note, warning=on_warning)
    return GrpoRun.execute(arguments, TrainOptions(**settings), reporter)


def sft(
    model: Source,
    demonstrations: Source | Iterable[Mapping[str, Any]],
    out: Source,
    *,
    data: Source | None = None,
    on_step: Callback = lambda _: None,
    on_note: Callback = lambda _: None,
    **options: Any,
) -> "Result":
    """Fine-tune a model on demonstrations, and write an ``adapter`` or ``model`` artifact at *out*.

    Args:
        demonstrations: a file, or records: TRL's ``prompt`` and ``completion`` or ``messages``, or the fields of a
            puzzle and ``completion``.
        data: a data directory, whose test puzzles are excluded from training and whose validation puzzles are
            evaluated.
        options: fields of :class:`countdown_rl.training.options.SftOptions`; otherwise as in :func:`train`.
    """
    from countdown_rl.training.options import SftArguments, SftOptions
    from countdown_rl.training.run import Reporter
    from countdown_rl.training.sft.run import SftRun

    files = (_file(demonstrations, Path(f"{out}-run", "demonstrations.jsonl")),)
    arguments, settings = _arguments(SftArguments, model, out, options, files=files, data=Path(data) if data else None)
    return SftRun.execute(arguments, SftOptions(**settings), Reporter(step=on_step, note=on_note))


def evaluate(
    model: Source | None = None,
    rows: "Source | Iterable[Row] | None" = None,
    *,
    completions: Source | Iterable[Mapping[str, Any]] | None = None,
    samples: int = 1,
    temperature: float | None = None,
    max_new_tokens: int | str = 512,
    out: Source | None = None,
    revision: str | None = None,
    **options: Any,
) -> "Evaluation":
    """Complete *rows* with a model, grade the completions, and return an object with ``metrics`` and ``samples``.

    Args:
        model: as in :func:`train`, or a baseline: "random", "solver".
        rows: a data directory, whose test split is used, a file of rows, or rows.
        completions: a file or records to grade in place of a model's: ``completion`` with the fields, id or prompt of
            a row, or a file of TRL, verl, verifiers, Inspect, lm-evaluation-harness or an OpenAI batch. *rows* are
            needed only for ids and prompts.
        samples: completions per row; with several, ``metrics.pass_at`` holds pass@k.
        max_new_tokens: token limit, or limits such as "256,512,1024", by which ``metrics.budgets`` has the accuracy.
        temperature: by default 0 for one sample, and 1 for several.
        out: the directory of an ``eval`` artifact to write; by default nothing stays on disk.
        options: other fields of :class:`countdown_rl.evaluation.config.EvalOptions`, such as ``limit=100``.

    Raises:
        UsageError: the options contradict each other.
        InputError, ModelError, ArtifactError: an input is missing or invalid, or *out* cannot be written.
    """
    from countdown_rl.evaluation import evaluate as evaluation
    from countdown_rl.evaluation.config import EvalOptions
    from countdown_rl.models import load

    if temperature is None:
        temperature = 1.0 if samples > 1 or options.get("pass_at") else 0.0
    settings = EvalOptions(samples=samples, temperature=temperature, max_new_tokens=max_new_tokens, **options)
    if model is not None:
        load.silence_libraries()
    with TemporaryDirectory() as scratch:
        return evaluation.evaluate(
            settings,
            model=str(model or ""),
            data=None if rows is None else _file(rows, Path(scratch, "rows.jsonl")),
            completions=None if completions is None else _file(completions, Path(scratch, "completions.jsonl")),
            out=Path(out or Path(scratch, "eval")),
            overwrite=False,
            revision=revision,
        )


def compare(
    evaluations: "Mapping[str, Source | Evaluation] | Iterable[Source | Evaluation]",
    out: Source | None = None,
    against: str | None = None,
) -> dict[str, Any]:
    """Compare evaluations of the same rows: paired differences with 95% intervals, as in ``comparison.json``.

    Args:
        evaluations: results of :func:`evaluate` or directories, in order, or by name.
        out: the directory of a ``comparison`` artifact to write; by default nothing is written.
        against: the name to compare all others with, in place of the first and the preceding one.

    Raises:
        InputError: the rows or the decoding settings differ.
    """
    from countdown_rl.evaluation import compare as comparison

    if not isinstance(evaluations, Mapping):
        results = list(evaluations)
        names = [str(result) if isinstance(result, Source) else result.metrics.model.source for result in results]
        if len(set(names)) < len(names):
            names = [f"{name} {number}" for number, name in enumerate(names, 1)]
        evaluations = dict(zip(names, results, strict=True))
    settings = {
        str(name): [Path(result) if isinstance(result, Source) else result] for name, result in evaluations.items()
    }
    return comparison.compare(settings, Path(out) if out else None, against)


def merge(
    adapter: Source, out: Source, *, revision: str | None = None, base_model: str | None = None, **options: Any
) -> "Manifest":
    """Merge a LoRA adapter into its base, and write a ``merged`` artifact of ordinary safetensors at *out*.

    Args:
        options: fields of :class:`countdown_rl.export.config.MergeOptions`.

    Raises:
        ModelError: the adapter cannot be merged, or the result differs from the adapter over its base.
    """
    from countdown_rl.export.config import MergeOptions
    from countdown_rl.export.merge import merge_adapter
    from countdown_rl.models import load, reference

    load.silence_libraries()
    ref = reference.find_model(str(adapter), revision=revision, base_model=base_model)
    return merge_adapter(ref, Path(out), MergeOptions(**options))


def quantize(
    model: Source, out: Source, *, revision: str | None = None, on_warning: Callback = lambda _: None, **options: Any
) -> "Manifest":
    """Quantize the weights of *model*, and write a ``quantized`` artifact at *out*.

    Args:
        on_warning: called if the model was merged into the wrong base for the format.
        options: fields of :class:`countdown_rl.export.config.QuantizeOptions`, such as ``format="gguf"``.

    Raises:
        ModelError: the model cannot be quantized.
    """
    from countdown_rl.models import load, reference

    load.silence_libraries()  # before gguf imports tqdm
    from countdown_rl.export import quantize as quantization
    from countdown_rl.export.config import QuantizeOptions

    settings, ref = QuantizeOptions(**options), reference.find_model(str(model), revision=revision)
    if warning := quantization.warning(ref, settings.format):
        on_warning(warning)
    return quantization.quantize_model(ref, Path(out), settings)


def publish(out: Source, *, repo_id: str | None = None, public: bool = False, **options: Any) -> "Manifest":
    """Build the release folder of a model or data set at *out*; with *repo_id* upload it to the Hub.

    Args:
        options: fields of :class:`countdown_rl.release.config.PublishOptions`, such as ``model`` or ``data``.

    Raises:
        ArtifactError: an input is missing, damaged or about other weights.
        HubError: the Hub refuses the upload.
    """
    from countdown_rl.release import folder, upload
    from countdown_rl.release.config import PublishOptions, UploadOptions

    target = UploadOptions(push=repo_id is not None, repo_id=repo_id, public=public)
    manifest = folder.build(PublishOptions(**options), Path(out))
    if repo_id is not None:
        upload.push(Path(out), manifest, target)
    return manifest


def _arguments(
    kind: "type[Arguments]", model: Source, out: Source, options: Mapping[str, Any], **inputs: Any
) -> "tuple[Arguments, dict[str, Any]]":
    """Return the arguments of a run, and the stage's own options."""
    settings = dict(options)
    inputs |= {name: settings.pop(name) for name in options.keys() & kind.__dataclass_fields__.keys()}
    return kind(model=str(model), out=Path(out), **inputs), settings


def _file(source: "Source | Iterable[Mapping[str, Any]]", file: Path) -> Path:
    """Return the path *source*; if *source* is rows, write them to *file*."""
    if isinstance(source, str | Path):
        return Path(source)
    from countdown_rl.tasks import jsonl

    file.parent.mkdir(parents=True, exist_ok=True)
    jsonl.write_rows(file, ({**row} for row in source))
    return file


def _name(reward: str | Callable[..., Any]) -> str:
    return reward if isinstance(reward, str) else f"{reward.__module__}:{reward.__qualname__}"
