"""The report page: self-contained, with the figures of the artifacts, and model text escaped."""

import itertools
import json
import re
from pathlib import Path

import pytest

from countdown_rl.core.manifest import Manifest
from countdown_rl.evaluation import compare, results, tables, training_log
from countdown_rl.evaluation.sample import Sample
from countdown_rl.inference.engine import Completion
from countdown_rl.release.demo import page as demo
from countdown_rl.release.report import page as report
from countdown_rl.tasks import jsonl
from countdown_rl.tasks.registry import parse_row
from tests.support import browser, evaluations
from tests.support.runs import steps

DECODING = evaluations.GREEDY | {"samples": 1}
DATA = {"file": "test.jsonl", "digest": "d" * 64, "size": 9}
ROWS = []
for at in range(12):
    row = {"id": f"r{at}", "nums": [at + 1, 3, 50], "target": at + 54, "needs": "add-sub"}
    ROWS.append(row)
    if at % 2:
        row |= {"nums": [*row["nums"], 7], "target": at + 61, "needs": "mul-div"}
HOSTILE = (
    '3 + 3 = 7 <script>alert(1)</script> "><img src=x onerror=alert(2)> </pre></main> {{ 7 * 7 }} {% raw %}'
    " <!-- \x00 \x1b[2J \u202e \ud800 &lt;b&gt; http://example.com/x.js url(http://example.com)"
)


def chained(*kinds: str) -> dict:
    """The manifest input of the last of *kinds*, each made from the one before it, all from data."""
    options = {"deep": {"a": {"b": 1}}, "none": None, "sampler": "curriculum"}
    grpo = {"method": "grpo", "log_digest": training_log.digest(steps(3))}
    entry = {"data": Manifest("data", options).as_input()}
    for kind in kinds:
        facts = grpo if kind == "adapter" else {}
        made = Manifest.of(kind, options, entry, facts=facts).as_input()
        entry = {"model": made | {"source": f"artifacts/{kind}"}}
    return entry["model"]


CHAINS = {
    "base": ("model",),
    "base-gguf": ("model", "quantized"),
    "unrelated": ("merged",),
    "adapter": ("model", "adapter"),
    "merged": ("model", "adapter", "merged"),
    "gguf": ("model", "adapter", "merged", "quantized"),
    "again": ("model", "adapter", "adapter"),
}


def solved(row) -> str:
    return "7 + 3 = 10 no\n</think>\n<answer>" + " + ".join(map(str, row["nums"])) + "</answer>"


