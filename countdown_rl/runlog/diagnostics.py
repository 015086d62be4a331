"""Signs that a run is going wrong, read off its log, each told once and in words."""

from collections.abc import Mapping, Sequence

from countdown_rl.runlog.log import StepRow

#: Steps that have to agree before anything is said.
WINDOW = 10
#: For the share right of one kind of puzzle, which is counted over fewer completions.
LONG_WINDOW = 20
#: Nats a token, below which sampling has nothing left to choose between.
NO_ENTROPY = 0.01

_MULTIPLICATION, _ADDITION = "correct_mul_div", "correct_add_sub"


def signs(rows: Sequence[StepRow], refusals: Mapping[str, int], examples: Mapping[str, str]) -> dict[str, str]:
    """What can be seen in *rows*, the newest last: sentences by a short name of their own.

    Args:
        refusals: how often each reason to refuse an answer was met of late.
        examples: for each reason an answer, or the end of a completion, that was refused for it.
    """
    found = {"multiplication": _multiplication(rows)}
    last = rows[-WINDOW:]
    if len(last) == WINDOW:
        found |= {"entropy": _entropy(last), "length": _length(last), "zero": _zero(last, refusals, examples)}
    return {name: text for name, text in found.items() if text}


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
            f"multiplication is dying: of the completions to puzzles that need × or ÷, {now:.0%} are right "
            f"over the last {LONG_WINDOW} steps, against {best:.0%} at best; {advice}"
        )
    easy = [share for row in rows[-LONG_WINDOW:] if (share := row.kinds.get(_ADDITION)) is not None]
    if len(shares) >= 5 * LONG_WINDOW and easy and best < 0.02 and _mean(easy) >= 0.3:
        return (
            f"multiplication is not being learnt: {now:.0%} of the completions to puzzles that need × or ÷ are "
            f"right, {_mean(easy):.0%} of the others; {advice}"
        )
    return ""


def _entropy(last: Sequence[StepRow]) -> str:
    known = [row.entropy for row in last if row.entropy is not None]
    if not known or _mean(known) >= NO_ENTROPY:
        return ""
    return (
        f"entropy has fallen to {_mean(known):.4f} nats a token: all completions of a puzzle are much the same, "
        "and there is little left to learn from; try a lower --learning-rate, a higher --epsilon-high or "
        "--temperature, or --beta 0.01."
    )


def _length(last: Sequence[StepRow]) -> str:
    share = _mean([row.truncated for row in last])
    if share <= 0.5:
        return ""
    return (
        f"{share:.0%} of completions run into the length limit before they end; raise --max-completion-length, "
        "or reward short ones (--reward length:100=0.1)."
    )


def _zero(last: Sequence[StepRow], refusals: Mapping[str, int], examples: Mapping[str, str]) -> str:
    if any(row.correct > 0 for row in last):
        return ""
    text = f"not one completion of the last {WINDOW} steps was right"
    if refusals:
        reason = max(refusals, key=lambda name: (refusals[name], name))
        share = refusals[reason] / sum(refusals.values())
        text += f"; most often ({share:.0%}) the reason is {reason}, as in {examples[reason]!r}"
    return text + "; a model that never succeeds learns nothing: begin with `countdown-rl sft`, or easier puzzles."


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
