import json
import random
import re
from itertools import islice
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer
from typer.testing import CliRunner

from countdown_rl.cli.main import app
from countdown_rl.core import artifacts
from countdown_rl.core.errors import InputError, UsageError
from countdown_rl.models.reference import SHIPPED
from countdown_rl.tasks.registry import parse_row
from stages.recipes.tiny import __main__ as command
from stages.recipes.tiny import batches, loss, pretrain, traces
from stages.recipes.tiny.config import PretrainOptions

ROOT = Path(__file__).parents[4]
SMALL = ["--max-steps", "2", "--batch-tokens", "500"]
SMALL += ["--layers", "1", "--hidden-size", "64", "--intermediate-size", "64"]


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("tiny") / "data"
    done = CliRunner().invoke(app, ["gen-data", "--n", "600", "--out", str(out)])
    assert done.exit_code == 0, done.output
    return out


def test_labels_leave_out_the_prompt_and_end_where_the_trace_does():
    tokens = AutoTokenizer.from_pretrained(SHIPPED["countdown-tiny"])
    rows = [
        parse_row({"nums": [7, 50, last], "target": target}) for last, target in ((2, 85), (3, 46))
    ]
    examples = list(
        islice(
            batches.examples(rows, {3: ["a-b"]}, PretrainOptions(max_lines=1, drills=0), tokens), 2
        )
    )
    ids, labels, ways = batches.pad(examples)
    assert ways.tolist() == [1, 1]
    texts = []
    for row, (whole, prompt, _) in enumerate(examples):
        lessons = [label for label in labels[row].tolist() if label != -100]
        assert lessons == whole[prompt:] == ids[row, prompt : len(whole)].tolist()
        assert tokens.decode(whole[:prompt]).endswith("<think>")
        texts.append(tokens.decode(lessons))
    assert texts[0] == "\n50 7 2\n1. 50 - 7 = 43, 43 * 2 = 86 no\n"
    lines = "\n50 7 3\n1. 50 - 7 = 43, 43 + 3 = 46 yes\n</think>\n<answer>(50 - 7) + 3</answer>"
    assert texts[1] == lines + tokens.eos_token


def test_the_target_of_a_choice_is_the_distribution_of_the_teacher():
    tokens = AutoTokenizer.from_pretrained(SHIPPED["countdown-tiny"])
    text = (
        "\n9 5 2 1\n3. 9 / 5 no, skip two\n6. 9 - 5 = 4, 4 - 2 = 2, 2 - 1 = 1 no\n"
        "7. 9 - 5 = 4, 4 - 1 = 3 yes\n"
    )
    ids = tokens(text, add_special_tokens=False)["input_ids"]
    labels = torch.tensor([[-100, *ids], [-100, *ids]])
    targets = loss.TeacherTargets(tokens, len(tokens), "cpu")(labels, torch.tensor([99, 12]))
    first, skip = [
        [f"{number}. " for number in (1, 2, 3, 4)],
        [f" {skip}\n" for skip in traces.SKIPS],
    ]
    chances = dict(zip(("3. ", " no, skip two\n", " no\n"), (first, skip, skip), strict=True))
    for target, token in zip(targets[: len(ids)], ids, strict=True):
        names = chances.get(tokens.decode([token]), [tokens.decode([token])])
        assert {tokens.decode([int(place)]) for place in target.nonzero()[:, 0]} == set(names)
        assert target[target > 0].tolist() == [1 / len(names)] * len(names)
    for target, token in zip(
        targets[len(ids) :], ids, strict=True
    ):  # a short plan has one next way
        place = target.nonzero()[:, 0].tolist()
        expected = {"3. ": "1. ", " no, skip two\n": " no\n"}.get(
            tokens.decode([token]), tokens.decode([token])
        )
        assert ([tokens.decode(place)], target.sum()) == ([expected], 1)


