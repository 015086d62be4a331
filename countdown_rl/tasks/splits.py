"""Splits of a data set: which part of the rows belongs to each, and the names that other projects
give them.
"""

import re

SPLITS = ("train", "valid", "test")
#: Rows fall into 20 parts by their identity: 18 for training, one for validation, one for testing.
PARTS = 20

#: Names of splits that are not for training, as ``datasets`` finds them and as people write them
#: (testmini, dev2).
_TEST = re.compile(r"(?<![a-z])(test|eval|held.?out|hold.?out|bench)")
_VALID = re.compile(r"(?<![a-z])(validation|valid|val|dev|devel|development)(sets?)?(?![a-z])")


def split_at(part: int) -> str:
    """The split of a part."""
    return SPLITS[max(0, part - PARTS + len(SPLITS))]


def parts_of(split: str) -> tuple[int, int]:
    """The first and the last part of *split*."""
    last = PARTS - len(SPLITS) + SPLITS.index(split)
    return (0, last) if split == "train" else (last, last)


def held_out(published: str) -> str | None:
    """The split, "test" or "valid", that rows of a *published* split stay in; None if they are for
    training.
    """
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", published).lower()
    if _TEST.search(words):
        return "test"
    return "valid" if _VALID.search(words) else None
