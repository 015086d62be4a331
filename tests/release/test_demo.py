"""The demo: self-contained, with the prompt of training; in a browser the same texts as llama.cpp, graded alike."""

import base64
import gzip
import hashlib
import json
import random
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from countdown_rl.core import artifacts
from countdown_rl.core.errors import UsageError
from countdown_rl.core.manifest import ProvenanceEntry
from countdown_rl.data import build as gen_data
from countdown_rl.data.config import DataOptions
from countdown_rl.evaluation.results import Result
from countdown_rl.export import quantize
from countdown_rl.export.config import QuantizeOptions
from countdown_rl.models import chat_template, load, reference
from countdown_rl.release.demo import page as demo
from countdown_rl.tasks import jsonl
from countdown_rl.tasks.countdown.task import CountdownRow
from tests.support import browser, evaluations, tiny_llama
from tests.tasks import test_expression, test_grading

PUZZLES = 30
#: Resolved when no search is running.
IDLE = (
    "new Promise(done => { const wait = () => running ? setTimeout(wait, 50) : done(); wait(); })"
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The GGUF of a random model. Do not write to it."""
    root = tmp_path_factory.mktemp("demo")
    ref = reference.find_model(str(tiny_llama.checkpoint(root / "tiny")))
    quantize.quantize_model(ref, root / "gguf", QuantizeOptions(format="gguf"))
    return root / "gguf"


#: Parts of answers and completions, from which random ones are made.
LEXEMES = (*"19 36 55 7 65 0 − × ÷ x ** ^ // 07 1e9 1_0 ٥ ²".split(), *"+-*/()=. ")  # noqa: SIM905
LEXEMES += ("🙂", "\\boxed{", "\\frac{", "\\times", "}", "\n", "9" * 15, "9" * 16)
LEXEMES += ("impossible", "Impossible!", "= 65", "= -7", "(" * 3000)
TAGS = ("<think>", "</think>", "<answer>", "</answer>", "1", " ", "\n", "55 + 36")


def texts_of(test: Callable[..., None]) -> list[str]:
    """The texts of a test of the grader in Python: the first of its parameters."""
    return [case[0] for mark in test.pytestmark for case in mark.args[1]]


def random_texts(lexemes: Sequence[str]) -> list[str]:
    rng = random.Random(1)
    return ["".join(rng.choices(lexemes, k=rng.randint(1, 12))) for _ in range(500)]


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")
def test_the_grader_of_the_page_is_that_of_the_package(tmp_path):
    row = CountdownRow({"nums": [19, 36, 55, 7], "target": 65})
    answers = ["55 + 36 - 7 - 19", *random_texts(LEXEMES)]
    for test in (
        test_expression.test_each_refusal_has_its_own_reason,
        test_expression.test_a_leading_minus_a_final_full_stop_and_a_box_belong_to_the_language,
        test_expression.test_deep_and_long_texts_are_parsed_or_refused,
        test_grading.test_each_wrong_answer_has_its_reason,
        test_grading.test_answers_are_judged_by_the_rules_of_their_puzzle,
    ):
        answers += texts_of(test)
    completions = texts_of(
        test_grading.test_completions_of_a_prompt_that_opens_the_thinking
    ) + random_texts(TAGS)
    grader = (Path(demo.__file__).parent / "grader.js").read_text("utf-8")
    (tmp_path / "cases.js").write_text(
        f"const DIRECT = false;\n{grader}\n"
        f"const judged = {json.dumps(answers)}.map(answer => gradeAnswer(answer, {row['nums']}, {row['target']}));\n"
        f"const found = {json.dumps(completions)}.map(answerOf);\n"
        "console.log(JSON.stringify([judged.map(grade => [grade.value, grade.reason]), found]));\n"
    )
    done = subprocess.run(
        ["node", tmp_path / "cases.js"], stdout=subprocess.PIPE, text=True, check=True
    )
    judged, found = json.loads(done.stdout)
    assert dict(zip(answers, map(tuple, judged), strict=True)) == {
        answer: row.judge(answer) for answer in answers
    }
    assert dict(zip(completions, found, strict=True)) == {
        text: row.grade(text).answer for text in completions
    }


def part(page: str, name: str) -> bytes:
    return base64.b64decode(
        re.search(f'<script type="text/plain" id="{name}">(.*?)</script>', page)[1], validate=True
    )


def test_the_page_holds_model_and_runtime_and_refers_to_nothing_outside(tiny):
    page = demo.of_model(tiny)
    assert part(page, "model") == (tiny / "model-Q8_0.gguf").read_bytes()
    assert part(page, "runtime") == (demo.WLLAMA / "wllama.min.js").read_bytes()
    assert gzip.decompress(part(page, "wasm"))[:4] == b"\0asm"
    text = re.sub(r'(?s)<script type="text/plain".*?</script>', "", page)
    assert not re.search(r"""https?:|\b(src|href)=|url\(|@import|fetch\(""", text)
    policy = re.search('Content-Security-Policy" content="([^"]*)"', text)[1]
    assert "default-src 'none'" in policy
    assert text.count("MIT License") == 1


def test_the_prompt_is_that_of_the_tokenizer(tiny):
    match = re.search(r"const PROMPT = (\[.*?\]), [A-Z]+ =", demo.of_model(tiny))
    head, between, tail = json.loads(match[1])
    row = CountdownRow({"nums": [3, 7, 50], "target": 46})
    prompt = chat_template.render(
        load.load_tokenizer(reference.find_model(str(tiny))), row.messages()
    )
    assert f"{head}3 7 50{between}46{tail}" == prompt


def test_the_page_holds_the_change_to_the_model_before_training(tmp_path):
    initial = reference.find_model("countdown-tiny")
    no_manifest = shutil.ignore_patterns("manifest.json")
    inputs = {"model": initial.as_input()}
    with artifacts.writing(tmp_path / "trained", "model", options={}, inputs=inputs) as draft:
        shutil.copytree(initial.path, draft.path, dirs_exist_ok=True, ignore=no_manifest)
        file = draft.path / "model.safetensors"
        tensors = {name: tensor * 1.01 for name, tensor in load_file(file).items()}
        save_file(tensors, file, {"format": "pt"})
        draft.facts["method"] = "grpo"
    trained = reference.find_model(str(tmp_path / "trained"))
    for source, name in ((initial, "before"), (trained, "after")):
        quantize.quantize_model(source, tmp_path / name, QuantizeOptions(format="gguf"))
    page = demo.of_model(tmp_path / "after")
    change = np.frombuffer(gzip.decompress(part(page, "change")), np.uint8)
    before = np.fromfile(tmp_path / "before/model-Q8_0.gguf", np.uint8)
    after = np.frombuffer(part(page, "model"), np.uint8)
    assert np.array_equal(before[-len(change) :], after[-len(change) :] + change)


def test_the_runtime_is_that_of_the_npm_package():
    readme = (demo.WLLAMA / "README.md").read_text()
    wasm = gzip.decompress((demo.WLLAMA / "wllama.wasm.gz").read_bytes())
    parts = (wasm, (demo.WLLAMA / "wllama.min.js").read_bytes())
    hashes = {hashlib.sha256(part).hexdigest() for part in parts}
    assert set(re.findall(r"`([0-9a-f]{64})`", readme)) == hashes
    assert f" {demo.VERSION}," in readme


def test_what_is_no_gguf_of_countdown_is_refused(tiny, monkeypatch):
    with pytest.raises(UsageError, match="not GGUF"):
        demo.of_model(tiny.parent / "tiny")
    data = ProvenanceEntry("data", "data", "0", options={"task": "gsm8k"})
    with pytest.raises(UsageError, match="gsm8k"):
        demo.text(tiny / "model-Q8_0.gguf", [data, ProvenanceEntry("hub", "a/b", "1")])
    monkeypatch.setattr(demo, "MAX_BYTES", 9)
    with pytest.raises(UsageError, match="too large"):
        demo.of_model(tiny)


def test_the_counts_of_numbers_and_the_format_are_those_of_the_data(tiny):
    splits = {"train": {"groups": {"numbers": {"6": 1, "5": 3}}}}
    data = ProvenanceEntry(
        "data", "data", "0", options={"style": "model_opens"}, facts={"splits": splits}
    )
    page = demo.text(tiny / "model-Q8_0.gguf", [data, ProvenanceEntry("hub", "a/b", "1")])
    assert "SIZES = [5, 6]," in page
    assert "step by step" not in page


def test_the_page_states_the_greedy_accuracy_and_offers_the_test_puzzles(tiny):
    samples = []
    for number in range(20, 60):
        row = {"nums": [5, 3, number], "target": 8 + number}
        samples.append(evaluations.sample(correct=number < 50, row=row))
    digest = reference.find_model(str(tiny)).digest
    model = {"source": "gguf", "kind": "gguf", "digest": digest}
    results = []
    for greedy, some in ((True, samples), (False, samples[:30])):
        decoding = {"greedy": greedy, "samples": 1}
        metrics = evaluations.metrics(some, decoding=decoding, model=model)
        results.append(Result(metrics, some))
    page = demo.of_model(tiny, results)
    assert "It solved <b>75.0%</b> of 40 held-out puzzles" in page
    assert "numbers from 3 to 59 and targets from 28 to 67" in page
    assert "PUZZLES = [[5, 3, 20, 28], " in page
    assert "Another test puzzle" in page
    assert "PUZZLES = [];" in demo.of_model(tiny)


@pytest.fixture(scope="module")
def offline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[browser.Browser]:
    """A browser that is offline."""
    if browser.find() is None:
        pytest.skip(f"there is no {' or '.join(browser.NAMES)}")
    page = browser.Browser(tmp_path_factory.mktemp("profile"))
    yield page
    page.close()


@pytest.fixture(scope="module")
def shipped(offline: browser.Browser, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of the shipped model, opened."""
    root = tmp_path_factory.mktemp("shipped")
    quantize.quantize_model(
        reference.find_model("countdown-tiny"), root / "gguf", QuantizeOptions(format="gguf")
    )
    (root / "demo.html").write_text(demo.of_model(root / "gguf"))
    offline.open(root / "demo.html")
    offline.run(IDLE)  # the example
    return root / "demo.html"


@pytest.mark.slow
def test_the_page_solves_puzzles_without_a_network_and_grades_them_exactly(
    shipped, offline, tmp_path
):
    assert offline.run("$('verdict').textContent")[0] in "✓✗"  # of the example
    gen_data.make(DataOptions(n=PUZZLES + 8, valid=4, test=PUZZLES), tmp_path / "data")
    rows = jsonl.read_rows(tmp_path / "data" / "test.jsonl")
    puzzles = json.dumps([[row["nums"], row["target"]] for row in rows])
    completions = offline.run(f"""(async () => {{
        const replies = [];
        for (const [numbers, target] of {puzzles}) {{
            const {{text, tokens}} = await complete(numbers, target);
            replies.push([text, verdict(text, tokens, numbers, target).right]);
        }}
        return replies;
    }})()""")
    for row, (text, right) in zip(rows, completions, strict=True):
        assert row.grade(text).correct == right
    assert sum(right for _, right in completions) > PUZZLES // 2
    assert offline.run("performance.getEntriesByType('resource').map(entry => entry.name)") == []
