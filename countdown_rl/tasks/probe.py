"""Fixed Countdown puzzles for comparing models and file formats; whether they can be solved does not matter."""

import random
from typing import Any

from countdown_rl.tasks.countdown import CountdownRow


def rows(count: int) -> list[dict[str, Any]]:
    """The first *count* probe puzzles as data rows."""
    rng = random.Random(2024)
    return [
        {
            "task": "countdown",
            "nums": [rng.randint(1, 99) for _ in range(rng.choice((3, 4)))],
            "target": rng.randint(10, 100),
        }
        for _ in range(count)
    ]


def conversations(count: int) -> list[list[dict[str, str]]]:
    """The first *count* probe puzzles as conversations."""
    return [CountdownRow(row).messages() for row in rows(count)]
