"""Hostile inputs end in one sentence with the right exit status; no model runs code or writes to the terminal."""

import io
import json
import os
import re
import shlex
import shutil
import struct
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from countdown_rl.core.manifest import file_entry
from countdown_rl.evaluation import evaluate
from countdown_rl.evaluation.config import EvalOptions
from countdown_rl.tasks import jsonl
from tests.support import tiny_llama
from tests.support.command import status

ROOT = Path(__file__).parents[2]
ASK = "ask 3 4 --target 7 --model"
TRAIN = "train --model model --data rows.jsonl --out out --log log.csv --max-completion-length 16"
QUANTIZE = "quantize --model model --out out"
MERGE = "merge --adapter adapter --out out"
REPORT = "report --result eval --out page.html"
ESCAPE, C1, BIDI = "\x1b]0;owned\x07", "\x9b31m", "\u202e"
INDEX = "model/model.safetensors.index.json"
CONFIG = "model/config.json"
CODE = {
    "auto_map": {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"},
    "model_type": "custom",
}
SLOW_TOKENIZER = {
    "auto_map": {"AutoTokenizer": ["code.Tokenizer", None]},
    "tokenizer_class": "Custom",
}


def weights_in(file: str) -> dict[str, dict[str, str]]:
    return {"weight_map": {"lm_head.weight": file}}


def row(**fields: Any) -> str:
    record = {"nums": [3, 4], "target": 7, "completion": "<answer>3+4</answer>"} | fields
    return json.dumps(record) + "\n"


def gguf(name: str, kind: int, value: bytes) -> bytes:
    return (
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", len(name)) + name.encode()
        + struct.pack("<I", kind) + value
    )  # fmt: skip


class Case(NamedTuple):
    """A command that prints *word* and exits with *status*.

    *files* replaces some: a mapping is merged into the JSON object that is there, and None removes a file.
    """

    command: str
    status: int
    word: str
    files: Mapping[str, Any] = {}
    stdin: str = ""
    environment: Mapping[str, str] = {}


CASES = {
    # Code of a model, and weights that are not safetensors beside their configuration
    **{f"code, {words[:5]}": Case(words, 1, "trust", {CONFIG: CODE}) for words in (f"{ASK} model", MERGE, QUANTIZE)},
    "code of a tokenizer": Case(
        f"{ASK} model", 1, "tokenizer", {"model/tokenizer_config.json": SLOW_TOKENIZER, "model/tokenizer.json": None}
    ),
    "an index that names a pickle": Case(
        f"{ASK} model", 1, "model.bin",
        {INDEX: weights_in("model.bin"), "model/model.safetensors": None, "model/a.safetensors": ""},
    ),
    "an index that names a file outside": Case(
        QUANTIZE, 1, "../adapter/adapter_model.safetensors",
        {INDEX: weights_in("../adapter/adapter_model.safetensors"), "model/model.safetensors": None,
         "model/a.safetensors": ""},
    ),
    "a configuration that names its weights": Case(
        f"{ASK} model", 1, "transformers_weights", {CONFIG: {"transformers_weights": "pytorch_model.bin"}}
    ),
    "a model that is also an adapter": Case(f"{ASK} model", 1, "adapter", {"model/adapter_config.json": {}}),
    # Text that a terminal obeys
    "escapes in a completion": Case("samples eval", 0, r"\x1b]0;owned", {"eval/samples.jsonl": {"completion": ESCAPE}}),
    "escapes in a grade": Case("grade", 0, r"\u009b", stdin=row(completion=f"<answer>{C1}{BIDI}</answer>")),
    "escapes in the name of a model": Case(f"{ASK} 'a{ESCAPE}b'", 1, r"a\x1b]0;owned"),
    # Time and memory
    "numbers of 4,000 digits": Case("grade", 1, "15 digits", stdin=row(nums=[10**3_999] * 6)),
    "an exponent in a gold answer": Case(
        "grade", 1, "exact number", stdin=row(task="gsm8k", question="?", gold="1e1000000000")
    ),
    "too many prompts": Case(f"{TRAIN} --prompts 1000000000000", 2, "--prompts"),
    "the largest numbers": Case(f"solve {' '.join(['999999999999999'] * 5)} 7 --target 7 --all", 0, "distinct"),
    "a seed of 33 bits": Case("gen-data --out out --seed 4294967296", 2, "seed"),
    "a template that calls itself": Case(
        f"{ASK} model", 1, "template of model fails",
        {"model/chat_template.jinja": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"},
    ),
    # Files of another shape
    **{
        f"{file}: {content!r:.40}": Case(command, 1, word, {file: content})
        for file, command, content, word in (
            ("eval/manifest.json", "samples eval", "[]", "object"),
            ("eval/manifest.json", "samples eval", "[" * 100_000, "not JSON"),
            ("eval/manifest.json", "samples eval", {"files": {"details.json": "x"}}, "files.details.json"),
            ("eval/details.json", REPORT, {"groups": {"numbers": {"3": {"interval": 3}}}}, "groups.numbers.3"),
            ("eval/samples.jsonl", "samples eval", "x\n", "line 1, is damaged (not JSON"),
            ("adapter/adapter_config.json", MERGE, {"peft_type": "XLORA", "adapters": {"0": "elsewhere"}}, "LoRA"),
            (CONFIG, f"{ASK} model", {"model_type": "unheard-of"}, "unheard-of"),
            ("model.gguf", f"{ASK} model.gguf", gguf("tokens", 9, struct.pack("<IQ", 0, 1 << 60)), "cannot be loaded"),
        )
    },
    # Surroundings
    "a home that cannot be written": Case("samples eval", 0, "3 4", environment={"HOME": "/proc/none"}),
    "a file as a directory": Case("gen-data --n 20 --out rows.jsonl/out", 1, "cannot be written"),
}  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A model, an adapter over it, puzzles, and an evaluation."""
    place = tmp_path_factory.mktemp("hostile")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        tiny_llama.checkpoint(Path("model"))
        tiny_llama.adapter(Path("adapter"), Path("model"), reference="model")
        row = {"nums": [3, 4], "target": 7, "solutions": 1, "needs": "add-sub", "size": 2}
        jsonl.write_rows(Path("rows.jsonl"), [{"id": "3-4=7", **row}] * 8)
        options = EvalOptions(limit=1)
        evaluate.evaluate(options, model="solver", data=Path("rows.jsonl"), out=Path("eval"))
    return place


def write(name: str, content: Any) -> None:
    path = Path(name)
    if content is None:
        path.unlink()
    elif isinstance(content, bytes | str):
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    else:
        present = json.loads(path.read_text()) if path.exists() else {}
        path.write_text(json.dumps(present | content) + "\n")
    if name.startswith("eval/") and "manifest" not in name:  # as if the evaluation had written it
        manifest = json.loads(Path("eval/manifest.json").read_bytes())
        manifest["files"][path.name] = file_entry(path)
        Path("eval/manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_hostile_input_ends_in_one_sentence(case: Case, place, here, monkeypatch, capfd):
    shutil.copytree(place, here, dirs_exist_ok=True)
    Path("model/code.py").write_text("open('executed', 'w')\n")
    for name, content in case.files.items():
        write(name, content)
    for name, value in case.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked on the terminal"))
    monkeypatch.setattr(
        sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(case.stdin.encode())))
    )
    code = status(monkeypatch, *shlex.split(case.command))
    printed = "".join(capfd.readouterr())
    assert case.word in printed
    assert code == case.status
    assert not re.search(r"Traceback|[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", printed)
    assert not Path("executed").exists()
    assert not list(Path().glob(".out*"))


@pytest.mark.parametrize(
    ("words", "status", "word"),
    [
        ("<&-", 1, "standard input has no rows"),
        ("--out F F", 2, "is the input file"),
        ("--out F < F", 2, "is the input file"),
        ("--out L F", 2, "is the input file"),
    ],
)
def test_grade_loses_no_lines_to_closed_or_shared_files(words, status, word, here):
    Path("F").write_text(row())
    Path("L").symlink_to("F")
    command = f"{shlex.quote(sys.executable)} -m countdown_rl grade {words}"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, text=True)
    assert done.returncode == status
    assert word in done.stderr
    assert Path("F").read_text() == row()
