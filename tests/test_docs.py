"""README and docs: every command parses and runs, every path, link and flag exists, tables are those of the results.

The commands of a page run in its order, in a directory that has the artifacts of the README's commands, with the values
of ``QUICK`` after their own. A block under ``<!-- not run: REASON -->`` is only parsed.
"""

import io
import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import chdir, redirect_stdout
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from benchmarks import cards, figures, tables
from countdown_rl.cli import main
from countdown_rl.core.formatting import percent, plural
from tests.support import browser, standins
from tests.support.command import flags, python, status

ROOT = Path(__file__).parents[1]
README = "README.md"
PAGES = {path.relative_to(ROOT).as_posix(): path.read_text() for path in tables.PAGES}
COMMANDS = {name: main.command(name) for panel in main.COMMANDS.values() for name in panel}

SHORT = "--max-completion-length 32"
#: Options that a command gets after its own, by command and by the option that must be there; the last one counts.
QUICK = {
    ("gen-data", ""): "--n 300",
    ("train", ""): "--max-steps 1 --prompts 2 --num-generations 2 --micro-batch 0 " + SHORT,
    ("train", "--probe"): "--probe 2",
    # Runs of two seeds have to differ.
    ("train", "--seed"): "--num-generations 8 --max-completion-length 64 --learning-rate 0.01",
    ("eval", ""): "--limit 4 --max-new-tokens 32",
    ("eval", "--samples"): "--samples 2 --max-new-tokens 256",
    ("sft", ""): "--max-steps 1 --batch-size 2",
    ("quantize", "--data"): "--limit 4 --max-new-tokens 32",
    ("verify", ""): "--limit 4 --fresh 4",
}

#: Flags in the text that belong to other programs.
FOREIGN = {"--quick", "--enable-lora"}

