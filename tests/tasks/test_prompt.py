"""Prompts of the user's own, and answers without tags, from the data to every stage that asks."""

from pathlib import Path

import pytest

from countdown_rl.core import artifacts
from countdown_rl.core.errors import InputError, UsageError
from countdown_rl.core.manifest import Manifest, provenance_chain
from countdown_rl.data import build
from countdown_rl.data.config import DataOptions
from countdown_rl.tasks import jsonl, probe, prompt
from countdown_rl.tasks.countdown.task import puzzle_row
from countdown_rl.tasks.prompt import Prompt
from countdown_rl.tasks.registry import parse_row
from countdown_rl.tasks.splits import SPLITS
from tests.support.command import status

TEMPLATE = """{% block system %}Solve.{% endblock %}
{% block user %}
Numbers: {{ nums | join(" ") }}
Target: {{ target }}
{% endblock %}
"""
ROW = {"nums": [3, 7, 50], "target": 46}
USER = {"role": "user", "content": "Numbers: 3 7 50\nTarget: 46"}
SYSTEM = {"role": "system", "content": "Solve."}


def with_prefill(text):
    return TEMPLATE + f"{{% block assistant %}}{text}{{% endblock %}}"


@pytest.mark.parametrize(
    ("prefill", "style"),
    [
        ("", "model_opens"),
        ("Well, <think>", "prefilled"),
        ("<think>\nI need", "prefilled"),
        ("Sure.", "model_opens"),
        ("<think>\n\n</think>", "model_opens"),
    ],
)
def test_nothing_is_added_to_a_template_and_the_style_is_the_one_that_fits_it(prefill, style):
    template = with_prefill(prefill)
    row = parse_row({**ROW, "template": template})
    assert (row.style_name, row.prompt()) == (style, Prompt(USER["content"], "Solve.", prefill))
    assert row.layout == {"style": style, "template": template}
    assert row.without_prefill().style.model_opens
    assert row.without_prefill().prompt().turns() == [SYSTEM, USER]


@pytest.mark.parametrize(
    ("style", "prefill"), [("prefilled", ""), ("prefilled", "Sure."), ("direct", "Well, <think>")]
)
def test_a_style_that_does_not_fit_the_template_is_refused(style, prefill):
    with pytest.raises(UsageError, match=r"--prompt.*style"):
        build.make(DataOptions(n=12, style=style, template=with_prefill(prefill)), Path("unused"))


@pytest.mark.parametrize(
    ("template", "fault"),
    [
        ("{{ nums }", "cannot be rendered"),
        ("{{ nums / 0 }}", "cannot be rendered"),
        ("{{ numbers }}", "'numbers' is undefined"),
        ("{{ nums.__class__ }}", "unsafe"),
        ("{% block user %}{% endblock %}{% block systm %}{% endblock %}", "systm"),
        ("{% block system %}{% endblock %}", "blocks system"),
        (
            "{% block system %}{{ target }}{% endblock %}{% block user %}{% endblock %}",
            "'target' is",
        ),
        ("{{ nums | random }}", "random"),
        ("{{ lipsum() }}", "'lipsum' is undefined"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
    ],
)
def test_a_wrong_template_is_one_sentence(template, fault):
    with pytest.raises(InputError, match=fault):
        prompt.from_template(template, ROW)


ABSENT = {
    "3, 7 and 50 -> 46.": [],
    "3 7 50 50": ["46"],
    "37 50 46": ["3", "7"],
    "3 7 46 450": ["50"],
}


@pytest.mark.parametrize(("text", "absent"), ABSENT.items())
def test_a_prompt_that_leaves_out_a_number_or_the_target_is_found(text, absent):
    assert Prompt(text).missing(parse_row(ROW).asked) == absent


@pytest.mark.parametrize(
    ("completion", "correct", "format"),
    [
        ("50 - 7 + 3", True, True),
        (" 50 - 7 + 3\n", True, True),
        ("", False, False),
        ("a\n50 - 7 + 3", False, False),
    ],
)
def test_a_direct_completion_is_the_answer(completion, correct, format):
    grade = parse_row({**ROW, "style": "direct"}).grade(completion)
    assert (grade.correct, grade.format, grade.strict_format) == (correct, format, format)
    assert grade.reason != "" or correct


@pytest.fixture
def data(here, monkeypatch):
    Path("prompt.jinja").write_text(TEMPLATE)
    words = "--n 12 --size 3 --style direct --prompt prompt.jinja --out data"
    assert status(monkeypatch, "gen-data", *words.split()) == 0
    return here / "data"


def test_gen_data_writes_the_template_into_every_row_and_into_the_manifest(data):
    for split in SPLITS:
        for row in jsonl.read_rows(data / f"{split}.jsonl"):
            assert (row["template"], row.prompt().system) == (TEMPLATE, "Solve.")
    manifest = artifacts.read(data, "data")
    assert manifest.options["template"] == TEMPLATE
    options = DataOptions(**manifest.options | {"size": ("3",)})
    assert list(build.generate(options, "test")) == jsonl.read_rows(data / "test.jsonl")


def test_a_model_is_asked_with_the_prompt_of_its_newest_training(data):
    inputs = {"data": artifacts.read(data, "data").as_input()}
    own = {"style": "direct", "template": TEMPLATE}
    adapter = Manifest.of("adapter", {}, inputs).as_input()
    assert probe.layout(provenance_chain(adapter)) == own
    assert [turn["role"] for turn in probe.conversations(adapter, 1)[0]] == ["system", "user"]
    assert puzzle_row([3, 7, 50], 46, own).messages() == [SYSTEM, USER]
    old = Manifest("data", {"style": "model_opens"}).as_input()
    inputs["model"] = Manifest.of("model", {}, {"data": old}).as_input()
    adapter = Manifest.of("adapter", {}, inputs).as_input()
    assert probe.layout(provenance_chain(adapter)) == own
    facts = {"layout": {"style": "prefilled"}}
    later = Manifest.of("adapter", {}, {"model": adapter}, facts=facts).as_input()
    assert probe.layout(provenance_chain(later)) == {"style": "prefilled"}


@pytest.mark.parametrize(
    "text",
    [
        "Make {{ target }} of {{ nums[0] }}",
        "{{ nums }} {{ goal }}",
        "{{ nums }} {{ target }} {{ solution }}",  # a field that ask and merge do not know
        "{{ nums }} {{ target }} {{ rule }}",
    ],
)
def test_gen_data_refuses_a_prompt_that_does_not_show_the_puzzle(text):
    with pytest.raises(UsageError, match="--prompt"):
        build.make(DataOptions(n=12, template=text), Path("unused"))
    assert not Path("unused").exists()


def test_a_prompt_file_that_is_not_there_is_named(run_command):
    assert "nowhere.jinja" in run_command("gen-data", "--prompt", "nowhere.jinja", code=2).err
