"""Warnings about a training run that goes wrong, read off its log and its samples."""

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate, pairwise
from statistics import fmean

from countdown_rl.evaluation.caveats import no_format
from countdown_rl.evaluation.sample import Sample
from countdown_rl.evaluation.training_log import StepRow, mean
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
#: Near 0 as a share of correct completions, and as nats per token: all completions of a puzzle are
#: alike.
NEARLY_NONE, NO_ENTROPY = 0.1, 0.01
#: The mean importance ratio lies between these where vLLM's probabilities are those of the policy.
MIN_RATIO, MAX_RATIO = 0.5, 2.0
#: Prefix of the warnings that training has made the model worse.
COLLAPSE = "collapse"
#: Characters of a completion that a warning shows.
EXAMPLE = 300


def warnings(rows: Sequence[StepRow], samples: Sequence[Sample]) -> dict[str, str]:
    """Return warnings as sentences by a short name.

    Args:
        rows: steps of the run, newest last.
        samples: completions of the last round.
    """
    texts: dict[str, str] = {}
    if len(rows) >= WINDOW + RECENT:
        texts |= _collapse(rows)
    if len(rows) >= START:
        texts |= {"start": _start(rows), "ratio": _ratio(rows)}
    if len(rows) >= WINDOW:
        last = mean(rows[-WINDOW:])
        if last.entropy is not None and last.entropy < NO_ENTROPY:
            remedy = "try a lower --learning-rate, a higher --temperature, or --beta 0.01."
            texts["entropy"] = (
                f"entropy has fallen to {last.entropy:.4f} nats per token: all completions of "
                f"a prompt are nearly equal and give no advantage; {remedy}"
            )
        if last.truncated > 0.5:
            share = f"{last.truncated:.0%} of completions are truncated at the length limit"
            remedy = "--max-completion-length, or reward short ones (--reward length:100=0.1)."
            texts["length"] = f"{share}; raise {remedy}"
        if last.correct == 0:
            remedy = f"start with `countdown-rl sft`, or use easier data. {common_fault(samples)}"
            texts["zero"] = f"no completion of the last {WINDOW} steps was correct; {remedy}"
    return {name: text for name, text in texts.items() if text}


def common_fault(samples: Sequence[Sample]) -> str:
    """Return the most frequent reason why *samples* are wrong, with an example."""
    ((reason, count),) = Counter(sample.grade.reason for sample in samples).most_common(1)
    example = next(sample for sample in samples if sample.grade.reason == reason)
    words = task_of(example.row).reason(reason)
    text = " ".join(example.completion.split())[:EXAMPLE]
    return (
        f"Most often ({count / len(samples):.0%}): {words}; for {example.row.headline} the model "
        f"writes: {text}"
    )


def no_signal(form: float, correct: float, truncated: float) -> str:
    """Return what to do where groups have equal rewards.

    Args:
        form: share of completions in the format.
        correct: share of correct ones.
        truncated: share of truncated ones.
    """
    if text := no_format(form, correct, truncated, "--max-completion-length"):
        return text
    share = f"{correct:.1%} of the completions are correct"
    if correct < NEARLY_NONE:
        return f"{share}; begin with `countdown-rl sft`, or use easier data."
    if correct > 1 - NEARLY_NONE:
        return f"{share}; use harder data."
    return "raise --temperature or --num-generations."


def _start(rows: Sequence[StepRow]) -> str:
    """Return what to do, if the first steps have no advantages or no answers."""
    first = mean(rows[:START])
    if first.frac_reward_zero_std < 1:
        limit = "--max-completion-length"
        return no_format(first.format, first.correct, first.truncated, limit)
    cause = no_signal(first.format, first.correct, first.truncated)
    return (
        f"in the first {START} steps all completions of each prompt had equal rewards, so no "
        f"advantage: {cause}"
    )


def _ratio(rows: Sequence[StepRow]) -> str:
    """Return what to do, if the policy's probabilities are not those that vLLM reports."""
    ratio = mean(rows[-START:]).importance_sampling_ratio
    if ratio is None or MIN_RATIO <= ratio <= MAX_RATIO:
        return ""
    return (
        f"the policy gives tokens {ratio:.2g} times the probability that vLLM reports "
        f"(importance ratio, mean of {START} steps), which biases the loss; leave out top_p, top_k "
        "and min_p, start a server with --logprobs-mode processed_logprobs, or give --rollouts "
        "transformers."
    )


def _collapse(rows: Sequence[StepRow]) -> dict[str, str]:
    """A collapse of accuracy, with that of the reward or without it."""
    fall = _fall([row.correct for row in rows])
    if not fall:
        return {}
    if _fall([row.reward for row in rows]):
        text = f"training diverges: {fall}; try a lower --learning-rate, or --beta 0.01."
        return {COLLAPSE: text}
    remedy = "give correct answers more weight (--reward correct=1), and other rewards less."
    text = f"the reward is kept up without correct answers: {fall}; {remedy}"
    return {f"{COLLAPSE} of correctness": text}


def _fall(shares: Sequence[float]) -> str:
    """The fall of *shares*, newest last, in words if it is a collapse."""
    before = shares[:-RECENT]
    now = fmean(shares[-RECENT:])
    sums = list(accumulate(before, initial=0.0))
    best = max(end - start for start, end in zip(sums, sums[WINDOW:], strict=False)) / WINDOW
    # From differences of neighboring steps, which a trend hardly changes.
    variance = fmean((second - first) ** 2 for first, second in pairwise(before)) / 2
    error = (variance * (1 / WINDOW + 1 / RECENT)) ** 0.5
    if best < MIN_BEST or best - now <= max(LOSS * best, ERRORS * error):
        return ""
    return f"{now:.0%} correct over the last {RECENT} steps, against {best:.0%} at best"
