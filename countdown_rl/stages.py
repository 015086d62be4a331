"""The stages as functions: paths or rows in, one artifact directory out. Import them from
:mod:`countdown_rl`.

Each takes the options of the command of its name, spelled as in Python (``max_new_tokens`` for
``--max-new-tokens``): the fields of the dataclass that its docstring names. ``on_step`` is called
with each row of the log, ``on_note`` and ``on_warning`` with sentences; warnings go to
``warnings.warn`` by default.

It raises UsageError if options contradict each other, and InputError, ModelError or ArtifactError
if an input is missing or invalid, or *out* cannot be written; ``publish`` raises HubError if the
Hub refuses the upload.
"""

import json
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from countdown_rl.core import user_code
from countdown_rl.core.errors import InputError
from countdown_rl.core.options import Options, field_hints, plain, shown
from countdown_rl.core.types import JsonObject, Record

if TYPE_CHECKING:
    from countdown_rl.core.manifest import Manifest
    from countdown_rl.evaluation.results import Result as Evaluation
    from countdown_rl.evaluation.training_log import LogRow
    from countdown_rl.training.run import Result

Source = str | Path
#: A path, a row, or rows.
Rows = Source | Record | Iterable[Record]
#: A reward, or rewards, also with weights: names or functions.
Reward = str | Callable[..., object]
Rewards = Reward | Sequence[Reward] | Mapping[Reward, float]
#: Keywords of :func:`evaluate` that are no options of an evaluation.
_READING = ("overwrite", "revision", "base_model", "trust_remote_code", "on_note")


def _warn(text: str) -> None:
    warnings.warn(text, stacklevel=2)


def train(
    model: Source, data: Rows, out: Source, *, rewards: Rewards | None = None, **options: Any
) -> "Result":
    """Train a LoRA adapter, or all weights, with GRPO, and write an ``adapter`` or ``model``
    artifact at *out*.

    If a run is killed, call it again to resume. Its log and sampled completions are written to
    ``OUT-run``.

    Args:
        model: "countdown-tiny", a directory, a GGUF file or a Hub id.
        data: a data directory, whose training split is used, a file of rows, or rows.
        rewards: names or functions, or a mapping of them to weights. A function is called by the
            names of its parameters (docs/rewards.md); a reward function of TRL or verl runs
            unchanged.
        options: fields of ``TrainOptions`` and ``RunArguments`` in
            :mod:`countdown_rl.training.options`; ``overwrite`` replaces a finished artifact of
            another run at *out*; ``on_step``, ``on_note`` and ``on_warning``.
    """
    from countdown_rl.training.grpo.run import prepare
    from countdown_rl.training.options import RunArguments, TrainOptions

    if rewards is not None:
        options["reward"] = _rewards(rewards)
    with _file("data", data, Path(f"{out}-run", "rows.jsonl")) as file:
        options |= {"model": model, "data": file, "out": out}
        return _run(prepare, TrainOptions, RunArguments, **options)


def sft(
    model: Source, demonstrations: Rows, out: Source, *, data: Source | None = None, **options: Any
) -> "Result":
    """Fine-tune a model on demonstrations, and write an ``adapter`` or ``model`` artifact at *out*.

    Args:
        demonstrations: a file, or records: TRL's ``prompt`` and ``completion`` or ``messages``, or
            the fields of a puzzle and ``completion``.
        data: a data directory, whose test puzzles are excluded from training and whose validation
            puzzles are evaluated.
        options: fields of ``SftOptions`` and ``SftArguments``; otherwise as in :func:`train`.
    """
    from countdown_rl.training.options import SftArguments, SftOptions
    from countdown_rl.training.sft.run import prepare

    written = Path(f"{out}-run", "demonstrations.jsonl")
    with _file("demonstrations", demonstrations, written) as file:
        options |= {"model": model, "data": data, "files": file, "out": out}
        return _run(prepare, SftOptions, SftArguments, **options)


