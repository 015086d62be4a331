"""Warnings about a training run that goes wrong, read off its log."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from countdown_rl.runlog.log import KIND, StepRow

#: Steps over which a condition must hold.
WINDOW = 10
#: The same for a kind of puzzle that is not learned.
LONG_WINDOW = 100
#: Steps whose mean is compared with the best mean of :data:`WINDOW` steps before them.
RECENT = 7
#: A collapse loses more than this share of the best mean, and more than so many standard errors.
LOSS, ERRORS = 0.5, 4.5
#: A loss of nearly everything from a level of a few steps is one too, where the level is high enough for no chance.
EARLY, NEARLY_ALL, HIGH = 3, 0.9, 0.3
#: A kind of puzzle that keeps more than this share of its best mean is not lost.
KEPT = 0.75
#: A best mean below this may be chance.
MIN_BEST = 0.05
#: Nats per token below which all completions of a puzzle are alike.
NO_ENTROPY = 0.01
#: Prefix of the warnings that training has made the model worse.
COLLAPSE = "collapse"

_MULTIPLICATION, _ADDITION = "correct_mul_div", "correct_add_sub"
_KINDS = {_MULTIPLICATION: "puzzles that need × or ÷", _ADDITION: "puzzles solvable with + and − alone"}


def warnings(rows: Sequence[StepRow], reasons: Mapping[str, int], examples: Mapping[str, str]) -> dict[str, str]:
    """The warnings that *rows*, newest last, give rise to: sentences by a short name.

    Args:
        reasons: counts of the reasons, in words, for which recent answers were graded wrong.
        examples: for each reason an answer, or the end of a completion, graded wrong for it.
    """
    texts = {**_collapses(rows), "multiplication": _not_learned(rows)}
    last = rows[-WINDOW:]
    if len(last) == WINDOW:
        texts |= {"entropy": _entropy(last), "length": _length(last), "zero": _zero(last, reasons, examples)}
    return {name: text for name, text in texts.items() if text}


def _collapses(rows: Sequence[StepRow]) -> dict[str, str]:
    """Collapses of the share correct: of all puzzles, or of a kind while others are kept."""
    kinds = {}
    for name in sorted({name for row in rows[-WINDOW:] for name in row.kinds}):
        fall = _fall([share for row in rows if (share := row.kinds.get(name)) is not None])
        if fall and fall.best >= MIN_BEST:
            kinds[name] = fall
    worst = min(kinds, key=lambda name: kinds[name].now / kinds[name].best, default="")
    # Of puzzles by their count of numbers, or by the operators they need, some are lost and others kept.
    if any(fall.now > KEPT * fall.best and (name in _KINDS) == (worst in _KINDS) for name, fall in kinds.items()):
        if not kinds[worst].significant:
            return {}
        return {
            f"collapse of {worst.removeprefix(KIND)}": f"{_kind(worst)} are being unlearned, and the mean hides it: "
            f"{kinds[worst]}; try a lower --learning-rate, --beta 0.01, or data with more of them (gen-data --balance)."
        }
    total, reward = (_fall(shares, early=True) for shares in ([r.correct for r in rows], [r.reward for r in rows]))
    if not total or not total.significant:
        return {}
    if reward and reward.significant:
        return {"collapse": f"training diverges: {total} of all puzzles; try a lower --learning-rate, or --beta 0.01."}
    return {
        "collapse of correctness": f"the reward is kept up without correct answers: {total} of all puzzles; give "
        "correct answers more weight (--reward correct=1), and other rewards less."
    }


def _kind(name: str) -> str:
    return _KINDS.get(name) or f"puzzles of {name.removeprefix(KIND)} numbers"


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


def _not_learned(rows: Sequence[StepRow]) -> str:
    hard, easy = (
        [share for row in rows if (share := row.kinds.get(name)) is not None] for name in (_MULTIPLICATION, _ADDITION)
    )
    if len(hard) < LONG_WINDOW or len(easy) < WINDOW or _best(hard, WINDOW) >= MIN_BEST or _mean(easy[-WINDOW:]) < 0.3:
        return ""
    return (
        f"multiplication is not being learned: {_mean(hard[-WINDOW:]):.0%} of the completions to puzzles that need × "
        f"or ÷ are correct, {_mean(easy[-WINDOW:]):.0%} of the others; try data with more of them (gen-data --balance)."
    )


def _entropy(last: Sequence[StepRow]) -> str:
    known = [row.entropy for row in last if row.entropy is not None]
    if not known or _mean(known) >= NO_ENTROPY:
        return ""
    return (
        f"entropy has fallen to {_mean(known):.4f} nats per token: all completions of a puzzle are nearly equal and "
        "give no advantage; try a lower --learning-rate, a higher --epsilon-high or --temperature, or --beta 0.01."
    )


def _length(last: Sequence[StepRow]) -> str:
    share = _mean([row.truncated for row in last])
    if share <= 0.5:
        return ""
    return (
        f"{share:.0%} of completions are truncated at the length limit; raise --max-completion-length, or reward "
        "short ones (--reward length:100=0.1)."
    )


def _zero(last: Sequence[StepRow], reasons: Mapping[str, int], examples: Mapping[str, str]) -> str:
    if any(row.correct > 0 for row in last):
        return ""
    text = f"no completion of the last {WINDOW} steps was correct"
    if reasons:
        reason = max(reasons, key=lambda name: (reasons[name], name))
        share = reasons[reason] / sum(reasons.values())
        text += f"; most often ({share:.0%}): {reason}, as in {examples[reason]!r}"
    return text + "; GRPO needs some correct completions: start with `countdown-rl sft`, or use easier puzzles."


def _mean(values: Sequence[float]) -> float:
    return sum(values) / max(1, len(values))
