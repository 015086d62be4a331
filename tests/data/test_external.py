"""Import of published data sets, from files and from a local Hub server."""

import json

import pyarrow.parquet
import pytest

from countdown_rl.core import artifacts
from countdown_rl.core.errors import InputError
from countdown_rl.data import build, external
from countdown_rl.data.config import DataOptions
from countdown_rl.tasks import jsonl
from countdown_rl.tasks.splits import SPLITS, held_out
from tests.support.command import python

COUNTDOWN = "Jiayi-Pan/Countdown-Tasks-3to4"
PUZZLES = [{"nums": [3, 7, 50 + k], "target": 46 + k} for k in range(40)]


def test_puzzles_come_from_the_hub_at_a_pinned_revision(hub, tmp_path, run_command):
    file = tmp_path / "published" / "data" / "train-00000-of-00001.parquet"
    file.parent.mkdir(parents=True)
    commits = []
    for rows in (PUZZLES, PUZZLES[:1]):
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file)
        commits.append(hub.add_model(COUNTDOWN, tmp_path / "published", repo_type="dataset"))
    pinned, newest = commits
    words = ("gen-data", "--json", "--out")
    source = ("--from-hub", f"{COUNTDOWN}@{pinned}")
    facts = json.loads(run_command(*words, tmp_path / "data", *source).out)
    assert (facts["read"], facts["dropped"]) == (40, {})
    assert sum(split["rows"] for split in facts["splits"].values()) == 40
    assert jsonl.read_rows(tmp_path / "data" / "train.jsonl")[0]["solution"] == "50 + 3 - 7"
    manifest = artifacts.read(tmp_path / "data", "data")
    assert manifest.inputs["from"] == {"hub": COUNTDOWN, "revision": pinned}
    # Without a revision the newest commit is taken and recorded.
    assert (
        json.loads(run_command(*words, tmp_path / "newest", "--from-hub", COUNTDOWN).out)["read"]
        == 1
    )
    assert artifacts.read(tmp_path / "newest", "data").inputs["from"]["revision"] == newest


def publish(hub, folder, splits, card=""):
    """Put a data set on the *hub*, with *splits* as rows by file name, and return its commit."""
    for name, rows in splits.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        jsonl.write_rows(folder / name, rows)
    (folder / "README.md").write_text(card)
    return hub.add_model("me/rows", folder, repo_type="dataset")


def configs(*names, default=None):
    lines = [
        f"- {{config_name: {n}, default: {str(n == default).lower()}, data_files: {n}/*.jsonl}}"
        for n in names
    ]
    return "\n".join(["---", "configs:", *lines, "---", ""])


def read(name="me/rows", revision=None):
    return [item[1] for item in external.from_hub(name, revision)[1]]


@pytest.mark.parametrize(
    ("name", "default", "rows"),
    [("me/rows", "b", 2), ("me/rows:a", "b", 1), ("me/rows:c", "b", 3)],
)
def test_the_configuration_is_the_default_one_or_the_one_asked_for(
    hub, tmp_path, name, default, rows
):
    names = ["a", "b", "c"]
    files = {f"{config}/train.jsonl": PUZZLES[:k] for k, config in enumerate(names, 1)}
    publish(
        hub,
        tmp_path / "published",
        files,
        configs(*names, default=default),
    )
    assert len(read(name)) == rows


#: Ways in which a card names its files, and paths that leave the data set; {} is a path, or the absolute directory.
FORMS = (
    *("data_files: {}", "data_files: [a.jsonl, {}]", "data_files: {{train: [{}]}}", "data_dir: {}"),
    *("data_files: [{{split: train, path: {}}}]", "data_files: [{{split: train, path: [{}]}}]"),
)
LEAVING = (
    *(
        "{}/secret.jsonl",
        "../../secret.jsonl",
        "a/../../s",
        "'~/s'",
        "'http://127.0.0.1:1/s'",
        "'file://{}/s'",
    ),
    *("'..\\s'", "'C:/s'", "'zip://s::a.zip'"),
)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("path", LEAVING)
def test_a_card_that_names_files_outside_of_the_data_set_is_refused(hub, here, form, path):
    jsonl.write_rows(here / "secret.jsonl", PUZZLES)
    item = form.format(path.format(here))
    card = f"---\nconfigs:\n- {{config_name: default, {item}}}\n---\n"
    publish(hub, here / "published", {"a.jsonl": PUZZLES}, card)
    with pytest.raises(InputError, match="no file of the data set"):
        read()


@pytest.mark.parametrize("name", ["me/rows", "me/rows:d"])
def test_where_no_configuration_is_the_default_they_are_named(hub, tmp_path, name):
    publish(
        hub, tmp_path / "published", {"a/1.jsonl": PUZZLES, "b/1.jsonl": PUZZLES}, configs("a", "b")
    )
    with pytest.raises(InputError, match=r"a.*b"):
        read(name)