def _run(
    prepare: Any,
    kind: type[Options],
    arguments: type[Options],
    *,
    overwrite: bool = False,
    on_step: Callable[["LogRow"], None] = lambda row: None,
    on_note: Callable[[str], None] = lambda text: None,
    on_warning: Callable[[str], None] = _warn,
    **options: Any,
) -> "Result":
    from countdown_rl.training.prepared import Reporter
    from countdown_rl.training.run import execute

    settings: Any = kind.of(options, *field_hints(arguments))
    paths: Any = arguments.of(options, *options)
    reporter = Reporter(step=on_step, note=on_note, warning=on_warning)
    return execute(prepare, paths, settings, reporter, overwrite=overwrite)


def evaluate(
    model: Source = "",
    rows: Rows | None = None,
    *,
    completions: Rows | None = None,
    temperature: float | None = None,
    out: Source | None = None,
    on_warning: Callable[[str], None] = _warn,
    **options: Any,
) -> "Evaluation":
    """Complete *rows* with a model, grade the completions, and return an object with ``metrics``
    and ``samples``.

    Args:
        model: as in :func:`train`, or a baseline: "random", "solver".
        rows: a data directory, whose test split is used, a file of rows, or rows.
        completions: a file or records to grade in place of a model's: ``completion`` with the
            fields, id or prompt of a row, or a file of TRL, verl, verifiers, Inspect,
            lm-evaluation-harness or an OpenAI batch. *rows* are needed only for ids and prompts.
        temperature: by default 0 for one sample, and 1 for several.
        out: the directory of an ``eval`` artifact to write; by default nothing stays on disk.
        options: fields of :class:`countdown_rl.evaluation.config.EvalOptions`, such as
            ``limit=100``; ``overwrite``, ``revision``, ``base_model``, ``trust_remote_code`` and
            ``on_note``. With several ``samples`` per row, ``metrics.pass_at`` holds pass@k.
    """
    from countdown_rl.evaluation import evaluate as evaluation
    from countdown_rl.evaluation.caveats import of_evaluation
    from countdown_rl.evaluation.config import EvalOptions

    if temperature is None:
        temperature = 0.0 if options.get("samples", 1) == 1 else 1.0
    settings = EvalOptions.of(options | {"temperature": temperature}, *_READING)
    given = {"overwrite": False} | {name: options[name] for name in _READING if name in options}
    with (
        TemporaryDirectory() as scratch,
        _file("rows", rows, Path(scratch, "rows.jsonl")) as data,
        _file("completions", completions, Path(scratch, "completions.jsonl")) as made,
    ):
        result = evaluation.evaluate(
            settings,
            model=str(model),
            data=data,
            completions=made,
            out=Path(out or f"{scratch}/eval"),
            on_warning=on_warning,
            **given,
        )
    for sentence in of_evaluation(result):
        on_warning(sentence)
    return result if out else replace(result, path=Path())


def compare(
    evaluations: "Mapping[str, Source | Evaluation] | Iterable[Source | Evaluation]",
    out: Source | None = None,
    against: str | None = None,
    *,
    on_warning: Callable[[str], None] = _warn,
) -> JsonObject:
    """Compare evaluations of the same rows: paired differences with 95% intervals, as in
    ``comparison.json``.

    Args:
        evaluations: results of :func:`evaluate` or directories, in order, or by name.
        out: the directory of a ``comparison`` artifact to write; by default nothing is written.
        against: the name to compare all others with, in place of the first one.

    Raises:
        InputError: the rows or the decoding settings differ.
    """
    from countdown_rl.evaluation import compare as comparison
    from countdown_rl.evaluation.results import Result

    if not isinstance(evaluations, Mapping):
        results = list(evaluations)
        names = [
            result.metrics.model.source if isinstance(result, Result) else str(result)
            for result in results
        ]
        if len(set(names)) < len(names):
            names = [f"{name} {number}" for number, name in enumerate(names, 1)]
        evaluations = dict(zip(names, results, strict=True))
    runs = {
        str(name): [result if isinstance(result, Result) else Path(result)]
        for name, result in evaluations.items()
    }
    return comparison.compare(runs, Path(out) if out else None, against, on_warning)


