"""The task of docs/tasks.md, installed as a package of its own, through every stage; and tasks that leave parts out."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from countdown_rl.core import artifacts
from countdown_rl.evaluation import results
from countdown_rl.tasks import jsonl, registry
from countdown_rl.tasks.splits import SPLITS
from tests.support import tiny_llama
from tests.support.command import status

PAGE = Path(__file__).parents[2] / "docs/tasks.md"
#: Words of Countdown that no output about another task has.
COUNTDOWN = re.compile(
    r"(?i)puzzle|countdown(?![-_]rl)|\bnums\b|\d numbers|of numbers|\btargets?\b|solvable|impossible|[×÷] is"
)
PIP = "-m pip install -q --no-deps --no-build-isolation --no-index --target"


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The page's package, installed."""
    source, site = tmp_path_factory.mktemp("products"), tmp_path_factory.mktemp("site")
    for name, language in {"products.py": "python", "pyproject.toml": "toml"}.items():
        block = re.search(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.S | re.M)
        (source / name).write_text(block[1])
    subprocess.run([sys.executable, *PIP.split(), site, source], check=True)
    return site


@pytest.fixture
def run(site, here, monkeypatch, capsys):
    """Run a command in an empty directory, where the package is installed; its output has no word of Countdown."""
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("COLUMNS", "200")
    registry._others.cache_clear()
    registry.task.cache_clear()

    def run(words, expect=0):
        code = status(monkeypatch, *words.split())
        printed = capsys.readouterr()
        assert code == expect, printed.err
        check_words(printed.out + printed.err)
        return printed.out if expect == 0 else printed.err

    yield run
    registry._others.cache_clear()
    registry.task.cache_clear()


def check_words(text):
    match = COUNTDOWN.search(text)
    assert not match, text[max(0, match.start() - 200) : match.end() + 200]


def go_through(run, noun, headline, purpose):
    """Take the rows at ``data`` through every stage."""
    tiny_llama.checkpoint(Path("base"), max_position_embeddings=1024)
    run(
        "train --model base --data data --out adapter --log log.csv --max-steps 2 --prompts 2 --num-generations 2 "
        "--max-completion-length 16 --precision fp32 --micro-batch 0"
    )
    run("merge --adapter adapter --out merged")
    for model in ("base", "adapter", "merged"):
        run(f"eval --model {model} --data data --out eval/{model} --max-new-tokens 16")
    comparison = run("compare eval/base eval/adapter --out comparison")
    assert f"12 held-out {noun}s" in comparison
    check_words(Path("comparison/comparison.md").read_text())
    run("samples eval/adapter --errors")
    assert re.search(headline, run("samples eval/adapter"))
    run("report --result eval/base --result eval/adapter --log log.csv --out page.html")
    page = re.sub(r"(?s)<(script|style)\b.*?</\1>", "", Path("page.html").read_text("utf-8"))
    text = re.sub(r"<[^>]+>", " ", page)
    assert re.search(headline, text)
    check_words(text)
    run("publish --model merged --eval eval/merged --out release --log log.csv")
    card = Path("release", "README.md").read_text()
    assert purpose in card
    check_words(card.replace(purpose, ""))
    for evaluator in ("lm-eval", "verifiers"):
        run(f"export-task --to {evaluator} --data data --out {evaluator}")
        assert len(jsonl.read_rows(next(Path(evaluator).rglob("test.jsonl")))) == 12


@pytest.mark.slow
def test_a_task_of_another_package_goes_through_every_stage(run):
    table = run("gen-data --task products --n 300 --valid 20 --test 12 --out data")
    assert "2 digits" in table
    rows = [
        (row, split) for split in SPLITS for row in jsonl.read_rows(Path(f"data/{split}.jsonl"))
    ]
    assert all(row.split == split for row, split in rows)
    assert len({row.identity for row, _ in rows}) == len(rows) == 300
    recorded = {"n": 300, "valid": 20, "test": 12, "seed": 42, "task": "products"}
    assert artifacts.read(Path("data"), "data").options == recorded

    mine = [{"a": a, "b": b} for a in range(2, 9) for b in range(2, 9)]
    jsonl.write_rows(Path("mine.jsonl"), [*mine, {"a": "x"}])
    printed = run("gen-data --task products --from mine.jsonl --out imported --json")
    assert json.loads(printed)["dropped"] == {"duplicate": 21, "not-a-row": 1}
    run("eval --model multiplier --data data --out eval/multiplier")
    assert results.read(Path("eval/multiplier")).metrics.accuracy == 1

    purpose = "Multiply two whole numbers."
    go_through(run, "product", r"\d+ × \d+", purpose)
    assert "correct_digits_2" in Path("log.csv").read_text().splitlines()[0].split(",")
    assert json.loads(Path("eval/base/metrics.json").read_text())["digits_2"] == 0
    assert "| 2 digits |" in Path("comparison/comparison.md").read_text()


@pytest.mark.slow
def test_a_task_without_generator_baselines_and_groups_goes_through_every_stage(run):
    problems = [
        {"question": f"What is {k} and {k}?", "answer": f"#### {2 * k}"} for k in range(400)
    ]
    jsonl.write_rows(Path("rows.jsonl"), problems)
    run("gen-data --task gsm8k --from rows.jsonl --test 12 --valid 10 --out data")
    assert "give --from" in run("gen-data --task gsm8k --out new", expect=2)
    purpose = "Solve a word problem in arithmetic"
    go_through(run, "problem", "What is", purpose)
    names = {"n", "accuracy", "low", "high", "format", "trunc", "tokens"}
    assert json.loads(Path("eval/base/metrics.json").read_text()).keys() == names