def test_a_teacher_that_checks_writes_a_line_again_or_the_next_one():
    tokens = AutoTokenizer.from_pretrained(SHIPPED["countdown-tiny"])
    row, plan = {"nums": [9, 5, 2], "target": 90}, {3: ["a-b", "a+b"]}
    text = traces.trace(row, plan, random.Random(5), max_lines=6, checks=0.5).text
    ways = [int(line.split(".")[0]) for line in text.splitlines()[2:]]
    assert (ways[0], set(ways), "skip" in text) == (1, {1, 2}, False)
    ids = tokens(text, add_special_tokens=False)["input_ids"]
    labels = torch.tensor([[-100, *ids], [-100, -100, *ids[1:]]])
    targets = loss.TeacherTargets(tokens, len(tokens), "cpu", checks=0.25)(
        labels, torch.tensor([2, 2])
    )
    ids += ids[1:]
    chosen = [
        place for place, token in enumerate(ids) if re.fullmatch(r"\d\. ", tokens.decode([token]))
    ]
    expected = 2 * [{1: 1.0}, *({way: 0.25, way % 2 + 1: 0.75} for way in ways[:-1])]
    for place, target in enumerate(targets):
        shares = {
            tokens.decode([token]): float(target[token])
            for token in target.nonzero()[:, 0].tolist()
        }
        words = (
            {f"{way}. ": share for way, share in expected.pop(0).items()} if place in chosen else {}
        )
        assert shares == (words or {tokens.decode([ids[place]]): 1.0})
    assert not expected
    with pytest.raises(UsageError, match="--judge or --checks"):
        PretrainOptions(judge=True, checks=0.5)


def test_a_model_made_from_nothing_loads_anywhere_and_says_how_it_was_made(data, tmp_path, capsys):
    outs = [tmp_path / name for name in ("one", "two")]
    for out in outs:
        words = ["--data", str(data), "--out", str(out), *SMALL, "--json"]
        command.main(words)
        facts = json.loads(capsys.readouterr().out)
    manifest = artifacts.read(outs[0], "model")
    assert manifest.options["max_steps"] == 2
    assert manifest.inputs["data"]["digest"] == artifacts.read(data, "data").digest
    assert facts["parameters"] == manifest.facts["parameters"] > 10_000
    assert (outs[0] / "model.safetensors").read_bytes() == (
        outs[1] / "model.safetensors"
    ).read_bytes()
    user = parse_row({"nums": [1, 2], "target": 3}).messages()[1:2]
    tokens = AutoTokenizer.from_pretrained(outs[0])
    assert tokens.apply_chat_template(user, tokenize=False, add_generation_prompt=True).endswith(
        "<think>"
    )


def data_of(path: Path, *rows) -> Path:
    with artifacts.writing(path / "data", "data", options={}) as draft:
        (draft.path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path / "data"


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"task": "gsm8k", "question": "2 and 3?", "gold": "5"}], "Countdown puzzles only"),
        (
            [
                {"nums": [3, 7, 50], "target": 58},
                {"nums": [3, 5, 2], "target": 10, "operators": "+-"},
            ],
            "all operators",
        ),
    ],
)
def test_data_that_no_trace_can_be_written_for_is_refused(tmp_path, rows, message):
    with pytest.raises(InputError, match=message):
        pretrain.make(PretrainOptions(), data=data_of(tmp_path, *rows), out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_shipped_model_is_small_and_its_manifest_has_the_options_of_its_recipe():
    manifest = artifacts.read(SHIPPED["countdown-tiny"], "model")
    assert manifest.facts["parameters"] <= 5_000_000
    assert sum(file["size"] for file in manifest.files.values()) <= 12_000_000
    recipe = (ROOT / "stages" / "recipes" / "countdown-tiny.sh").read_text()
    options = {
        "data": manifest.chain("data")[-1].options,
        "pretrain": manifest.options,
    }
    for array, recorded in options.items():
        flags = re.findall(
            r"--([a-z-]+) (\S+)", re.search(rf"^{array}=\((.*)\)$", recipe, re.MULTILINE)[1]
        )
        assert len(flags) >= 2
        for flag, value in flags:
            if flag != "threads":
                expected = recorded[flag.replace("-", "_")]
                assert value in (expected if isinstance(expected, list) else [str(expected)]), flag
