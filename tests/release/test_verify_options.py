"""Options in the manifest of a release, which its publisher may have written by hand."""

import pytest

from countdown_rl.core.artifacts import Manifest
from countdown_rl.core.errors import ArtifactError
from countdown_rl.data.config import DataOptions
from countdown_rl.release import verify


@pytest.mark.parametrize(
    "options",
    [
        {"from_": "/etc/passwd"},
        {"test_from": "/etc/passwd"},
        {"exclude": ["/etc/passwd"]},
        {"workers": 10_000},
        {"n": "many"},
        {"size": 4},
        {"seed": None},
    ],
)
def test_options_that_read_files_or_are_of_another_type_are_refused(options):
    with pytest.raises(ArtifactError, match=next(iter(options))):
        verify._recorded(DataOptions, {"n": 10} | options, "the manifest of data")


def test_options_of_gen_data_are_read_back():
    recorded = {"n": 50, "size": ["4", "5=2"], "impossible": 0, "preset": "tv", "seed": 1}
    options = verify._recorded(DataOptions, recorded, "the manifest of data")
    assert (options.n, options.size, options.preset) == (50, ("4", "5=2"), "tv")


def test_more_puzzles_than_are_made_again_have_to_be_given():
    files = {"test.jsonl": {"sha256": "s", "size": 1}}
    data = {"kind": "data", "options": {"n": 4 * 10**9, "test": 10**9}, "files": files}
    model = {"kind": "model", "options": {}, "inputs": {"data": {"digest": "d", "manifest": data}}}
    release = Manifest(
        "release", {}, inputs={"model": {"digest": "m", "manifest": model}}, facts={"formats": {".": ""}}
    )
    with pytest.raises(ArtifactError, match="--data"):
        verify._puzzles("s", release, (), 100, verify.Verification("release", None, "r", 1))
