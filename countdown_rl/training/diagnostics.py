"""Warnings about a training run that goes wrong, read off its log and its samples."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from countdown_rl.evaluation.sample import Sample
from countdown_rl.tasks import advice
from countdown_rl.tasks.registry import task_of
from countdown_rl.tasks.task import Task
from countdown_rl.training.log import GROUP, StepRow

#: Steps over which a condition must hold.
WINDOW = 10
#: Steps after which a run that cannot learn is named, and whose importance ratio is averaged.
START = 3
#: Steps whose mean is compared with the best mean of :data:`WINDOW` steps before them.
RECENT = 7
#: A collapse loses more than this share of the best mean, and more than so many standard errors.
LOSS, ERRORS = 0.5, 4.5
#: A kind of puzzle that keeps more than this share of its best mean is not lost; a best mean below the second number
#: may be chance.
KEPT, MIN_BEST = 0.75, 0.05
#: Nats per token below which all completions of a puzzle are alike.
NO_ENTROPY = 0.01
#: The mean importance ratio lies between these where vLLM's probabilities are those of the policy.
MIN_RATIO, MAX_RATIO = 0.5, 2.0
#: Prefix of the warnings that training has made the model worse.
COLLAPSE = "collapse"
#: Characters of a completion that a warning shows.
EXAMPLE = 300


def warnings(rows: Sequence[StepRow], samples: Sequence[Sample]) -> dict[str, str]:
    """The warnings about the steps *rows*, newest last: sentences by a short name.

    Args:
        samples: the completions of the last round.
    """
    task = task_of(samples[0].row)
    texts = _collapse(rows, task) | {"start": _start(rows[:START]), "ratio": _ratio(rows[-START:])}
    last = rows[-WINDOW:]
    if len(last) == WINDOW:
        entropies = [row.entropy for row in last if row.entropy is not None]
        if entropies and _mean(entropies) < NO_ENTROPY:
            texts["entropy"] = (
                f"entropy has fallen to {_mean(entropies):.4f} nats per token: all completions of a prompt are nearly "
                "equal and give no advantage; try a lower --learning-rate, a higher --temperature, or --beta 0.01."
            )
        if (truncated := _mean([row.truncated for row in last])) > 0.5:
            texts["length"] = (
                f"{truncated:.0%} of completions are truncated at the length limit; raise --max-completion-length, or "
                "reward short ones (--reward length:100=0.1)."
            )
        if not any(row.correct > 0 for row in last):
            texts["zero"] = (
                f"no completion of the last {WINDOW} steps was correct; start with `countdown-rl sft`, or use easier "
                f"data. {common_fault(samples)}"
            )
    return {name: text for name, text in texts.items() if text}


def common_fault(samples: Sequence[Sample]) -> str:
    """The most frequent reason why *samples* are wrong, with an example."""
    ((reason, count),) = Counter(sample.grade.reason for sample in samples).most_common(1)
    example = next(sample for sample in samples if sample.grade.reason == reason)
    return (
        f"Most often ({count / len(samples):.0%}): {task_of(example.row).reason(reason)}; for {example.row.headline} "
        f"the model writes: {' '.join(example.completion.split())[:EXAMPLE]}"
    )


def _start(first: Sequence[StepRow]) -> str:
    """The cause, if the *first* steps have no advantages or no answers."""
    if len(first) < START:
        return ""
    form, correct, truncated = (
        _mean([getattr(row, name) for row in first]) for name in ("format", "correct", "truncated")
    )
    cause = advice.no_format(form, correct, truncated, "--max-completion-length")
    if any(row.frac_reward_zero_std < 1 for row in first):
        return cause
    if not cause and correct < MIN_BEST:
        cause = "hardly any answer is correct; begin with `countdown-rl sft`, or use easier data."
    if not cause and correct > 1 - MIN_BEST:
        cause = "nearly all answers are correct; use harder data."
    return (
        f"in the first {START} steps all completions of each prompt had equal rewards, which give no advantage: "
        f"{cause or 'raise --temperature or --num-generations.'}"
    )


def _ratio(last: Sequence[StepRow]) -> str:
    """The likely cause, if the policy's probabilities are not those that vLLM reports."""
    ratios = [row.importance_sampling_ratio for row in last if row.importance_sampling_ratio is not None]
    if len(ratios) < START or MIN_RATIO <= (ratio := _mean(ratios)) <= MAX_RATIO:
        return ""
    cause = (
        "it leaves out tokens that the policy samples, or has other weights; leave top_p, top_k and min_p out"
        if ratio < MIN_RATIO
        else "it reports other probabilities than it samples with, or has other weights; start a server with "
        "--logprobs-mode processed_logprobs"
    )
    return (
        f"the policy gives tokens {ratio:.2g} times the probability that vLLM reports (importance ratio, mean of "
        f"{START} steps), which biases the loss: {cause}, or give --rollouts transformers."
    )


@dataclass(frozen=True)
class _Fall:
    """The best mean share of :data:`WINDOW` steps, and the present one; *significant* if that is a collapse."""

    best: float
    now: float
    significant: bool

    def __str__(self) -> str:
        return f"{self.now:.0%} correct over the last {RECENT} steps, against {self.best:.0%} at best"


def _collapse(rows: Sequence[StepRow], task: Task) -> dict[str, str]:
    """A collapse of accuracy: of a group's value while others of that group are kept, or of all rows."""
    columns = sorted({column for row in rows[-WINDOW:] for column in row.groups})
    by_column = {
        name: _fall([share for row in rows if (share := row.groups.get(name)) is not None]) for name in columns
    }
    falls = {name: fall for name, fall in by_column.items() if fall.best >= MIN_BEST}
    worst = min(falls, key=lambda name: falls[name].now / falls[name].best, default="")
    group, _, value = worst.removeprefix(GROUP).partition("_")
    others = (fall for name, fall in falls.items() if name.startswith(f"{GROUP}{group}_"))
    if any(fall.now > KEPT * fall.best for fall in others):
        if not falls[worst].significant:
            return {}
        return {
            f"{COLLAPSE} of {group}_{value}": f"rows with {task.group(group).name(value)} are being unlearned, and the "
            f"mean hides it: {falls[worst]}; try a lower --learning-rate, --beta 0.01, or data with more of them."
        }
    total, reward = _fall([row.correct for row in rows]), _fall([row.reward for row in rows])
    if not total.significant:
        return {}
    if reward.significant:
        return {COLLAPSE: f"training diverges: {total} of all rows; try a lower --learning-rate, or --beta 0.01."}
    return {
        f"{COLLAPSE} of correctness": f"the reward is kept up without correct answers: {total} of all rows; give "
        "correct answers more weight (--reward correct=1), and other rewards less."
    }


def _fall(shares: Sequence[float]) -> _Fall:
    """The fall of *shares*, newest last."""
    before, now = shares[:-RECENT], _mean(shares[-RECENT:])
    if len(before) < WINDOW:
        return _Fall(0.0, now, False)
    sums = list(accumulate(before, initial=0.0))
    best = max(end - start for start, end in zip(sums, sums[WINDOW:], strict=False)) / WINDOW
    # From differences of neighboring steps, which a trend hardly changes.
    variance = _mean([(second - first) ** 2 for first, second in pairwise(before)]) / 2
    error = (variance * (1 / WINDOW + 1 / RECENT)) ** 0.5
    return _Fall(best, now, best >= MIN_BEST and best - now > max(LOSS * best, ERRORS * error))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / max(1, len(values))
