"""The user's own code: its source is a part of the identity of a run."""

import functools
import importlib
import json
import linecache
import sys
from pathlib import Path

import pytest

from countdown_rl.core import artifacts, user_code
from countdown_rl.core.errors import ArtifactError, UsageError
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
def own(here, monkeypatch):
    for state in ("_GIVEN", "_IMPORTED"):
        monkeypatch.setattr(user_code, state, {})
    monkeypatch.syspath_prepend(here)
    (here / "own_helper.py").write_text("value = 1")
    (here / "own_reward.py").write_text(SOURCE)
    importlib.invalidate_caches()
    yield here
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
    if not by_name:  # then it is imported, and another code would run than the file has
        with pytest.raises(
            UsageError, match=f"{edited} was changed after it was imported; reload {edited[:-3]}"
        ):
            run()
        importlib.reload(sys.modules[edited.removesuffix(".py")])
    assert "code of own_reward:" in run().differences(before.to_json())
    assert run().differences({"options": {}, "inputs": {}}) == ""
    with pytest.raises(ArtifactError, match=r"code of own_reward:.*--overwrite to replace"):
        finished(own / "adapter", "adapter", run(), overwrite=False)


IMPORTS = dict.fromkeys(("import helper", "def late():\n    import helper"), "helper.py")
IMPORTS |= dict.fromkeys(("import lib.helper as other", "from lib import helper"), "lib/helper.py")
IMPORTS |= dict.fromkeys(
    ("from lib.helper import value", "from lib.helper import *"), "lib/helper.py"
)
IMPORTS |= dict.fromkeys(("from . import helper", "from .helper import value"), "pack/helper.py")
IMPORTS |= {
    "from pack.helper import value": "pack/helper.py",
    "from .lib.helper import value": "pack/lib/helper.py",
}
CALLS = ("import importlib\nimportlib.import_module('helper')", "m = __import__('helper')")
IMPORTS |= dict.fromkeys(
    (*CALLS, "from importlib import import_module as load\nload('helper')"), "helper.py"
)
IMPORTS |= {"import importlib\nimportlib.import_module('.helper', __package__)": "pack/helper.py"}
IMPORTS |= {"from helper import first": "helper_of_helper.py", "x = 1": "pack/__init__.py"}


@pytest.mark.parametrize("line", IMPORTS)
def test_every_file_of_the_users_that_is_imported_counts(line, own, monkeypatch):
    for name in {"helper_of_helper.py", "helper.py", "numpy.py", *IMPORTS.values()}:
        (own / name).parent.mkdir(parents=True, exist_ok=True)
        (own / name).write_text("value = first = 1\n")
    (own / "helper.py").write_text("from helper_of_helper import value as first\nvalue = 1\n")
    (own / "pack" / "reward.py").write_text(
        f"import json, numpy\nODD = '..out', 'x' * 300\n{line}\n", "utf-8-sig"
    )
    before = user_code.digests(["pack.reward:short"])
    (own / IMPORTS[line]).write_text("value = first = 2\n")
    assert before != user_code.digests(["pack.reward:short"])
    (own / IMPORTS[line]).write_text("value = (\n")
    with pytest.raises(UsageError, match=rf"{Path(IMPORTS[line]).name} cannot be read as Python"):
        user_code.digests(["pack.reward:short"])


def test_options_name_code_in_any_field_and_weight():
    options = {
        "reward": ("my:short=1", "format=0.1"),
        "sampler": "a.b:C.d",
        "model": "http://x",
        "n": 1,
        "s": None,
    }
    assert user_code.named(options) == ["my:short", "a.b:C.d"]
    assert user_code.digests(["countdown_rl.rewards:correct", "math:sqrt"]) == {}  # not the user's


