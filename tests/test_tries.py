"""What a model itself tries, with a stand-in for what writes."""

import pytest

from countdown_rl import models, tries
from countdown_rl.generation import Completion

ROWS = [{"nums": [7, 50], "target": 46, "id": "a"}, {"nums": [3, 9], "target": 12, "id": "b"}]


@pytest.fixture(scope="module")
def loaded():
    models.quiet()
    return models.load(models.resolve("countdown-tiny"), precision="fp32")


def tried(monkeypatch, loaded, *said):
    """The tries for ROWS of a model that says *said* each time, and the prompts it was given."""
    prompts = []

    class Writer:
        def __init__(self, *_):
            pass

        def complete(self, ids, number):
            prompts.append([loaded.tokenizer.decode(one) for one in ids])
            text = said[len(prompts) - 1]
            return [Completion(text, 9, text.endswith(">")) for _ in ids]

    monkeypatch.setattr(tries, "Generator", Writer)
    return tries.tries(loaded, ROWS, seed=1), prompts


GAVE_UP = "</think>\n<answer>impossible</answer>"


def test_a_model_that_gives_up_is_asked_to_go_on(monkeypatch, loaded):
    said = f"50 - 7 = 43 no\n{GAVE_UP}", f"50 + 7 = 57 no\n{GAVE_UP}", GAVE_UP, "50 * 7 = 350 no\n50"
    found, prompts = tried(monkeypatch, loaded, *said)
    assert found == [["50 - 7 = 43", "50 + 7 = 57", "50 * 7 = 350"]] * 2
    assert len(prompts) == tries.ROUNDS
    assert all(prompt.endswith("50 - 7 = 43 no\n50 + 7 = 57 no\n") for prompt in prompts[2])


@pytest.mark.parametrize("end", ["50 - 7 = 43 no\n", "50 - 4 = 46 yes\n", "hm\n"])
def test_a_search_ends_where_it_repeats_itself_or_says_yes_or_nothing_that_can_be_read(monkeypatch, loaded, end):
    found, prompts = tried(monkeypatch, loaded, f"50 - 7 = 43 no\n{end}50 + 7 = 57 no\n")
    assert found == [["50 - 7 = 43"]] * 2
    assert len(prompts) == 1
