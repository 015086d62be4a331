"""Warnings about a training run that goes wrong, read off its log and its samples."""

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate, pairwise

from countdown_rl.evaluation.caveats import no_format
from countdown_rl.evaluation.sample import Sample
from countdown_rl.evaluation.training_log import StepRow
from countdown_rl.tasks.registry import task_of

#: Steps over which a condition must hold.
WINDOW = 10
#: Steps after which a run that cannot learn is named, and whose importance ratio is averaged.
START = 3
#: Steps whose mean is compared with the best mean of :data:`WINDOW` steps before them.
RECENT = 7
#: A collapse loses more than this share of the best mean, and more than so many standard errors.
LOSS, ERRORS = 0.5, 4.5
#: A best mean below this may be chance.
MIN_BEST = 0.05
#: Near 0 as a share of correct completions, and as nats per token: all completions of a puzzle are alike.
NEARLY_NONE, NO_ENTROPY = 0.1, 0.01
#: The mean importance ratio lies between these where vLLM's probabilities are those of the policy.
MIN_RATIO, MAX_RATIO = 0.5, 2.0
#: Prefix of the warnings that training has made the model worse.
COLLAPSE = "collapse"
#: Characters of a completion that a warning shows.
EXAMPLE = 300


def warnings(rows: Sequence[StepRow], samples: Sequence[Sample]) -> dict[str, str]:
    """Warnings about the steps *rows*, newest last, and the *samples* of the last round: sentences by a short name."""
    texts = _collapse(rows) | {"start": _start(rows[:START]), "ratio": _ratio(rows[-START:])}
    last = rows[-WINDOW:]
    if len(last) == WINDOW:
        entropies = [row.entropy for row in last if row.entropy is not None]
        if entropies and _mean(entropies) < NO_ENTROPY:
            remedy = "try a lower --learning-rate, a higher --temperature, or --beta 0.01."
            texts["entropy"] = (
                f"entropy has fallen to {_mean(entropies):.4f} nats per token: all completions of a prompt are nearly "
                f"equal and give no advantage; {remedy}"
            )
        if (truncated := _mean([row.truncated for row in last])) > 0.5:
            remedy = "--max-completion-length, or reward short ones (--reward length:100=0.1)."
            texts["length"] = (
                f"{truncated:.0%} of completions are truncated at the length limit; raise {remedy}"
            )
        if not any(row.correct > 0 for row in last):
            remedy = f"start with `countdown-rl sft`, or use easier data. {common_fault(samples)}"
            texts["zero"] = f"no completion of the last {WINDOW} steps was correct; {remedy}"
    return {name: text for name, text in texts.items() if text}


def common_fault(samples: Sequence[Sample]) -> str:
    """The most frequent reason why *samples* are wrong, with an example."""
    ((reason, count),) = Counter(sample.grade.reason for sample in samples).most_common(1)
    example = next(sample for sample in samples if sample.grade.reason == reason)
    return (
        f"Most often ({count / len(samples):.0%}): {task_of(example.row).reason(reason)}; for {example.row.headline} "
        f"the model writes: {' '.join(example.completion.split())[:EXAMPLE]}"
    )


def no_signal(form: float, correct: float, truncated: float) -> str:
    """What to do where groups have equal rewards, by the shares of completions in the format, correct and truncated."""
    if text := no_format(form, correct, truncated, "--max-completion-length"):
        return text
    if correct < NEARLY_NONE:
        return f"{correct:.1%} of the completions are correct; begin with `countdown-rl sft`, or use easier data."
    if correct > 1 - NEARLY_NONE:
        return f"{correct:.0%} of the completions are correct; use harder data."
    return "raise --temperature or --num-generations."


def _start(first: Sequence[StepRow]) -> str:
    """What to do, if the *first* steps have no advantages or no answers."""
    if len(first) < START:
        return ""
    names = ("format", "correct", "truncated")
    form, correct, truncated = (_mean([getattr(row, name) for row in first]) for name in names)
    if any(row.frac_reward_zero_std < 1 for row in first):
        return no_format(form, correct, truncated, "--max-completion-length")
    cause = no_signal(form, correct, truncated)
    return f"in the first {START} steps all completions of each prompt had equal rewards, so no advantage: {cause}"


def _ratio(last: Sequence[StepRow]) -> str:
    """What to do, if the policy's probabilities are not those that vLLM reports."""
    ratios = [
        row.importance_sampling_ratio for row in last if row.importance_sampling_ratio is not None
    ]
    if len(ratios) < START or MIN_RATIO <= (ratio := _mean(ratios)) <= MAX_RATIO:
        return ""
    return (
        f"the policy gives tokens {ratio:.2g} times the probability that vLLM reports (importance ratio, mean of "
        f"{START} steps), which biases the loss; leave out top_p, top_k and min_p, start a server with "
        f"--logprobs-mode processed_logprobs, or give --rollouts transformers."
    )


def _collapse(rows: Sequence[StepRow]) -> dict[str, str]:
    """A collapse of accuracy, with that of the reward or without it."""
    fall = _fall([row.correct for row in rows])
    if not fall:
        return {}
    if _fall([row.reward for row in rows]):
        return {
            COLLAPSE: f"training diverges: {fall}; try a lower --learning-rate, or --beta 0.01."
        }
    remedy = "give correct answers more weight (--reward correct=1), and other rewards less."
    return {
        f"{COLLAPSE} of correctness": f"the reward is kept up without correct answers: {fall}; {remedy}"
    }


def _fall(shares: Sequence[float]) -> str:
    """The fall of *shares*, newest last, in words if it is a collapse."""
    before, now = shares[:-RECENT], _mean(shares[-RECENT:])
    if len(before) < WINDOW:
        return ""
    sums = list(accumulate(before, initial=0.0))
    best = max(end - start for start, end in zip(sums, sums[WINDOW:], strict=False)) / WINDOW
    # From differences of neighboring steps, which a trend hardly changes.
    variance = _mean([(second - first) ** 2 for first, second in pairwise(before)]) / 2
    error = (variance * (1 / WINDOW + 1 / RECENT)) ** 0.5
    if best < MIN_BEST or best - now <= max(LOSS * best, ERRORS * error):
        return ""
    return f"{now:.0%} correct over the last {RECENT} steps, against {best:.0%} at best"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / max(1, len(values))