_BLOCK = re.compile(
    r"(?:<!-- not run: ([^>]+) -->\n)?^```(\w+)\n(.*?)^```$(?:\n\n?^```text\n(.*?)^```$)?",
    re.DOTALL | re.MULTILINE,
)
_INLINE = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\]\(([^)#\s]*)(?:#([\w-]+))?\)")


class Block(NamedTuple):
    """A fenced block: ``reason`` says why it is not run, ``output`` is the text block that follows it at once."""

    language: str
    text: str
    reason: str
    output: str

    def lines(self) -> list[str]:
        """Its shell commands."""
        lines = self.text.replace("\\\n", " ").splitlines() if self.language == "bash" else []
        return [line for line in lines if line.split("#")[0].strip()]


def blocks(page: str) -> list[Block]:
    return [
        Block(language, text, reason or "", output or "")
        for reason, language, text, output in _BLOCK.findall(page)
    ]


def prose(page: str) -> str:
    return _BLOCK.sub("", page)


def words(line: str) -> list[list[str]]:
    """The words of each command of a pipe, without the redirection of its output."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    commands: list[list[str]] = [[]]
    for word in lexer:
        commands.append([]) if word == "|" else commands[-1].append(word)
    return [command[: command.index(">")] if ">" in command else command for command in commands]


@pytest.mark.parametrize("name", PAGES)
def test_each_command_parses(name, tmp_path):
    (tmp_path / "prompt.jinja").touch()  # read when it is parsed
    (tmp_path / "stages").symlink_to(ROOT / "stages")
    with chdir(tmp_path):
        lines = [line for block in blocks(PAGES[name]) for line in block.lines()]
        for program, *arguments in (command for line in lines for command in words(line)):
            if program == "countdown-rl":
                COMMANDS[arguments[0]].make_context(arguments[0], arguments[1:])
            elif program == "dvc":
                pytest.importorskip("dvc.cli").parse_args(arguments)


@pytest.mark.parametrize("name", PAGES)
def test_each_command_and_flag_in_the_text_exists(name):
    every = set().union(*map(flags, COMMANDS), FOREIGN, {"--traceback"})  # before any command
    for code in _INLINE.findall(prose(PAGES[name])):
        parts = code.split()
        if parts[0] == "countdown-rl" and parts[-1] != "--help":
            parts = parts[2:] if parts[1] == "--traceback" else parts[1:]
            assert parts[0] in COMMANDS, code
        known = flags(parts[0]) if parts[0] in COMMANDS else every
        if parts[0] in COMMANDS or parts[0].startswith("--"):
            assert {part for part in parts if part.startswith("--")} <= known | {"--help"}, code


@pytest.mark.parametrize("name", PAGES)
def test_each_path_and_link_exists(name):
    for path in re.findall(
        r"`((?:stages|countdown_rl|tests|benchmarks|docs)/[\w./-]+)`", PAGES[name]
    ):
        assert (ROOT / path).exists(), path
    for target, anchor in _LINK.findall(prose(PAGES[name])):
        if "://" in target:
            continue
        page = (ROOT / name).parent / target if target else ROOT / name
        assert page.exists(), target
        headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE) if anchor else []
        anchors = [re.sub(r"[^\w -]", "", text.lower()).replace(" ", "-") for text in headings]
        assert not anchor or anchor in anchors, (target, anchor)


@pytest.mark.parametrize("name", PAGES)
def test_each_table_of_results_is_that_of_the_files(name):
    assert tables.render(PAGES[name]) == PAGES[name], "python -m benchmarks.tables"


@pytest.mark.parametrize("name", figures.FIGURES)
def test_each_figure_is_that_of_the_results(name):
    drawn = (figures.IMAGES / f"{name}.svg").read_text()
    assert drawn == figures.FIGURES[name](), "python -m benchmarks.figures"


def test_the_readme_is_short_and_leads_to_every_page():
    assert len(PAGES[README].splitlines()) <= 100
    assert [name for name in PAGES if name != README and name not in PAGES[README]] == []


def run(page: str) -> None:
    """Run the commands of *page* in the working directory."""
    for block in blocks(page):
        if block.language in ("python", "jinja") and not block.reason:
            name = re.match(r"(?:#|{#) (\w+\.\w+)", block.text)
            assert name, "a block of code begins with the name of its file"
            Path(name[1]).write_text(block.text)
        if not block.reason:
            printed = "".join(_run(line) for line in block.lines())
            assert not block.output or printed.strip() == block.output.strip()


def _run(line: str) -> str:
    """Run one line and return its stdout; a command, script or recipe in this process, which saves its imports."""
    (program, *arguments), *pipe = words(line)
    if pipe or not program.startswith(("countdown-rl", "python", "stages/")):
        done = subprocess.run(["bash", "-c", line], stdout=subprocess.PIPE, text=True)
        assert done.returncode == 0, line
        return done.stdout
    if program.startswith("stages/"):
        calls = cards.recipe_commands(Path(program).stem, Path(arguments[0]), *arguments[1:])
    else:
        given = {"", *arguments} if "--completions" not in arguments else set()  # no model runs
        for (name, flag), value in QUICK.items():
            if name == arguments[0] and flag in given:
                arguments += value.split()
        calls = [arguments]
    with redirect_stdout(io.StringIO()) as stdout, pytest.MonkeyPatch.context() as patch:
        for call in calls:
            if call[0] in COMMANDS:
                expected = call[0] == "verify"  # a few puzzles confirm nothing
                assert status(patch, *call) == expected, line
            else:
                _python(*call)
    return stdout.getvalue()


def _python(*arguments: str) -> None:
    """Run a script, or the module after ``-m``, as ``python`` does."""
    is_module = arguments[0] == "-m"
    execute = runpy.run_module if is_module else runpy.run_path
    argv = list(arguments[is_module:])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", argv)
        patch.syspath_prepend(Path.cwd())
        execute(argv[0], run_name="__main__")


def test_the_screenshot_shows_the_results_of_the_pipeline():
    files = [f"artifacts/eval/{name}/metrics.json" for name in ("base", "quantized")]
    first, last = (json.loads(tables.committed(file)) for file in files)
    shares = f"{percent(first['accuracy'])} → {percent(last['accuracy'])}"
    heading = f"GRPO: {shares} of {plural(last['n'], 'puzzle')}"
    assert browser.title_of(ROOT / "docs/images/report.png") == heading


@pytest.fixture(scope="module")
def shell(tmp_path_factory) -> Iterator[None]:
    """Put ``countdown-rl`` and ``python`` of this environment on the path, and keep sys.path."""
    directory = tmp_path_factory.mktemp("bin")
    command = directory / "countdown-rl"
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m countdown_rl "$@"\n')
    command.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{directory}:{os.environ['PATH']}")
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setattr(sys, "path", list(sys.path))
        yield


@pytest.fixture(scope="module")
def site(shell, tmp_path_factory) -> Path:
    """A directory in which the commands of the README have run and written every artifact."""
    path = tmp_path_factory.mktemp("site")
    (path / "stages").symlink_to(ROOT / "stages")
    with chdir(path):
        run(PAGES[README])
    for name in ("data", "adapter", "eval/adapter", "merged", "quantized", "release"):
        assert (path / "artifacts" / name / "manifest.json").is_file()
    return path


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PAGES if name != README])
def test_the_commands_of_a_page_run(name, site, tmp_path):
    if any(block.lines() and not block.reason for block in blocks(PAGES[name])):
        copy = shutil.copytree(site, tmp_path / "site", symlinks=True)
        with chdir(copy):
            run(PAGES[name])


def code_cells(notebook: str) -> list[str]:
    """The code of a notebook; its first cell installs the package."""
    cells = json.loads((ROOT / "docs" / notebook).read_text())["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "models", "last"),
    [
        ("free-gpu.ipynb", {"0.5B"}, "3 7 50 → 46"),
        ("gpu.md", {"1.5B", "3B"}, "memory of this device"),
    ],
)
def test_the_commands_for_one_gpu_run(shell, tmp_path, page, models, last):
    if page == "gpu.md":
        lines = blocks(PAGES["docs/gpu.md"])[0].lines()
        lines.insert(1, lines[1].replace(" --check", ""))
    else:
        lines = "\n".join(code_cells(page)[1:]).replace("\\\n", "").replace("!", "").splitlines()
    stand_in = str(standins.checkpoint(tmp_path / "model", "qwen2.5"))
    pattern = re.compile(r"Qwen/Qwen2\.5-(\S+)-Instruct")
    assert set(pattern.findall("\n".join(lines))) == models
    with chdir(tmp_path):
        printed = [_run(pattern.sub(stand_in, line)) for line in lines]
    assert last in printed[-1]


def test_the_notebook_on_grading_prints_its_outputs_without_torch(tmp_path):
    code = [*code_cells("grade.ipynb")[1:], "import sys; assert 'torch' not in sys.modules"]
    stored = []
    for cell in json.loads((ROOT / "docs" / "grade.ipynb").read_text())["cells"]:
        for output in cell.get("outputs", ()):
            stored += output["text"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    assert python("\n".join(code), environment, tmp_path) == "".join(stored)


def test_the_readme_trains_with_the_options_of_the_pipeline():
    lines = [line for block in blocks(PAGES[README]) for line in block.lines()]
    line = next(line for line in lines if "--config stages/train.yaml" in line)
    assert words(line)[0][2:] == ["--config", "stages/train.yaml"]
    pipeline = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]["train"]["cmd"]
    stage = yaml.safe_load((ROOT / "stages" / "train.yaml").read_text())["train"]
    assert "${train}" in pipeline
    assert not {flag for flag in stage if f"--{flag} " in pipeline}
