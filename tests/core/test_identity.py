"""Identity of a run: options, inputs and code decide it."""

from pathlib import Path

import pytest

from countdown_rl.core import artifacts
from countdown_rl.core.errors import ArtifactError
from countdown_rl.core.identity import Identity, finished


def test_two_runs_are_the_same_where_options_and_inputs_are(here):
    data = {"digest": "d", "kind": "data"}
    out = Path("eval")
    with artifacts.writing(out, "eval", options={"n": 1}, inputs={"data": data}) as draft:
        (draft.path / "rows.jsonl").write_text("rows")
    same = Identity({"n": 1}, {"data": data})
    other = Identity({"n": 2}, {"data": {}})
    assert finished(out, "eval", same, overwrite=False)
    assert finished(out, "eval", other, overwrite=True) is None
    with pytest.raises(ArtifactError, match="--n was 1, is 2; other data"):
        finished(out, "eval", other, overwrite=False)
    (out / "rows.jsonl").write_text("damaged")
    assert finished(out, "eval", other, overwrite=False) is None


def test_the_first_three_differences_are_named_and_a_missing_option_is_one():
    run = Identity({"a": 1, "b": 2, "c": None}, {}, {"versions": {"torch": "2"}})
    before = {"options": {"d": (3,)}, "inputs": {}, "versions": {"torch": "1"}}
    first = "--a was None, is 1; --b was None, is 2; --d was (3,), is None"
    assert run.differences(before) == f"{first}; ..."
    assert run.differences(run.to_json()) == ""
    assert run.differences(None) == "it cannot be read"
