"""The table of extensions in CONTRIBUTING names the files of an extension, and registries are complete."""

import re
from pathlib import Path

import pytest

from countdown_rl.core.options import choices, field_hints
from countdown_rl.evaluation.config import EvalOptions
from countdown_rl.export.config import QuantizeOptions
from countdown_rl.inference import engines
from countdown_rl.models import formats

ROOT = Path(__file__).parents[1]
TABLE = (
    (ROOT / "CONTRIBUTING.md")
    .read_text("utf-8")
    .partition("## Where an extension goes")[2]
    .partition("\n## ")[0]
)
ROWS = re.findall(r"^\| (an? .+?) \| (.+) \|$", TABLE, re.MULTILINE)


@pytest.mark.parametrize(("extension", "change"), ROWS)
def test_the_places_of_an_extension_exist(extension, change):
    places = [
        place for place in re.findall(r"`([\w./<>]+)`", change) if "/" in place and "<" not in place
    ]
    assert [place for place in places if not (ROOT / "countdown_rl" / place).exists()] == []


@pytest.mark.parametrize(
    ("options", "flag", "names", "extension", "most"),
    [
        (EvalOptions, "engine", ("auto", *engines.ENGINES), "an engine", 2),
        (
            QuantizeOptions,
            "format",
            tuple(name for name, f in formats.FORMATS.items() if f.libraries),
            "a weight format",
            3,
        ),
    ],
)
def test_a_registry_decides_the_choices_of_its_option(options, flag, names, extension, most):
    assert choices(field_hints(options)[flag]) == names
    assert len(re.findall(r"`\w+/[\w.]*`", dict(ROWS)[extension])) <= most


def test_every_entry_of_a_registry_can_be_imported():
    assert all(engines.engine_class(name).name == name for name in engines.ENGINES)
