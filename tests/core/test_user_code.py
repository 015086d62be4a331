"""The user's own code: its source is a part of the identity of a run."""

import functools
import importlib
import json
import sys

import pytest

from countdown_rl.core import artifacts, user_code
from countdown_rl.core.errors import ArtifactError
from countdown_rl.core.identity import Identity, finished
from countdown_rl.core.options import Options

SOURCE = """
import functools
import own_helper

def short(x):
    return own_helper.value

class Short:
    def __call__(self, x):
        return short(x)

    def method(self, x):
        return short(x)

partial, given, small, method = functools.partial(short, 1), Short(), lambda x: short(x), Short().method
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(user_code, "_GIVEN", {})
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_helper.py").write_text("value = 1")
    (tmp_path / "own_reward.py").write_text(SOURCE)
    importlib.invalidate_caches()
    yield tmp_path
    for name in ("own_reward", "own_helper"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("edited", ["own_reward.py", "own_helper.py"])
@pytest.mark.parametrize("name", ["short", "Short", "partial", "given", "small", "method"])
@pytest.mark.parametrize("by_name", [True, False])
def test_an_edit_of_the_users_code_is_another_run(own, edited, name, by_name):
    full = f"own_reward:{name}"
    full = full if by_name else user_code.name_of(user_code.imported(full))

    def run():
        return Identity(Options, {}, {}, {"code": user_code.digests([full])})

    before = run()
    with artifacts.writing(own / "adapter", "adapter", options={}) as writer:
        (writer.path / "weights").write_text("w")
        writer.facts.update(before.machine)
    assert finished(own / "adapter", "adapter", run(), overwrite=False)
    assert run().differences(json.loads(json.dumps(before.to_json()))) == ""
    (own / edited).write_text((own / edited).read_text() + "\n# edited\n")
    assert "code of own_reward:" in run().differences(before.to_json())
    assert run().differences({"options": {}, "inputs": {}}) == ""
    with pytest.raises(ArtifactError, match=r"code of own_reward:.*--overwrite to replace"):
        finished(own / "adapter", "adapter", run(), overwrite=False)


def test_code_of_this_package_or_without_source_does_not_count():
    assert user_code.digests(["countdown_rl.rewards:correct", "math:sqrt"]) == {}


def test_a_function_of_the_running_program_counts_alone(monkeypatch):
    def reward(x):
        return x

    monkeypatch.setattr(reward, "__module__", "__main__")
    names = [user_code.name_of(each) for each in (reward, functools.partial(reward, 1))]
    first, second = user_code.digests(names).values()
    assert first == second
    monkeypatch.setattr(user_code.inspect, "getsource", lambda function: "edited")
    assert first not in user_code.digests(names).values()
