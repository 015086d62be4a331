"""Selection of demonstrations and preference pairs among the graded completions of evaluations."""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from countdown_rl.core import artifacts
from countdown_rl.core.errors import InputError
from countdown_rl.core.formatting import plural
from countdown_rl.core.manifest import provenance_chain
from countdown_rl.evaluation import results
from countdown_rl.evaluation.sample import Sample
from countdown_rl.models import chat_template, ends, load, reference
from countdown_rl.tasks import jsonl
from countdown_rl.tasks.splits import held_out
from countdown_rl.training.options import CollectOptions

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

#: ``datasets`` and ``trl`` load the file of this name in a directory as its split "train", and no other.
FILE = "train.jsonl"


def collect(evaluations: Sequence[Path], options: CollectOptions, out: Path) -> dict[str, Any]:
    """Write a ``demonstrations`` artifact of the completions in *evaluations*, and return its facts.

    Its rows are correct completions, as ``sft`` reads them, or TRL's preference pairs. Each completion of a puzzle is
    used once, and none of a puzzle in a test split. Raises InputError if none is left.
    """
    artifacts.check_writable(out, "demonstrations")
    evaluated = [results.read(path) for path in evaluations]
    samples = [sample for result in evaluated for sample in result.samples]
    correct = sum(sample.grade.correct for sample in samples)
    test = {identity for result in evaluated for identity in _test_puzzles(result)}
    by_prompt: dict[str, dict[str, Sample]] = {}
    for sample in samples:
        if sample.row.identity not in test:
            by_prompt.setdefault(json.dumps(sample.row.messages()), {}).setdefault(
                sample.completion, sample
            )
    selected = [
        rows for group in by_prompt.values() if (rows := _selected(group.values(), options))
    ]
    if not selected:
        wanted = (
            "a correct completion and an incorrect one" if options.pairs else "a correct completion"
        )
        limit = f" of at most {plural(options.max_tokens, 'token')}" if options.max_tokens else ""
        raise InputError(
            f"no training row has {wanted}{limit} ({correct:,} of {plural(len(samples), 'completion')} are correct, "
            f"{plural(len(test), 'row')} of a test split left out); evaluate more --samples of each, or "
            "easier ones."
        )
    inputs = {
        f"eval-{n}" if n else "eval": result.manifest.as_input()
        for n, result in enumerate(evaluated)
    }
    rows = [row for group in selected for row in group]
    with artifacts.writing(out, "demonstrations", options=asdict(options), inputs=inputs) as writer:
        writer.facts |= {
            "read": len(samples),
            "correct": correct,
            "kept": len(rows),
            "puzzles": len(selected),
        }
        tokens = sum(_length(right) for right, *_ in rows)
        writer.facts |= {"test_puzzles": len(test), "mean_tokens": tokens / len(rows)}
        if options.pairs:
            model = inputs["eval"]["manifest"]["inputs"]["model"]
            source, revision = (
                (options.model, None) if options.model else (model["source"], model.get("revision"))
            )
            ref = reference.find_model(source, revision=revision)
            written = _pairs(rows, load.load_tokenizer(reference.without_weights(ref)))
        else:
            written = [right.row.kept | {"completion": right.completion} for right, *_ in rows]
        jsonl.write_rows(writer.path / FILE, written)
    return writer.facts


def _length(sample: Sample) -> int:
    """Tokens, or characters in a file of completions without tokens."""
    return len(sample.completion) if sample.tokens is None else sample.tokens


def _selected(samples: Iterable[Sample], options: CollectOptions) -> list[tuple[Sample, ...]]:
    """The correct *samples* of a prompt; with ``pairs`` each with a wrong one."""
    usable = [sample for sample in samples if not 0 < options.max_tokens < _length(sample)]
    if options.shortest:
        usable.sort(key=_length)
    right, wrong = (
        [each for each in usable if each.grade.correct is side] for side in (True, False)
    )
    return list(
        islice(
            zip(right, wrong, strict=False) if options.pairs else zip(right),
            options.per_puzzle or None,
        )
    )


def _test_puzzles(result: results.Result) -> set[str]:
    """The identities of the puzzles of a test split: by their rows, or all if the file is that of data in the chain."""
    data = result.metrics.data
    links = provenance_chain(
        *(entry for entry in result.manifest.inputs.values() if "digest" in entry)
    )
    tests = [link.files.get("test.jsonl", {}).get("sha256") for link in links]
    all_test = held_out(Path(data.get("file", "")).stem) == "test" or data["digest"] in tests
    return {
        sample.row.identity for sample in result.samples if all_test or sample.row.split == "test"
    }


def _pairs(
    pairs: Sequence[tuple[Sample, ...]], tokenizer: "PreTrainedTokenizerBase"
) -> list[dict[str, Any]]:
    """Rows of TRL's preference format: ``prompt``, ``chosen`` and ``rejected``.

    They are messages if the chat template renders these as the text that the model read and wrote, else that text.
    TRL does not continue a prefill, so it opens both answers.
    """
    from countdown_rl.training.sft.tokens import start_of_text  # it imports torch

    end, start = ends.end_of_turn(tokenizer), start_of_text(tokenizer)
    conversations, texts, exact = [], [], True
    for pair in pairs:
        asked = pair[0].row.prompt()
        turns, prompt = asked.turns(), chat_template.render(tokenizer, asked.messages())
        rendered = chat_template.Rendered(prompt, asked.prefill)
        conversation: dict[str, Any] = {"prompt": turns}
        text = {"prompt": prompt.removeprefix(start)}
        for side, sample in zip(("chosen", "rejected"), pair, strict=True):
            written = rendered.continuation(sample.completion)
            text[side] = written.removesuffix(end) + end
            conversation[side] = [{"role": "assistant", "content": asked.prefill + written}]
            exact = (
                exact and _rendered(tokenizer, turns + conversation[side]) == prompt + text[side]
            )
        conversations.append(conversation | {"chat_template_kwargs": chat_template.CHAT_ARGUMENTS})
        texts.append(text)
    return conversations if exact else texts


def _rendered(
    tokenizer: "PreTrainedTokenizerBase", turns: Sequence[Mapping[str, str]]
) -> str | None:
    """The text of a conversation, as TRL renders it; None if the chat template fails."""
    with suppress(InputError):
        return chat_template.apply(tokenizer, turns, **chat_template.CHAT_ARGUMENTS).rstrip()
    return None
