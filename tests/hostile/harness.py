"""Generated hostile cases: each is a command in a directory of its own, run in a child process, and judged.

A case damages a copy of the artifacts of :func:`place`. Its verdict is one of ``VERDICTS``; all but "refused" and
"accepted" are failures.
"""

import os
import re
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from countdown_rl.cli import main
from countdown_rl.core import artifacts

#: Seconds after which a command hangs.
LIMIT = 60

#: Begins what a command that could not says: an error, or a verdict of verify.
_SENTENCE = re.compile("^(?:error: |conclusion +(?:refuted|too few))", re.MULTILINE)
REFUSED, ACCEPTED, SILENT, TRACEBACK, CRASH, HANG = "refused", "accepted", "silent", "traceback", "crash", "hang"
VERDICTS = (REFUSED, ACCEPTED, SILENT, TRACEBACK, CRASH, HANG)

ASK = "ask 3 4 --target 7 --max-new-tokens 2 --model"
EVAL = "eval --data data --limit 1 --max-new-tokens 4 --out"


class Done(NamedTuple):
    """The end of a command."""

    status: int
    printed: str
    seconds: float


class Case(NamedTuple):
    """One case; *check* returns what is wrong after *words* ended in the directory, or "".

    With *refuse* the command has to fail. *damage* and *check* run in the parent, *before* in the process of the
    command, and *during* with the number of that process while it runs.
    """

    kind: str
    name: str
    words: str
    damage: Callable[[], object]
    refuse: bool = False
    check: Callable[[Done], str] = lambda done: ""
    during: Callable[[int], object] | None = None
    before: Callable[[], object] = lambda: None


def place(root: Path) -> Path:
    """Artifacts of every stage at *root*, with evaluations; ``base``, ``bare`` and ``bare.gguf`` have no manifest."""
    from tests.support import constant_model, tiny_llama

    os.chdir(root)
    constant_model.checkpoint(Path("base"))
    constant_model.chain(Path(), base="base")
    shutil.rmtree("tokenizer")
    shutil.copytree("adapter", "bare", ignore=shutil.ignore_patterns("manifest.json"))
    shutil.copyfile("gguf/model-Q8_0.gguf", "bare.gguf")
    manifest = artifacts.read(Path("merged"), "merged")
    with artifacts.writing(Path("other"), "merged", options=manifest.options, inputs=manifest.inputs) as draft:
        shutil.copytree("merged", draft.path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("manifest.json"))
        tiny_llama.model(seed=7, **_shape()).save_pretrained(draft.path)
        draft.facts |= manifest.facts
    for words in (
        "compare eval/random eval/merged --out eval/comparison",
        "publish --model merged --license mit --name x --out release",
        *(f"{EVAL} done-{name} --model {name}" for name in ("base", "bare", "bare.gguf")),
    ):
        if (done := run(words)).status:
            raise RuntimeError(f"{words}: {done.printed}")
    return root


def _shape() -> dict[str, object]:
    return {"vocab_size": 328, "intermediate_size": 64, "num_hidden_layers": 1, "tie_word_embeddings": False}


def run(words: str, before: Callable[[], object] = lambda: None, during: Callable[[int], object] | None = None) -> Done:
    """Run ``countdown-rl`` with *words* in a child process that calls *before* first."""
    with tempfile.TemporaryFile() as printed:
        started = time.monotonic()
        process = os.fork()
        if not process:
            _child(words, before, printed.fileno())
        if during:
            during(process)
        while not (ended := os.waitpid(process, os.WNOHANG))[0]:
            if time.monotonic() - started > LIMIT:
                os.kill(process, signal.SIGKILL)
            time.sleep(0.002)
        printed.seek(0)
        text = printed.read().decode(errors="replace")
        return Done(os.waitstatus_to_exitcode(ended[1]), text, time.monotonic() - started)


def _child(words: str, before: Callable[[], object], output: int) -> None:
    status = 99
    try:
        for stream in (1, 2):
            os.dup2(output, stream)
        sys.stdin, sys.stdout, sys.stderr = open(os.devnull), open(1, "w"), open(2, "w")  # noqa: SIM115
        before()
        sys.argv = ["countdown-rl", *shlex.split(words)]
        main.main()
    except SystemExit as stop:
        status = int(stop.code or 0)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def judge(case: Case, root: Path) -> tuple[str, str]:
    """Run *case* on a copy of *root*; its verdict, and what was printed."""
    with tempfile.TemporaryDirectory() as directory:
        here = Path(directory, "here")
        shutil.copytree(root, here, copy_function=os.link)
        os.chdir(here)
        try:
            case.damage()
            done = run(case.words, case.before, case.during)
            return _verdict(case, done)
        finally:
            os.chdir(root)


def _verdict(case: Case, done: Done) -> tuple[str, str]:
    if done.seconds > LIMIT:
        return HANG, done.printed
    if done.status == 99 or re.search("Traceback|this is a bug", done.printed):
        return TRACEBACK, done.printed
    if done.status < 0 and case.kind != "signals":
        return CRASH, f"signal {-done.status}\n{done.printed}"
    if fault := case.check(done):
        return SILENT, f"{fault}\n{done.printed}"
    if done.status == 1 and len(_SENTENCE.findall(done.printed)) != 1:
        return CRASH, f"no error or verdict, or several\n{done.printed}"
    if done.status:
        return REFUSED, done.printed
    return (SILENT if case.refuse else ACCEPTED), done.printed


def replace(name: str, data: bytes) -> None:
    """Write *data* to a new file in the place of *name*, which may be a link to a file of others."""
    path = Path(name)
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