def merge(
    adapter: Source, out: Source, *, base_model: str | None = None, **options: object
) -> "Manifest":
    """Merge a LoRA adapter into its base, and write a ``merged`` artifact of ordinary safetensors
    at *out*.

    Args:
        options: fields of :class:`countdown_rl.export.config.MergeOptions`; ModelError if the
            merged weights differ.
    """
    from countdown_rl.export.config import MergeOptions
    from countdown_rl.export.merge import merge_adapter
    from countdown_rl.models import reference

    settings = MergeOptions.of(options)
    ref = reference.find_model(str(adapter), base_model=base_model)
    return merge_adapter(ref, Path(out), settings)


def quantize(
    model: Source, out: Source, *, on_warning: Callable[[str], None] = _warn, **options: object
) -> "Manifest":
    """Quantize the weights of *model*, and write a ``quantized`` artifact at *out*.

    Args:
        on_warning: called if the model was merged into the wrong base for the format.
        options: fields of :class:`countdown_rl.export.config.QuantizeOptions`, such as
            ``format="gguf"``.
    """
    from countdown_rl.export.config import QuantizeOptions
    from countdown_rl.export.quantize import quantize_model
    from countdown_rl.models import reference

    settings = QuantizeOptions.of(options)
    ref = reference.find_model(str(model))
    return quantize_model(ref, Path(out), settings, on_warning)


def publish(
    out: Source, *, on_warning: Callable[[str], None] = _warn, **options: object
) -> "Manifest":
    """Build the release folder of a model at *out*; with ``repo_id`` upload it to the Hub.

    Args:
        options: fields of ``PublishOptions``, such as ``model``, and of ``UploadOptions``,
            ``repo_id`` and ``public``, in :mod:`countdown_rl.release.config`.
    """
    from countdown_rl.release import folder
    from countdown_rl.release.config import PublishOptions, UploadOptions

    settings = PublishOptions.of(options, "repo_id", "public")
    target = UploadOptions.of(options, *options)
    return folder.publish(settings, Path(out), target, on_warning)[0]


@contextmanager
def _file(name: str, source: Rows | None, file: Path) -> Iterator[Path | None]:
    """Yield the path *source*; if *source*, the argument *name*, is rows, *file* with them, which
    no error names.
    """
    if source is None or isinstance(source, Source):
        yield Path(source) if source else None
        return

    lines = [f"{json.dumps(record)}\n" for record in _records(name, source)]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(lines))
    try:
        yield file
    except InputError as error:
        raise InputError(str(error).replace(str(file), name)) from error


def _records(name: str, source: Record | Iterable[Record]) -> list[JsonObject]:
    """Return a data set, row or iterable of rows as rows with plain values and no missing cells."""
    rows = [source] if isinstance(source, Mapping) else source
    if not isinstance(rows, Iterable):
        raise InputError(f"should be a path or rows, not {shown(source)}.", option=name)
    records = []
    for row in rows:
        if not isinstance(row, Mapping):
            raise InputError(f"should be rows, not {shown(row)}.", option=name)
        records.append({key: cell for key, cell in plain(row).items() if cell is not None})
    if not records:
        raise InputError("has no rows.", option=name)
    return records


def _rewards(given: Rewards) -> tuple[str, ...]:
    """Return rewards and their weights as the option of ``train``."""
    if isinstance(given, str) or callable(given):
        given = [given]
    names = [reward if isinstance(reward, str) else user_code.name_of(reward) for reward in given]
    if not isinstance(given, Mapping):
        return tuple(names)
    weights = map(plain, given.values())
    return tuple(f"{name}={weight}" for name, weight in zip(names, weights, strict=True))