def write_eval(path: Path, marks: str, *, samples=1, text="", **changes) -> Path:
    """An evaluation at *path*: each completion answers its puzzle (``+``), or gives *text*."""
    wrong = text or "50 - 3 = 48, hm\n</think>\n<answer>50 - 3</answer>"
    graded = []
    for index, mark in enumerate(marks):
        row = ROWS[index // samples]
        completion = Completion(solved(row) if mark == "+" else wrong, 9, mark != ".")
        turn = index % samples if samples > 1 else None
        graded.append(Sample.of(parse_row(row), completion, turn))
    entry = chained(*CHAINS.get(path.name, ("model",)))
    about = {"decoding": DECODING | {"samples": samples}, "data": DATA}
    about["model"] = {"source": entry["source"], "kind": "directory", "digest": entry["digest"]}
    metrics = evaluations.metrics(graded, **about | changes)
    inputs = {} if metrics.is_baseline else {"model": entry}
    return evaluations.write(path, metrics, graded, data=DATA, **inputs)


@pytest.fixture
def run(here):
    marks = {"base": "++--++--+---", "merged": "++++++-++--+", "adapter": "++++++-++-+."}
    for name in marks:
        write_eval(Path("artifacts/eval", name), marks[name])
    training_log.write(Path("artifacts/train/log.csv"), steps(3))
    return Path("artifacts")


def page(root=Path("artifacts"), **sources) -> str:
    return report.text(report.view(*report.find(root, **sources)))


def test_links_lead_to_sections_and_the_same_artifacts_give_the_same_page(run):
    text = page()
    assert text == page()
    ids = re.findall(r' id="([^"]*)"', text)
    assert len(set(ids)) == len(ids)
    assert set(re.findall(r'<label for="([^"]*)"', text)) < set(ids)
    links = re.findall(r'<a href="#([^"]*)"', text)
    assert links == re.findall(r'<section id="([^"]*)"', text)
    assert {"results", "training", "changed", "texts", "provenance"} <= set(links)
    training_log.write(run / "train" / "log.csv", training_log.thinned(steps(10, seconds=21.0), 4))
    assert "<b>10</b><span>steps of GRPO,<br>in 3m 30s</span>" in page()


def test_model_text_is_escaped_and_the_page_has_no_scripts_and_no_outside_references(run):
    write_eval(run / "eval" / "z<b>&'x", "-+" * 6, text=HOSTILE)
    text = page()
    unsafe = {"script", "img", "iframe", "object", "embed", "link", "base", "form"}
    for tag, attributes in re.findall(r"<([a-z]+)([^>]*)>", text):
        assert tag not in unsafe
        assert not re.search(r" (on\w+|src|srcset|action|xlink:href)=|url\(", attributes)
    style = re.search("<style>(.*?)</style>", text, re.S)[1]
    assert not re.search(r"url\(|@import|expression|http", style)
    assert """content="default-src 'none'; style-src 'unsafe-inline'\"""" in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "{{ 7 * 7 }} {% raw %}" in text
    assert "z&lt;b&gt;&amp;&#39;x" in text
    assert not set("\x00\x1b\u202e\ud800") & set(text)


def details(name: str) -> dict:
    return json.loads(Path("artifacts/eval", name, "details.json").read_text())


def row_of(text: str, name: str) -> str:
    return re.search(rf'<tr data-row="{name}">(.*?)</tr>', text, re.S)[1]


def values(cells: str) -> list[float]:
    return [json.loads(value) for value in re.findall(r'<data value="([^"]*)"', cells)]


@pytest.mark.parametrize(("index", "name"), enumerate(("base", "adapter", "merged")))
def test_figures_are_those_of_the_metrics_and_of_a_comparison(run, index, name):
    text = page()
    metrics = details(name)
    shown = [metrics["accuracy"], *metrics["interval"], metrics["format"]]
    assert values(row_of(text, name)) == shown
    bars = dict(re.findall(rf'"{name}" data-kind="([^"]*)">.*?<data value="([^"]*)"', text, re.S))
    needs = metrics["groups"]["needs"]
    assert json.loads(bars["+ and − suffice"]) == needs["add-sub"]["accuracy"]
    counts = {}
    for reason, cells in re.findall(r'<tr data-reason="([^"]*)">(.*?)</tr>', text, re.S):
        counts[reason] = values(cells)[index]
    assert {reason: count for reason, count in counts.items() if count} == metrics["reasons"]
    if index:
        base, other = (results.read(run / "eval" / of) for of in ("base", name))
        assert tables.points(compare.difference(base, other)) in row_of(text, name)


def summary(text: str) -> str:
    return re.sub(r"<[^>]*>", "", re.search(r'<p class="sum">(.*?)</p>', text, re.S)[1])


def test_models_are_ordered_by_their_chain_and_bounds_come_last(run):
    for name, mark, kind in (("ceiling", "+", "ceiling"), ("a", "-", "floor")):
        model = {"source": name, "kind": kind}
        write_eval(run / "eval" / name, mark * 12, model=model, decoding={"samples": 1})
    rows = re.findall(r'<tr( class="bound")? data-row="([^"]*)">', page())
    assert [name for _, name in rows] == ["base", "adapter", "merged", "a", "ceiling"]
    assert [name for bound, name in rows if bound] == ["a", "ceiling"]


@pytest.mark.parametrize(
    ("names", "initial"),
    [
        ("merged gguf", ""),
        ("unrelated adapter", ""),
        ("base gguf", "base"),
        ("base-gguf adapter", "base-gguf"),
        ("unrelated base merged", "base"),
        ("adapter again", "adapter"),
        ("base unrelated", None),
    ],
)
def test_training_is_credited_with_a_difference_from_the_initial_policy_alone(run, names, initial):
    for name in names.split():
        write_eval(run / "of" / name, "++--++--+---" if name.startswith("base") else "++++++-++--+")
    for order in itertools.permutations(f"artifacts/of/{name}" for name in names.split()):
        text = page(results=order)
        assert ("→ 75.0% of 12" in re.search("<h1>(.*)</h1>", text)[1]) == bool(initial)
        assert ("No evaluation of the initial policy was given" in summary(text)) == (initial == "")
        assert not initial or f"{initial}, which is artifacts/" in summary(text)


def test_results_on_other_puzzles_or_with_other_decoding_have_their_own_table(run):
    write_eval(run / "eval" / "five", "+-+", data=DATA | {"digest": "e" * 64})
    write_eval(run / "eval" / "sampled", "+-" * 12, samples=2)
    for samples in (2, 3):
        floor = {"model": {"source": "r", "kind": "floor"}, "decoding": {"samples": samples}}
        write_eval(run / f"eval/floor{samples}", "-" * 12 * samples, samples=samples, **floor)
    text = page()
    tables = re.findall(r'<table class="main">(.*?)</table>', text, re.S)
    rows = [re.findall(r'data-row="([^"]*)"', table) for table in tables]
    assert rows == [["base", "adapter", "merged"], ["sampled", "floor2"], ["five"]]
    assert "floor3: left out, as the evaluation has other puzzles" in text
    for title in ("The same puzzles, decoded in another way", "Other puzzles"):
        assert f"<b>{title}</b>" in text


def test_equations_are_checked_and_answers_evaluated_step_by_step(run):
    text = page()
    assert "<li>50 − 3 = <b>47</b></li>" in text
    assert '<span class="incorrect">50 - 3 = 48</span>' in text
    assert '<span class="correct">7 + 3 = 10</span>' in text
    assert "a number not used, where the rule asks for all" in text
    assert "… truncated at 9 tokens" in text


def test_a_log_of_another_run_is_reported(run):
    assert "This log is not from the run" not in page()
    assert "A curriculum is on" in page()
    assert "All manifest hashes match" in page()
    training_log.write(run / "train" / "log.csv", steps(4))
    assert "A curriculum is on" not in page()
    two = page(results=["artifacts/eval/base", "artifacts/eval/adapter"])
    assert "This log is not from the run that made adapter," in two


def test_the_demo_of_a_gguf_is_written_beside_the_report_and_linked(run, run_command, monkeypatch):
    (run / "gguf").mkdir()
    monkeypatch.setattr(demo, "of_model", lambda model, evaluations: str(model))
    run_command("report")
    assert (run / "demo.html").read_text() == "artifacts/gguf"
    assert '<a href="demo.html">' in (run / "report.html").read_text()


def test_logs_of_one_name_are_seeds_and_others_are_lines(run):
    for seed in range(3):
        rows = steps(9 - seed, reward=seed, eval_correct=seed / 10)
        training_log.write(Path(f"{seed}.csv"), rows)
    text = page(logs=["grpo=0.csv,1.csv", "2.csv"], results=["artifacts/eval/base"])
    assert "grpo 5.0% → 5.0%" in text
    assert "<title>step 8: 5.0%" in text  # the mean ends with the shorter run
    assert "<title>step 9: 5.0%" not in text
    assert "2.csv 20.0% → 20.0%" in text
    assert '<path class="range ' in text


def test_results_of_one_name_are_the_runs_of_a_setting(run):
    for seed, marks in enumerate(("++++++-++-+-", "+++++++++---", "+++---------")):
        write_eval(Path(f"adapter{seed}"), marks, decoding=DECODING | {"seed": seed})
    text = page(results=["artifacts/eval/base", "GRPO=adapter0,adapter1,adapter2"])
    assert "mean of 3 runs, ± 28.9" in text
    assert values(row_of(text, "GRPO"))[0] == pytest.approx(7 / 12, abs=1e-6)
    assert text.count('class="t card w1') == 12  # completions of the first run


def test_several_completions_of_a_puzzle_are_not_counted_as_puzzles(here):
    for name in ("base", "adapter"):
        write_eval(Path("artifacts/eval", name), 12 * "+++-", samples=4)
    text = page()
    assert re.search("solves 75.0% of 12 .*puzzles, the mean over 4 completions", summary(text))
    assert 'id="changed"' not in text
    assert text.count('class="t card w0 ok"') == 12  # the first completions
    metrics = details("base")
    rows = dict(re.findall(r'<tr data-(?:pass|tokens)="([^"]*)">(.*?)</tr>', text, re.S))
    assert values(rows["2"]) == [metrics["pass_at"]["2"]["share"]] * 2
    assert values(rows["majority"]) == [metrics["majority"]["share"]] * 2


def test_damaged_inputs_are_refused_and_the_old_page_stays(run, run_command):
    run_command("report")
    before = (run / "report.html").read_bytes()
    training_log.write(run / "train" / "log.csv", [])
    assert "log.csv has no steps" in run_command("report", code=1).err
    (run / "eval" / "merged" / "samples.jsonl").write_text("")
    assert "merged/samples.jsonl is damaged" in run_command("report", code=1).err
    assert (run / "report.html").read_bytes() == before


def filmed(log: Path, marks: dict[int, list[str]]) -> None:
    """Write the validation samples of *log*: for each step and puzzle the grades of its completions, as signs."""
    lines = []
    for step, puzzles in marks.items():
        for row, signs in zip(ROWS, puzzles, strict=False):
            row = parse_row(row | {"target": sum(row["nums"])})
            for sign in signs:
                text = solved(row) if sign == "+" else f"wrong at {step} {HOSTILE}"
                sample = Sample.of(row, Completion(text, 9, True))
                lines.append({"step": step, "validation": True} | sample.to_json())
    jsonl.write_rows(training_log.beside(log, training_log.SAMPLES), lines)


def test_the_film_holds_the_same_puzzles_after_each_of_several_validations(run):
    log = run / "train" / "log.csv"
    filmed(log, {2: ["--", "+-", "++"], 4: ["-+", "++", "--"]})
    text = page()
    assert re.findall('data-shares="([^"]*)"', text) == ["0.0,0.5", "0.5,1.0", "1.0,0.0"]
    assert 'data-chosen="0"' in text  # the one that improved most
    filmed(log, {2: ["-", "+"]})
    assert 'id="film"' not in page()


def test_the_film_plays_in_a_browser(run, tmp_path):
    if browser.find() is None:
        pytest.skip(f"there is no {' or '.join(browser.NAMES)}")
    filmed(run / "train" / "log.csv", {2: ["+", "-", "-"], 4: ["+", "-", "+"], 6: ["-", "+", "+"]})
    report.save(page(), run / "report.html")
    chromium = browser.Browser(tmp_path / "profile")
    chromium.open((run / "report.html").resolve())
    seen = """[film.querySelector("output").textContent,
        film.querySelector(".frame:not([hidden])").innerText.match(/wrong at ./)[0]]"""
    assert chromium.run(seen) == ["step 2: 1 of 3 solved", "wrong at 2"]
    chromium.run("(slider.value = 2, slider.dispatchEvent(new Event('input')), puzzles[0].click())")
    assert chromium.run(seen) == ["step 6: 2 of 3 solved", "wrong at 6"]
    chromium.run("(play.click(), new Promise(done => setTimeout(done, 2500)))")
    assert chromium.run("[slider.value, play.textContent]") == ["2", "Play"]
    chromium.close()


def test_a_log_without_evaluations_makes_a_page_about_training(run, run_command):
    log = run / "train" / "log.csv"
    filmed(log, {2: ["+", "-", "-"], 4: ["+", "-", "+"]})
    run_command("report", "--figures", "figures", "--log", log)
    text = (run / "report.html").read_text()
    assert "<h1>GRPO: 3 steps</h1>" in text
    assert re.findall(r'<a href="#([^"]*)"', text) == ["film", "training"]
    assert re.findall(r'<section id="([^"]*)"', text) == ["film", "training"]
    assert "This log is not" not in text
    assert len(list(Path("figures").iterdir())) == text.count("<figure")
