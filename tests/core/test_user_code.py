"""The user's own code: its source is a part of the identity of a run."""

import importlib
import linecache
import sys

import pytest

from countdown_rl.core import user_code
from countdown_rl.core.errors import UsageError
from countdown_rl.core.identity import Identity

SOURCE = """
import own_helper

def short(x):
    return own_helper.value
"""


@pytest.fixture
def own(here, monkeypatch):
    monkeypatch.setattr(user_code, "_GIVEN", {})
    monkeypatch.syspath_prepend(here)
    (here / "own_helper.py").write_text("value = 1")
    (here / "own_reward.py").write_text(SOURCE)
    importlib.invalidate_caches()
    yield here
    for name in ("own_reward", "own_helper"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("edited", ["own_reward.py", "own_helper.py"])
@pytest.mark.parametrize("by_name", [True, False])
def test_an_edit_of_the_users_code_is_another_run(own, edited, by_name):
    name = "own_reward:short"
    function = user_code.imported(name)
    name = name if by_name else user_code.name_of(function)
    before = Identity.of({"reward": (f"{name}=1",)}, {})
    assert before.differences(before.to_json()) == ""
    (own / edited).write_text((own / edited).read_text() + "\n# edited\n")
    after = Identity.of({"reward": (f"{name}=1",)}, {})
    assert "code of own_reward:short was" in after.differences(before.to_json())


def test_options_name_code_in_any_field_and_weight():
    options = {"reward": ("my:short=1", "format=0.1"), "sampler": "a.b:C.d"}
    options |= {"model": "http://x", "n": 1, "s": None}
    assert user_code.named(options) == ["my:short", "a.b:C.d"]
    assert user_code.digests(["countdown_rl.rewards:correct", "math:sqrt"]) == {}  # not the user's


def test_a_function_of_a_notebook_counts_by_its_source_and_is_never_up_to_date_without(own):
    def identity(text, *, has_source=True):
        file = f"<cell {text}>"
        if has_source:
            linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        cell = {"__name__": "__main__"}
        exec(compile(text, file, "exec"), cell)
        user_code._GIVEN.clear()  # as of another process
        return Identity.of({"reward": user_code.name_of(cell["reward"])}, {})

    one, two = (identity(f"def reward(x):\n    return {value}\n") for value in (1, 2))
    assert one.differences(one.to_json()) == ""
    assert "code of" in two.differences(one.to_json())
    at_a_prompt = identity("def reward(x):\n    return 3\n", has_source=False)
    assert "no source" in at_a_prompt.differences(at_a_prompt.to_json())


def test_functions_of_one_name_are_told_apart(own):
    functions = [lambda x, y=y: x for y in range(2)]
    names = [user_code.name_of(function) for function in functions]
    assert [user_code.imported(name) for name in names] == functions
    assert user_code.name_of(functions[1]) == names[1]


@pytest.mark.parametrize(
    "name", ["nothing", "gone:f", "json:gone", "json:__name__", "own_raises:f"]
)
def test_what_is_no_function_is_wrong_usage(own, name):
    (own / "own_raises.py").write_text("raise SystemExit(3)")
    with pytest.raises(UsageError, match=name):
        user_code.imported(name)