def test_a_configuration_keeps_its_settings_and_patterns(hub, tmp_path):
    files = "[{split: train, path: ['**/more/*.csv', one.csv]}, {split: dev, path: ./dev/a.csv}]"
    other = "- {config_name: x, data_files: y.csv}"
    card = f"---\nconfigs:\n{other}\n- {{config_name: z, sep: '|', data_files: {files}}}\n---\n"
    for name in ("deep/more/1.csv", "more/2.csv", "one.csv", "dev/a.csv", "y.csv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"nums|target\n[1, 2]|{len(name)}\n")
    publish(hub, tmp_path, {}, card)
    rows = sorted((row.get("split", ""), row["target"]) for row in read("me/rows:z"))
    assert rows == [("", 7), ("", 10), ("", 15), ("dev", 9)]


@pytest.mark.parametrize(
    ("split", "kept_in"),
    [
        *(
            ("test", "test"),
            ("test_hard", "test"),
            ("eval", "test"),
            ("testA", "test"),
            ("holdout", "test"),
        ),
        *(
            ("validation", "valid"),
            ("val", "valid"),
            ("dev", "valid"),
            ("validation.clean", "valid"),
        ),
    ],
)
def test_published_splits_keep_their_meaning(hub, tmp_path, split, kept_in):
    held = [*PUZZLES[:3], {"nums": [2, 9], "target": 11}]
    listed = f"[{{split: train, path: a.jsonl}}, {{split: {split}, path: b.jsonl}}]"
    card = f"---\nconfigs:\n- {{config_name: default, data_files: {listed}}}\n---\n"
    publish(hub, tmp_path, {"a.jsonl": PUZZLES, "b.jsonl": held}, card)
    facts = build.make(DataOptions(from_hub="me/rows"), tmp_path / "data")
    rows = {
        name: {row.id for row in jsonl.read_rows(tmp_path / "data" / f"{name}.jsonl")}
        for name, counts in facts["splits"].items()
        if counts["rows"]
    }
    assert {"2-9=11", "3-7-50=46", "3-7-51=47"} <= rows[kept_in]
    assert len(rows["train"]) > 25
    assert facts["dropped"] == {"held-out": 3}
    if kept_in == "test":
        assert len(rows["test"]) == 4


def test_a_test_row_of_a_file_keeps_its_split_wherever_it_stands(tmp_path):
    rows = [*PUZZLES, PUZZLES[5] | {"split": "test"}, PUZZLES[6] | {"split": "dev"}]
    jsonl.write_rows(tmp_path / "rows.jsonl", rows)
    build.make(DataOptions(from_=str(tmp_path / "rows.jsonl"), n=len(rows)), tmp_path / "data")
    splits = {
        split: {row.id for row in jsonl.read_rows(tmp_path / "data" / f"{split}.jsonl")}
        for split in SPLITS
    }
    assert "3-7-55=51" in splits["test"] - splits["train"]
    assert "3-7-56=52" in splits["valid"] - splits["train"]


def test_rows_of_a_full_split_are_counted_by_the_split(hub, tmp_path):
    publish(hub, tmp_path, {"train.jsonl": PUZZLES[10:], "test.jsonl": PUZZLES[:10]})
    facts = build.make(DataOptions(from_hub="me/rows", test=4), tmp_path / "data")
    assert facts["dropped"]["test-full"] == 6
    assert "of the split test" in facts["reasons"]["test-full"]
    with pytest.raises(InputError, match="none for training"):
        build.make(DataOptions(from_hub="me/rows", n=10), tmp_path / "more")


@pytest.mark.parametrize(
    "split", ["train", "training", "latest", "contest", "devices", "train_sft", "value", "all"]
)
def test_other_splits_are_for_training(split):
    assert held_out(split) is None


@pytest.mark.parametrize("cached_by", ["hf download", "load_dataset"])
@pytest.mark.parametrize("how", ["offline", "no network"])
def test_a_cached_data_set_is_read_where_the_hub_cannot_be_reached(hub, tmp_path, cached_by, how):
    pinned = publish(hub, tmp_path / "published", {"train.jsonl": PUZZLES})
    first = {
        "hf download": "from huggingface_hub import snapshot_download as d; d('me/rows', repo_type='dataset')",
        "load_dataset": "from datasets import load_dataset; load_dataset('me/rows')",
    }[cached_by]
    python(first, hub.env(tmp_path))
    env = hub.env(tmp_path) | (
        {"HF_HUB_OFFLINE": "1"} if how == "offline" else {"HF_ENDPOINT": "http://127.0.0.1:9"}
    )
    again = "from countdown_rl.data import external as e; c, rows = e.from_hub('me/rows', None); print(c, len([*rows]))"
    hub.log.clear()
    assert python(again, env).split() == [pinned, "40"]
    assert not hub.log