NOTEBOOK = """
import collections, fractions, functools, importlib, pathlib, re, types
import numpy
LIMIT, WEIGHTS, seen, cache, count = 3, {"a": [1]}, [], {}, 0
CONSTANTS = numpy.array([8.0]), re.compile("a+"), fractions.Fraction(1, 3), pathlib.Path("here")
SETTINGS = types.SimpleNamespace(n=6)
QUEUE = collections.deque([range(7)])

def helper(x):
    from own_helper import value
    return x + LIMIT + value - value + 0 * len([*CONSTANTS, *QUEUE, SETTINGS])

class Scorer:
    bonus = 1

    def __init__(self, scale=2):
        self.scale, self.calls, self.seen = scale, 0, []

    def __call__(self, x):
        self.calls += 1
        self.seen.append(x)
        return helper(x) * self.scale

scorer = Scorer()

def decorated(function):
    @functools.wraps(function)
    def call(x):
        return function(x) + 1
    return call

def make(penalty):
    return lambda x, extra=5: scorer(x) - penalty

@decorated
def reward(x):
    global count
    count += 1
    seen.append(x)
    cache[x] = [WEIGHTS[key] for key in WEIGHTS]
    return make(4)(x)
"""
#: Edits of the notebook, none of which is in the text of the reward itself.
EDITS = [
    ("= 3, {", "= 4, {"),
    ("[1]}", "[2]}"),
    ("x + LIMIT", "x - LIMIT"),
    ("bonus = 1", "bonus = 2"),
]
EDITS += [
    ("scale=2", "scale=3"),
    ("* self.scale", "/ self.scale"),
    ("(x) + 1", "(x) + 2"),
    ("extra=5", "extra=6"),
]
EDITS += [
    ("8.0", "9.0"),
    ("a+", "b+"),
    ("(1, 3)", "(1, 4)"),
    ("here", "there"),
    ("n=6", "n=5"),
    ("(7)", "(8)"),
]
EDITS += [
    ("scorer = Scorer()", "scorer = Scorer(9)"),
    ("- penalty", "+ penalty"),
    ("make(4)", "make(5)"),
]


@pytest.mark.parametrize(
    "line", ["from own_helper import value", "value = importlib.import_module('own_helper').value"]
)
@pytest.mark.parametrize("source", [True, False])
def test_a_function_of_a_notebook_counts_with_what_it_refers_to(source, line, own, monkeypatch):
    def digest(text, call=()):
        text = text.replace("from own_helper import value", line)
        cell = {"__name__": "__main__"}
        name = f"<cell {hash(text)}>"
        if source:
            monkeypatch.setitem(
                linecache.cache, name, (len(text), None, text.splitlines(keepends=True), name)
            )
        exec(compile(text, name, "exec"), cell)
        for value in call:
            cell["reward"](value)
        user_code._GIVEN.clear()  # as of another call
        return user_code.digests([user_code.name_of(cell["reward"])])

    before = digest(NOTEBOOK)
    assert before == digest(NOTEBOOK)
    for old, new in EDITS:
        assert digest(NOTEBOOK.replace(old, new)) != before, new
    if source:  # what a call changes, and what the function does not refer to
        assert digest(NOTEBOOK, [1, 2]) == before
    assert digest(NOTEBOOK + "\nother = 3\n") == before
    (own / "own_helper.py").write_text("value = 2")
    user_code._IMPORTED.clear()  # as in another process
    assert digest(NOTEBOOK) != before


def test_closures_and_partial_functions_count_by_the_values_that_they_hold():
    def make(penalty, inner=None):
        return lambda x: penalty + (inner(x) if inner else 0)

    made = [make(1), make(2), make(1, make(3)), make(1, make(4)), functools.partial(make(1), 5)]
    made.append(functools.partial(make(2), 5))
    digests = [
        next(iter(user_code.digests([user_code.name_of(function)]).values())) for function in made
    ]
    assert len({*digests}) == 6
    first, second = (user_code.name_of(function) for function in (make(1), make(1)))
    assert first != second
    assert len({*user_code.digests([first, second]).values()}) == 1
