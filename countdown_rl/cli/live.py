"""Progress of a training run: means of its last steps."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import fmean

from countdown_rl.cli import console
from countdown_rl.runlog.log import StepRow

#: Steps whose means are shown.
RECENT = 10


@contextmanager
def progress(max_steps: int) -> Iterator[Callable[[StepRow], None]]:
    """Yield a callback for the logged steps of a run."""
    rows: list[StepRow] = []
    with console.progress("step") as update:
        update(0, max_steps, "")

        def show(row: StepRow) -> None:
            rows.append(row)
            reward, correct, length = (
                fmean(getattr(row, name) for row in rows[-RECENT:]) for name in ("reward", "correct", "mean_length")
            )
            update(row.step, max_steps, f"reward {reward:.3f}, solved {correct:.0%}, {length:.0f} tokens")

        yield show
