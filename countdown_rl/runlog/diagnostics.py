"""Warnings about a training run that goes wrong, read off its log."""

from collections.abc import Mapping, Sequence

from countdown_rl.runlog.log import StepRow

#: Steps over which a condition must hold.
WINDOW = 10
#: The same for one kind of puzzle, of which a step has fewer completions.
LONG_WINDOW = 20
#: Nats per token below which all completions of a puzzle are alike.
NO_ENTROPY = 0.01

_MULTIPLICATION, _ADDITION = "correct_mul_div", "correct_add_sub"


def warnings(rows: Sequence[StepRow], reasons: Mapping[str, int], examples: Mapping[str, str]) -> dict[str, str]:
    """The warnings that *rows*, newest last, give rise to: sentences by a short name.

    Args:
        reasons: counts of the reasons for which recent answers were graded wrong.
        examples: for each reason an answer, or the end of a completion, graded wrong for it.
    """
    texts = {"multiplication": _multiplication(rows)}
    last = rows[-WINDOW:]
    if len(last) == WINDOW:
        texts |= {"entropy": _entropy(last), "length": _length(last), "zero": _zero(last, reasons, examples)}
    return {name: text for name, text in texts.items() if text}


def _multiplication(rows: Sequence[StepRow]) -> str:
    shares = [share for row in rows if (share := row.kinds.get(_MULTIPLICATION)) is not None]
    if len(shares) < LONG_WINDOW:
        return ""
    now = _mean(shares[-LONG_WINDOW:])
    best = max(_mean(shares[end - LONG_WINDOW : end]) for end in range(LONG_WINDOW, len(shares) + 1))
    advice = (
        "the mean hides it: try a lower --learning-rate, --beta 0.01, or data with more of them "
        "(gen-data --balance needs)."
    )
    if best >= 0.05 and now < best / 4:
        return (
            f"multiplication is falling: of the completions to puzzles that need × or ÷, {now:.0%} are "
            f"correct over the last {LONG_WINDOW} steps, against {best:.0%} at best; {advice}"
        )
    easy = [share for row in rows[-LONG_WINDOW:] if (share := row.kinds.get(_ADDITION)) is not None]
    if len(shares) >= 5 * LONG_WINDOW and easy and best < 0.02 and _mean(easy) >= 0.3:
        return (
            f"multiplication is not being learned: {now:.0%} of the completions to puzzles that need × or ÷ are "
            f"correct, {_mean(easy):.0%} of the others; {advice}"
        )
    return ""


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
        text += f"; most often ({share:.0%}) the reason is {reason}, as in {examples[reason]!r}"
    return text + "; GRPO needs some correct completions: start with `countdown-rl sft`, or use easier puzzles."


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
