"""Tasks exported for other programs; tests/extras.py runs the one for verl in verl."""

import json
import subprocess
import sys
import tomllib
from importlib.util import module_from_spec, spec_from_file_location

import pytest
import yaml

from countdown_rl.integrations import export
from countdown_rl.tasks import jsonl
from tests.support.command import status

ROWS = {
    "train": [
        {"id": "a", "nums": [3, 4], "target": 7},
        {"id": "b", "nums": [2, 3, 4], "target": 14},
    ],
    "valid": [
        {"id": "c", "nums": [5, 6], "target": 11, "template": "{{ nums }} {{ target }} <answer>"}
    ],
    "test": [{"id": "d", "nums": [1, 2], "target": 3}],
}


@pytest.fixture
def data(tmp_path, monkeypatch):
    for split, rows in ROWS.items():
        jsonl.write_rows(tmp_path / f"{split}.jsonl", rows)
    return {split: jsonl.read_rows(tmp_path / f"{split}.jsonl") for split in ROWS}


@pytest.fixture
def exported(data, tmp_path):
    def write(to):
        place = tmp_path / to
        place.mkdir()
        name = export.write(to, {split: data[split] for split in export.splits(to)}, place)
        assert name == "countdown_exact"
        return place

    return write


def load(file):
    spec = spec_from_file_location(f"exported_{file.stem}", file)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_rows_for_verl_have_its_columns_and_are_graded_by_the_exported_reward(exported, data):
    pytest.importorskip("pyarrow")
    from pyarrow import parquet

    place = exported("verl")
    assert subprocess.run(["bash", "-n", place / "run.sh"]).returncode == 0
    assert (place / "run.sh").stat().st_mode & 0o100 or sys.platform == "win32"
    compute_score = load(place / "reward.py").compute_score
    for split in ("train", "valid"):
        records = parquet.read_table(place / f"{split}.parquet").to_pylist()
        assert len(records) == len(data[split])
        for record, row in zip(records, data[split], strict=True):
            assert record["prompt"] == row.to_trl()["prompt"]
            assert record["prompt"][-1]["role"] == "user"
            truth = record["reward_model"]["ground_truth"]
            assert json.loads(truth)["nums"] == row["nums"]
            right = f"<think>\n</think>\n<answer>{' + '.join(map(str, row['nums']))}</answer>"
            score = compute_score(
                record["data_source"], right, truth, extra_info=record["extra_info"]
            )
            assert score["score"] == float(sum(row["nums"]) == row["target"])
            assert compute_score(record["data_source"], "<answer>1</answer>", truth)["score"] == 0.0


def test_the_environment_for_prime_rl_has_the_training_rows_under_their_name(exported):
    place = exported("prime-rl")
    config = tomllib.loads((place / "rl.toml").read_text())
    (environment,) = config["orchestrator"]["train"]["env"]
    assert environment["taskset"]["id"] == "countdown_exact"
    assert [row["id"] for row in jsonl.read_rows(place / "countdown_exact/train.jsonl")] == [
        "a",
        "b",
    ]
    assert '"train.jsonl"' in (place / "countdown_exact/__init__.py").read_text()
    setuptools = tomllib.loads((place / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert setuptools["package-data"] == {"countdown_exact": ["train.jsonl"]}


def test_rows_for_areal_are_graded_by_the_exported_reward(exported):
    place = exported("areal")
    reward_fn = load(place / "reward.py").reward_fn
    assert (
        yaml.safe_load((place / "config.yaml").read_text())["train_dataset"]["path"]
        == "train.jsonl"
    )
    item = next(jsonl.read_objects(place / "train.jsonl"))
    assert set(item) == {"messages", "row"}
    texts = ["<think>\n</think>\n<answer>3 + 4</answer>", "<answer>3</answer>"]
    assert [reward_fn("prompt", text, [], [], **item) for text in texts] == [1.0, 0.0]


@pytest.mark.parametrize("to", ["verl", "prime-rl", "areal"])
def test_an_engine_needs_a_data_directory_with_its_splits(to, data, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    assert (
        status(
            monkeypatch, "export-task", "--to", to, "--data", tmp_path / "test.jsonl", "--out", out
        )
        == 1
    )
    assert "gen-data" in capsys.readouterr().err
    assert not out.exists()
