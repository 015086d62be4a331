"""Warnings about a training run that goes wrong, read off its log."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from countdown_rl.tasks import advice
from countdown_rl.tasks.task import Task
from countdown_rl.training.log import GROUP, StepRow

#: Steps over which a condition must hold, and those of a kind of puzzle that is not learned.
WINDOW, LONG_WINDOW = 10, 100
#: First steps, after which a run that cannot learn is named; the last ones, whose ratio is looked at.
START = 3
#: Steps whose mean is compared with the best mean of :data:`WINDOW` steps before them.
RECENT = 7
#: A collapse loses more than this share of the best mean, and more than so many standard errors.
LOSS, ERRORS = 0.5, 4.5
#: The mean of the first few steps is enough where it was too high for chance, and nearly all of it is lost.
EARLY, NEARLY_ALL, HIGH = 3, 0.9, 0.3
#: A kind of puzzle that keeps more than this share of its best mean is not lost.
KEPT = 0.75
#: A best mean below this may be chance; with more than the second mean a kind of puzzle is solved.
MIN_BEST, LEARNED = 0.05, 0.3
#: Nats per token below which all completions of a puzzle are alike.
NO_ENTROPY = 0.01
#: The mean importance ratio lies between these where vLLM's probabilities are those of the policy.
MIN_RATIO, MAX_RATIO = 0.5, 2.0
#: Prefix of the warnings that training has made the model worse.
COLLAPSE = "collapse"


def warnings(
    rows: Sequence[StepRow], task: Task, reasons: Mapping[str, int], examples: Mapping[str, str]
) -> dict[str, str]:
    """The warnings that *rows*, newest last, give rise to: sentences by a short name.

    Args:
        task: names the groups.
        reasons: counts of the reasons, in words, for which recent answers were graded wrong.
        examples: for each reason an answer, or the end of a completion, graded wrong for it.
    """
    texts = _collapse(rows, task) | _not_learned(rows, task)
    texts |= {"start": _start(rows[:START]), "ratio": _ratio(rows[-START:])}
    last = rows[-WINDOW:]
    if len(last) == WINDOW:
        entropies = [row.entropy for row in last if row.entropy is not None]
        if entropies and _mean(entropies) < NO_ENTROPY:
            texts["entropy"] = (
                f"entropy has fallen to {_mean(entropies):.4f} nats per token: all completions of a prompt are nearly "
                "equal and give no advantage; try a lower --learning-rate, a higher --temperature or epsilon_high, or "
                "--beta 0.01."
            )
        if (truncated := _mean([row.truncated for row in last])) > 0.5:
            texts["length"] = (
                f"{truncated:.0%} of completions are truncated at the length limit; raise --max-completion-length, or "
                "reward short ones (--reward length:100=0.1)."
            )
        if not any(row.correct > 0 for row in last):
            text = f"no completion of the last {WINDOW} steps was correct"
            if reasons:
                reason = max(reasons, key=lambda name: (reasons[name], name))
                share = reasons[reason] / sum(reasons.values())
                text += f"; most often ({share:.0%}): {reason}, as in {examples[reason]!r}"
            advised = "start with `countdown-rl sft`, or use easier data"
            texts["zero"] = f"{text}; GRPO needs some correct completions: {advised}."
    return {name: text for name, text in texts.items() if text}


def _start(first: Sequence[StepRow]) -> str:
    """A run whose *first* steps have no advantages, or no answers."""
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
    """A policy whose probabilities are not those that vLLM reports."""
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


def _collapse(rows: Sequence[StepRow], task: Task) -> dict[str, str]:
    """A collapse of the share correct: of all rows, or of a group's value while others of that group are kept."""
    falls = {}
    for column, shares in _shares(rows, rows[-WINDOW:]).items():
        fall = _fall(shares)
        if fall and fall.best >= MIN_BEST:
            falls[column] = fall
    worst = min(falls, key=lambda column: falls[column].now / falls[column].best, default="")
    if any(fall.now > KEPT * fall.best and _group(column) == _group(worst) for column, fall in falls.items()):
        if not falls[worst].significant:
            return {}
        return {
            f"{COLLAPSE} of {worst.removeprefix(GROUP)}": f"rows with {_name(worst, task)} are being unlearned, and "
            f"the mean hides it: {falls[worst]}; try a lower --learning-rate, --beta 0.01, or data with more of them."
        }
    total, reward = (_fall(shares, early=True) for shares in ([r.correct for r in rows], [r.reward for r in rows]))
    if not total or not total.significant:
        return {}
    if reward and reward.significant:
        return {COLLAPSE: f"training diverges: {total} of all rows; try a lower --learning-rate, or --beta 0.01."}
    return {
        f"{COLLAPSE} of correctness": f"the reward is kept up without correct answers: {total} of all rows; give "
        "correct answers more weight (--reward correct=1), and other rewards less."
    }


