"""A sample of the generated hostile cases; ``python -m benchmarks.hostile`` runs all."""

import os

import pytest

from benchmarks import hostile
from tests.hostile import harness
from tests.support.hub import running


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The artifacts, and a Hub."""
    before = os.getcwd()
    with running() as hub:
        yield harness.place(tmp_path_factory.mktemp("generated")), hub
    os.chdir(before)


@pytest.mark.parametrize("kind", hostile.COUNTS)
def test_hostile_input_is_refused_or_means_the_same(kind, place):
    root, hub = place
    for case in hostile.sample(root, hub, 1, kind, 0.05):
        verdict, printed = harness.judge(case, root)
        assert verdict in (harness.REFUSED, harness.ACCEPTED), f"{verdict}: {case.name}\n{printed}"
