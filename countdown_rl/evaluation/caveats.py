"""Warnings about evaluations that a referee would give."""

from collections import Counter
from collections.abc import Mapping, Sequence
from math import ceil

from countdown_rl.core.formatting import percent, plural
from countdown_rl.evaluation.results import Result, chain, split
from countdown_rl.evaluation.statistics import Z
from countdown_rl.tasks.registry import task
from countdown_rl.tasks.task import Row

#: The widest interval of an accuracy, and the largest share of truncated completions, without a warning.
WIDEST, MOST_TRUNCATED = 0.2, 0.05
#: Completions without an answer that are tried in other styles.
TRIED = 200
#: Shares below this count as near 0.
NEAR_0 = 0.02
#: Kinds of models that a training run may have made; others are published or belong to a server.
_TRAINED = ("adapter", "directory", "gguf")


def caveats(results: Mapping[str, Result]) -> list[str]:
    """Sentences on what limits the conclusions from *results*, by name; baselines have none."""
    models = {name: result for name, result in results.items() if not result.metrics.is_baseline}
    if not models:
        return []
    names: dict[str, list[str]] = {}
    truncated: dict[int | None, list[str]] = {}
    for name, result in models.items():
        for sentence in _caveats(result):
            names.setdefault(sentence, []).append(name)
        if (cut := result.metrics.truncated or 0.0) > MOST_TRUNCATED:
            share = f"{name} {percent(cut)}" if len(results) > 1 else percent(cut)
            truncated.setdefault(result.metrics.decoding.max_new_tokens, []).append(share)
    sentences = [
        f"{', '.join(of)}: {sentence}" if len(results) > 1 else sentence
        for sentence, of in names.items()
    ]
    for limit, shares in truncated.items():
        at = (
            f"at {plural(limit, 'token')}; raise --max-new-tokens"
            if limit
            else "by a token limit; raise it"
        )
        sentences.append(f"{', '.join(shares)} of the completions are truncated {at}.")
    (first, start), *others = models.items()
    trained = [
        (name, other)
        for name, other in others
        if other.metrics.model.kind in _TRAINED and not other.runs
    ]
    if single := [name for name, other in trained if _origin(other) != _origin(start)]:
        reason = "single seed, so these differences may lie within seed-to-seed variation"
        sentences.append(f"{', '.join(single)}: {reason}; give several seeds as NAME=DIR,DIR,...")
    noun = task(start.metrics.task).noun
    return sentences + [
        f"{name} and {first} have different {noun}s; do not compare their accuracies."
        for name, other in others
        if sorted(other.puzzles) != sorted(start.puzzles)
    ]


def _origin(result: Result) -> str | None:
    """The digest of the last training run in the chain of the model, else that of the model."""
    runs = [link.digest for link in chain(result) if link.kind in ("adapter", "model")]
    return runs[-1] if runs else result.metrics.model.digest


def of_evaluation(result: Result) -> list[str]:
    """Sentences on what limits the conclusions from *result* alone, and on a format that it does not keep."""
    metrics = result.metrics
    hint = no_format(metrics.format, metrics.accuracy, metrics.truncated or 0.0, "--max-new-tokens")
    hints = [hint] if hint and metrics.model.kind != "completions" else []
    return hints + caveats({metrics.model.source: result})


def _caveats(result: Result) -> list[str]:
    """The sentences about *result* alone."""
    metrics, sentences = result.metrics, []
    noun = task(metrics.task).noun
    width = metrics.interval[1] - metrics.interval[0]
    if width > WIDEST:
        # The square of the width of Wilson's interval, times n + Z², never grows with n.
        enough = ceil((metrics.n + Z**2) * (width / WIDEST) ** 2 - Z**2)
        wide = f"the 95% interval is {100 * width:.1f} points wide with {plural(metrics.n, noun)}"
        sentences.append(
            f"{wide}; {plural(enough, noun)} would make it at most {100 * WIDEST:.0f}."
        )
    if metrics.of and metrics.model.kind != "completions":
        part = f"only the first {metrics.n:,} of the {plural(metrics.of, noun)} were evaluated"
        sentences.append(
            f"{part}, which is no result of {metrics.data.get('suite')}; leave --limit out."
        )
    elif metrics.of:
        measured = f"only {metrics.n:,} of the {plural(metrics.of, noun)} have completions"
        sentences.append(f"{measured}, and the others are not counted.")
    if metrics.model.kind == "completions":
        unanswered = [
            (sample.row, sample.completion)
            for sample in result.samples
            if sample.completion and not sample.grade.well_formed
        ]
        if unanswered:
            sentences.append(no_answers(unanswered[:TRIED], len(unanswered), len(result.samples)))
    if chain(result) and split(result) == "training":
        sentences.append(
            f"these are training {noun}s, which say little about new ones; evaluate on the test split."
        )
    return sentences


def no_answers(tried: Sequence[tuple[Row, str]], count: int, n: int) -> str:
    """A sentence about the *count* of *n* completions without an answer that can be read in their style.

    If these are most, it names the styles in which they have one, of the first ones *tried*, with their rows.
    """
    text = f"in {count:,} of {plural(n, 'completion')} no answer can be read in its style"
    answers: Counter[str] = Counter()
    if 2 * count > n:
        for row, completion in tried:
            for style in row.styles:
                grade = type(row)({**row, "style": style}).grade(completion)
                answers[style] += grade.well_formed
    others = [
        f"--style {style} finds one in {found:,} of {len(tried):,}"
        for style, found in answers.most_common()
        if found
    ]
    return f"{'; '.join([text, *others])}."


def no_format(form: float, correct: float, truncated: float, limit: str) -> str:
    """The likely cause and a remedy if the share *form* of completions in the format is near 0; else "".

    If some are *correct*, the format does no harm. *limit* is the option that bounds their tokens.
    """
    if max(form, correct) >= NEAR_0:
        return ""
    text = f"{form:.0%} of the completions keep the format"
    if truncated > 0.5:
        return f"{text}, as {truncated:.0%} are truncated; raise {limit}, or begin with `countdown-rl sft`."
    return f"{text}; begin with `countdown-rl sft`, or try another style (`countdown-rl gen-data --style model_opens`)."