def _not_learned(rows: Sequence[StepRow], task: Task) -> dict[str, str]:
    """A group's value that is not learned while another one of that group is solved."""
    shares = {column: values for column, values in _shares(rows, rows).items() if len(values) >= WINDOW}
    texts = {}
    for column, values in shares.items():
        if len(values) < LONG_WINDOW or _best(values, WINDOW) >= MIN_BEST:
            continue
        for other, others in shares.items():
            if _group(other) == _group(column) and (level := _mean(others[-WINDOW:])) >= LEARNED:
                texts[f"{column.removeprefix(GROUP)} not learned"] = (
                    f"{_name(column, task)}: not being learned, with {_mean(values[-WINDOW:]):.0%} of the completions "
                    f"correct where {_name(other, task)} has {level:.0%}; try data with more such rows."
                )
    return texts


def _shares(rows: Sequence[StepRow], among: Sequence[StepRow]) -> dict[str, list[float]]:
    """The shares correct in *rows* by the group columns that *among* has."""
    columns = sorted({column for row in among for column in row.groups})
    return {column: [share for row in rows if (share := row.groups.get(column)) is not None] for column in columns}


def _group(column: str) -> str:
    return column.removeprefix(GROUP).partition("_")[0]


def _name(column: str, task: Task) -> str:
    group, _, value = column.removeprefix(GROUP).partition("_")
    return task.group(group).name(value)


@dataclass(frozen=True)
class _Fall:
    """The best mean share of :data:`WINDOW` steps, and the present one; *significant* if that is a collapse."""

    best: float
    now: float
    significant: bool

    def __str__(self) -> str:
        return f"{self.now:.0%} correct over the last {RECENT} steps, against {self.best:.0%} at best"


def _fall(shares: Sequence[float], *, early: bool = False) -> _Fall | None:
    """The fall of *shares*, newest last; None where there are too few. With *early* a few may be enough."""
    before, now = shares[:-RECENT], _mean(shares[-RECENT:])
    if early and len(before) >= EARLY and (best := _best(before, EARLY)) >= HIGH and now < (1 - NEARLY_ALL) * best:
        return _Fall(best, now, True)
    if len(before) < WINDOW:
        return None
    best = _best(before, WINDOW)
    # From differences of neighbouring steps, which a trend hardly changes.
    variance = _mean([(second - first) ** 2 for first, second in pairwise(before)]) / 2
    error = (variance * (1 / WINDOW + 1 / RECENT)) ** 0.5
    return _Fall(best, now, best >= MIN_BEST and best - now > max(LOSS * best, ERRORS * error))


def _best(shares: Sequence[float], count: int) -> float:
    """The highest mean of *count* shares in a row."""
    sums = list(accumulate(shares, initial=0.0))
    return max(end - start for start, end in zip(sums, sums[count:], strict=False)) / count


def _mean(values: Sequence[float]) -> float:
    return sum(values) / max(1, len(values))
