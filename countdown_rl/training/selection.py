"""Selection of demonstrations and preference pairs among the graded completions of evaluations."""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from countdown_rl.core import artifacts
from countdown_rl.core.errors import InputError
from countdown_rl.evaluation import results
from countdown_rl.evaluation.results import Result
from countdown_rl.evaluation.sample import Sample
from countdown_rl.models import chat_template, ends, load, reference
from countdown_rl.tasks import jsonl
from countdown_rl.tasks.layouts import held_out
from countdown_rl.training.config import CollectOptions
from countdown_rl.training.demonstrations import start_of_text

#: ``datasets`` and ``trl`` take the file of this name in a directory as its split "train", and no other.
FILE = "train.jsonl"


def collect(evaluations: Sequence[Path], options: CollectOptions, out: Path) -> dict[str, Any]:
    """Write a ``demonstrations`` artifact of the completions in *evaluations*, and return its facts.

    Its rows are correct completions, as ``sft`` reads them, or preference pairs, see :func:`_pairs`; each completion of
    a puzzle is taken once, and none of a puzzle in a test split.

    Raises:
        InputError: no completion, or pair, is left.
    """
    artifacts.check_writable(out, "demonstrations")
    read = [results.read(path) for path in evaluations]
    samples = [sample for result in read for sample in result.samples]
    correct = sum(sample.grade.correct for sample in samples)
    test = _test_puzzles(read)
    usable = (sample for sample in samples if sample.row.identity not in test)
    kept = [chosen for group in _by_prompt(usable) if (chosen := _selected(group, options))]
    if not kept:
        wanted = "a correct completion and a wrong one" if options.pairs else "a correct completion"
        limit = f" of at most {options.max_tokens} tokens" if options.max_tokens else ""
        raise InputError(
            f"no training puzzle has {wanted}{limit} ({correct:,} of {len(samples):,} completions are correct, "
            f"{len(test):,} puzzles of a test split are left out); evaluate more --samples of each, or easier puzzles."
        )
    inputs = {f"eval-{index}" if index else "eval": result.manifest.as_input() for index, result in enumerate(read)}
    rows = [row for chosen in kept for row in chosen]
    with artifacts.writing(out, "demonstrations", options=asdict(options), inputs=inputs) as draft:
        draft.facts |= {
            "read": len(samples),
            "correct": correct,
            "kept": len(rows),
            "puzzles": len(kept),
            "test_puzzles": len(test),
            "mean_tokens": sum(right.tokens for right, *_ in rows) / len(rows),
        }
        if options.pairs:
            written = _pairs(rows, _tokenizer(options, inputs["eval"]["manifest"]["inputs"]["model"]))
        else:
            written = [right.row.kept | {"completion": right.completion} for right, *_ in rows]
        jsonl.write_rows(draft.path / FILE, written)
    return draft.facts


def _by_prompt(samples: Iterable[Sample]) -> Iterable[Iterable[Sample]]:
    """The *samples* of each prompt; of those with the same text the first."""
    groups: dict[str, dict[str, Sample]] = {}
    for sample in samples:
        groups.setdefault(json.dumps(sample.row.messages()), {}).setdefault(sample.completion, sample)
    return (group.values() for group in groups.values())


def _selected(samples: Iterable[Sample], options: CollectOptions) -> list[tuple[Sample, ...]]:
    """The correct ones among the *samples* of a prompt; with ``pairs`` each with a wrong one."""
    limit = options.max_tokens or float("inf")
    usable = [sample for sample in samples if sample.tokens <= limit]
    if options.shortest:
        usable.sort(key=lambda sample: sample.tokens)
    sides = [[s for s in usable if s.grade.correct is side] for side in (True, False)[: 1 + options.pairs]]
    return list(zip(*sides, strict=False))[: options.per_puzzle or None]


def _test_puzzles(evaluations: Iterable[Result]) -> set[str]:
    """The identities of the puzzles that are of a test split: by their rows, or as all of the file that was evaluated.

    That file is the test split of data that a model in the chain was trained on, or named as one.
    """
    identities = set()
    for result in evaluations:
        data = result.metrics.data
        links = artifacts.chain(*(entry for entry in result.manifest.inputs.values() if "digest" in entry))
        tests = [link.files.get("test.jsonl", {}).get("sha256") for link in links]
        whole = held_out(Path(data.get("file", "")).stem) == "test" or data["digest"] in tests
        identities |= {sample.row.identity for sample in result.samples if whole or sample.row.split == "test"}
    return identities


def _tokenizer(options: CollectOptions, evaluated: Mapping[str, Any]) -> Any:
    """The tokenizer of ``options.model``, or of the model that was *evaluated*."""
    source, revision = (options.model, None) if options.model else (evaluated["source"], evaluated.get("revision"))
    return load.load_tokenizer(reference.without_weights(reference.resolve(source, revision=revision)))


def _pairs(pairs: Sequence[tuple[Sample, ...]], tokenizer: Any) -> list[dict[str, Any]]:
    """Rows of TRL's preference format: ``prompt``, ``chosen`` and ``rejected``.

    They are messages where the chat template renders these as the text that the model read and wrote, else that text.
    TRL continues no begun turn of the assistant, so that of the prompt opens both answers.
    """
    end, start = ends.end_of_turn(tokenizer), start_of_text(tokenizer)
    conversations: list[dict[str, Any]] = []
    texts: list[dict[str, Any]] = []
    exact = True
    for pair in pairs:
        asked = pair[0].row.prompt()
        turns = asked.turns()
        prompt = chat_template.render(tokenizer, asked.messages())
        rendered = chat_template.Rendered(prompt, asked.prefill)
        continuations = [rendered.continuation(sample.completion) for sample in pair]
        answers = [[{"role": "assistant", "content": asked.prefill + text}] for text in continuations]
        written = [text.removesuffix(end) + end for text in continuations]
        for answer, text in zip(answers, written, strict=True):
            exact = exact and _rendered(tokenizer, turns + answer) == prompt + text
        conversations.append({"prompt": turns, "chosen": answers[0], "rejected": answers[1]})
        conversations[-1]["chat_template_kwargs"] = chat_template.CHAT_ARGUMENTS
        texts.append({"prompt": prompt.removeprefix(start), "chosen": written[0], "rejected": written[1]})
    return conversations if exact else texts


def _rendered(tokenizer: Any, turns: Sequence[Mapping[str, str]]) -> str | None:
    """The text of a conversation, as TRL renders it; None where the chat template fails."""
    with suppress(InputError):
        return chat_template.apply(tokenizer, turns, **chat_template.CHAT_ARGUMENTS).rstrip()
    return None
