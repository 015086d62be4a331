"""``--config`` and ``--save-config`` of every command."""

import re
from pathlib import Path

import pytest
import yaml

from countdown_rl.cli import config, main
from countdown_rl.core.errors import UsageError

NAMES = [name for panel in main.COMMANDS.values() for name in panel]
#: Arguments and options that a command requires.
REQUIRED = {name: ["3", "7", "50", "--target", "46"] for name in ("solve", "ask")}
REQUIRED |= {name: ["e"] for name in ("diagnose", "samples", "verify")}
REQUIRED |= {"collect": ["e", "--out", "o"], "compare": ["a", "b"], "report": ["--result", "r"]}
REQUIRED |= {"export-task": ["--to", "lm-eval", "--out", "o"]}


def parsed(name, *words):
    return main.command(name).make_context(name, [*map(str, words)])


def values(context):
    return {
        key: value for key, value in context.params.items() if key not in ("config", "save_config")
    }


@pytest.mark.parametrize("name", NAMES)
def test_saved_options_are_read_as_the_same_options(name, tmp_path):
    words = REQUIRED.get(name, [])
    given = parsed(name, *words, "--save-config", tmp_path / "saved.yaml")
    expected = values(given)
    config.save(given)
    arguments = (
        [word for word in words if not word.startswith("--")][:3]
        if name in ("solve", "ask")
        else words
    )
    arguments = arguments if "--target" not in words else ["3", "7", "50"]
    assert values(parsed(name, *arguments, "--config", tmp_path / "saved.yaml")) == expected


@pytest.mark.parametrize("name", NAMES)
def test_an_option_that_is_unknown_or_empty_is_wrong_usage_in_every_command(
    name, here, run_command
):
    needed = REQUIRED.get(name, [])
    Path("c.yaml").write_text("no-such-option: 1")
    assert "no-such-option" in run_command(name, *needed, "--config", "c.yaml", code=2).err
    for param in main.command(name).params:
        for key in (flag for flag in param.opts if flag.startswith("--") and not param.is_flag):
            Path("c.yaml").write_text(f"{key.removeprefix('--')}: ''")
            in_file = [["--config", "c.yaml"]] * (key not in (*needed, "--config", "--save-config"))
            for words in ([key, ""], [key, " "], *in_file):
                error = run_command(name, *needed, *words, code=2).err
                assert re.search(
                    rf"^error: {key} is empty; .*leave it out|should be a valid|one of", error
                )


REFUSED = "ask 3 4 --target 7 --prompt no|gen-data --prompt .|train --config no|gen-data --save-config .|merge --base x"
REFUSED += "|train --loss-type x|train --report-to x|grade --style x|export-task --to x --out o"


@pytest.mark.parametrize("words", REFUSED.split("|"))
def test_a_refused_value_has_no_words_of_a_library(words, here, run_command):
    assert re.match(
        r"error: (?!.*(Errno|Value error)).*(give|one of)", run_command(*words.split(), code=2).err
    )


@pytest.mark.parametrize("nested", [False, True])
def test_flags_win_over_the_file_and_lists_repeat(tmp_path, nested):
    options = {
        "max_steps": 7,
        "learning-rate": "1e-4",
        "reward": ["correct=1", "format=0.1"],
        "curriculum": True,
    }
    options |= {"seed": None, "trl": "epsilon=0.1"}
    (tmp_path / "c.yaml").write_text(yaml.safe_dump({"train": options} if nested else options))
    read = parsed("train", "--max-steps", "3", "--config", tmp_path / "c.yaml").params
    assert (read["max_steps"], read["learning_rate"], read["curriculum"], read["seed"]) == (
        3,
        1e-4,
        True,
        42,
    )
    assert (list(read["reward"]), list(read["trl"])) == (
        ["correct=1", "format=0.1"],
        ["epsilon=0.1"],
    )
    alone = parsed(
        "train", "--config", tmp_path / "c.yaml", "--reward", "length:5=1", "--no-curriculum"
    ).params
    assert (list(alone["reward"]), alone["curriculum"]) == (["length:5=1"], False)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        *(("learning-rat: 1", "did you mean learning-rate"), ("output_dir: x", "did you mean out")),
        ("per-device-train-batch-size: 4", "did you mean micro-batch"),
        ("config: x", "no option config"),
        *(("curriculum: maybe", "true or false"), ("max-steps: true", "not be true or false")),
        *((text, "a value or a list") for text in ("max-steps: {a: 1}", "reward: [[1]]")),
        ("top_p: 1", "`trl: top_p=VALUE`"),
        *(
            (text, "max-steps occurs twice")
            for text in (
                "max-steps: 3\nmax_steps: 3",
                "train: {seed: 1, max-steps: 1, max_steps: 1}",
            )
        ),
        *((text, "a line such as") for text in ("- a", "just text")),
        *((text, "cannot be read") for text in ("a: [", "\x00")),
    ],
)
def test_a_faulty_file_is_a_sentence(tmp_path, text, says):
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(UsageError, match=says):
        parsed("train", "--config", tmp_path / "c.yaml")


def test_values_are_text_for_the_parser_of_the_command_line(tmp_path):
    (tmp_path / "c.yaml").write_text("rows: 10:50\nseed: 010\nimpossible: 1e-1\nsize: 3\nn:\n")
    read = parsed("gen-data", "--config", tmp_path / "c.yaml").params
    assert (read["rows"], read["seed"], read["impossible"], list(read["size"])) == (
        "10:50",
        10,
        0.1,
        ["3"],
    )
    (tmp_path / "t.yaml").write_text("reward: {correct: 1, format: 1e-1}\n")
    assert [*parsed("train", "--config", tmp_path / "t.yaml").params["reward"]] == [
        "correct=1",
        "format=1e-1",
    ]


def test_the_stage_files_are_such_files():
    stages = Path(__file__).parents[2] / "stages"
    for file in stages.glob("*.yaml"):
        ((stage, options),) = yaml.safe_load(file.read_text()).items()
        assert stage == file.stem
        read = parsed(file.stem, "--config", file).params
        for key, value in options.items():
            assert value is not None  # DVC does not unpack it
            param = read[key.replace("-", "_")]
            assert (list(param) if isinstance(value, list) else param) == value or str(
                param
            ) == str(value)
