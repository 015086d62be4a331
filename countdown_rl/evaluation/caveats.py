"""Warnings about evaluations that a referee would give."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import ceil

from countdown_rl.core.formatting import interval, percent, plural
from countdown_rl.evaluation.results import Result, chain
from countdown_rl.evaluation.sample import Metrics, Overlap
from countdown_rl.evaluation.statistics import Z
from countdown_rl.tasks.registry import task
from countdown_rl.tasks.task import Row

#: The widest interval and the largest share of truncated completions without a warning.
WIDEST, MOST_TRUNCATED = 0.2, 0.05
#: Completions without an answer that are tried in other styles.
TRIED = 200
#: Shares below this count as near 0, and truncation above this explains a missing format.
NEAR_0, MOSTLY = 0.02, 0.5
#: Kinds of models that a training run may have made; others are published or belong to a server.
_TRAINED = ("adapter", "directory", "gguf")


def caveats(results: Mapping[str, Result]) -> list[str]:
    """Sentences on what limits the conclusions from *results*, by name; baselines have none."""
    models = {name: result for name, result in results.items() if not result.metrics.is_baseline}
    if not models:
        return []
    is_single = len(results) == 1
    names: dict[str, list[str]] = {}
    truncated: dict[int | None, list[str]] = {}
    for name, result in models.items():
        for sentence in _caveats(result):
            names.setdefault(sentence, []).append(name)
        share = result.metrics.truncated or 0.0
        if share > MOST_TRUNCATED:
            limit = result.metrics.decoding.max_new_tokens
            words = percent(share) if is_single else f"{name} {percent(share)}"
            truncated.setdefault(limit, []).append(words)

    sentences = list(names)
    if not is_single:
        sentences = [f"{', '.join(of)}: {sentence}" for sentence, of in names.items()]
    for limit, shares in truncated.items():
        remedy = f" at {limit} tokens; raise --max-new-tokens" if limit else "; raise their limit"
        sentences.append(f"{', '.join(shares)} of the completions are truncated{remedy}.")
    return sentences + list(_comparison(models))


def of_evaluation(result: Result) -> list[str]:
    """Sentences on what limits the conclusions from *result*, and on a format that it lacks."""
    metrics = result.metrics
    truncated = metrics.truncated or 0.0
    hint = no_format(metrics.format, metrics.accuracy, truncated, "--max-new-tokens")
    if not hint or metrics.model.kind == "completions":
        return caveats({metrics.model.source: result})
    if truncated > MOSTLY:  # the hint tells it
        result = replace(result, metrics=replace(metrics, truncated=None))
    return [hint, *caveats({metrics.model.source: result})]


def _comparison(models: Mapping[str, Result]) -> Iterator[str]:
    """Yield the sentences about *models* in comparison with the first."""
    start, *_ = models.values()
    single = []
    for name, other in models.items():
        is_trained = other.metrics.model.kind in _TRAINED and not other.runs
        if is_trained and _origin(other) != _origin(start):
            single.append(name)
    if single:
        reason = "single seed, so these differences may lie within seed-to-seed variation"
        yield f"{', '.join(single)}: {reason}; give several seeds as NAME=DIR,DIR,..."


def _origin(result: Result) -> str | None:
    """The digest of the last training run in the chain of the model, else that of the model."""
    runs = [link.digest for link in chain(result) if link.kind in ("adapter", "model")]
    return runs[-1] if runs else result.metrics.model.digest


def _caveats(result: Result) -> Iterator[str]:
    """Yield the sentences about *result* alone."""
    metrics = result.metrics
    noun = task(metrics.task).noun
    total = plural(metrics.n, noun)

    width = metrics.interval[1] - metrics.interval[0]
    if width > WIDEST:
        # The square of the width of Wilson's interval, times n + Z², never grows with n.
        enough = ceil((metrics.n + Z**2) * (width / WIDEST) ** 2 - Z**2)
        yield (
            f"the 95% interval is {100 * width:.1f} points wide with {total}; "
            f"{plural(enough, noun)} would make it at most {100 * WIDEST:.0f}."
        )
    if metrics.of:
        yield _partial(metrics, noun)
    if metrics.overlap and metrics.overlap.trained:
        yield _trained_on(metrics.overlap, total)
    for name, breakdown in metrics.groups.items():
        unsolvable = breakdown.get(task(metrics.task).group(name).unsolvable)
        if unsolvable:
            yield f"{unsolvable.n:,} of {total} have no solution; a correct completion says so."
    sizes = sorted(set(map(len, result.by_puzzle)))
    if len(sizes) > 1:
        yield (
            f"the {noun}s have {sizes[0]} to {sizes[-1]} completions, so there is the mean accuracy "
            "and no pass@k; give equally many of each."
        )
    if metrics.model.kind == "completions":
        unanswered = [
            (sample.row, sample.completion)
            for sample in result.samples
            if sample.completion and not sample.grade.well_formed
        ]
        if unanswered:
            yield no_answers(unanswered[:TRIED], len(unanswered), len(result.samples))


def _partial(metrics: Metrics, noun: str) -> str:
    """The sentence about rows that were not measured."""
    asked = plural(metrics.of or 0, noun)
    if metrics.model.kind == "completions":
        return (
            f"only {metrics.n:,} of the {asked} have completions, and the others are not counted."
        )
    return (
        f"only the first {metrics.n:,} of the {asked} were evaluated, which is no result of "
        f"{metrics.data.get('suite')}; leave --limit out."
    )


def _trained_on(overlap: Overlap, total: str) -> str:
    """The sentence about the *overlap* of *total* rows with those of training."""
    text = f"{overlap.trained:,} of {total} were trained on"
    if overlap.others is None:
        return f"{text}, which say little about new ones; evaluate on the test split."
    others = overlap.others
    solved = f"{percent(others.accuracy)} ({interval(others.interval)})"
    return f"{text}; on the other {others.n:,}: {solved}."


def no_answers(tried: Sequence[tuple[Row, str]], count: int, n: int) -> str:
    """A sentence about completions without an answer that can be read in their style.

    Args:
        tried: the first ones, with their rows. If most of *n* have no answer, the sentence names
            the styles in which these have one.
        count: their number.
        n: the number of all completions.
    """
    text = f"in {count:,} of {plural(n, 'completion')} no answer can be read in their style"
    answers: Counter[str] = Counter()
    if 2 * count > n:
        for row, completion in tried:
            for style in row.styles:
                grade = type(row)({**row, "style": style}).grade(completion)
                answers[style] += grade.well_formed
    for style, found in answers.most_common():
        if found:
            text += f"; --style {style} finds one in {found:,} of {len(tried):,}"
    return f"{text}."


def no_format(form: float, correct: float, truncated: float, limit: str) -> str:
    """The likely cause and a remedy if few completions are in the format; else "".

    Args:
        form: the share in the format.
        correct: the share of correct ones; if some are, the format does no harm.
        truncated: the share that a token limit cut off.
        limit: the option of that limit.
    """
    if max(form, correct) >= NEAR_0:
        return ""
    text = f"{form:.0%} of the completions keep the format"
    if truncated > MOSTLY:
        return (
            f"{text}, as {truncated:.0%} are truncated; "
            f"raise {limit}, or begin with `countdown-rl sft`."
        )
    return (
        f"{text}; begin with `countdown-rl sft`, "
        "or try another style (`countdown-rl gen-data --style model_opens`)."
    )
