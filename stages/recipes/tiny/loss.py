"""Targets of pretraining: the next token, and the teacher's distribution where a trace chooses a
way.

The distribution is known (:func:`traces.next_ways`). So the model learns the teacher's choices
without the noise of those that were drawn (distillation of a known policy), and without learning
where a trace begins.
"""

from typing import Any

import torch

from stages.recipes.tiny import traces

#: Kinds of tokens: the number of a line, and the end of one that does not reach the target.
_NUMBER, _SKIP = 1, 2


class TeacherTargets:
    """The teacher's distribution over the first way of a trace, and over the ways to skip after
    each line.

    A teacher that checks lines chooses at the number of a line instead: with the chance *checks* it
    is that of the line before.

    Attributes:
        tokens: (2 W,) those that begin the first line, and those that end a line, for a window of W
            ways; where the teacher judges ways, one more, which skips the poor ones.
    """

    def __init__(
        self,
        tokenizer: Any,
        vocab_size: int,
        device: Any,
        *,
        judges: bool = False,
        checks: float = 0.0,
    ) -> None:
        ends = [*traces.SKIPS, *([traces.SKIP_POOR] if judges else [])]
        self._poor = traces.POOR_SHARE if judges else 0.0
        self._checks = checks
        numbers = [f"{number}. " for number in range(1, traces.MAX_WAYS + 1)]
        ids = tokenizer([*numbers, *(f" {end}\n" for end in ends)], add_special_tokens=False)[
            "input_ids"
        ]
        tokens = torch.tensor([first for first, *_ in ids], device=device)
        self._numbers = tokens[: len(numbers)]
        self._kind = torch.zeros(vocab_size, dtype=torch.long, device=device)  # (V,)
        self._kind[self._numbers] = _NUMBER
        self._kind[tokens[len(numbers) :]] = _SKIP
        self.tokens = torch.cat([tokens[: len(traces.SKIPS)], tokens[len(numbers) :]])

    def __call__(self, labels: torch.Tensor, ways: torch.Tensor) -> torch.Tensor:
        """Return the target distributions (N, V) of the N labels that are not -100.

        Args:
            labels: (B, T), -100 where nothing is trained.
            ways: (B,) the number of ways in the plan of each row.
        """
        trained = labels >= 0
        kind = torch.where(trained, self._kind[labels.clamp(min=0)], 0)  # (B, T)
        number = kind == _NUMBER
        if self._checks:
            return self._checked(labels, number, ways)
        first = number & (number.cumsum(1) == 1)
        choice = first | (kind == _SKIP)
        rows = choice.nonzero()[:, 0]
        width = torch.tensor(
            [traces.window(count) for count in ways.tolist()], device=labels.device
        )[rows, None]
        window = torch.arange(len(traces.SKIPS), device=labels.device) < width
        of_first = first[choice][:, None]
        poor = self._poor * (~of_first & (width > 1))  # (choices, 1)
        chances = (
            torch.cat([window & of_first, (window & ~of_first) * (1 - poor)], 1) / width
        )  # (choices, 2 W)
        if self._poor:
            chances = torch.cat([chances, poor], 1)
        targets = torch.nn.functional.one_hot(labels[trained], len(self._kind)).float()
        chosen = choice[trained].nonzero()  # (choices, 1)
        targets[chosen[:, 0]] = 0
        targets[chosen, self.tokens] = chances
        return targets

    def _checked(
        self, labels: torch.Tensor, number: torch.Tensor, ways: torch.Tensor
    ) -> torch.Tensor:
        targets = torch.nn.functional.one_hot(labels[labels >= 0], len(self._kind)).float()
        rows = number.nonzero()[:, 0]
        way = (labels[number, None] == self._numbers).nonzero()[:, 1]  # (lines,)
        before = torch.cat([way.new_tensor([-1]), way[:-1]])
        first = torch.cat([rows.new_tensor([-1]), rows[:-1]]) != rows
        following = torch.where(first, 0, (before + 1) % ways.to(rows.device)[rows])
        places = number[labels >= 0].nonzero()[:, 0]
        targets[places] = 0
        targets[places, self._numbers[following]] = 1 - self._checks
        targets[places, self._numbers[torch.where(first, 0, before)]] += self._checks
        return targets
