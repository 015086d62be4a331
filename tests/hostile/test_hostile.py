"""Hostile inputs end in one sentence, with the right exit status, and nothing reaches the terminal or is executed."""

import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from countdown_rl.cli import main
from countdown_rl.core import artifacts
from countdown_rl.evaluation import evaluate
from countdown_rl.evaluation.config import EvalOptions
from countdown_rl.tasks import jsonl
from tests.hostile.cases import CASES, Case
from tests.support import tiny_llama

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A model, an adapter over it, puzzles, and an evaluation."""
    place = tmp_path_factory.mktemp("hostile")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        tiny_llama.checkpoint(Path("model"))
        tiny_llama.adapter(Path("adapter"), Path("model"), reference="model")
        rows = [{"id": "3-4=7", "nums": [3, 4], "target": 7, "solutions": 1, "needs": "add-sub", "size": 2}] * 8
        jsonl.write_rows(Path("rows.jsonl"), rows)
        evaluate.evaluate(EvalOptions(limit=1), model="solver", data=Path("rows.jsonl"), out=Path("eval"))
    return place


def write(name: str, content) -> None:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    if content is None:
        path.unlink()
    elif isinstance(content, Path):
        path.unlink(missing_ok=True)
        path.symlink_to(content.absolute())
    elif isinstance(content, bytes | str):
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    else:
        present = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(present | content) + "\n")


def seal(directory: Path) -> None:
    manifest = json.loads((directory / "manifest.json").read_bytes())
    manifest["files"] = {name: artifacts.entry(directory / name) for name in manifest["files"]}
    (directory / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_a_hostile_input_ends_in_one_sentence(case: Case, place, tmp_path, monkeypatch, capfd):
    shutil.copytree(place, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    for directory in ("model", "adapter"):
        Path(directory, "code.py").write_text("open('executed', 'w')\n")
    os.mkfifo("fifo")
    for name, content in case.files.items():
        write(name, content)
    if case.seal:
        seal(Path("eval"))
    for name, value in case.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked on the terminal"))
    monkeypatch.setattr(sys, "argv", ["countdown-rl", *shlex.split(case.command)])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(case.stdin.encode("utf-8", "surrogatepass"))))
    status = 0
    try:
        main.main()
    except SystemExit as stop:
        status = stop.code or 0
    printed = "".join(capfd.readouterr())
    assert case.word in printed
    assert status == case.status
    assert not re.search(r"Traceback|[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", printed)
    assert not Path("executed").exists()
    assert not list(Path().glob(".out*"))


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("model/config.json", "ask 3 4 --target 7 --model model"),
        ("adapter/adapter_config.json", "merge --adapter adapter --out out"),
        ("eval/manifest.json", "samples eval"),
    ],
)
def test_a_text_file_of_a_terabyte_is_not_read(name, command, place, tmp_path, monkeypatch, capfd):
    shutil.copytree(place, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    os.truncate(name, 1 << 40)
    monkeypatch.setattr(sys, "argv", ["countdown-rl", *command.split()])
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == 1
    assert re.search(rf"^error: .*{name.split('/')[0]}.*(ordinary|artifact)", capfd.readouterr().err, re.MULTILINE)


def shell(script: str) -> subprocess.CompletedProcess[str]:
    """Run *script*, in which ``$run`` is countdown-rl."""
    environment = {"run": f"{shlex.quote(sys.executable)} -m countdown_rl", "PYTHONPATH": str(ROOT)}
    return subprocess.run(["bash", "-c", script], env=os.environ | environment, capture_output=True, text=True)


@pytest.mark.parametrize("command", ["solve 3 4 --target 7", "grade many.jsonl"])
def test_a_reader_of_stdout_that_exits_ends_a_command_without_a_word(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    row = {"nums": [3, 4], "target": 7, "completion": "<answer>3+4</answer>"}
    Path("many.jsonl").write_text(f"{json.dumps(row)}\n" * 2000)
    done = shell(f"$run {command} | true; exit ${{PIPESTATUS[0]}}")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("redirections", "status", "word"),
    [("<&-", 1, "standard input is closed"), ("--out F < F", 2, "is the input file")],
)
def test_grade_loses_no_lines_to_closed_or_shared_files(redirections, status, word, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    line = json.dumps({"nums": [3, 4], "target": 7, "completion": "<answer>3+4</answer>"}) + "\n"
    Path("F").write_text(line)
    done = shell(f"$run grade {redirections}")
    assert done.returncode == status
    assert word in done.stderr
    assert Path("F").read_text() == line


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)])
def test_a_signal_leaves_no_partial_directory_and_says_so(number, status, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["countdown-rl", *shlex.split("gen-data --n 20 --out out")])

    def stop(*_):
        assert list(tmp_path.glob(".out.partial-*"))
        os.kill(os.getpid(), number)

    monkeypatch.setattr(jsonl, "write_rows", stop)
    before = signal.signal(number, signal.SIG_DFL)  # nohup ignores SIGHUP
    try:
        with pytest.raises(SystemExit) as stopped:
            main.main()
    finally:
        signal.signal(number, before)
    assert stopped.value.code == status
    assert f"ended by {number.name}" in capfd.readouterr().err
    assert not list(tmp_path.iterdir())
