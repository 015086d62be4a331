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
from tests.support import tiny_llama
from tests.support.command import status

PAGE = Path(__file__).parents[2] / "docs/tasks.md"
#: Words of Countdown that no output about another task has.
COUNTDOWN = re.compile(
    r"(?i)puzzle|countdown(?![-_]rl)|\bnums\b|\d numbers|of numbers|\btargets?\b|solvable|impossible|[×÷] is"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The page's package, installed."""
    source, site = tmp_path_factory.mktemp("products"), tmp_path_factory.mktemp("site")
    files = {"products.py": "python", "pyproject.toml": "toml"}
    for name, language in files.items():
        (source / name).write_text(
            re.search(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.S | re.M)[1]
        )
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
    ]
    subprocess.run([*pip, "--target", site, source], check=True)
    return site


@pytest.fixture
def installed(site, monkeypatch):
    """Make the package importable in this process."""
    monkeypatch.syspath_prepend(str(site))
    registry._others.cache_clear()
    registry.task.cache_clear()
    yield
    registry._others.cache_clear()
    registry.task.cache_clear()


@pytest.fixture
def run(installed, here, monkeypatch, capsys):
    """Run a command in an empty directory; its output has no word of Countdown."""
    monkeypatch.setenv("COLUMNS", "200")

    def run(*words, expect=0):
        code = status(monkeypatch, *words)
        printed = capsys.readouterr()
        assert code == expect, printed.err
        check_words(printed.out + printed.err)
        return printed.out if expect == 0 else printed.err

    return run


def check_words(text):
    assert not (match := COUNTDOWN.search(text)), text[
        max(0, match.start() - 200) : match.end() + 200
    ]


def go_through(run, noun, headline, purpose, identifier):
    """Take the rows at ``data`` through every stage."""
    tiny_llama.checkpoint(Path("base"), max_position_embeddings=1024)
    steps = [
        "--max-steps",
        2,
        "--prompts",
        2,
        "--num-generations",
        2,
        "--max-completion-length",
        16,
    ]
    run("train", "--model", "base", "--data", "data", "--out", "adapter", "--log", "log.csv", *steps, "--precision",
        "fp32", "--micro-batch", 0)  # fmt: skip
    run("merge", "--adapter", "adapter", "--out", "merged")
    for model in ("base", "adapter", "merged"):
        decoding = ["--max-new-tokens", 16]
        run("eval", "--model", model, "--data", "data", "--out", f"eval/{model}", *decoding)
    assert f"12 held-out {noun}s" in run(
        "compare", "eval/base", "eval/adapter", "--out", "comparison"
    )
    check_words(Path("comparison/comparison.md").read_text())
    run("samples", "eval/adapter", "--errors")
    assert re.search(headline, run("samples", "eval/adapter"))
    run(
        "report",
        "--result",
        "eval/base",
        "--result",
        "eval/adapter",
        "--log",
        "log.csv",
        "--out",
        "page.html",
    )
    page = re.sub(r"(?s)<(script|style)\b.*?</\1>", "", Path("page.html").read_text("utf-8"))
    text = re.sub(r"<[^>]+>", " ", page)
    assert re.search(headline, text)
    check_words(text)
    run(
        "publish",
        "--model",
        "merged",
        "--eval",
        "eval/merged",
        "--out",
        "release",
        "--log",
        "log.csv",
    )
    run("publish", "--data", "data", "--out", "data-release")
    for card, words in (("release", purpose), ("data-release", identifier)):
        text = Path(card, "README.md").read_text()
        assert words in text
        check_words(text.replace(purpose, ""))
    for evaluator in ("lm-eval", "verifiers"):
        run("export-task", "--to", evaluator, "--data", "data", "--out", evaluator)
        assert len(jsonl.read_rows(next(Path(evaluator).rglob("test.jsonl")))) == 12


@pytest.mark.slow
def test_a_task_of_another_package_goes_through_every_stage(run):
    table = run(
        "gen-data", "--task", "products", "--n", 300, "--valid", 20, "--test", 12, "--out", "data"
    )
    assert "2 digits" in table
    rows = {
        split: jsonl.read_rows(Path("data", f"{split}.jsonl"))
        for split in ("train", "valid", "test")
    }
    assert {split: len(part) for split, part in rows.items()} == {
        "train": 268,
        "valid": 20,
        "test": 12,
    }
    assert len({row.identity for part in rows.values() for row in part}) == 300
    assert all(row.split == split for split, part in rows.items() for row in part)
    recorded = {"n": 300, "valid": 20, "test": 12, "seed": 42, "task": "products"}
    assert artifacts.read(Path("data"), "data").options == recorded
    jsonl.write_rows(
        Path("mine.jsonl"),
        [{"a": a, "b": b} for a in range(2, 9) for b in range(2, 9)] + [{"a": "x"}],
    )
    said = run(
        "gen-data", "--task", "products", "--from", "mine.jsonl", "--out", "imported", "--json"
    )
    assert json.loads(said)["dropped"] == {"duplicate": 21, "not-a-row": 1}
    run("eval", "--model", "multiplier", "--data", "data", "--out", "eval/multiplier")
    assert results.read(Path("eval/multiplier")).metrics.accuracy == 1

    go_through(
        run,
        "product",
        r"\d+ × \d+",
        "Multiply two whole numbers.",
        "identifier: a digest of the factors",
    )
    assert "correct_digits_2" in Path("log.csv").read_text().splitlines()[0].split(",")
    assert json.loads(Path("eval/base/metrics.json").read_text())["digits_2"] == 0
    assert "| 2 digits |" in Path("comparison/comparison.md").read_text()


@pytest.mark.slow
def test_a_task_without_generator_baselines_and_groups_goes_through_every_stage(run):
    problems = [
        {"question": f"What is {k} and {k}?", "answer": f"#### {2 * k}"} for k in range(400)
    ]
    jsonl.write_rows(Path("rows.jsonl"), problems)
    gen_data = [
        "gen-data",
        "--task",
        "gsm8k",
        "--from",
        "rows.jsonl",
        "--test",
        12,
        "--valid",
        10,
        "--out",
        "data",
    ]
    run(*gen_data)
    assert "give --from" in run("gen-data", "--task", "gsm8k", "--out", "new", expect=2)
    go_through(
        run,
        "problem",
        "What is",
        "Solve a word problem in arithmetic",
        "identifier: a digest of the question",
    )
    assert set(json.loads(Path("eval/base/metrics.json").read_text())) == {
        *("n", "accuracy", "low", "high", "format", "trunc", "tokens")
    }


@pytest.mark.slow
def test_inspect_takes_a_task_of_another_package(installed, here, monkeypatch):
    inspect_ai = pytest.importorskip("inspect_ai")
    from inspect_ai.model import ModelOutput, _model, get_model

    from countdown_rl.integrations.inspect_tasks import exact

    monkeypatch.setattr(_model, "count_text_tokens", len)  # it downloads a tokenizer
    jsonl.write_rows(here / "rows.jsonl", [{"task": "products", "a": 12, "b": 7}])
    reply = ModelOutput.from_content("mockllm", "<think>so</think>\n<answer>84</answer>")
    (log,) = inspect_ai.eval(
        exact(data=str(here / "rows.jsonl")),
        model=get_model("mockllm/model", custom_outputs=[reply], memoize=False),
        display="none",
        log_realtime=False,
    )
    (sample,) = log.samples
    assert (sample.target, sample.scores["grade"].value, sample.scores["grade"].explanation) == (
        "84",
        "C",
        "84",
    )
    assert sample.input[-1].content == "What is 12 times 7?"
