"""Dynamic sampling of DAPO (Yu et al. 2025, arXiv:2503.14476): groups that are all right or all wrong are drawn again.

The puzzles of a draw depend on the seed, the step and the number of the draw alone, so a resumed run draws the same.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from accelerate.utils import gather_object

from countdown_rl.inference.stop import Stop
from countdown_rl.models import chat_template
from countdown_rl.tasks.task import Row
from countdown_rl.training.rollouts import Drawn, Example, Rollouts, example

#: Most draws of a round. Where half of the groups are mixed, four fill 94% of it; where none is, the round takes four
#: times as long, and another start is needed, not more draws.
MAX_DRAWS = 4


class Group(NamedTuple):
    """The examples of one puzzle, their completions, and True if some of these are right and some wrong."""

    examples: list[Example]
    drawn: Drawn
    mixed: bool


class MixedRollouts(Rollouts):
    """Rollouts of rounds whose groups are mixed, as far as :data:`MAX_DRAWS` draws of puzzles from *rows* give them."""

    def __init__(self, stop: Stop, rows: Sequence[Row], seed: int) -> None:
        super().__init__(stop)
        self._rows, self._seed = rows, seed
        self._round: Drawn = {}

    def sample(self, prompts: Sequence[str], trainer: Any) -> Drawn:
        """The completions of the round, which :meth:`examples` sampled."""
        return self._round

    def examples(self, batch: list[Example], trainer: Any) -> list[Example]:
        """Complete *batch*, and others in place of its groups that are not mixed."""
        groups, process = self._groups(batch, trainer), trainer.accelerator.process_index
        count = len(groups)
        for draw in range(1, MAX_DRAWS):
            missing = [index for index, group in enumerate(groups) if not group.mixed]
            most = max(gather_object([len(missing)]))  # all processes complete as many: with some engines they must
            if not most:
                break
            rng = np.random.default_rng((self._seed, trainer.state.global_step, draw))
            indices = rng.integers(len(self._rows), size=(trainer.accelerator.num_processes, most))[process]
            new = [example(self._rows, index, self.stop.tokenizer) for index in indices.tolist()]
            drawn = self._groups([each for each in new for _ in range(trainer.num_generations)], trainer)
            count += most
            for index, group in zip(missing, (group for group in drawn if group.mixed), strict=False):
                groups[index] = group
        trainer.figures["draws"] = float(count * trainer.accelerator.num_processes)
        kept = {name: [each for group in groups for each in group.drawn[name]] for name in groups[0].drawn}
        self._round = {"logprobs": None} | kept
        return [each for group in groups for each in group.examples]

    def _groups(self, batch: list[Example], trainer: Any) -> list[Group]:
        """The groups of *batch*, completed."""
        drawn = super().sample([each["prompt"] for each in batch], trainer)
        texts = list(map(self.stop.decode, drawn["completion_ids"]))
        groups = []
        for start in range(0, len(batch), trainer.num_generations):
            part = slice(start, start + trainer.num_generations)
            row, prompt = self._rows[batch[start]["row"]], batch[start]["prompt"]
            right = {bool(row.grade(chat_template.completion(row, prompt, text)).correct) for text in texts[part]}
            own = {name: values[part] for name, values in drawn.items() if values is not None}
            groups.append(Group(batch[part], own, len(right) > 1))
        return groups
