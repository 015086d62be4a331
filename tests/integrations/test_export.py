"""Tasks exported for other programs; tests/extras.py runs the one for verl in verl."""

import json
import subprocess
import tomllib
from importlib.util import module_from_spec, spec_from_file_location

import pytest
import yaml

from countdown_rl.integrations import export
from countdown_rl.tasks import jsonl

ROWS = [
    {"id": "a", "nums": [3, 4], "target": 7},
    {"id": "b", "nums": [5, 6], "target": 11, "template": "{{ nums }} {{ target }} <answer>"},
]
RIGHT = "<think>\n</think>\n<answer>{0} + {1}</answer>"


@pytest.fixture
def exported(tmp_path):
    def write(to):
        jsonl.write_rows(tmp_path / "rows.jsonl", ROWS)
        rows = jsonl.read_rows(tmp_path / "rows.jsonl")
        (tmp_path / to).mkdir()
        name = export.write(to, dict.fromkeys(export.splits(to), rows), tmp_path / to)
        assert name == "countdown_exact"
        return tmp_path / to, rows

    return write


def load(file):
    spec = spec_from_file_location(f"exported_{file.stem}", file)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_rows_for_verl_have_its_columns_and_are_graded_by_the_exported_reward(exported):
    parquet = pytest.importorskip("pyarrow.parquet")
    place, rows = exported("verl")
    assert subprocess.run(["bash", "-n", place / "run.sh"]).returncode == 0
    assert (place / "run.sh").stat().st_mode & 0o100
    compute_score = load(place / "reward.py").compute_score
    for split in ("train", "valid"):
        records = parquet.read_table(place / f"{split}.parquet").to_pylist()
        for record, row in zip(records, rows, strict=True):
            assert record["prompt"] == row.to_trl()["prompt"]
            assert record["prompt"][-1]["role"] == "user"
            truth = record["reward_model"]["ground_truth"]
            for text, score in ((RIGHT.format(*row["nums"]), 1.0), ("<answer>1</answer>", 0.0)):
                extra = record["extra_info"]
                scores = compute_score(record["data_source"], text, truth, extra_info=extra)
                assert scores["score"] == score


def test_the_environment_for_prime_rl_has_the_training_rows_under_their_name(exported):
    place, rows = exported("prime-rl")
    config = tomllib.loads((place / "rl.toml").read_text())
    (environment,) = config["orchestrator"]["train"]["env"]
    assert environment["taskset"]["id"] == "countdown_exact"
    assert jsonl.read_rows(place / "countdown_exact/train.jsonl") == rows
    assert '"train.jsonl"' in (place / "countdown_exact/__init__.py").read_text()
    assert 'countdown_exact = ["train.jsonl"]' in (place / "pyproject.toml").read_text()


def test_rows_for_areal_are_graded_by_the_exported_reward(exported):
    place, _ = exported("areal")
    reward = load(place / "reward.py").reward_fn
    config = yaml.safe_load((place / "config.yaml").read_text())
    assert config["train_dataset"]["path"] == "train.jsonl"
    item = next(jsonl.read_objects(place / "train.jsonl"))
    assert json.loads(item["row"])["nums"] == [3, 4]
    assert reward("prompt", RIGHT.format(3, 4), [], [], **item) == 1.0
    assert reward("prompt", "<answer>3</answer>", [], [], **item) == 0.0


def test_an_engine_needs_a_data_directory_with_its_splits(here, run_command):
    jsonl.write_rows(here / "test.jsonl", ROWS)
    words = ("export-task", "--to", "verl", "--data", "test.jsonl", "--out", "out")
    assert "gen-data" in run_command(*words, code=1).err
    assert not (here / "out").exists()
