"""``--config`` of the stages."""

from pathlib import Path

import pytest
import yaml

from countdown_rl.cli import main
from countdown_rl.core.errors import UsageError


def parsed(name, *words):
    return main.command(name).make_context(name, [*map(str, words)]).params


def in_file(place, text):
    (place / "options.yaml").write_text(text)
    return "--config", place / "options.yaml"


@pytest.mark.parametrize("nested", [False, True])
def test_flags_win_over_the_file_and_lists_repeat(tmp_path, nested):
    options = {
        "max_steps": 7,
        "learning-rate": "1e-4",
        "reward": ["correct=1", "format=0.1"],
        "trust-remote-code": True,
        "seed": None,
        "trl": "epsilon=0.1",
    }
    file = in_file(tmp_path, yaml.safe_dump({"train": options} if nested else options))
    values = parsed("train", "--max-steps", "3", *file)
    assert (values["max_steps"], values["learning_rate"], values["seed"]) == (3, 1e-4, 42)
    assert values["trust_remote_code"] is True
    assert list(values["reward"]) == ["correct=1", "format=0.1"]
    assert list(values["trl"]) == ["epsilon=0.1"]
    alone = parsed("train", *file, "--reward", "length:5=1", "--no-trust-remote-code")
    assert (list(alone["reward"]), alone["trust_remote_code"]) == (["length:5=1"], False)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("learning-rat: 1", "learning-rate"),
        ("output_dir: x", "--out"),
        ("per-device-train-batch-size: 4", "--micro-batch"),
        ("config: x", "no option config"),
        ("mask_truncated_completions: 1", "--trl mask_truncated_completions=VALUE"),
        ("max-steps: {a: 1}", "a value or a list"),
        ("reward: [[1]]", "a value or a list"),
        ("- a", "a line such as"),
        ("just text", "a line such as"),
        ("a: [", "cannot be read"),
        ("\x00", "cannot be read"),
    ],
)
def test_a_faulty_file_is_a_sentence(tmp_path, text, word):
    with pytest.raises(UsageError, match=word):
        parsed("train", *in_file(tmp_path, text))


def test_values_are_text_for_the_parser_of_the_command_line(tmp_path):
    values = parsed("gen-data", *in_file(tmp_path, "seed: 010\nimpossible: 1e-1\nsize: 3\nn:\n"))
    assert (values["seed"], values["impossible"], values["n"]) == (10, 0.1, 50_000)
    assert list(values["size"]) == ["3"]
    values = parsed("train", *in_file(tmp_path, "reward: {correct: 1, format: 1e-1}\n"))
    assert [*values["reward"]] == ["correct=1", "format=1e-1"]


def test_the_stage_files_are_such_files():
    for file in (Path(__file__).parents[2] / "stages").glob("*.yaml"):
        ((stage, options),) = yaml.safe_load(file.read_text()).items()
        assert stage == file.stem
        values = parsed(stage, "--config", file)
        for key, option in options.items():
            assert option is not None  # DVC does not unpack it
            value = values[key.replace("-", "_")]
            assert value == option or str(value) == str(option) or list(value) == option
